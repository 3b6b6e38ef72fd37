//! What a commit guarantees: all or nothing, in order, visible to all.

use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_domain::audit_chain::{self, Head};
use gpuaas_domain::enrollment::JoinToken;
use gpuaas_domain::node::Node;
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_domain::{Change, Wakeup};
use gpuaas_store::{AuditFilter, CommitError, Store, StoreConfig, StoreError};

use crate::support::{Database, NOW, certificate, changes, join_token, node, recorded, stored_node, task};
use crate::{all_at_once, traces, whole_audit};

crate::on_both_engines! {
    an_update_over_another_version_conflicts
    an_insert_of_a_known_id_or_key_conflicts
    a_refused_decision_leaves_nothing_behind
    a_conflict_takes_nobody_else_down
    a_decision_that_cannot_be_written_takes_nobody_else_down
    of_many_writers_over_one_version_exactly_one_wins
    the_audit_chain_has_no_gaps_under_many_writers
    every_event_is_a_cloud_event_in_commit_order
    hints_come_after_their_commit
    reopening_finds_everything_again
    a_closed_store_refuses_and_loses_nothing
    a_newer_schema_is_refused
}

async fn an_update_over_another_version_conflicts(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let renamed = |version, name: &str| {
        let node = Node { version, name: name.to_owned(), ..node.clone() };
        store.commit(changes([Change::NodeUpdate(Box::new(node))]))
    };
    renamed(0, "first").await.expect("commits");
    for version in [0, 2, -1, i64::MAX] {
        assert!(matches!(renamed(version, "late").await, Err(CommitError::Conflict)), "version {version}");
    }
    renamed(1, "second").await.expect("commits");
    let read = store.node_get(node.id).await.expect("reads").expect("is there");
    assert_eq!((read.version, read.name.as_str()), (2, "second"));
    let unknown = Node { id: NodeId::generate(), ..node.clone() };
    let result = store.commit(changes([Change::NodeUpdate(Box::new(unknown))])).await;
    assert!(matches!(result, Err(CommitError::Conflict)), "a row that is not there: {result:?}");
}

async fn an_insert_of_a_known_id_or_key_conflicts(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let conflicts = async |change| {
        let result = store.commit(recorded("conflict", [change])).await;
        assert!(matches!(result, Err(CommitError::Conflict)), "{result:?}");
    };
    conflicts(Change::NodeInsert(Box::new(Node { fingerprint: "other".to_owned(), ..known.clone() }))).await;
    conflicts(Change::NodeInsert(Box::new(Node { fingerprint: known.fingerprint.clone(), ..node() }))).await;
    let keyed = |key: &str| TaskRecord { idempotency_key: Some(key.to_owned()), ..task(&known) };
    store.commit(changes([Change::TaskInsert(Box::new(keyed("k")))])).await.expect("commits");
    conflicts(Change::TaskInsert(Box::new(keyed("k")))).await;
    let other_caller = TaskRecord { requested_by: "token:other".to_owned(), ..keyed("k") };
    store.commit(changes([Change::TaskInsert(Box::new(other_caller))])).await.expect("another caller's key is another key");
    let token = join_token();
    store.commit(changes([Change::JoinTokenInsert(token.clone())])).await.expect("commits");
    conflicts(Change::JoinTokenInsert(JoinToken { secret_digest: token.secret_digest.clone(), ..join_token() })).await;
    store.commit(changes([Change::CertificateInsert(certificate(&known, "01"))])).await.expect("commits");
    conflicts(Change::CertificateInsert(certificate(&known, "01"))).await;
    assert_eq!(store.audit_head().await.expect("reads"), Head::genesis(), "no conflict left an audit row");
}

