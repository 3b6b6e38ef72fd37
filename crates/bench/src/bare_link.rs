//! The bare peer of our link: tonic over mutual TLS with the same messages and no logic.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use gpuaas_contract::id::ClusterId;
use gpuaas_contract::link::node_link_server::{NodeLink, NodeLinkServer};
use gpuaas_contract::link::{FromNode, LogAck, LogPosition, ToNode, Welcome, from_node, to_node};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::pki::BuiltInCa;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::{Request, Response, Status, Streaming};

use crate::Result;

struct Echo;

type Answers = Pin<Box<dyn Stream<Item = Result<ToNode, Status>> + Send>>;

#[tonic::async_trait]
impl NodeLink for Echo {
    type ConnectStream = Answers;

    async fn connect(&self, request: Request<Streaming<FromNode>>) -> Result<Response<Answers>, Status> {
        let mut incoming = request.into_inner();
        Ok(Response::new(Box::pin(async_stream::try_stream! {
            while let Some(message) = incoming.message().await? {
                match message.message {
                    Some(from_node::Message::Hello(_)) => {
                        yield to_node::Message::Welcome(Welcome { heartbeat_seconds: 10, ..Welcome::default() }).into();
                    }
                    Some(from_node::Message::Logs(chunk)) => {
                        let position = |line: gpuaas_contract::link::LogLine| {
                            LogPosition { task_id: line.task_id, sequence: line.sequence }
                        };
                        yield to_node::Message::LogAck(LogAck { positions: chunk.lines.into_iter().map(position).collect() }).into();
                    }
                    Some(_) | None => {}
                }
            }
        })))
    }
}

/// Serves on a free port until the process ends. Prints the address as its only line.
pub(crate) async fn serve(keys: &Path, cluster: &str) -> Result<()> {
    let cluster: ClusterId = cluster.parse()?;
    let ca = BuiltInCa::open(keys, cluster, Timestamp::now())?;
    let (chain, key) = ca.issue_server(&[], Timestamp::now())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone())?;
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", crate::child::free_port()?)).await?;
    println!("{}", serde_json::json!({ "address": listener.local_addr()? }));
    let (shaken, connections) = tokio::sync::mpsc::channel(1024);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, shaken) = (acceptor.clone(), shaken.clone());
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = shaken.send(std::io::Result::Ok(Connection(stream))).await;
                }
            });
        }
    });
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(NodeLinkServer::new(Echo))
        .serve_with_incoming(tokio_stream::wrappers::ReceiverStream::new(connections))
        .await?;
    Ok(())
}

/// A TLS connection with the traits that tonic needs.
struct Connection(TlsStream<TcpStream>);

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
