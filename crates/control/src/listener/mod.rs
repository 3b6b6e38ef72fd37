//! Accepting connections: one loop for plain and TLS listeners, HTTP/1.1 and HTTP/2, bounded in every direction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use gpuaas_world::net::{TcpListener, TcpStream};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Most connections at the same time.
const MAX_CONNECTIONS: usize = 20_000;
/// A handshake that takes longer is not worth waiting for.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A kept connection may be without a request for this long: longer than the heartbeats of an agent on long-poll are apart, or
/// every other heartbeat would find its connection closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Half-open connections are found within interval plus timeout.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may take to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Certificate the client showed, if any; put into every request by the listener.
#[derive(Clone)]
pub struct ClientCertificate(pub Option<Arc<CertificateDer<'static>>>);

/// Where the client comes from; put into every request by the listener.
#[derive(Clone, Copy)]
pub struct ClientAddress(pub SocketAddr);

/// Serves `router` until `shutdown`, then lets open requests end.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    loop {
        let permit = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                let (tls, router, shutdown) = (tls.clone(), router.clone(), shutdown.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    connection(stream, address, tls, router, shutdown).await;
                });
            }
            Err(error) => {
                // Out of descriptors or a connection that died in the backlog: neither is a reason to stop, but an
                // immediate retry would spin.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections still open at the end of the shutdown");
    }
}

async fn connection(
    stream: TcpStream,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    shutdown: CancellationToken,
) {
    // Without this, small messages wait for the other side's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    match tls {
        None => Box::pin(http(TokioIo::new(stream), ClientCertificate(None), address, router, shutdown)).await,
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
                // Boxed, so that a link does not hold the room of its handshake for the rest of its life.
                Box::pin(http(TokioIo::new(stream), ClientCertificate(leaf.map(Arc::new)), address, router, shutdown)).await;
            }
            Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%address, "TLS handshake timed out"),
        },
    }
}

async fn http<I>(io: I, certificate: ClientCertificate, address: SocketAddr, router: Router, shutdown: CancellationToken)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(certificate.clone());
        request.extensions_mut().insert(ClientAddress(address));
        router.clone().oneshot(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(128)
        .max_header_list_size(32 * 1024);
    let connection = builder.serve_connection_with_upgrades(io, service);
    tokio::pin!(connection);
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%address, %error, "connection ended with an error");
    }
}
