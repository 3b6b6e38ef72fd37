//! Accepts connections: one loop for every listener of the server, HTTP/1.1 and HTTP/2, plain, TLS and local, bounded in every
//! direction.
//!
//! A connection takes a place ([`gpuaas_runtime::places`]) and has a deadline for its next step ([`state`]): the first byte, the
//! TLS handshake, the first request, the next request, reading its answer. Bodies have a deadline and are counted ([`budget`]).

mod budget;
mod counts;
mod limits;
mod proxies;
mod request;
mod state;
mod watched_io;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use gpuaas_runtime::net::{TcpListener, TcpStream};
use gpuaas_runtime::places::{NoPlace, Origin, Place, Places, Stage};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use budget::ByteBudget;
use state::{ConnectionState, Verdict};
use watched_io::WatchedIo;

use crate::pki::PeerTls;

pub use budget::KnownCaller;
pub use counts::{ConnectionCounts, ListenerKind, Reason};
pub use limits::{ListenerLimits, ServerLimits};
pub use proxies::{BadProxy, TrustedProxies, TrustedProxy};
pub use watched_io::MIN_TAKEN;

/// Half-open HTTP/2 connections are detected within interval plus timeout.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size limit of a request's head, and of one read.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADER_LIST: u32 = 16 * 1024;
/// Maximum number of HTTP/2 streams that the client reset and that are not processed yet.
const MAX_PENDING_RESETS: usize = 20;
/// Maximum number of HTTP/2 streams that the server reset because of errors of the client.
const MAX_ERROR_RESETS: usize = 64;
/// Pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
/// Shortest time between two log lines about failed accepts.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// The client's certificate, if any, and its connection. The listener adds it to every request.
#[derive(Clone)]
pub struct ClientCertificate(pub Option<Arc<PeerTls>>);

/// The client's address, also behind trusted proxies. The listener adds it to every request.
#[derive(Clone, Copy)]
pub struct ClientAddress(pub SocketAddr);

/// The options of a listener.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Its kind.
    pub kind: ListenerKind,
    /// Its limits.
    pub limits: ListenerLimits,
    /// The operator's proxies.
    pub proxies: TrustedProxies,
    /// The counters.
    pub counts: ConnectionCounts,
}

impl ListenerOptions {
    /// Returns options without proxies.
    pub fn new(kind: ListenerKind, limits: ListenerLimits) -> Self {
        Self { kind, limits, proxies: TrustedProxies::default(), counts: ConnectionCounts::default() }
    }
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// A network address.
    Network(SocketAddr),
    /// A process of this machine, with its id if the kernel reports it.
    Process(Option<i32>),
}

impl Peer {
    fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Network(address) => Some(address),
            Self::Process(_) => None,
        }
    }

    /// Returns the origin that its place counts for.
    fn origin(self, proxies: &TrustedProxies) -> Option<Origin> {
        match self {
            // Many clients are behind a proxy.
            Self::Network(address) if proxies.contains(address.ip()) => None,
            Self::Network(address) => Some(address.ip().into()),
            Self::Process(id) => id.map(Origin::process),
        }
    }
}

/// A source of connections.
pub(crate) trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns the next connection and its peer, or nothing if that peer is not allowed.
    fn accept(&self) -> impl Future<Output = io::Result<Option<(Self::Stream, Peer)>>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Option<(TcpStream, Peer)>> {
        let (stream, address) = TcpListener::accept(self).await?;
        // Without this, small messages wait for the peer's delayed acknowledgment.
        let _ = stream.set_nodelay(true);
        Ok(Some((stream, Peer::Network(address))))
    }
}

/// The shared state of a listener's connections.
struct Serving {
    options: ListenerOptions,
    tls: Option<TlsAcceptor>,
    router: Router,
    budget: Arc<ByteBudget>,
    shutdown: CancellationToken,
}

impl Serving {
    fn cut(&self, reason: Reason) {
        self.options.counts.cut(self.options.kind, reason);
    }
}

/// Counts a connection as long as its socket is open.
struct OpenConnection(ConnectionCounts, ListenerKind);

impl OpenConnection {
    fn new(serving: &Serving) -> Self {
        serving.options.counts.opened(serving.options.kind);
        Self(serving.options.counts.clone(), serving.options.kind)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.closed(self.1);
    }
}

/// Serves `router` until `shutdown`, then waits for open requests to end.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    options: ListenerOptions,
    shutdown: CancellationToken,
) {
    serve_any(listener, tls, router, options, shutdown).await;
}

/// Serves any kind of connection.
pub(crate) async fn serve_any<L: Accept>(
    listener: L,
    tls: Option<TlsAcceptor>,
    router: Router,
    options: ListenerOptions,
    shutdown: CancellationToken,
) {
    let places = Places::new(options.limits.places);
    let budget = Arc::new(ByteBudget::new(&options.limits));
    let serving = Arc::new(Serving { options, tls, router, budget, shutdown: shutdown.clone() });
    let connections = TaskTracker::new();
    let mut told: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = async {
                places.settled().await;
                listener.accept().await
            } => accepted,
        };
        match accepted {
            Ok(Some((stream, peer))) => match place_for(&places, peer, &serving) {
                Ok(place) => {
                    connections.spawn(connection(stream, peer.address(), place, Arc::clone(&serving)));
                }
                Err(reason) => serving.cut(reason),
            },
            Ok(None) => {}
            Err(error) => {
                // Out of descriptors, or a connection that died in the backlog: neither is a reason to stop, but an immediate
                // retry would spin.
                let is_out = is_out_of_descriptors(&error);
                if is_out {
                    serving.cut(Reason::Descriptors);
                    places.shed();
                }
                if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                    tracing::warn!(%error, listener = serving.options.kind.as_str(), "accept failed; is the file limit too low?");
                    told = Some(Instant::now());
                }
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_AGAIN) => {}
                }
            }
        }
    }
    drop(listener);
    connections.close();
    // Each connection ends by itself within the drain time.
    if tokio::time::timeout(serving.options.limits.drain + Duration::from_secs(1), connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections still open at the end of the shutdown");
    }
}

