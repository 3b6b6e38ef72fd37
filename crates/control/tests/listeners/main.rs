//! Slow, silent or many clients, against every listener of a real server over real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod deadlines;
mod places;
mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, TestServer};
use gpuaas_control::ApiTls;
use gpuaas_control::listener::{ListenerLimits, ServerLimits};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// Returns limits that a test can exceed.
fn short() -> ServerLimits {
    let limits = ServerLimits::for_descriptors(1024, true, true);
    let short = |limits: ListenerLimits| ListenerLimits {
        first_byte: Duration::from_millis(300),
        handshake: Duration::from_millis(600),
        head: Duration::from_millis(600),
        body: Duration::from_millis(600),
        idle: Duration::from_millis(600),
        write: Duration::from_millis(600),
        drain: Duration::from_millis(200),
        ..limits
    };
    ServerLimits { api: short(limits.api), link: short(limits.link), local: short(limits.local), ..limits }
}

/// Returns limits that no test exceeds.
fn long() -> ServerLimits {
    let limits = ServerLimits::for_descriptors(1024, true, true);
    let hour = Duration::from_secs(3600);
    let long = |limits: ListenerLimits| ListenerLimits {
        first_byte: hour,
        handshake: hour,
        head: hour,
        body: hour,
        idle: hour,
        write: hour,
        ..limits
    };
    ServerLimits { api: long(limits.api), link: long(limits.link), local: long(limits.local), ..limits }
}

async fn server(limits: ServerLimits, tls: bool) -> TestServer {
    TestServer::configured(|config| {
        config.limits = Some(limits);
        if tls {
            config.api_tls = ApiTls::BuiltIn(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]);
        }
    })
    .await
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// How a client reaches a listener.
#[derive(Clone)]
enum Stall {
    Tcp(SocketAddr),
    Tls { to: SocketAddr, ca: PathBuf, name: &'static str },
    Unix(PathBuf),
}

impl Stall {
    async fn connect(&self) -> Box<dyn Socket> {
        match self {
            Self::Tcp(to) => Box::new(TcpStream::connect(to).await.unwrap()),
            Self::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
            Self::Tls { to, ca, name } => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
                let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
                let config = rustls::ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .unwrap()
                    .with_root_certificates(roots)
                    .with_no_client_auth();
                let stream = TcpStream::connect(to).await.unwrap();
                let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
                Box::new(connector.connect(ServerName::try_from(*name).unwrap(), stream).await.unwrap())
            }
        }
    }
}

fn api(server: &TestServer) -> Stall {
    Stall::Tcp(server.server().api_address.unwrap())
}

fn api_tls(server: &TestServer) -> Stall {
    Stall::Tls { to: server.server().api_address.unwrap(), ca: server.ca_pem(), name: "localhost" }
}

fn link(server: &TestServer) -> Stall {
    let name = gpuaas_contract::link::SERVER_NAME;
    Stall::Tls { to: server.server().link_address.unwrap(), ca: server.ca_pem(), name }
}

fn local(server: &TestServer) -> Stall {
    Stall::Unix(server.server().admin_socket.clone().unwrap())
}

/// Reads until the server closes the connection, which it must.
async fn until_ended(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut reported = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut reported)).await;
    assert!(ended.is_ok(), "the connection is still open after {PATIENCE:?}; it said {:?}", String::from_utf8_lossy(&reported));
    String::from_utf8_lossy(&reported).into_owned()
}

/// Returns the head of the next answer.
async fn head(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match tokio::time::timeout(PATIENCE, socket.read_u8()).await.expect("an answer in time") {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Sends a request on its own connection and returns the whole answer.
async fn ask(stall: &Stall, request: &str) -> String {
    let mut socket = stall.connect().await;
    let _ = socket.write_all(request.as_bytes()).await;
    until_ended(&mut socket).await
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

/// Returns how often something was cut, by listener and reason.
async fn cut(stall: &Stall, token: &str, listener: &str, reason: &str) -> u64 {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n");
    let text = ask(stall, &request).await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let wanted = format!("gpuaas_connections_cut_total{{listener=\"{listener}\",reason=\"{reason}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&wanted)).map_or(0, |number| number.trim().parse().unwrap())
}
