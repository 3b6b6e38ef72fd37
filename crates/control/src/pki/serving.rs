//! The certificate that a listener of ours shows: made anew long before it expires, however long the server runs.

use std::sync::{Arc, Mutex, PoisonError};

use gpuaas_contract::time::Timestamp;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::ca::{Ca, CaError, SERVER_LIFE};

/// Shows a certificate of the built-in CA and replaces it at half its life.
pub struct ServingCertificate {
    ca: Arc<Ca>,
    names: Vec<String>,
    current: Mutex<(Timestamp, Arc<CertifiedKey>)>,
}

impl ServingCertificate {
    /// For the link's own name and these names and addresses besides.
    pub fn new(ca: Arc<Ca>, names: Vec<String>) -> Result<Self, CaError> {
        let now = Timestamp::now();
        let first = make(&ca, &names, now)?;
        Ok(Self { ca, names, current: Mutex::new((now, first)) })
    }
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").field("names", &self.names).finish_non_exhaustive()
    }
}

fn make(ca: &Ca, names: &[String], now: Timestamp) -> Result<Arc<CertifiedKey>, CaError> {
    let (chain, key) = ca.issue_server(names, now)?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let made = CertifiedKey::from_der(chain, key, &provider).map_err(|error| CaError::BadRequest(error.to_string()))?;
    Ok(Arc::new(made))
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp::now();
        // Also if the clock went back behind the moment it was made: nobody would take a certificate of the future.
        if now > current.0.plus(SERVER_LIFE / 2) || now < current.0 {
            match make(&self.ca, &self.names, now) {
                Ok(made) => {
                    tracing::info!("a new certificate for the listener was made");
                    *current = (now, made);
                }
                // The old one may still serve.
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "no new certificate for the listener"),
            }
        }
        Some(Arc::clone(&current.1))
    }
}
