//! Requests that stay open: every one of them ends soon after its caller loses the right to it.
//!
//! This is the only place that ends them. The layer that lets requests in ([`super::caller::authorize`]) runs each request through
//! [`StreamGrant::run`]: a handler that takes long, a body that streams and a connection that is upgraded are all watched there. A new
//! kind of stream is covered without doing anything, and an upgrade that does not go through [`StreamGrant::upgrade`] is refused.
//!
//! A change of anybody's rights wakes the check; it also runs every [`RECHECK_EVERY`] should the wake-up be lost or should the right end
//! by time alone.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::problem::{Rejected, problem};
use super::{caller, guard};
use crate::Control;
use crate::error::ControlError;

/// How often the right to an open request is checked when nothing says that rights changed.
const RECHECK_EVERY: Duration = Duration::from_secs(3);
/// Changes of rights that come close together are answered by one check, and the event that says so can arrive before the stream ends.
const RECHECK_SPACING: Duration = Duration::from_secs(1);
/// Longest time for one check. A store that does not answer is a check without a result.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request may go on while nobody can tell whether its caller still has the right to it.
const UNKNOWN_AT_MOST: Duration = Duration::from_secs(6);
/// How long an upgraded connection has to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// How a request was let in, so that it can be asked again whether it would be.
#[derive(Clone)]
pub(super) struct StreamGrant {
    pub(super) control: Arc<Control>,
    pub(super) header: Option<String>,
    pub(super) local: bool,
    pub(super) method: Method,
    pub(super) template: String,
    pub(super) path: String,
}

/// Marks the answer to an upgrade whose connection ends with the right to it. Only [`StreamGrant::upgrade`] makes one.
#[derive(Clone, Copy)]
struct Watched;

impl StreamGrant {
    /// Whether the request would be let in now.
    async fn check(&self) -> Result<(), ControlError> {
        let checked = async {
            let (_, principal) = caller::authenticate(&self.control, self.header.as_deref(), self.local).await?;
            guard::decide(&self.control, &principal, &self.method, &self.template, &self.path).await.map(drop)
        };
        tokio::time::timeout(CHECK_TIMEOUT, checked).await.unwrap_or_else(|_| {
            let message = "the check of an open request took too long".to_owned();
            Err(ControlError::Unavailable { code: "check_unavailable", message })
        })
    }

    /// Resolves, with the refusal, when the caller would no longer be let in.
    async fn lost(&self) -> ControlError {
        let mut changes = self.control.authz.changes();
        let mut held_at = Instant::now();
        loop {
            tokio::select! {
                biased;
                changed = changes.changed() => match changed {
                    Ok(()) => {
                        tokio::time::sleep(RECHECK_SPACING).await;
                        changes.mark_unchanged();
                    }
                    // The sender lives as long as the control plane does.
                    Err(_) => tokio::time::sleep(RECHECK_EVERY).await,
                },
                () = tokio::time::sleep(RECHECK_EVERY) => {}
            }
            match self.check().await {
                Ok(()) => held_at = Instant::now(),
                Err(failure) if is_unknown(&failure) && held_at.elapsed() < UNKNOWN_AT_MOST => {}
                Err(failure) => {
                    self.control.metrics.right_lost();
                    tracing::info!(template = self.template, "an open request ended: its caller lost the right to it");
                    return failure;
                }
            }
        }
    }

    /// Runs the handler of a request, and watches what stays open of it.
    pub(super) async fn run(self, handler: impl Future<Output = Response>) -> Response {
        let mut handler = std::pin::pin!(handler);
        // Most requests are over before there is anything to watch.
        let first = tokio::select! {
            biased;
            response = handler.as_mut() => Some(response),
            () = tokio::time::sleep(RECHECK_EVERY) => None,
        };
        let response = match first {
            Some(response) => response,
            None => tokio::select! {
                biased;
                refusal = self.lost() => return Rejected(refusal).into_response(),
                response = handler => response,
            },
        };
        self.watched(response)
    }

    /// The answer, ending with the right to it if it stays open.
    fn watched(self, mut response: Response) -> Response {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if response.extensions_mut().remove::<Watched>().is_some() {
                return response;
            }
            tracing::error!(template = self.template, "this route upgrades connections without watching the right to them");
            let detail = "something is broken on the server; its log has the details";
            return problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
        }
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let is_event_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        response.map(|body| self.watched_body(body, is_event_stream))
    }

    /// A body that stops with the right to it. A stream of events just ends; anything else ends with an error, so that nobody takes what
    /// was cut off for the whole.
    fn watched_body(self, body: Body, is_event_stream: bool) -> Body {
        let mut lost = Box::pin(async move { self.lost().await });
        let (mut frames, mut is_over) = (body.into_data_stream(), false);
        Body::from_stream(futures::stream::poll_fn(move |context| {
            if is_over {
                return Poll::Ready(None);
            }
            if lost.as_mut().poll(context).is_ready() {
                is_over = true;
                return Poll::Ready((!is_event_stream).then(|| Err(std::io::Error::other("the right to this answer was lost"))));
            }
            frames.poll_next_unpin(context).map(|frame| frame.map(|frame| frame.map_err(std::io::Error::other)))
        }))
    }

    /// Upgrades to a WebSocket that `serve` serves. When the caller loses the right to it, `serve` is told by the token and has a moment
    /// to close it; then it is dropped.
    pub(super) fn upgrade<F, S>(self, upgrade: WebSocketUpgrade, serve: F) -> Response
    where
        F: FnOnce(WebSocket, CancellationToken) -> S + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let mut response = upgrade.on_upgrade(move |socket| async move {
            let ended = CancellationToken::new();
            let mut serving = std::pin::pin!(serve(socket, ended.clone()));
            tokio::select! {
                biased;
                _ = self.lost() => {
                    ended.cancel();
                    // Whoever does not take the goodbye is cut off.
                    let _ = tokio::time::timeout(GOODBYE, serving).await;
                }
                () = serving.as_mut() => {}
            }
        });
        response.extensions_mut().insert(Watched);
        response
    }
}

/// Whether a failed check says nothing about the right.
fn is_unknown(failure: &ControlError) -> bool {
    match failure {
        ControlError::Unavailable { .. }
        | ControlError::TooMany { .. }
        | ControlError::Store(_)
        | ControlError::Contended
        | ControlError::Internal(_) => true,
        ControlError::Refused(_)
        | ControlError::Unauthenticated { .. }
        | ControlError::Precondition { .. }
        | ControlError::BadInput { .. }
        | ControlError::BadBody { .. }
        | ControlError::AlreadyDone { .. }
        | ControlError::Fenced => false,
    }
}
