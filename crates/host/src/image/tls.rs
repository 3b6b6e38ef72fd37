//! The trusted CA certificates: those of the host's system.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::http::UNREACHABLE;
use crate::HostError;

/// The files of Debian and Ubuntu, Fedora and RHEL, SUSE, Alpine.
pub(super) const BUNDLES: [&str; 4] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];
/// Size limit of such a file.
const MAX_BUNDLE_BYTES: u64 = 16 * 1024 * 1024;

/// Returns the configuration with the first of these files that exists. It is read for every image, because the owner may have
/// changed it. Blocks.
pub(super) fn config(bundles: &[PathBuf]) -> Result<Arc<ClientConfig>, HostError> {
    let mut roots = RootCertStore::empty();
    for bundle in bundles {
        let mut pem = Vec::new();
        match std::fs::File::open(bundle).and_then(|file| file.take(MAX_BUNDLE_BYTES).read_to_end(&mut pem)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(HostError::because(UNREACHABLE, &format!("cannot read {}", bundle.display()), &error)),
        }
        // One certificate that cannot be parsed must not invalidate the others.
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
        break;
    }
    if roots.is_empty() {
        let message = "this host has no trusted CA certificates for https; install the package `ca-certificates`";
        return Err(HostError::new(UNREACHABLE, message));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HostError::because(UNREACHABLE, "cannot set up TLS", &error))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
