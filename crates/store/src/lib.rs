//! The store of the control plane: SQLite or PostgreSQL.
//!
//! There is one read method per query, in one file per aggregate. The only write method is [`Store::commit`]: it writes a
//! [`Decision`] with its events, audit rows and wake-ups as a whole, or not at all. The store is the source of truth; wake-ups
//! only reduce latency.
//!
//! # Promises
//!
//! - A decision is written in one transaction, conditional on the versions of the rows it was decided on, or it is a conflict.
//! - Every change of state has an outbox row and an audit row in the same transaction. The end of a task that decides about slots
//!   is written only together with the new state of the slots.
//! - Servers are replaced one by one. A schema that only grew works with servers of the previous version, which read and write
//!   the columns they know by name (`docs/adding-a-column.md`, `tests/rolling_upgrade.rs`). A server that is too old for the
//!   schema does not start.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod api_token;
mod audit;
mod certificate;
mod commit;
mod config;
mod db;
mod enrollment;
mod envelope;
mod error;
mod join_token;
mod lock;
mod log;
mod migrate;
mod node;
mod outbox;
#[cfg(test)]
mod plans;
mod prepare;
mod readers;
mod receipt;
mod relay;
mod resource;
mod script;
mod server;
mod slot;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod table;
mod task;
mod wakeups;

// The test helpers use the crate's public name, also in unit tests.
#[cfg(test)]
extern crate self as gpuaas_store;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::{ClusterId, NodeId, ServerId};
use gpuaas_domain::{Decision, Wakeup};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

pub use api_token::ApiTokenFilter;
pub use audit::AuditFilter;
pub use config::{DEFAULT_PG_CONNECTIONS, StoreConfig};
pub use envelope::EnvelopeRow;
pub use error::{CommitError, StoreError};
pub use gpuaas_domain::audit_chain::{AuditRow, Head as AuditHead};
pub use log::{MAX_LINE_BYTES, MAX_LINES_PER_TASK};
pub use node::{NodeCounts, NodeFilter};
pub use outbox::{OUTBOX_LANES, OutboxRow};
pub use receipt::ReceiptRow;
pub use relay::{MAX_WAITING, RELAY_DEADLINE, RelayResult};
pub use resource::ResourceFilter;
pub use slot::SlotFilter;
pub use task::TaskFilter;

use commit::{Committer, Job, Message};
use db::Db;
use lock::FileLock;
use prepare::Prepared;

/// Maximum number of rows of one read; larger limits are reduced to this. It is one more than the largest page of the REST API,
/// so that the reader of a full page can see that there is another page.
pub const MAX_PAGE: u32 = 1001;

type Result<T> = std::result::Result<T, StoreError>;

/// The open store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    cluster: ClusterId,
    queue: mpsc::Sender<Message>,
    wakeups: broadcast::Sender<Wakeup>,
    /// Wake-ups without a commit, on PostgreSQL.
    notify: Option<mpsc::Sender<Wakeup>>,
    committer: Mutex<Option<JoinHandle<()>>>,
    helpers: Vec<JoinHandle<()>>,
    lock: Mutex<Option<Arc<FileLock>>>,
    /// For each node, the number of unfinished tasks at the last count, and the number of requests since.
    counted: Mutex<HashMap<NodeId, (u64, u32)>>,
    /// Locked while a lane of the outbox is published on SQLite.
    lanes: Vec<tokio::sync::Mutex<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The committer writes what is queued and ends when the last sender of its queue is dropped.
        for helper in &self.helpers {
            helper.abort();
        }
    }
}

