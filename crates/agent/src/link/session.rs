//! One session over either transport: sends and receives messages.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use gpuaas_contract::link::{
    FromNode, Heartbeat, Hello, LogChunk, LogLine, Metrics, Pong, SignedReceipt, VerifierSet, Versions, Welcome, from_node,
    to_node,
};
use gpuaas_contract::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::conversation::{Conversation, LinkError};
use super::resume::Resume;
use crate::pipeline::{Pipeline, Round};
use crate::spool::Spool;
use crate::telemetry::Telemetry;
use crate::trust::Trust;

/// Maximum number of receipts that are sent and not confirmed.
const RECEIPT_WINDOW: u64 = 32;
/// A receipt that is not confirmed for this long is sent again.
const RESEND_AFTER: Duration = Duration::from_secs(60);

/// The state behind a session.
pub(crate) struct Core {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: NodeId,
    pub(crate) node_epoch: u64,
    pub(crate) instance_id: AgentInstanceId,
    pub(crate) boot_id: String,
    pub(crate) capacity: u32,
    pub(crate) notices: Vec<String>,
    pub(crate) pipeline: Pipeline,
    pub(crate) spool: Spool,
    pub(crate) trust: Arc<Trust>,
    pub(crate) telemetry: Telemetry,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) metrics_interval: Duration,
    pub(crate) resume: Resume,
}

impl Core {
    /// Returns the first message of a new link: the node's identity and its tasks in hand. Offers of older links are no longer
    /// accepted.
    pub(super) fn hello(&self) -> (Hello, Round) {
        let (tasks, round) = self.pipeline.begin_round();
        let hello = Hello {
            protocol: Versions::OURS.newest,
            oldest_protocol: Versions::OURS.oldest,
            agent_version: crate::VERSION.to_owned(),
            agent_instance_id: self.instance_id.to_string(),
            boot_id: self.boot_id.clone(),
            node_epoch: self.node_epoch,
            verifier_set_version: self.trust.current().version(),
            tasks,
            facts_json: self.telemetry.facts().borrow().clone(),
            capacity: self.capacity,
            notices: self.notices.clone(),
            journal_fence_us: self.pipeline.fence().0,
            // Set once there is a connection: see `Resume::prove`.
            resume_session: String::new(),
            resume_proof: Vec::new(),
        };
        (hello, round)
    }

    /// Checks the welcome and applies its verifier set. Returns the control plane's clock minus ours.
    pub(super) async fn greet(&self, welcome: &Welcome) -> Result<i64, LinkError> {
        if welcome.cluster_id != self.cluster_id.to_string() {
            let message = format!("this node belongs to {}, the control plane is {}", self.cluster_id, welcome.cluster_id);
            return Err(LinkError::Refused { code: "cluster_mismatch".to_owned(), message });
        }
        // A server that names no version speaks the one that was sent.
        if welcome.protocol != 0 && !Versions::OURS.contains(welcome.protocol) {
            let message = format!(
                "the server (version {}) chose link protocol {}; this agent speaks {}",
                printable(&welcome.server_version),
                welcome.protocol,
                Versions::OURS
            );
            return Err(LinkError::Refused { code: "protocol_unsupported".to_owned(), message });
        }
        if let Some(set) = &welcome.verifier_set {
            self.take_verifier_set(set.clone()).await;
        }
        let offset = welcome.server_time_us.saturating_sub(Timestamp::now().0);
        if offset.unsigned_abs() > 30_000_000 {
            let seconds = offset / 1_000_000;
            tracing::warn!(
                seconds,
                "this host's clock and the control plane's differ; tasks will be refused beyond 60 s: check NTP"
            );
        }
        Ok(offset)
    }

    async fn take_verifier_set(&self, set: VerifierSet) {
        let trust = Arc::clone(&self.trust);
        let taken = gpuaas_runtime::blocking(move || trust.offer(&set.document)).await;
        match taken {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::error!(code = error.code(), error = crate::error_chain::chain(&error), "the verifier set was rejected");
            }
            Err(error) => tracing::error!(%error, "the verifier set was rejected"),
        }
    }
}

