//! The only writer.
//!
//! Decisions queue up while a transaction is being made durable; the next transaction takes all that wait. A decision
//! whose rows have other versions than it expects is left out before anything is written, so it leaves nothing behind
//! and takes nobody down. What only shows while writing (a key that exists already) undoes the transaction; the
//! group is then halved until the culprit stands alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use gpuaas_contract::id::ServerId;
use gpuaas_domain::Hint;
use gpuaas_domain::audit_chain::Head;
use sqlx::error::ErrorKind;
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::db::{Arg, Db, WriteConnection, WriteTransaction, timed_out};
use crate::error::{CommitError, StoreError};
use crate::prepare::{Aggregate, Prepared, Record, chain};
use crate::table::{Current, Row};
use crate::{audit, certificate, hints, outbox, server, task};

/// Decisions that may wait for the writer; committing waits when there are more.
pub(crate) const QUEUE: usize = 1024;
/// Most decisions in one transaction.
const MAX_GROUP: usize = 512;
/// Most bytes in one transaction, unless a single decision has more.
const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;
/// How often a group is tried again when the database asks for that (deadlock, lost connection before anything ran).
const MAX_ATTEMPTS: u32 = 4;

/// Longest time for one transaction on PostgreSQL.
const PG_TIMEOUT: Duration = Duration::from_secs(60);

/// What the writer is told.
pub(crate) enum Message {
    /// Write this.
    Commit(Job),
    /// Write what waits, then stop.
    Close,
}

/// A decision and the one who waits for it.
pub(crate) struct Job {
    pub(crate) prepared: Prepared,
    pub(crate) reply: oneshot::Sender<Result<(), CommitError>>,
}

/// The writer's own state.
pub(crate) struct Committer {
    pub(crate) db: Db,
    pub(crate) process: ServerId,
    pub(crate) hints: broadcast::Sender<Hint>,
    pub(crate) connection: Option<WriteConnection>,
}

/// Why a group was not written.
enum Failure {
    /// The transaction never began: the connection was dead.
    NotBegun(StoreError),
    /// The database asks to try again.
    TryAgain(StoreError),
    /// One of the decisions collides with a row that exists.
    Collision,
    /// One of the decisions cannot be written as it is.
    Unwritable(StoreError),
    /// Everything else, including an unknown outcome.
    Whole(StoreError),
}

impl Committer {
    /// Writes until everybody who could ask is gone or the store is closed.
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

    /// Writes a group, in as few transactions as possible, and answers everybody in it.
    async fn write(&mut self, group: Vec<Job>) {
        let mut groups = vec![(group, 1)];
        while let Some((mut group, attempt)) = groups.pop() {
            if group.is_empty() {
                continue;
            }
            let failure = match self.try_write(&group).await {
                Ok(written) => {
                    self.answer(group, &written);
                    continue;
                }
                Err(failure) => failure,
            };
            let error = match failure {
                Failure::NotBegun(_) | Failure::TryAgain(_) if attempt < MAX_ATTEMPTS => {
                    groups.push((group, attempt + 1));
                    continue;
                }
                Failure::Collision | Failure::Unwritable(_) if group.len() > 1 => {
                    let second = group.split_off(group.len() / 2);
                    groups.push((second, 1));
                    groups.push((group, 1));
                    continue;
                }
                Failure::Collision => CommitError::Conflict,
                Failure::NotBegun(error) | Failure::TryAgain(error) | Failure::Unwritable(error) | Failure::Whole(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, decisions = group.len(), "commit failed");
                    CommitError::Store(error)
                }
            };
            for job in group {
                // Whoever no longer waits does not mind.
                let _ = job.reply.send(Err(error.clone()));
            }
        }
    }

    async fn try_write(&mut self, group: &[Job]) -> Result<Vec<bool>, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.db.connect().await.map_err(StoreError::doing("accept a connection")).map_err(Failure::NotBegun)?,
        };
        let group: Vec<&Prepared> = group.iter().map(|job| &job.prepared).collect();
        let writing = write_group(&mut connection, self.process, &group);
        let result = match &self.db {
            Db::Sqlite { .. } => writing.await,
            // A partner that stopped answering must not stop us for good. The outcome is unknown then.
            Db::Pg { .. } => match tokio::time::timeout(PG_TIMEOUT, writing).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Whole(StoreError::doing("answer in time")(timed_out()))),
            },
        };
        match &result {
            Ok(_) | Err(Failure::TryAgain(_) | Failure::Collision | Failure::Unwritable(_)) => {
                self.connection = Some(connection);
            }
            // In doubt a new connection: this one may be dead, or in the middle of something.
            Err(Failure::NotBegun(_) | Failure::Whole(_)) => drop(connection),
        }
        result
    }

    /// Tells everybody, and wakes whom the written decisions want to wake.
    fn answer(&self, group: Vec<Job>, written: &[bool]) {
        let done = || group.iter().zip(written).filter(|(_, written)| **written).map(|(job, _)| &job.prepared);
        for hint in distinct(done().flat_map(|prepared| &prepared.hints)) {
            // No receiver is no harm.
            let _ = self.hints.send(hint.clone());
        }
        for (job, written) in group.into_iter().zip(written) {
            let _ = job.reply.send(if *written { Ok(()) } else { Err(CommitError::Conflict) });
        }
    }
}