async fn a_refused_decision_leaves_nothing_behind(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let before = traces(&store).await;
    let mut wakeups = store.wakeups();
    let new_task = task(&known);
    let stale = Node { version: 5, ..known.clone() };
    let token = join_token();
    let refused = |last: Change| {
        recorded("refused", [Change::TaskInsert(Box::new(new_task.clone())), Change::JoinTokenInsert(token.clone()), last])
            .wakeup(Wakeup::Task(new_task.id))
    };
    for last in [Change::NodeUpdate(Box::new(stale)), Change::NodeInsert(Box::new(known.clone()))] {
        assert!(matches!(store.commit(refused(last)).await, Err(CommitError::Conflict)));
    }
    let mut twice = recorded("twice", [Change::NodeUpdate(Box::new(known.clone()))]);
    twice.changes.push(Change::NodeUpdate(Box::new(known.clone())));
    let result = store.commit(twice).await;
    assert!(matches!(result, Err(CommitError::Store(StoreError::BadDecision { .. }))), "{result:?}");

    assert_eq!(traces(&store).await, before);
    assert_eq!(store.task_get(new_task.id).await.expect("reads"), None);
    assert_eq!(store.join_token_get(token.id).await.expect("reads"), None);
    assert_eq!(store.node_get(known.id).await.expect("reads"), Some(known.clone()));
    // The next wake-up that arrives belongs to the next decision that is written.
    store.commit(changes([]).wakeup(Wakeup::NodeWork(known.id))).await.expect("commits");
    assert_eq!(wakeups.recv().await, Ok(Wakeup::NodeWork(known.id)));
}

async fn a_conflict_takes_nobody_else_down(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let fresh: Vec<TaskRecord> = (0..120).map(|_| task(&known)).collect();
    let decisions = fresh.iter().enumerate().map(|(n, task)| {
        let insert = Change::TaskInsert(Box::new(task.clone()));
        match n % 10 {
            // A stale version, detected before anything is written.
            3 => recorded("stale", [insert, Change::NodeUpdate(Box::new(Node { version: 99, ..known.clone() }))]),
            // A key that exists, detected only while writing.
            7 => recorded(
                "duplicate",
                [insert, Change::NodeInsert(Box::new(Node { fingerprint: n.to_string(), ..known.clone() }))],
            ),
            _ => recorded("fine", [insert]),
        }
    });
    let results = all_at_once(&store, decisions.collect()).await;
    for (n, (result, task)) in results.iter().zip(&fresh).enumerate() {
        let stored = store.task_get(task.id).await.expect("reads").is_some();
        match n % 10 {
            3 | 7 => assert!(matches!(result, Err(CommitError::Conflict)) && !stored, "{n}: {result:?} {stored}"),
            _ => assert!(result.is_ok() && stored, "{n}: {result:?} {stored}"),
        }
    }
    assert_eq!(store.audit_head().await.expect("reads").seq, 96);
    assert_eq!(store.outbox_list(0, 1000).await.expect("reads").len(), 96);
    assert!(store.task_counts().await.expect("counts").contains(&(TaskState::Queued, 96)));
}

async fn a_decision_that_cannot_be_written_takes_nobody_else_down(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let decisions = (0..40).map(|n| {
        let owner = if n == 17 { node() } else { known.clone() };
        recorded("task", [Change::TaskInsert(Box::new(task(&owner)))])
    });
    let results = all_at_once(&store, decisions.collect()).await;
    for (n, result) in results.iter().enumerate() {
        match result {
            Err(CommitError::Store(StoreError::Database { .. })) if n == 17 => {}
            Ok(()) if n != 17 => {}
            other => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(store.audit_head().await.expect("reads").seq, 39);
}

async fn of_many_writers_over_one_version_exactly_one_wins(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let decisions = (0..50).map(|n| {
        let renamed = Node { name: format!("name {n}"), ..known.clone() };
        recorded("node", [Change::NodeUpdate(Box::new(renamed))])
    });
    let results = all_at_once(&store, decisions.collect()).await;
    let winners: Vec<usize> = results.iter().enumerate().filter(|(_, result)| result.is_ok()).map(|(n, _)| n).collect();
    assert_eq!(winners.len(), 1);
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(CommitError::Conflict))));
    let read = store.node_get(known.id).await.expect("reads").expect("is there");
    assert_eq!((read.version, read.name), (1, format!("name {}", winners[0])));
    assert_eq!(store.audit_head().await.expect("reads").seq, 1);
}

