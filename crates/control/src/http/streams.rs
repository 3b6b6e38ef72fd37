//! Limits how many streams a caller may have open, so that one caller cannot take all places.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use gpuaas_api::routes;
use hyper::body::{Frame, SizeHint};

use super::caller::Caller;
use super::problem::problem;
use crate::Control;
use crate::listener::ServerLimits;

/// Routes whose responses stay open for as long as the caller wants.
const STREAMS: [&str; 5] =
    [routes::TASK_WATCH, routes::ALLOCATION_WATCH, routes::PROJECT_EVENTS, routes::PROJECT_EVENTS_WS, routes::EVENTS];

/// The open streams of this process.
pub(crate) struct Streams {
    per_caller: usize,
    total: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    callers: HashMap<String, usize>,
}

impl Streams {
    pub(crate) fn new(limits: &ServerLimits) -> Self {
        Self { per_caller: limits.streams_per_caller, total: limits.streams, open: Arc::default() }
    }

    /// Takes a place for one more stream of this caller, or returns the code and message of the refusal.
    fn open(&self, caller: &str) -> Result<StreamPlace, (&'static str, String)> {
        let mut open = lock(&self.open);
        let of_caller = open.callers.get(caller).copied().unwrap_or_default();
        if of_caller >= self.per_caller {
            let message =
                format!("you have {of_caller} streams open, which is the most; close one, or listen to a whole project with one");
            return Err(("too_many_streams", message));
        }
        if open.total >= self.total {
            let message = "this server has as many streams open as it can; try again later".to_owned();
            return Err(("too_many_streams_in_all", message));
        }
        open.total += 1;
        *open.callers.entry(caller.to_owned()).or_default() += 1;
        Ok(StreamPlace(Arc::new(StreamSlot { open: Arc::clone(&self.open), caller: caller.to_owned() })))
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of one stream. It is freed when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct StreamPlace(#[expect(dead_code, reason = "held for its end")] Arc<StreamSlot>);

#[derive(Debug)]
struct StreamSlot {
    open: Arc<Mutex<Open>>,
    caller: String,
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.total = open.total.saturating_sub(1);
        if let Some(of_caller) = open.callers.get_mut(&self.caller) {
            *of_caller = of_caller.saturating_sub(1);
            if *of_caller == 0 {
                open.callers.remove(&self.caller);
            }
        }
    }
}

/// Counts streams, and refuses those over the limit. The response body holds the place; a WebSocket takes it over.
pub(super) async fn limit(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    let is_stream = request.extensions().get::<MatchedPath>().is_some_and(|path| STREAMS.contains(&path.as_str()));
    let caller = request.extensions().get::<Caller>().map(|caller| caller.actor.to_string());
    let Some(caller) = caller.filter(|_| is_stream) else { return next.run(request).await };
    match control.streams.open(&caller) {
        Ok(place) => {
            request.extensions_mut().insert(place.clone());
            next.run(request).await.map(|inner| Body::new(Holding { inner, _place: place }))
        }
        Err((code, message)) => {
            let mut refused = problem(StatusCode::TOO_MANY_REQUESTS, code, message);
            refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
            refused
        }
    }
}

/// A response body that holds the place of its stream.
struct Holding {
    inner: Body,
    _place: StreamPlace,
}

impl hyper::body::Body for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_some_streams_and_leaves_some_for_others() {
        let limits = ServerLimits { streams_per_caller: 2, streams: 3, ..ServerLimits::for_descriptors(1024, true, true) };
        let streams = Streams::new(&limits);
        let first = streams.open("a").expect("a stream");
        let again = streams.open("a").expect("a stream");
        assert_eq!(streams.open("a").expect_err("too many").0, "too_many_streams");
        let other = streams.open("b").expect("a stream");
        assert_eq!(streams.open("c").expect_err("too many").0, "too_many_streams_in_all");
        let copy = first.clone();
        drop(first);
        assert!(streams.open("a").is_err(), "the stream goes on in its copy");
        drop(copy);
        assert!(streams.open("a").is_ok());
        drop((again, other));
        assert!(lock(&streams.open).callers.is_empty() && lock(&streams.open).total == 0);
    }
}
