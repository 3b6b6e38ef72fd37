//! The single statement: it is used, it refuses, and its outcome can always be found out.

use gpuaas_contract::id::{AgentInstanceId, NodeId};
use gpuaas_domain::decision::TaskLogLine;
use gpuaas_domain::node::Node;
use gpuaas_domain::resource::{Document, ResourceKind};
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision};

use super::*;
use crate::support::{
    Database, NOW, api_token, certificate, changes, digest, document, enrollment, join_token, node, recorded, stored_node,
    stored_task, task,
};
use crate::{AuditFilter, Store};

/// A connection beside the store's that knows where the chain ends.
struct Writer {
    store: Store,
    connection: WriteConnection,
    chain: Chain,
    process: ServerId,
}

impl Writer {
    async fn new(database: &Database) -> Self {
        let store = database.open().await;
        let connection = store.db().connect().await.expect("connects");
        let mut writer = Self { store, connection, chain: Chain::default(), process: ServerId::generate() };
        assert!(!writer.at_once(&[recorded("first", [])]).await, "nobody knows yet where the chain ends");
        assert_eq!(writer.with(&[recorded("first", [])], &CommitMode::AtOnce).await, [true]);
        writer
    }

    fn prepared(&self, decisions: &[Decision]) -> Vec<Prepared> {
        let cluster = self.store.inner.cluster;
        decisions.iter().map(|decision| Prepared::new(decision.clone(), cluster).expect("prepares")).collect()
    }

    async fn at_once(&mut self, decisions: &[Decision]) -> bool {
        let prepared = self.prepared(decisions);
        let group: Vec<&Prepared> = prepared.iter().collect();
        let written = self.chain.write_at_once(&mut self.connection, self.process, &group).await;
        written.unwrap_or_else(|_| panic!("the connection broke"))
    }

    async fn with(&mut self, decisions: &[Decision], way: &CommitMode) -> Vec<bool> {
        let prepared = self.prepared(decisions);
        let group: Vec<&Prepared> = prepared.iter().collect();
        let written = self.chain.write(&mut self.connection, self.process, &group, way).await;
        written.unwrap_or_else(|_| panic!("nothing was written"))
    }

    /// Returns the number of rows in the audit log and checks that the log is complete.
    async fn entries(&self) -> usize {
        let rows = self.store.audit_list(0, 1000, &AuditFilter::default()).await.expect("lists");
        gpuaas_domain::audit_chain::verify(&Head::genesis(), &rows).expect("the chain is whole");
        assert_eq!(self.store.outbox_list(0, 1000).await.expect("lists").len(), rows.len(), "an event for every entry");
        rows.len()
    }
}

/// Returns decisions with every kind of change except a revocation.
fn everything(known: &Node, running: &TaskRecord) -> Vec<Decision> {
    let (fresh, waiting) = (node(), task(known));
    let receipt = Change::ReceiptInsert {
        task_id: running.id,
        node_id: known.id,
        node_epoch: known.epoch,
        sequence: 1,
        digest: digest("receipt"),
        previous: None,
        receipt: vec![0, 255, 7],
        received_at: NOW,
    };
    let envelope = Change::EnvelopeInsert {
        task_id: running.id,
        digest: digest("envelope"),
        envelope: b"{\"a\":\"\\u0000\"}".to_vec(),
        key_id: "key".to_owned().into(),
        signed_at: NOW,
    };
    let line = TaskLogLine {
        task_id: running.id,
        sequence: 1,
        at: NOW,
        stream: "out".to_owned(),
        text: "äöü \"".to_owned(),
        dropped: 0,
    };
    vec![
        recorded("server", [Change::ServerSeen { server: ServerId::generate(), at: NOW }]),
        recorded("node", [Change::NodeInsert(Box::new(fresh.clone())), Change::CertificateInsert(certificate(&fresh, "01"))]),
        recorded("known", [Change::NodeUpdate(Box::new(Node { name: "renamed".to_owned(), ..known.clone() }))]),
        recorded("tokens", [Change::JoinTokenInsert(join_token()), Change::ApiTokenInsert(api_token())]),
        recorded("request", [Change::EnrollmentInsert(Box::new(enrollment()))]),
        recorded("resource", [Change::ResourceInsert(Box::new(document(ResourceKind::Sku, "sku_1")))]),
        recorded("task", [Change::TaskInsert(Box::new(waiting))]).wakeup(Wakeup::NodeWork(known.id)),
        recorded(
            "running",
            [
                Change::TaskUpdate(Box::new(TaskRecord { state: TaskState::Started, ..running.clone() })),
                envelope,
                receipt,
                Change::LogAppend(vec![line]),
            ],
        ),
    ]
}

async fn writes_everything_at_once(database: &Database) {
    let mut writer = Writer::new(database).await;
    let store = writer.store.clone();
    let known = stored_node(&store).await;
    let running = stored_task(&store, &known).await;
    let decisions = everything(&known, &running);
    assert!(writer.at_once(&decisions).await, "an ordinary group is written with one statement");
    assert_eq!(writer.entries().await, 1 + decisions.len());
    assert_eq!(store.node_get(known.id).await.expect("reads").expect("is there").name, "renamed");
    let (after, digests) = store.task_with_envelopes(running.id).await.expect("reads").expect("is there");
    assert_eq!((after.version, after.state, digests), (1, TaskState::Started, vec![digest("envelope")]));
    assert_eq!(store.receipt_get(running.id).await.expect("reads").expect("is there").receipt, [0, 255, 7]);
    let counts = store.task_counts().await.expect("counts");
    assert!(counts.contains(&(TaskState::Queued, 1)) && counts.contains(&(TaskState::Started, 1)), "{counts:?}");
}

