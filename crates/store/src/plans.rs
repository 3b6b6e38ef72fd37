//! Queries for pending work use their indexes, on both engines, beside many rows that do not match.

use gpuaas_contract::id::{NodeId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::PrincipalId;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::task::TaskState;
use sqlx::{AssertSqlSafe, Row as _};

use crate::api_token::{ApiTokenFilter, api_token_list_query};
use crate::db::{Arg, Db, Engine};
use crate::resource::ResourceFilter;
use crate::support::{Database, stored_node, stored_task};
use crate::task::{TaskFilter, task_list_query};
use crate::{Store, outbox, receipt, relay, resource, task};

/// Indexes whose size does not grow with the number of ended tasks, or that find single rows.
const FLAT: [&str; 9] = [
    "tasks_queued",
    "tasks_outstanding",
    "tasks_open_of_node",
    "tasks_open",
    "tasks_due",
    "tasks_of_request",
    "tasks_ended",
    "tasks_proposals",
    "tasks_of_allocation",
];

/// Returns the queries: text, arguments and the index that each must use.
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
        (task::GONE_NODES_WITH_OPEN.to_owned(), vec![], "tasks_open_of_node"),
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
        // A generic plan, as for the store's statements: the values are not considered.
        Db::Pg { reader, .. } => {
            let types: Vec<&str> = args
                .iter()
                .map(|arg| match arg {
                    Arg::Text(_) => "text",
                    Arg::Int(_) => "bigint",
                    Arg::Bytes(_) => "bytea",
                })
                .collect();
            let list = |items: Vec<&str>| if items.is_empty() { String::new() } else { format!("({})", items.join(", ")) };
            let nulls = list(vec!["NULL"; types.len()]);
            let mut reading = reader.acquire().await.expect("connects");
            let prepare = format!("PREPARE explained {} AS {sql}", list(types));
            sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut reading.connection).await.expect("prepares");
            let explain = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN EXECUTE explained {nulls}")));
            let rows = explain.fetch_all(&mut reading.connection).await.expect("explains");
            rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>()
        }
    };
    lines.join("\n")
}

/// Fills the table with ended tasks of the node, bypassing the store: only their number matters.
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
            // PostgreSQL may use any index without ended tasks: all of them are tiny here. (Beside a handful of receipts it may
            // also read the whole table, which proves nothing.)
            Db::Pg { .. } => {
                assert!(index == "receipts_of_node" || words.iter().any(|word| FLAT.contains(word)), "{sql}\n{plan}")
            }
        }
    }
}

/// Fills the tables of resources, events and API tokens, bypassing the store, mostly with rows that have ended.
async fn fill_others(store: &Store) {
    let resources = |n: &str| {
        format!(
            "INSERT INTO resources (id, version, kind, parent, name, lookup, owner, state, due_at, expires_at, body, seal) \
             SELECT 'alloc_' || {n}, 0, CASE n % 20 WHEN 0 THEN 'machine' ELSE 'allocation' END, 'proj_' || (n % 100), 'name_' || {n}, \
             'lookup_' || {n}, 'node_' || (n % 200), CASE WHEN n % 1000 < 3 THEN 'active' ELSE 'released' END, \
             CASE WHEN n % 2000 < 3 THEN n END, CASE WHEN n % 3 = 0 THEN n END, '{{}}', ''"
        )
    };
    let events = |n: &str| {
        format!(
            "INSERT INTO outbox (id, subject, kind, body, created_at, lane, project) \
             SELECT 'evt_' || {n}, 'subject_' || (n % 300), 'x', '{{}}', n, n % 16, \
             CASE WHEN n % 4 = 0 THEN 'proj_' || (n % 300) END"
        )
    };
    let waiting = |_: &str| "INSERT INTO outbox_waiting (lane, position) SELECT n % 16, n".to_owned();
    let tokens = |n: &str| {
        format!(
            "INSERT INTO api_tokens (id, version, name, secret_digest, created_at, service_account, project, created_by) \
             SELECT 'apitok_' || {n}, 0, 'x', {n}, 1, 'sa_' || (n % 500), 'proj_' || (n % 300), 'user:user_' || (n % 400)"
        )
    };
    match store.db() {
        Db::Sqlite { writer, .. } => {
            let pool = sqlx::SqlitePool::connect_with((**writer).clone()).await.expect("opens");
            let numbers =
                "FROM (WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 20000) SELECT n FROM n)";
            for insert in [resources("n"), events("n"), waiting("n"), tokens("CAST(n AS TEXT)")] {
                let filling = sqlx::query(AssertSqlSafe(format!("{insert} {numbers}")));
                filling.execute(&pool).await.expect("fills");
            }
            sqlx::query("ANALYZE").execute(&pool).await.expect("analyses");
            pool.close().await;
        }
        Db::Pg { reader, .. } => {
            let mut reading = reader.acquire().await.expect("connects");
            for insert in [resources("n::text"), events("n::text"), waiting("n"), tokens("n::text")] {
                let filling = sqlx::query(AssertSqlSafe(format!("{insert} FROM generate_series(1, 20000) AS n")));
                filling.execute(&mut reading.connection).await.expect("fills");
            }
            sqlx::query("ANALYZE").execute(&mut reading.connection).await.expect("analyses");
        }
    }
}

/// Indexes that find single rows.
const ID: &[&str] = &["resources_pkey", "sqlite_autoindex_resources_1", "resources_of_kind"];