async fn the_audit_chain_has_no_gaps_under_many_writers(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let mut writers = Vec::new();
    for writer in 0..50 {
        let (store, known) = (store.clone(), known.clone());
        writers.push(tokio::spawn(async move {
            for _ in 0..8 {
                let subject = format!("writer {writer}");
                store.commit(recorded(&subject, [Change::TaskInsert(Box::new(task(&known)))])).await.expect("commits");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("the writer lives");
    }
    let rows = whole_audit(&store).await;
    assert_eq!(rows.iter().map(|row| row.seq).collect::<Vec<_>>(), (1..=400).collect::<Vec<_>>());
    let head = audit_chain::verify(&Head::genesis(), &rows).expect("the chain is whole");
    assert_eq!(head, store.audit_head().await.expect("reads"));
    let filter = AuditFilter {
        target: Some("writer 7".to_owned()),
        actor: Some("system".to_owned()),
        action: Some("task.create".to_owned()),
    };
    assert_eq!(store.audit_list(0, 100, &filter).await.expect("lists").len(), 8);
    for nobody in [
        AuditFilter { target: Some("nobody".to_owned()), ..AuditFilter::default() },
        AuditFilter { actor: Some("nobody".to_owned()), ..AuditFilter::default() },
        AuditFilter { action: Some("nothing".to_owned()), ..AuditFilter::default() },
    ] {
        assert!(store.audit_list(0, 100, &nobody).await.expect("lists").is_empty());
    }
}

async fn every_event_is_a_cloud_event_in_commit_order(database: &Database) {
    let store = database.open().await;
    let cluster = store.cluster_id().await.expect("reads");
    let mut expected = Vec::new();
    for n in 0..5 {
        let decision = recorded(&format!("subject {n}"), []);
        expected.push(decision.events[0].clone());
        store.commit(decision).await.expect("commits");
    }
    let rows = store.outbox_list(0, 100).await.expect("lists");
    assert_eq!(rows.len(), 5);
    assert!(rows.is_sorted_by(|one, other| one.position < other.position));
    for (row, event) in rows.iter().zip(&expected) {
        let body: serde_json::Value = serde_json::from_str(&row.body).expect("JSON");
        let reported = serde_json::json!({
            "specversion": "1.0", "id": event.id, "source": format!("/gpuaas/{cluster}"), "type": event.kind,
            "subject": event.subject, "time": event.at.rfc3339(), "datacontenttype": "application/json",
            "correlationid": event.correlation_id, "data": event.data,
        });
        assert_eq!(body, reported);
        assert_eq!((row.id, row.subject.as_str(), row.kind.as_str()), (event.id, event.subject.as_str(), event.kind.as_str()));
        assert_eq!(row.created_at, event.at);
    }
    let after = store.outbox_list(rows[2].position, 1).await.expect("lists");
    assert_eq!(after, rows[3..4]);
}

async fn hints_come_after_their_commit(database: &Database) {
    let store = database.open().await;
    let known = stored_node(&store).await;
    let mut wakeups = store.wakeups();
    for _ in 0..20 {
        let new = task(&known);
        let decision =
            changes([Change::TaskInsert(Box::new(new.clone()))]).wakeup(Wakeup::Task(new.id)).wakeup(Wakeup::Task(new.id));
        let committing = tokio::spawn({
            let store = store.clone();
            async move { store.commit(decision).await }
        });
        assert_eq!(wakeups.recv().await, Ok(Wakeup::Task(new.id)));
        assert!(store.task_get(new.id).await.expect("reads").is_some(), "what a wakeup is about can be read");
        committing.await.expect("lives").expect("commits");
    }
    assert!(wakeups.is_empty(), "a wakeup that is said twice is sent once");
    let progress = Wakeup::Progress { task_id: TaskId::generate(), phase: "p".to_owned(), message: "m".to_owned(), at: NOW };
    store.wakeup(progress.clone());
    assert_eq!(wakeups.recv().await, Ok(progress));
}

async fn reopening_finds_everything_again(database: &Database) {
    let store = database.open().await;
    let cluster = store.cluster_id().await.expect("reads");
    let node = stored_node(&store).await;
    store.commit(recorded("before", [Change::TaskInsert(Box::new(task(&node)))])).await.expect("commits");
    let before = traces(&store).await;
    store.close().await;

    let store = database.open().await;
    assert_eq!(store.cluster_id().await.expect("reads"), cluster);
    assert_eq!(store.node_get(node.id).await.expect("reads"), Some(node));
    assert_eq!(traces(&store).await, before);
    store.commit(recorded("after", [])).await.expect("commits");
    let rows = whole_audit(&store).await;
    assert_eq!(audit_chain::verify(&Head::genesis(), &rows).expect("one chain").seq, 2);
}

async fn a_closed_store_refuses_and_loses_nothing(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    store.ready().await.expect("ready");
    let clone = store.clone();
    let tasks: Vec<TaskRecord> = (0..200).map(|_| task(&node)).collect();
    let mut running = Vec::new();
    for task in tasks.clone() {
        let store = store.clone();
        running.push(tokio::spawn(async move { store.commit(recorded("task", [Change::TaskInsert(Box::new(task))])).await }));
    }
    store.close().await;
    assert!(matches!(clone.ready().await, Err(StoreError::Closed)));
    let late = clone.commit(recorded("late", [])).await;
    assert!(matches!(late, Err(CommitError::Store(StoreError::Closed))), "{late:?}");
    let mut told = Vec::new();
    for result in running {
        told.push(result.await.expect("lives"));
    }
    drop(clone);
    let store = database.open().await;
    for (task, told) in tasks.iter().zip(told) {
        let stored = store.task_get(task.id).await.expect("reads").is_some();
        match told {
            Ok(()) => assert!(stored, "told that it is written"),
            Err(CommitError::Store(StoreError::Closed)) => assert!(!stored, "told that it is not written"),
            Err(other) => panic!("{other:?}"),
        }
    }
    let rows = whole_audit(&store).await;
    audit_chain::verify(&Head::genesis(), &rows).expect("the chain is whole");
}

async fn a_newer_schema_is_refused(database: &Database) {
    database.open().await.close().await;
    let insert = "INSERT INTO schema_version (version, checksum, applied_at, runs_with) VALUES (99, 'x', 0, 99)";
    let tamper = "UPDATE schema_version SET checksum = 'other' WHERE version = 1";
    let heal = "DELETE FROM schema_version WHERE version = 99";
    let run = async |sql: &'static str| match &database.config {
        StoreConfig::Sqlite { path } => {
            let pool =
                sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(path)).await.expect("opens");
            sqlx::query(sql).execute(&pool).await.expect("runs");
            pool.close().await;
        }
        StoreConfig::Postgres { url, .. } => {
            let pool = sqlx::PgPool::connect(url).await.expect("opens");
            sqlx::query(sql).execute(&pool).await.expect("runs");
            pool.close().await;
        }
    };
    run(insert).await;
    let error = Store::open(&database.config).await.map(drop).expect_err("refused");
    assert!(matches!(error, StoreError::SchemaNewer { found: 99, known: 10 }), "{error:?}");
    run(heal).await;
    run(tamper).await;
    let error = Store::open(&database.config).await.map(drop).expect_err("refused");
    assert!(matches!(error, StoreError::SchemaOther { version: 1 }), "{error:?}");
}