impl Store {
    /// Opens the database, migrates its schema and starts the writer.
    pub async fn open(config: &StoreConfig) -> Result<Self> {
        let lock = match config {
            StoreConfig::Sqlite { path } => Some(Arc::new(FileLock::take(path)?)),
            StoreConfig::Postgres { .. } => None,
        };
        let db = Db::open(config)?;
        let cluster = gpuaas_runtime::answer(migrate::migrate(&db)).await?;
        // Identifies this process among those that share a database.
        let process = ServerId::generate();
        let (wakeups, _) = broadcast::channel(wakeups::BROADCAST_CAPACITY);
        let (notify, helpers) = match &db {
            Db::Sqlite { .. } => (None, Vec::new()),
            Db::Pg { writer, reader, .. } => {
                let listener = wakeups::spawn_listener(writer, process, wakeups.clone()).await?;
                let (notify, notifier) = wakeups::spawn_notifier(Arc::clone(reader), process);
                (Some(notify), vec![listener, notifier])
            }
        };
        let (queue, jobs) = mpsc::channel(commit::QUEUE);
        let committer = Committer::new(db.clone(), process, wakeups.clone());
        let held = lock.clone();
        let committer = tokio::spawn(async move {
            committer.run(jobs).await;
            // Only after the last write: from here on another server may open the file.
            drop(held);
        });
        let inner = Inner {
            db,
            cluster,
            queue,
            wakeups,
            notify,
            committer: Mutex::new(Some(committer)),
            helpers,
            lock: Mutex::new(lock),
            counted: Mutex::default(),
            lanes: (0..OUTBOX_LANES).map(|_| tokio::sync::Mutex::default()).collect(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the id of this installation, which is generated when the database is created.
    pub async fn cluster_id(&self) -> Result<ClusterId> {
        Ok(self.inner.cluster)
    }

    fn counted(&self) -> MutexGuard<'_, HashMap<NodeId, (u64, u32)>> {
        self.inner.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the store can be read and that the writer runs.
    pub async fn ready(&self) -> Result<()> {
        if self.inner.queue.is_closed() {
            return Err(StoreError::Closed);
        }
        self.db().fetch("answer", "SELECT 1 AS one", Vec::new(), |_| Ok(())).await.map(drop)
    }

    /// Writes what is queued, then closes the database. From then on, other clones return [`StoreError::Closed`].
    pub async fn close(self) {
        // Fails only if the store is closed already.
        let _ = self.inner.queue.send(Message::Close).await;
        let committer = self.inner.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(committer) = committer
            && let Err(error) = committer.await
        {
            tracing::error!(%error, "the writer ended badly");
        }
        for helper in &self.inner.helpers {
            helper.abort();
        }
        self.inner.db.close().await;
        drop(self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Writes a decision: all of it, durably, or nothing. This is the only way to change the store.
    ///
    /// Decisions that wait at the same time share one transaction. Dropping the returned future does not cancel the decision.
    pub async fn commit(&self, decision: Decision) -> std::result::Result<(), CommitError> {
        let prepared = Prepared::new(decision, self.inner.cluster)?;
        if prepared.is_empty() {
            for wakeup in prepared.wakeups {
                self.wakeup(wakeup);
            }
            return Ok(());
        }
        if gpuaas_runtime::broken("store.commit") {
            return Ok(());
        }
        self.write(prepared).await
    }

    /// Sends the decision to the writer and waits until it is durable.
    async fn write(&self, prepared: Prepared) -> std::result::Result<(), CommitError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Commit(Job { prepared, reply });
        self.inner.queue.send(message).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Returns a receiver of wake-ups from now on: of this process's commits, right after each, and on PostgreSQL also of other
    /// processes.
    ///
    /// A receiver that is too slow gets `Lagged` and has lost some wake-ups: it should then check everything it is responsible
    /// for. Anything that waits for a wake-up must also poll slowly.
    pub fn wakeups(&self) -> broadcast::Receiver<Wakeup> {
        self.inner.wakeups.subscribe()
    }

    /// Sends a wake-up without a commit. Delivery to other processes is best effort.
    pub fn wakeup(&self, wakeup: Wakeup) {
        if let Some(notify) = &self.inner.notify
            && notify.try_send(wakeup.clone()).is_err()
        {
            tracing::debug!("too many wakeups wait to be sent to other servers; one was dropped");
        }
        // An error means that there is no receiver, which is fine.
        let _ = self.inner.wakeups.send(wakeup);
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }
}
