//! What one task costs the server while a growing number of agents waits in long-polls. Only the agent of the task may wake up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::load::offer;
use super::{FLAT, Point, database, slope_row};
use crate::child;
use crate::cluster::{Cluster, processor_time};
use crate::measure::{Goal, Row, count};
use crate::poller::Pollers;
use crate::report::progress;
use crate::{Result, Setup};

/// Tasks per second.
const PER_SECOND: u32 = 50;
/// Number of pairs of an idle window and a window under load.
const BATCHES: usize = 6;
/// Connections per waiting agent: one per open poll, and one to answer.
const CONNECTIONS: usize = 3;

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let sizes: &[usize] = if setup.quick { &[10, 100, 300] } else { &[10, 100, 1000] };
    let window = Duration::from_secs(if setup.quick { 1 } else { 3 });
    let most = sizes.iter().copied().max().ok_or("no sizes")?;
    child::check_descriptor_limit(CONNECTIONS * most)?;
    let name = "growth-waiters";
    let store = database(setup, "growth_waiters").await?;
    let cluster = Cluster::start(setup, name, store.as_deref()).await?;
    let hosts = Arc::new(cluster.enroll(most).await?);
    let cluster = cluster.restart(setup, name, store.as_deref()).await?;
    let process = cluster.server.id()?;

    let (mut pollers, mut done) = Pollers::none(&hosts, cluster.link);
    let mut points: Vec<Point> = Vec::new();
    let mut there = 0;
    for size in sizes {
        progress(format_args!("{size} waiters"));
        pollers.open(there..*size).await?;
        there = *size;
        let mut costs = Vec::new();
        for _ in 0..=BATCHES {
            // Waiting has its own cost (renewals, heartbeats), which is subtracted.
            let (before, started) = (processor_time(process)?, Instant::now());
            tokio::time::sleep(window).await;
            let at_rest = (processor_time(process)? - before) / started.elapsed().as_secs_f64();
            let (before, started) = (processor_time(process)?, Instant::now());
            let loaded = offer(&cluster, &hosts[..*size], PER_SECOND, window, &mut done).await?;
            let spent = processor_time(process)? - before - at_rest * started.elapsed().as_secs_f64();
            costs.push(spent / count(loaded.tasks) * 1e3);
        }
        // The first pair is a warm-up.
        costs.remove(0);
        if pollers.alive() != *size {
            return Err(format!("{} of {size} sessions are still open", pollers.alive()).into());
        }
        points.push((count(*size), costs));
    }
    let woken = pollers.woken_for_nothing();
    drop(pollers);
    cluster.server.stop().await?;
    let note = format!("every task woke the one poll it was for; {woken} others came back early and empty");
    Ok(vec![
        slope_row("server CPU per task over waiting long-polls", &points, "ms", FLAT),
        Row::alone("long-polls woken for nothing", "polls", count(woken), Goal::AtMost(0.0), note),
    ])
}
