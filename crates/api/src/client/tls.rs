//! TLS for the client, which trusts the system's authorities, or only those in a file.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::ClientError;

/// Maximum size of a CA file in bytes.
const MAX_CA_FILE_BYTES: u64 = 1024 * 1024;

/// The TLS configuration. Without `needed`, the system's certificates are not loaded, so that a machine without any can use plain HTTP.
pub fn config(needed: bool, ca_file: Option<&Path>) -> Result<ClientConfig, ClientError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|source| ClientError::Tls { source })?;
    let config = match ca_file {
        Some(path) => builder.with_root_certificates(roots_of(path)?).with_no_client_auth(),
        None if needed => {
            let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|source| ClientError::Tls { source })?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth()
        }
        None => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    };
    Ok(config)
}

fn roots_of(path: &Path) -> Result<RootCertStore, ClientError> {
    let bad = |detail: String| ClientError::CaFile { path: path.to_owned(), detail };
    let size = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
    if size > MAX_CA_FILE_BYTES {
        return Err(bad(format!("it has {size} bytes; at most {MAX_CA_FILE_BYTES} are read")));
    }
    let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| bad(format!("it is not PEM: {error}")))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("it contains no certificate (`-----BEGIN CERTIFICATE-----`)".to_owned()));
    }
    Ok(roots)
}
