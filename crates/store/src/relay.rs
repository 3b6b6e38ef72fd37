//! Publishes the outbox: finds unpublished events, passes them to a publisher, and deletes published events.
//!
//! An event is pending until it is published, so a crash in between publishes it again; consumers deduplicate by its id. Only one
//! publisher at a time, across all processes, holds a lane, so the events of a subject are published in order. Several lanes are
//! taken together, because neighboring events in the outbox are in different lanes, and reading neighbors is much cheaper than
//! reading rows that are far apart.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpuaas_contract::id::EventId;
use gpuaas_contract::time::Timestamp;
use sqlx::{Connection as _, PgConnection};

use crate::db::{Arg, Columns, Db, Reader, WriteTransaction};
use crate::error::{CommitError, StoreError};
use crate::outbox::{OutboxRow, TABLE, from_row, lane_of};
use crate::prepare::{Afterwards, Prepared};
use crate::readers::Readers;
use crate::{MAX_PAGE, Result, Store};

/// Time limit for publishing the events of one call of [`Store::outbox_relay`]. After it, nothing is marked and the lane is free
/// again.
pub const RELAY_DEADLINE: Duration = Duration::from_secs(10);
/// The limit up to which the pending events of a lane are counted.
pub const MAX_WAITING: u64 = 1000;

/// Selects the oldest events of each lane.
pub(crate) const UNPUBLISHED: &str = "SELECT outbox.* FROM json_each($1) AS lanes JOIN outbox ON outbox.position IN \
     (SELECT position FROM outbox_waiting AS waiting WHERE waiting.lane = lanes.value ORDER BY position LIMIT $2) \
     ORDER BY outbox.position";
pub(crate) const UNPUBLISHED_PG: &str = "SELECT outbox.* \
     FROM (SELECT json_array_elements_text($1::json)::bigint AS lane) AS lanes CROSS JOIN LATERAL \
     (SELECT position FROM outbox_waiting WHERE outbox_waiting.lane = lanes.lane ORDER BY position LIMIT $2) AS waiting \
     JOIN outbox ON outbox.position = waiting.position ORDER BY outbox.position";
pub(crate) const WAITING: &str = "SELECT lane, (SELECT COUNT(*) FROM (SELECT 1 FROM outbox_waiting \
     WHERE outbox_waiting.lane = outbox_lanes.lane LIMIT $1) AS events) AS waiting FROM outbox_lanes ORDER BY lane";
/// The first event of each lane is its oldest.
pub(crate) const OLDEST: &str = "SELECT MIN(created_at) AS oldest FROM outbox WHERE position IN (SELECT (SELECT position \
     FROM outbox_waiting WHERE outbox_waiting.lane = outbox_lanes.lane ORDER BY position LIMIT 1) FROM outbox_lanes)";
const TAKE_LANES_PG: &str = "SELECT lane FROM outbox_lanes \
     WHERE lane = ANY(ARRAY(SELECT json_array_elements_text($1::json)::bigint)) ORDER BY lane FOR UPDATE SKIP LOCKED";
pub(crate) const MARK: &str = "DELETE FROM outbox_waiting WHERE (lane, position) IN \
     (SELECT value ->> 0, value ->> 1 FROM json_each($1))";
pub(crate) const MARK_PG: &str = "DELETE FROM outbox_waiting USING \
     (SELECT (pair ->> 0)::bigint AS lane, (pair ->> 1)::bigint AS position FROM json_array_elements($1::json) AS pair) AS published \
     WHERE outbox_waiting.lane = published.lane AND outbox_waiting.position = published.position";
/// Deletes at most a thousand rows at a time, so that commits do not wait for long. Only the first thousand are considered,
/// because the oldest events come first: an event that is still pending after all that time keeps its place among them.
/// (`position > 0` is always true; it is for the planner.)
pub(crate) const FORGET: &str = "DELETE FROM outbox WHERE position IN (SELECT position FROM \
     (SELECT position, created_at, lane FROM outbox WHERE position > 0 ORDER BY position LIMIT 1000) AS oldest WHERE created_at < $1 AND NOT EXISTS \
     (SELECT 1 FROM outbox_waiting AS waiting WHERE waiting.lane = oldest.lane AND waiting.position = oldest.position))";
pub(crate) const FORGET_PG: &str = "DELETE FROM outbox WHERE position = ANY(ARRAY(SELECT position FROM \
     (SELECT position, created_at, lane FROM outbox WHERE position > 0 ORDER BY position LIMIT 1000) AS oldest WHERE created_at < $1 AND NOT EXISTS \
     (SELECT 1 FROM outbox_waiting AS waiting WHERE waiting.lane = oldest.lane AND waiting.position = oldest.position)))";

/// The result of one call of [`Store::outbox_relay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayResult {
    /// Events that were passed to the publisher.
    pub found: usize,
    /// Events that are marked as published.
    pub published: usize,
}

impl Store {
    /// Passes the oldest unpublished events of these lanes to `publish`, at most `each` per lane, and marks the events that it
    /// confirms as published.
    ///
    /// Skips lanes that are held by another publisher, in this process or another. `publish` keeps the order: once an event was
    /// not published, later ones of the same subject must not be. It has [`RELAY_DEADLINE`], and should finish earlier to keep
    /// what it has published.
    pub async fn outbox_relay(
        &self,
        lanes: &[u32],
        each: u32,
        publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
    ) -> Result<RelayResult> {
        match self.db() {
            Db::Sqlite { .. } => self.relay_alone(lanes, each, publish).await,
            Db::Pg { relay, .. } => relay_among_others(relay, lanes, each, publish).await,
        }
    }

