//! The cluster as a whole, health and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gpuaas_api::dto::{CaInfo, CaState, ClusterInfo, ListenerInfo, Page, TaskTypeInfo};
use gpuaas_contract::time::Timestamp;

use super::problem::problem;
use super::static_text;
use crate::Control;
use crate::link::chain;
use crate::pki::{Ca, HealthState, ListenerCertificate};

pub(super) async fn cluster(State(control): State<Arc<Control>>) -> Json<ClusterInfo> {
    Json(ClusterInfo {
        cluster_id: control.cluster_id,
        ca_sha256: control.ca.pin(),
        ca: ca_info(&control.ca).await,
        root_key: control.keys.root_key(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        link_address: control.link_address.clone(),
        listeners: control.listener_certificates.all().into_iter().map(listener_info).collect(),
        store: control.store_kind.to_owned(),
        server_time: Timestamp::now(),
    })
}

fn listener_info(certificate: ListenerCertificate) -> ListenerInfo {
    ListenerInfo {
        listener: certificate.listener.as_str().to_owned(),
        certificate_issued_at: certificate.issued_at,
        certificate_expires_at: certificate.expires_at,
        certificate_renews_at: certificate.renews_at,
        renewal_error: certificate.error,
    }
}

async fn ca_info(ca: &Ca) -> CaInfo {
    let kind = ca.kind().to_owned();
    let Some(step_ca) = ca.step_ca() else {
        return CaInfo { kind, state: CaState::Available, detail: None, checked_at: None, credential_expires_at: None };
    };
    let health = step_ca.health();
    let (state, detail) = match health.state {
        None => (CaState::Unknown, None),
        Some(HealthState::Available) => (CaState::Available, None),
        Some(HealthState::Unavailable(detail)) => (CaState::Unavailable, Some(detail)),
    };
    CaInfo { kind, state, detail, checked_at: health.checked_at, credential_expires_at: step_ca.credential_until().await }
}

pub(super) async fn task_types() -> Json<Page<TaskTypeInfo>> {
    Json(Page::whole(gpuaas_contract::schema::catalog().into_iter().map(TaskTypeInfo::from).collect()))
}

/// The OpenAPI document. Needs no authentication, because it reveals nothing about this installation.
pub(super) async fn openapi(headers: HeaderMap) -> Response {
    static_text::OPENAPI.respond(&headers).await
}

/// The reference page. Needs no authentication either.
pub(super) async fn reference(headers: HeaderMap) -> Response {
    static_text::REFERENCE.respond(&headers).await
}

/// Redirects to the API reference: there is nothing else at the root yet.
pub(super) async fn home() -> axum::response::Redirect {
    axum::response::Redirect::temporary(gpuaas_api::routes::REFERENCE)
}

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(control): State<Arc<Control>>) -> Response {
    if control.shutdown.is_cancelled() {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", "the server is stopping");
    }
    match control.store.ready().await {
        Ok(()) => "ok\n".into_response(),
        Err(error) => {
            tracing::error!(error = %chain(&error), "not ready");
            problem(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "the store does not answer")
        }
    }
}

pub(super) async fn metrics(State(control): State<Arc<Control>>) -> Response {
    // When the store is down, the other metrics matter all the more.
    if let Ok(oldest) = control.store.outbox_lag().await {
        control.metrics.events_wait(oldest.map_or(Duration::ZERO, |oldest| Timestamp::now().since(oldest)));
    }
    for certificate in control.listener_certificates.all() {
        let left = certificate.expires_at.0.saturating_sub(Timestamp::now().0) / 1_000_000;
        control.metrics.listener_certificate(certificate.listener.as_str(), left, certificate.error.is_some());
    }
    let content_type = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (content_type, control.metrics.text()).into_response()
}
