//! The control plane's memory: SQLite or PostgreSQL.
//!
//! Reading is one method per question, in a file per aggregate. Writing is [`Store::commit`] alone: a
//! [`Decision`] goes in whole, with its events, its audit rows and its wake-ups, or not at all. The store is the truth;
//! wakeups only make things quicker.
//!
//! # Promises
//!
//! - A decision is written in one transaction, over the versions of the rows it was decided on, or it is a conflict.
//! - Every change of state has an outbox row and an audit row in its own transaction. An end of a task that decides about slots is
//!   written only together with what becomes of them.
//! - Servers are replaced one by one: a schema that only grew works with the servers of the version before, which read and write the
//!   columns they know by name (`docs/adding-a-column.md`, `tests/rolling_upgrade.rs`). A server that is too old for the schema does not
//!   start.

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

// The tests' helpers call us by our outer name, from inside as well.
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

/// Most rows of one read; a larger limit is taken as this. One more than the largest page of the REST interface, so that a reader
/// of a full page can still see that there is another one.
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
    /// Where wakeups without a commit go on PostgreSQL.
    notify: Option<mpsc::Sender<Wakeup>>,
    committer: Mutex<Option<JoinHandle<()>>>,
    helpers: Vec<JoinHandle<()>>,
    lock: Mutex<Option<Arc<FileLock>>>,
    /// Unfinished tasks of nodes when they were counted last, and how many were asked for since.
    counted: Mutex<HashMap<NodeId, (u64, u32)>>,
    /// Held by whoever publishes a lane of the outbox on SQLite.
    lanes: Vec<tokio::sync::Mutex<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The committer ends by itself when the last sender of its queue is gone, after it has written what waits.
        for helper in &self.helpers {
            helper.abort();
        }
    }
}

impl Store {
    /// Opens the database, brings its schema up to date and starts the writer.
    pub async fn open(config: &StoreConfig) -> Result<Self> {
        let lock = match config {
            StoreConfig::Sqlite { path } => Some(Arc::new(FileLock::take(path)?)),
            StoreConfig::Postgres { .. } => None,
        };
        let db = Db::open(config)?;
        let cluster = gpuaas_runtime::answer(migrate::migrate(&db)).await?;
        // Names this opening of the store among the processes that share a database.
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
            // Not before the last write: another server may open the file from here on.
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

    /// The id of this installation, made when its database was made.
    pub async fn cluster_id(&self) -> Result<ClusterId> {
        Ok(self.inner.cluster)
    }

    fn counted(&self) -> MutexGuard<'_, HashMap<NodeId, (u64, u32)>> {
        self.inner.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether reading works now and the writer runs.
    pub async fn ready(&self) -> Result<()> {
        if self.inner.queue.is_closed() {
            return Err(StoreError::Closed);
        }
        self.db().fetch("answer", "SELECT 1 AS one", Vec::new(), |_| Ok(())).await.map(drop)
    }

    /// Writes what waits, then closes the database. Other clones get [`StoreError::Closed`] from then on.
    pub async fn close(self) {
        // Fails only if it is closed already.
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

    /// Writes a decision: all of it, durably, or nothing. The only way to change anything.
    ///
    /// Decisions that wait at the same time share one transaction. Dropping the returned future does not take the
    /// decision back.
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

    /// Hands it to the writer and waits until it is durable.
    async fn write(&self, prepared: Prepared) -> std::result::Result<(), CommitError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Commit(Job { prepared, reply });
        self.inner.queue.send(message).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Wake-ups from now on: of this process's commits right after them, and on PostgreSQL also of other processes.
    ///
    /// A receiver that is too slow gets `Lagged` and has lost some: it should then look at everything it cares for.
    /// Whoever waits for a wakeup must poll slowly as well.
    pub fn wakeups(&self) -> broadcast::Receiver<Wakeup> {
        self.inner.wakeups.subscribe()
    }

    /// Sends a wake-up without a commit. To other processes only as well as possible.
    pub fn wakeup(&self, wakeup: Wakeup) {
        if let Some(notify) = &self.inner.notify
            && notify.try_send(wakeup.clone()).is_err()
        {
            tracing::debug!("too many wakeups wait to be sent to other servers; one was dropped");
        }
        // No receiver is no harm.
        let _ = self.inner.wakeups.send(wakeup);
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }
}
