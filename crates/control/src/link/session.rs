//! One session of a node's link, over either transport.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::envelope::Signed;
use gpuaas_contract::id::{AgentInstanceId, NodeId, SessionId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::link::{Goodbye, Offer, Ping, ToNode, to_node};
use gpuaas_contract::resume::ResumeSecret;
use gpuaas_contract::telemetry::HostMetrics;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::LinkTransport;
use gpuaas_domain::task::{ReceiptHead, TaskRecord};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::budget::LogRoom;
use crate::pki::Peer;

/// Maximum number of messages that wait for a node that does not read them.
const MAX_WAITING: usize = 4096;
/// How long the agent may take to answer a probe.
pub(super) const PROBE: Duration = Duration::from_secs(3);
/// Maximum number of concurrent commits of one node.
const MAX_COMMITS: usize = 64;

/// A node's open link.
pub struct LinkSession {
    /// The id of the session.
    pub id: SessionId,
    /// The node of the certificate.
    pub node_id: NodeId,
    /// The node's epoch when the link was opened.
    pub node_epoch: u64,
    /// The start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// The node's receipt key in this epoch.
    pub receipt_key: VerifyingKey,
    /// Its transport.
    pub transport: LinkTransport,
    /// The certificate that opened it.
    pub peer: Peer,
    /// Maximum number of tasks in flight to this node.
    pub window: usize,
    /// Wakes the driver, because there may be work.
    pub work: Notify,
    /// Limits the concurrent commits of this node.
    pub commits: Arc<Semaphore>,
    /// The node's last receipt that was verified here.
    pub receipt_head: tokio::sync::Mutex<ReceiptHead>,
    /// Limits the log lines of this node that are being written.
    pub(super) log_room: LogRoom,
    resume: ResumeSecret,
    probing: tokio::sync::Mutex<()>,
    ping: AtomicU64,
    pong: Notify,
    /// The stored and dropped logs of tasks.
    pub(super) logs: tokio::sync::Mutex<HashMap<TaskId, TaskLog>>,
    closed: CancellationToken,
    queues: Mutex<Queues>,
    control_ready: Notify,
    offers_ready: Notify,
    in_flight: Mutex<HashMap<TaskId, Option<Arc<Sent>>>>,
    tasks_of_node: Mutex<HashMap<TaskId, bool>>,
    metrics: Mutex<Option<HostMetrics>>,
    set_version: AtomicU64,
    last_heard: AtomicI64,
    polls_open: AtomicUsize,
    abandoned_at: AtomicI64,
    fenced: AtomicBool,
    caught_up: AtomicBool,
}

/// The stored and dropped log of one task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskLog {
    /// Stored bytes.
    pub(super) bytes: u64,
    /// Whether the last line was beyond the budget.
    pub(super) beyond: bool,
    /// Lines dropped since the last stored one.
    pub(super) dropped: u64,
}

#[derive(Default)]
struct Queues {
    control: VecDeque<ToNode>,
    offers: VecDeque<ToNode>,
    closed: bool,
}

/// The initial values of a session.
pub struct Opening {
    /// The id of the session.
    pub id: SessionId,
    /// Its secret.
    pub resume: ResumeSecret,
    /// The certificate.
    pub peer: Peer,
    /// The node's epoch.
    pub node_epoch: u64,
    /// The start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// The node's receipt key in this epoch.
    pub receipt_key: VerifyingKey,
    /// Its transport.
    pub transport: LinkTransport,
    /// The number of tasks that the agent runs concurrently.
    pub capacity: u32,
    /// Version of the node's verifier set after the welcome.
    pub set_version: u64,
}