async fn refuses_as_a_whole(database: &Database) {
    let mut writer = Writer::new(database).await;
    let store = writer.store.clone();
    let known = stored_node(&store).await;
    let running = stored_task(&store, &known).await;
    let named = |id: &str| {
        let mut named = document(ResourceKind::Sku, id);
        named.keys.name = Some("h100".to_owned());
        named
    };
    store.commit(changes([Change::ResourceInsert(Box::new(named("sku_1")))])).await.expect("commits");
    let before = (writer.entries().await, store.task_counts().await.expect("counts"));
    let other = task(&known);
    let good = || recorded("good", [Change::TaskInsert(Box::new(other.clone()))]);
    let bad = [
        recorded("stale", [Change::TaskUpdate(Box::new(TaskRecord { version: 3, ..running.clone() }))]),
        recorded("unknown", [Change::NodeUpdate(Box::new(Node { id: NodeId::generate(), ..known.clone() }))]),
        recorded("exists", [Change::NodeInsert(Box::new(known.clone()))]),
        recorded("name is taken", [Change::ResourceInsert(Box::new(named("sku_2")))]),
        recorded("stale", [Change::ResourceUpdate(Box::new(Document { version: 3, ..named("sku_1") }))]),
        recorded("of nobody", [Change::TaskInsert(Box::new(task(&node())))]),
    ];
    for bad in bad {
        assert!(!writer.at_once(&[good(), bad.clone()]).await, "{bad:?}");
        assert_eq!((writer.entries().await, store.task_counts().await.expect("counts")), before, "{bad:?}");
        assert_eq!(store.task_get(other.id).await.expect("reads"), None, "{bad:?}");
    }
    // The connection is still usable, and row by row the valid decision is written.
    let stale = recorded("stale", [Change::TaskUpdate(Box::new(TaskRecord { version: 3, ..running.clone() }))]);
    assert_eq!(writer.with(&[good(), stale], &CommitMode::AtOnce).await, [true, false]);
    assert_eq!(writer.entries().await, before.0 + 1);

    // Another writer appends: the known end of the chain is outdated, which costs only the attempt.
    store.commit(recorded("other", [])).await.expect("commits");
    assert!(!writer.at_once(&[recorded("ours", [])]).await);
    assert_eq!(writer.with(&[recorded("ours", [])], &CommitMode::AtOnce).await, [true]);
    assert!(!writer.at_once(&[recorded("ours", [])]).await, "not again while others append as well");
    assert_eq!(writer.with(&[recorded("ours", [])], &CommitMode::AtOnce).await, [true]);
    assert!(writer.at_once(&[recorded("ours", [])]).await, "but when they have stopped");
    assert_eq!(writer.entries().await, before.0 + 5);
}

async fn leaves_nobody_in_doubt(database: &Database) {
    let mut writer = Writer::new(database).await;
    let store = writer.store.clone();
    let known = stored_node(&store).await;
    let running = stored_task(&store, &known).await;
    let instance = AgentInstanceId::generate().to_string();
    let group = [
        recorded(&instance, [Change::TaskUpdate(Box::new(running.clone()))]),
        recorded("new", [Change::TaskInsert(Box::new(task(&known)))]),
    ];
    // The end that the statement would have left behind.
    let prepared = writer.prepared(&group);
    let head = store.audit_head().await.expect("reads");
    let script = Script::new(writer.process, &prepared.iter().collect::<Vec<_>>(), Some(head)).expect("can be written");
    let end = script.end().cloned().expect("it appends");

    // It did not run, so it is written now.
    assert_eq!(writer.with(&group, &CommitMode::InDoubt(end.clone())).await, [true, true]);
    assert_eq!(writer.entries().await, 3);
    // It did run, so it is not written again, although its versions no longer match.
    assert_eq!(store.audit_head().await.expect("reads"), end);
    store.commit(recorded("later", [])).await.expect("commits");
    assert_eq!(writer.with(&group, &CommitMode::InDoubt(end)).await, [true, true]);
    assert_eq!(writer.entries().await, 4);
    assert_eq!(store.task_get(running.id).await.expect("reads").expect("is there").version, 1);
    // In a mode without doubt it is a conflict.
    assert_eq!(writer.with(&[changes([Change::TaskUpdate(Box::new(running))])], &CommitMode::WithCare).await, [false]);
}

macro_rules! on_both {
    ($($promise:ident, $sqlite:ident, $postgres:ident;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $sqlite() {
            let database = Database::sqlite();
            $promise(&database).await;
            database.remove().await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $postgres() {
            if let Some(database) = Database::postgres(stringify!($postgres)).await {
                $promise(&database).await;
                database.remove().await;
            }
        }
    )*};
}
on_both! {
    writes_everything_at_once, one_statement_writes_every_kind_of_row_on_sqlite, one_statement_writes_every_kind_of_row_on_postgres;
    refuses_as_a_whole, one_statement_is_refused_as_a_whole_on_sqlite, one_statement_is_refused_as_a_whole_on_postgres;
    leaves_nobody_in_doubt, a_group_in_doubt_is_written_once_on_sqlite, a_group_in_doubt_is_written_once_on_postgres;
}