/// A version as the other side writes it, for messages and files here.
pub(super) fn printable(version: &str) -> String {
    version.chars().filter(|c| c.is_ascii_graphic()).take(64).collect()
}

/// Runs the session until it ends. Fire `end` to close it cleanly.
pub(super) async fn run(
    core: &Core,
    conversation: Conversation,
    round: Round,
    volatile: &mut mpsc::Receiver<from_node::Message>,
    end: impl Future<Output = ()>,
) -> Option<LinkError> {
    let Conversation { welcome, outgoing, mut incoming, tasks } = conversation;
    core.spool.rewind().await;
    let (pong, mut pongs) = mpsc::channel(8);
    let ended = {
        let speak = speak(core, &welcome, &outgoing, volatile, &mut pongs);
        let hear = hear(core, round, &mut incoming, &pong);
        tokio::select! {
            biased;
            () = end => None,
            error = hear => Some(error),
            error = speak => Some(error),
        }
    };
    let conversation = Conversation { welcome, outgoing, incoming, tasks };
    if ended.is_none() {
        conversation.close().await;
    }
    ended
}

async fn hear(
    core: &Core,
    round: Round,
    incoming: &mut mpsc::Receiver<Result<to_node::Message, LinkError>>,
    pong: &mpsc::Sender<u64>,
) -> LinkError {
    while let Some(heard) = incoming.recv().await {
        let message = match heard {
            Ok(message) => message,
            Err(error) => return error,
        };
        match message {
            to_node::Message::Offer(offer) => core.pipeline.offer(round, offer.task_id, offer.envelope),
            to_node::Message::Cancel(cancel) => {
                if let Some(task_id) = task_id(&cancel.task_id) {
                    core.pipeline.cancel(task_id, &cancel.reason);
                }
            }
            to_node::Message::VerifierSet(set) => core.take_verifier_set(set).await,
            to_node::Message::ReceiptAck(ack) => {
                if let Some(task_id) = task_id(&ack.task_id) {
                    core.pipeline.reported(task_id, &ack.rejected_code);
                }
            }
            to_node::Message::LogAck(ack) => core.spool.acknowledge(ack.positions).await,
            to_node::Message::Ping(ping) => {
                if pong.try_send(ping.nonce).is_err() {
                    return LinkError::Broken("pings pile up: nothing can be sent".to_owned());
                }
            }
            to_node::Message::Goodbye(goodbye) => return LinkError::Goodbye(goodbye),
            to_node::Message::Welcome(_) => tracing::warn!("control plane sent a second welcome"),
        }
    }
    LinkError::Broken("the link closed".to_owned())
}

fn task_id(text: &str) -> Option<TaskId> {
    let parsed = text.parse();
    if parsed.is_err() {
        tracing::warn!(task_id = text.chars().take(64).collect::<String>(), "the control plane sent a task without a valid id");
    }
    parsed.ok()
}