    /// Counts the pending events of each lane, at most [`MAX_WAITING`] each. Lanes without any are left out.
    pub async fn outbox_lanes_waiting(&self) -> Result<Vec<(u32, u64)>> {
        let lanes = self.db().fetch("list unpublished events", WAITING, vec![Arg::count(MAX_WAITING)], |row| {
            let row = Reader::new(TABLE.name, row);
            Ok::<(u32, u64), StoreError>((row.count("lane")?, row.count("waiting")?))
        });
        Ok(lanes.await?.into_iter().filter(|(_, waiting)| *waiting > 0).collect())
    }

    /// Returns the time of the oldest unpublished event.
    pub async fn outbox_lag(&self) -> Result<Option<Timestamp>> {
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).opt_time("oldest");
        Ok(self.db().fetch_one("list unpublished events", OLDEST, Vec::new(), read).await?.flatten())
    }

    /// Deletes published events from before `before`, at most a thousand. Returns how many: call it again until it returns 0.
    pub async fn outbox_forget(&self, before: Timestamp) -> std::result::Result<u64, CommitError> {
        let touched = Arc::new(AtomicU64::new(0));
        self.write(Prepared {
            afterwards: vec![Afterwards {
                doing: "forget published events",
                sqlite: FORGET,
                postgres: FORGET_PG,
                args: vec![Arg::time(before)],
                touched: Some(Arc::clone(&touched)),
            }],
            ..Prepared::default()
        })
        .await?;
        Ok(touched.load(Ordering::Relaxed))
    }

    /// Relays on SQLite, where there is no other process.
    async fn relay_alone(
        &self,
        lanes: &[u32],
        each: u32,
        publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
    ) -> Result<RelayResult> {
        let lock = |lane: u32| self.inner.lanes.get(usize::try_from(lane).ok()?)?.try_lock().ok();
        let (taken, _held): (Vec<u32>, Vec<_>) = lanes.iter().filter_map(|lane| Some((*lane, lock(*lane)?))).unzip();
        if taken.is_empty() {
            return Ok(RelayResult::default());
        }
        let rows = self.db().fetch("read the outbox", UNPUBLISHED, unpublished_args(&taken, each)?, from_row).await?;
        let found = rows.len();
        let published = published_of(rows, RELAY_DEADLINE, publish).await;
        if !published.is_empty() {
            let args = vec![Arg::json(&published)?];
            let mark = Afterwards { doing: "mark published events", sqlite: MARK, postgres: MARK_PG, args, touched: None };
            match self.write(Prepared { afterwards: vec![mark], ..Prepared::default() }).await {
                Ok(()) => {}
                // No versioned row is written, so there cannot be a conflict.
                Err(CommitError::Conflict) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Ok(RelayResult { found, published: published.len() })
    }
}

/// Relays on PostgreSQL, in one transaction that holds the lanes until the published events are marked.
async fn relay_among_others(
    relay: &Readers<PgConnection>,
    lanes: &[u32],
    each: u32,
    publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
) -> Result<RelayResult> {
    const DOING: &str = "publish events";
    let mut reading = relay.acquire().await.map_err(StoreError::doing(DOING))?;
    let result = {
        let tx = reading.connection.begin().await.map_err(StoreError::doing(DOING))?;
        let mut tx = WriteTransaction::Pg(tx);
        let lane = |row: &dyn Columns| Reader::new("outbox_lanes", row).count("lane");
        let taken: Vec<u32> = tx.fetch(DOING, TAKE_LANES_PG, vec![Arg::json(&lanes)?], lane).await?;
        let rows = match taken.is_empty() {
            true => Vec::new(),
            // A separate statement, so that it sees what the previous holder of the lanes marked.
            false => tx.fetch(DOING, UNPUBLISHED_PG, unpublished_args(&taken, each)?, from_row).await?,
        };
        let found = rows.len();
        let published = published_of(rows, RELAY_DEADLINE, publish).await;
        if published.is_empty() {
            tx.rollback().await.map_err(StoreError::doing(DOING))?;
        } else {
            let args = vec![Arg::json(&published)?];
            tx.execute(MARK_PG, args).await.map_err(StoreError::doing(DOING))?;
            tx.commit().await.map_err(StoreError::doing(DOING))?;
        }
        RelayResult { found, published: published.len() }
    };
    reading.done();
    Ok(result)
}

fn unpublished_args(lanes: &[u32], each: u32) -> Result<Vec<Arg>> {
    Ok(vec![Arg::json(&lanes)?, Arg::count(u64::from(each.min(MAX_PAGE)))])
}

/// Returns the lanes and positions of the rows that are confirmed as published.
async fn published_of(
    rows: Vec<OutboxRow>,
    deadline: Duration,
    publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
) -> Vec<(u32, i64)> {
    if rows.is_empty() {
        return Vec::new();
    }
    let mut found: HashMap<EventId, (u32, i64)> =
        rows.iter().map(|row| (row.id, (lane_of(&row.subject), row.position))).collect();
    match tokio::time::timeout(deadline, publish(rows)).await {
        // Each once, and only events that were passed to the publisher.
        Ok(published) => published.iter().filter_map(|id| found.remove(id)).collect(),
        Err(_) => {
            tracing::warn!(events = found.len(), "publishing events took too long; they will be published again");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_published_in_time_is_not_marked() {
        let row = |position| OutboxRow {
            position,
            id: EventId::generate(),
            subject: "subject".to_owned(),
            kind: "gpuaas.test.happened.v1".to_owned(),
            body: "{}".to_owned(),
            created_at: Timestamp(1),
        };
        let published = published_of(vec![row(1), row(2)], Duration::ZERO, async |_| std::future::pending().await);
        assert!(published.await.is_empty());
        let nothing = published_of(Vec::new(), RELAY_DEADLINE, async |_| panic!("there is nothing to publish"));
        assert!(nothing.await.is_empty());
    }
}
