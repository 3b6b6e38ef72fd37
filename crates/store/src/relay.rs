//! Publishing the outbox: which events wait, handing them to whoever publishes, and forgetting what was published.
//!
//! An event is marked after it was published, so a crash in between publishes it again: consumers dedupe by its id. Whoever publishes a
//! lane has it alone, among all processes, so the events of a subject go out in their order.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpuaas_contract::id::EventId;
use gpuaas_contract::time::Timestamp;
use sqlx::{Connection as _, PgConnection};

use crate::db::{Arg, Columns, Db, Reader, WriteTransaction};
use crate::error::{CommitError, StoreError};
use crate::outbox::{OutboxRow, TABLE, from_row};
use crate::prepare::{Afterwards, Prepared};
use crate::readers::Readers;
use crate::{MAX_PAGE, Result, Store};

/// Longest time for publishing what one call of [`Store::outbox_relay`] found. After it nothing is marked, and the lane is free again.
pub const RELAY_DEADLINE: Duration = Duration::from_secs(10);
/// Waiting events of a lane are counted up to this.
pub const MAX_WAITING: u64 = 1000;

pub(crate) const UNPUBLISHED: &str = "SELECT * FROM outbox WHERE lane = $1 AND published_at IS NULL ORDER BY position LIMIT $2";
pub(crate) const WAITING: &str = "SELECT lane, (SELECT COUNT(*) FROM (SELECT 1 FROM outbox \
     WHERE outbox.lane = outbox_lanes.lane AND published_at IS NULL LIMIT $1) AS events) AS waiting FROM outbox_lanes ORDER BY lane";
/// The first of each lane is its oldest.
pub(crate) const OLDEST: &str = "SELECT MIN(at) AS oldest FROM (SELECT (SELECT created_at FROM outbox \
     WHERE outbox.lane = outbox_lanes.lane AND published_at IS NULL ORDER BY position LIMIT 1) AS at FROM outbox_lanes) AS firsts";
const TAKE_LANE_PG: &str = "SELECT lane FROM outbox_lanes WHERE lane = $1 FOR UPDATE SKIP LOCKED";
pub(crate) const MARK: &str =
    "UPDATE outbox SET published_at = $1 WHERE published_at IS NULL AND id IN (SELECT value FROM json_each($2))";
pub(crate) const MARK_PG: &str = "UPDATE outbox SET published_at = $1 \
     WHERE published_at IS NULL AND id = ANY(ARRAY(SELECT json_array_elements_text($2::json)))";
/// At most a thousand at a time: nobody who commits shall wait for long.
pub(crate) const FORGET: &str = "DELETE FROM outbox WHERE position IN (SELECT position FROM outbox \
     WHERE published_at IS NOT NULL AND published_at < $1 ORDER BY published_at LIMIT 1000)";
pub(crate) const FORGET_PG: &str = "DELETE FROM outbox WHERE position = ANY(ARRAY(SELECT position FROM outbox \
     WHERE published_at IS NOT NULL AND published_at < $1 ORDER BY published_at LIMIT 1000 FOR UPDATE SKIP LOCKED))";

/// What one call of [`Store::outbox_relay`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayResult {
    /// Events that were handed to whoever publishes.
    pub found: usize,
    /// Events that are marked as published.
    pub published: usize,
}

impl Store {
    /// Hands the oldest unpublished events of a lane to `publish`, and marks those that it says are surely published.
    ///
    /// Finds nothing if somebody else has the lane, in this process or another. `publish` keeps the order: once an event was not
    /// published, later ones of the same subject must not be. It has [`RELAY_DEADLINE`], and should end before that to keep what it has
    /// achieved.
    pub async fn outbox_relay(
        &self,
        lane: u32,
        limit: u32,
        publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
    ) -> Result<RelayResult> {
        match self.db() {
            Db::Sqlite { .. } => self.relay_alone(lane, limit, publish).await,
            Db::Pg { relay, .. } => relay_among_others(relay, lane, limit, publish).await,
        }
    }

    /// How many events of each lane wait to be published, at most [`MAX_WAITING`] each; only of lanes that have some.
    pub async fn outbox_lanes_waiting(&self) -> Result<Vec<(u32, u64)>> {
        let lanes = self.db().fetch("look for unpublished events", WAITING, vec![Arg::count(MAX_WAITING)], |row| {
            let row = Reader::new(TABLE.name, row);
            Ok::<(u32, u64), StoreError>((row.count("lane")?, row.count("waiting")?))
        });
        Ok(lanes.await?.into_iter().filter(|(_, waiting)| *waiting > 0).collect())
    }

