//! `Idempotency-Key`: a `POST` that is sent again with the same key is done once.
//!
//! The key goes to the use cases with the [`Caller`], and its record is written in the commit that does what was asked for
//! (`transact.rs`). Here a request that was done before is answered, and the answers of others are kept. What made a task or an allocation
//! is answered with how that is now. Any other request is answered as it was the first time, unless its answer holds a secret: that is
//! told once.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::routes::{self, IDEMPOTENCY_KEY_HEADER, IDEMPOTENCY_REPLAYED_HEADER};
use gpuaas_contract::Digest;
use gpuaas_domain::idempotency::{Answer, KeyRecord, MAX_ANSWER, RequestKey};
use gpuaas_domain::{Decision, Refusal};
use http_body_util::BodyExt as _;

use super::problem::Rejected;
use super::{MAX_BODY, allocations, slices, tasks};
use crate::app::{self, Caller};
use crate::commit::commit;
use crate::error::ControlError;
use crate::{Control, resources};

/// How often, and how far apart, the record of a request that may still be being answered is read again.
const ANSWER_READS: u32 = 10;
const ANSWER_WAIT: Duration = Duration::from_millis(50);

/// Marks an answer that holds a secret: it is told once, and its key remembers only that it was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotKept;

/// What a request is answered with if it was done before.
#[derive(Clone, Copy)]
enum Replay {
    /// The answer that was kept.
    Answer,
    /// The allocation that was made, as it is now.
    Allocation,
    /// The task that was made, as it is now.
    Task,
    /// The task that was made and the slots of its slice, as they are now.
    SliceOrder,
}

impl Replay {
    /// How the route `template` is answered again.
    fn of(template: &str) -> Self {
        match template {
            routes::PROJECT_ALLOCATIONS => Self::Allocation,
            routes::TASKS | routes::ALLOCATION_CONSOLE => Self::Task,
            routes::SLICES | routes::SLICE_RELEASE | routes::SLICE_POWER | routes::SLICE_CONSOLE | routes::SLOT_FORCE_CLEANUP => {
                Self::SliceOrder
            }
            _ => Self::Answer,
        }
    }
}

/// Answers a request that was done before, and gives its key to one that was not.
pub(super) async fn once(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    // Elsewhere the header means nothing, whatever is in it.
    if *request.method() != Method::POST {
        return next.run(request).await;
    }
    let key = match key_of(request.headers()) {
        Ok(key) => key,
        Err(failure) => return Rejected(failure).into_response(),
    };
    let template = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let caller = request.extensions().get::<Caller>().cloned();
    match (key, template, caller) {
        (Some(key), Some(template), Some(caller)) => {
            let served = serve(&control, caller, &key, Replay::of(&template), request, next).await;
            served.unwrap_or_else(|failure| Rejected(failure).into_response())
        }
        (_, _, _) => next.run(request).await,
    }
}

/// The caller's own key for a request.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, ControlError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    let text =
        value.to_str().map_err(|_| Refusal::invalid("idempotency_key_invalid", "the idempotency key must be plain text"))?;
    Ok(Some(text.to_owned()))
}

async fn serve(
    control: &Control,
    caller: Caller,
    key: &str,
    replay: Replay,
    request: Request,
    next: Next,
) -> Result<Response, ControlError> {
    let (mut parts, body) = request.into_parts();
    let body = read(body).await?;
    let key = RequestKey::new(&caller.actor, key, digest_of(&parts.method, parts.uri.path(), &body))?;
    if let Some(earlier) = record_of(control, &key).await? {
        return again(control, &caller, replay, earlier).await;
    }
    parts.extensions.insert(caller.clone().once(key.clone()));
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    if !response.status().is_success() {
        // Perhaps because the same request was done meanwhile.
        return match record_of(control, &key).await? {
            Some(earlier) => again(control, &caller, replay, earlier).await,
            None => Ok(response),
        };
    }
    match replay {
        Replay::Answer => keep(control, &key, response).await,
        Replay::Allocation | Replay::Task | Replay::SliceOrder => Ok(response),
    }
}

