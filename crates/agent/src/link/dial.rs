//! The TLS connector for all connections of the agent: both transports, enrollment, renewal.
//!
//! TLS 1.3 only. The server must have a certificate for [`SERVER_NAME`] from the pinned CA, whatever the address. Sessions are
//! not resumed: every connection proves the current certificate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuaas_contract::link::SERVER_NAME;
use gpuaas_contract::resume::{ChannelBinding, EXPORTER_LABEL};
use gpuaas_runtime::net::TcpStream;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use sha2::Digest as _;
use tokio_rustls::client::TlsStream;

/// The protocol inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// For the stream.
    Http2,
    /// For long-poll and enrollment: works through everything that breaks streams.
    Http1,
}

impl Protocol {
    fn alpn(self) -> Vec<u8> {
        match self {
            Self::Http2 => b"h2".to_vec(),
            Self::Http1 => b"http/1.1".to_vec(),
        }
    }
}

/// Connects to the control plane.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    addresses: Vec<String>,
    /// The address that worked last.
    preferred: AtomicUsize,
    config: Mutex<Arc<ClientConfig>>,
    timeout: Duration,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No address is known.
    #[error("no server address is known; set one with: gpuaas-agent config set server host:port")]
    NoAddress,
    /// The name or the port did not answer.
    #[error("cannot connect to {address}; check the address, the network and the firewall")]
    Tcp {
        /// The address.
        address: String,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The server answered but could not prove to be the control plane, or did not accept us.
    #[error("{address} answered, but the TLS connection failed; {hint}")]
    Tls {
        /// The address.
        address: String,
        /// What to check.
        hint: &'static str,
        /// The error of TLS.
        #[source]
        source: std::io::Error,
    },
    /// Something accepted the connection and did not answer.
    #[error("{address} accepted the connection and then did not answer for {seconds} s", seconds = .timeout.as_secs())]
    Silent {
        /// The address.
        address: String,
        /// The time limit.
        timeout: Duration,
    },
}

impl DialError {
    /// Returns whether the server is reachable and only refuses HTTP/2: then long-poll can still work.
    pub(crate) fn refuses_http2(&self) -> bool {
        match self {
            Self::Tls { source, .. } => {
                matches!(tls_error(source), Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)))
            }
            Self::NoAddress | Self::Tcp { .. } | Self::Silent { .. } => false,
        }
    }
}

fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

impl Dialer {
    /// Creates a dialer for `addresses`, which tries the one that worked last first.
    pub(crate) fn new(addresses: Vec<String>, config: Arc<ClientConfig>, timeout: Duration) -> Self {
        Self { inner: Arc::new(Inner { addresses, preferred: AtomicUsize::new(0), config: Mutex::new(config), timeout }) }
    }

    /// Uses another configuration (a renewed certificate) from now on.
    pub(crate) fn replace_config(&self, config: Arc<ClientConfig>) {
        *self.inner.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Connects to the first address that works.
    pub(crate) async fn dial(&self, protocol: Protocol) -> Result<TlsStream<TcpStream>, DialError> {
        let inner = &self.inner;
        let count = inner.addresses.len();
        let first = inner.preferred.load(Ordering::Relaxed);
        let mut last_error = DialError::NoAddress;
        for step in 0..count {
            let index = (first + step) % count;
            match self.dial_one(&inner.addresses[index], protocol).await {
                Ok(stream) => {
                    inner.preferred.store(index, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) => {
                    tracing::debug!(error = crate::error_chain::chain(&error), "connecting failed");
                    last_error = error;
                }
            }
        }
        Err(last_error)
    }

    async fn dial_one(&self, address: &str, protocol: Protocol) -> Result<TlsStream<TcpStream>, DialError> {
        let timeout = self.inner.timeout;
        let tcp = |source| DialError::Tcp { address: address.to_owned(), source };
        let stream = match tokio::time::timeout(timeout, TcpStream::connect(address)).await {
            Ok(stream) => stream.map_err(tcp)?,
            Err(_) => return Err(tcp(std::io::ErrorKind::TimedOut.into())),
        };
        stream.set_nodelay(true).map_err(tcp)?;
        let mut config = ClientConfig::clone(&self.inner.config.lock().unwrap_or_else(PoisonError::into_inner));
        config.alpn_protocols = vec![protocol.alpn()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(SERVER_NAME).map_err(|_| DialError::NoAddress)?;
        match tokio::time::timeout(timeout, connector.connect(name, stream)).await {
            Ok(connected) => connected.map_err(|source| {
                let hint = hint_for(&source);
                DialError::Tls { address: address.to_owned(), hint, source }
            }),
            Err(_) => Err(DialError::Silent { address: address.to_owned(), timeout }),
        }
    }
}

/// Returns the channel binding of this connection, or `None` if there is none; then nothing can be proved.
pub(crate) fn channel_binding(stream: &TlsStream<TcpStream>) -> Option<ChannelBinding> {
    stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None).ok()
}

fn hint_for(error: &std::io::Error) -> &'static str {
    use rustls::{AlertDescription, CertificateError, Error};
    match tls_error(error) {
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::NotValidYet
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYetContext { .. },
        )) => "its certificate is not valid at this host's time: check this host's clock",
        Some(Error::InvalidCertificate(_)) => {
            "its certificate is not from the pinned CA: check the address and the CA fingerprint"
        }
        Some(Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            "it reports that this node's certificate has expired: check this host's clock"
        }
        Some(Error::AlertReceived(_)) => "it did not accept this node's certificate: see the control plane's log",
        _ => "is that the link listener of the control plane?",
    }
}

/// Why the TLS configuration could not be created.
#[derive(Debug, thiserror::Error)]
#[error("the node's TLS keys and certificates do not fit together; enroll again with: gpuaas-agent enroll --replace")]
pub struct TlsSetupError(#[source] rustls::Error);

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn finish(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// Returns the configuration of an enrolled node: the CA is known, and with a certificate the node authenticates itself.
pub(crate) fn enrolled_config(
    ca: &CertificateDer<'static>,
    client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<Arc<ClientConfig>, TlsSetupError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.clone()).map_err(TlsSetupError)?;
    let builder = ClientConfig::builder_with_details(provider(), gpuaas_runtime::certificate_clock())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsSetupError)?
        .with_root_certificates(roots);
    let config = match client {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(TlsSetupError)?,
        None => builder.with_no_client_auth(),
    };
    Ok(finish(config))
}

/// Returns the configuration for the first contact: only the CA's fingerprint is known, and the server presents the CA in its
/// chain.
pub(crate) fn pinned_config(pin: [u8; 32]) -> Result<Arc<ClientConfig>, TlsSetupError> {
    let provider = provider();
    let config = ClientConfig::builder_with_details(Arc::clone(&provider), gpuaas_runtime::certificate_clock())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsSetupError)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedCa { pin, provider }))
        .with_no_client_auth();
    Ok(finish(config))
}

/// Returns the SHA-256 of a certificate, the form in which a CA is pinned.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    sha2::Sha256::digest(certificate).into()
}

/// Accepts only chains that contain the pinned CA and verify against it like any other chain.
#[derive(Debug)]
struct PinnedCa {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let ca = intermediates.iter().find(|certificate| fingerprint(certificate) == self.pin).ok_or_else(unknown)?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|_| unknown())?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
