//! Round trip over the link: 512 bytes there, a short acknowledgement back.
//!
//! Ours is a chunk of log lines to the real server. The lines are of a task that is not the node's, which the server
//! acknowledges without storing them: everything of the link (TLS, HTTP/2, session, certificate check, queue) and nothing of the
//! database.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::{LogChunk, LogLine, from_node, to_node};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::pki::Ca;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::child::{self, Companion, Server};
use crate::cluster::{Cluster, Host, Link, write_pem};
use crate::measure::{Effort, Goal, Row, Side, interleave, percentile};
use crate::nats::Nats;
use crate::rows::durable::or_absent;
use crate::{Result, Setup};

const BYTES: usize = 512;

/// A stream to a server that acknowledges log lines.
struct Stream {
    name: &'static str,
    link: Link,
    task: String,
    sequence: u64,
}

impl Stream {
    async fn open(name: &'static str, host: &Host, address: SocketAddr) -> Result<Self> {
        Ok(Self { name, link: host.connect(address).await?, task: TaskId::generate().to_string(), sequence: 0 })
    }

    async fn once(&mut self) -> Result<()> {
        self.sequence += 1;
        let line = LogLine {
            task_id: self.task.clone(),
            sequence: self.sequence,
            at_us: 1,
            stream: "stdout".to_owned(),
            text: "m".repeat(BYTES),
            dropped: 0,
        };
        self.link.say.send(from_node::Message::Logs(LogChunk { lines: vec![line] }).into()).await?;
        loop {
            let answer = self.link.answers.message().await?.ok_or("the stream ended")?;
            if let Some(to_node::Message::LogAck(ack)) = answer.message {
                let acknowledged = ack.positions.first().map(|position| position.sequence);
                return if acknowledged == Some(self.sequence) { Ok(()) } else { Err("another line was acknowledged".into()) };
            }
        }
    }
}

impl Side for Stream {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
        Box::pin(async move {
            let mut times = Vec::new();
            let started = Instant::now();
            while started.elapsed() < time {
                let at = Instant::now();
                self.once().await?;
                times.push(at.elapsed().as_secs_f64() * 1e6);
            }
            Ok(vec![percentile(&mut times, 0.5), percentile(&mut times, 0.99)])
        })
    }
}

/// Request and reply over NATS, the responder in a process of its own.
struct RequestReply {
    nats: Nats,
    _server: Server,
    _responder: Companion,
}

impl RequestReply {
    async fn open(setup: &Setup, cluster: &Cluster, host: &Host) -> Result<Self> {
        let folder = &setup.disk;
        let ca = Ca::open(&cluster.data.join("keys"), host.grant.cluster_id, Timestamp::now())?;
        let (chain, key) = ca.issue_server(&[], Timestamp::now())?;
        let (certificate, key) = write_pem(folder, "nats-server", &chain, key.secret_der())?;
        let leaf = CertificateDer::from_pem_slice(host.grant.certificate_pem.as_bytes())?;
        let (identity, _) = write_pem(folder, "nats-client", &[leaf], &host.tls_key)?;
        let ca_file = cluster.data.join("keys/ca.crt");
        let (server, address) = crate::nats::start(setup, &certificate, &key, &ca_file).await?;
        let mut command = child::command(std::env::current_exe()?, &setup.folder);
        command.args(["nats-responder", &address.to_string()]).arg(identity).arg(&ca_file);
        let mut responder = Companion::start("nats responder", command, &setup.folder)?;
        responder.hear().await?;
        let mut nats = Nats::connect(address, &host.tls).await?;
        nats.subscribe("bench.inbox").await?;
        Ok(Self { nats, _server: server, _responder: responder })
    }
}

impl Side for RequestReply {
    fn name(&self) -> String {
        "NATS request-reply".to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
        Box::pin(async move {
            let body = [b'm'; BYTES];
            let mut times = Vec::new();
            let started = Instant::now();
            while started.elapsed() < time {
                let at = Instant::now();
                self.nats.publish("bench.echo", Some("bench.inbox"), &body).await?;
                if self.nats.next().await?.body.len() != 48 {
                    return Err("another answer came".into());
                }
                times.push(at.elapsed().as_secs_f64() * 1e6);
            }
            Ok(vec![percentile(&mut times, 0.5), percentile(&mut times, 0.99)])
        })
    }
}

/// Starts the bare server with the CA of the cluster, so that the same hosts can talk to both.
pub(crate) async fn start_bare(setup: &Setup, cluster: &Cluster, host: &Host) -> Result<(Companion, SocketAddr)> {
    let mut command = child::command(std::env::current_exe()?, &setup.folder);
    command.arg("bare-link").arg(cluster.data.join("keys")).arg(host.grant.cluster_id.to_string());
    let mut server = Companion::start("bare tonic", command, &setup.folder)?;
    let address = server.hear().await?["address"].as_str().ok_or("no address")?.parse()?;
    Ok((server, address))
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let cluster = Cluster::start(setup, "link", None).await?;
    let hosts = cluster.enrol(2).await?;
    let [first, second] = hosts.as_slice() else { return Err("two hosts were enrolled".into()) };
    let (_bare, address) = start_bare(setup, &cluster, first).await?;
    let mut sides: Vec<Box<dyn Side>> = vec![
        or_absent("gpuaas link", Stream::open("gpuaas link", first, cluster.link).await),
        or_absent("bare tonic mTLS", Stream::open("bare tonic mTLS", first, address).await),
        or_absent("NATS request-reply", RequestReply::open(setup, &cluster, second).await),
    ];
    let measured = interleave(&mut sides, effort).await;
    let rows = vec![
        measured.row("link round trip 512 B, p50", "µs", 0, 1, 0, Goal::AtMost(1.3)),
        measured.row("link round trip 512 B, p99", "µs", 0, 1, 1, Goal::Open),
        measured.row("link round trip 512 B, p50", "µs", 0, 2, 0, Goal::AtMost(1.0)),
    ];
    drop(sides);
    cluster.server.stop().await?;
    Ok(rows)
}
