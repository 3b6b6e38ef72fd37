//! NATS servers to compare with, and a minimal client for request and reply over mutual TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::child::{self, Server};
use crate::{Result, Setup};

/// Maximum size of one message or line, in bytes.
const MAX_BYTES: usize = 64 * 1024;

/// Starts a server that requires client certificates.
pub(crate) async fn start(setup: &Setup, certificate: &Path, key: &Path, ca: &Path) -> Result<(Server, SocketAddr)> {
    let program = child::find_program("nats-server", &[setup.peers.join("py/bin")]).ok_or("nats-server is not installed")?;
    let port = child::free_port()?;
    let config = setup.disk.join("nats.conf");
    let quote = |path: &Path| format!("{:?}", path.display().to_string());
    std::fs::write(
        &config,
        format!(
            "listen: \"127.0.0.1:{port}\"\ntls {{\n  cert_file: {}\n  key_file: {}\n  ca_file: {}\n  verify: true\n  handshake_first: true\n}}\n",
            quote(certificate),
            quote(key),
            quote(ca)
        ),
    )?;
    let mut command = child::command(program, &setup.disk);
    command.arg("-c").arg(&config);
    let server = Server::start("nats-server", command, &setup.folder, "Server is ready").await?;
    Ok((server, SocketAddr::from(([127, 0, 0, 1], port))))
}

/// Starts a server with JetStream and file storage but without TLS, like one that serves a control plane on the same machine.
pub(crate) async fn start_jetstream(setup: &Setup) -> Result<(Server, String)> {
    let program = child::find_program("nats-server", &[setup.peers.join("py/bin")]).ok_or("nats-server is not installed")?;
    let port = child::free_port()?;
    let mut command = child::command(program, &setup.disk);
    command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(setup.disk.join("jetstream"));
    let server = Server::start("jetstream", command, &setup.folder, "Server is ready").await?;
    Ok((server, format!("nats://127.0.0.1:{port}")))
}

/// A connection. Its two halves can be used concurrently.
pub(crate) struct Nats {
    writer: Writer,
    reader: Reader,
}

/// The writing half. It can be cloned.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Mutex<WriteHalf<TlsStream<TcpStream>>>>);

/// The reading half. It also answers the server's pings.
pub(crate) struct Reader {
    stream: BufReader<ReadHalf<TlsStream<TcpStream>>>,
    line: String,
    answers: Writer,
}

/// A received message.
pub(crate) struct Message {
    pub(crate) reply: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Nats {
    pub(crate) async fn connect(address: SocketAddr, tls: &rustls::ClientConfig) -> Result<Self> {
        let mut tls = tls.clone();
        tls.alpn_protocols.clear();
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(gpuaas_contract::link::SERVER_NAME)?;
        let (hearing, speaking) = tokio::io::split(TlsConnector::from(Arc::new(tls)).connect(name, tcp).await?);
        let writer = Writer(Arc::new(Mutex::new(speaking)));
        let mut reader = Reader { stream: BufReader::new(hearing), line: String::new(), answers: writer.clone() };
        reader.read_line("INFO").await?;
        writer
            .write(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":true,\"lang\":\"rust\",\"version\":\"1\"}\r\nPING\r\n")
            .await?;
        reader.read_line("PONG").await?;
        Ok(Self { writer, reader })
    }

    pub(crate) async fn subscribe(&mut self, subject: &str) -> Result<()> {
        self.writer.write(format!("SUB {subject} 1\r\nPING\r\n").as_bytes()).await?;
        self.reader.read_line("PONG").await
    }

    pub(crate) fn halves(&mut self) -> (Writer, &mut Reader) {
        (self.writer.clone(), &mut self.reader)
    }
}

impl Writer {
    pub(crate) async fn publish(&mut self, subject: &str, reply: Option<&str>, body: &[u8]) -> Result<()> {
        let reply = reply.map_or_else(String::new, |reply| format!("{reply} "));
        let mut bytes = format!("PUB {subject} {reply}{}\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
        self.write(&bytes).await
    }

    async fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut stream = self.0.lock().await;
        stream.write_all(bytes).await?;
        Ok(stream.flush().await?)
    }
}

impl Reader {
    /// Returns the next message. Answers pings that arrive before it.
    pub(crate) async fn next(&mut self) -> Result<Message> {
        loop {
            self.read_any().await?;
            if self.line.starts_with("PING") {
                self.answers.write(b"PONG\r\n").await?;
            } else if let Some(head) = self.line.strip_prefix("MSG ") {
                // MSG <subject> <sid> [reply] <bytes>
                let words: Vec<&str> = head.split_whitespace().collect();
                let length: usize = words.last().ok_or("an empty head")?.parse()?;
                if length > MAX_BYTES {
                    return Err("a message that is too long".into());
                }
                let reply = (words.len() == 4).then(|| words[2].to_owned());
                let mut body = vec![0; length + 2];
                self.stream.read_exact(&mut body).await?;
                body.truncate(length);
                return Ok(Message { reply, body });
            } else if self.line.starts_with("-ERR") {
                return Err(self.line.trim().into());
            }
        }
    }

    async fn read_any(&mut self) -> Result<()> {
        self.line.clear();
        if self.stream.read_line(&mut self.line).await? == 0 || self.line.len() > MAX_BYTES {
            return Err("the NATS server closed the connection".into());
        }
        Ok(())
    }

    async fn read_line(&mut self, start: &str) -> Result<()> {
        loop {
            self.read_any().await?;
            if self.line.starts_with(start) {
                return Ok(());
            }
            if self.line.starts_with("-ERR") {
                return Err(self.line.trim().into());
            }
        }
    }
}

/// Answers every request with a short text that begins like the request, until the process ends. Prints a line when it is ready.
pub(crate) async fn respond(address: SocketAddr, identity: &Path, ca: &Path) -> Result<()> {
    let read = |path: PathBuf| std::fs::read_to_string(path);
    let tls = crate::cluster::client_tls_from_pem(
        &read(ca.to_owned())?,
        &read(identity.with_extension("crt"))?,
        &read(identity.with_extension("key"))?,
    )?;
    let mut nats = Nats::connect(address, &tls).await?;
    nats.subscribe("bench.echo").await?;
    println!("{}", serde_json::json!({ "ready": true }));
    let (mut writer, reader) = nats.halves();
    let mut answer = [b'a'; 48];
    loop {
        let message = reader.next().await?;
        if let (Some(reply), Some(number)) = (message.reply, message.body.first_chunk::<8>()) {
            answer[..8].copy_from_slice(number);
            writer.publish(&reply, None, &answer).await?;
        }
    }
}
