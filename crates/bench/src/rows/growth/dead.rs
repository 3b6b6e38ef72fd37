//! The time until the store shows that a node is offline, over the number of nodes.
//!
//! There are two cases: the agent's process ends and its connection closes, or the whole host falls silent and only the keep-alive of the
//! connection detects it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuaas_contract::time::Timestamp;

use super::{FLAT, Point, database, slope_row};
use crate::child;
use crate::cluster::{Cluster, Host};
use crate::links::Links;
use crate::measure::{Row, count};
use crate::report::progress;
use crate::times::{TimeUnit, Times};
use crate::{Result, Setup};

/// Number of batches per size. Each gives its own slope.
const BATCHES: usize = 6;
/// Number of agents that end per batch.
const ENDINGS: usize = 40;
/// Number of hosts that fall silent per batch.
const SILENCES: usize = 10;
/// The interval of the keep-alive. The moments when hosts fall silent are spread over it, so that it does not matter when the links were
/// opened.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum wait until a lost node is detected.
const PATIENCE: Duration = Duration::from_secs(60);

async fn is_online(cluster: &Cluster, host: &Host) -> Result<bool> {
    Ok(cluster.client.node(&host.grant.node_id.to_string()).await?.online)
}

/// Closes links one by one, and each time waits until the API reports the node as offline. Returns the median per batch, in milliseconds.
async fn closed(cluster: &Cluster, hosts: &[Host], links: &mut Links) -> Result<Vec<f64>> {
    let mut medians = Vec::new();
    for _ in 0..BATCHES {
        let mut times = Times::new()?;
        for (number, host) in hosts.iter().take(ENDINGS).enumerate() {
            if !is_online(cluster, host).await? {
                return Err(format!("host {number} was offline before its end").into());
            }
            links.close(number);
            let at = Instant::now();
            while is_online(cluster, host).await? {
                if at.elapsed() > PATIENCE {
                    return Err(format!("host {number} is still online a minute after its end").into());
                }
            }
            times.record(at.elapsed())?;
        }
        medians.push(times.quantile(0.5, TimeUnit::Milliseconds));
        links.open(0..ENDINGS).await?;
    }
    Ok(medians)
}

/// Freezes links at even intervals over one period of the keep-alive. Returns the median per batch, in seconds.
async fn silent(cluster: &Cluster, hosts: &[Host], links: &mut Links) -> Result<Vec<f64>> {
    let deaths = BATCHES * SILENCES;
    let mut died = Vec::with_capacity(deaths);
    let started = tokio::time::Instant::now();
    for host in 0..deaths {
        tokio::time::sleep_until(started + KEEP_ALIVE * u32::try_from(host)? / u32::try_from(deaths)?).await;
        links.freeze(host);
        died.push(Timestamp::now());
    }
    let mut batches: Vec<Times> = (0..BATCHES).map(|_| Times::new()).collect::<Result<_>>()?;
    for (host, died) in died.into_iter().enumerate() {
        // The store has the time of the detection, so it does not matter when this poll happens.
        let noticed = loop {
            let node = cluster.client.node(&hosts[host].grant.node_id.to_string()).await?;
            if !node.online {
                break node.last_seen_at.ok_or("an offline node was never seen")?;
            }
            if Timestamp::now().since(died) > PATIENCE {
                return Err(format!("host {host} is still online a minute after it fell silent").into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        batches[host % BATCHES].record(noticed.since(died))?;
        links.close(host);
    }
    links.open(0..deaths).await?;
    Ok(batches.iter().map(|times| times.quantile(0.5, TimeUnit::Milliseconds) / 1e3).collect())
}

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let sizes: &[usize] = if setup.quick { &[100, 500] } else { &[100, 1000, 5000] };
    let most = sizes.iter().copied().max().ok_or("no sizes")?;
    child::check_descriptor_limit(most)?;
    let store = database(setup, "growth_dead").await?;
    let cluster = Cluster::start(setup, "growth-dead", store.as_deref()).await?;
    let hosts = Arc::new(cluster.enroll(most).await?);
    let (mut links, _) = Links::none(&hosts, cluster.link);
    let (mut ended, mut silenced): (Vec<Point>, Vec<Point>) = Default::default();
    let mut there = 0;
    for size in sizes {
        progress(format_args!("{size} agents"));
        links.open(there..*size).await?;
        there = *size;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ended.push((count(*size), closed(&cluster, &hosts, &mut links).await?));
        progress("some hosts fall silent");
        silenced.push((count(*size), silent(&cluster, &hosts, &mut links).await?));
        if links.alive() != *size {
            return Err(format!("{} of {size} links are open", links.alive()).into());
        }
    }
    drop(links);
    cluster.server.stop().await?;
    Ok(vec![
        slope_row("time to notice an ended agent over connected agents", &ended, "ms", FLAT),
        slope_row("time to notice a silent host over connected agents", &silenced, "s", FLAT),
    ])
}
