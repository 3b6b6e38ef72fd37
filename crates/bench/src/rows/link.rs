//! Round trip over the link: 512 bytes out, a short acknowledgment back.
//!
//! Our side sends a chunk of log lines to the real server. The lines belong to a task of another node, so the server acknowledges
//! them without storing them. This covers the whole link (TLS, HTTP/2, session, certificate check, queue) but not the database.
//!
//! Open loop: messages are sent at fixed times, whatever the result of earlier ones, and an answer is matched by the number of
//! its message.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::link::{LogChunk, LogLine, from_node, to_node};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::pki::BuiltInCa;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::child::{self, Companion, Server};
use crate::cluster::{Cluster, Host, Link, write_pem};
use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, interleave};
use crate::nats::Nats;
use crate::rows::durable::or_absent;
use crate::times::{Schedule, TimeUnit, Times};
use crate::{Result, Setup};

const BYTES: usize = 512;
/// Time between two messages.
const PERIOD: Duration = Duration::from_millis(2);

/// Messages in flight, by number.
#[derive(Default)]
struct UnderWay(Mutex<HashMap<u64, Instant>>);

impl UnderWay {
    fn sent(&self, number: u64, at: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number, at);
    }

    /// Returns how long the answer took.
    fn answered(&self, number: u64) -> Result<Duration> {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        Ok(sent.ok_or("an answer came to a question that was not asked")?.elapsed())
    }
}

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

    fn line(&self, sequence: u64) -> LogLine {
        LogLine {
            task_id: self.task.clone(),
            sequence,
            at_us: 1,
            stream: "stdout".to_owned(),
            text: "m".repeat(BYTES),
            dropped: 0,
        }
    }
}

impl Side for Stream {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let schedule = Schedule::new(PERIOD, time)?;
            let first = self.sequence + 1;
            self.sequence += u64::from(schedule.calls());
            let lines: Vec<LogLine> = (first..=self.sequence).map(|sequence| self.line(sequence)).collect();
            let under_way = UnderWay::default();
            let Link { say, answers, .. } = &mut self.link;
            let ask = async {
                for (number, line) in (0..).zip(lines) {
                    let begin = schedule.wait(number).await;
                    under_way.sent(line.sequence, begin.at);
                    say.send(from_node::Message::Logs(LogChunk { lines: vec![line] }).into()).await?;
                }
                Result::<()>::Ok(())
            };
            let hear = async {
                let mut times = Times::new()?;
                while times.len() < u64::from(schedule.calls()) {
                    let answer = answers.message().await?.ok_or("the stream ended")?;
                    if let Some(to_node::Message::LogAck(ack)) = answer.message {
                        for position in ack.positions {
                            times.record(under_way.answered(position.sequence)?)?;
                        }
                    }
                }
                Ok(times)
            };
            let ((), times) = tokio::try_join!(ask, hear)?;
            Ok(Round::times(vec![times]))
        })
    }
}

/// Request and reply over NATS, with the responder in a separate process.
struct RequestReply {
    nats: Nats,
    _server: Server,
    _responder: Companion,
}

impl RequestReply {
    async fn open(setup: &Setup, cluster: &Cluster, host: &Host) -> Result<Self> {
        let folder = &setup.disk;
        let ca = BuiltInCa::open(&cluster.data.join("keys"), host.grant.cluster_id, Timestamp::now())?;
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

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let schedule = Schedule::new(PERIOD, time)?;
            let under_way = UnderWay::default();
            let (mut writer, reader) = self.nats.halves();
            let ask = async {
                // The responder's answer begins with the first eight bytes of the request.
                let mut body = [b'm'; BYTES];
                for number in 0..schedule.calls() {
                    let begin = schedule.wait(number).await;
                    under_way.sent(u64::from(number), begin.at);
                    body[..8].copy_from_slice(&u64::from(number).to_le_bytes());
                    writer.publish("bench.echo", Some("bench.inbox"), &body).await?;
                }
                Result::<()>::Ok(())
            };
            let hear = async {
                let mut times = Times::new()?;
                while times.len() < u64::from(schedule.calls()) {
                    let answer = reader.next().await?.body;
                    let number = answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or("a short answer came")?;
                    times.record(under_way.answered(number)?)?;
                }
                Ok(times)
            };
            let ((), times) = tokio::try_join!(ask, hear)?;
            Ok(Round::times(vec![times]))
        })
    }
}

/// Starts the bare server with the CA of the cluster, so that the same hosts can connect to both.
pub(crate) async fn start_bare(setup: &Setup, cluster: &Cluster, host: &Host) -> Result<(Companion, SocketAddr)> {
    let mut command = child::command(std::env::current_exe()?, &setup.folder);
    command.arg("bare-link").arg(cluster.data.join("keys")).arg(host.grant.cluster_id.to_string());
    let mut server = Companion::start("bare tonic", command, &setup.folder)?;
    let address = server.hear().await?["address"].as_str().ok_or("no address")?.parse()?;
    Ok((server, address))
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let cluster = Cluster::start(setup, "link", None).await?;
    let hosts = cluster.enroll(2).await?;
    let [first, second] = hosts.as_slice() else { return Err("two hosts were enrolled".into()) };
    let (_bare, address) = start_bare(setup, &cluster, first).await?;
    let mut sides: Vec<Box<dyn Side>> = vec![
        or_absent("gpuaas link", Stream::open("gpuaas link", first, cluster.link).await),
        or_absent("bare tonic mTLS", Stream::open("bare tonic mTLS", first, address).await),
        or_absent("NATS request-reply", RequestReply::open(setup, &cluster, second).await),
    ];
    let measured = interleave(&mut sides, effort).await;
    let (median, tail) = ("link round trip 512 B, p50", "link round trip 512 B, p99");
    let quantile = |share| Quantile { metric: 0, share, unit: TimeUnit::Microseconds };
    let rows = vec![
        measured.time_row(median, 0, 1, quantile(0.5), Goal::AtMost(1.3)),
        measured.time_row(tail, 0, 1, quantile(0.99), Goal::Open),
        measured.time_row(median, 0, 2, quantile(0.5), Goal::AtMost(1.0)),
        measured.time_row(tail, 0, 2, quantile(0.99), Goal::Open),
    ];
    drop(sides);
    cluster.server.stop().await?;
    Ok(rows)
}
