//! One request for an image, over HTTP/1.1.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_contract::address::{self, Network};
use http::header;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::store::Store;
use super::url::Url;
use super::{blocking, tls};
use crate::HostError;

pub(super) const UNREACHABLE: &str = "image_unreachable";
const REFUSED: &str = "image_redirect_refused";
const ADDRESS_REFUSED: &str = "image_address_refused";
/// Maximum number of addresses of one name.
const MAX_ADDRESSES: usize = 64;
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 5;
/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no answer, or no more of it.
#[derive(Clone, Debug)]
pub(super) struct DownloadFailure {
    /// The error to return if retries do not help.
    pub(super) error: HostError,
    /// What may help.
    pub(super) remedy: Remedy,
}

/// How to handle a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Request the missing rest again.
    Again,
    /// Request everything again: the stored part does not match the server's file.
    Anew,
    /// Do not retry.
    Never,
}

impl DownloadFailure {
    pub(super) fn again(error: HostError) -> Self {
        Self { error, remedy: Remedy::Again }
    }

    pub(super) fn anew(error: HostError) -> Self {
        Self { error, remedy: Remedy::Anew }
    }
}

impl From<HostError> for DownloadFailure {
    fn from(error: HostError) -> Self {
        Self { error, remedy: Remedy::Never }
    }
}

/// A download request.
#[derive(Clone, Debug)]
pub(super) struct DownloadRequest<'a> {
    pub(super) url: &'a Url,
    /// Allowed redirect targets.
    pub(super) allowed: &'a [String],
    /// Private networks that are allowed as a source.
    pub(super) private_networks: &'a [Network],
    /// Bytes that are already stored.
    pub(super) from: u64,
    /// The ETag of the stored part.
    pub(super) etag: Option<&'a str>,
}

/// The head of an answer, with the connection for its body.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: http::Response<Incoming>,
    /// The URL that answered.
    pub(super) url: Url,
    _connection: AbortOnDropHandle<()>,
}

/// The HTTP client. It reads the trusted certificates when the first server needs them.
#[derive(Debug)]
pub(super) struct Client {
    store: Arc<Store>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Client {
    pub(super) fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store), tls: None }
    }

    /// Sends the request, and follows redirects.
    pub(super) async fn get(&mut self, download: &DownloadRequest<'_>) -> Result<Answer, DownloadFailure> {
        let mut url = download.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.ask(&url, download).await?;
            if !is_redirect(answer.response.status()) {
                return Ok(answer);
            }
            let location = answer.response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let refused = |target: &str, why: &str| {
                DownloadFailure::from(HostError::new(
                    REFUSED,
                    format!("{} sends on to {target}, which is not followed: {why}", url.shown()),
                ))
            };
            let location = location.ok_or_else(|| refused("nowhere", "it has no `Location`"))?;
            let target = url.follow(location).map_err(|why| refused("another place", why))?;
            if url.is_https() && !target.is_https() {
                return Err(refused(&target.shown(), "it leads from https to http"));
            }
            if !target.is_allowed(download.allowed) {
                return Err(refused(&target.shown(), "image_sources in the host's policy does not allow it"));
            }
            url = target;
        }
        Err(HostError::new(REFUSED, format!("{} sends on more than {MAX_REDIRECTS} times", download.url.shown())).into())
    }

    async fn ask(&mut self, url: &Url, download: &DownloadRequest<'_>) -> Result<Answer, DownloadFailure> {
        let place = format!("{}:{}", url.host(), url.port());
        let unreachable = |error: &std::io::Error| {
            let what = format!("cannot connect to {place}; check the address, the name service and the firewall");
            DownloadFailure::again(HostError::because(UNREACHABLE, &what, error))
        };
        let addresses = resolve(url).await.map_err(|error| unreachable(&error))?;
        check_addresses(url, &addresses, download.private_networks)?;
        // Connects to the checked addresses and not to the name: a name could resolve to another address a moment later.
        let stream = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(addresses.as_slice())).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        };
        let stream = stream.map_err(|error| unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
        if !url.is_https() {
            return self.send(stream, url, download).await;
        }
        let name = ServerName::try_from(url.host().to_owned()).map_err(|error| {
            HostError::because(UNREACHABLE, &format!("{place} cannot be the name of an https server"), &error)
        })?;
        let connector = tokio_rustls::TlsConnector::from(self.tls().await?);
        let stream = match tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(tls_failed(&place, &error)),
            Err(_) => return Err(DownloadFailure::again(silent(url, CONNECT_TIMEOUT))),
        };
        self.send(stream, url, download).await
    }

    async fn send<S>(&self, stream: S, url: &Url, download: &DownloadRequest<'_>) -> Result<Answer, DownloadFailure>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let request = request(url, download)?;
        let broken = |error: &hyper::Error| DownloadFailure::again(broken(url, error));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        let connection = tokio::spawn(async move {
            // Errors are reported to the reader of the answer.
            let _ = connection.await;
        });
        let connection = AbortOnDropHandle::new(connection);
        let stall = self.store.settings.stall;
        match tokio::time::timeout(stall, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(Answer { response, url: url.clone(), _connection: connection }),
            Ok(Err(error)) => Err(broken(&error)),
            Err(_) => Err(DownloadFailure::again(silent(url, stall))),
        }
    }

    async fn tls(&mut self) -> Result<Arc<rustls::ClientConfig>, HostError> {
        if let Some(config) = &self.tls {
            return Ok(Arc::clone(config));
        }
        let store = Arc::clone(&self.store);
        let config = blocking(move |_| tls::config(&store.settings.ca_bundles)).await?;
        self.tls = Some(Arc::clone(&config));
        Ok(config)
    }
}

