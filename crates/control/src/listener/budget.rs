//! The bytes of requests in memory, and requests whose bodies take too long.
//!
//! Every part of a body is counted when it arrives and released when the request is answered. Unknown callers together may hold
//! only a small amount. When it is used up, the oldest of their requests makes room for the newest, so a flood of incomplete
//! requests keeps nobody from signing in.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use gpuaas_runtime::places::Stage;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use super::state::{ConnectionState, OpenRequest, Receiving};
use super::{ListenerLimits, Reason};

/// The byte limits of one listener.
#[derive(Debug)]
pub(super) struct ByteBudget {
    strangers: Arc<Semaphore>,
    callers: Arc<Semaphore>,
    /// Notified when bytes are released.
    freed: Notify,
    room: Duration,
    body: Duration,
}

impl ByteBudget {
    pub(super) fn new(limits: &ListenerLimits) -> Self {
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        let (strangers, callers) = (semaphore(limits.stranger_bytes), semaphore(limits.caller_bytes));
        Self { strangers, callers, freed: Notify::new(), room: limits.room, body: limits.body }
    }
}

/// Marks the caller of a request, and with it the connection, as known. The listener adds it to every request.
#[derive(Clone)]
pub struct KnownCaller(Arc<RequestState>);

impl KnownCaller {
    /// Marks the caller as authenticated.
    pub fn mark(&self) {
        self.0.is_known.store(true, Ordering::Release);
        self.0.connection.place.reached(Stage::Known);
    }
}

/// The bytes of a request until it is answered.
pub(super) struct RequestState {
    connection: Arc<ConnectionState>,
    budget: Arc<ByteBudget>,
    is_known: AtomicBool,
    /// Why the body was not read to its end.
    refused: AtomicU8,
    held: Mutex<Vec<OwnedSemaphorePermit>>,
}

const SLOW: u8 = 1;
const BUSY: u8 = 2;

impl RequestState {
    pub(super) fn new(connection: Arc<ConnectionState>, budget: Arc<ByteBudget>) -> Arc<Self> {
        let (is_known, refused) = (AtomicBool::new(false), AtomicU8::new(0));
        Arc::new(Self { connection, budget, is_known, refused, held: Mutex::default() })
    }

    pub(super) fn marker(self: &Arc<Self>) -> KnownCaller {
        KnownCaller(Arc::clone(self))
    }

    /// Returns why the body was not read to its end, if the server refused the rest.
    pub(super) fn refused(&self) -> Option<Reason> {
        match self.refused.load(Ordering::Acquire) {
            SLOW => Some(Reason::Body),
            BUSY => Some(Reason::Busy),
            _ => None,
        }
    }

    fn pool(&self) -> &Arc<Semaphore> {
        if self.is_known.load(Ordering::Acquire) { &self.budget.callers } else { &self.budget.strangers }
    }

    fn hold(&self, permit: OwnedSemaphorePermit) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Permits of one pool are merged; a request has at most two pools.
        let fits = held.iter_mut().find(|other| Arc::ptr_eq(other.semaphore(), permit.semaphore()));
        match fits {
            Some(other) => other.merge(permit),
            None => held.push(permit),
        }
    }
}

/// Why a body ends early.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body did not arrive in time")]
    Slow,
    #[error("the server has no room for the body now")]
    Busy,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

type Waiting = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// A body that is counted and has a deadline.
pub(super) struct CountedBody {
    inner: Incoming,
    state: Arc<RequestState>,
    since: Instant,
    /// Set while more of it is expected.
    unfinished: Option<(Pin<Box<Sleep>>, Receiving)>,
    /// A part that waits for room.
    waiting: Option<(Frame<Bytes>, Waiting)>,
}

impl CountedBody {
    pub(super) fn new(inner: Incoming, state: Arc<RequestState>) -> Self {
        Self { inner, state, since: Instant::now(), unfinished: None, waiting: None }
    }

    fn refuse(&self, why: u8, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.state.refused.store(why, Ordering::Release);
        Poll::Ready(Some(Err(error)))
    }

    /// Waits for room. A request of an unknown caller takes the room of older unfinished ones. There is no queue: a small part
    /// finds room where large parts are held.
    fn wait(&self, bytes: u32) -> Waiting {
        let (state, pool) = (Arc::clone(&self.state), Arc::clone(self.state.pool()));
        Box::pin(async move {
            let room = async {
                loop {
                    let freed = state.budget.freed.notified();
                    let mut freed = std::pin::pin!(freed);
                    freed.as_mut().enable();
                    if let Ok(permit) = Arc::clone(&pool).try_acquire_many_owned(bytes) {
                        return permit;
                    }
                    let is_known = state.is_known.load(Ordering::Acquire);
                    if !is_known && state.connection.place.shed_older() {
                        // It may have held nothing: then the next one must go.
                        let _ = tokio::time::timeout(SHED_TAKES, freed).await;
                    } else {
                        freed.await;
                    }
                }
            };
            tokio::time::timeout(state.budget.room, room).await.ok()
        })
    }
}

/// How long a connection may take to close.
const SHED_TAKES: Duration = Duration::from_millis(20);

impl Drop for RequestState {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        if !held.is_empty() {
            drop(held);
            self.budget.freed.notify_waiters();
        }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.waiting.is_none() {
            match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    // A part is never larger than a window or a buffer of a connection.
                    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                    match Arc::clone(this.state.pool()).try_acquire_many_owned(bytes) {
                        Ok(permit) => {
                            this.state.hold(permit);
                            return Poll::Ready(Some(Ok(frame)));
                        }
                        Err(_) => this.waiting = Some((frame, this.wait(bytes))),
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => {
                    this.unfinished = None;
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    let due = this.since + this.state.budget.body;
                    let begin = || (Box::pin(tokio::time::sleep_until(due)), this.state.connection.receive());
                    let (deadline, _) = this.unfinished.get_or_insert_with(begin);
                    if deadline.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    return this.refuse(SLOW, BodyError::Slow);
                }
            }
        }
        let Some((_, waiting)) = &mut this.waiting else { return Poll::Pending };
        let Poll::Ready(permit) = waiting.as_mut().poll(cx) else { return Poll::Pending };
        match (permit, this.waiting.take()) {
            (Some(permit), Some((frame, _))) => {
                this.state.hold(permit);
                Poll::Ready(Some(Ok(frame)))
            }
            (None, _) | (_, None) => this.refuse(BUSY, BodyError::Busy),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer, which reports whether the client reads it.
pub(super) struct WatchedBody {
    inner: axum::body::Body,
    /// Dropped with the body: then the request has ended.
    request: Option<OpenRequest>,
    is_unsent: bool,
}

impl WatchedBody {
    pub(super) fn new(inner: axum::body::Body, request: Option<OpenRequest>) -> Self {
        Self { inner, request, is_unsent: false }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.inner).poll_frame(cx);
        if let Some(request) = &this.request {
            let is_unsent = matches!(result, Poll::Ready(Some(_)));
            match (is_unsent, this.is_unsent) {
                (true, _) => request.handed_over(),
                (false, true) => request.sent(),
                (false, false) => {}
            }
            this.is_unsent = is_unsent;
        }
        result
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
