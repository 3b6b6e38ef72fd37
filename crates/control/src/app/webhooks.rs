//! Webhooks of projects, and their deliveries.

use gpuaas_api::dto::{Page, WebhookChange, WebhookCreate};
use gpuaas_backends::webhook::check_target;
use gpuaas_contract::event::EventKind;
use gpuaas_contract::id::{DeliveryId, EventId, ProjectId, WebhookId};
use gpuaas_contract::state::DeliveryState;
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{Action, Verdict};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::Project;
use gpuaas_domain::webhook::{self, Delivery, Webhook};
use gpuaas_store::ResourceFilter;

use super::{Caller, IfMatch, PageRequest, list_resources};
use crate::error::ControlError;
use crate::events::webhooks::secret_of;
use crate::{Control, resources};

/// A webhook, and its secret if there is a new one: it is told once.
pub(crate) struct WebhookWithSecret {
    /// The webhook.
    pub(crate) webhook: Webhook,
    /// What its deliveries are signed with.
    pub(crate) secret: Option<String>,
}

fn of_project(project: ProjectId) -> ResourceFilter {
    ResourceFilter { parent: Some(project.to_string()), states: vec!["active", "disabled"], ..ResourceFilter::default() }
}

/// The webhook with this id.
pub(crate) async fn get(control: &Control, id: WebhookId) -> Result<Webhook, ControlError> {
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

/// Lists the webhooks of a project.
pub(crate) async fn list(
    control: &Control,
    project: ProjectId,
    page: &PageRequest<WebhookId>,
) -> Result<Page<Webhook>, ControlError> {
    list_resources(control, &of_project(project), page, false).await
}

/// Creates a webhook.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    project: &Project,
    wanted: WebhookCreate,
) -> Result<WebhookWithSecret, ControlError> {
    check_url(control, &wanted.url)?;
    check_kinds(&wanted.kinds)?;
    check_reads(control, caller)?;
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
        tested_at: None,
        created_at: context.now,
        deleted_at: None,
    };
    let attempt = || async {
        let present = control.store.resource_count(ResourceKind::Webhook, &of_project(project.id)).await?;
        Ok(webhook::create(webhook.clone(), project, present, &context)?)
    };
    let made = caller.transact(control, attempt).await?;
    let secret = secret_of(control, &made, made.generation)?.expose().to_string();
    Ok(WebhookWithSecret { webhook: made, secret: Some(secret) })
}

/// Changes a webhook; with a new secret if asked for.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    id: WebhookId,
    wanted: &WebhookChange,
    if_match: &IfMatch,
) -> Result<WebhookWithSecret, ControlError> {
    if let Some(url) = &wanted.url {
        check_url(control, url)?;
    }
    check_kinds(wanted.kinds.as_deref().unwrap_or_default())?;
    if wanted.url.is_some() || wanted.kinds.is_some() {
        check_reads(control, caller)?;
    }
    let context = caller.context();
    let attempt = || async {
        let before = get(control, id).await?;
        if_match.check(before.version)?;
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
    };
    caller.transact(control, attempt).await?;
    let now = get(control, id).await?;
    let secret = match wanted.rotate_secret {
        true => Some(secret_of(control, &now, now.generation)?.expose().to_string()),
        false => None,
    };
    Ok(WebhookWithSecret { webhook: now, secret })
}

/// Deletes a webhook.
pub(crate) async fn delete(
    control: &Control,
    caller: &Caller,
    id: WebhookId,
    if_match: &IfMatch,
) -> Result<Webhook, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let before = get(control, id).await?;
        if_match.check(before.version)?;
        let after = Webhook { deleted_at: Some(context.now), ..before.clone() };
        Ok(webhook::change(&before, after, &context)?)
    };
    caller.transact(control, attempt).await
}

/// Lists the deliveries of a webhook, the newest first.
pub(crate) async fn deliveries(
    control: &Control,
    id: WebhookId,
    state: Option<DeliveryState>,
    page: &PageRequest<DeliveryId>,
) -> Result<Page<Delivery>, ControlError> {
    let webhook = get(control, id).await?;
    let states = state.map(|state| state.as_str()).into_iter().collect();
    let filter = ResourceFilter { parent: Some(webhook.id.to_string()), states, ..ResourceFilter::default() };
    list_resources(control, &filter, page, true).await
}

/// Sends a webhook a test event. Returns the id of the event.
pub(crate) async fn test(control: &Control, caller: &Caller, id: WebhookId) -> Result<EventId, ControlError> {
    let context = caller.context();
    let attempt = || async { Ok(webhook::test(&get(control, id).await?, &context)?) };
    caller.transact(control, attempt).await
}

/// Sends a delivery again.
pub(crate) async fn replay(control: &Control, caller: &Caller, id: DeliveryId) -> Result<Delivery, ControlError> {
    let context = caller.context();
    let unknown = || Refusal::not_found("delivery_unknown", format!("there is no delivery {id}; they are kept for a week"));
    let attempt = || async {
        let delivery = resources::get::<Delivery>(control, id).await?.ok_or_else(unknown)?;
        let of = resources::get::<Webhook>(control, delivery.webhook_id).await?.ok_or_else(unknown)?;
        Ok(webhook::replay(&delivery, of.project_id, &context))
    };
    caller.transact(control, attempt).await
}