/// Takes what can be written together off the front: decisions on the same row wait for the next transaction.
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
            // Later decisions on these rows stay behind this one.
            rows.extend(writes.iter().map(|write| write.id.clone()));
            left.push_back(job);
        }
    }
    *waiting = left;
    group
}

/// One transaction. Returns, per decision, whether it was written; the others conflict.
async fn write_group(connection: &mut WriteConnection, process: ServerId, group: &[&Prepared]) -> Result<Vec<bool>, Failure> {
    let begun = connection.begin().await;
    let mut tx = begun.map_err(StoreError::doing("begin a transaction")).map_err(Failure::NotBegun)?;
    match fill(&mut tx, process, group).await {
        Ok(written) if written.contains(&true) => {
            tx.commit().await.map_err(StoreError::doing("commit")).map_err(Failure::Whole)?;
            Ok(written)
        }
        Ok(written) => {
            tx.rollback().await.map_err(StoreError::doing("roll back")).map_err(Failure::Whole)?;
            Ok(written)
        }
        Err(error) => {
            let failure = classified(error);
            if !matches!(failure, Failure::Whole(_)) {
                tx.rollback().await.map_err(StoreError::doing("roll back")).map_err(Failure::Whole)?;
            }
            Err(failure)
        }
    }
}

/// Everything between BEGIN and COMMIT.
async fn fill(tx: &mut WriteTransaction<'_>, process: ServerId, group: &[&Prepared]) -> Result<Vec<bool>, StoreError> {
    let current = lock(tx, group).await?;
    let written: Vec<bool> = group.iter().map(|prepared| versions_match(prepared, &current)).collect();
    let accepted: Vec<&Prepared> = group.iter().zip(&written).filter(|(_, ok)| **ok).map(|(prepared, _)| *prepared).collect();
    if accepted.is_empty() {
        return Ok(written);
    }
    write_servers(tx, &accepted).await?;
    for aggregate in Aggregate::ALL {
        write_aggregate(tx, aggregate, &accepted).await?;
    }
    for record in Record::ALL {
        let rows = accepted.iter().flat_map(|prepared| &prepared.records).filter(|(kind, _)| *kind == record);
        let rows: Vec<Row> = rows.map(|(_, row)| row.clone()).collect();
        record.table().insert(tx, rows, record.on_conflict()).await.map_err(StoreError::doing("write records"))?;
    }
    // After the new certificates: one that was issued by a decision of the same group is revoked as well.
    for revocation in accepted.iter().flat_map(|prepared| &prepared.revocations) {
        let revoked = tx.execute(certificate::REVOKE, revocation.clone()).await;
        revoked.map_err(StoreError::doing("revoke certificates"))?;
    }
    // From here on other processes wait for us: what follows is only appended.
    append(tx, &accepted).await?;
    count_tasks(tx, &accepted, &current).await?;
    notify(tx, process, &accepted).await?;
    Ok(written)
}

