//! The queries that look for work use their indexes, on both engines, next to many ended tasks.

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::task::TaskState;
use sqlx::{AssertSqlSafe, Row as _};

use crate::db::{Arg, Db};
use crate::support::{Database, stored_node, stored_task};
use crate::task::{TaskFilter, task_list_query};
use crate::{Store, receipt, task};

/// Indexes whose size does not grow with the number of ended tasks, or that find single rows.
const FLAT: [&str; 10] = [
    "tasks_queued",
    "tasks_outstanding",
    "tasks_open_of_node",
    "tasks_open",
    "tasks_due",
    "tasks_idempotency",
    "tasks_of_request",
    "tasks_ended",
    "tasks_proposals",
    "tasks_of_allocation",
];

/// A query: its text, its arguments and the index it must use.
fn queries() -> Vec<(String, Vec<Arg>, &'static str)> {
    let node = || Arg::id(NodeId::generate());
    let limit = || Arg::Int(Some(10));
    let mut queries = vec![
        (task::QUEUED.to_owned(), vec![node(), limit()], "tasks_queued"),
        (task::OUTSTANDING.to_owned(), vec![node()], "tasks_outstanding"),
        (task::CANCELLATIONS.to_owned(), vec![node()], "tasks_outstanding"),
        (task::OPEN.to_owned(), vec![node()], "tasks_open_of_node"),
        (task::OPEN_COUNT.to_owned(), vec![node()], "tasks_open_of_node"),
        (task::OPEN_COUNTS.to_owned(), vec![], "tasks_open_of_node"),
        (task::DUE.to_owned(), vec![Arg::time(Timestamp(5)), limit()], "tasks_due"),
        (task::NODES_WITH_QUEUED.to_owned(), vec![], "tasks_queued"),
        (task::BY_IDEMPOTENCY_KEY.to_owned(), vec![Arg::text("a"), Arg::text("b")], "tasks_idempotency"),
        (task::NEWEST_PROPOSAL.to_owned(), vec![node()], "tasks_proposals"),
        (task::OF_ALLOCATION.to_owned(), vec![Arg::text("a"), limit()], "tasks_of_allocation"),
        (task::FIRST_OF_ALLOCATION.to_owned(), vec![Arg::text("a")], "tasks_of_allocation"),
        (receipt::HEAD.to_owned(), vec![node(), Arg::count(1)], "receipts_of_node"),
    ];
    let mut list = |filter: TaskFilter, index| {
        let (sql, args) = task_list_query(&filter, None, 10).into_parts();
        queries.push((sql, args, index));
    };
    list(TaskFilter { open_only: true, ..TaskFilter::default() }, "tasks_open");
    list(TaskFilter { state: Some(TaskState::Lost), ..TaskFilter::default() }, "tasks_ended");
    list(
        TaskFilter { correlation_id: Some(gpuaas_contract::id::CorrelationId::generate()), ..TaskFilter::default() },
        "tasks_of_request",
    );
    queries
}

async fn explain(db: &Db, sql: &str, args: Vec<Arg>) -> String {
    let lines = match db {
        Db::Sqlite { reader, .. } => {
            let query = crate::db::bound!(sqlx::Sqlite, AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")), args);
            let mut reading = reader.acquire().await.expect("connects");
            let rows = query.fetch_all(&mut reading.connection).await.expect("explains");
            rows.iter().map(|row| row.get::<String, _>("detail")).collect::<Vec<_>>()
        }
        Db::Pg { reader, .. } => {
            let query = crate::db::bound!(sqlx::Postgres, AssertSqlSafe(format!("EXPLAIN {sql}")), args);
            let mut reading = reader.acquire().await.expect("connects");
            let rows = query.fetch_all(&mut reading.connection).await.expect("explains");
            rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>()
        }
    };
    lines.join("\n")
}

/// Fills the table with ended tasks of the node behind the store's back: only their number matters.
async fn fill(store: &Store, node: NodeId) {
    const COLUMNS: &str = "id, version, node_id, node_epoch, task_type, params, state, requested_by, correlation_id, intent, \
                           created_at, queue_until, timeout, dispatches, ended_at, code, message";
    let values = |number: &str| {
        format!(
            "'task_' || {number}, 0, $1, 1, 'diag.ping', '{{}}', 'succeeded', 'x', 'corr_' || {number}, '', 1, 1, 1, 1, 1, 'ok', ''"
        )
    };
    match store.db() {
        Db::Sqlite { writer, .. } => {
            let pool = sqlx::SqlitePool::connect_with((**writer).clone()).await.expect("opens");
            let sql = format!(
                "INSERT INTO tasks ({COLUMNS}) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000) SELECT {} FROM n",
                values("n")
            );
            sqlx::query(AssertSqlSafe(sql)).bind(node.to_string()).execute(&pool).await.expect("fills");
            sqlx::query("ANALYZE").execute(&pool).await.expect("analyses");
            pool.close().await;
        }
        Db::Pg { reader, .. } => {
            let sql = format!("INSERT INTO tasks ({COLUMNS}) SELECT {} FROM generate_series(1, 20000) AS n", values("n::text"));
            let mut reading = reader.acquire().await.expect("connects");
            let filling = sqlx::query(AssertSqlSafe(sql)).bind(node.to_string());
            filling.execute(&mut reading.connection).await.expect("fills");
            sqlx::query("ANALYZE").execute(&mut reading.connection).await.expect("analyses");
        }
    }
}

async fn check(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    for _ in 0..3 {
        stored_task(&store, &node).await;
    }
    fill(&store, node.id).await;
    for (sql, args, index) in queries() {
        let plan = explain(store.db(), &sql, args).await;
        let scans = plan
            .lines()
            .any(|line| line.contains("Seq Scan on tasks") || (line.contains("SCAN tasks") && !line.contains("USING")));
        assert!(!scans, "{sql}\n{plan}");
        let words: Vec<&str> = plan.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        match store.db() {
            Db::Sqlite { .. } => assert!(words.contains(&index), "{sql}\n{plan}"),
            // PostgreSQL may take any index that forgets ended tasks: they are all tiny here. (Next to a handful of
            // receipts it may also read them all, which tells nothing.)
            Db::Pg { .. } => {
                assert!(index == "receipts_of_node" || words.iter().any(|word| FLAT.contains(word)), "{sql}\n{plan}")
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_uses_the_indexes() {
    let database = Database::sqlite();
    check(&database).await;
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_uses_the_indexes() {
    if let Some(database) = Database::postgres("postgres_uses_the_indexes").await {
        check(&database).await;
        database.remove().await;
    }
}
