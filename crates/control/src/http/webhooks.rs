//! Webhooks of projects, and their deliveries.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use gpuaas_api::dto::{self, DeliveryListQuery, Page, PageQuery, WebhookChange, WebhookChanged, WebhookCreate, WebhookCreated};
use gpuaas_api::routes;
use gpuaas_backends::webhook::check_target;
use gpuaas_contract::event::EventKind;
use gpuaas_contract::id::{DeliveryId, WebhookId};
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{Action, Verdict};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::webhook::{self, Delivery, Webhook};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, etag_of, if_match, page, page_limit, parse_id};
use crate::error::ControlError;
use crate::events::webhooks::secret_of;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

fn live(project: &str) -> ResourceFilter {
    ResourceFilter { parent: Some(project.to_owned()), states: vec!["active", "disabled"], ..ResourceFilter::default() }
}

async fn get(control: &Control, id: &str) -> Result<Webhook, ControlError> {
    let id: WebhookId = parse_id(id)?;
    let unknown = || Refusal::not_found("webhook_unknown", format!("there is no webhook {id}"));
    let found = resources::get::<Webhook>(control, id).await?.filter(|webhook| webhook.deleted_at.is_none());
    Ok(found.ok_or_else(unknown)?)
}

/// What an address may be, as far as it can be told without looking its name up: that is done at every delivery.
fn check_url(control: &Control, url: &str) -> Result<(), ControlError> {
    // A name stands for some public address here.
    match check_target(url, &[std::net::IpAddr::from([1, 1, 1, 1])], control.webhooks_to_private) {
        Ok(_) => Ok(()),
        Err(error) => Err(Refusal::invalid("url_invalid", error.to_string()).into()),
    }
}

/// A kind that nobody records would never be delivered, and its owner would wait for it.
fn check_kinds(kinds: &[String]) -> Result<(), ControlError> {
    let is_known = |kind: &str| EventKind::ALL.iter().any(|known| webhook::wants(&[kind.to_owned()], known.as_str()));
    match kinds.iter().find(|kind| !is_known(kind)) {
        None => Ok(()),
        Some(unknown) => {
            let message = format!(
                "there is no kind of event `{unknown}`; see docs/events.md, or take `allocation` for all about allocations"
            );
            Err(Refusal::invalid("kind_unknown", message).in_body("/kinds").into())
        }
    }
}

