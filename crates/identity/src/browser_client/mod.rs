//! The client side of signing in, for `gpuaas login`: with a browser on this machine, or with a code on another one.
//!
//! Works with any issuer that has a discovery document. The caller provides the HTTP client with its trusted authorities. It must
//! be built **without redirects**, because a code or a refresh token must not be sent to an unexpected place.

mod browser;
mod callback;
mod device;

use std::fmt;
use std::time::Duration;

use reqwest::Url;
use zeroize::Zeroizing;

use crate::fetch::{self, FetchError};
use crate::form;

/// The HTTP client for requests to issuers.
pub use reqwest::Client as HttpClient;

pub use browser::BrowserLogin;
pub use device::{DeviceLogin, DeviceStep};

/// How long a person has to sign in in the browser.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of characters of an issuer's error description that are shown.
const MAX_SHOWN_CHARS: usize = 300;
/// Lifetime of an access token if the issuer does not name it.
const UNKNOWN_LIFE: Duration = Duration::from_secs(5 * 60);

/// Why a sign-in failed.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The issuer cannot be reached or gives an invalid answer.
    #[error("the issuer cannot be used")]
    Issuer(#[from] FetchError),
    /// The issuer does not support this flow.
    #[error("the issuer offers no {what}; sign in another way, or ask its operator to turn it on")]
    NotOffered {
        /// The missing feature.
        what: &'static str,
    },
    /// No port on the loopback address is available.
    #[error("cannot listen on 127.0.0.1 for the browser's answer; use the sign-in with a code (`--device`)")]
    Listen(#[source] std::io::Error),
    /// The time limit passed.
    #[error("there was no sign-in within {} minutes; start again, or use the sign-in with a code (`--device`)", LOGIN_TIMEOUT.as_secs() / 60)]
    TimedOut,
    /// The person denied the request.
    #[error("the sign-in was denied in the browser; start again if that was a mistake")]
    Denied,
    /// The code expired before it was approved.
    #[error("the code expired before it was approved; start again")]
    CodeExpired,
    /// The refresh token or the code is no longer valid.
    #[error("the sign-in is not valid any more; sign in again")]
    SignInAgain,
    /// The issuer refused for another reason.
    #[error("the issuer refused with `{error}`: {description}")]
    Refused {
        /// Its error code.
        error: String,
        /// Its error description.
        description: String,
    },
    /// The answer belongs to another sign-in.
    #[error("the issuer's answer does not belong to this sign-in ({what}); start again, and do not follow links to sign in")]
    Mismatch {
        /// What does not match.
        what: &'static str,
    },
}

impl LoginError {
    /// Returns a stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Issuer(_) => "issuer_unusable",
            Self::NotOffered { .. } => "login_not_offered",
            Self::Listen(_) => "login_cannot_listen",
            Self::TimedOut => "login_timed_out",
            Self::Denied => "login_denied",
            Self::CodeExpired => "login_code_expired",
            Self::SignInAgain => "login_needed",
            Self::Refused { .. } => "login_refused",
            Self::Mismatch { .. } => "login_mismatch",
        }
    }
}

/// The client and the requested scopes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// The client's name at the issuer; `gpuaas-cli` at the built-in one.
    pub client_id: String,
    /// The scopes to request, such as `openid email offline_access`.
    pub scope: String,
}

/// The endpoints of an issuer.
#[derive(Clone, Debug)]
pub struct Provider {
    issuer: String,
    authorization_endpoint: Option<Url>,
    token_endpoint: Url,
    device_authorization_endpoint: Option<Url>,
    revocation_endpoint: Option<Url>,
}

impl Provider {
    /// Reads the issuer's discovery document.
    pub async fn discover(http: &reqwest::Client, issuer: &str) -> Result<Self, LoginError> {
        let document = fetch::discover(http, issuer).await?;
        let optional = |named: Option<&str>| match named {
            Some(_) => fetch::endpoint(issuer, named, "").map(Some),
            None => Ok(None),
        };
        Ok(Self {
            issuer: issuer.to_owned(),
            authorization_endpoint: optional(document.authorization_endpoint.as_deref())?,
            token_endpoint: fetch::endpoint(
                issuer,
                document.token_endpoint.as_deref(),
                "its discovery document names no `token_endpoint`",
            )?,
            device_authorization_endpoint: optional(document.device_authorization_endpoint.as_deref())?,
            revocation_endpoint: optional(document.revocation_endpoint.as_deref())?,
        })
    }

    /// Returns the issuer.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns whether the issuer supports sign-in with a code.
    pub fn offers_device_login(&self) -> bool {
        self.device_authorization_endpoint.is_some()
    }
}

