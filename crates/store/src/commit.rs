//! The only writer.
//!
//! Decisions queue up while a transaction is written to disk; the next transaction takes all of them.
//!
//! A group is first written with a single statement that fails as a whole unless every row has the version that its decision
//! expects and the audit chain ends where this process last saw it end. That is one round trip. If it fails, the group is written
//! row by row: a decision whose rows have other versions is left out before anything is written, so it does not affect the rest
//! of the group. An error that appears only while writing (a key that exists already) rolls the transaction back; the group is
//! then halved until the failing decision is alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpuaas_contract::id::ServerId;
use gpuaas_domain::Wakeup;
use gpuaas_domain::audit_chain::Head;
use sqlx::error::ErrorKind;
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::audit;
use crate::db::{Arg, Db, Reader, WriteConnection, WriteTransaction, timed_out};
use crate::error::{CommitError, StoreError};
use crate::prepare::{Afterwards, Aggregate, Prepared, Write};
use crate::script::{Script, distinct};

/// Maximum number of decisions that wait for the writer. A further commit waits until there is room.
pub(crate) const QUEUE: usize = 1024;
/// Maximum number of decisions in one transaction.
const MAX_GROUP: usize = 512;
/// Maximum size of one transaction, in bytes. A single larger decision gets a transaction of its own.
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;
/// How often a group is retried when the database asks for it (deadlock, or a connection lost before anything ran).
const MAX_ATTEMPTS: u32 = 4;

/// Maximum number of row versions to remember. Above that, the cache is cleared.
const MAX_VERSIONS: usize = 16 * 1024;

/// Time limit for one transaction on PostgreSQL.
const PG_TIMEOUT: Duration = Duration::from_secs(60);

/// A message to the writer.
pub(crate) enum Message {
    /// Write this decision.
    Commit(Job),
    /// Write all queued decisions, then stop.
    Close,
}

/// A decision and the channel for its result.
pub(crate) struct Job {
    pub(crate) prepared: Prepared,
    pub(crate) reply: oneshot::Sender<Result<(), CommitError>>,
}

/// The state of the writer.
pub(crate) struct Committer {
    db: Db,
    process: ServerId,
    wakeups: broadcast::Sender<Wakeup>,
    connection: Option<WriteConnection>,
    chain: Chain,
    /// Latest known versions of the rows that this process wrote. Versions only grow, so a decision on an older version is
    /// rejected without asking the database, where it would cost the whole group its single statement.
    versions: HashMap<String, i64>,
}

/// What the writer knows about the audit chain without a query.
#[derive(Default)]
struct Chain {
    /// The end of the chain when it was last read.
    end: Option<Head>,
    /// Another process has appended since, so the single statement would probably fail.
    shared: bool,
}

/// How to write a group.
enum CommitMode {
    /// With one statement if possible, otherwise row by row.
    AtOnce,
    /// Row by row: check every row before anything is written.
    WithCare,
    /// Row by row, after a single statement whose outcome is unknown. The statement would have left the chain with this end.
    InDoubt(Head),
}

impl CommitMode {
    /// Returns the same mode without the single statement.
    fn careful(self) -> Self {
        match self {
            Self::AtOnce | Self::WithCare => Self::WithCare,
            Self::InDoubt(end) => Self::InDoubt(end),
        }
    }
}

/// Why a group was not written.
enum CommitFailure {
    /// The transaction never began: the connection was dead.
    NotBegun(StoreError),
    /// The connection broke after a single statement was sent. The statement would have left the chain with this end.
    InDoubt(Head, StoreError),
    /// The database asks for a retry.
    TryAgain(StoreError),
    /// One of the decisions collides with an existing row.
    Collision,
    /// One of the decisions cannot be written at all.
    Unwritable(StoreError),
    /// Any other error, including an unknown outcome.
    Whole(StoreError),
}

impl Committer {
    pub(crate) fn new(db: Db, process: ServerId, wakeups: broadcast::Sender<Wakeup>) -> Self {
        Self { db, process, wakeups, connection: None, chain: Chain::default(), versions: HashMap::new() }
    }

