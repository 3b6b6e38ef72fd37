//! What the agent costs its host, compared with a monitoring agent that such hosts run anyway.

use std::time::Duration;

use crate::child::{self, Server};
use crate::cluster::{Cluster, resident_memory};
use crate::measure::{Goal, Row, count};
use crate::rows::latency::{ask_for_ping, start_agent};
use crate::{Result, Setup};

const PEER: &str = "prometheus-node-exporter";
const MIB: f64 = 1024.0 * 1024.0;

/// Number of tasks that the agent runs, and of scrapes of the exporter, before the measurement.
const WORK: usize = 20;

async fn our_memory(setup: &Setup) -> Result<f64> {
    let cluster = Cluster::start(setup, "footprint", None).await?;
    let agent = start_agent(setup, &setup.dist, &cluster, &cluster.folder.join("host"), "agent footprint").await?;
    let node = only_node(&cluster).await?;
    for _ in 0..WORK {
        let id = ask_for_ping(&cluster.client, &node).await?;
        while !cluster.client.task(&id.to_string()).await?.ended() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = resident_memory(agent.id()?)?;
    agent.stop().await?;
    cluster.server.stop().await?;
    Ok(memory)
}

/// Waits until the only node is online, and returns its id.
pub(crate) async fn only_node(cluster: &Cluster) -> Result<String> {
    for _ in 0..1000 {
        let page = cluster.client.nodes(&gpuaas_api::dto::NodeListQuery::default()).await?;
        if let Some(node) = page.items.iter().find(|node| node.online) {
            return Ok(node.id.to_string());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("the agent did not come online".into())
}

async fn their_memory(setup: &Setup, program: &std::path::Path) -> Result<f64> {
    let port = child::free_port()?;
    let mut command = child::command(program, &setup.folder);
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let exporter = Server::start("node-exporter", command, &setup.folder, "istening on").await?;
    for _ in 0..WORK {
        let scraped = reqwest::get(format!("http://127.0.0.1:{port}/metrics")).await?.text().await?;
        if !scraped.contains("node_cpu_seconds_total") {
            return Err("the exporter exports nothing".into());
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let memory = resident_memory(exporter.id()?)?;
    exporter.stop().await?;
    Ok(memory)
}

pub(crate) async fn run(setup: &Setup) -> Result<Vec<Row>> {
    let (memory_path, size_path) = ("agent memory after 20 tasks", "agent program, as shipped");
    let (memory_goal, size_goal) = (Goal::AtMost(0.5), Goal::AtMost(1.0));
    let ours = our_memory(setup).await? / MIB;
    let size = |path: &std::path::Path| -> Result<f64> { Ok(count(usize::try_from(std::fs::metadata(path)?.len())?) / MIB) };
    let our_size = size(&setup.dist.join("gpuaas-agent"))?;
    let unpacked = setup.peers.join("node-exporter/usr/bin");
    let Some(program) = child::find_program(PEER, &[unpacked]) else {
        let skip =
            |path, goal, ours| Row { ours: Some(ours), unit: "MiB", ..Row::skipped(path, PEER, goal, "it is not installed") };
        return Ok(vec![skip(memory_path, memory_goal, ours), skip(size_path, size_goal, our_size)]);
    };
    let theirs = their_memory(setup, &program).await? / MIB;
    Ok(vec![
        Row::compared(memory_path, "MiB RSS", PEER, vec![(ours, theirs)], memory_goal),
        Row::compared(size_path, "MiB", PEER, vec![(our_size, size(&program)?)], size_goal),
    ])
}
