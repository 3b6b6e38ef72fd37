//! What a connected agent costs the server, and how fast all agents reconnect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use crate::child;
use crate::cluster::{Cluster, Host, processor_time, proportional_memory};
use crate::links::Links;
use crate::measure::{Effort, Goal, Round, Row, Side, count, interleave};
use crate::report::progress;
use crate::rows::link::start_bare;
use crate::{Result, Setup};

/// One server with its links.
struct Reconnecting {
    name: &'static str,
    hosts: Arc<Vec<Host>>,
    address: SocketAddr,
    links: Option<Links>,
}

impl Side for Reconnecting {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, _: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            self.links = None;
            let started = Instant::now();
            let mut links = Links::open_all(&self.hosts, self.address).await?;
            let seconds = started.elapsed().as_secs_f64();
            if links.alive() != self.hosts.len() {
                return Err("a link was closed again at once".into());
            }
            self.links = Some(links);
            Ok(Round::value(count(self.hosts.len()) / seconds))
        })
    }
}

/// Opens all links. Returns the server's memory per link, in bytes, and the links.
async fn memory_of(hosts: &Arc<Vec<Host>>, address: SocketAddr, process: u32) -> Result<(f64, Links)> {
    let before = proportional_memory(process)?;
    let links = Links::open_all(hosts, address).await?;
    // Lets the effects of opening the links (commits, log lines, buffers) settle.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(((proportional_memory(process)? - before) / count(hosts.len()), links))
}

/// Returns the processor time that each server spends on one idle link, in microseconds per second. Both are measured in the same
/// windows, so that other load on the machine affects both.
async fn rest(processes: [u32; 2], agents: usize, effort: Effort) -> Result<Vec<(f64, f64)>> {
    let mut windows = Vec::new();
    // A window is a whole heartbeat interval. All agents connected at about the same time, so a shorter window could contain the
    // heartbeats of one server and not those of the other.
    let beat = Duration::from_secs(gpuaas_control::link::HEARTBEAT_SECONDS.into());
    for _ in 1..effort.rounds {
        let before = [processor_time(processes[0])?, processor_time(processes[1])?];
        let started = Instant::now();
        tokio::time::sleep(beat).await;
        let seconds = started.elapsed().as_secs_f64();
        let share = |process: usize| -> Result<f64> {
            Ok((processor_time(processes[process])? - before[process]) / seconds / count(agents) * 1e6)
        };
        windows.push((share(0)?, share(1)?));
    }
    Ok(windows)
}

pub(crate) async fn run(setup: &Setup, effort: Effort, agents: usize) -> Result<Vec<Row>> {
    // Both servers have a link of every agent at the same time, and this process has the clients of both.
    child::check_descriptor_limit(2 * agents)?;
    let name = format!("scale-{agents}");
    let cluster = Cluster::start(setup, &name, None).await?;
    let hosts = Arc::new(cluster.enroll(agents).await?);
    // Memory left over from the enrollment would be reused for links and make them look small.
    let cluster = cluster.restart(setup, &name, None).await?;
    let (bare, bare_address) = start_bare(setup, &cluster, hosts.first().ok_or("no hosts")?).await?;
    progress(format_args!("connecting {agents} agents to both servers"));
    let (our_memory, mut our_links) = memory_of(&hosts, cluster.link, cluster.server.id()?).await?;
    let (bare_memory, mut bare_links) = memory_of(&hosts, bare_address, bare.id()?).await?;
    progress("all at rest");
    let rest = rest([cluster.server.id()?, bare.id()?], agents, effort).await?;
    if (our_links.alive(), bare_links.alive()) != (agents, agents) {
        return Err(format!("{} and {} of {agents} links are still open", our_links.alive(), bare_links.alive()).into());
    }
    let peer = "bare tonic mTLS";
    let (memory, time) =
        (format!("server memory per agent, {agents} agents"), format!("server idle CPU per agent, {agents} agents"));
    let mut rows = vec![
        Row::compared(&memory, "KiB PSS", peer, vec![(our_memory / 1024.0, bare_memory / 1024.0)], Goal::AtMost(1.25)),
        Row::compared(&time, "µs/s", peer, rest, Goal::AtMost(1.25)),
    ];
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Reconnecting { name: "gpuaas", hosts: Arc::clone(&hosts), address: cluster.link, links: Some(our_links) }),
        Box::new(Reconnecting { name: peer, hosts, address: bare_address, links: Some(bare_links) }),
    ];
    // A round of thousands of handshakes has no fixed length.
    let effort = Effort { rounds: if agents > 1000 { 7 } else { effort.rounds }, ..effort };
    let measured = interleave(&mut sides, effort).await;
    rows.push(measured.row(&format!("reconnect all {agents} agents"), "1/s", 0, 1, 0, Goal::AtLeast(0.7)));
    drop(sides);
    cluster.server.stop().await?;
    Ok(rows)
}
