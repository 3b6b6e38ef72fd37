//! What a connected agent costs the server, and how fast all of them come back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use gpuaas_contract::link::{Heartbeat, from_node};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Host, Link, processor_time, proportional_memory};
use crate::measure::{Effort, Goal, Row, Side, count, interleave};
use crate::rows::link::start_bare;
use crate::{Result, Setup};

/// Handshakes at the same time.
const TOGETHER: usize = 64;

/// Many open links to one server; they end when this is dropped.
pub(crate) struct Links(JoinSet<()>);

impl Links {
    /// Opens one link per host and keeps them as an agent would.
    pub(crate) async fn open(hosts: &Arc<Vec<Host>>, address: SocketAddr) -> Result<Self> {
        let opening = (0..hosts.len()).map(|number| {
            let hosts = Arc::clone(hosts);
            async move { hosts[number].connect(address).await }
        });
        let links: Vec<Link> = futures::stream::iter(opening).buffer_unordered(TOGETHER).try_collect().await?;
        let mut kept = JoinSet::new();
        for link in links {
            kept.spawn(keep(link));
        }
        Ok(Self(kept))
    }

    /// How many are still open.
    pub(crate) fn alive(&mut self) -> usize {
        while self.0.try_join_next().is_some() {}
        self.0.len()
    }
}

/// Says that it is there, as often as the server wants, and reads whatever comes.
async fn keep(mut link: Link) {
    let mut beats = tokio::time::interval(Duration::from_secs(u64::from(link.heartbeat_seconds)));
    loop {
        tokio::select! {
            _ = beats.tick() => {
                let beat = from_node::Message::Heartbeat(Heartbeat::default());
                if link.say.send(beat.into()).await.is_err() {
                    return;
                }
            }
            answer = link.answers.message() => {
                if !matches!(answer, Ok(Some(_))) {
                    return;
                }
            }
        }
    }
}

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

    fn round(&mut self, _: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
        Box::pin(async move {
            self.links = None;
            let started = Instant::now();
            let mut links = Links::open(&self.hosts, self.address).await?;
            let seconds = started.elapsed().as_secs_f64();
            if links.alive() != self.hosts.len() {
                return Err("a link was closed again at once".into());
            }
            self.links = Some(links);
            Ok(vec![count(self.hosts.len()) / seconds])
        })
    }
}

/// Cost of one link at rest: bytes, and microseconds of processor time per second.
async fn cost(hosts: &Arc<Vec<Host>>, address: SocketAddr, process: u32, watch: Duration) -> Result<(f64, f64, Links)> {
    let before = proportional_memory(process)?;
    let mut links = Links::open(hosts, address).await?;
    // What opening them caused (commits, log lines, buffers) has settled by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let memory = (proportional_memory(process)? - before) / count(hosts.len());
    let spent = processor_time(process)?;
    let started = Instant::now();
    tokio::time::sleep(watch).await;
    let share = (processor_time(process)? - spent) / started.elapsed().as_secs_f64();
    if links.alive() != hosts.len() {
        return Err(format!("{} of {} links are still open", links.alive(), hosts.len()).into());
    }
    Ok((memory, share / count(hosts.len()) * 1e6, links))
}

async fn at(setup: &Setup, effort: Effort, agents: usize) -> Result<Vec<Row>> {
    let cluster = Cluster::start(setup, &format!("scale-{agents}"), None).await?;
    let hosts = Arc::new(cluster.enrol(agents).await?);
    let (bare, bare_address) = start_bare(setup, &cluster, hosts.first().ok_or("no hosts")?).await?;
    // Two heartbeats of every agent and two keep-alives of every connection.
    let watch = Duration::from_secs(20);
    let (our_memory, our_time, our_links) = cost(&hosts, cluster.link, cluster.server.id()?, watch).await?;
    let (bare_memory, bare_time, bare_links) = cost(&hosts, bare_address, bare.id()?, watch).await?;
    let peer = "bare tonic mTLS";
    let mut rows = vec![
        Row::single(
            &format!("server memory per agent, {agents} agents"),
            "KiB PSS",
            our_memory / 1024.0,
            peer,
            bare_memory / 1024.0,
            Goal::AtMost(1.25),
        ),
        Row::single(
            &format!("server idle CPU per agent, {agents} agents"),
            "µs/s",
            our_time,
            peer,
            bare_time,
            Goal::AtMost(1.25),
        ),
    ];
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Reconnecting { name: "gpuaas", hosts: Arc::clone(&hosts), address: cluster.link, links: Some(our_links) }),
        Box::new(Reconnecting { name: peer, hosts, address: bare_address, links: Some(bare_links) }),
    ];
    let effort = Effort { rounds: if agents > 1000 { 4 } else { effort.rounds }, ..effort };
    let measured = interleave(&mut sides, effort).await;
    rows.push(measured.row(&format!("reconnect all {agents} agents"), "1/s", 0, 1, 0, Goal::AtLeast(0.7)));
    drop(sides);
    cluster.server.stop().await?;
    Ok(rows)
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = at(setup, effort, 1000).await?;
    if !setup.quick {
        rows.extend(at(setup, effort, 5000).await?);
    }
    Ok(rows)
}
