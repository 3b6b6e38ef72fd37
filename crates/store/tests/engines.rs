//! Tests for one engine only: several processes on PostgreSQL, files and crashes on SQLite.
#![allow(clippy::disallowed_types, reason = "the crash test starts this test program again, to kill it")]

mod support;

use std::io::{BufRead as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::audit_chain::{self, Head};
use gpuaas_domain::node::Node;
use gpuaas_domain::{Change, Wakeup};
use gpuaas_store::{AuditFilter, AuditRow, CommitError, Store, StoreConfig, StoreError, TaskFilter};
use sqlx::Connection as _;
use support::{Database, changes, recorded, stored_node, task};

async fn whole_audit(store: &Store) -> Vec<AuditRow> {
    let mut rows: Vec<AuditRow> = Vec::new();
    loop {
        let page = store.audit_list(rows.last().map_or(0, |row| row.seq), 1000, &AuditFilter::default()).await.expect("lists");
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
    }
}

fn url(database: &Database) -> &str {
    match &database.config {
        StoreConfig::Postgres { url, .. } => url,
        StoreConfig::Sqlite { .. } => panic!("not on PostgreSQL"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_reach_other_processes_on_postgres_once() {
    let Some(database) = Database::postgres("hints_reach_other_processes_on_postgres_once").await else { return };
    let (one, other) = (database.open().await, database.open().await);
    let (mut at_one, mut at_other) = (one.wakeups(), other.wakeups());
    let node = stored_node(&one).await;
    let new = task(&node);
    let decision = recorded("task", [Change::TaskInsert(Box::new(new.clone()))])
        .wakeup(Wakeup::Task(new.id))
        .wakeup(Wakeup::NodeWork(node.id));
    one.commit(decision).await.expect("commits");
    let refused = changes([Change::TaskInsert(Box::new(new.clone()))]).wakeup(Wakeup::NodeAccess(node.id));
    assert!(matches!(one.commit(refused).await, Err(CommitError::Conflict)));
    let progress = |message: &str| Wakeup::Progress {
        task_id: new.id,
        phase: "fetch".to_owned(),
        message: message.to_owned(),
        at: Timestamp(5),
    };
    one.wakeup(progress("half"));
    other.wakeup(progress("done"));
    let expected = [Wakeup::Task(new.id), Wakeup::NodeWork(node.id), Wakeup::Outbox];
    for receiver in [&mut at_one, &mut at_other] {
        let mut came = Vec::new();
        for _ in 0..5 {
            came.push(receiver.recv().await.expect("comes"));
        }
        // Wake-ups of a commit arrive in its order. Those without a commit arrive at any time. Each arrives exactly once, the
        // refused one never.
        let (mut loose, committed): (Vec<_>, Vec<_>) =
            came.into_iter().partition(|wakeup| matches!(wakeup, Wakeup::Progress { .. }));
        assert_eq!(committed, expected);
        loose.sort_by_key(|wakeup| format!("{wakeup:?}"));
        assert_eq!(loose, [progress("done"), progress("half")]);
        assert!(receiver.is_empty());
    }
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_share_one_chain_and_one_outbox_on_postgres() {
    let Some(database) = Database::postgres("several_processes_share_one_chain_and_one_outbox_on_postgres").await else { return };
    // Opened at the same time on an empty database: they migrate one after the other.
    let (one, other, third) = tokio::join!(database.open(), database.open(), database.open());
    let cluster = one.cluster_id().await.expect("reads");
    assert_eq!(other.cluster_id().await.expect("reads"), cluster);
    let node = stored_node(&one).await;
    let contested = task(&node);
    one.commit(changes([Change::TaskInsert(Box::new(contested.clone()))])).await.expect("commits");

    // A reader that follows the outbox while it is written must see every event exactly once.
    let total = 3 * 20 * 10;
    let reader = tokio::spawn({
        let store = third.clone();
        async move {
            let (mut position, mut seen) = (0, Vec::new());
            while seen.len() < total {
                for row in store.outbox_list(position, 7).await.expect("lists") {
                    assert!(row.position > position);
                    position = row.position;
                    seen.push(row.id);
                }
            }
            seen
        }
    });
    let mut writers = Vec::new();
    for store in [&one, &other, &third] {
        for _ in 0..20 {
            let (store, node, contested) = (store.clone(), node.clone(), contested.clone());
            writers.push(tokio::spawn(async move {
                let mut wins = 0;
                for _ in 0..10 {
                    store.commit(recorded("task", [Change::TaskInsert(Box::new(task(&node)))])).await.expect("commits");
                    match store.commit(changes([Change::TaskUpdate(Box::new(contested.clone()))])).await {
                        Ok(()) => wins += 1,
                        Err(CommitError::Conflict) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                wins
            }));
        }
    }
    let mut wins = 0;
    for writer in writers {
        wins += writer.await.expect("lives");
    }
    assert_eq!(wins, 1, "one version is written over once");
    let rows = whole_audit(&one).await;
    assert_eq!(rows.len(), total);
    assert_eq!(audit_chain::verify(&Head::genesis(), &rows).expect("whole"), other.audit_head().await.expect("reads"));
    let seen = reader.await.expect("lives");
    assert_eq!(seen.iter().collect::<std::collections::HashSet<_>>().len(), total);
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_replaced_and_nothing_is_half_written_on_postgres() {
    let Some(database) = Database::postgres("a_lost_connection_is_replaced_and_nothing_is_half_written_on_postgres").await else {
        return;
    };
    let store = database.open().await;
    let node = stored_node(&store).await;
    let mut admin = sqlx::PgConnection::connect(url(&database)).await.expect("connects");
    let kill =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let mut tasks = Vec::new();
    for round in 0..5 {
        let killed = sqlx::query(kill).execute(&mut admin).await.expect("kills").rows_affected();
        assert!(killed > 0, "round {round} killed nothing");
        let new = task(&node);
        let decision = || recorded("task", [Change::TaskInsert(Box::new(new.clone()))]);
        // The writer replaces a connection that died between transactions. If the kill comes in the middle, the caller gets an
        // error and retries; a conflict then shows that the first attempt was written.
        while let Err(error) = store.commit(decision()).await {
            match error {
                CommitError::Conflict => break,
                CommitError::Store(error) => assert!(matches!(error, StoreError::Database { .. }), "{error:?}"),
            }
        }
        tasks.push(new.id);
    }
    // Readers also get a working connection again.
    let found = loop {
        match store.task_list(&TaskFilter::default(), None, 100).await {
            Ok(found) => break found,
            Err(error) => assert!(matches!(error, StoreError::Database { .. }), "{error:?}"),
        }
    };
    tasks.reverse();
    assert_eq!(found.iter().map(|task| task.id).collect::<Vec<_>>(), tasks);
    let rows = whole_audit(&store).await;
    assert_eq!(audit_chain::verify(&Head::genesis(), &rows).expect("whole").seq, 5);
    database.remove().await;
}

#[tokio::test]
async fn a_database_that_is_not_there_is_a_clear_error_without_the_password() {
    let config = StoreConfig::parse("postgres://alice:hunter2@127.0.0.1:1/gpuaas").expect("parses");
    let error = Store::open(&config).await.map(drop).expect_err("nobody listens on port 1");
    assert_eq!(error.to_string(), "the database failed to accept a connection");
    let why = std::error::Error::source(&error).expect("says why").to_string();
    assert!(why.contains("refused"), "{why}");
    assert!(!format!("{error:?}").contains("hunter2"));

    let config = StoreConfig::Sqlite { path: "/nonexistent/folder/gpuaas.db".into() };
    let error = Store::open(&config).await.map(drop).expect_err("no such folder").to_string();
    assert!(error.contains("/nonexistent/folder/gpuaas.db") && error.contains("folder exists"), "{error}");
}

fn sqlite_path(database: &Database) -> &Path {
    match &database.config {
        StoreConfig::Sqlite { path } => path,
        StoreConfig::Postgres { .. } => panic!("not on SQLite"),
    }
}

#[tokio::test]
async fn a_second_server_on_one_sqlite_file_is_refused() {
    let database = Database::sqlite();
    let first = database.open().await;
    let error = Store::open(&database.config).await.map(drop).expect_err("refused");
    assert!(matches!(&error, StoreError::InUse { path } if path == sqlite_path(&database)), "{error:?}");
    assert!(error.to_string().contains("another process"));
    // The first server is not affected. Once it is closed the file is free, even if clones of the store still exist.
    stored_node(&first).await;
    let clone = first.clone();
    first.close().await;
    database.open().await.close().await;
    drop(clone);
}

#[tokio::test]
async fn sqlite_files_are_private_and_durable() {
    let database = Database::sqlite();
    let store = database.open().await;
    stored_node(&store).await;
    let folder = sqlite_path(&database).parent().expect("has a folder");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).expect("lists") {
        let entry = entry.expect("reads");
        names.push(entry.file_name().to_string_lossy().into_owned());
        let mode = entry.metadata().expect("reads").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    names.sort();
    // The write-ahead log exists, so the journal mode is right.
    assert_eq!(names, ["gpuaas.db", "gpuaas.db-shm", "gpuaas.db-wal", "gpuaas.db.lock"]);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_kept() {
    let database = Database::sqlite();
    let path = sqlite_path(&database);
    std::fs::write(path, "not a database, but somebody's notes ".repeat(100)).expect("writes");
    let before = std::fs::read(path).expect("reads");
    Store::open(&database.config).await.map(drop).expect_err("refused");
    assert_eq!(std::fs::read(path).expect("reads"), before);
}

const CHILD: &str = "GPUAAS_STORE_CRASH_CHILD";

/// Not a test by itself: the process that the crash test kills. Commits in an endless loop and prints each confirmed commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let store = Store::open(&StoreConfig::Sqlite { path: path.into() }).await.expect("opens");
    let node: Node = stored_node(&store).await;
    let mut writers = Vec::new();
    for _ in 0..16 {
        let (store, node) = (store.clone(), node.clone());
        writers.push(tokio::spawn(async move {
            loop {
                let new = task(&node);
                store.commit(recorded("task", [Change::TaskInsert(Box::new(new.clone()))])).await.expect("commits");
                let reported = std::io::stdout().write_all(format!("written {}\n", new.id).as_bytes());
                if reported.is_err() {
                    return;
                }
            }
        }));
    }
    for writer in writers {
        writer.await.expect("lives");
    }
}

#[tokio::test]
async fn what_was_told_to_be_written_survives_kill_9_on_sqlite() {
    let database = Database::sqlite();
    let mut told: Vec<TaskId> = Vec::new();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "crash_child", "--nocapture", "--test-threads=1"])
            .env(CHILD, sqlite_path(&database))
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut heard = 0;
        while let Some(Ok(line)) = lines.next() {
            if let Some(id) = line.strip_prefix("written ") {
                told.push(id.parse().expect("a task id"));
                heard += 1;
                if heard == 150 {
                    // SIGKILL, in the middle of other commits. What it printed before is still read.
                    child.kill().expect("kills");
                }
            }
        }
        assert!(heard >= 150, "the child was killed at work, not before it");
        assert!(!child.wait().expect("ends").success());

        let store = database.open().await;
        for id in &told {
            assert!(store.task_get(*id).await.expect("reads").is_some(), "{id} was lost in round {round}");
        }
        let rows = whole_audit(&store).await;
        audit_chain::verify(&Head::genesis(), &rows).expect("the chain is whole");
        let queued: u64 = store.task_counts().await.expect("counts").iter().map(|(_, count)| count).sum();
        assert_eq!(u64::try_from(rows.len()).expect("fits"), queued, "every task that is there has its audit row");
        store.close().await;
    }
}
