//! The agent's memory over the number of executed tasks.

use std::time::Duration;

use futures::future::try_join_all;

use super::{FLAT, slope_row};
use crate::cluster::{Cluster, resident_memory};
use crate::measure::{Row, count};
use crate::report::progress;
use crate::rows::footprint::only_node;
use crate::rows::latency::{ask_for_ping, start_agent};
use crate::{Result, Setup};

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let steps: &[usize] = if setup.quick { &[250, 500, 1000] } else { &[1000, 2000, 5000, 10_000] };
    let cluster = Cluster::start(setup, "growth-agent", None).await?;
    let agent = start_agent(setup, &setup.programs, &cluster, &cluster.folder.join("host"), "agent growth").await?;
    let node = only_node(&cluster).await?;
    let (mut points, mut done) = (Vec::new(), 0);
    for step in steps {
        progress(format_args!("{step} tasks"));
        while done < *step {
            let chunk = (*step - done).min(50);
            let ids = try_join_all((0..chunk).map(|_| ask_for_ping(&cluster.client, &node))).await?;
            for id in ids {
                let task = loop {
                    let task = cluster.client.task(&id.to_string()).await?;
                    if task.ended() {
                        break task;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                };
                if task.state.as_str() != "succeeded" {
                    return Err(format!("task {id} ended as {} ({})", task.state, task.code).into());
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
