//! The check of bearer tokens.
//!
//! A token is valid if it comes from a configured issuer, is meant for this service, is within its time, and is signed by one of
//! that issuer's keys with an algorithm of that key. Everything else is refused.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::time::Timestamp;

pub use crate::fetch::FetchError;
use crate::fetch::issuer_url;
use crate::jwk::JwkSet;
use crate::jwks::{LocalKeys, RemoteKeys};
use crate::token::{MAX_TOKEN_BYTES, Unverified};

/// How long one request to an issuer may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of issuers of one verifier.
const MAX_ISSUERS: usize = 16;

/// The source of an issuer's keys.
#[derive(Clone)]
pub enum Source {
    /// Its discovery document, over HTTPS (or HTTP on a loopback address).
    Discovery,
    /// This process: the built-in issuer.
    Local(Arc<dyn Fn() -> JwkSet + Send + Sync>),
}

/// One issuer whose tokens are accepted.
#[derive(Clone)]
pub struct IssuerConfig {
    /// Its exact name, as in the `iss` of its tokens.
    pub issuer: String,
    /// The value that the `aud` of its tokens must contain.
    pub audience: String,
    /// The source of its keys.
    pub jwks: Source,
}

/// Options for requests to issuers.
#[derive(Clone)]
pub struct HttpOptions {
    /// The trusted authorities and the crypto provider.
    pub tls: rustls::ClientConfig,
    /// The `User-Agent` of the requests.
    pub user_agent: String,
}

impl HttpOptions {
    /// Returns options with the defaults for everything but TLS.
    pub fn new(tls: rustls::ClientConfig) -> Self {
        Self { tls, user_agent: concat!("gpuaas-identity/", env!("CARGO_PKG_VERSION")).to_owned() }
    }
}

/// The claims of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The issuer: one of the configured ones.
    pub issuer: String,
    /// The subject: unique and never reused within the issuer.
    pub subject: String,
    /// E-mail address.
    pub email: Option<String>,
    /// Whether the issuer has verified that address. Never true without an address.
    pub email_verified: bool,
    /// The display name.
    pub name: Option<String>,
    /// The time of expiry.
    pub expires_at: Timestamp,
    /// The time of issue.
    pub issued_at: Timestamp,
    /// The session (`sid`), or else the id of the token (`jti`).
    pub session: Option<String>,
}

/// Why a token is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token is too long.
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes; ask the issuer for one with fewer claims")]
    TooLong,
    /// A part that cannot be parsed.
    #[error("{part} cannot be read; send the whole token as the issuer gave it, or sign in again")]
    Malformed {
        /// The part.
        part: &'static str,
    },
    /// The algorithm is not accepted, or not for that key.
    #[error(
        "the token is not signed with an algorithm of the issuer's key; RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 \
         and EdDSA are accepted, each only from a key for it"
    )]
    Algorithm,
    /// The header requires an extension.
    #[error("the token's header requires an extension (`crit`) and none is supported; ask the issuer for a plain token")]
    Critical,
    /// The token is of another kind.
    #[error("the token's `typ` is neither `JWT` nor `at+jwt`; send an access token or an ID token")]
    Type,
    /// The issuer is not configured.
    #[error("the token comes from an issuer that is not configured; sign in again")]
    UnknownIssuer,
    /// The token is for another audience.
    #[error("the token is for another service: its `aud` must contain `{wanted}`; sign in again")]
    Audience {
        /// The required audience.
        wanted: String,
    },
    /// The token has expired.
    #[error("the token expired at {at}; refresh it or sign in again")]
    Expired {
        /// The time of expiry.
        at: Timestamp,
    },
    /// The token is not valid yet.
    #[error("the token is valid from {from} on; check the clocks of this server and of the issuer")]
    NotYetValid {
        /// The start of its validity.
        from: Timestamp,
    },
    /// The lifetime is too long.
    #[error("the token is valid for more than 24 hours; configure a shorter lifetime at the issuer")]
    LivesTooLong,
    /// The issuer has no key with this id.
    #[error("the issuer has no key with the id in the token; sign in again, and retry in a minute if keys were just changed")]
    UnknownKey,
    /// The token names no key, and the issuer has several.
    #[error("the token names no key (`kid`) and the issuer has several; configure the issuer to name it")]
    KeyNameNeeded,
    /// The token was changed, or was not signed by the issuer.
    #[error("the token's signature is not the issuer's; sign in again")]
    Signature,
    /// The keys cannot be fetched. The token may be valid.
    #[error("the keys of {issuer} cannot be fetched; try again, and check that this server reaches it")]
    IssuerUnavailable {
        /// The issuer.
        issuer: String,
        /// The cause.
        #[source]
        source: Arc<FetchError>,
    },
}

