//! One life of a link, whatever carries it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::id::{AgentInstanceId, NodeId, SessionId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::link::{Goodbye, ToNode, to_node};
use gpuaas_contract::telemetry::HostMetrics;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Transport;
use gpuaas_domain::task::ReceiptHead;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::pki::Peer;

/// Most messages that may wait for a node that does not read them.
const MAX_WAITING: usize = 4096;
/// Most commits one node may have under way.
const MAX_COMMITS: usize = 64;

/// A node's open link.
pub struct Session {
    /// This life of the link.
    pub id: SessionId,
    /// The node, as its certificate names it.
    pub node_id: NodeId,
    /// The node's epoch when the link was opened.
    pub node_epoch: u64,
    /// Which start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// The node's receipt key in this epoch.
    pub receipt_key: VerifyingKey,
    /// What carries it.
    pub transport: Transport,
    /// The certificate that opened it.
    pub peer: Peer,
    /// How many tasks may be in flight to this node.
    pub window: usize,
    /// There may be work: the driver looks.
    pub work: Notify,
    /// Answers to our pings.
    pub pong: Notify,
    /// Bounds the commits under way for this node.
    pub commits: Arc<Semaphore>,
    /// The last receipt of the node that was verified here.
    pub receipt_head: tokio::sync::Mutex<ReceiptHead>,
    closed: CancellationToken,
    queues: Mutex<Queues>,
    control_ready: Notify,
    offers_ready: Notify,
    in_flight: Mutex<HashSet<TaskId>>,
    tasks_of_node: Mutex<HashMap<TaskId, bool>>,
    metrics: Mutex<Option<HostMetrics>>,
    set_version: AtomicU64,
    last_heard: AtomicI64,
    polls_open: AtomicUsize,
    polls_seen: AtomicU64,
    abandoned_at: AtomicI64,
    fenced: AtomicBool,
}

#[derive(Default)]
struct Queues {
    control: VecDeque<ToNode>,
    offers: VecDeque<ToNode>,
    closed: bool,
}

/// What a new session starts with.
pub struct Opening {
    /// The certificate.
    pub peer: Peer,
    /// The node's epoch.
    pub node_epoch: u64,
    /// Which start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// The node's receipt key in this epoch.
    pub receipt_key: VerifyingKey,
    /// What carries it.
    pub transport: Transport,
    /// How many tasks the agent runs at a time.
    pub capacity: u32,
    /// Version of the verifier set the node will have after the welcome.
    pub set_version: u64,
    /// The last receipt of the node.
    pub receipt_head: ReceiptHead,
}

impl Session {
    /// A new session.
    pub fn new(opening: Opening, now: Timestamp) -> Self {
        let capacity = usize::try_from(opening.capacity).unwrap_or(usize::MAX);
        Self {
            id: SessionId::generate(),
            node_id: opening.peer.node_id,
            node_epoch: opening.node_epoch,
            agent_instance_id: opening.agent_instance_id,
            receipt_key: opening.receipt_key,
            transport: opening.transport,
            peer: opening.peer,
            window: capacity.saturating_mul(4).clamp(16, 256),
            work: Notify::new(),
            pong: Notify::new(),
            commits: Arc::new(Semaphore::new(MAX_COMMITS)),
            receipt_head: tokio::sync::Mutex::new(opening.receipt_head),
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
            polls_seen: AtomicU64::new(0),
            abandoned_at: AtomicI64::new(0),
            fenced: AtomicBool::new(false),
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

    /// Queues an offer.
    pub fn offer(&self, offer: gpuaas_contract::link::Offer) {
        let delivery = gpuaas_world::delivery();
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

    /// The next message for a stream; `None` when the session is closed and everything was said.
    pub async fn next(&self) -> Option<ToNode> {
        loop {
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

    /// All waiting offers for a poll, after waiting up to `patience` for one.
    pub async fn poll_offers(&self, patience: Duration) -> Vec<ToNode> {
        self.poll(patience, &self.offers_ready, |queues| queues.offers.drain(..).collect()).await
    }

    /// All waiting control messages for a poll, after waiting up to `patience` for one.
    pub async fn poll_control(&self, patience: Duration) -> Vec<ToNode> {
        self.poll(patience, &self.control_ready, |queues| queues.control.drain(..).collect()).await
    }

    async fn poll(&self, patience: Duration, ready: &Notify, take: impl Fn(&mut Queues) -> Vec<ToNode>) -> Vec<ToNode> {
        let mut open = OpenPoll::new(self);
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let notified = ready.notified();
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

    /// Ends the session: a last word to the node, then nothing more.
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

    /// Ends the session because a newer one of the same node took over.
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.close("session_replaced", "another link of this node took over", 0);
    }

    /// Whether a newer session took over.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Resolves when the session has ended.
    pub async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// Whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// The node said something.
    pub fn heard(&self, now: Timestamp) {
        self.last_heard.fetch_max(now.0, Ordering::Relaxed);
    }

    /// When the node was last heard; a poll that is being held open counts as now.
    pub fn last_heard(&self, now: Timestamp) -> Timestamp {
        if self.polls_open.load(Ordering::Acquire) > 0 { now } else { Timestamp(self.last_heard.load(Ordering::Relaxed)) }
    }

    /// How long ago the node's connection went away under a poll without another poll since.
    pub(crate) fn abandoned_for(&self, now: Timestamp) -> Option<Duration> {
        match self.abandoned_at.load(Ordering::Acquire) {
            0 => None,
            at => Some(now.since(Timestamp(at))),
        }
    }

    /// How many polls came so far.
    pub fn polls_seen(&self) -> u64 {
        self.polls_seen.load(Ordering::Acquire)
    }

    /// Tells the node of a newer verifier set, once.
    pub fn tell_verifier_set(&self, version: u64, document: &[u8]) {
        if self.set_version.fetch_max(version, Ordering::AcqRel) < version {
            self.tell(to_node::Message::VerifierSet(gpuaas_contract::link::VerifierSet { version, document: document.to_vec() }));
        }
    }

    /// Tasks offered and not ended.
    pub fn in_flight(&self) -> MutexGuard<'_, HashSet<TaskId>> {
        lock(&self.in_flight)
    }

    /// Remembers whether a task belongs to this node, so that a flood of log lines costs one look-up per task.
    pub fn tasks_of_node(&self) -> MutexGuard<'_, HashMap<TaskId, bool>> {
        lock(&self.tasks_of_node)
    }

    /// The latest sample of the host's metrics.
    pub fn metrics(&self) -> Option<HostMetrics> {
        lock(&self.metrics).clone()
    }

    /// Keeps a sample.
    pub fn set_metrics(&self, sample: HostMetrics) {
        *lock(&self.metrics) = Some(sample);
    }
}

/// A poll that is being held open.
struct OpenPoll<'a> {
    session: &'a Session,
    answered: bool,
}

impl<'a> OpenPoll<'a> {
    fn new(session: &'a Session) -> Self {
        session.polls_open.fetch_add(1, Ordering::AcqRel);
        session.polls_seen.fetch_add(1, Ordering::AcqRel);
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
            // The connection went away under a poll: the long-poll form of a dropped stream.
            self.session.abandoned_at.store(now.0, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