/// Locks every row that the group writes over.
async fn lock(tx: &mut WriteTransaction<'_>, group: &[&Prepared]) -> Result<HashMap<String, Current>, StoreError> {
    let mut current = HashMap::new();
    for aggregate in Aggregate::ALL {
        let writes = group.iter().flat_map(|prepared| &prepared.writes);
        let ids = writes.filter(|write| write.aggregate == aggregate && write.over.is_some()).map(|write| write.id.clone());
        current.extend(aggregate.table().lock(tx, ids.collect(), aggregate.state_column()).await?);
    }
    Ok(current)
}

fn versions_match(prepared: &Prepared, current: &HashMap<String, Current>) -> bool {
    prepared.writes.iter().all(|write| match write.over {
        Some(version) => current.get(&write.id).is_some_and(|row| row.version == version),
        None => true,
    })
}

async fn write_servers(tx: &mut WriteTransaction<'_>, accepted: &[&Prepared]) -> Result<(), StoreError> {
    let mut seen = HashMap::new();
    for (server, at) in accepted.iter().flat_map(|prepared| &prepared.servers) {
        let latest = seen.entry(*server).or_insert(*at);
        *latest = (*latest).max(*at);
    }
    let rows = server::to_rows(&seen);
    server::TABLE.insert(tx, rows, server::ON_CONFLICT).await.map_err(StoreError::doing("note that a server is alive"))
}

async fn write_aggregate(tx: &mut WriteTransaction<'_>, aggregate: Aggregate, accepted: &[&Prepared]) -> Result<(), StoreError> {
    let writes = accepted.iter().flat_map(|prepared| &prepared.writes).filter(|write| write.aggregate == aggregate);
    let (inserts, updates): (Vec<_>, Vec<_>) = writes.partition(|write| write.over.is_none());
    let table = aggregate.table();
    let rows = inserts.into_iter().map(|write| write.row.clone()).collect();
    table.insert(tx, rows, "").await.map_err(StoreError::doing("insert rows"))?;
    let rows: Vec<Row> = updates.into_iter().map(|write| write.row.clone()).collect();
    let wanted = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let changed = table.update(tx, rows).await.map_err(StoreError::doing("update rows"))?;
    if changed == wanted {
        Ok(())
    } else {
        let what = format!("{changed} of {wanted} rows could be written although all were locked");
        Err(StoreError::Corrupt { table: table.name, column: "version", what })
    }
}

/// Outbox and audit. Both are appended under the lock of the audit head, so that their order is the order of commits.
async fn append(tx: &mut WriteTransaction<'_>, accepted: &[&Prepared]) -> Result<(), StoreError> {
    let events: Vec<Row> = accepted.iter().flat_map(|prepared| prepared.events.iter().cloned()).collect();
    let entries: Vec<_> = accepted.iter().flat_map(|prepared| &prepared.audit).collect();
    if events.is_empty() && entries.is_empty() {
        return Ok(());
    }
    let sql = match tx {
        WriteTransaction::Sqlite(_) => audit::HEAD,
        WriteTransaction::Pg(_) => audit::HEAD_LOCK_PG,
    };
    let head = tx.fetch("lock the audit log", sql, Vec::new(), audit::head_from_row).await?;
    let head: Head = head.into_iter().next().ok_or_else(audit::head_missing)?;
    outbox::TABLE.insert(tx, events, "").await.map_err(StoreError::doing("write the outbox"))?;
    let (head, rows) = chain(head, entries)?;
    if rows.is_empty() {
        return Ok(());
    }
    let doing = StoreError::doing("write the audit log");
    audit::TABLE.insert(tx, rows.iter().map(audit::to_row).collect(), "").await.map_err(&doing)?;
    tx.execute(audit::HEAD_MOVE, vec![Arg::count(head.seq), Arg::text(head.hash)]).await.map_err(&doing)?;
    Ok(())
}

