//! Connections for reading.
//!
//! The pool of sqlx pings every returned connection, because a caller that was dropped in the middle may have left it in a bad
//! state. That is a second round trip for every read. Here a connection is returned only after a successful read; any other
//! connection is dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{ConnectOptions as _, Connection};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::db::timed_out;

/// Longest wait for a free or new connection.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a network connection may be idle before it is checked again.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
/// A connection that is idle for this long is closed.
const MAX_IDLE: Duration = Duration::from_secs(10 * 60);
/// A connection of this age is closed, because the memory of its server process only grows.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);

/// The options for new connections, the limit on their number, and the idle connections.
pub(crate) struct Readers<C: Connection> {
    options: <C as Connection>::Options,
    /// Whether connections cross a network, where they can die and use memory on the server.
    remote: bool,
    free: Semaphore,
    idle: Mutex<VecDeque<Idle<C>>>,
}

struct Idle<C> {
    connection: C,
    made: Instant,
    since: Instant,
}

/// A connection in use. Dropping it closes it; see [`Reading::done`].
pub(crate) struct Reading<'r, C: Connection> {
    pub(crate) connection: C,
    made: Instant,
    readers: &'r Readers<C>,
    _permit: SemaphorePermit<'r>,
}

impl<C: Connection> Readers<C> {
    /// Creates the pool without connecting.
    pub(crate) fn new(options: <C as Connection>::Options, most: u32, remote: bool) -> Self {
        let most = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
        Self { options, remote, free: Semaphore::new(most), idle: Mutex::new(VecDeque::new()) }
    }

    /// Returns a connection that works, as far as can be known.
    pub(crate) async fn acquire(&self) -> Result<Reading<'_, C>, sqlx::Error> {
        let Ok(permit) = tokio::time::timeout(ACQUIRE_TIMEOUT, self.free.acquire()).await else {
            return Err(sqlx::Error::PoolTimedOut);
        };
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        while let Some(Idle { mut connection, made, since }) = self.pop() {
            if !self.remote || since.elapsed() < TRUSTED_IDLE || connection.ping().await.is_ok() {
                return Ok(Reading { connection, made, readers: self, _permit: permit });
            }
        }
        let connecting = self.options.connect();
        let connection = if self.remote {
            tokio::time::timeout(ACQUIRE_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(timed_out()))?
        } else {
            connecting.await?
        };
        Ok(Reading { connection, made: Instant::now(), readers: self, _permit: permit })
    }

    /// Takes the connection that was used last: it is the least likely to have died, and the others may age out.
    fn pop(&self) -> Option<Idle<C>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop_back()
    }

    /// Closes all connections. Later reads are refused.
    pub(crate) async fn close(&self) {
        self.free.close();
        while let Some(idle) = self.pop() {
            end(idle.connection).await;
        }
    }
}

impl<C: Connection + 'static> Reading<'_, C> {
    /// Returns the connection to the pool. Call this only when it has no unread results.
    pub(crate) fn done(self) {
        let Self { connection, made, readers, _permit } = self;
        if readers.free.is_closed() || (readers.remote && made.elapsed() > MAX_AGE) {
            tokio::spawn(end(connection));
            return;
        }
        let mut idle = readers.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(Idle { connection, made, since: Instant::now() });
        if readers.remote && idle.front().is_some_and(|longest| longest.since.elapsed() > MAX_IDLE) {
            let longest = idle.pop_front();
            drop(idle);
            if let Some(longest) = longest {
                tokio::spawn(end(longest.connection));
            }
        }
    }
}

async fn end<C: Connection>(connection: C) {
    if let Err(error) = connection.close().await {
        tracing::debug!(%error, "closing a connection failed");
    }
}