impl TokenError {
    /// Returns a stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLong => "token_too_long",
            Self::Malformed { .. } => "token_malformed",
            Self::Algorithm => "token_algorithm",
            Self::Critical => "token_critical_header",
            Self::Type => "token_type",
            Self::UnknownIssuer => "token_issuer",
            Self::Audience { .. } => "token_audience",
            Self::Expired { .. } => "token_expired",
            Self::NotYetValid { .. } => "token_not_yet_valid",
            Self::LivesTooLong => "token_lives_too_long",
            Self::UnknownKey => "token_key_unknown",
            Self::KeyNameNeeded => "token_key_name_needed",
            Self::Signature => "token_signature",
            Self::IssuerUnavailable { .. } => "issuer_unavailable",
        }
    }

    /// Returns whether the issuer is at fault and the same token may be valid later: the status is then 503, not 401.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::IssuerUnavailable { .. })
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadIssuers {
    /// The address of an issuer is invalid.
    #[error("an issuer cannot be used")]
    Address(#[from] FetchError),
    /// An issuer without audience: any token of it would be accepted.
    #[error("the issuer `{0}` has no audience; name what the `aud` of its tokens contains")]
    NoAudience(String),
    /// An issuer without name.
    #[error("an issuer has no name; write the exact `iss` of its tokens")]
    NoName,
    /// The same issuer twice.
    #[error("the issuer `{0}` is configured twice; keep one")]
    Twice(String),
    /// There are too many issuers.
    #[error("more than {MAX_ISSUERS} issuers are configured; remove some")]
    TooMany,
    /// The HTTP client could not be created.
    #[error("the HTTP client for issuers cannot be created; check the TLS configuration")]
    Http(#[source] reqwest::Error),
}

enum Keys {
    Remote(Arc<RemoteKeys>),
    Local(LocalKeys),
}

struct Issuer {
    name: String,
    audience: String,
    keys: Keys,
}

/// Verifies tokens of the configured issuers. Share one value: it caches their keys.
pub struct Verifier {
    issuers: Vec<Issuer>,
}

impl Verifier {
    /// Creates a verifier for these issuers. Nothing is fetched before the first token arrives.
    pub fn new(issuers: Vec<IssuerConfig>, http: HttpOptions) -> Result<Self, BadIssuers> {
        if issuers.len() > MAX_ISSUERS {
            return Err(BadIssuers::TooMany);
        }
        let mut known: Vec<Issuer> = Vec::with_capacity(issuers.len());
        for IssuerConfig { issuer, audience, jwks } in issuers {
            if issuer.is_empty() {
                return Err(BadIssuers::NoName);
            }
            if audience.is_empty() {
                return Err(BadIssuers::NoAudience(issuer));
            }
            if known.iter().any(|other| other.name == issuer) {
                return Err(BadIssuers::Twice(issuer));
            }
            let keys = match jwks {
                Source::Discovery => {
                    let is_local = issuer_url(&issuer)?.scheme() == "http";
                    Keys::Remote(Arc::new(RemoteKeys::new(issuer.clone(), http_client(&http, is_local)?)))
                }
                Source::Local(read) => Keys::Local(LocalKeys::new(read)),
            };
            known.push(Issuer { name: issuer, audience, keys });
        }
        Ok(Self { issuers: known })
    }

    /// Returns the claims of a token if it is valid at `now`.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let token = Unverified::parse(token)?;
        let issuer = self.issuers.iter().find(|issuer| issuer.name == token.issuer()).ok_or(TokenError::UnknownIssuer)?;
        // The cheap checks first: an expired token needs no request and no signature check. All checks must pass.
        let claims = token.claims(&issuer.audience, now)?;
        let kid = token.kid.as_deref();
        let key = match &issuer.keys {
            Keys::Remote(keys) => keys.find(kid, token.algorithm, now).await?,
            Keys::Local(keys) => keys.find(&issuer.name, kid, token.algorithm)?,
        };
        if key.verifies(token.algorithm, token.signed, &token.signature) { Ok(claims) } else { Err(TokenError::Signature) }
    }
}

fn http_client(options: &HttpOptions, is_local: bool) -> Result<reqwest::Client, BadIssuers> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(options.tls.clone())
        .user_agent(options.user_agent.as_str())
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REQUEST_TIMEOUT);
    // Requests to this machine must not go to a proxy of the environment in clear text.
    let builder = if is_local { builder.no_proxy() } else { builder };
    builder.build().map_err(BadIssuers::Http)
}