    /// Writes until all senders are dropped or the store is closed.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut waiting: VecDeque<Job> = VecDeque::new();
        loop {
            if waiting.is_empty() {
                match queue.recv().await {
                    Some(Message::Commit(job)) => waiting.push_back(job),
                    Some(Message::Close) => queue.close(),
                    None => break,
                }
            }
            while waiting.len() < MAX_GROUP
                && let Ok(message) = queue.try_recv()
            {
                match message {
                    Message::Commit(job) => waiting.push_back(job),
                    Message::Close => queue.close(),
                }
            }
            let group = next_group(&mut waiting);
            self.write(group).await;
        }
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "closing the writing connection failed");
        }
    }

    /// Writes a group in as few transactions as possible and sends a result to every waiter.
    async fn write(&mut self, group: Vec<Job>) {
        let mut groups = vec![(self.without_outdated(group), 1, CommitMode::AtOnce)];
        while let Some((mut group, attempt, way)) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let failure = match self.try_write(&group, &way).await {
                Ok(written) => {
                    self.answer(group, &written);
                    continue;
                }
                Err(failure) => failure,
            };
            let error = match failure {
                CommitFailure::NotBegun(_) | CommitFailure::TryAgain(_) if attempt < MAX_ATTEMPTS => {
                    groups.push((group, attempt + 1, way.careful()));
                    continue;
                }
                // The outcome can be found out: either the chain contains this hash, or it never will.
                CommitFailure::InDoubt(end, _) if attempt < MAX_ATTEMPTS => {
                    groups.push((group, attempt + 1, CommitMode::InDoubt(end)));
                    continue;
                }
                CommitFailure::Collision | CommitFailure::Unwritable(_) if group.len() > 1 => {
                    let second = group.split_off(group.len() / 2);
                    groups.push((second, 1, CommitMode::WithCare));
                    groups.push((group, 1, CommitMode::WithCare));
                    continue;
                }
                CommitFailure::Collision => CommitError::Conflict,
                CommitFailure::NotBegun(error)
                | CommitFailure::TryAgain(error)
                | CommitFailure::InDoubt(_, error)
                | CommitFailure::Unwritable(error)
                | CommitFailure::Whole(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, decisions = group.len(), "commit failed");
                    CommitError::Store(error)
                }
            };
            for job in group {
                // The waiter may be gone; its result is then not needed.
                let _ = job.reply.send(Err(error.clone()));
            }
        }
    }

    /// Rejects the decisions that conflict with this process's own writes and returns the others.
    fn without_outdated(&self, group: Vec<Job>) -> Vec<Job> {
        let outdated = |write: &Write| write.over.is_some_and(|over| self.versions.get(&write.id).is_some_and(|now| over < *now));
        let (late, group): (Vec<_>, Vec<_>) = group.into_iter().partition(|job| job.prepared.writes.iter().any(outdated));
        for job in late {
            let _ = job.reply.send(Err(CommitError::Conflict));
        }
        group
    }

    async fn try_write(&mut self, group: &[Job], way: &CommitMode) -> Result<Vec<bool>, CommitFailure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connecting = gpuaas_runtime::answer(self.db.connect());
                connecting.await.map_err(StoreError::doing("accept a connection")).map_err(CommitFailure::NotBegun)?
            }
        };
        let group: Vec<&Prepared> = group.iter().map(|job| &job.prepared).collect();
        let writing = self.chain.write(&mut connection, self.process, &group, way);
        let result = match &self.db {
            Db::Sqlite { .. } => gpuaas_runtime::recorded(writing).await,
            // A database that stops answering must not block the writer for good. The outcome is then unknown.
            Db::Pg { .. } => match tokio::time::timeout(PG_TIMEOUT, writing).await {
                Ok(result) => result,
                Err(_) => Err(CommitFailure::Whole(StoreError::doing("answer in time")(timed_out()))),
            },
        };
        match &result {
            Ok(_) | Err(CommitFailure::TryAgain(_) | CommitFailure::Collision | CommitFailure::Unwritable(_)) => {
                self.connection = Some(connection);
            }
            // The connection may be dead, or in the middle of a statement: open a new one.
            Err(CommitFailure::NotBegun(_) | CommitFailure::InDoubt(..) | CommitFailure::Whole(_)) => drop(connection),
        }
        result
    }

    /// Sends the results and the wake-ups of the written decisions.
    fn answer(&mut self, group: Vec<Job>, written: &[bool]) {
        let done = || group.iter().zip(written).filter(|(_, written)| **written).map(|(job, _)| &job.prepared);
        for wakeup in distinct(done().flat_map(|prepared| &prepared.wakeups)) {
            // An error means that there is no receiver, which is fine.
            let _ = self.wakeups.send(wakeup.clone());
        }
        if self.versions.len() > MAX_VERSIONS {
            self.versions.clear();
        }
        let overwritten = done()
            .flat_map(|prepared| &prepared.writes)
            .filter(|write| write.aggregate.stays())
            .filter_map(|write| Some((write.id.clone(), write.over?.saturating_add(1))));
        self.versions.extend(overwritten);
        for (job, written) in group.into_iter().zip(written) {
            let _ = job.reply.send(if *written { Ok(()) } else { Err(CommitError::Conflict) });
        }
    }
}

