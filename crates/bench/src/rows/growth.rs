//! What must not grow: each row is the slope of a log-log line, 0 for flat and 1 for linear.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use gpuaas_store::StoreConfig;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::cluster::{Cluster, resident_memory};
use crate::measure::{Goal, Interval, Row, count, log_log_slope, number, percentile};
use crate::rows::durable::{Caller, Tasks, create_database};
use crate::rows::footprint::only_node;
use crate::rows::latency::{ask_for_ping, start_agent};
use crate::rows::scale::Links;
use crate::{Result, Setup};

/// Slopes up to this are noise: over two powers of ten it is a quarter more.
const FLAT: Goal = Goal::AtMost(0.05);
/// Batches per point: each gives a slope of its own, and their interval says how sure it is.
const BATCHES: usize = 6;
/// Operations per batch.
const BATCH: usize = 50;

/// A store of either engine.
struct Place {
    name: &'static str,
    config: StoreConfig,
    _folder: tempfile::TempDir,
}

async fn places(setup: &Setup, what: &str) -> Result<Vec<Place>> {
    let folder = || tempfile::tempdir_in(&setup.disk);
    let sqlite = folder()?;
    let config = StoreConfig::Sqlite { path: sqlite.path().join("growth.db") };
    let mut places = vec![Place { name: "SQLite", config, _folder: sqlite }];
    if let Some(server) = setup.postgres_tmpfs.as_ref().or(setup.postgres_disk.as_ref()) {
        let config = StoreConfig::parse(&create_database(server, what).await?)?;
        places.push(Place { name: "PostgreSQL", config, _folder: folder()? });
    }
    Ok(places)
}

/// One point: how much there is, and what every batch measured there.
type Point = (f64, Vec<f64>);

fn slope_row(path: &str, points: &[Point], unit: &str, goal: Goal) -> Row {
    let batches = points.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
    let of_batch = |batch: usize| points.iter().map(|(x, values)| (*x, values[batch])).collect::<Vec<_>>();
    let slopes: Vec<f64> = (0..batches).filter_map(|batch| log_log_slope(&of_batch(batch))).collect();
    let Some(slope) = Interval::of(slopes) else { return Row::skipped(path, "", goal, "too few points") };
    let told = points.iter().map(|(x, values)| {
        let middle = Interval::of(values.clone()).map_or(f64::NAN, |values| values.median);
        format!("{} → {} {unit}", number(*x), number(middle))
    });
    let between =
        if slope.pairs > 1 { format!("between {} and {}; ", number(slope.low), number(slope.high)) } else { String::new() };
    let note = format!("{between}{}", told.collect::<Vec<_>>().join(", "));
    Row { verdict: slope.verdict(goal), ..Row::alone(path, "slope", slope.median, goal, note) }
}

/// The median time of a claim in every batch, in microseconds. Every claimed task is finished, so that the queue keeps its depth.
async fn claim_times(tasks: &mut Tasks) -> Result<Vec<f64>> {
    let Tasks { store, keys, cluster, callers, .. } = tasks;
    let caller: &mut Caller = callers.first_mut().ok_or("no caller")?;
    let mut medians = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let mut times = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            caller.enqueue(store, keys).await?;
            let at = Instant::now();
            let (id, digest) = caller.claim(store, keys, *cluster).await?;
            times.push(at.elapsed().as_secs_f64() * 1e6);
            caller.settle(store, *cluster, id, digest).await?;
        }
        medians.push(percentile(&mut times, 0.5));
    }
    Ok(medians)
}

/// Puts finished tasks beside the others, as a busy cluster has them by the million.
async fn add_finished(config: &StoreConfig, node: &str, from: usize, to: usize) -> Result<()> {
    let insert = |id: &str, series: &str| {
        format!(
            "INSERT INTO tasks (id, version, node_id, node_epoch, task_type, params, state, requested_by, correlation_id, intent, created_at, \
             queue_until, timeout, dispatches, code, message, accepted_at, started_at, ended_at) \
             SELECT 'task_' || {id}, 3, '{node}', 1, 'diag.ping', '{{\"message\":\"m\"}}', 'succeeded', 'system', 'old', 'mac', 1, 2, 3, 1, \
             'ok', '', 1, 1, 1 FROM {series}"
        )
    };
    match config {
        StoreConfig::Postgres { url, .. } => {
            let mut connection = PgConnection::connect(url).await?;
            let sql = insert("lpad(to_hex(i), 32, '0')", &format!("generate_series({from}, {}) AS i", to - 1));
            sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await?;
            sqlx::query("VACUUM ANALYZE tasks").execute(&mut connection).await?;
            connection.close().await?;
        }
        StoreConfig::Sqlite { path } => {
            let mut connection = sqlx::SqliteConnection::connect(&format!("sqlite:{}", path.display())).await?;
            let series = format!(
                "(WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n)",
                to - 1
            );
            sqlx::query(AssertSqlSafe(insert("printf('%032x', i)", &series))).execute(&mut connection).await?;
            connection.close().await?;
        }
    }
    Ok(())
}

