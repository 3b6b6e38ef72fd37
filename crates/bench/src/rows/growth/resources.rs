//! Claims and enqueues over the number of stored tasks.

use std::time::Instant;

use futures::future::try_join_all;
use gpuaas_store::StoreConfig;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{FLAT, slope_row};
use crate::measure::{Row, count};
use crate::report::progress;
use crate::rows::durable::{Caller, Tasks, create_database};
use crate::times::{TimeUnit, Times};
use crate::{Result, Setup};

/// Number of batches per point. Each gives its own slope, and the interval of the slopes shows the precision.
const BATCHES: usize = 6;
/// Operations per batch.
const BATCH: usize = 50;

/// A store on SQLite or PostgreSQL.
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

/// Returns the median time of a claim per batch, in microseconds. For every claimed task another one was queued, and the claimed one is
/// finished, so that the depth of the queue stays the same.
async fn claim_times(tasks: &mut Tasks) -> Result<Vec<f64>> {
    let Tasks { store, keys, cluster, callers, .. } = tasks;
    let caller: &mut Caller = callers.first_mut().ok_or("no caller")?;
    let mut medians = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let mut times = Times::new()?;
        for _ in 0..BATCH {
            caller.enqueue(store, keys).await?;
            let at = Instant::now();
            let (claimed, digest) = caller.claim(store, keys).await?;
            times.record(at.elapsed())?;
            caller.settle(store, *cluster, &claimed, digest).await?;
        }
        medians.push(times.quantile(0.5, TimeUnit::Microseconds));
    }
    Ok(medians)
}

/// Adds finished tasks, of which a busy cluster has millions.
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
            // A million rows in one transaction leave a write-ahead log of a size that no real server would have.
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
            connection.close().await?;
        }
    }
    Ok(())
}

pub(crate) async fn over_finished_tasks(setup: &Setup) -> Result<Vec<Row>> {
    let sizes: &[usize] = if setup.quick { &[10_000, 100_000] } else { &[10_000, 100_000, 1_000_000] };
    let mut rows = Vec::new();
    for place in places(setup, "growth_finished").await? {
        let mut tasks = Tasks::open(&place.config, 1).await?;
        let node = tasks.callers.first().ok_or("no caller")?.node.id.to_string();
        let (mut points, mut there) = (Vec::new(), 1);
        for size in sizes {
            progress(format_args!("{}: {size} finished tasks", place.name));
            add_finished(&place.config, &node, there, *size).await?;
            there = *size;
            points.push((count(*size), claim_times(&mut tasks).await?));
        }
        tasks.store.close().await;
        rows.push(slope_row(&format!("claim over finished tasks, {}", place.name), &points, "µs", FLAT));
    }
    Ok(rows)
}

pub(crate) async fn over_queue_depth(setup: &Setup) -> Result<Vec<Row>> {
    let depths: &[usize] = if setup.quick { &[10, 100, 1000] } else { &[10, 100, 1000, 9000] };
    let mut rows = Vec::new();
    for place in places(setup, "growth_depth").await? {
        let mut tasks = Tasks::open(&place.config, 1).await?;
        let (mut claims, mut enqueues, mut there) = (Vec::new(), Vec::new(), 0);
        for depth in depths {
            progress(format_args!("{}: {depth} queued tasks", place.name));
            let caller = tasks.callers.first().ok_or("no caller")?;
            while there < *depth {
                let chunk = (*depth - there).min(500);
                try_join_all((0..chunk).map(|_| caller.enqueue(&tasks.store, &tasks.keys))).await?;
                there += chunk;
            }
            let mut medians = Vec::with_capacity(BATCHES);
            for _ in 0..BATCHES {
                let mut times = Times::new()?;
                // Only a few, because each one makes the queue deeper.
                for _ in 0..BATCH / 5 {
                    let at = Instant::now();
                    caller.enqueue(&tasks.store, &tasks.keys).await?;
                    times.record(at.elapsed())?;
                    there += 1;
                }
                medians.push(times.quantile(0.5, TimeUnit::Microseconds));
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