/// Keeps the number of tasks per state.
async fn count_tasks(
    tx: &mut WriteTransaction<'_>,
    accepted: &[&Prepared],
    current: &HashMap<String, Current>,
) -> Result<(), StoreError> {
    let mut change: HashMap<&str, i64> = HashMap::new();
    let writes = accepted.iter().flat_map(|prepared| &prepared.writes).filter(|write| write.aggregate == Aggregate::Task);
    for write in writes {
        *change.entry(write.state).or_default() += 1;
        if write.over.is_some()
            && let Some(before) = current.get(&write.id)
        {
            *change.entry(before.state.as_str()).or_default() -= 1;
        }
    }
    let mut change: Vec<_> = change.into_iter().filter(|(_, by)| *by != 0).collect();
    change.sort_unstable();
    let rows = change.into_iter().map(|(state, by)| vec![Arg::text(state), Arg::Int(Some(by))]).collect();
    task::COUNT_TABLE.insert(tx, rows, task::COUNT_ON_CONFLICT).await.map_err(StoreError::doing("count tasks"))
}

/// Other processes hear of the commit when it is done, and only then.
async fn notify(tx: &mut WriteTransaction<'_>, process: ServerId, accepted: &[&Prepared]) -> Result<(), StoreError> {
    let WriteTransaction::Pg(pg) = tx else { return Ok(()) };
    let payloads = hints::payloads(process, distinct(accepted.iter().flat_map(|prepared| &prepared.hints)));
    if payloads.is_empty() {
        return Ok(());
    }
    let sent = sqlx::query(hints::NOTIFY).bind(payloads).execute(&mut **pg).await;
    sent.map(drop).map_err(StoreError::doing("notify other servers"))
}

fn distinct<'a>(hints: impl Iterator<Item = &'a Hint>) -> Vec<&'a Hint> {
    let mut seen = HashSet::new();
    hints.filter(|hint| seen.insert(*hint)).collect()
}

fn classified(error: StoreError) -> Failure {
    let StoreError::Database { source, .. } = &error else {
        return match error {
            StoreError::BadDecision { .. } => Failure::Unwritable(error),
            other => Failure::Whole(other),
        };
    };
    let Some(said) = source.as_database_error() else { return Failure::Whole(error) };
    match said.kind() {
        ErrorKind::UniqueViolation => Failure::Collision,
        ErrorKind::ForeignKeyViolation
        | ErrorKind::NotNullViolation
        | ErrorKind::CheckViolation
        | ErrorKind::ExclusionViolation => Failure::Unwritable(error),
        _ => {
            let postgres = said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some();
            let code = said.code().unwrap_or_default();
            match code.get(..2) {
                // Transaction rollback: deadlock or serialisation.
                Some("40") if postgres => Failure::TryAgain(error),
                // Data exception: a value that the database cannot hold.
                Some("22") if postgres => Failure::Unwritable(error),
                _ => Failure::Whole(error),
            }
        }
    }
}

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
        // `b` may not overtake the one before it, although its own row was free.
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

    /// The group is handed to the writer as one, so that nothing depends on timing.
    async fn mixed_group(database: &Database) {
        let store = database.open().await;
        let known = crate::support::stored_node(&store).await;
        let (hints, mut heard) = broadcast::channel(1000);
        let mut committer = Committer { db: store.db().clone(), process: ServerId::generate(), hints, connection: None };
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
            job(decision.hint(Hint::Task(task.id)), cluster)
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
                    written.push(Hint::Task(task.id));
                }
            }
        }
        let mut hinted = Vec::new();
        while let Ok(hint) = heard.try_recv() {
            hinted.push(hint);
        }
        assert_eq!(hinted, written, "exactly the written ones wake somebody");
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