/// Resolves the server's name.
async fn resolve(url: &Url) -> std::io::Result<Vec<SocketAddr>> {
    let found = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((url.host(), url.port()))).await;
    match found {
        Ok(found) => Ok(found?.take(MAX_ADDRESSES + 1).collect()),
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// Checks the server's addresses. A tenant names the server, and this host connects to it from inside its owner's network: a
/// single private address that the owner did not list refuses all of them.
fn check_addresses(url: &Url, addresses: &[SocketAddr], listed: &[Network]) -> Result<(), HostError> {
    if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
        let message = format!("{} has no address, or more than {MAX_ADDRESSES}; check its DNS records", url.host());
        return Err(HostError::new(UNREACHABLE, message));
    }
    for resolved in addresses {
        if let Some(why) = address::refusal_outside(resolved.ip(), listed) {
            let message = format!(
                "{} is at {}, which is {why}; the host's owner can list the network in image_private_networks of the policy",
                url.host(),
                resolved.ip()
            );
            return Err(HostError::new(ADDRESS_REFUSED, message));
        }
    }
    Ok(())
}

fn request(url: &Url, download: &DownloadRequest<'_>) -> Result<http::Request<Empty<Bytes>>, HostError> {
    let mut request = http::Request::get(url.path())
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, concat!("gpuaas-agent/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "*/*")
        // The digest is of the unencoded file.
        .header(header::ACCEPT_ENCODING, "identity");
    if download.from > 0 {
        request = request.header(header::RANGE, format!("bytes={}-", download.from));
        if let Some(etag) = download.etag {
            request = request.header(header::IF_RANGE, etag);
        }
    }
    request.body(Empty::new()).map_err(|error| HostError::because(UNREACHABLE, "cannot ask for the image", &error))
}

fn is_redirect(status: http::StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn tls_failed(place: &str, error: &std::io::Error) -> DownloadFailure {
    use rustls::{CertificateError, Error};
    let reported = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let (hint, remedy) = match reported {
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::NotValidYet
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYetContext { .. },
        )) => ("its certificate is not valid at this host's time: check this host's clock", Remedy::Never),
        Some(Error::InvalidCertificate(_)) => (
            "its certificate is not one that this host trusts: check the address, or add its CA with update-ca-certificates",
            Remedy::Never,
        ),
        Some(_) => ("is that an https server?", Remedy::Never),
        None => ("the connection broke", Remedy::Again),
    };
    let what = format!("{place} answered, but the TLS connection failed; {hint}");
    DownloadFailure { error: HostError::because(UNREACHABLE, &what, error), remedy }
}

/// Returns the error for a connection that ended before the answer.
pub(super) fn broken(url: &Url, error: &hyper::Error) -> HostError {
    let what = format!("the connection to {} broke; check the server and the network", url.shown());
    HostError::because(UNREACHABLE, &what, error)
}

/// Returns the error for a server that was silent for too long.
pub(super) fn silent(url: &Url, patience: Duration) -> HostError {
    let message = format!("{} sent nothing for {} s; check the server and the network", url.shown(), patience.as_secs_f32());
    HostError::new("image_stalled", message)
}