async fn over_finished_tasks(setup: &Setup) -> Result<Vec<Row>> {
    let sizes: &[usize] = if setup.quick { &[10_000, 100_000] } else { &[10_000, 100_000, 1_000_000] };
    let mut rows = Vec::new();
    for place in places(setup, "growth_finished").await? {
        let mut tasks = Tasks::open(&place.config, 1).await?;
        let node = tasks.callers.first().ok_or("no caller")?.node.id.to_string();
        let (mut points, mut there) = (Vec::new(), 1);
        for size in sizes {
            add_finished(&place.config, &node, there, *size).await?;
            there = *size;
            points.push((count(*size), claim_times(&mut tasks).await?));
        }
        tasks.store.close().await;
        rows.push(slope_row(&format!("claim over finished tasks, {}", place.name), &points, "µs", FLAT));
    }
    Ok(rows)
}

async fn over_queue_depth(setup: &Setup) -> Result<Vec<Row>> {
    let depths: &[usize] = if setup.quick { &[10, 100, 1000] } else { &[10, 100, 1000, 9000] };
    let mut rows = Vec::new();
    for place in places(setup, "growth_depth").await? {
        let mut tasks = Tasks::open(&place.config, 1).await?;
        let (mut claims, mut enqueues, mut there) = (Vec::new(), Vec::new(), 0);
        for depth in depths {
            let caller = tasks.callers.first().ok_or("no caller")?;
            while there < *depth {
                let chunk = (*depth - there).min(500);
                try_join_all((0..chunk).map(|_| caller.enqueue(&tasks.store, &tasks.keys))).await?;
                there += chunk;
            }
            let mut medians = Vec::with_capacity(BATCHES);
            for _ in 0..BATCHES {
                let mut times = Vec::with_capacity(BATCH / 5);
                // Few, because each of them makes the queue deeper.
                for _ in 0..BATCH / 5 {
                    let at = Instant::now();
                    caller.enqueue(&tasks.store, &tasks.keys).await?;
                    times.push(at.elapsed().as_secs_f64() * 1e6);
                    there += 1;
                }
                medians.push(percentile(&mut times, 0.5));
            }
            enqueues.push((count(*depth), medians));
            claims.push((count(*depth), claim_times(&mut tasks).await?));
        }
        tasks.store.close().await;
        rows.push(slope_row(&format!("claim over queue depth, {}", place.name), &claims, "µs", FLAT));
        rows.push(slope_row(&format!("enqueue over queue depth, {}", place.name), &enqueues, "µs", FLAT));
    }
    Ok(rows)
}

/// Transactions that PostgreSQL counts for a database.
async fn transactions(url: &str) -> Result<f64> {
    let (before, name) = url.rsplit_once('/').ok_or("the address has no database")?;
    let mut connection = PgConnection::connect(&format!("{before}/postgres")).await?;
    let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = $1";
    let counted: f64 = sqlx::query_scalar(sql).bind(name).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(counted)
}

async fn queries_of_idle_agents(setup: &Setup) -> Result<Vec<Row>> {
    let path = "database queries per idle agent";
    let goal = Goal::AtMost(0.001);
    let Some(server) = &setup.postgres_disk else { return Ok(vec![Row::skipped(path, "", goal, "there is no PostgreSQL")]) };
    let url = create_database(server, "growth_idle").await?;
    let cluster = Cluster::start(setup, "growth-idle", Some(&url)).await?;
    let agents = if setup.quick { 200 } else { 1000 };
    let hosts = Arc::new(cluster.enrol(agents).await?);
    let watch = Duration::from_secs(30);
    let per_second = async || {
        // Sessions of PostgreSQL tell their counts up to 10 s late: what happened before must be in them by then.
        tokio::time::sleep(Duration::from_secs(13)).await;
        let (before, started) = (transactions(&url).await?, Instant::now());
        tokio::time::sleep(watch).await;
        Result::<f64>::Ok((transactions(&url).await? - before) / started.elapsed().as_secs_f64())
    };
    let without = per_second().await?;
    let links = Links::open(&hosts, cluster.link).await?;
    let with = per_second().await?;
    drop(links);
    cluster.server.stop().await?;
    let note = format!("{} a second without agents, {} with {agents}", number(without), number(with));
    Ok(vec![Row::alone(path, "1/s", (with - without).max(0.0) / count(agents), goal, note)])
}

async fn memory_over_tasks(setup: &Setup) -> Result<Vec<Row>> {
    let steps: &[usize] = if setup.quick { &[250, 500, 1000] } else { &[1000, 2000, 5000, 10_000] };
    let cluster = Cluster::start(setup, "growth-agent", None).await?;
    let agent = start_agent(setup, &setup.programs, &cluster, &cluster.folder.join("host"), "agent growth").await?;
    let node = only_node(&cluster).await?;
    let (mut points, mut done) = (Vec::new(), 0);
    for step in steps {
        while done < *step {
            let chunk = (*step - done).min(50);
            let ids = try_join_all((0..chunk).map(|_| ask_for_ping(&cluster.client, &node))).await?;
            for id in ids {
                while !cluster.client.task(&id.to_string()).await?.ended() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            done += chunk;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        points.push((count(*step), vec![resident_memory(agent.id()?)? / 1024.0 / 1024.0]));
    }
    agent.stop().await?;
    cluster.server.stop().await?;
    Ok(vec![slope_row("agent memory over tasks done", &points, "MiB", FLAT)])
}

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let mut rows = over_finished_tasks(setup).await?;
    rows.extend(over_queue_depth(setup).await?);
    rows.extend(queries_of_idle_agents(setup).await?);
    rows.extend(memory_over_tasks(setup).await?);
    Ok(rows)
}
