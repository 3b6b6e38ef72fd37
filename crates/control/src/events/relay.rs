//! The relay: reads events from the outbox, some lanes at a time, publishes them to the bus and marks those that are confirmed as
//! stored.
//!
//! It keeps nothing in memory. If it is killed between publishing and marking, it publishes again; consumers deduplicate by the
//! event's id.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_backends::bus::Envelope;
use gpuaas_contract::time::Timestamp;
use gpuaas_store::{OUTBOX_LANES, OutboxRow};

use super::{News, SOON};
use crate::Control;
use crate::error::ControlError;

/// Maximum number of events of one batch.
const BATCH: u32 = 1000;
/// Shares of the lanes that are published concurrently: while one is sent, another is read or marked. The store has two
/// connections for it.
const SHARES: usize = 2;
/// Below this number of events there is only one share.
const FEW: u32 = 200;
/// Batches of a share before the pending lanes are queried again.
const BATCHES: usize = 16;
/// The polling interval, in case wake-ups are lost, and for what another relay left.
const SLOW_LOOK: Duration = Duration::from_secs(5);
/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// How long published events are kept: the history of allocations is read from them.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often old events are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

/// Starts the relay.
pub(crate) fn spawn(control: &Arc<Control>) {
    let owned = Arc::clone(control);
    control.background.spawn(async move {
        let control = owned;
        // Subscribed before the first read, so that nothing is missed between the two.
        let mut news = News::of(&control, SOON);
        let mut away = false;
        // The first time at once, for a server that is restarted often.
        let mut forget = tokio::time::Instant::now();
        loop {
            let pause = match publish_all(&control).await {
                Ok(Outcome::Done) => {
                    if std::mem::take(&mut away) {
                        tracing::info!("the event bus is available again; all pending events are published");
                    }
                    SLOW_LOOK
                }
                Ok(Outcome::BusAway(reason)) => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!(reason, "events wait in the outbox until the bus accepts them");
                    }
                    RETRY
                }
                Err(error) => {
                    tracing::warn!(error = %crate::link::chain(&error), "the outbox cannot be read; retrying");
                    RETRY
                }
            };
            if tokio::time::Instant::now() >= forget {
                forget = tokio::time::Instant::now() + FORGET_EVERY;
                forget_old(&control).await;
            }
            if away || !control.backends.bus.has_consumers() {
                // Wake-ups would only make it retry faster than useful, or publish at once what nobody waits for.
                tokio::select! { () = control.shutdown.cancelled() => return, () = tokio::time::sleep(pause) => {} }
            } else if !news.more(&control, pause).await {
                return;
            }
        }
    });
}

enum Outcome {
    Done,
    BusAway(String),
}

/// Publishes until nothing is pending.
async fn publish_all(control: &Control) -> Result<Outcome, ControlError> {
    loop {
        let waiting = control.store.outbox_lanes_waiting().await?;
        if waiting.is_empty() {
            return Ok(Outcome::Done);
        }
        // Few events are one batch.
        let events: u64 = waiting.iter().map(|(_, events)| events).sum();
        let few = events <= u64::from(FEW);
        let mut shares: Vec<Vec<u32>> = vec![Vec::new(); if few { 1 } else { SHARES }];
        let lanes = waiting.into_iter().map(|(lane, _)| lane).filter(|lane| *lane < OUTBOX_LANES);
        // In turn, so that each share has events from everywhere in the outbox.
        for (lane, share) in lanes.zip((0..shares.len()).cycle()) {
            shares[share].push(lane);
        }
        let mut published = 0;
        for result in futures::future::join_all(shares.iter().map(|lanes| publish_share(control, lanes))).await {
            match result? {
                Ok(now) => published += now,
                Err(reason) => return Ok(Outcome::BusAway(reason)),
            }
        }
        // Either other relays hold the lanes, and polling finds what they leave; or all of a few events are published, and what was
        // committed since then sends a wake-up of its own.
        if published == 0 || (few && u64::try_from(published).is_ok_and(|published| published >= events)) {
            return Ok(Outcome::Done);
        }
    }
}

/// Publishes batches of these lanes, as long as there are some. The inner error is the bus's.
async fn publish_share(control: &Control, lanes: &[u32]) -> Result<Result<usize, String>, ControlError> {
    let each = BATCH / u32::try_from(lanes.len()).unwrap_or(BATCH).clamp(1, BATCH);
    let mut published = 0;
    for _ in 0..BATCHES {
        match publish_batch(control, lanes, each).await? {
            Ok(now) => {
                published += now;
                // No lane can have had more than it gave.
                if now < usize::try_from(each).unwrap_or(usize::MAX) {
                    break;
                }
            }
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(published))
}

/// Publishes a batch of these lanes, with at most this many events of each. The inner error is the bus's.
async fn publish_batch(control: &Control, lanes: &[u32], each: u32) -> Result<Result<usize, String>, ControlError> {
    let mut refused = None;
    let relayed = control
        .store
        .outbox_relay(lanes, each, async |rows| {
            gpuaas_failpoint::hit("relay.claimed");
            let batch: Vec<Envelope> = rows.into_iter().map(envelope).collect();
            let stored = match control.backends.bus.publish(&batch).await {
                Ok(published) => {
                    refused = published.failure.map(|error| error.to_string());
                    published.stored
                }
                Err(error) => {
                    refused = Some(error.to_string());
                    Vec::new()
                }
            };
            gpuaas_failpoint::hit("relay.published");
            stored
        })
        .await?;
    gpuaas_failpoint::hit("relay.marked");
    control.metrics.events_published(relayed.published);
    Ok(match refused {
        Some(reason) if relayed.found > relayed.published => Err(reason),
        Some(_) | None => Ok(relayed.published),
    })
}

fn envelope(row: OutboxRow) -> Envelope {
    Envelope { id: row.id, subject: row.subject, kind: row.kind, body: Bytes::from(row.body) }
}

async fn forget_old(control: &Control) {
    let before = Timestamp::now().minus(KEPT);
    loop {
        match control.store.outbox_forget(before).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "old events could not be deleted; retrying later");
                return;
            }
        }
    }
}
