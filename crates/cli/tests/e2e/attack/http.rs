//! Raw HTTP requests, each over a connection of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gpuaas_contract::link::SERVER_NAME;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Largest response that is read, in bytes.
const MAX_ANSWER: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
    head: String,
}

impl Answer {
    /// Returns the first header with this name, in lower case as the server writes it.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }
}

pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) token: Option<&'a str>,
    /// Content type and content.
    pub(super) body: Option<(&'a str, &'a str)>,
    /// Further headers.
    pub(super) headers: &'a [(&'a str, &'a str)],
}

impl<'a> Request<'a> {
    pub(super) fn get(path: &'a str, token: &'a str) -> Self {
        Self { method: "GET", path, token: Some(token), body: None, headers: &[] }
    }

    pub(super) fn form(path: &'a str, form: &'a str) -> Self {
        Self { method: "POST", path, token: None, body: Some(("application/x-www-form-urlencoded", form)), headers: &[] }
    }

    pub(super) fn json(path: &'a str, token: &'a str, json: &'a str) -> Self {
        Self { method: "POST", path, token: Some(token), body: Some(("application/json", json)), headers: &[] }
    }

    fn text(&self) -> String {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: gpuaas.test\r\nconnection: close\r\n", self.method, self.path);
        if let Some(token) = self.token {
            text.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        match self.body {
            Some((kind, body)) => {
                text.push_str(&format!("content-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
            }
            None => text.push_str("\r\n"),
        }
        text
    }
}

/// Connects from this address of the loopback range, so that one machine can act as many.
pub(super) async fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((from, 0)))?;
    tokio::time::timeout(TIMEOUT, socket.connect(to)).await.map_err(std::io::Error::other)?
}

/// Sends a request over a new connection.
pub(super) async fn send(from: Ipv4Addr, to: SocketAddr, request: &Request<'_>) -> Result<Answer, String> {
    let stream = connect(from, to).await.map_err(|error| format!("cannot connect: {error}"))?;
    exchange(stream, request).await
}

/// Sends a request over a new TLS connection to a link listener.
pub(super) async fn send_tls(
    from: Ipv4Addr,
    to: SocketAddr,
    connector: &TlsConnector,
    request: &Request<'_>,
) -> Result<Answer, String> {
    let stream = connect(from, to).await.map_err(|error| format!("cannot connect: {error}"))?;
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    let handshake = tokio::time::timeout(TIMEOUT, connector.connect(name, stream)).await;
    let stream = handshake.map_err(|_| "no handshake in time")?.map_err(|error| format!("handshake: {error}"))?;
    exchange(stream, request).await
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &Request<'_>) -> Result<Answer, String> {
    let talk = async {
        stream.write_all(request.text().as_bytes()).await?;
        let mut answer = Vec::new();
        (&mut stream).take(MAX_ANSWER).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, talk).await.map_err(|_| "no answer in time")?;
    let answer = answer.map_err(|error| format!("the connection broke: {error}"))?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    let Some(status) = status else { return Err(format!("closed without an answer: {text:?}")) };
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Ok(Answer { status, body: body.to_owned(), head: head.to_owned() })
}