/// Creates an HTTP client for this module: without redirects and with a time limit. `is_local` keeps requests to this machine
/// away from the proxies of the environment.
pub fn http_client(tls: rustls::ClientConfig, is_local: bool) -> Result<reqwest::Client, reqwest::Error> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("gpuaas/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REQUEST_TIMEOUT);
    let builder = if is_local { builder.no_proxy() } else { builder };
    builder.build()
}

/// The tokens of a sign-in. Wiped from memory when dropped, never printed.
#[derive(Clone)]
pub struct Tokens {
    /// The token for the API.
    pub access_token: Zeroizing<String>,
    /// The token to get the next access token.
    pub refresh_token: Option<Zeroizing<String>>,
    /// The token that names the user. Some issuers give tokens for APIs only in this form.
    pub id_token: Option<Zeroizing<String>>,
    /// The remaining lifetime of the access token.
    pub expires_in: Duration,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("expires_in", &self.expires_in).finish_non_exhaustive()
    }
}

/// Exchanges a refresh token for new tokens. If the answer has a new refresh token, the old one is spent.
pub async fn refresh(
    http: &reqwest::Client,
    provider: &Provider,
    client: &ClientSettings,
    refresh_token: &str,
) -> Result<Tokens, LoginError> {
    let fields = [("grant_type", "refresh_token"), ("client_id", &client.client_id), ("refresh_token", refresh_token)];
    match token_request(http, provider, &fields).await? {
        TokenAnswer::Tokens(tokens) => Ok(tokens),
        TokenAnswer::Refused(refusal) => Err(refusal.into_error()),
    }
}

/// Ends a sign-in at the issuer, by its refresh token or, if it has none, its access token (RFC 7009).
pub async fn revoke(http: &reqwest::Client, provider: &Provider, client: &ClientSettings, token: &str) -> Result<(), LoginError> {
    let url = provider.revocation_endpoint.as_ref().ok_or(LoginError::NotOffered { what: "way to sign out" })?;
    let answer = post(http, url, &[("client_id", &client.client_id), ("token", token)]).await?;
    if answer.status.is_success() { Ok(()) } else { Err(refusal(&answer, url)?.into_error()) }
}

/// The answer of the token endpoint.
enum TokenAnswer {
    Tokens(Tokens),
    Refused(Refusal),
}

/// An OAuth error response.
#[derive(serde::Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    error_description: String,
}

impl Refusal {
    fn into_error(self) -> LoginError {
        match self.error.as_str() {
            "invalid_grant" => LoginError::SignInAgain,
            "access_denied" => LoginError::Denied,
            "expired_token" => LoginError::CodeExpired,
            _ => LoginError::Refused { error: printable(&self.error), description: printable(&self.error_description) },
        }
    }
}

/// Makes a text from outside safe for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN_CHARS).collect()
}

async fn post(http: &reqwest::Client, url: &Url, fields: &[(&str, &str)]) -> Result<fetch::Answer, FetchError> {
    let body = form::encode(fields.iter().copied());
    let request = http.post(url.clone()).header(reqwest::header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    fetch::answer(request, url.as_str()).await
}

/// Reads the OAuth error in an unsuccessful answer. An answer without one is a connection error.
fn refusal(answer: &fetch::Answer, url: &Url) -> Result<Refusal, FetchError> {
    serde_json::from_slice(&answer.body).map_err(|_| FetchError::Status { url: url.to_string(), status: answer.status })
}

async fn token_request(http: &reqwest::Client, provider: &Provider, fields: &[(&str, &str)]) -> Result<TokenAnswer, LoginError> {
    #[derive(serde::Deserialize)]
    struct Document {
        access_token: String,
        token_type: String,
        expires_in: Option<u64>,
        refresh_token: Option<String>,
        id_token: Option<String>,
    }
    let url = &provider.token_endpoint;
    let answer = post(http, url, fields).await?;
    if !answer.status.is_success() {
        return Ok(TokenAnswer::Refused(refusal(&answer, url)?));
    }
    let document: Document = fetch::parse(&answer.body, url.as_str())?;
    if !document.token_type.eq_ignore_ascii_case("bearer") {
        let reason = "its tokens are not bearer tokens".to_owned();
        return Err(FetchError::Malformed { url: url.to_string(), reason }.into());
    }
    Ok(TokenAnswer::Tokens(Tokens {
        access_token: Zeroizing::new(document.access_token),
        refresh_token: document.refresh_token.map(Zeroizing::new),
        id_token: document.id_token.map(Zeroizing::new),
        expires_in: document.expires_in.map_or(UNKNOWN_LIFE, Duration::from_secs),
    }))
}
