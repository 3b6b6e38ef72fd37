//! The certificate of a listener: renewed long before it expires, however long the server runs.
//!
//! The built-in CA issues the next one while a connection waits for it. step-ca is asked in the background, and its certificate
//! is kept in the key folder: a server that starts while step-ca is unreachable uses the previous certificate.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuaas_contract::time::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::ca::{Ca, CaError, ServerCertificate};
use super::files;

/// The clock may be set and the machine may sleep, so the certificate is checked this often.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// First and longest delay after a failure.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A listener, by the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The listener for agents.
    Link,
    /// REST.
    Api,
}

impl Listener {
    fn file(self, keys_dir: &Path) -> PathBuf {
        keys_dir.join(match self {
            Self::Link => "listener-link.pem",
            Self::Api => "listener-api.pem",
        })
    }
}

/// Serves a certificate of the CA and renews it in time.
pub struct ServingCertificate {
    ca: Arc<Ca>,
    names: Vec<String>,
    /// Its file, if the CA may be unreachable.
    file: Option<PathBuf>,
    current: Mutex<Current>,
}

#[derive(Clone)]
struct Current {
    from: Timestamp,
    until: Timestamp,
    key: Arc<CertifiedKey>,
}

impl Current {
    /// Returns whether it must be renewed, also if the clock was set back before its start: a certificate from the future is not
    /// valid.
    fn is_due(&self, now: Timestamp, share: u32) -> bool {
        now > self.from.plus(self.until.since(self.from) / share) || now < self.from
    }
}

/// The built-in CA renews its certificates at half their lifetime.
const BUILT_IN_SHARE: u32 = 2;
/// step-ca may be unreachable for long, so two thirds of the lifetime are left for it to return.
const STEP_CA_SHARE: u32 = 3;

impl ServingCertificate {
    /// Creates a certificate for the link's own name and these names and addresses.
    pub async fn new(ca: Arc<Ca>, names: Vec<String>, keys_dir: &Path, listener: Listener) -> Result<Arc<Self>, CaError> {
        let now = Timestamp::now();
        let file = ca.step_ca().map(|_| listener.file(keys_dir));
        let kept = file.as_deref().and_then(|file| kept(&ca, &names, file, now));
        let current = match kept {
            Some(kept) if !kept.is_due(now, STEP_CA_SHARE) => kept,
            Some(kept) => match issue(&ca, &names, file.as_deref(), now).await {
                Ok(current) => current,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, until = %kept.until, "no new certificate for the listener; the current one stays in use");
                    kept
                }
            },
            None => issue(&ca, &names, file.as_deref(), now).await?,
        };
        Ok(Arc::new(Self { ca, names, file, current: Mutex::new(current) }))
    }

    /// Renews the certificate in time, until `stop`. Returns at once if the CA issues it locally.
    pub async fn keep_fresh(self: Arc<Self>, stop: CancellationToken) {
        let Some(file) = self.file.clone() else { return };
        let mut retry = RETRY.0;
        loop {
            let now = Timestamp::now();
            let current = self.current();
            let pause = if !current.is_due(now, STEP_CA_SHARE) {
                retry = RETRY.0;
                let due = current.from.plus(current.until.since(current.from) / STEP_CA_SHARE);
                due.since(now).clamp(Duration::from_millis(100), LOOK_EVERY)
            } else if let Err(error) = self.replace(&file, now).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, until = %current.until, "no new certificate for the listener; retrying");
                let pause = retry;
                retry = (retry * 2).min(RETRY.1);
                pause
            } else {
                continue;
            };
            tokio::select! { biased; () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// Renews the certificate. Another process of this cluster may have been faster.
    async fn replace(&self, file: &Path, now: Timestamp) -> Result<(), CaError> {
        let kept = kept(&self.ca, &self.names, file, now).filter(|kept| !kept.is_due(now, STEP_CA_SHARE));
        let next = match kept {
            Some(kept) => kept,
            None => issue(&self.ca, &self.names, Some(file), now).await?,
        };
        tracing::info!(until = %next.until, "the listener has a new certificate");
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").field("names", &self.names).finish_non_exhaustive()
    }
}

fn certified(certificate: ServerCertificate) -> Result<Current, CaError> {
    let ServerCertificate { chain, key, from, until } = certificate;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| CaError::BadRequest(error.to_string()))?;
    Ok(Current { from, until, key: Arc::new(key) })
}

async fn issue(ca: &Ca, names: &[String], file: Option<&Path>, now: Timestamp) -> Result<Current, CaError> {
    let certificate = ca.issue_server(names, now).await?;
    if let Some(file) = file {
        files::write_private(file, pem_of(&certificate).as_bytes())?;
    }
    certified(certificate)
}

/// Returns the key, then the chain, for one file, so that they are never separated.
fn pem_of(certificate: &ServerCertificate) -> zeroize::Zeroizing<String> {
    let mut text = zeroize::Zeroizing::new(super::ca::pem_text("PRIVATE KEY", certificate.key.secret_der()));
    for link in &certificate.chain {
        text.push_str(&super::ca::pem_text("CERTIFICATE", link));
    }
    text
}

/// Returns the certificate of an earlier start or of another process, if it is valid now.
fn kept(ca: &Ca, names: &[String], file: &Path, now: Timestamp) -> Option<Current> {
    let step_ca = ca.step_ca()?;
    let read = || -> Result<Option<Current>, CaError> {
        let Some(pem) = files::read_private(file)? else { return Ok(None) };
        let bad = |error: rustls::pki_types::pem::Error| CaError::Unacceptable(error.to_string());
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(bad)?;
        let (from, until) = step_ca.check_server(&chain, names, now)?;
        certified(ServerCertificate { chain, key, from, until }).map(Some)
    };
    match read() {
        Ok(kept) => kept,
        Err(error) => {
            // It has expired, or the server has other names: a new one is issued.
            tracing::info!(file = %file.display(), error = &error as &dyn std::error::Error, "the saved certificate is not used");
            None
        }
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::now();
        if current.is_due(now, BUILT_IN_SHARE)
            && let Some(made) = self.ca.issue_server_at_once(&self.names, now)
        {
            match made.and_then(certified) {
                Ok(made) => {
                    tracing::info!("a new certificate for the listener was issued");
                    *current = made;
                }
                // The old one may still be valid.
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "no new certificate for the listener"),
            }
        }
        Some(Arc::clone(&current.key))
    }
}
