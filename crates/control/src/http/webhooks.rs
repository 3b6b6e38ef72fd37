//! Webhooks of projects, and their deliveries.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, DeliveryListQuery, Page, PageQuery, WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated, WebhookTest,
};
use gpuaas_api::routes;
use gpuaas_contract::id::{DeliveryId, WebhookId};
use gpuaas_domain::webhook::{Delivery, Webhook};

use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, page_request};
use crate::Control;
use crate::app::webhooks::{self, WebhookWithSecret};
use crate::app::{Caller, IfMatch, etag_of};

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Webhook>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = webhooks::list(&control, caller.project()?.id, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<WebhookCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<WebhookCreated>), Rejected> {
    let WebhookWithSecret { webhook, secret } = webhooks::create(&control, &caller, &caller.project()?, wanted).await?;
    let location = Location::of(routes::WEBHOOK, [&webhook.id]);
    let document = WebhookCreated { webhook: to_dto(webhook), secret: secret.unwrap_or_default() };
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(document)))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<WebhookId>) -> Result<Tagged<dto::Webhook>, Rejected> {
    let webhook = webhooks::get(&control, id).await?;
    Ok(Tagged(etag_of(webhook.version), to_dto(webhook)))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    Segments(id): Segments<WebhookId>,
    JsonBody(wanted): JsonBody<WebhookChange>,
) -> Result<Tagged<WebhookChanged>, Rejected> {
    let WebhookWithSecret { webhook, secret } = webhooks::change(&control, &caller, id, &wanted, &if_match).await?;
    Ok(Tagged(etag_of(webhook.version), WebhookChanged { webhook: to_dto(webhook), secret }))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    Segments(id): Segments<WebhookId>,
) -> Result<Json<dto::Webhook>, Rejected> {
    Ok(Json(to_dto(webhooks::delete(&control, &caller, id, &if_match).await?)))
}

pub(super) async fn deliveries(
    State(control): Shared,
    Segments(id): Segments<WebhookId>,
    Params(query): Params<DeliveryListQuery>,
) -> Result<Json<Page<dto::Delivery>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = webhooks::deliveries(&control, id, query.state, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(delivery_to_dto).collect(), next: found.next }))
}

pub(super) async fn replay(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<DeliveryId>,
) -> Result<Json<dto::Delivery>, Rejected> {
    Ok(Json(delivery_to_dto(webhooks::replay(&control, &caller, id).await?)))
}

pub(super) async fn test(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<WebhookId>,
) -> Result<Json<WebhookTest>, Rejected> {
    let event_id = webhooks::test(&control, &caller, id).await?;
    Ok(Json(WebhookTest { webhook_id: id, event_id }))
}

fn to_dto(webhook: Webhook) -> dto::Webhook {
    dto::Webhook {
        id: webhook.id,
        project_id: webhook.project_id,
        etag: etag_of(webhook.version),
        enabled: webhook.disabled.is_none(),
        url: webhook.url,
        description: webhook.description,
        kinds: webhook.kinds,
        disabled_reason: webhook.disabled,
        failed: webhook.failed,
        created_at: webhook.created_at,
        deleted_at: webhook.deleted_at,
    }
}

fn delivery_to_dto(delivery: Delivery) -> dto::Delivery {
    dto::Delivery {
        id: delivery.id,
        webhook_id: delivery.webhook_id,
        event_id: delivery.event_id,
        kind: delivery.kind,
        state: delivery.state.into(),
        attempts: delivery.attempts,
        last: delivery.last,
        due_at: delivery.due_at,
        created_at: delivery.created_at,
        delivered_at: delivery.delivered_at,
        expires_at: delivery.expires_at,
    }
}