fn place_for(places: &Places, peer: Peer, serving: &Serving) -> Result<Place, Reason> {
    places.admit(peer.origin(&serving.options.proxies)).map_err(|no_place| match no_place {
        NoPlace::Origin => Reason::Address,
        NoPlace::Total => Reason::Full,
    })
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let out = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| out.contains(&errno))
}

async fn connection<S>(stream: S, address: Option<SocketAddr>, place: Place, serving: Arc<Serving>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let state = ConnectionState::new(place.handle(), &serving.options.limits);
    let io = WatchedIo::new(stream, Arc::clone(&state), place, OpenConnection::new(&serving));
    let Some(tls) = &serving.tls else {
        return Box::pin(http(TokioIo::new(io), ClientCertificate(None), address, state, Arc::clone(&serving))).await;
    };
    match handshake(tls, io, &state, &serving).await {
        Some(Ok(stream)) => {
            let leaf = PeerTls::of(stream.get_ref().1);
            if leaf.is_some() {
                // Thousands of agents may come from one address, and each has authenticated its node.
                state.place.reached(Stage::Known);
                state.place.leave_origin();
            }
            let certificate = ClientCertificate(leaf.map(Arc::new));
            // Boxed, so that a link does not hold the memory of its handshake for the rest of its life.
            Box::pin(http(TokioIo::new(stream), certificate, address, state, Arc::clone(&serving))).await;
        }
        Some(Err(error)) => tracing::debug!(?address, %error, "TLS handshake failed"),
        None => tracing::debug!(?address, "TLS handshake timed out"),
    }
}

async fn handshake<S>(
    tls: &TlsAcceptor,
    io: WatchedIo<S>,
    state: &ConnectionState,
    serving: &Serving,
) -> Option<io::Result<tokio_rustls::server::TlsStream<WatchedIo<S>>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut accepting = std::pin::pin!(tls.accept(io));
    loop {
        let due = match state.judge_handshake(Instant::now(), &serving.options.limits) {
            Verdict::Wait(due) => due,
            Verdict::Cut(reason) => {
                serving.cut(reason);
                return None;
            }
            Verdict::Close => return None,
        };
        tokio::select! {
            biased;
            accepted = accepting.as_mut() => return Some(accepted),
            () = state.place.told_to_leave() => {
                serving.cut(Reason::Shed);
                return None;
            }
            () = serving.shutdown.cancelled() => return None,
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

async fn http<I>(
    io: I,
    certificate: ClientCertificate,
    address: Option<SocketAddr>,
    state: Arc<ConnectionState>,
    serving: Arc<Serving>,
) where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let context = request::Context { certificate, address, state: Arc::clone(&state), serving: Arc::clone(&serving) };
    let service = hyper::service::service_fn(move |request| request::serve(context.clone(), request));
    let limits = &serving.options.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The time of a head is checked below, from the first byte: the protocol detection has no timer of its own.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(limits.h2_streams)
        .initial_stream_window_size(limits.h2_stream_window)
        .initial_connection_window_size(limits.h2_connection_window)
        .max_send_buf_size(limits.h2_send_buffer)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_header_list_size(MAX_HEADER_LIST);
    let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(io, service));
    let began = Instant::now();
    let mut closes_at: Option<Instant> = None;
    let mut alarm = std::pin::pin!(tokio::time::sleep_until(began));
    let result = loop {
        let verdict = match closes_at {
            Some(at) if Instant::now() >= at => break Ok(()),
            Some(at) => Verdict::Wait(at),
            None => state.judge(began, Instant::now(), limits),
        };
        match verdict {
            Verdict::Wait(due) => {
                alarm.as_mut().reset(due);
                state.judged_again_at(due);
            }
            Verdict::Cut(reason) => {
                serving.cut(reason);
                break Ok(());
            }
            Verdict::Close => {
                serving.cut(Reason::Idle);
                connection.as_mut().graceful_shutdown();
                closes_at = Some(Instant::now() + limits.drain);
                continue;
            }
        }
        tokio::select! {
            biased;
            result = connection.as_mut() => break result,
            () = state.place.told_to_leave() => {
                serving.cut(Reason::Shed);
                break Ok(());
            }
            () = serving.shutdown.cancelled(), if closes_at.is_none() => {
                connection.as_mut().graceful_shutdown();
                closes_at = Some(Instant::now() + limits.drain);
            }
            () = state.earlier() => {}
            () = alarm.as_mut() => {}
        }
    };
    if let Err(error) = result {
        tracing::debug!(?address, %error, "connection ended with an error");
    }
}
