//! Requests of tenants, rate limits, and watches of allocations and events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{any, get};
use futures::StreamExt as _;
use gpuaas_api::client::{AllocationWatchEvent, ErrorKind, HeardEvent, WatchUntil};
use gpuaas_api::dto::{Allocation, AllocationCreate, CloudEvent, EventsQuery, Limits, OrganizationCreate, Problem};
use gpuaas_api::{ClientError, routes};
use gpuaas_contract::id::{AllocationId, EventId, OrgId, ProjectId, SkuId};

use crate::server::client_of;

/// Answers every request with a problem document that describes the request.
fn echo() -> Router {
    Router::new().fallback(any(|request: Request| async move {
        let (parts, body) = request.into_parts();
        let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        let body = axum::body::to_bytes(body, 4096).await.unwrap_or_default();
        let told = format!(
            "{} {} idem={} match={} {}",
            parts.method,
            parts.uri,
            header(routes::IDEMPOTENCY_KEY_HEADER),
            header(routes::IF_MATCH_HEADER),
            String::from_utf8_lossy(&body)
        );
        (StatusCode::CONFLICT, axum::Json(Problem::new(409, "Conflict", "echo", told)))
    }))
}

fn allocation(state: &str) -> Allocation {
    serde_json::from_value(serde_json::json!({
        "id": AllocationId::from_bytes([1; 16]), "organization_id": OrgId::from_bytes([2; 16]),
        "project_id": ProjectId::from_bytes([3; 16]), "name": "a", "state": state, "step": "place",
        "sku_id": SkuId::from_bytes([4; 16]), "sku": "h100", "product": { "kind": "slice", "slots": 1 }, "price_per_hour": { "amount": "2.50", "currency": "USD" },
        "username": "ubuntu", "slots": 0, "release_requested": false, "attempts": 0,
        "requested_by": "local-admin", "created_at": "2027-03-01T08:00:00Z",
    }))
    .expect("an allocation")
}

#[tokio::test]
async fn makers_carry_an_idempotency_key_and_changes_the_version_they_have_seen() {
    let client = client_of(echo()).await;
    let create = OrganizationCreate { name: "lab".to_owned(), ..OrganizationCreate::default() };
    let error = client.organization_create(&create, Some("once")).await.expect_err("a problem");
    assert!(error.to_string().starts_with("POST /api/v1/organizations idem=once match=- "), "{error}");

    let limits = Limits { slots: Some(8), ..Limits::default() };
    let error = client.project_quota_set("proj_x", &limits, Some("\"7\"")).await.expect_err("a problem");
    assert_eq!(error.to_string(), "PUT /api/v1/projects/proj_x/quota idem=- match=\"7\" {\"slots\":8}");

    let error = client.project_delete("proj_x", None).await.expect_err("a problem");
    assert_eq!(error.to_string(), "DELETE /api/v1/projects/proj_x idem=- match=- ");
    assert_eq!(error.code(), "echo");
    assert!(matches!(client.project_delete("p", Some("a\nb")).await, Err(ClientError::BadName { .. })));
}

