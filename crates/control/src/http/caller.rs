//! Who calls, and the id that follows the call.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use gpuaas_api::dto::Problem;
use gpuaas_api::routes::CORRELATION_ID_HEADER;
use gpuaas_contract::Digest;
use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::{Actor, Refusal, Role};
use tracing::Instrument as _;

use super::problem::Rejected;
use crate::Control;
use crate::failure::Failure;

/// The authenticated caller of a request, as handlers get it.
#[derive(Clone)]
pub(super) struct Caller {
    /// Who.
    pub actor: Actor,
    /// The request's id.
    pub correlation_id: CorrelationId,
}

impl Caller {
    /// The context of a decision made for this caller.
    pub(super) fn context(&self) -> Context {
        Context { now: Timestamp::now(), actor: self.actor.clone(), correlation_id: self.correlation_id.clone() }
    }
}

/// Gives every request a correlation id, logs its end and completes problem documents.
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

/// Lets a request pass only with a token that counts: any role to read, `admin` to change.
pub(super) async fn authorise(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    // Only what is needed goes along: a body cannot be shared across threads.
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let correlation_id = request.extensions().get::<CorrelationId>().cloned().unwrap_or_else(CorrelationId::generate);
    match authenticate(&control, header.as_deref(), reads, correlation_id).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(failure) => Rejected(failure).into_response(),
    }
}

async fn authenticate(
    control: &Control,
    header: Option<&str>,
    reads: bool,
    correlation_id: CorrelationId,
) -> Result<Caller, Failure> {
    let missing = || Failure::Unauthenticated {
        code: "token_required",
        message: "this needs a token: set GPUAAS_TOKEN, or send `Authorization: Bearer …`".to_owned(),
    };
    let secret = header.and_then(|text| text.strip_prefix("Bearer ")).ok_or_else(missing)?;
    let unknown = || Failure::Unauthenticated {
        code: "token_invalid",
        message:
            "this token is not known or was revoked; the first admin token is in the server's data folder, file `admin-token`"
                .to_owned(),
    };
    let token = control.store.api_token_by_secret(&Digest::of(secret.as_bytes())).await?.ok_or_else(unknown)?;
    if token.revoked_at.is_some() {
        return Err(unknown());
    }
    match token.role {
        Role::Admin => {}
        Role::Viewer if reads => {}
        Role::Viewer => {
            let message = "a viewer may read but not change anything; use a token with the role `admin`";
            return Err(Refusal::forbidden("role_forbidden", message).into());
        }
    }
    Ok(Caller { actor: Actor::Token { id: token.id, role: token.role }, correlation_id })
}
