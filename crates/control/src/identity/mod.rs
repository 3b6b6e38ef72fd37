//! Authentication: tokens of the built-in issuer and of other configured issuers, and the endpoints of the built-in one.
//!
//! `gpuaas_identity` decides, and this module writes: [`endpoints`] are for programs, [`browser`] is for people, [`grants`]
//! handles codes and tokens, [`rows`] stores them.

mod browser;
mod endpoints;
mod grants;
mod known_browser;
mod password_threads;
mod passwords;
mod rows;
mod turns;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::GrantId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::Principal;
use gpuaas_domain::decision::Change;
use gpuaas_domain::tenancy::Claims;
use gpuaas_domain::{Actor, Decision};
use gpuaas_identity::oauth::Clients;
use gpuaas_identity::signing::{self, SigningError, SigningKey, SigningKeys};
use gpuaas_identity::verifier::{BadIssuers, HttpOptions, IssuerConfig, Source, Verifier};

use crate::commit::commit;
use crate::error::ControlError;
use crate::{Control, authz_cache, pki};

pub(crate) use endpoints::router;
pub(crate) use grants::{end_all, is_live};
pub(crate) use passwords::is_password_of;

/// The audience of tokens of the built-in issuer.
pub const AUDIENCE: &str = "gpuaas";

/// An external issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalIssuer {
    /// Its exact name, as in the `iss` of its tokens.
    pub issuer: String,
    /// The value that the `aud` of its tokens must contain.
    pub audience: String,
}

/// The accepted issuers.
#[derive(Clone, Debug, Default)]
pub struct IdentityConfig {
    /// The public URL of this server, which is the name of the built-in issuer. By default the address of REST.
    pub public_url: Option<String>,
    /// Whether users may sign in with a password of the built-in issuer.
    pub built_in: bool,
    /// External issuers.
    pub issuers: Vec<ExternalIssuer>,
    /// CA certificates for external issuers, if not the system's.
    pub ca_file: Option<PathBuf>,
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The list of issuers is not valid.
    #[error("the issuers cannot be used")]
    Issuers(#[from] BadIssuers),
    /// The key of the built-in issuer cannot be used.
    #[error("the key of the built-in issuer cannot be used")]
    Key(#[from] SigningError),
    /// The key file cannot be used.
    #[error("the key file of the built-in issuer cannot be used")]
    File(#[from] pki::KeyFileError),
    /// The password threads cannot be started.
    #[error("the threads that compute passwords cannot be started")]
    Threads(#[source] std::io::Error),
    /// TLS for external issuers cannot be set up.
    #[error("TLS for other issuers cannot be set up: {0}")]
    Tls(String),
}

/// Verifies tokens, and issues those of the built-in issuer.
pub struct Identity {
    verifier: Verifier,
    /// The built-in issuer, if it is on.
    pub(crate) built_in: Option<BuiltIn>,
}

/// The built-in issuer's name and keys.
pub struct BuiltIn {
    /// Its name: the public URL of this server, without a trailing slash.
    pub issuer: String,
    /// The keys that sign its tokens.
    pub keys: Arc<SigningKeys>,
    /// The clients.
    clients: Clients,
    /// Computes password hashes.
    pub(crate) hashing: passwords::Hashing,
}

impl Identity {
    /// Opens the key of the built-in issuer. Generates it if it is missing. `url` is the address of REST.
    pub(crate) fn open(config: &IdentityConfig, keys_dir: &std::path::Path, url: &str) -> Result<Self, IdentityError> {
        let mut issuers = Vec::new();
        let built_in = if config.built_in {
            let file = keys_dir.join("issuer.pem");
            let key = match pki::read_private(&file)? {
                Some(pem) => SigningKey::from_pem(&String::from_utf8_lossy(&pem))?,
                None => {
                    let pem = signing::generate()?;
                    pki::write_private(&file, pem.expose().as_bytes())?;
                    SigningKey::from_pem(pem.expose())?
                }
            };
            let keys = Arc::new(SigningKeys::new(key, [])?);
            let issuer = config.public_url.as_deref().unwrap_or(url).trim_end_matches('/').to_owned();
            let shared = Arc::clone(&keys);
            issuers.push(IssuerConfig {
                issuer: issuer.clone(),
                audience: AUDIENCE.to_owned(),
                jwks: Source::Local(Arc::new(move || shared.jwk_set())),
            });
            Some(BuiltIn {
                issuer,
                keys,
                clients: Clients::default(),
                hashing: passwords::Hashing::start().map_err(IdentityError::Threads)?,
            })
        } else {
            None
        };
        let outside = !config.issuers.is_empty();
        for ExternalIssuer { issuer, audience } in &config.issuers {
            issuers.push(IssuerConfig { issuer: issuer.clone(), audience: audience.clone(), jwks: Source::Discovery });
        }
        let tls =
            gpuaas_api::tls_config(outside, config.ca_file.as_deref()).map_err(|error| IdentityError::Tls(error.to_string()))?;
        Ok(Self { verifier: Verifier::new(issuers, HttpOptions::new(tls))?, built_in })
    }

    /// Returns the holder of this token with their roles.
    pub(crate) async fn caller(&self, control: &Control, token: &str) -> Result<(Actor, Arc<Principal>), ControlError> {
        let claims = self.verifier.verify(token, Timestamp::now()).await.map_err(|error| {
            if error.is_outage() {
                tracing::error!(error = %crate::link::chain(&error), "an issuer cannot be reached");
                return ControlError::Unavailable { code: "issuer_unavailable", message: error.to_string() };
            }
            ControlError::Unauthenticated { code: error.code(), message: error.to_string() }
        })?;
        if self.built_in.as_ref().is_some_and(|built_in| built_in.issuer == claims.issuer) {
            let grant = claims.session.as_deref().and_then(|session| session.parse::<GrantId>().ok());
            let counts = match grant {
                Some(grant) => authz_cache::sign_in_counts(control, grant).await?,
                None => false,
            };
            if !counts {
                let message = "this sign-in was ended; sign in again".to_owned();
                return Err(ControlError::Unauthenticated { code: "sign_in_ended", message });
            }
        }
        let claims = Claims {
            issuer: claims.issuer,
            subject: claims.subject,
            email: claims.email,
            email_verified: claims.email_verified,
            name: claims.name,
        };
        authz_cache::of_person(control, &claims).await
    }

    /// Returns the sign-in of a valid access token of the built-in issuer.
    async fn sign_in_of(&self, token: &str) -> Option<GrantId> {
        let claims = self.verifier.verify(token, Timestamp::now()).await.ok()?;
        let is_ours = self.built_in.as_ref().is_some_and(|built_in| built_in.issuer == claims.issuer);
        claims.session.filter(|_| is_ours)?.parse().ok()
    }
}

/// How often expired rows are deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Deletes expired codes, tokens and other temporary rows. A delay is harmless: each row has its own expiry.
pub(crate) fn spawn_sweep(control: &Arc<Control>) {
    let tracker = control.background.clone();
    let control = Arc::clone(control);
    tracker.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = control.shutdown.cancelled() => return,
                () = tokio::time::sleep(SWEEP_EVERY) => {}
            }
            let forget = Decision::default().change(Change::ResourcesForget { before: Timestamp::now() });
            if let Err(error) = commit(&control, forget).await {
                tracing::warn!(%error, "expired rows could not be deleted; the next sweep retries");
            }
        }
    });
}