async fn speak(
    core: &Core,
    welcome: &Welcome,
    outgoing: &mpsc::Sender<FromNode>,
    volatile: &mut mpsc::Receiver<from_node::Message>,
    pongs: &mut mpsc::Receiver<u64>,
) -> LinkError {
    let mut receipts = Receipts::new(core.pipeline.clone());
    let mut log_changes = core.spool.changes();
    log_changes.mark_changed();
    let mut facts = core.telemetry.facts();
    facts.mark_unchanged();
    let running = core.pipeline.running();
    let mut heartbeat = interval(shorter(core.heartbeat_interval, welcome.heartbeat_seconds));
    let mut metrics = interval(core.metrics_interval);
    let mut sequence = 0;
    loop {
        let message = tokio::select! {
            biased;
            Some(nonce) = pongs.recv() => from_node::Message::Pong(Pong { nonce }),
            Some(message) = volatile.recv() => message,
            receipt = receipts.next() => from_node::Message::Receipt(receipt),
            _ = heartbeat.tick() => {
                sequence += 1;
                let facts_json = if facts.has_changed().unwrap_or(false) { facts.borrow_and_update().clone() } else { String::new() };
                let running = *running.borrow();
                from_node::Message::Heartbeat(Heartbeat { sequence, sent_at_us: Timestamp::now().0, facts_json, running })
            }
            _ = metrics.tick() => match core.telemetry.sample().await {
                Some(metrics_json) => from_node::Message::Metrics(Metrics { metrics_json }),
                None => continue,
            },
            Ok(()) = log_changes.changed() => {
                let batch = core.spool.next_batch().await;
                if !batch.is_empty() {
                    log_changes.mark_changed();
                }
                for lines in by_task(batch) {
                    if !send(outgoing, from_node::Message::Logs(LogChunk { lines })).await {
                        return closed();
                    }
                }
                continue;
            }
        };
        for _ in 1..gpuaas_runtime::delivery().copies {
            if !send(outgoing, message.clone()).await {
                return closed();
            }
        }
        if !send(outgoing, message).await {
            return closed();
        }
    }
}

/// Groups consecutive lines of one task: a chunk has lines of one task only.
fn by_task(lines: Vec<LogLine>) -> Vec<Vec<LogLine>> {
    let mut runs: Vec<Vec<LogLine>> = Vec::new();
    for line in lines {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.task_id == line.task_id) => run.push(line),
            Some(_) | None => runs.push(vec![line]),
        }
    }
    runs
}

async fn send(outgoing: &mpsc::Sender<FromNode>, message: from_node::Message) -> bool {
    outgoing.send(message.into()).await.is_ok()
}

fn closed() -> LinkError {
    LinkError::Broken("the link closed".to_owned())
}

fn shorter(ours: Duration, theirs_seconds: u32) -> Duration {
    if theirs_seconds == 0 { ours } else { ours.min(Duration::from_secs(theirs_seconds.into())) }
}

fn interval(every: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval
}

/// Sends unconfirmed receipts in order, a window at a time, and again if they stay unconfirmed.
struct Receipts {
    pipeline: Pipeline,
    changes: watch::Receiver<u64>,
    sent_up_to: u64,
    oldest: u64,
    oldest_since: Instant,
}

impl Receipts {
    fn new(pipeline: Pipeline) -> Self {
        let changes = pipeline.receipt_changes();
        Self { pipeline, changes, sent_up_to: 0, oldest: 0, oldest_since: Instant::now() }
    }

    /// Returns the next receipt to send, and waits until there is one. Cancel-safe.
    async fn next(&mut self) -> SignedReceipt {
        loop {
            self.changes.borrow_and_update();
            self.note_oldest();
            let room = self.oldest == 0 || self.sent_up_to < self.oldest.saturating_add(RECEIPT_WINDOW);
            if room && let Some((unreported, receipt)) = self.pipeline.next_receipt(self.sent_up_to).await {
                self.sent_up_to = unreported.sequence;
                return SignedReceipt { task_id: unreported.task_id.to_string(), receipt };
            }
            tokio::select! {
                biased;
                changed = self.changes.changed() => if changed.is_err() { std::future::pending::<()>().await },
                () = tokio::time::sleep_until(self.oldest_since + RESEND_AFTER), if self.oldest != 0 => {
                    tracing::warn!(sequence = self.oldest, "a receipt was not confirmed for a minute; sending it again");
                    self.sent_up_to = self.oldest - 1;
                    self.oldest_since = Instant::now();
                }
            }
        }
    }

    /// Tracks the oldest receipt that was sent and is not confirmed.
    fn note_oldest(&mut self) {
        let oldest = self.pipeline.oldest_unreported().filter(|oldest| *oldest <= self.sent_up_to).unwrap_or(0);
        if oldest != self.oldest {
            self.oldest = oldest;
            self.oldest_since = Instant::now();
        }
    }
}