/// SQLite reports the key of such a table only like this.
const WAITS: &[&str] = &["outbox_waiting_pkey", "PRIMARY"];

/// Returns queries about resources, events and API tokens, and the indexes that each may use.
fn other_queries(engine: Engine) -> Vec<(String, Vec<Arg>, &'static [&'static str])> {
    let kind = || Arg::text(ResourceKind::Allocation.as_str());
    let text = |text: &str| text.to_owned();
    let (time, limit) = (|| Arg::time(Timestamp(5)), || Arg::Int(Some(10)));
    let mut queries: Vec<(String, Vec<Arg>, &'static [&'static str])> = vec![
        (text(resource::GET), vec![kind(), Arg::text("a")], ID),
        (text(resource::BY_NAME), vec![kind(), Arg::text("a"), Arg::text("b")], &["resources_by_name"]),
        (text(resource::BY_LOOKUP), vec![kind(), Arg::text("a")], &["resources_by_lookup"]),
        (text(resource::DUE), vec![kind(), time(), limit()], &["resources_due"]),
        (text(relay::WAITING), vec![limit()], WAITS),
        (text(relay::OLDEST), vec![], WAITS),
    ];
    let forget = |[sqlite, postgres]: [&str; 2]| match engine {
        Engine::Sqlite => text(sqlite),
        Engine::Pg => text(postgres),
    };
    queries.push((forget([resource::FORGET, resource::FORGET_PG]), vec![time()], &["resources_expiring"]));
    queries.push((forget([relay::FORGET, relay::FORGET_PG]), vec![time()], WAITS));
    queries.push((forget([relay::MARK, relay::MARK_PG]), vec![Arg::text("[]")], WAITS));
    queries.push((forget([relay::UNPUBLISHED, relay::UNPUBLISHED_PG]), vec![Arg::text("[3, 5]"), limit()], WAITS));
    let many = resource::many_query(engine, ResourceKind::Allocation, &[text("a")]).expect("a query").into_parts();
    queries.push((many.0, many.1, ID));
    let mut list = |filter: ResourceFilter, indexes: &'static [&'static str]| {
        for newest_first in [false, true] {
            for after in [None, Some("alloc_5")] {
                let query = resource::list_query(engine, ResourceKind::Allocation, &filter, after, newest_first, 10);
                let (sql, args) = query.expect("a query").into_parts();
                queries.push((sql, args, indexes));
            }
        }
    };
    let none = ResourceFilter::default;
    list(none(), &["resources_of_kind"]);
    list(ResourceFilter { parent: Some(text("a")), ..none() }, &["resources_of_parent"]);
    list(ResourceFilter { parents: Some(vec![text("a"), text("b")]), ..none() }, &["resources_of_parent"]);
    list(ResourceFilter { owner: Some(text("a")), ..none() }, &["resources_of_owner"]);
    list(ResourceFilter { states: vec!["active"], ..none() }, &["resources_by_state"]);
    list(ResourceFilter { states: vec!["active", "queued"], ..none() }, &["resources_by_state"]);
    let little = &["resources_of_parent", "resources_of_owner"];
    list(ResourceFilter { parent: Some(text("a")), states: vec!["released"], ..none() }, little);
    list(ResourceFilter { owner: Some(text("a")), states: vec!["active", "released"], ..none() }, little);
    list(ResourceFilter { parent: Some(text("a")), tags: vec![(text("a"), text("b"))], ..none() }, little);
    let tokens = [
        (
            ApiTokenFilter { service_account: Some(ServiceAccountId::generate()), ..ApiTokenFilter::default() },
            &["api_tokens_of_service_account"],
        ),
        (ApiTokenFilter { project: Some(ProjectId::generate()), ..ApiTokenFilter::default() }, &["api_tokens_of_project"]),
        (
            ApiTokenFilter { created_by: Some(PrincipalId::User(UserId::generate())), ..ApiTokenFilter::default() },
            &["api_tokens_of_maker"],
        ),
    ];
    let of_subject = outbox::of_subject_query("x", 5, 10).into_parts();
    queries.push((of_subject.0, of_subject.1, &["outbox_of_subject"]));
    let of_project = outbox::of_project_query(ProjectId::generate(), 5, 10).into_parts();
    queries.push((of_project.0, of_project.1, &["outbox_of_project"]));
    for (filter, index) in tokens {
        let (sql, args) = api_token_list_query(&filter, None, 10).into_parts();
        queries.push((sql, args, index));
    }
    queries
}

async fn check_others(database: &Database) {
    let store = database.open().await;
    fill_others(&store).await;
    for (sql, args, indexes) in other_queries(store.db().engine()) {
        let plan = explain(store.db(), &sql, args).await;
        let words: Vec<&str> = plan.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        assert!(indexes.iter().any(|index| words.contains(index)), "{sql}\n{plan}");
        for table in ["resources", "outbox", "outbox_waiting", "api_tokens"] {
            let scan = [format!("Seq Scan on {table} "), format!("SCAN {table}\n")];
            assert!(!scan.iter().any(|scan| format!("{plan}\n").contains(scan)), "{sql}\n{plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_finds_resources_and_events_by_their_indexes() {
    let database = Database::sqlite();
    check_others(&database).await;
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_resources_and_events_by_their_indexes() {
    if let Some(database) = Database::postgres("postgres_finds_resources_and_events_by_their_indexes").await {
        check_others(&database).await;
        database.remove().await;
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
