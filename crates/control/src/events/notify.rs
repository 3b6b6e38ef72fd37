//! Telling whoever is looking: events go from the outbox to the fan-out, on a channel per project and one for everything.
//!
//! Without Redis every process that serves browsers reads the outbox for itself; with Redis the processes with the role `notify` do it for
//! all. Listeners know the position of what they have seen, so hearing something twice does no harm, and who missed something reads it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_store::OutboxRow;

use super::News;
use crate::Control;

/// Events read at once.
const BATCH: u32 = 500;
/// Stands behind the wakeups.
const SLOW_LOOK: Duration = Duration::from_secs(5);
/// The channel of everything.
pub(crate) const ALL: &str = "events/all";

/// The channel of a project.
pub(crate) fn channel_of(project: &str) -> String {
    format!("events/{project}")
}

/// An event as it goes to listeners: its position, a line break, the document.
pub(crate) fn packed(row: &OutboxRow) -> Bytes {
    Bytes::from(format!("{}\n{}", row.position, row.body))
}

/// Takes it apart again.
pub(crate) fn unpacked(body: &[u8]) -> Option<(i64, &str)> {
    let (position, document) = std::str::from_utf8(body).ok()?.split_once('\n')?;
    Some((position.parse().ok()?, document))
}

/// The project that an event concerns.
pub(crate) fn project_of(body: &str) -> Option<String> {
    let event: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(event.get("data")?.get("project_id")?.as_str()?.to_owned())
}

/// Starts to tell.
pub(crate) fn spawn(control: &Arc<Control>) {
    let owned = Arc::clone(control);
    control.background.spawn(async move {
        let control = owned;
        let mut news = News::of(&control);
        // What happened before is read by those who ask for it.
        let mut position = loop {
            match control.store.outbox_end().await {
                Ok(end) => break end,
                Err(error) => {
                    tracing::warn!(%error, "the end of the outbox cannot be read; trying again");
                    if !news.more(&control, SLOW_LOOK).await {
                        return;
                    }
                }
            }
        };
        loop {
            match control.store.outbox_list(position, BATCH).await {
                Ok(rows) => {
                    for row in &rows {
                        tell(&control, row).await;
                        position = row.position;
                    }
                    let all = rows.len() < usize::try_from(BATCH).unwrap_or(usize::MAX);
                    if all && !news.more(&control, SLOW_LOOK).await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "the outbox cannot be read; trying again");
                    if !news.more(&control, SLOW_LOOK).await {
                        return;
                    }
                }
            }
        }
    });
}

async fn tell(control: &Control, row: &OutboxRow) {
    let body = packed(row);
    let project = project_of(&row.body).map(|project| channel_of(&project));
    for channel in [Some(ALL.to_owned()), project].into_iter().flatten() {
        // Whoever listens reads the outbox for what is too large, or lost.
        if let Err(error) = control.backends.fanout.publish(&channel, body.clone()).await {
            tracing::debug!(%error, channel, "a notification was not sent");
        }
    }
}