impl LinkSession {
    /// Creates a session.
    pub fn new(opening: Opening, now: Timestamp) -> Self {
        let capacity = usize::try_from(opening.capacity).unwrap_or(usize::MAX);
        Self {
            id: opening.id,
            node_id: opening.peer.node_id,
            node_epoch: opening.node_epoch,
            agent_instance_id: opening.agent_instance_id,
            receipt_key: opening.receipt_key,
            transport: opening.transport,
            peer: opening.peer,
            window: capacity.saturating_mul(4).clamp(16, 256),
            work: Notify::new(),
            commits: Arc::new(Semaphore::new(MAX_COMMITS)),
            receipt_head: tokio::sync::Mutex::default(),
            log_room: LogRoom::default(),
            resume: opening.resume,
            probing: tokio::sync::Mutex::default(),
            ping: AtomicU64::new(0),
            pong: Notify::new(),
            logs: tokio::sync::Mutex::default(),
            closed: CancellationToken::new(),
            queues: Mutex::default(),
            control_ready: Notify::new(),
            offers_ready: Notify::new(),
            in_flight: Mutex::default(),
            tasks_of_node: Mutex::default(),
            metrics: Mutex::default(),
            set_version: AtomicU64::new(opening.set_version),
            last_heard: AtomicI64::new(now.0),
            polls_open: AtomicUsize::new(0),
            abandoned_at: AtomicI64::new(0),
            fenced: AtomicBool::new(false),
            caught_up: AtomicBool::new(false),
        }
    }

    /// Queues a message that is not an offer. Control messages overtake offers.
    pub fn tell(&self, message: to_node::Message) {
        let overflow = {
            let mut queues = lock(&self.queues);
            if queues.closed {
                return;
            }
            queues.control.push_back(message.into());
            queues.control.len() > MAX_WAITING
        };
        self.control_ready.notify_one();
        if overflow {
            self.close("outbox_overflow", "the node does not read its messages", 1);
        }
    }

    /// Queues an offer. A session with an expired certificate gets none.
    pub fn offer(&self, offer: Offer) {
        if self.ends_if_expired() {
            return;
        }
        let delivery = gpuaas_runtime::delivery();
        let message: ToNode = to_node::Message::Offer(offer).into();
        let mut queues = lock(&self.queues);
        for _ in 1..delivery.copies {
            queues.offers.push_back(message.clone());
        }
        if delivery.overtakes {
            queues.offers.push_front(message)
        } else {
            queues.offers.push_back(message)
        }
        drop(queues);
        self.offers_ready.notify_one();
    }

    /// Returns the next message for a stream, or `None` when the session is closed and everything is sent.
    pub async fn next(&self) -> Option<ToNode> {
        loop {
            self.ends_if_expired();
            let (control, offers) = (self.control_ready.notified(), self.offers_ready.notified());
            {
                let mut queues = lock(&self.queues);
                if let Some(message) = queues.control.pop_front() {
                    return Some(message);
                }
                if queues.closed {
                    return None;
                }
                if let Some(message) = queues.offers.pop_front() {
                    return Some(message);
                }
            }
            tokio::select! { biased; () = control => {}, () = offers => {} }
        }
    }

    /// Returns all waiting offers for a poll, after waiting up to `patience` for one.
    pub async fn poll_offers(&self, patience: Duration) -> Vec<ToNode> {
        self.poll(patience, &self.offers_ready, |queues| queues.offers.drain(..).collect()).await
    }

    /// Returns all waiting control messages for a poll, after waiting up to `patience` for one.
    pub async fn poll_control(&self, patience: Duration) -> Vec<ToNode> {
        self.poll(patience, &self.control_ready, |queues| queues.control.drain(..).collect()).await
    }