/// Events go where a webhook says: whoever may not read them cannot have them sent.
fn check_reads(control: &Control, caller: &Caller) -> Result<(), ControlError> {
    match control.authz.policies.may(&caller.principal, Action::EventRead, &caller.scope) {
        Verdict::Allowed => Ok(()),
        Verdict::Denied { why } => {
            let message = format!("a webhook is sent events, and you may not read them: {why}");
            Err(Refusal::forbidden("webhook_exceeds_own", message).into())
        }
    }
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Webhook>>, Rejected> {
    let project = caller.project()?;
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<WebhookId>(after)?;
    }
    let filter = live(&project.id.to_string());
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |webhook: &Webhook| webhook.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<WebhookCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<WebhookCreated>), Rejected> {
    let project = caller.project()?;
    check_url(&control, &wanted.url)?;
    check_kinds(&wanted.kinds)?;
    check_reads(&control, &caller)?;
    let context = caller.context();
    let webhook = Webhook {
        id: WebhookId::generate(),
        version: 0,
        project_id: project.id,
        url: wanted.url,
        description: wanted.description,
        kinds: wanted.kinds,
        generation: 1,
        rotated_at: None,
        failed: 0,
        disabled: None,
        created_at: context.now,
        deleted_at: None,
    };
    let made = transact(&control, || async {
        let present = control.store.resource_count(ResourceKind::Webhook, &live(&project.id.to_string())).await?;
        Ok(webhook::create(webhook.clone(), &project, present, &context)?)
    })
    .await?;
    let secret = secret_of(&control, &made, made.generation)?.expose().to_string();
    let location = Location::of(routes::WEBHOOK, [&made.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(WebhookCreated { webhook: to_dto(made), secret })))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Tagged<dto::Webhook>, Rejected> {
    let webhook = get(&control, &id).await?;
    Ok(Tagged(etag_of(webhook.version), to_dto(webhook)))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<WebhookChange>,
) -> Result<Tagged<WebhookChanged>, Rejected> {
    if let Some(url) = &wanted.url {
        check_url(&control, url)?;
    }
    check_kinds(wanted.kinds.as_deref().unwrap_or_default())?;
    if wanted.url.is_some() || wanted.kinds.is_some() {
        check_reads(&control, &caller)?;
    }
    let context = caller.context();
    transact(&control, || async {
        let before = get(&control, &id).await?;
        if_match(&headers, &etag_of(before.version))?;
        let disabled = match wanted.enabled {
            Some(true) => None,
            Some(false) => Some(before.disabled.clone().unwrap_or_else(|| "turned off by its owner".to_owned())),
            None => before.disabled.clone(),
        };
        let after = Webhook {
            url: wanted.url.clone().unwrap_or_else(|| before.url.clone()),
            description: wanted.description.clone().unwrap_or_else(|| before.description.clone()),
            kinds: wanted.kinds.clone().unwrap_or_else(|| before.kinds.clone()),
            generation: before.generation.saturating_add(u32::from(wanted.rotate_secret)),
            rotated_at: if wanted.rotate_secret { Some(context.now) } else { before.rotated_at },
            failed: if disabled.is_none() && before.disabled.is_some() { 0 } else { before.failed },
            disabled,
            ..before.clone()
        };
        Ok(webhook::change(&before, after, &context)?)
    })
    .await?;
    let now = get(&control, &id).await?;
    let secret = match wanted.rotate_secret {
        true => Some(secret_of(&control, &now, now.generation)?.expose().to_string()),
        false => None,
    };
    Ok(Tagged(etag_of(now.version), WebhookChanged { webhook: to_dto(now), secret }))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
) -> Result<Json<dto::Webhook>, Rejected> {
    let context = caller.context();
    let gone = transact(&control, || async {
        let before = get(&control, &id).await?;
        if_match(&headers, &etag_of(before.version))?;
        let after = Webhook { deleted_at: Some(context.now), ..before.clone() };
        Ok(webhook::change(&before, after, &context)?)
    })
    .await?;
    Ok(Json(to_dto(gone)))
}

pub(super) async fn deliveries(
    State(control): Shared,
    Segments(id): Segments<String>,
    Params(query): Params<DeliveryListQuery>,
) -> Result<Json<Page<dto::Delivery>>, Rejected> {
    let webhook = get(&control, &id).await?;
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<DeliveryId>(after)?;
    }
    let states = query.state.map(|state| state.as_str()).into_iter().collect();
    let filter = ResourceFilter { parent: Some(webhook.id.to_string()), states, ..ResourceFilter::default() };
    let found = resources::list(&control, &filter, query.after.as_deref(), true, limit.saturating_add(1)).await?;
    let found = page(found, limit, |delivery: &Delivery| delivery.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(delivery_shown).collect(), next: found.next }))
}

pub(super) async fn replay(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::Delivery>, Rejected> {
    let id: DeliveryId = parse_id(&id)?;
    let context = caller.context();
    let unknown = || Refusal::not_found("delivery_unknown", format!("there is no delivery {id}; they are kept for a week"));
    let next = transact(&control, || async {
        let delivery = resources::get::<Delivery>(&control, id).await?.ok_or_else(unknown)?;
        let of = resources::get::<Webhook>(&control, delivery.webhook_id).await?.ok_or_else(unknown)?;
        Ok(webhook::replay(&delivery, of.project_id, &context))
    })
    .await?;
    Ok(Json(delivery_shown(next)))
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

fn delivery_shown(delivery: Delivery) -> dto::Delivery {
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