/// Takes the decisions that can be written together from the front of the queue. Decisions on the same row wait for the next
/// transaction.
fn next_group(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let mut rows: HashSet<String> = HashSet::new();
    let mut bytes = 0;
    let (mut group, mut left) = (Vec::new(), VecDeque::new());
    for job in waiting.drain(..) {
        let weight = job.prepared.weight();
        let writes = &job.prepared.writes;
        let fits = group.is_empty() || (group.len() < MAX_GROUP && bytes + weight <= MAX_GROUP_BYTES);
        if fits && !writes.iter().any(|write| rows.contains(&write.id)) {
            rows.extend(writes.iter().map(|write| write.id.clone()));
            bytes += weight;
            group.push(job);
        } else {
            // Later decisions on these rows must not overtake this one.
            rows.extend(writes.iter().map(|write| write.id.clone()));
            left.push_back(job);
        }
    }
    *waiting = left;
    group
}

impl Chain {
    /// Runs one transaction. Returns for each decision whether it was written; the others are conflicts.
    async fn write(
        &mut self,
        connection: &mut WriteConnection,
        process: ServerId,
        group: &[&Prepared],
        way: &CommitMode,
    ) -> Result<Vec<bool>, CommitFailure> {
        if let CommitMode::AtOnce = way
            && self.write_at_once(connection, process, group).await?
        {
            return Ok(vec![true; group.len()]);
        }
        let begun = connection.begin().await;
        let mut tx = begun.map_err(StoreError::doing("begin a transaction")).map_err(CommitFailure::NotBegun)?;
        match self.fill(&mut tx, process, group, way).await {
            Ok(Filled::Changed(written, end)) => {
                tx.commit().await.map_err(StoreError::doing("commit")).map_err(CommitFailure::Whole)?;
                self.end = end.or(self.end.take());
                Ok(written)
            }
            Ok(Filled::Unchanged(written)) => {
                tx.rollback().await.map_err(StoreError::doing("roll back")).map_err(CommitFailure::Whole)?;
                Ok(written)
            }
            Err(error) => {
                let failure = classified(error);
                if !matches!(failure, CommitFailure::Whole(_)) {
                    tx.rollback().await.map_err(StoreError::doing("roll back")).map_err(CommitFailure::Whole)?;
                }
                Err(failure)
            }
        }
    }