    async fn poll(&self, patience: Duration, ready: &Notify, take: impl Fn(&mut Queues) -> Vec<ToNode>) -> Vec<ToNode> {
        let mut open = OpenPoll::new(self);
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let notified = ready.notified();
            self.ends_if_expired();
            let (taken, closed) = {
                let mut queues = lock(&self.queues);
                (take(&mut queues), queues.closed)
            };
            if !taken.is_empty() || closed {
                open.answered = true;
                return taken;
            }
            if tokio::time::timeout_at(deadline, notified).await.is_err() {
                open.answered = true;
                return Vec::new();
            }
        }
    }

    /// Closes the session with a last message to the node.
    pub fn close(&self, code: &str, message: &str, retry_after_seconds: u32) {
        {
            let mut queues = lock(&self.queues);
            if queues.closed {
                return;
            }
            queues.closed = true;
            let goodbye = Goodbye { code: code.to_owned(), message: message.to_owned(), retry_after_seconds };
            queues.control.push_back(to_node::Message::Goodbye(goodbye).into());
        }
        self.control_ready.notify_one();
        self.offers_ready.notify_one();
        self.closed.cancel();
    }

    /// Closes the session if its certificate has expired, whatever still waits in it. Returns whether it has.
    pub fn ends_if_expired(&self) -> bool {
        let expired = Timestamp::now() > self.peer.not_after;
        if expired {
            lock(&self.queues).offers.clear();
            self.close("certificate_expired", "this certificate has expired; the agent must renew it or rejoin", 0);
        }
        expired
    }

    /// Ends the session because a newer one of the same node took over.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.close("session_replaced", "another link of this node took over", 0);
    }

    /// Returns whether a newer session took over.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Resolves when the session has ended.
    pub async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// Returns whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Records a message from the node.
    pub fn heard(&self, now: Timestamp) {
        self.last_heard.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Returns the time of the node's last message; an open poll counts as now.
    pub fn last_heard(&self, now: Timestamp) -> Timestamp {
        if self.polls_open.load(Ordering::Acquire) > 0 { now } else { Timestamp(self.last_heard.load(Ordering::Relaxed)) }
    }

    /// Returns how long ago a poll's connection broke without another poll since.
    pub(crate) fn abandoned_for(&self, now: Timestamp) -> Option<Duration> {
        match self.abandoned_at.load(Ordering::Acquire) {
            0 => None,
            at => Some(now.since(Timestamp(at))),
        }
    }

    /// Returns whether a request has this session's key.
    pub fn is_request_key(&self, given: &str) -> bool {
        self.resume.is_request_key(given)
    }

    /// Returns the secret that proves the next hello of the same agent process.
    pub fn resume_secret(&self) -> &ResumeSecret {
        &self.resume
    }

    /// Returns whether the agent of this link is alive: it answers a ping.
    pub async fn probe(&self) -> bool {
        // One probe at a time, so that an answer belongs to one ping.
        let _turn = self.probing.lock().await;
        if self.is_closed() {
            return false;
        }
        let mut random = [0; 8];
        // A late answer to an earlier ping must not count; only the agent can answer on this link.
        gpuaas_runtime::random(&mut random);
        let nonce = u64::from_le_bytes(random) | 1;
        self.ping.store(nonce, Ordering::Release);
        self.tell(to_node::Message::Ping(Ping { nonce }));
        let answered = tokio::select! {
            biased;
            () = self.ended() => false,
            answered = tokio::time::timeout(PROBE, self.pong.notified()) => answered.is_ok(),
        };
        self.ping.store(0, Ordering::Release);
        answered
    }

    /// Records the answer to a ping.
    pub fn answered(&self, nonce: u64) {
        // Late answers, and those without a ping, are ignored.
        if nonce != 0 && self.ping.compare_exchange(nonce, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.pong.notify_one();
        }
    }

    /// Sends a newer verifier set to the node, once.
    pub fn tell_verifier_set(&self, version: u64, document: &[u8]) {
        if self.set_version.fetch_max(version, Ordering::AcqRel) < version {
            self.tell(to_node::Message::VerifierSet(gpuaas_contract::link::VerifierSet { version, document: document.to_vec() }));
        }
    }

    /// Wakes the driver, because there may be work for the node.
    pub fn wake(&self) {
        self.caught_up.store(false, Ordering::Release);
        self.work.notify_one();
    }

    /// Sets whether nothing is queued for the node.
    pub fn set_caught_up(&self, caught_up: bool) {
        self.caught_up.store(caught_up, Ordering::Release);
    }

    /// Returns how many more tasks may be sent.
    pub fn room(&self) -> usize {
        self.window.saturating_sub(lock(&self.in_flight).len())
    }

    /// Sets the tasks that were sent and have not ended, from the store.
    pub fn set_in_flight(&self, tasks: impl Iterator<Item = TaskId>) {
        let mut in_flight = lock(&self.in_flight);
        let mut before = std::mem::take(&mut *in_flight);
        in_flight.extend(tasks.map(|task| (task, before.remove(&task).flatten())));
    }

    /// Records that a task was sent to the node.
    pub fn has_sent(&self, task: TaskId, sent: Option<Sent>) {
        lock(&self.in_flight).insert(task, sent.map(Arc::new));
    }

    /// Returns the last known row of a task that this link sent, if it is cached. It may be outdated: a decision on it is
    /// conditional on its version.
    pub fn sent(&self, task: TaskId) -> Option<Arc<Sent>> {
        lock(&self.in_flight).get(&task).cloned().flatten()
    }

    /// Updates the cached row of a task.
    pub fn has_gone_on(&self, record: TaskRecord) {
        if let Some(Some(sent)) = lock(&self.in_flight).get_mut(&record.id)
            && sent.record.version < record.version
        {
            *sent = Arc::new(Sent { record, envelope: sent.envelope.clone() });
        }
    }

    /// Removes an ended task, and wakes the driver for tasks that wait for room.
    pub fn has_ended(&self, task: TaskId) {
        lock(&self.in_flight).remove(&task);
        if !self.caught_up.load(Ordering::Acquire) {
            self.work.notify_one();
        }
    }

    /// Returns the cache of which tasks belong to this node, so that a flood of log lines costs one lookup per task.
    pub fn tasks_of_node(&self) -> MutexGuard<'_, HashMap<TaskId, bool>> {
        lock(&self.tasks_of_node)
    }

    /// Returns the latest sample of the host's metrics.
    pub fn metrics(&self) -> Option<HostMetrics> {
        lock(&self.metrics).clone()
    }

    /// Stores a sample of metrics.
    pub fn set_metrics(&self, sample: HostMetrics) {
        *lock(&self.metrics) = Some(sample);
    }
}

