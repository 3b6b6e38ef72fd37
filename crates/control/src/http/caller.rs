//! Authenticates the caller, and gives each request its correlation id.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::dto::Problem;
use gpuaas_api::endpoints;
use gpuaas_api::routes::CORRELATION_ID_HEADER;
use gpuaas_contract::Digest;
use gpuaas_contract::id::CorrelationId;
use gpuaas_domain::Actor;
use gpuaas_domain::access::Principal;
use tracing::Instrument as _;

use super::problem::{Rejected, problem};
use super::stream_grant::StreamGrant;
use super::{conventions, guard};
pub(super) use crate::app::Caller;
use crate::app::Subject;
use crate::error::ControlError;
use crate::listener::KnownCaller;
use crate::{Control, authz_cache};

/// Marks requests that arrived over the server's local socket. Anyone who can connect to it could read the server's keys anyway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local;

/// Gives every request a correlation id, logs its completion and fills in problem documents.
pub(super) async fn correlate(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(CORRELATION_ID_HEADER).and_then(|value| value.to_str().ok());
    let id = given.and_then(|text| CorrelationId::try_from(text.to_owned()).ok()).unwrap_or_else(CorrelationId::generate);
    request.extensions_mut().insert(id.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", correlation_id = %id);
    let mut response = next.run(request).instrument(span).await;
    control.metrics.request(response.status().as_u16());
    tracing::debug!(%method, path, status = response.status().as_u16(), correlation_id = %id, "answered");
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        problem.correlation_id = Some(id.to_string());
        *response.body_mut() = serde_json::to_vec(&problem).unwrap_or_default().into();
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(CORRELATION_ID_HEADER, value);
    }
    response
}

/// Lets a request through only if its caller is authenticated and authorized.
pub(super) async fn authorize(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    // Copy only what is needed: the future must be `Send`, and a reference to a request with its body is not.
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let local = request.extensions().get::<Local>().is_some();
    let correlation_id = request.extensions().get::<CorrelationId>().cloned().unwrap_or_else(CorrelationId::generate);
    let template = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let decided = async {
        let (actor, principal) = authenticate(&control, header.as_deref(), local).await?;
        // The router answers paths that match no route, for authenticated callers only.
        let subject = match &template {
            Some(template) => guard::decide(&control, &principal, &method, template, &path).await?,
            None => Subject::Platform,
        };
        Ok::<_, ControlError>(Caller::new(actor, principal, subject, correlation_id))
    };
    match decided.await {
        Ok(caller) => {
            if let Some(known) = request.extensions().get::<KnownCaller>() {
                known.mark();
            }
            request.extensions_mut().insert(caller);
            let template = template.unwrap_or_default();
            let grant = StreamGrant { control, header, local, method, template, path };
            request.extensions_mut().insert(grant.clone());
            grant.run(next.run(request)).await
        }
        Err(ControlError::Refused(refused)) if refused.code == guard::CLOSED => {
            template.as_deref().and_then(other_methods).unwrap_or_else(|| Rejected(refused.into()).into_response())
        }
        Err(failure) => Rejected(failure).into_response(),
    }
}

/// The `405` response of a path that exists for other methods. `None` if the table has no endpoint at this path.
fn other_methods(template: &str) -> Option<Response> {
    endpoints::methods(template).next()?;
    let methods = conventions::allow(template);
    let allow = HeaderValue::from_str(&methods).ok()?;
    let detail = format!("this path exists, but not for this method; it has {methods}");
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail);
    response.headers_mut().insert(header::ALLOW, allow);
    Some(response)
}

/// Identifies the sender of this `Authorization` header, with their roles.
pub(super) async fn authenticate(
    control: &Control,
    header: Option<&str>,
    local: bool,
) -> Result<(Actor, Arc<Principal>), ControlError> {
    let Some(header) = header else {
        if local {
            return Ok((Actor::LocalAdmin, Arc::new(Principal::local_admin())));
        }
        let message = "this needs a token; send `Authorization: Bearer …`";
        return Err(ControlError::Unauthenticated { code: "token_required", message: message.to_owned() });
    };
    let unknown = || ControlError::Unauthenticated {
        code: "token_invalid",
        message: "this token is not known, has expired or was revoked; sign in again, or use another one".to_owned(),
    };
    let secret = header.strip_prefix("Bearer ").map(str::trim).filter(|secret| !secret.is_empty()).ok_or_else(unknown)?;
    // A JWT from an identity provider contains dots; our own tokens do not.
    if secret.contains('.') {
        return control.identity.caller(control, secret).await;
    }
    let token = control.store.api_token_by_secret(&Digest::of(secret.as_bytes())).await?.ok_or_else(unknown)?;
    authz_cache::of_token(control, &token).await?.ok_or_else(unknown)
}