    /// Tries the single statement. Returns false if it cannot be used or was refused: then nothing is written, and checking the
    /// rows shows why.
    async fn write_at_once(
        &mut self,
        connection: &mut WriteConnection,
        process: ServerId,
        group: &[&Prepared],
    ) -> Result<bool, CommitFailure> {
        let Some(before) = self.end.clone().filter(|_| !self.shared) else { return Ok(false) };
        // These statements must see what the same group writes, but a single statement sees only the state before it.
        if group.iter().any(|prepared| !prepared.afterwards.is_empty()) {
            return Ok(false);
        }
        let Ok(script) = Script::new(process, group, Some(before)) else { return Ok(false) };
        // Without a new row in the chain, nothing would show whether the statement ran if the connection breaks.
        let Some(end) = script.end().cloned() else { return Ok(false) };
        let written = match connection {
            WriteConnection::Pg(pg) => match script.on_postgres() {
                Ok(query) => query.execute(pg).await.map(drop),
                Err(_) => return Ok(false),
            },
            WriteConnection::Sqlite(sqlite) => match script.on_sqlite(true) {
                Ok(query) => {
                    let written = query.execute(&mut *sqlite).await.map(drop);
                    if written.is_err() {
                        // Fails if the error has already ended the transaction. If the transaction is open for another reason,
                        // the next one cannot begin, and the writer opens a new connection.
                        let _ = sqlx::raw_sql("ROLLBACK").execute(sqlite).await;
                    }
                    written
                }
                Err(_) => return Ok(false),
            },
        };
        match written {
            Ok(()) => {
                self.end = Some(end);
                Ok(true)
            }
            Err(error) if error.as_database_error().is_some() => Ok(false),
            Err(error) => Err(CommitFailure::InDoubt(end, StoreError::doing("write a group")(error))),
        }
    }

    /// Runs everything between BEGIN and COMMIT.
    async fn fill(
        &mut self,
        tx: &mut WriteTransaction<'_>,
        process: ServerId,
        group: &[&Prepared],
        way: &CommitMode,
    ) -> Result<Filled, StoreError> {
        let versions = lock(tx, group).await?;
        // From here on, other processes wait for this one.
        let appends = group.iter().any(|prepared| !prepared.events.is_empty() || !prepared.audit.is_empty());
        let head = if appends { Some(self.lock_head(tx).await?) } else { None };
        if let CommitMode::InDoubt(end) = way
            && has_entry(tx, end).await?
        {
            return Ok(Filled::Unchanged(vec![true; group.len()]));
        }
        let written: Vec<bool> = group.iter().map(|prepared| versions_match(prepared, &versions)).collect();
        let accepted: Vec<&Prepared> = group.iter().zip(&written).filter(|(_, ok)| **ok).map(|(prepared, _)| *prepared).collect();
        if accepted.is_empty() {
            return Ok(Filled::Unchanged(written));
        }
        let script = Script::new(process, &accepted, head)?;
        let doing = StoreError::doing("write a group");
        match tx {
            WriteTransaction::Pg(pg) => {
                let row = script.on_postgres()?.fetch_one(&mut **pg).await.map_err(&doing)?;
                let changed = Reader::new("audit_head", &row).int("changed")?;
                if changed != script.updates() {
                    let what = format!("{changed} of {} rows could be written although all were locked", script.updates());
                    return Err(StoreError::Corrupt { table: "audit_head", column: "seq", what });
                }
            }
            WriteTransaction::Sqlite(sqlite) => {
                script.on_sqlite(false)?.execute(&mut **sqlite).await.map_err(&doing)?;
            }
        }
        // After the rows, so that a certificate that the same group issues is revoked too.
        for Afterwards { doing, sqlite, postgres, args, touched } in accepted.iter().flat_map(|prepared| &prepared.afterwards) {
            let sql = match tx {
                WriteTransaction::Sqlite(_) => *sqlite,
                WriteTransaction::Pg(_) => *postgres,
            };
            let count = tx.execute(sql, args.clone()).await.map_err(StoreError::doing(doing))?;
            if let Some(touched) = touched {
                touched.store(count, Ordering::Relaxed);
            }
        }
        Ok(Filled::Changed(written, script.end().cloned()))
    }

    /// Returns the end of the chain and locks it until the commit.
    async fn lock_head(&mut self, tx: &mut WriteTransaction<'_>) -> Result<Head, StoreError> {
        let sql = match tx {
            WriteTransaction::Sqlite(_) => audit::HEAD,
            WriteTransaction::Pg(_) => audit::HEAD_LOCK_PG,
        };
        let head = tx.fetch("lock the audit log", sql, Vec::new(), audit::head_from_row).await?;
        let head: Head = head.into_iter().next().ok_or_else(audit::head_missing)?;
        self.shared = self.end.as_ref().is_some_and(|end| *end != head);
        self.end = Some(head.clone());
        Ok(head)
    }
}

