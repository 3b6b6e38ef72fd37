//! Wake-ups: by broadcast within the process, by PostgreSQL's NOTIFY between processes.
//!
//! Wake-ups may be lost. Anything that waits for one also polls slowly.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::ServerId;
use gpuaas_domain::Wakeup;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::readers::Readers;

/// How many wake-ups a receiver may be behind before it loses the oldest.
pub(crate) const BROADCAST_CAPACITY: usize = 8192;
/// Maximum number of wake-ups without a commit that wait to be sent to other processes. More are dropped.
const NOTIFY_QUEUE: usize = 1024;
/// PostgreSQL accepts payloads below 8000 bytes.
const MAX_PAYLOAD: usize = 7900;
/// Longest text of a progress wake-up that is sent to other processes.
const MAX_PROGRESS_TEXT: usize = 1000;
/// The shortest time between two messages with wake-ups without a commit.
const GATHER: Duration = Duration::from_millis(50);
const CHANNEL: &str = "gpuaas_hint";

/// Returns a query that sends the payloads in this array. Inside a transaction, PostgreSQL sends them at the commit.
pub(crate) fn notify(payloads: &str) -> String {
    format!("SELECT count(pg_notify('{CHANNEL}', payload)::text) FROM UNNEST({payloads}) AS payload")
}

/// The message between processes.
#[derive(serde::Serialize, serde::Deserialize)]
struct Payload<H> {
    /// The sender, so that it can skip its own messages.
    from: ServerId,
    wakeups: Vec<H>,
}

/// Packs wake-ups into as few payloads as possible. A wake-up that is too large for a payload is left out.
pub(crate) fn payloads<'a>(from: ServerId, wakeups: impl IntoIterator<Item = &'a Wakeup>) -> Vec<String> {
    let envelope = serde_json::to_string(&Payload::<Wakeup> { from, wakeups: Vec::new() }).unwrap_or_default();
    let mut packed: Vec<(usize, Vec<Box<serde_json::value::RawValue>>)> = Vec::new();
    for wakeup in wakeups {
        let Ok(raw) = serde_json::value::to_raw_value(&shortened(wakeup)) else { continue };
        let size = raw.get().len() + 1;
        if envelope.len() + size > MAX_PAYLOAD {
            continue;
        }
        match packed.last_mut() {
            Some((used, raws)) if *used + size <= MAX_PAYLOAD => {
                *used += size;
                raws.push(raw);
            }
            _ => packed.push((envelope.len() + size, vec![raw])),
        }
    }
    packed.into_iter().filter_map(|(_, wakeups)| serde_json::to_string(&Payload { from, wakeups }).ok()).collect()
}

fn shortened(wakeup: &Wakeup) -> Wakeup {
    let cut = |text: &str| text[..text.floor_char_boundary(MAX_PROGRESS_TEXT)].to_owned();
    match wakeup {
        Wakeup::Progress { task_id, phase, message, at } => {
            Wakeup::Progress { task_id: *task_id, phase: cut(phase), message: cut(message), at: *at }
        }
        Wakeup::NodeWork(_)
        | Wakeup::NodeAccess(_)
        | Wakeup::Task(_)
        | Wakeup::Allocation(_)
        | Wakeup::AllocationAdvanced(_)
        | Wakeup::Fleet(_)
        | Wakeup::Outbox
        | Wakeup::Link(_)
        | Wakeup::Rights => wakeup.clone(),
    }
}

