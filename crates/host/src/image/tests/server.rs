//! A real HTTP server with scripted answers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A received request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The number of earlier requests.
    pub(super) index: usize,
    pub(super) path: String,
    headers: HeaderMap,
}

impl Seen {
    pub(super) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the requested start.
    pub(super) fn from(&self) -> Option<usize> {
        self.header(header::RANGE)?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Correctly.
    Well,
    /// The connection breaks after this many bytes.
    Cut(usize),
    /// Nothing more arrives after this many bytes.
    Stall(usize),
}

/// An answer of the server.
#[derive(Debug)]
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
    sent: usize,
    end: End,
    length: Option<u64>,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self { status, headers: HeaderMap::new(), bytes: Bytes::new(), sent: 0, end: End::Well, length: Some(0) }
    }

    /// Returns the whole file.
    pub(super) fn whole(file: &Bytes) -> Self {
        Self { bytes: file.clone(), length: Some(file.len() as u64), ..Self::status(200) }
    }

    /// Returns the answer of a correct server: the rest of the file if that is requested and the file is unchanged.
    pub(super) fn good(file: &Bytes, etag: Option<&str>, seen: &Seen) -> Self {
        let fits = seen.header(header::IF_RANGE).is_none_or(|wanted| Some(wanted) == etag);
        let reply = match seen.from().filter(|from| fits && *from < file.len()) {
            Some(from) => {
                let reply = Self { status: StatusCode::PARTIAL_CONTENT, ..Self::whole(&file.slice(from..)) };
                reply.with(header::CONTENT_RANGE, &format!("bytes {from}-{}/{}", file.len() - 1, file.len()))
            }
            None => Self::whole(file),
        };
        etag.into_iter().fold(reply, |reply, etag| reply.with(header::ETAG, etag))
    }

    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(value).expect("a value"));
        self
    }

    pub(super) fn ending(self, end: End) -> Self {
        Self { end, ..self }
    }

    /// Sets the declared length, or removes it.
    pub(super) fn claiming(self, length: Option<u64>) -> Self {
        Self { length, ..self }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let (stop, at_stop) = match self.end {
            End::Well => (self.bytes.len(), Poll::Ready(None)),
            End::Cut(at) => (at, Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))),
            // No waker is stored: nothing ever arrives.
            End::Stall(at) => (at, Poll::Pending),
        };
        let stop = stop.min(self.bytes.len());
        if self.sent >= stop {
            return at_stop;
        }
        let next = (self.sent + 64 * 1024).min(stop);
        let piece = self.bytes.slice(self.sent..next);
        self.sent = next;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

type Answering = dyn Fn(&Seen) -> Reply + Send + Sync;

/// The server. It ends when dropped.
pub(super) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    scheme: &'static str,
    _task: AbortOnDropHandle<()>,
}

impl Server {
    pub(super) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(None, Arc::new(answer)).await
    }

    pub(super) async fn start_tls(config: rustls::ServerConfig, answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(Some(tokio_rustls::TlsAcceptor::from(Arc::new(config))), Arc::new(answer)).await
    }

    async fn start_with(tls: Option<tokio_rustls::TlsAcceptor>, answer: Arc<Answering>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, scheme) = (Arc::clone(&seen), if tls.is_some() { "https" } else { "http" });
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, answer, log) = (tls.clone(), Arc::clone(&answer), Arc::clone(&log));
                connections.spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let reply = respond(&request, &answer, &log);
                        async move { Ok::<_, Infallible>(reply) }
                    });
                    let server = hyper::server::conn::http1::Builder::new();
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                let _ = server.serve_connection(TokioIo::new(stream), service).await;
                            }
                        }
                        None => {
                            let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        }
                    }
                });
            }
        });
        Self { address, seen, scheme, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port())
    }

    /// Returns the requests so far.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("the log").clone()
    }

    pub(super) fn requests(&self) -> usize {
        self.seen().len()
    }
}

fn respond(request: &Request<Incoming>, answer: &Arc<Answering>, log: &Mutex<Vec<Seen>>) -> Response<Reply> {
    let seen = {
        let mut log = log.lock().expect("the log");
        let seen = Seen { index: log.len(), path: request.uri().to_string(), headers: request.headers().clone() };
        log.push(seen.clone());
        seen
    };
    let mut reply = answer(&seen);
    let (status, headers) = (reply.status, std::mem::take(&mut reply.headers));
    let mut response = Response::new(reply);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