/// The result of a group inside its transaction.
enum Filled {
    /// There is something to commit: for each decision whether it is included, and the new end of the chain.
    Changed(Vec<bool>, Option<Head>),
    /// There is nothing to commit.
    Unchanged(Vec<bool>),
}

/// Locks every row that the group overwrites and returns the versions.
async fn lock(tx: &mut WriteTransaction<'_>, group: &[&Prepared]) -> Result<HashMap<String, i64>, StoreError> {
    let mut versions = HashMap::new();
    for aggregate in Aggregate::ALL {
        let writes = group.iter().flat_map(|prepared| &prepared.writes);
        let ids = writes.filter(|write| write.aggregate == aggregate && write.over.is_some()).map(|write| write.id.clone());
        versions.extend(aggregate.table().lock(tx, ids.collect()).await?);
    }
    Ok(versions)
}

fn versions_match(prepared: &Prepared, versions: &HashMap<String, i64>) -> bool {
    prepared.writes.iter().all(|write| match write.over {
        Some(version) => versions.get(&write.id) == Some(&version),
        None => true,
    })
}

/// Returns whether the chain has this entry.
async fn has_entry(tx: &mut WriteTransaction<'_>, entry: &Head) -> Result<bool, StoreError> {
    let sql = "SELECT seq, hash FROM audit WHERE seq = $1";
    let found = tx.fetch("read the audit log", sql, vec![Arg::count(entry.seq)], audit::head_from_row).await?;
    Ok(found.first() == Some(entry))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the SQL client: every other kind is decided by its code")]
fn classified(error: StoreError) -> CommitFailure {
    let StoreError::Database { source, .. } = &error else {
        let is_unwritable = matches!(error, StoreError::BadDecision { .. });
        return if is_unwritable { CommitFailure::Unwritable(error) } else { CommitFailure::Whole(error) };
    };
    let Some(reported) = source.as_database_error() else { return CommitFailure::Whole(error) };
    match reported.kind() {
        ErrorKind::UniqueViolation => CommitFailure::Collision,
        ErrorKind::ForeignKeyViolation
        | ErrorKind::NotNullViolation
        | ErrorKind::CheckViolation
        | ErrorKind::ExclusionViolation => CommitFailure::Unwritable(error),
        _ => {
            let postgres = reported.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some();
            let code = reported.code().unwrap_or_default();
            match code.get(..2) {
                // Transaction rollback: deadlock or serialization.
                Some("40") if postgres => CommitFailure::TryAgain(error),
                // Data exception: a value that the database cannot hold.
                Some("22") if postgres => CommitFailure::Unwritable(error),
                _ => CommitFailure::Whole(error),
            }
        }
    }
}

#[cfg(test)]
mod at_once_tests;

#[cfg(test)]
mod tests {
    use gpuaas_domain::node::Node;
    use gpuaas_domain::{Change, Decision};

    use super::*;
    use crate::support::{Database, changes, node, recorded, task};

    fn job(decision: Decision, cluster: gpuaas_contract::id::ClusterId) -> (Job, oneshot::Receiver<Result<(), CommitError>>) {
        let (reply, answer) = oneshot::channel();
        (Job { prepared: Prepared::new(decision, cluster).expect("prepares"), reply }, answer)
    }

    #[test]
    fn a_group_never_writes_a_row_twice_and_keeps_the_order_on_each_row() {
        let cluster = gpuaas_contract::id::ClusterId::generate();
        let (one, two) = (node(), node());
        let of = |node: &Node, name: &str| {
            let node = Node { name: name.to_owned(), ..node.clone() };
            job(changes([Change::NodeUpdate(Box::new(node))]), cluster).0
        };
        let both = changes([&one, &two].map(|node| Change::NodeUpdate(Box::new(node.clone()))));
        let mut waiting = VecDeque::from([of(&one, "a"), job(both, cluster).0, of(&two, "b"), of(&one, "c")]);
        let groups: Vec<usize> = std::iter::from_fn(|| Some(next_group(&mut waiting).len()).filter(|len| *len > 0)).collect();
        // `b` must not overtake the decision before it, although its own row is free.
        assert_eq!(groups, [1, 1, 2]);
    }

    #[test]
    fn a_group_is_bounded_in_bytes_but_one_large_decision_still_goes() {
        let cluster = gpuaas_contract::id::ClusterId::generate();
        let large = || {
            let owner = node();
            let envelope = Change::EnvelopeInsert {
                task_id: task(&owner).id,
                digest: crate::support::digest("x"),
                envelope: vec![0; MAX_GROUP_BYTES + 1],
                key_id: "key".to_owned().into(),
                signed_at: crate::support::NOW,
            };
            job(changes([envelope]), cluster).0
        };
        let mut waiting = VecDeque::from([large(), large()]);
        assert_eq!(next_group(&mut waiting).len(), 1);
        assert_eq!(next_group(&mut waiting).len(), 1);
    }

    /// The writer receives the group as one, so that nothing depends on timing.
    async fn mixed_group(database: &Database) {
        let store = database.open().await;
        let known = crate::support::stored_node(&store).await;
        let (wakeups, mut heard) = broadcast::channel(1000);
        let mut committer = Committer::new(store.db().clone(), ServerId::generate(), wakeups);
        let cluster = store.cluster_id().await.expect("reads");
        let tasks: Vec<_> = (0..64).map(|_| task(&known)).collect();
        let jobs = tasks.iter().enumerate().map(|(n, task)| {
            let insert = Change::TaskInsert(Box::new(task.clone()));
            let decision = match n {
                5 => recorded("stale", [insert, Change::NodeUpdate(Box::new(Node { version: 7, ..known.clone() }))]),
                20 => {
                    let same_machine = Node { fingerprint: known.fingerprint.clone(), ..node() };
                    recorded("exists", [insert, Change::NodeInsert(Box::new(same_machine))])
                }
                33 => recorded("no such node", [insert, Change::TaskInsert(Box::new(crate::support::task(&node())))]),
                _ => recorded("fine", [insert]),
            };
            job(decision.wakeup(Wakeup::Task(task.id)), cluster)
        });
        let (jobs, answers): (Vec<_>, Vec<_>) = jobs.unzip();
        let group = next_group(&mut jobs.into());
        assert_eq!(group.len(), 64, "they stand in one group");
        committer.write(group).await;

        let mut written = Vec::new();
        for (n, (mut answer, task)) in answers.into_iter().zip(&tasks).enumerate() {
            let answer = answer.try_recv().expect("everybody was answered");
            let stored = store.task_get(task.id).await.expect("reads").is_some();
            match (n, answer) {
                (5 | 20, Err(CommitError::Conflict)) | (33, Err(CommitError::Store(StoreError::Database { .. }))) => {
                    assert!(!stored, "{n} left its task behind");
                }
                (5 | 20 | 33, other) => panic!("{n}: {other:?}"),
                (_, answer) => {
                    answer.expect("written");
                    assert!(stored, "{n} is not there");
                    written.push(Wakeup::Task(task.id));
                }
            }
        }
        let mut hinted = Vec::new();
        let mut events = 0;
        while let Ok(wakeup) = heard.try_recv() {
            match wakeup {
                Wakeup::Outbox => events += 1,
                other => hinted.push(other),
            }
        }
        assert_eq!(hinted, written, "exactly the written ones wake somebody");
        assert!((1..=written.len()).contains(&events), "whoever publishes events is woken, once per transaction");
        let rows = store.audit_list(0, 1000, &crate::AuditFilter::default()).await.expect("lists");
        assert_eq!(rows.len(), 61);
        gpuaas_domain::audit_chain::verify(&Head::genesis(), &rows).expect("the chain is whole");
        assert_eq!(store.outbox_list(0, 1000).await.expect("lists").len(), 61);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_group_with_bad_decisions_writes_the_good_ones_on_sqlite() {
        let database = Database::sqlite();
        mixed_group(&database).await;
        database.remove().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_group_with_bad_decisions_writes_the_good_ones_on_postgres() {
        let test = "one_group_with_bad_decisions_writes_the_good_ones_on_postgres";
        if let Some(database) = Database::postgres(test).await {
            mixed_group(&database).await;
            database.remove().await;
        }
    }
}