/// The record of a key, if the same was asked for with it.
async fn record_of(control: &Control, key: &RequestKey) -> Result<Option<KeyRecord>, ControlError> {
    let record = resources::get::<KeyRecord>(control, key.id()).await?;
    if let Some(record) = &record {
        key.check(record)?;
    }
    Ok(record)
}

/// What is asked for. The same JSON in another order or with other spaces is the same request.
fn digest_of(method: &Method, path: &str, body: &[u8]) -> Digest {
    let document = serde_json::from_slice::<serde_json::Value>(body).ok().and_then(|body| serde_json::to_vec(&body).ok());
    let body = document.as_deref().unwrap_or(body);
    Digest::of(&[method.as_str().as_bytes(), b"\n", path.as_bytes(), b"\n", body].concat())
}

async fn read(body: Body) -> Result<Bytes, ControlError> {
    let limited = http_body_util::Limited::new(body, MAX_BODY);
    let collected = limited.collect().await.map_err(|error| {
        let code = if error.is::<http_body_util::LengthLimitError>() { "body_too_large" } else { "body_unreadable" };
        ControlError::BadInput { code, message: format!("the body cannot be read: {error}") }
    })?;
    Ok(collected.to_bytes())
}

/// Answers a request that was done before.
async fn again(control: &Control, caller: &Caller, replay: Replay, earlier: KeyRecord) -> Result<Response, ControlError> {
    let lost = |earlier: KeyRecord| ControlError::AlreadyDone { subject: earlier.subject };
    let mut response = match (replay, earlier.subject.parse(), earlier.subject.parse()) {
        (Replay::Allocation, Ok(id), _) => {
            let allocation = app::allocations::get(control, id).await?;
            allocations::shown(control, caller, allocation).await?.into_response()
        }
        (Replay::Task, _, Ok(id)) => {
            let task = app::tasks::get(control, id).await?;
            Json(tasks::shown(control, caller, task).await?).into_response()
        }
        (Replay::SliceOrder, _, Ok(id)) => {
            let task = app::tasks::get(control, id).await?;
            Json(slices::order_to_dto(control, task).await?).into_response()
        }
        (Replay::Allocation | Replay::Task | Replay::SliceOrder, _, _) => return Err(lost(earlier)),
        (Replay::Answer, _, _) => {
            let Some(Answer { status, body }) = answer_of(control, &earlier).await? else { return Err(lost(earlier)) };
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (status, content_type, body).into_response()
        }
    };
    response.headers_mut().insert(IDEMPOTENCY_REPLAYED_HEADER, HeaderValue::from_static("true"));
    Ok(response)
}

/// The answer that was kept. One that was sent at the same moment may just be about to be kept.
async fn answer_of(control: &Control, earlier: &KeyRecord) -> Result<Option<Answer>, ControlError> {
    let mut answer = earlier.answer.clone();
    for _ in 0..ANSWER_READS {
        if answer.is_some() {
            break;
        }
        tokio::time::sleep(ANSWER_WAIT).await;
        answer = resources::get::<KeyRecord>(control, &earlier.id).await?.and_then(|record| record.answer);
    }
    Ok(answer)
}

/// Adds the answer to the record of the key, if something was done.
async fn keep(control: &Control, key: &RequestKey, response: Response) -> Result<Response, ControlError> {
    if response.extensions().get::<NotKept>().is_some() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| ControlError::Internal(format!("an answer broke off: {error}")))?.to_bytes();
    let status = parts.status.as_u16();
    if let Some(done) = resources::get::<KeyRecord>(control, key.id()).await?
        && let Ok(text) = std::str::from_utf8(&body)
        && body.len() <= MAX_ANSWER
    {
        let next = KeyRecord { answer: Some(Answer { status, body: text.to_owned() }), ..done };
        // Only a convenience: the key itself is safe.
        if let Err(error) = commit(control, Decision::default().update(&next)).await {
            tracing::warn!(%error, "an answer could not be kept for its idempotency key");
        }
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}