/// A task that was sent with the first envelope that was signed for it: the node's answer can be handled without another read.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its row.
    pub record: TaskRecord,
    /// Digest of its only envelope.
    pub envelope: Digest,
}

/// Reserved room for one task on an open link, while the task is written.
///
/// A task for a node without queued tasks need not be queued, wake the driver and be read again. If something is queued, there is
/// no such place: the queue goes first.
pub struct Place {
    session: Arc<LinkSession>,
    task: TaskId,
    used: bool,
}

impl Place {
    pub(super) fn take(session: Arc<LinkSession>, task: TaskId) -> Option<Self> {
        {
            let mut in_flight = lock(&session.in_flight);
            let free = in_flight.len() < session.window && session.caught_up.load(Ordering::Acquire);
            if session.is_closed() || !free || session.ends_if_expired() {
                return None;
            }
            in_flight.insert(task, None);
        }
        Some(Self { session, task, used: false })
    }

    /// Sends the task, which must already be committed. If the link has ended in the meantime, the task is sent again after its
    /// lease.
    pub fn send(mut self, record: TaskRecord, signed: Signed) {
        self.used = true;
        self.session.has_sent(self.task, Some(Sent { record, envelope: signed.digest }));
        self.session.offer(Offer { task_id: self.task.to_string(), envelope: signed.envelope });
    }

    /// Returns its link.
    pub fn session(&self) -> &LinkSession {
        &self.session
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.used {
            self.session.has_ended(self.task);
        }
    }
}

/// An open poll.
struct OpenPoll<'a> {
    session: &'a LinkSession,
    answered: bool,
}

impl<'a> OpenPoll<'a> {
    fn new(session: &'a LinkSession) -> Self {
        session.polls_open.fetch_add(1, Ordering::AcqRel);
        session.abandoned_at.store(0, Ordering::Release);
        Self { session, answered: false }
    }
}

impl Drop for OpenPoll<'_> {
    fn drop(&mut self) {
        let now = Timestamp::now();
        self.session.heard(now);
        self.session.polls_open.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            // The connection of a poll broke: the long-poll equivalent of a dropped stream.
            self.session.abandoned_at.store(now.0, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
