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

use super::notify::project_of;
use super::{LATER, News, deliveries};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::transact_knowing;
use crate::{Control, resources};

/// The reader's name in the resources.
const CURSOR: &str = "cursor:webhooks";
/// Events of one read.
const BATCH: u32 = 200;
/// Maximum number of deliveries of one commit, except those of a single event.
const MAX_CREATED: usize = 500;
/// Events without a delivery after which the cursor is written all the same, so that a restart does not read far back.
const MAX_UNWRITTEN: i64 = 1000;
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
    let owned = Arc::clone(control);
    control.background.spawn(async move { dispatch(&owned).await });
    let owned = Arc::clone(control);
    control.background.spawn(async move { deliveries::deliver(&owned).await });
}

async fn dispatch(control: &Control) {
    let mut news = News::of(control, LATER);
    let mut place = None;
    loop {
        match dispatch_batch(control, place.take()).await {
            Ok(batch) => {
                place = Some(batch.place);
                if batch.more {
                    continue;
                }
            }
            // The next batch reads the cursor again.
            Err(error) => tracing::warn!(error = %crate::link::chain(&error), "events for webhooks cannot be read; retrying"),
        }
        if !news.more(control, SLOW_LOOK).await {
            return;
        }
    }
}

/// How far this process has read.
#[derive(Clone, Debug)]
struct Place {
    /// The cursor as it is in the store.
    cursor: Cursor,
    /// No event up to here concerns a webhook, except for those that the cursor has passed.
    read_to: i64,
}

struct Batch {
    /// There may be more events.
    more: bool,
    /// Where the next batch begins.
    place: Place,
}

/// Creates deliveries of the next events.
///
/// The cursor is written together with deliveries, or after [`MAX_UNWRITTEN`] events without any. In between its place is only in memory: a
/// process that starts again reads these events once more, and a process that was overtaken by another one continues at the cursor.
async fn dispatch_batch(control: &Control, place: Option<Place>) -> Result<Batch, ControlError> {
    transact_knowing(control, place, async |known| {
        let (known, read_to) = match known.flatten() {
            Some(place) => (Some(place.cursor), place.read_to),
            None => match resources::get::<Cursor>(control, CURSOR).await? {
                Some(cursor) => (Some(cursor.clone()), cursor.position),
                None => (None, beginning(control).await?),
            },
        };
        let rows = control.store.outbox_list(read_to, BATCH).await?;
        let mut webhooks: HashMap<String, Vec<Webhook>> = HashMap::new();
        let mut decision = Decision::default();
        let mut end = read_to;
        for row in &rows {
            if decision.changes.len() >= MAX_CREATED {
                break;
            }
            end = row.position;
            let Some(project) = project_of(&row.body) else { continue };
            if !webhooks.contains_key(&project) {
                webhooks.insert(project.clone(), of_project(control, &project).await?);
            }
            // A webhook gets only events after its creation.
            let wanting = |webhook: &&Webhook| webhook.wants(&row.kind, &row.subject) && row.created_at >= webhook.created_at;
            for webhook in webhooks.get(&project).into_iter().flatten().filter(wanting) {
                // A webhook belongs to a tenant, whoever created it.
                let Some(body) = Audience::Tenant.event(row.body.clone()) else { continue };
                decision = decision.insert(&delivery(webhook, row, body));
            }
        }
        let more = rows.len() == BATCH as usize || rows.last().is_some_and(|last| last.position > end);
        let created = !decision.changes.is_empty();
        let mut cursor = Cursor { id: CURSOR.to_owned(), version: 0, position: end };
        let decision = match known {
            Some(known) if !created && end.saturating_sub(known.position) < MAX_UNWRITTEN => {
                return Ok((Batch { more, place: Place { cursor: known, read_to: end } }, Decision::default()));
            }
            Some(known) => {
                let decision = decision.update(&Cursor { version: known.version, ..cursor.clone() });
                // The store counts the version up with the write.
                cursor.version = known.version + 1;
                decision
            }
            None => decision.insert(&cursor),
        };
        Ok((Batch { more, place: Place { cursor, read_to: end } }, decision))
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
