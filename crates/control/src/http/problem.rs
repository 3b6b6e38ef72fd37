//! Parses requests, and turns bad input and errors into problem documents with stable codes.

use std::convert::Infallible;

use axum::extract::path::ErrorKind as PathError;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gpuaas_api::dto::{Fault, PROBLEM_CONTENT_TYPE, Problem};
use gpuaas_domain::{Refusal, RefusalKind};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use super::faults;
use crate::app::IfMatch;
use crate::error::ControlError;
use crate::link::chain;

/// The `Retry-After` of a refusal of the kind `Exhausted`.
const EXHAUSTED_FOR: std::time::Duration = std::time::Duration::from_secs(60);

/// An error that becomes a problem document.
#[derive(Debug)]
pub struct Rejected(pub ControlError);

impl<E: Into<ControlError>> From<E> for Rejected {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Rejected {
    fn into_response(self) -> Response {
        let (status, code, detail) = match &self.0 {
            ControlError::Refused(refusal) if refusal.kind == RefusalKind::Exhausted => {
                let mut response = problem(StatusCode::TOO_MANY_REQUESTS, refusal.code, refusal.message.clone());
                response.headers_mut().insert(header::RETRY_AFTER, retry_after_value(EXHAUSTED_FOR));
                return response;
            }
            ControlError::Refused(refusal @ Refusal { pointer: Some(pointer), .. }) => {
                let faults = vec![Fault { pointer: (*pointer).to_owned(), detail: refusal.message.clone() }];
                return problem_with(StatusCode::UNPROCESSABLE_ENTITY, refusal.code, refusal.message.clone(), faults);
            }
            ControlError::BadBody { message, faults } => {
                return problem_with(StatusCode::UNPROCESSABLE_ENTITY, "body_invalid", message.clone(), faults.clone());
            }
            ControlError::Refused(refusal) => {
                let status = match refusal.kind {
                    RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
                    RefusalKind::Conflict => StatusCode::CONFLICT,
                    RefusalKind::Forbidden => StatusCode::FORBIDDEN,
                    RefusalKind::NotFound => StatusCode::NOT_FOUND,
                    RefusalKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
                };
                (status, refusal.code, refusal.message.clone())
            }
            ControlError::Unavailable { code, message } => (StatusCode::SERVICE_UNAVAILABLE, *code, message.clone()),
            ControlError::TooMany { code, message, retry_after } => {
                let mut response = problem(StatusCode::TOO_MANY_REQUESTS, code, message.clone());
                response.headers_mut().insert(header::RETRY_AFTER, retry_after_value(*retry_after));
                return response;
            }
            ControlError::Precondition { code, message } => (StatusCode::PRECONDITION_FAILED, *code, message.clone()),
            ControlError::Unauthenticated { code, message } => (StatusCode::UNAUTHORIZED, *code, message.clone()),
            ControlError::BadInput { code: code @ "body_too_large", message } => {
                (StatusCode::PAYLOAD_TOO_LARGE, *code, message.clone())
            }
            ControlError::BadInput { code: code @ "content_type_unsupported", message } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, *code, message.clone())
            }
            ControlError::BadInput { code, message } => (StatusCode::BAD_REQUEST, *code, message.clone()),
            // Normally the idempotency layer answers with the result of the first request; this is for a result that was not stored.
            ControlError::AlreadyDone { .. } => (StatusCode::CONFLICT, "idempotency_answer_lost", self.0.to_string()),
            ControlError::Fenced => (StatusCode::GONE, "session_fenced", self.0.to_string()),
            ControlError::Contended => (StatusCode::SERVICE_UNAVAILABLE, "contended", self.0.to_string()),
            ControlError::Store(_) => {
                tracing::error!(error = %chain(&self.0), "store failed");
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "the store did not answer; try again shortly".to_owned())
            }
            ControlError::Internal(_) => {
                tracing::error!(error = %chain(&self.0), "internal error");
                (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    "something is broken on the server; its log has the details".to_owned(),
                )
            }
        };
        problem(status, code, detail)
    }
}

/// The value of `Retry-After`, in whole seconds and at least one.
pub(crate) fn retry_after_value(wait: std::time::Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1))
}

/// A response with a problem document.
pub fn problem(status: StatusCode, code: &str, detail: impl Into<String>) -> Response {
    problem_with(status, code, detail, Vec::new())
}

