//! Connections that are opened and never used, in any number and for any time, on every listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpuaas_contract::link::SERVER_NAME;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

use super::target::Target;
use super::{http, is_long, withstand};

/// How long the attacker waits before it reopens a connection.
const AGAIN: Duration = Duration::from_millis(100);

/// How a connection is held open without ever finishing a request.
#[derive(Clone, Copy, Debug)]
enum Hold {
    /// Nothing is sent.
    Silence,
    /// The start of the HTTP/2 preface. The server must read on to recognize the protocol.
    HalfPreface,
    /// HTTP/2 is negotiated, but no request follows.
    PrefaceOnly,
    /// A request head that never ends.
    HalfHead,
    /// A request body that never ends.
    HalfBody,
    /// A complete request, and nothing after its response.
    IdleAfterAnswer,
    /// A request to the metrics listener whose head never ends.
    HalfMetrics,
}

impl Hold {
    const ALL: [Self; 7] = [
        Self::Silence,
        Self::HalfPreface,
        Self::PrefaceOnly,
        Self::HalfHead,
        Self::HalfBody,
        Self::IdleAfterAnswer,
        Self::HalfMetrics,
    ];

    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Silence => b"",
            Self::HalfPreface => b"PRI *",
            // The preface and an empty SETTINGS frame.
            Self::PrefaceOnly => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
            Self::HalfHead => b"GET /healthz HTTP/1.1\r\nhost: gpuaas.test\r\nx-slow: ",
            Self::HalfBody => {
                b"POST /oauth/token HTTP/1.1\r\nhost: gpuaas.test\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 4000\r\n\r\ngrant"
            }
            Self::IdleAfterAnswer => b"GET /healthz HTTP/1.1\r\nhost: gpuaas.test\r\n\r\n",
            Self::HalfMetrics => b"GET /metrics HTTP/1.1\r\nhost: gpuaas.test\r\nauthorization: Bearer ",
        }
    }
}

/// The listener that is attacked.
#[derive(Clone)]
enum Door {
    Plain(SocketAddr),
    /// With TLS on top, unless the attack sends no TLS at all.
    Tls(SocketAddr, Option<TlsConnector>),
    Local(PathBuf),
}

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

impl Door {
    async fn open(&self, from: Ipv4Addr) -> std::io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Plain(address) | Self::Tls(address, None) => Box::new(http::connect(from, *address).await?),
            Self::Tls(address, Some(connector)) => {
                let stream = http::connect(from, *address).await?;
                let name = ServerName::try_from(SERVER_NAME).expect("a name");
                Box::new(connector.connect(name, stream).await?)
            }
            Self::Local(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

/// Returns the addresses that the attack comes from.
pub(super) fn sources(count: u8) -> Vec<Ipv4Addr> {
    (1..=count).map(|last| Ipv4Addr::new(127, 66, 0, last)).collect()
}

/// Holds `count` connections, reopening each as soon as it is closed. Returns a summary.
fn hold(door: &Door, ways: &[Hold], count: usize, sources: &[Ipv4Addr], time: Duration) -> String {
    let (opened, cut) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for number in 0..count {
            let (door, way, from) = (door.clone(), ways[number % ways.len()], sources[number % sources.len()]);
            let (opened, cut) = (Arc::clone(&opened), Arc::clone(&cut));
            tokio::spawn(async move {
                loop {
                    if let Ok(mut connection) = door.open(from).await {
                        opened.fetch_add(1, Ordering::Relaxed);
                        let _ = connection.write_all(way.bytes()).await;
                        let mut answer = [0; 4096];
                        // Reads whatever the server sends, until it closes the connection.
                        while matches!(connection.read(&mut answer).await, Ok(read) if read > 0) {}
                        cut.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        tokio::time::sleep(time).await;
    });
    runtime.shutdown_background();
    let (opened, cut) = (opened.load(Ordering::Relaxed), cut.load(Ordering::Relaxed));
    assert!(opened > 0, "the attack did not happen");
    format!(
        "{count} connections held from {} addresses for {} s, {opened} opened, {cut} cut by the server",
        sources.len(),
        time.as_secs()
    )
}

pub(super) fn connector(target: &Target) -> TlsConnector {
    let pem = target.cluster.dir.join("server/keys/ca.crt");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pem).expect("the CA")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn numbers() -> (usize, Duration) {
    if is_long() { (1500, Duration::from_secs(30)) } else { (1100, Duration::from_secs(4)) }
}

#[test]
fn connections_that_never_finish_a_request_do_not_stop_the_api() {
    let mut target = Target::start();
    let (count, time) = numbers();
    withstand("api-sockets", &mut target, |target| hold(&Door::Plain(target.api()), &Hold::ALL, count, &sources(4), time));
}

#[test]
fn one_address_cannot_take_all_places_of_the_api() {
    let mut target = Target::start();
    let (count, time) = numbers();
    withstand("api-one-address", &mut target, |target| {
        hold(&Door::Plain(target.api()), &[Hold::Silence], count, &sources(1), time)
    });
}

#[test]
fn silent_connections_from_many_addresses_do_not_stop_the_api() {
    let mut target = Target::start();
    let (count, time) = numbers();
    withstand("api-many-addresses", &mut target, |target| {
        hold(&Door::Plain(target.api()), &[Hold::Silence, Hold::HalfPreface], count, &sources(200), time)
    });
}

#[test]
fn connections_that_never_speak_tls_do_not_stop_the_link() {
    let mut target = Target::start();
    let (count, time) = numbers();
    withstand("link-sockets", &mut target, |target| {
        hold(&Door::Tls(target.link(), None), &[Hold::Silence, Hold::HalfHead], count, &sources(4), time)
    });
}

#[test]
fn connections_that_speak_tls_and_nothing_more_do_not_stop_the_link() {
    let mut target = Target::start();
    let (count, time) = numbers();
    withstand("link-tls", &mut target, |target| {
        let door = Door::Tls(target.link(), Some(connector(target)));
        hold(&door, &Hold::ALL, count / 4, &sources(4), time)
    });
}

#[test]
fn connections_that_never_finish_a_request_do_not_stop_the_local_socket() {
    let mut target = Target::start();
    let (_, time) = numbers();
    withstand("local-socket", &mut target, |target| {
        hold(&Door::Local(target.local_socket()), &Hold::ALL, 100, &sources(1), time)
    });
}
