//! The certificate of a listener: renewed long before it expires, however long the server runs.
//!
//! The built-in CA issues the next one in the background, or while a connection waits for it. step-ca is asked in the background, and its
//! certificate is kept in the key folder: a server that starts while step-ca is unreachable uses the previous certificate.

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
    /// Its name in metrics, logs and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Api => "api",
        }
    }

    fn file(self, keys_dir: &Path) -> PathBuf {
        keys_dir.join(match self {
            Self::Link => "listener-link.pem",
            Self::Api => "listener-api.pem",
        })
    }
}

/// The state of a listener's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerCertificate {
    /// The listener.
    pub listener: Listener,
    /// Since when it is valid.
    pub issued_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it is renewed; `None` for a certificate from a file, which an operator replaces.
    pub renews_at: Option<Timestamp>,
    /// Why the last renewal failed.
    pub error: Option<String>,
}

/// The certificates of the listeners of this process.
#[derive(Debug, Default)]
pub struct ListenerCertificates(Mutex<Vec<Shown>>);

#[derive(Debug)]
enum Shown {
    Kept(Arc<ServingCertificate>),
    File(ListenerCertificate),
}

impl ListenerCertificates {
    /// Adds a certificate that the server renews.
    pub(crate) fn show(&self, certificate: &Arc<ServingCertificate>) {
        self.lock().push(Shown::Kept(Arc::clone(certificate)));
    }

    /// Adds a certificate from a file.
    pub(crate) fn show_file(&self, listener: Listener, certificate: &CertificateDer<'_>) -> Result<(), CaError> {
        let (issued_at, expires_at) = super::ca::validity(certificate)?;
        self.lock().push(Shown::File(ListenerCertificate { listener, issued_at, expires_at, renews_at: None, error: None }));
        Ok(())
    }

    /// Returns the current state of all of them.
    pub(crate) fn all(&self) -> Vec<ListenerCertificate> {
        let of = |shown: &Shown| match shown {
            Shown::Kept(certificate) => certificate.status(),
            Shown::File(certificate) => certificate.clone(),
        };
        self.lock().iter().map(of).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a certificate of the CA and renews it in time.
pub struct ServingCertificate {
    ca: Arc<Ca>,
    listener: Listener,
    names: Vec<String>,
    /// Its file, if the CA may be unreachable.
    file: Option<PathBuf>,
    current: Mutex<Current>,
    /// Why the last renewal failed.
    error: Mutex<Option<String>>,
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
        now > self.due(share) || now < self.from
    }

    fn due(&self, share: u32) -> Timestamp {
        self.from.plus(self.until.since(self.from) / share)
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
                    tracing::warn!(
                        listener = listener.as_str(), error, until = %kept.until,
                        "no new certificate for the listener; the current one stays in use"
                    );
                    kept
                }
            },
            None => issue(&ca, &names, file.as_deref(), now).await?,
        };
        Ok(Arc::new(Self { ca, listener, names, file, current: Mutex::new(current), error: Mutex::default() }))
    }

    /// Returns the share of its lifetime after which it is renewed.
    fn share(&self) -> u32 {
        if self.file.is_some() { STEP_CA_SHARE } else { BUILT_IN_SHARE }
    }

    /// Returns its current state.
    pub fn status(&self) -> ListenerCertificate {
        let current = self.current();
        ListenerCertificate {
            listener: self.listener,
            issued_at: current.from,
            expires_at: current.until,
            renews_at: Some(current.due(self.share())),
            error: self.error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Renews the certificate in time, until `stop`.
    pub async fn keep_fresh(self: Arc<Self>, stop: CancellationToken) {
        let mut retry = RETRY.0;
        loop {
            let now = Timestamp::now();
            let current = self.current();
            let pause = if !current.is_due(now, self.share()) {
                retry = RETRY.0;
                current.due(self.share()).since(now).clamp(Duration::from_millis(100), LOOK_EVERY)
            } else if self.replace(now).await.is_err() {
                let pause = retry;
                retry = (retry * 2).min(RETRY.1);
                pause
            } else {
                continue;
            };
            tokio::select! { biased; () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// Renews the certificate.
    async fn replace(&self, now: Timestamp) -> Result<(), CaError> {
        // Another process of this cluster may have been faster.
        let kept = self.file.as_deref().and_then(|file| kept(&self.ca, &self.names, file, now));
        let next = match kept.filter(|kept| !kept.is_due(now, STEP_CA_SHARE)) {
            Some(kept) => Ok(kept),
            None => issue(&self.ca, &self.names, self.file.as_deref(), now).await,
        };
        let next = self.tell(next, self.current().until)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// Logs and remembers the result of a renewal of the certificate that is valid until `until`.
    fn tell(&self, next: Result<Current, CaError>, until: Timestamp) -> Result<Current, CaError> {
        let listener = self.listener.as_str();
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        match &next {
            Ok(next) => {
                *last = None;
                tracing::info!(listener, until = %next.until, "the listener has a new certificate");
            }
            Err(error) => {
                *last = Some(crate::link::chain(error));
                let error = error as &dyn std::error::Error;
                tracing::error!(listener, error, %until, "no new certificate for the listener; retrying");
            }
        }
        next
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
            // If it fails, the old one may still be valid.
            if let Ok(made) = self.tell(made.and_then(certified), current.until) {
                *current = made;
            }
        }
        Some(Arc::clone(&current.key))
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::ClusterId;
    use gpuaas_testkit::TempDir;

    use super::*;
    use crate::pki::{CaConfig, CaRequests};

    #[tokio::test]
    async fn a_certificate_that_is_due_is_replaced_and_a_failure_is_remembered_until_then() {
        let (dir, now) = (TempDir::new(), Timestamp::now());
        let ca =
            Ca::open(&CaConfig::default(), dir.path(), ClusterId::generate(), now, CaRequests::default()).await.expect("a CA");
        let certificate =
            ServingCertificate::new(Arc::new(ca), Vec::new(), dir.path(), Listener::Link).await.expect("a certificate");
        let shown = ListenerCertificates::default();
        shown.show(&certificate);
        let first = shown.all().remove(0);
        let renews_at = first.renews_at.expect("the server replaces it");
        assert_eq!((first.listener.as_str(), first.error.as_deref()), ("link", None));
        assert!(first.issued_at <= now && now < renews_at && renews_at < first.expires_at, "{first:?}");

        let failed = certificate.tell(Err(CaError::Unacceptable("another key".to_owned())), first.expires_at);
        assert!(failed.is_err());
        let failing = shown.all().remove(0);
        assert!(failing.error.is_some_and(|error| error.contains("another key")));
        assert_eq!(failing.expires_at, first.expires_at, "it goes on with the one it has");

        certificate.replace(renews_at.plus(Duration::from_secs(1))).await.expect("replaced");
        let next = shown.all().remove(0);
        assert!(next.expires_at > first.expires_at && next.error.is_none(), "{next:?}");
        let der = certificate.current().key.cert.first().expect("a leaf").clone();
        shown.show_file(Listener::Api, &der).expect("a certificate");
        let file = shown.all().remove(1);
        assert_eq!((file.listener, file.renews_at), (Listener::Api, None));
        assert_eq!(file.expires_at.0 / 1_000_000, next.expires_at.0 / 1_000_000);
    }
}