fn problem_with(status: StatusCode, code: &str, detail: impl Into<String>, faults: Vec<Fault>) -> Response {
    let body = Problem { faults, ..Problem::new(status.as_u16(), status.canonical_reason().unwrap_or("Error"), code, detail) };
    let mut response = (status, serde_json::to_vec(&body).unwrap_or_default()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_CONTENT_TYPE));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // The layer that knows the correlation id fills in the rest.
    response.extensions_mut().insert(body);
    response
}

fn bad(code: &'static str, message: impl Into<String>) -> Rejected {
    Rejected(ControlError::BadInput { code, message: message.into() })
}

/// A JSON body, parsed strictly; an empty body is an empty object.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + JsonSchema> FromRequest<S> for JsonBody<T> {
    type Rejection = Rejected;

    async fn from_request(request: Request, state: &S) -> Result<Self, Rejected> {
        let is_json = is_json(request.headers());
        let bytes = body_of(request, state).await?;
        if bytes.is_empty() {
            return read(b"{}").map(Self);
        }
        if !is_json {
            return Err(bad("content_type_unsupported", "this route takes JSON; send it with `Content-Type: application/json`"));
        }
        read(&bytes).map(Self)
    }
}

/// Whether the content type of a body is JSON. A missing content type counts as JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return true };
    let essence = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn read<T: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<T, Rejected> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let error = match serde_path_to_error::deserialize(&mut reader) {
        Ok(value) => match reader.end() {
            Ok(()) => return Ok(value),
            Err(error) => return Err(bad("json_invalid", format!("the body is not JSON: {error}"))),
        },
        Err(error) => error,
    };
    let body: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| bad("json_invalid", format!("the body is not JSON: {error}")))?;
    let mut faults = faults::of(T::json_schema, &body);
    if faults.is_empty() {
        faults.push(Fault { pointer: pointer_of(error.path()), detail: without_place(&error.into_inner().to_string()) });
    }
    let told: Vec<String> = faults.iter().take(3).map(|fault| format!("`{}` {}", fault.pointer, fault.detail)).collect();
    let more = if faults.len() > 3 { ", and more" } else { "" };
    let message = format!("the body is not what this route takes: {}{more}", told.join(", "));
    Err(Rejected(ControlError::BadBody { message, faults }))
}

/// The location where serde stopped, as a JSON pointer.
fn pointer_of(path: &serde_path_to_error::Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => faults::pointer_to(&pointer, key),
        Segment::Enum { variant } => faults::pointer_to(&pointer, variant),
        Segment::Unknown => pointer,
    })
}

/// Removes the line and column from an error message: the JSON pointer is more useful.
fn without_place(text: &str) -> String {
    text.split_once(" at line ").map_or(text, |(what, _)| what).to_owned()
}

/// A document of the long-poll link, parsed strictly. An agent is told only the first fault.
pub struct LinkBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for LinkBody<T> {
    type Rejection = Rejected;

    async fn from_request(request: Request, state: &S) -> Result<Self, Rejected> {
        let bytes = body_of(request, state).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        let wrong = |error| bad("json_invalid", format!("the body is not what this route takes: {error}"));
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of axum that may grow")]
async fn body_of<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Rejected> {
    Bytes::from_request(request, state).await.map_err(|rejection| match rejection {
        BytesRejection::FailedToBufferBody(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            bad("body_too_large", "the body is larger than this route takes")
        }
        other => bad("body_unreadable", other.body_text()),
    })
}

/// Query parameters, parsed strictly.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Params<T> {
    type Rejection = Rejected;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejected> {
        let parsed: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        parsed.map(|Query(value)| Self(value)).map_err(|rejection| bad("query_invalid", rejection.body_text()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let tags = parts.headers.get(header::IF_MATCH);
        // A header that is not text becomes an empty tag, which matches nothing.
        Ok(Self::new(tags.map(|tags| tags.to_str().unwrap_or_default().to_owned())))
    }
}

/// Parsed variable segments of the path: a typed id, a name, or a struct whose fields are named as in the route.
pub struct Segments<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Rejected;

    #[allow(clippy::wildcard_enum_match_arm, reason = "enums of axum that may grow")]
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejected> {
        let parsed: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        parsed.map(|Path(value)| Self(value)).map_err(|rejection| match rejection {
            PathRejection::FailedToDeserializePathParams(failed) => match failed.into_kind() {
                // The error of a type's own parser. All such types are ids.
                PathError::DeserializeError { message, .. } | PathError::Message(message) => bad("id_invalid", message),
                other => bad("path_invalid", other.to_string()),
            },
            other => bad("path_invalid", other.body_text()),
        })
    }
}
