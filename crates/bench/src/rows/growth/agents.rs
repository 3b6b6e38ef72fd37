//! The same rate of tasks over a growing number of connected agents.

use std::sync::Arc;
use std::time::Duration;

use super::load::offer;
use super::{Point, database, slope_row};
use crate::child;
use crate::cluster::{Cluster, processor_time};
use crate::links::Links;
use crate::measure::{Effort, Goal, Row, count};
use crate::report::progress;
use crate::times::TimeUnit;
use crate::{Result, Setup};

/// Tasks per second, below the capacity of the smallest cluster. The question is whether the largest keeps up.
const PER_SECOND: u32 = 100;

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let sizes: &[usize] = if setup.quick { &[10, 100, 500] } else { &[10, 100, 1000, 5000] };
    let most = sizes.iter().copied().max().ok_or("no sizes")?;
    child::check_descriptor_limit(most)?;
    let name = "growth-agents";
    let store = database(setup, "growth_agents").await?;
    let cluster = Cluster::start(setup, name, store.as_deref()).await?;
    let hosts = Arc::new(cluster.enroll(most).await?);
    let cluster = cluster.restart(setup, name, store.as_deref()).await?;
    let process = cluster.server.id()?;

    let (mut links, mut done) = Links::none(&hosts, cluster.link);
    let (mut rates, mut latencies, mut costs): (Vec<Point>, Vec<Point>, Vec<Point>) = Default::default();
    let mut there = 0;
    for size in sizes {
        progress(format_args!("{size} agents"));
        links.open(there..*size).await?;
        there = *size;
        // Lets the effects of the new connections settle.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (mut rate, mut latency, mut cost) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..effort.rounds {
            let before = processor_time(process)?;
            let time = Duration::from_millis(effort.round_ms);
            let loaded = offer(&cluster, &hosts[..*size], PER_SECOND, time, &mut done).await?;
            if round > 0 {
                rate.push(loaded.per_second);
                latency.push(loaded.started.quantile(0.5, TimeUnit::Milliseconds));
                cost.push((processor_time(process)? - before) / count(loaded.tasks) * 1e3);
            }
        }
        if links.alive() != *size {
            return Err(format!("{} of {size} links are still open", links.alive()).into());
        }
        rates.push((count(*size), rate));
        latencies.push((count(*size), latency));
        costs.push((count(*size), cost));
    }
    drop(links);
    cluster.server.stop().await?;

    let (Some((_, few)), Some((_, many))) = (rates.first(), rates.last()) else { return Err("nothing was measured".into()) };
    let pairs = many.iter().copied().zip(few.iter().copied()).collect();
    let path = format!("tasks at {PER_SECOND}/s, {most} agents connected");
    Ok(vec![
        Row::compared(&path, "1/s", "itself with 10 agents", pairs, Goal::AtLeast(0.9)),
        slope_row("tasks at a fixed rate over connected agents", &rates, "1/s", Goal::Open),
        slope_row("API call → node, p50, over connected agents", &latencies, "ms", Goal::Open),
        slope_row("server CPU per task over connected agents", &costs, "ms", Goal::Open),
    ])
}
