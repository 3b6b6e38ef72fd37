//! `gpuaas webhook test`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::{get, post};
use axum::{Json, Router};
use gpuaas_api::dto::{Delivery, Page, WebhookTest};
use gpuaas_api::routes;
use gpuaas_contract::id::{DeliveryId, EventId, WebhookId};
use gpuaas_contract::time::Timestamp;

use crate::program::{Ran, gpuaas_with};
use crate::server::{TOKEN, open, problem, serve};

fn delivery(event: u8, state: &str, last: &str) -> Delivery {
    Delivery {
        id: DeliveryId::from_bytes([event; 16]),
        webhook_id: WebhookId::from_bytes([7; 16]),
        event_id: EventId::from_bytes([event; 16]),
        kind: "gpuaas.webhook.test.v1".to_owned(),
        state: open(state),
        attempts: u32::from(!last.is_empty()),
        last: last.to_owned(),
        due_at: None,
        created_at: Timestamp(1_000_000),
        delivered_at: (state == "delivered").then_some(Timestamp(1_042_000)),
        expires_at: Timestamp(9_000_000),
    }
}

/// Tests a webhook whose delivery ends like this, which the second poll shows.
async fn test_of(state: &'static str, last: &'static str) -> Ran {
    let looks = Arc::new(AtomicUsize::new(0));
    let deliveries = move || {
        let look = looks.fetch_add(1, Ordering::SeqCst);
        async move {
            let own = if look == 0 { delivery(9, "pending", "") } else { delivery(9, state, last) };
            Json(Page::whole(vec![own, delivery(3, "failed", "an older one")]))
        }
    };
    let test =
        || async { Json(WebhookTest { webhook_id: WebhookId::from_bytes([7; 16]), event_id: EventId::from_bytes([9; 16]) }) };
    let router = Router::new().route(routes::WEBHOOK_TEST, post(test)).route(routes::WEBHOOK_DELIVERIES, get(deliveries));
    let url = serve(router).await;
    let webhook = WebhookId::from_bytes([7; 16]).to_string();
    gpuaas_with(&["webhook", "test", &webhook], &[("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN)]).await
}

#[tokio::test]
async fn a_test_shows_what_the_address_answered() {
    let taken = test_of("delivered", "200 OK").await;
    assert_eq!(taken.code, 0, "{taken:?}");
    assert!(taken.stdout.contains("200 OK") && taken.stdout.contains("42ms"), "{taken:?}");
    let failed = test_of("pending", "the receiver answered 500 Internal Server Error").await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stdout.contains("answered 500") && failed.stderr.contains("retried"), "{failed:?}");
}

#[tokio::test]
async fn a_webhook_that_is_off_says_how_to_turn_it_on() {
    let off = || async { problem(409, "webhook_off", "the webhook is off") };
    let url = serve(Router::new().route(routes::WEBHOOK_TEST, post(off))).await;
    let webhook = WebhookId::from_bytes([7; 16]).to_string();
    let ran = gpuaas_with(&["webhook", "test", &webhook], &[("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN)]).await;
    assert!(ran.code == 4 && ran.stderr.contains("--enable"), "{ran:?}");
}
