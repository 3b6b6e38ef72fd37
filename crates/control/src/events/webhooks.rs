//! Webhooks: creates deliveries from events; [`super::deliveries`] sends them.
//!
//! Deliveries are created in the commit that moves the reader's cursor, so every event becomes exactly one delivery per webhook,
//! even with several readers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_backends::webhook::{Secret, Secrets};
use gpuaas_contract::id::{DeliveryId, ProjectId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Decision;
use gpuaas_domain::webhook::{Cursor, Delivery, DeliveryState, KEPT, Webhook};
use gpuaas_store::{OutboxRow, ResourceFilter};
use tokio::sync::Notify;

use super::notify::project_of;
use super::{News, deliveries};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

/// The reader's name in the resources.
const CURSOR: &str = "cursor:webhooks";
/// Events of one read.
const BATCH: u32 = 200;
/// Maximum number of deliveries of one commit, except those of a single event.
const MAX_MADE: usize = 500;
/// The polling interval, in case wake-ups are lost.
const SLOW_LOOK: Duration = Duration::from_secs(5);

/// Returns the secret of a webhook, derived from a key of the control plane, so that it is not in the database.
pub(crate) fn secret_of(control: &Control, webhook: &Webhook, generation: u32) -> Result<Secret, ControlError> {
    let text = format!("gpuaas-webhook-secret-v1\n{}\n{generation}", webhook.id);
    let mac = control.keys.intent_mac(&text);
    format!("whsec_{mac}")
        .parse()
        .map_err(|error| ControlError::Internal(format!("a webhook's secret cannot be derived: {error}")))
}

/// Returns the secrets that currently sign for a webhook.
pub(super) fn secrets_of(control: &Control, webhook: &Webhook, now: Timestamp) -> Result<Secrets, ControlError> {
    let current = secret_of(control, webhook, webhook.generation)?;
    let previous = webhook.signing(now).get(1).map(|generation| secret_of(control, webhook, *generation)).transpose()?;
    Ok(Secrets { current, previous })
}

/// Starts to create and send deliveries.
pub(crate) fn spawn(control: &Arc<Control>) {
    let made = Arc::new(Notify::new());
    let (owned, tell) = (Arc::clone(control), Arc::clone(&made));
    control.background.spawn(async move { dispatch(&owned, &tell).await });
    let owned = Arc::clone(control);
    control.background.spawn(async move { deliveries::deliver(&owned, &made).await });
}

async fn dispatch(control: &Control, made: &Notify) {
    let mut news = News::of(control);
    loop {
        match dispatch_batch(control).await {
            Ok(batch) => {
                if batch.made {
                    made.notify_one();
                }
                if batch.more {
                    continue;
                }
            }
            Err(error) => tracing::warn!(error = %crate::link::chain(&error), "events for webhooks cannot be read; retrying"),
        }
        if !news.more(control, SLOW_LOOK).await {
            return;
        }
    }
}

struct Batch {
    /// Whether there are new deliveries.
    made: bool,
    /// Whether there may be more events.
    more: bool,
}

/// Creates deliveries for the next events.
async fn dispatch_batch(control: &Control) -> Result<Batch, ControlError> {
    transact(control, || async {
        let known = resources::get::<Cursor>(control, CURSOR).await?;
        let position = match &known {
            Some(cursor) => cursor.position,
            None => beginning(control).await?,
        };
        let rows = control.store.outbox_list(position, BATCH).await?;
        if rows.is_empty() && known.is_some() {
            return Ok((Batch { made: false, more: false }, Decision::default()));
        }
        let mut webhooks: HashMap<String, Vec<Webhook>> = HashMap::new();
        let mut decision = Decision::default();
        let mut end = position;
        for row in &rows {
            if decision.changes.len() >= MAX_MADE {
                break;
            }
            end = row.position;
            let Some(project) = project_of(&row.body) else { continue };
            if !webhooks.contains_key(&project) {
                webhooks.insert(project.clone(), of_project(control, &project).await?);
            }
            // A webhook gets only events after its creation.
            let wanting = |webhook: &&Webhook| webhook.wants(&row.kind) && row.created_at >= webhook.created_at;
            for webhook in webhooks.get(&project).into_iter().flatten().filter(wanting) {
                // A webhook belongs to a tenant, whoever created it.
                let Some(body) = Audience::Tenant.event(row.body.clone()) else { continue };
                decision = decision.insert(&delivery(webhook, row, body));
            }
        }
        let more = rows.len() == BATCH as usize || rows.last().is_some_and(|last| last.position > end);
        let made = !decision.changes.is_empty();
        let cursor = Cursor { id: CURSOR.to_owned(), version: known.as_ref().map_or(0, |known| known.version), position: end };
        let decision = if known.is_some() { decision.update(&cursor) } else { decision.insert(&cursor) };
        Ok((Batch { made, more }, decision))
    })
    .await
}

/// Returns where the first reader starts: at the end, unless there are webhooks that have waited for it.
async fn beginning(control: &Control) -> Result<i64, ControlError> {
    // Before the webhooks: the events of a webhook that is created later are after this end.
    let end = control.store.outbox_end().await?;
    let filter = ResourceFilter { states: vec!["active"], ..ResourceFilter::default() };
    let waiting: Vec<Webhook> = resources::list(control, &filter, None, false, 1).await?;
    Ok(if waiting.is_empty() { end } else { 0 })
}

async fn of_project(control: &Control, project: &str) -> Result<Vec<Webhook>, ControlError> {
    if project.parse::<ProjectId>().is_err() {
        return Ok(Vec::new());
    }
    let filter = ResourceFilter { parent: Some(project.to_owned()), states: vec!["active"], ..ResourceFilter::default() };
    resources::all(control, &filter).await
}

fn delivery(webhook: &Webhook, row: &OutboxRow, body: String) -> Delivery {
    let now = Timestamp::now();
    Delivery {
        id: DeliveryId::generate(),
        version: 0,
        webhook_id: webhook.id,
        event_id: row.id,
        kind: row.kind.clone(),
        body,
        state: DeliveryState::Pending,
        attempts: 0,
        last: String::new(),
        due_at: Some(now),
        created_at: now,
        delivered_at: None,
        expires_at: now.plus(KEPT),
    }
}
