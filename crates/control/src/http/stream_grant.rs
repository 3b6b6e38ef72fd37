//! Ends long-running requests soon after their caller loses the right to them.
//!
//! This is the only place that ends them. The authorization layer ([`super::caller::authorize`]) runs each request through
//! [`StreamGrant::run`], which watches slow handlers, streaming bodies and upgraded connections. A new kind of stream is covered
//! automatically, and an upgrade that does not go through [`StreamGrant::upgrade`] is refused.
//!
//! Any change of permissions triggers the check. It also runs every [`RECHECK_EVERY`], in case a wake-up is lost or the right expires.

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

/// How often the right to an open request is checked when there is no wake-up.
const RECHECK_EVERY: Duration = Duration::from_secs(3);
/// Delay after a change of permissions: one check covers several changes, and the event that reports the change can arrive before the
/// stream ends.
const RECHECK_SPACING: Duration = Duration::from_secs(1);
/// Timeout of one check. If the store does not answer in time, the check has no result.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request may continue while it cannot be determined whether its caller still has the right to it.
const UNKNOWN_AT_MOST: Duration = Duration::from_secs(6);
/// How long an upgraded connection has to close cleanly.
const GOODBYE: Duration = Duration::from_secs(1);

/// The inputs with which a request was authorized, so that it can be authorized again.
#[derive(Clone)]
pub(super) struct StreamGrant {
    pub(super) control: Arc<Control>,
    pub(super) header: Option<String>,
    pub(super) local: bool,
    pub(super) method: Method,
    pub(super) template: String,
    pub(super) path: String,
}

/// Marks the response to an upgrade whose connection is watched. Only [`StreamGrant::upgrade`] creates it.
#[derive(Clone, Copy)]
struct Watched;

impl StreamGrant {
    /// Authorizes the request again.
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

    /// Resolves with the refusal when the caller is no longer authorized.
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
                    // Does not happen while the control plane runs, because it owns the sender.
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

    /// Runs the handler of a request, and watches whatever stays open.
    pub(super) async fn run(self, handler: impl Future<Output = Response>) -> Response {
        let mut handler = std::pin::pin!(handler);
        // Most requests finish before there is anything to watch.
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

    /// Returns the response, with its body watched if it stays open.
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

    /// A body that stops when the caller loses the right to it. An event stream just ends; anything else ends with an error, so that no
    /// client mistakes a truncated body for a complete one.
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

    /// Upgrades to a WebSocket that `serve` handles. When the caller loses the right to it, the token is cancelled and `serve` has
    /// [`GOODBYE`] to close the socket; after that it is dropped.
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
                    // A client that does not complete the close in time is disconnected.
                    let _ = tokio::time::timeout(GOODBYE, serving).await;
                }
                () = serving.as_mut() => {}
            }
        });
        response.extensions_mut().insert(Watched);
        response
    }
}

/// Whether a failed check leaves open if the caller still has the right.
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
