//! Servers are replaced one by one: a server of the previous version keeps reading and writing while a newer one changes the
//! schema.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use gpuaas_domain::Change;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_store::{AuditFilter, Store, StoreConfig, StoreError};
use sqlx::{Connection as _, Executor as _, Row as _};
use support::{Database, api_token, certificate, changes, document, enrollment, join_token, recorded, slot, stored_node, task};

/// Tables that servers do not write. Every other table must take part in the test.
const NOT_WRITTEN_HERE: [&str; 1] = ["schema_version"];

/// Writes a row of every kind and reads each of them back.
async fn round(store: &Store) {
    let node = stored_node(store).await;
    let mut task = task(&node);
    store.commit(recorded("task", [Change::TaskInsert(Box::new(task.clone()))])).await.expect("writes a task");
    let (token, key, request) = (join_token(), api_token(), enrollment());
    let (certificate, slot) = (certificate(&node, &task.id.to_string()), slot(&node, &task, 0));
    let resource = document(ResourceKind::Project, &format!("proj_{}", task.id));
    let others = [
        Change::JoinTokenInsert(token.clone()),
        Change::ApiTokenInsert(key.clone()),
        Change::EnrollmentInsert(Box::new(request.clone())),
        Change::CertificateInsert(certificate.clone()),
        Change::SlotInsert(Box::new(slot.clone())),
        Change::ResourceInsert(Box::new(resource.clone())),
    ];
    store.commit(recorded("others", others)).await.expect("writes the others");
    store.commit(changes([Change::ResourceUpdate(Box::new(resource.clone()))])).await.expect("writes over a resource");
    store.commit(changes([Change::TaskUpdate(Box::new(task.clone()))])).await.expect("writes over a task");
    task.version += 1;
    assert_eq!(store.node_get(node.id).await.expect("reads").map(|found| found.id), Some(node.id));
    assert_eq!(store.task_get(task.id).await.expect("reads"), Some(task));
    assert_eq!(store.join_token_get(token.id).await.expect("reads"), Some(token));
    assert_eq!(store.api_token_get(key.id).await.expect("reads"), Some(key));
    assert_eq!(store.enrollment_get(request.id).await.expect("reads").map(|found| found.id), Some(request.id));
    assert_eq!(store.certificate_get(&certificate.serial).await.expect("reads"), Some(certificate));
    assert_eq!(store.slot_of_node(node.id).await.expect("reads").len(), 1);
    let found = store.resource_get(ResourceKind::Project, &resource.id).await.expect("reads");
    assert_eq!(found.map(|found| found.version), Some(resource.version + 1));
    store.audit_list(0, 10, &AuditFilter::default()).await.expect("lists");
    store.outbox_list(0, 10).await.expect("lists");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_version_before_goes_on_while_the_schema_grows_under_it() {
    let Some(database) = Database::postgres("a_server_of_the_version_before_goes_on_while_the_schema_grows").await else {
        return;
    };
    let StoreConfig::Postgres { url, .. } = &database.config else { panic!("not on PostgreSQL") };
    let store = database.open().await;
    let (rounds, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn({
        let (store, rounds, stop) = (store.clone(), Arc::clone(&rounds), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::SeqCst) {
                round(&store).await;
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let wait_for_a_round = async || {
        let before = rounds.load(Ordering::SeqCst);
        // Two rounds: the current one, and a complete one.
        while rounds.load(Ordering::SeqCst) < before + 2 && !writer.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(!writer.is_finished(), "the server of the version before stopped writing");
    };
    wait_for_a_round().await;

    // A newer server starts by adding a column to every table and recording which servers may stay.
    let mut newer = sqlx::PgConnection::connect(url).await.expect("connects");
    let tables = newer
        .fetch_all("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'")
        .await
        .expect("lists");
    let tables: Vec<String> = tables.iter().map(|row| row.get(0)).collect();
    assert!(tables.len() > 15, "{tables:?}");
    for table in tables.iter().filter(|table| !NOT_WRITTEN_HERE.contains(&table.as_str())) {
        let sql = format!("ALTER TABLE {table} ADD COLUMN of_the_next_version TEXT");
        newer.execute(sqlx::AssertSqlSafe(sql)).await.expect("adds a column");
        wait_for_a_round().await;
    }
    let note = "INSERT INTO schema_version (version, checksum, applied_at, runs_with) SELECT 999, 'next', 0, max(version) FROM schema_version";
    newer.execute(note).await.expect("notes the version");
    wait_for_a_round().await;
    stop.store(true, Ordering::SeqCst);
    writer.await.expect("wrote to the end");

    // It may also be restarted, as long as the newer schema allows it.
    let again = database.open().await;
    round(&again).await;
    again.close().await;
    newer.execute("UPDATE schema_version SET runs_with = 999 WHERE version = 999").await.expect("updates");
    let refused = Store::open(&database.config).await.err().expect("a schema that takes something away is not for this version");
    assert!(matches!(refused, StoreError::SchemaNewer { found: 999, .. }), "{refused:?}");
    newer.close().await.expect("closes");
    store.close().await;
    database.remove().await;
}