#[tokio::test]
async fn a_plan_is_a_dry_run_and_a_request_never_is() {
    let client = client_of(echo()).await;
    let mut create: AllocationCreate = serde_json::from_str(r#"{"name":"a","sku":"h100"}"#).expect("parses");
    let error = client.allocation_plan("p", &create).await.expect_err("a problem");
    assert!(error.to_string().contains("\"dry_run\":true"), "{error}");
    create.dry_run = true;
    let error = client.allocation_create("p", &create, None).await.expect_err("a problem");
    assert!(error.to_string().contains("\"dry_run\":false"), "{error}");
}

#[tokio::test]
async fn a_limit_is_told_with_how_long_to_wait() {
    for (header, wait) in [("7", Some(7)), ("99999999999", Some(24 * 3600)), ("tomorrow", None)] {
        let router = Router::new().fallback(any(move || async move {
            let problem = Problem::new(429, "Too Many Requests", "rate_limited", "more than 10 requests in a second.");
            (StatusCode::TOO_MANY_REQUESTS, [(routes::RETRY_AFTER_HEADER, header)], axum::Json(problem))
        }));
        let error = client_of(router).await.whoami().await.expect_err("too many");
        assert_eq!(error.retry_after(), wait.map(Duration::from_secs), "{header}");
        assert_eq!((error.code(), error.kind()), ("rate_limited", ErrorKind::Conflict));
        assert!(error.is_transient());
    }
    // A proxy in between that limits as well, without a problem document.
    let router = Router::new()
        .fallback(any(|| async { (StatusCode::TOO_MANY_REQUESTS, [(routes::RETRY_AFTER_HEADER, "3")], "slow down") }));
    let error = client_of(router).await.whoami().await.expect_err("too many");
    assert_eq!(error.to_string(), "too many requests in a short time; try again in 3 seconds");
}

fn event(name: &str, id: Option<i64>, document: &impl serde::Serialize) -> String {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {name}\ndata: {}\n\n", serde_json::to_string(document).expect("json"))
}

#[tokio::test]
async fn an_allocation_is_watched_until_it_is_what_was_waited_for() {
    for (until, states) in [
        (WatchUntil::Settled, vec!["requested", "active"]),
        (WatchUntil::Over, vec!["requested", "active", "releasing", "released"]),
    ] {
        let handler = |request: Request| async move {
            assert_eq!(request.headers().get("accept").and_then(|v| v.to_str().ok()), Some("text/event-stream"));
            let all = ["requested", "active", "releasing", "released", "failed"];
            let told: String = all.iter().map(|state| event("allocation", None, &allocation(state))).collect();
            told.into_response()
        };
        let client = client_of(Router::new().route(routes::ALLOCATION_WATCH, get(handler))).await;
        let events: Vec<_> = client.allocation_watch("alloc_x", until).map(|event| event.expect("no error")).collect().await;
        let told: Vec<String> = events
            .into_iter()
            .filter_map(|event| match event {
                AllocationWatchEvent::Allocation(allocation) => Some(allocation.state.to_string()),
                AllocationWatchEvent::Progress(_) | AllocationWatchEvent::Reconnecting => None,
            })
            .collect();
        assert_eq!(told, states);
    }
}

#[tokio::test]
async fn events_go_on_where_the_connection_broke() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&asked);
    let handler = move |headers: HeaderMap, request: Request| {
        let last = headers.get(routes::LAST_EVENT_ID_HEADER).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        told.lock().expect("no panic").push(format!("{last} {}", request.uri().query().unwrap_or_default()));
        async move {
            let happened = |position: i64| {
                let document: CloudEvent = serde_json::from_value(serde_json::json!({
                    "specversion": "1.0", "id": EventId::from_bytes([1; 16]), "source": "/gpuaas/x",
                    "type": format!("gpuaas.allocation.n{position}.v1"), "time": "2024-12-31T23:59:59Z",
                }))
                .expect("an event");
                event(routes::EVENT_CLOUD_EVENT, Some(position), &document)
            };
            match last.as_str() {
                // No event yet, but the position is known.
                "-" => "id: 4\n\n".to_owned(),
                "4" => happened(5) + &happened(6),
                _ => happened(7),
            }
        }
    };
    let client = client_of(Router::new().route(routes::PROJECT_EVENTS, get(handler))).await;
    let query = EventsQuery { after: Some(3), kinds: Some("allocation".to_owned()) };
    let heard = client.project_events("proj_x", &query).filter_map(|event| async {
        match event.expect("no error") {
            HeardEvent::Event(event) => Some(event.kind.to_string()),
            HeardEvent::Reconnecting => None,
        }
    });
    let kinds: Vec<String> = heard.take(3).collect().await;
    assert_eq!(kinds, ["gpuaas.allocation.n5.v1", "gpuaas.allocation.n6.v1", "gpuaas.allocation.n7.v1"]);
    let asked = asked.lock().expect("no panic").clone();
    assert_eq!(asked[..3], ["- after=3&kinds=allocation", "4 kinds=allocation", "6 kinds=allocation"]);
}