/// Starts to receive the wake-ups of other processes. Returns once it is listening.
pub(crate) async fn spawn_listener(
    options: &PgConnectOptions,
    process: ServerId,
    local: broadcast::Sender<Wakeup>,
) -> Result<JoinHandle<()>, StoreError> {
    let doing = || StoreError::doing("listen for notifications");
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await.map_err(doing())?;
    let mut listener = PgListener::connect_with(&pool).await.map_err(doing())?;
    listener.listen(CHANNEL).await.map_err(doing())?;
    Ok(tokio::spawn(async move {
        loop {
            match listener.recv().await {
                Ok(notification) => {
                    for wakeup in received(notification.payload(), process) {
                        // An error means that there is no receiver, which is fine.
                        let _ = local.send(wakeup);
                    }
                }
                // The listener reconnects with the next call. What was sent in between is found by polling.
                Err(error) => {
                    tracing::warn!(%error, "lost the connection for wake-ups of other servers; their work is found by slow polling");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }))
}

/// Returns the wake-ups of a message, unless it is from this process itself. Wake-ups that only another version knows are left out.
fn received(payload: &str, process: ServerId) -> Vec<Wakeup> {
    match serde_json::from_str::<Payload<&serde_json::value::RawValue>>(payload) {
        Ok(payload) if payload.from == process => Vec::new(),
        Ok(payload) => payload.wakeups.iter().filter_map(|raw| serde_json::from_str(raw.get()).ok()).collect(),
        Err(error) => {
            tracing::debug!(%error, "ignored a notification of another version");
            Vec::new()
        }
    }
}

async fn send(readers: &Readers<PgConnection>, payloads: Vec<String>) -> Result<(), sqlx::Error> {
    let mut reading = readers.acquire().await?;
    sqlx::query(AssertSqlSafe(notify("$1::text[]"))).bind(payloads).execute(&mut reading.connection).await?;
    reading.done();
    Ok(())
}

/// Starts to send wake-ups without a commit to other processes.
pub(crate) fn spawn_notifier(readers: Arc<Readers<PgConnection>>, process: ServerId) -> (mpsc::Sender<Wakeup>, JoinHandle<()>) {
    let (sender, mut receiver) = mpsc::channel(NOTIFY_QUEUE);
    let task = tokio::spawn(async move {
        let mut wakeups: Vec<Wakeup> = Vec::new();
        while receiver.recv_many(&mut wakeups, NOTIFY_QUEUE).await > 0 {
            if let Err(error) = send(&readers, payloads(process, &wakeups)).await {
                tracing::debug!(%error, "wake-ups were not sent to other servers");
            }
            wakeups.clear();
            // A task enters several phases within milliseconds; these share a message.
            tokio::time::sleep(GATHER).await;
        }
    });
    (sender, task)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuaas_contract::id::{NodeId, TaskId};
    use gpuaas_contract::time::Timestamp;

    #[test]
    fn payloads_stay_below_the_limit_and_lose_nothing_that_fits() {
        let from = ServerId::generate();
        let wakeups: Vec<Wakeup> = (0..1000).map(|_| Wakeup::NodeWork(NodeId::generate())).collect();
        let packed = payloads(from, &wakeups);
        assert!(packed.len() > 1 && packed.iter().all(|payload| payload.len() < 8000));
        let read = packed.iter().flat_map(|payload| {
            let payload: Payload<Wakeup> = serde_json::from_str(payload).expect("JSON");
            assert_eq!(payload.from, from);
            payload.wakeups
        });
        assert_eq!(read.collect::<Vec<_>>(), wakeups);
    }

    #[test]
    fn a_wakeup_of_another_version_does_not_hide_the_others() {
        let (from, here) = (ServerId::generate(), ServerId::generate());
        let known = Wakeup::NodeWork(NodeId::generate());
        let raw = serde_json::to_string(&known).expect("JSON");
        let payload = format!(r#"{{"from":"{from}","wakeups":[{{"of_a_later_version":1}},"so_is_this",{raw}]}}"#);
        assert_eq!(received(&payload, here), [known]);
        assert_eq!(received(&payload, from), []);
        assert_eq!(received("of another version", here), []);
    }

    #[test]
    fn a_huge_progress_text_is_cut_even_if_every_byte_needs_escaping() {
        let huge = "\u{1}ä".repeat(100_000);
        let wakeup = Wakeup::Progress { task_id: TaskId::generate(), phase: huge.clone(), message: huge, at: Timestamp(1) };
        let packed = payloads(ServerId::generate(), [&wakeup, &Wakeup::Task(TaskId::generate())]);
        assert!(packed.iter().all(|payload| payload.len() < 8000));
        assert!(packed.last().expect("the small wakeup is sent").contains("task"));
    }
}
