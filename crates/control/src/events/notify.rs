//! Notifies listeners: events go from the outbox to the fan-out, on a channel per project and one for everything.
//!
//! Without Redis every process that serves browsers reads the outbox itself; with Redis the processes with the role `notify` do
//! it for all. Listeners know the position of the events they have seen, so a repeated event is harmless, and a listener that
//! missed something reads it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_store::{OutboxRow, StoreError};
use tokio::time::Instant;

use super::{News, SOON};
use crate::Control;

/// Events of one read.
const BATCH: u32 = 500;
/// The polling interval, in case wake-ups are lost.
const SLOW_LOOK: Duration = Duration::from_secs(5);
/// The channel for all events.
pub(crate) const ALL: &str = "events/all";

/// Returns the channel of a project.
pub(crate) fn channel_of(project: &str) -> String {
    format!("events/{project}")
}

/// Returns an event for listeners: its position, a line break, the document.
pub(crate) fn packed(row: &OutboxRow) -> Bytes {
    Bytes::from(format!("{}\n{}", row.position, row.body))
}

/// Parses an event for listeners.
pub(crate) fn unpacked(body: &[u8]) -> Option<(i64, &str)> {
    let (position, document) = std::str::from_utf8(body).ok()?.split_once('\n')?;
    Some((position.parse().ok()?, document))
}

/// Returns the project that an event concerns.
pub(crate) fn project_of(body: &str) -> Option<String> {
    let event: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(event.get("data")?.get("project_id")?.as_str()?.to_owned())
}

/// Starts to notify.
pub(crate) fn spawn(control: &Arc<Control>) {
    let owned = Arc::clone(control);
    control.background.spawn(async move { notify(&owned).await });
}

async fn notify(control: &Control) {
    let mut news = News::of(control, SOON);
    // The events up to here are sent, or nobody listened. `None` before the first read: clients read earlier events themselves.
    let mut position = None;
    loop {
        match next_events(control, position).await {
            Ok((end, more)) => {
                position = Some(end);
                if more {
                    continue;
                }
            }
            Err(error) => tracing::warn!(%error, "the outbox cannot be read; retrying"),
        }
        let looked = Instant::now();
        loop {
            if !news.more(control, SLOW_LOOK).await {
                return;
            }
            // Who subscribes after a wake-up reads its events from the store. Without listeners, only the position is kept up.
            if control.backends.fanout.may_have_listeners() || looked.elapsed() >= SLOW_LOOK {
                break;
            }
        }
    }
}

/// Sends the next events. Returns the position of the last one and whether there may be more.
async fn next_events(control: &Control, position: Option<i64>) -> Result<(i64, bool), StoreError> {
    let (store, fanout) = (&control.store, &control.backends.fanout);
    let position = match position {
        Some(position) if fanout.may_have_listeners() => position,
        known => {
            let end = store.outbox_end().await?;
            match known {
                // Someone has subscribed in the meantime, and may have read the store before the last events.
                Some(position) if fanout.may_have_listeners() => position,
                Some(_) | None => return Ok((end, false)),
            }
        }
    };
    let rows = store.outbox_list(position, BATCH).await?;
    for row in &rows {
        tell(control, row).await;
    }
    let more = rows.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX);
    Ok((rows.last().map_or(position, |row| row.position), more))
}

async fn tell(control: &Control, row: &OutboxRow) {
    let body = packed(row);
    let project = project_of(&row.body).map(|project| channel_of(&project));
    for channel in [Some(ALL.to_owned()), project].into_iter().flatten() {
        // Listeners read the outbox for events that are too large, or lost.
        if let Err(error) = control.backends.fanout.publish(&channel, body.clone()).await {
            tracing::debug!(%error, channel, "a notification was not sent");
        }
    }
}
