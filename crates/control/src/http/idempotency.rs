//! `Idempotency-Key`: whoever sends the same request with the same key again gets the same answer, and it is done once.
//!
//! The key is written down in the very commit that does what was asked for ([`claim`]), so the two cannot come apart. The answer is added
//! afterwards. Should the server die in between, the key is known to be done and its answer is lost: the caller is told what it was about.
//! Requests that make tasks and allocations have their own, older way, with the same meaning: the key is in their row.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::idempotency::{Answer, Answered, KEPT, MAX_ANSWER, answered_id};
use gpuaas_domain::{Decision, Refusal};
use http_body_util::BodyExt as _;

use super::caller::Caller;
use super::problem::Rejected;
use super::{MAX_BODY, task_create};
use crate::commit::commit;
use crate::error::ControlError;
use crate::{Control, resources};

tokio::task_local! {
    /// What the request that is being served is to be remembered by.
    static CLAIM: Claim;
}

/// A key that was not used before.
#[derive(Clone)]
struct Claim(Arc<Mutex<Option<Answered>>>);

/// Adds the key of the request that is being served to the first thing that is written for it. Returns what to tell [`written`].
pub(crate) fn claim(decision: Decision) -> (Decision, Option<String>) {
    let claim = CLAIM.try_with(|claim| claim.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).ok().flatten();
    let Some(mut answered) = claim.filter(|answered| answered.subject.is_empty()) else { return (decision, None) };
    let subject = decision.events.first().map_or_else(|| "nothing".to_owned(), |event| event.subject.clone());
    answered.subject.clone_from(&subject);
    (decision.insert(&answered), Some(subject))
}

/// The decision with the key in it was written: it is not added again.
pub(crate) fn written(subject: Option<String>) {
    let Some(subject) = subject else { return };
    // It was read from there a moment ago.
    let _ = CLAIM.try_with(|claim| {
        if let Some(answered) = claim.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            answered.subject = subject;
        }
    });
}

/// Marks an answer that holds a secret: it is told once, and its key remembers only that it was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotKept;

/// Marks an answer that was given before: nothing was done for this request.
pub(super) const REPLAYED_HEADER: &str = "idempotency-replayed";

/// Routes whose rows carry the key themselves.
fn has_its_own(template: &str) -> bool {
    [routes::TASKS, routes::SLICES, routes::PROJECT_ALLOCATIONS].contains(&template)
        || template.starts_with("/api/v1/slices/")
        || [routes::SLOT_FORCE_CLEANUP, routes::ALLOCATION_CONSOLE].contains(&template)
}

/// Answers a request that was answered before, and remembers the answer of one that was not.
pub(super) async fn once(State(control): State<Arc<Control>>, request: Request, next: Next) -> Response {
    // Elsewhere the header means nothing, whatever is in it.
    if *request.method() != Method::POST {
        return next.run(request).await;
    }
    let template = request.extensions().get::<axum::extract::MatchedPath>().map(|path| path.as_str().to_owned());
    let key = match task_create::idempotency_key(request.headers()) {
        Ok(key) => key,
        Err(failure) => return Rejected(failure).into_response(),
    };
    let (Some(key), Some(caller)) = (key, request.extensions().get::<Caller>().cloned()) else { return next.run(request).await };
    if template.is_none_or(|template| has_its_own(&template)) {
        return next.run(request).await;
    }
    if key.is_empty() || key.len() > 128 {
        let refusal = Refusal::invalid("idempotency_key_invalid", "an idempotency key has 1 to 128 bytes");
        return Rejected(refusal.into()).into_response();
    }
    match serve(&control, &caller, &key, request, next).await {
        Ok(response) => response,
        Err(failure) => Rejected(failure).into_response(),
    }
}

async fn serve(control: &Control, caller: &Caller, key: &str, request: Request, next: Next) -> Result<Response, ControlError> {
    let (parts, body) = request.into_parts();
    let body = read(body).await?;
    let digest = Digest::of(&[parts.method.as_str().as_bytes(), b"\n", parts.uri.path().as_bytes(), b"\n", &body].concat());
    let id = answered_id(&caller.actor.to_string(), key);
    if let Some(earlier) = resources::get::<Answered>(control, &id).await? {
        return again(earlier, &digest);
    }
    let answered = Answered {
        id: id.clone(),
        version: 0,
        request: digest,
        subject: String::new(),
        answer: None,
        expires_at: Timestamp::now().plus(KEPT),
    };
    let claim = Claim(Arc::new(Mutex::new(Some(answered))));
    let response = CLAIM.scope(claim.clone(), next.run(Request::from_parts(parts, Body::from(body)))).await;
    remember(control, &id, response).await
}

async fn read(body: Body) -> Result<Bytes, ControlError> {
    let limited = http_body_util::Limited::new(body, MAX_BODY);
    let collected = limited.collect().await.map_err(|error| {
        let code = if error.is::<http_body_util::LengthLimitError>() { "body_too_large" } else { "body_unreadable" };
        ControlError::BadInput { code, message: format!("the body cannot be read: {error}") }
    })?;
    Ok(collected.to_bytes())
}

/// What was answered before, if the same was asked for.
fn again(earlier: Answered, digest: &Digest) -> Result<Response, ControlError> {
    if earlier.request != *digest {
        let message = "this idempotency key was used for another request; choose a new key";
        return Err(Refusal::conflict("idempotency_key_reused", message).into());
    }
    let Some(Answer { status, body }) = earlier.answer else {
        let message = format!("this request was done before, but its answer was lost; look at {}", earlier.subject);
        return Err(Refusal::conflict("idempotency_answer_lost", message).into());
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    Ok(response)
}

/// Adds the answer to the key, if what was asked for was done.
async fn remember(control: &Control, id: &str, response: Response) -> Result<Response, ControlError> {
    if !response.status().is_success() || response.extensions().get::<NotKept>().is_some() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| ControlError::Internal(format!("an answer broke off: {error}")))?.to_bytes();
    let status = parts.status.as_u16();
    if let Some(done) = resources::get::<Answered>(control, id).await?
        && let Ok(text) = std::str::from_utf8(&body)
        && body.len() <= MAX_ANSWER
    {
        let next = Answered { answer: Some(Answer { status, body: text.to_owned() }), ..done };
        // Only a convenience: the key itself is safe.
        if let Err(error) = commit(control, Decision::default().update(&next)).await {
            tracing::warn!(%error, "an answer could not be kept for its idempotency key");
        }
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}
