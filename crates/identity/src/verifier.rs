//! The door for bearer tokens: who presents this one, if it is good.
//!
//! A token is good if it comes from a configured issuer, is meant for us, is of this time, and carries a signature of one of that
//! issuer's keys with an algorithm that the key itself is for. Whatever is not clearly so is refused.

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
/// Most issuers of one verifier.
const MAX_ISSUERS: usize = 16;

/// Where the keys of an issuer come from.
#[derive(Clone)]
pub enum Source {
    /// From its discovery document, over HTTPS (or HTTP on a loopback address).
    Discovery,
    /// From this process: the built-in issuer.
    Local(Arc<dyn Fn() -> JwkSet + Send + Sync>),
}

/// One issuer whose tokens are taken.
#[derive(Clone)]
pub struct IssuerConfig {
    /// Its exact name, as in the `iss` of its tokens.
    pub issuer: String,
    /// What the `aud` of its tokens must contain.
    pub audience: String,
    /// Where its keys come from.
    pub jwks: Source,
}

/// How issuers are reached.
#[derive(Clone)]
pub struct HttpOptions {
    /// Which authorities are trusted, with which crypto provider.
    pub tls: rustls::ClientConfig,
    /// How requests name us.
    pub user_agent: String,
}

impl HttpOptions {
    /// Options with the default for everything but TLS.
    pub fn new(tls: rustls::ClientConfig) -> Self {
        Self { tls, user_agent: concat!("gpuaas-identity/", env!("CARGO_PKG_VERSION")).to_owned() }
    }
}

/// What a good token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Who says it: one of the configured issuers.
    pub issuer: String,
    /// Who it is about; unique and never given again within the issuer.
    pub subject: String,
    /// E-mail address.
    pub email: Option<String>,
    /// Whether the issuer has checked that address. Never true without one.
    pub email_verified: bool,
    /// Name for people.
    pub name: Option<String>,
    /// When the token ends.
    pub expires_at: Timestamp,
    /// When it was made.
    pub issued_at: Timestamp,
    /// The sign-in it came out of (`sid`), or else its own name (`jti`).
    pub session: Option<String>,
}

/// Why a token is not taken.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// More bytes than any token has.
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes; ask the issuer for one with fewer claims")]
    TooLong,
    /// A part that cannot be read.
    #[error("{part} cannot be read; send the whole token as the issuer gave it, or sign in again")]
    Malformed {
        /// Which part.
        part: &'static str,
    },
    /// An algorithm that is not taken, or not by that key.
    #[error(
        "the token is not signed with an algorithm of the issuer's key; RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 \
         and EdDSA are taken, each only from a key for it"
    )]
    Algorithm,
    /// The header demands an extension.
    #[error("the token's header demands an extension (`crit`) and none is supported; ask the issuer for a plain token")]
    Critical,
    /// The token is of another kind.
    #[error("the token's `typ` is neither `JWT` nor `at+jwt`; send an access token or an ID token")]
    Type,
    /// Nobody we know.
    #[error("the token comes from an issuer that is not configured; sign in again")]
    UnknownIssuer,
    /// For somebody else.
    #[error("the token is not meant for us: its `aud` must contain `{wanted}`; sign in again")]
    Audience {
        /// What it must contain.
        wanted: String,
    },
    /// Too late.
    #[error("the token ended at {at}; refresh it or sign in again")]
    Expired {
        /// When it ended.
        at: Timestamp,
    },
    /// Too early.
    #[error("the token is valid from {from} on; check the clocks of this server and of the issuer")]
    NotYetValid {
        /// When it begins.
        from: Timestamp,
    },
    /// Longer than any token should live.
    #[error("the token is valid for more than 24 hours; configure a shorter life at the issuer")]
    LivesTooLong,
    /// No key of that name.
    #[error("the issuer has no key of the name in the token; sign in again, and try again in a minute if keys were just changed")]
    UnknownKey,
    /// No name, and several keys.
    #[error("the token names no key (`kid`) and the issuer has several; configure the issuer to name it")]
    KeyNameNeeded,
    /// Changed, or never signed by the issuer.
    #[error("the token's signature is not the issuer's; sign in again")]
    Signature,
    /// The keys cannot be had. Not the fault of the token.
    #[error("the keys of {issuer} cannot be fetched; try again, and check that this server reaches it")]
    IssuerUnavailable {
        /// Whose.
        issuer: String,
        /// Why.
        #[source]
        source: Arc<FetchError>,
    },
}

impl TokenError {
    /// Stable code.
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

    /// Whether the issuer is at fault and the same token may be good later: 503 and not 401.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::IssuerUnavailable { .. })
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadIssuers {
    /// The address of an issuer.
    #[error("an issuer cannot be used")]
    Address(#[from] FetchError),
    /// An issuer without audience: any token of it would be taken.
    #[error("the issuer `{0}` has no audience; name what the `aud` of its tokens contains")]
    NoAudience(String),
    /// An issuer without name.
    #[error("an issuer has no name; write the exact `iss` of its tokens")]
    NoName,
    /// The same issuer twice.
    #[error("the issuer `{0}` is configured twice; keep one")]
    Twice(String),
    /// More than is useful.
    #[error("more than {MAX_ISSUERS} issuers are configured")]
    TooMany,
    /// The HTTP client could not be made.
    #[error("the HTTP client for issuers cannot be made; check the TLS configuration")]
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

/// Verifies tokens of the configured issuers. Share it: it keeps their keys.
pub struct Verifier {
    issuers: Vec<Issuer>,
}

impl Verifier {
    /// A verifier for these issuers. Nothing is fetched before the first token comes.
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

    /// What a token says, if it is good at `now`.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let token = Unverified::parse(token)?;
        let issuer = self.issuers.iter().find(|issuer| issuer.name == token.issuer()).ok_or(TokenError::UnknownIssuer)?;
        // The cheap questions first: an expired token is worth no request and no signature. All of them must be answered well.
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
    // What is meant for this machine must not leave it in clear text for a proxy of the environment.
    let builder = if is_local { builder.no_proxy() } else { builder };
    builder.build().map_err(BadIssuers::Http)
}
