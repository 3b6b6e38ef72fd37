//! `Idempotency-Key`: a `POST` that is repeated with the same key takes effect once.
//!
//! The key is passed to the use cases in the [`Caller`], and its record is written in the same commit as the change (`transact.rs`).
//! This layer answers repeated requests, and stores the responses of new ones. The repetition of a request that created a task or an
//! allocation is answered with its current state. Any other one gets the response of the first request, unless that contained a secret:
//! secrets are shown once.

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

/// How often, and at what interval, the record of a request that may still be in progress is read again.
const ANSWER_READS: u32 = 10;
const ANSWER_WAIT: Duration = Duration::from_millis(50);

/// Marks a response that contains a secret: it is sent once, and the record of its key says only that the request was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotKept;

/// How a repeated request is answered.
#[derive(Clone, Copy)]
enum Replay {
    /// With the stored response.
    Answer,
    /// With the current state of the allocation that was created.
    Allocation,
    /// With the current state of the task that was created.
    Task,
    /// With the current state of the task that was created and of its slice's slots.
    SliceOrder,
}

impl Replay {
    /// How repeated requests to the route `template` are answered.
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

/// Answers a repeated request, and passes a new one on with its key.
pub(super) async fn once(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    // Other methods ignore the header, even an invalid one.
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

/// The idempotency key that the caller chose.
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
        // It may have failed because the same request was done concurrently.
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

/// The record of a key, if there is one. It is an error if the key was used for a different request.
async fn record_of(control: &Control, key: &RequestKey) -> Result<Option<KeyRecord>, ControlError> {
    let record = resources::get::<KeyRecord>(control, key.id()).await?;
    if let Some(record) = &record {
        key.check(record)?;
    }
    Ok(record)
}

/// The digest that identifies a request. The same JSON with other whitespace or another order of fields is the same request.
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

/// Answers a repeated request.
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

/// The stored response. Waits a moment for it, because a concurrent request may be about to store it.
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

/// Adds the response to the record of the key, if the request changed anything.
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
        // Best effort: the record of the key already prevents a second execution.
        if let Err(error) = commit(control, Decision::default().update(&next)).await {
            tracing::warn!(%error, "an answer could not be kept for its idempotency key");
        }
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}