    /// When the oldest event happened that was not published yet.
    pub async fn outbox_lag(&self) -> Result<Option<Timestamp>> {
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).opt_time("oldest");
        Ok(self.db().fetch_one("look for unpublished events", OLDEST, Vec::new(), read).await?.flatten())
    }

    /// Removes events that were published before `before`, at most a thousand. Returns how many: call it again while there are some.
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

    /// On SQLite, where there is no other process.
    async fn relay_alone(
        &self,
        lane: u32,
        limit: u32,
        publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
    ) -> Result<RelayResult> {
        let lock = usize::try_from(lane).ok().and_then(|lane| self.inner.lanes.get(lane));
        let Some(_held) = lock.and_then(|lock| lock.try_lock().ok()) else { return Ok(RelayResult::default()) };
        let rows = self.db().fetch("read the outbox", UNPUBLISHED, unpublished_args(lane, limit), from_row).await?;
        let found = rows.len();
        let published = published_of(rows, RELAY_DEADLINE, publish).await;
        if !published.is_empty() {
            let args = vec![Arg::time(Timestamp::now()), Arg::list(&published)?];
            let mark = Afterwards { doing: "mark published events", sqlite: MARK, postgres: MARK_PG, args, touched: None };
            match self.write(Prepared { afterwards: vec![mark], ..Prepared::default() }).await {
                Ok(()) => {}
                // There is no version that could be another.
                Err(CommitError::Conflict) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Ok(RelayResult { found, published: published.len() })
    }
}

/// On PostgreSQL: one transaction that holds the lane until the published events are marked.
async fn relay_among_others(
    relay: &Readers<PgConnection>,
    lane: u32,
    limit: u32,
    publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
) -> Result<RelayResult> {
    const DOING: &str = "publish events";
    let mut reading = relay.acquire().await.map_err(StoreError::doing(DOING))?;
    let result = {
        let tx = reading.connection.begin().await.map_err(StoreError::doing(DOING))?;
        let mut tx = WriteTransaction::Pg(tx);
        let taken = tx.fetch(DOING, TAKE_LANE_PG, vec![Arg::count(u64::from(lane))], |_| Ok(())).await?;
        let rows = match taken.is_empty() {
            true => Vec::new(),
            // A statement of its own: it sees what was marked by whoever had the lane before.
            false => tx.fetch(DOING, UNPUBLISHED, unpublished_args(lane, limit), from_row).await?,
        };
        let found = rows.len();
        let published = published_of(rows, RELAY_DEADLINE, publish).await;
        if published.is_empty() {
            tx.rollback().await.map_err(StoreError::doing(DOING))?;
        } else {
            let args = vec![Arg::time(Timestamp::now()), Arg::list(&published)?];
            tx.execute(MARK_PG, args).await.map_err(StoreError::doing(DOING))?;
            tx.commit().await.map_err(StoreError::doing(DOING))?;
        }
        RelayResult { found, published: published.len() }
    };
    reading.done();
    Ok(result)
}

fn unpublished_args(lane: u32, limit: u32) -> Vec<Arg> {
    vec![Arg::count(u64::from(lane)), Arg::count(u64::from(limit.min(MAX_PAGE)))]
}

/// Ids of those of the rows that are surely published.
async fn published_of(
    rows: Vec<OutboxRow>,
    deadline: Duration,
    publish: impl AsyncFnOnce(Vec<OutboxRow>) -> Vec<EventId>,
) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let found: HashSet<EventId> = rows.iter().map(|row| row.id).collect();
    match tokio::time::timeout(deadline, publish(rows)).await {
        // Each once, and only what was handed out.
        Ok(published) => published.into_iter().collect::<HashSet<_>>().intersection(&found).map(ToString::to_string).collect(),
        Err(_) => {
            tracing::warn!(events = found.len(), "publishing events took too long; they are published again");
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
            published_at: None,
        };
        let published = published_of(vec![row(1), row(2)], Duration::ZERO, async |_| std::future::pending().await);
        assert!(published.await.is_empty());
        let nothing = published_of(Vec::new(), RELAY_DEADLINE, async |_| panic!("there is nothing to publish"));
        assert!(nothing.await.is_empty());
    }
}
