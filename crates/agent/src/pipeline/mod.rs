//! The pipeline: bytes → verify → duplicate? → host policy → accept → start → handler → finish → report.
//!
//! Every step with a guarantee is durable in the journal before the next one begins. The pipeline uses channels and never a
//! transport, so a broken link changes nothing for a running task.

#[cfg(test)]
mod authority_tests;
mod execute;
mod recover;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::envelope::{self, Expectation, Refusal, RefusalCode};
use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::{Ack, Rejection, TaskInHand, TaskPhase, from_node};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::Host;
use gpuaas_runtime::secret::Locked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::guests::Guests;
use crate::journal::{AppendError, Chain, Journal, Known, Opened, RESERVED_PER_TASK, Record, TaskNote, Unreported};
use crate::policy::{Denied, Policy};
use crate::spool::Spool;
use crate::trust::Trust;
use execute::{Ended, Job, Mode, RunSlots};

/// Maximum number of accepted tasks that wait for a place to run.
const WAITING: usize = 32;
/// Maximum number of offers under examination. More are dropped without an answer: the control plane offers again what was never
/// accepted.
const OFFERS: usize = 4096;
/// Maximum number of read-only tasks.
const WATCHERS: usize = 32;

/// The parts of a pipeline.
pub(crate) struct Parts {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: NodeId,
    pub(crate) node_epoch: u64,
    pub(crate) receipt_key: SigningKey,
    pub(crate) instance_id: AgentInstanceId,
    pub(crate) boot_id: String,
    pub(crate) trust: Arc<Trust>,
    pub(crate) journal: Journal,
    pub(crate) policy: Arc<Policy>,
    pub(crate) host: Host,
    pub(crate) guests: Guests,
    pub(crate) spool: Spool,
    /// Acks, progress and rejections; they may be lost while no link is up.
    pub(crate) outbound: mpsc::Sender<from_node::Message>,
    pub(crate) limits: Limits,
}

/// Limits from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_tasks: u32,
    pub(crate) journal_bytes: u64,
    pub(crate) task_timeout: Duration,
    pub(crate) log_drain_timeout: Duration,
}

/// The offers of one link: those of an older link are not accepted once a newer one has listed the tasks in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round(u64);

/// Runs tasks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pipeline {
    inner: Arc<Inner>,
}

struct Inner {
    cluster_id: ClusterId,
    node_id: NodeId,
    node_epoch: u64,
    receipt_key: Locked<SigningKey>,
    instance_id: AgentInstanceId,
    boot_id: String,
    trust: Arc<Trust>,
    journal: Arc<Journal>,
    policy: Arc<Policy>,
    host: Host,
    guests: Guests,
    spool: Spool,
    outbound: mpsc::Sender<from_node::Message>,
    limits: Limits,
    /// Tasks from their claim to the end of their finish.
    live: Mutex<HashMap<TaskId, Arc<Live>>>,
    /// The round whose offers are accepted; changes only under the lock of `live`.
    round: AtomicU64,
    /// End of the chain, including receipts that are not yet on disk.
    chain: Mutex<Chain>,
    offers: Arc<Semaphore>,
    in_flight: Arc<Semaphore>,
    run_slots: Arc<Semaphore>,
    /// Places for read-only tasks: an hour at a console must not delay the creation of a guest.
    watch_slots: Arc<Semaphore>,
    kind_slots: Mutex<HashMap<TaskType, u32>>,
    kind_freed: tokio::sync::Notify,
    receipts: watch::Sender<u64>,
    running: watch::Sender<u32>,
    /// Fired when no new task may start.
    closing: CancellationToken,
    /// Fired when running handlers are dropped where they are.
    abandon: CancellationToken,
    /// Set when the journal failed: the agent must end.
    failed: watch::Sender<Option<String>>,
    tracker: TaskTracker,
}

/// A task in hand of this process.
struct Live {
    phase: Mutex<Option<TaskPhase>>,
    /// Whether its acceptance is being written.
    recording: AtomicBool,
    cancel: CancellationToken,
    cancel_reason: Mutex<String>,
}

impl Live {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            phase: Mutex::new(None),
            recording: AtomicBool::new(false),
            cancel: CancellationToken::new(),
            cancel_reason: Mutex::new(String::new()),
        })
    }

    fn set_phase(&self, phase: TaskPhase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = Some(phase);
    }
}

/// The result of a claim.
enum Claim {
    /// It is new, and claimed now.
    New(Arc<Live>),
    /// It is in hand; `None` while it is being accepted.
    InHand(Option<TaskPhase>),
    /// It has ended: the stored receipt is the answer.
    Finished,
}

impl Pipeline {
    /// Builds the pipeline and continues the tasks in the journal.
    pub(crate) async fn start(parts: Parts, opened: Opened) -> Result<Self, AppendError> {
        let Parts { limits, journal, .. } = &parts;
        let by_journal = usize::try_from(limits.journal_bytes / RESERVED_PER_TASK / 2).unwrap_or(usize::MAX).max(1);
        let max_tasks = usize::try_from(limits.max_tasks).unwrap_or(1).max(1);
        let in_flight = (max_tasks + WAITING).min(by_journal.max(max_tasks));
        let mut unfinished = opened.unfinished;
        if !journal.belong_to(parts.node_epoch).await? {
            unfinished.clear();
        }
        let inner = Arc::new(Inner {
            chain: Mutex::new(journal.chain()),
            cluster_id: parts.cluster_id,
            node_id: parts.node_id,
            node_epoch: parts.node_epoch,
            receipt_key: Locked::new(parts.receipt_key),
            instance_id: parts.instance_id,
            boot_id: parts.boot_id,
            trust: parts.trust,
            policy: parts.policy,
            host: parts.host,
            guests: parts.guests,
            spool: parts.spool,
            outbound: parts.outbound,
            limits: parts.limits,
            journal: Arc::new(parts.journal),
            live: Mutex::new(HashMap::new()),
            round: AtomicU64::new(0),
            offers: Arc::new(Semaphore::new(OFFERS)),
            in_flight: Arc::new(Semaphore::new(in_flight)),
            run_slots: Arc::new(Semaphore::new(max_tasks)),
            watch_slots: Arc::new(Semaphore::new(WATCHERS)),
            kind_slots: Mutex::new(HashMap::new()),
            kind_freed: tokio::sync::Notify::new(),
            receipts: watch::Sender::new(0),
            running: watch::Sender::new(0),
            closing: CancellationToken::new(),
            abandon: CancellationToken::new(),
            failed: watch::Sender::new(None),
            tracker: TaskTracker::new(),
        });
        let pipeline = Self { inner };
        for task in unfinished {
            recover::take_up(&pipeline.inner, task).await?;
        }
        Ok(pipeline)
    }

    /// Handles an offered envelope. It never waits, because later messages of the link (such as a cancellation) must not wait
    /// either.
    pub(crate) fn offer(&self, round: Round, offered_id: String, envelope: Vec<u8>) {
        let Ok(permit) = Arc::clone(&self.inner.offers).try_acquire_owned() else {
            tracing::warn!(offered_id, "too many offers at once; this one is left for later");
            return;
        };
        let inner = Arc::clone(&self.inner);
        self.inner.tracker.spawn(async move {
            inner.examine(round, offered_id, envelope).await;
            drop(permit);
        });
    }

    /// Requests a task to stop. Unknown and finished tasks are ignored.
    pub(crate) fn cancel(&self, task_id: TaskId, reason: &str) {
        let Some(live) = self.inner.lock_live().get(&task_id).cloned() else {
            tracing::info!(%task_id, "asked to cancel a task that is not in hand");
            return;
        };
        tracing::info!(%task_id, reason, "task is to be cancelled");
        *live.cancel_reason.lock().unwrap_or_else(PoisonError::into_inner) = reason.to_owned();
        live.cancel.cancel();
    }

    /// Records in the background that the control plane has the receipt, or rejects it for good.
    pub(crate) fn reported(&self, task_id: TaskId, rejected_code: &str) {
        if self.inner.journal.lookup(task_id) != Some(Known::Finished) {
            return;
        }
        if !rejected_code.is_empty() {
            tracing::error!(%task_id, code = rejected_code, "the control plane rejected a receipt; it will not be sent again");
        }
        let inner = Arc::clone(&self.inner);
        self.inner.tracker.spawn(async move {
            match inner.journal.append(Record::Reported { task_id }, Vec::new()).await {
                Ok(()) => {
                    gpuaas_failpoint::hit("agent.reported");
                    tracing::debug!(%task_id, "receipt is reported");
                    inner.receipts.send_modify(|count| *count += 1);
                }
                Err(error) => inner.journal_failed(&error),
            }
        });
    }

    /// Returns the first unconfirmed receipt after `sequence`.
    pub(crate) async fn next_receipt(&self, sequence: u64) -> Option<(Unreported, Vec<u8>)> {
        let mut sequence = sequence;
        loop {
            let unreported = self.inner.journal.unreported_after(sequence)?;
            match self.inner.journal.receipt(unreported.task_id).await {
                Ok(Some(receipt)) => return Some((unreported, receipt)),
                // Reported at this very moment.
                Ok(None) => sequence = unreported.sequence,
                Err(error) => {
                    tracing::error!(task_id = %unreported.task_id, %error, "stored receipt cannot be read");
                    sequence = unreported.sequence;
                }
            }
        }
    }

    /// Returns the sequence of the oldest unconfirmed receipt.
    pub(crate) fn oldest_unreported(&self) -> Option<u64> {
        self.inner.journal.unreported_after(0).map(|unreported| unreported.sequence)
    }

    /// Returns a watch that changes whenever a receipt is added or confirmed.
    pub(crate) fn receipt_changes(&self) -> watch::Receiver<u64> {
        self.inner.receipts.subscribe()
    }

    /// Returns the number of running tasks.
    pub(crate) fn running(&self) -> watch::Receiver<u32> {
        self.inner.running.subscribe()
    }

    /// Returns a watch that is set once the journal has failed.
    pub(crate) fn failure(&self) -> watch::Receiver<Option<String>> {
        self.inner.failed.subscribe()
    }

    /// Returns the tasks in hand for the hello of a new link. From here on no offer of an older link is accepted, so what is not
    /// listed will not run unless it is offered again: the control plane relies on that.
    pub(crate) fn begin_round(&self) -> (Vec<TaskInHand>, Round) {
        let live = self.inner.lock_live();
        let round = self.inner.round.fetch_add(1, Ordering::AcqRel) + 1;
        let mut in_hand: BTreeMap<TaskId, TaskPhase> = self.inner.journal.in_hand().into_iter().collect();
        for (id, _) in live.iter().filter(|(_, live)| live.recording.load(Ordering::Acquire)) {
            in_hand.entry(*id).or_insert(TaskPhase::Accepted);
        }
        let listed = in_hand.into_iter().map(|(id, phase)| TaskInHand { task_id: id.to_string(), phase: phase.into() });
        (listed.collect(), Round(round))
    }

    /// Returns the fence: a damaged journal may have forgotten tasks created before it.
    pub(crate) fn fence(&self) -> Timestamp {
        self.inner.journal.fence()
    }

    /// Returns the number of unconfirmed receipts.
    pub(crate) fn unreported(&self) -> usize {
        self.inner.journal.unreported_count()
    }

    /// Starts nothing new, gives running tasks `patience`, then drops them where they are: the next start recovers them.
    pub(crate) async fn close(&self, patience: Duration) {
        self.inner.closing.cancel();
        self.inner.tracker.close();
        if tokio::time::timeout(patience, self.inner.tracker.wait()).await.is_err() {
            tracing::warn!("tasks still run after shutdown_timeout; they will be recovered at the next start");
            self.inner.abandon.cancel();
            self.inner.tracker.wait().await;
        }
        let inner = Arc::clone(&self.inner);
        // Best effort: without it the next start only has an older progress to compare with.
        let _ = gpuaas_runtime::blocking(move || inner.journal.note_progress()).await;
    }
}

impl Inner {
    fn places_for(&self, kind: TaskType) -> &Arc<Semaphore> {
        if kind == TaskType::SliceConsoleRead { &self.watch_slots } else { &self.run_slots }
    }

    fn lock_live(&self) -> MutexGuard<'_, HashMap<TaskId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, task_id: TaskId) -> Claim {
        let mut live = self.lock_live();
        if gpuaas_runtime::broken("agent.duplicates") {
            return Claim::New(Live::new());
        }
        if let Some(live) = live.get(&task_id) {
            return Claim::InHand(*live.phase.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.journal.lookup(task_id) {
            Some(Known::Finished) => Claim::Finished,
            Some(Known::InFlight(phase)) => Claim::InHand(Some(phase)),
            None => {
                let entry = Live::new();
                live.insert(task_id, Arc::clone(&entry));
                Claim::New(entry)
            }
        }
    }

    /// Returns whether the round is still valid; if so, the next hello lists the task.
    fn begin_recording(&self, round: Round, live: &Live) -> bool {
        let _held = self.lock_live();
        let counts = Round(self.round.load(Ordering::Acquire)) == round;
        live.recording.store(counts, Ordering::Release);
        counts
    }

    fn release(&self, task_id: TaskId) {
        self.lock_live().remove(&task_id);
    }

    /// Checks everything that needs neither the journal nor the policy.
    fn verify(&self, envelope: &[u8]) -> Result<envelope::Verified, Refusal> {
        let set = self.trust.current();
        let expectation = Expectation {
            keys: set.as_ref(),
            cluster_id: self.cluster_id,
            node_id: self.node_id,
            node_epoch: self.node_epoch,
            now: Timestamp::now(),
            highest_seen: self.journal.highest_time(),
        };
        envelope::verify(envelope, &expectation)
    }

    async fn examine(self: Arc<Self>, round: Round, offered_id: String, bytes: Vec<u8>) {
        let verified = self.verify(&bytes);
        match verified {
            Ok(verified) => {
                let payload = verified.payload();
                let span = tracing::info_span!(
                    "task",
                    task_id = %payload.task_id,
                    correlation_id = %payload.correlation_id,
                    task_type = %payload.task_type
                );
                self.admit(round, verified, bytes).instrument(span).await;
            }
            Err(refusal) => self.refuse_offer(offered_id, refusal).await,
        }
    }

    /// Handles an authentic task for this node that is still in time: duplicate, denied, or accepted.
    async fn admit(self: Arc<Self>, round: Round, verified: envelope::Verified, bytes: Vec<u8>) {
        let payload = verified.payload();
        let task_id = payload.task_id;
        let live = match self.claim(task_id) {
            Claim::New(live) => live,
            Claim::InHand(phase) => return self.answer_duplicate(task_id, phase),
            Claim::Finished => return self.resend(task_id).await,
        };
        let note = TaskNote {
            task_id,
            task_type: payload.task_type.clone(),
            digest: verified.digest().clone(),
            correlation_id: payload.correlation_id.clone(),
            start_by: payload.start_by,
        };
        if self.may_have_run(&note, payload.issued_at) {
            return self.answer_for_lost(note).await;
        }
        let kind = verified.task().task_type();
        if let Err(denied) = self.allowed(verified.task()).await {
            return self.refuse(note, RefusalCode::PolicyDenied, denied.0).await;
        }
        let permit = tokio::select! {
            biased;
            () = self.closing.cancelled() => return self.release(task_id),
            permit = Arc::clone(&self.in_flight).acquire_owned() => permit,
        };
        let Ok(permit) = permit else { return self.release(task_id) };
        gpuaas_failpoint::hit("agent.before_accept");
        if !self.begin_recording(round, &live) {
            tracing::info!("task was offered by a link that is gone; the control plane will offer it again");
            return self.release(task_id);
        }
        let record = Record::Accepted { task: note.clone(), issued_at: payload.issued_at, deadline: payload.deadline };
        // If there is a place to run, acceptance and start share one sync.
        let free =
            if live.cancel.is_cancelled() || self.closing.is_cancelled() { None } else { RunSlots::take_free(&self, kind) };
        let begun = free.map(|slots| (slots, Timestamp::now()));
        let started = begun.as_ref().map(|(_, at)| Record::Started { task: note.clone(), attempt: 1, at: *at });
        match self.journal.accept(record, bytes, started).await {
            Ok(()) => {}
            Err(AppendError::Full | AppendError::TooLarge) => {
                self.release(task_id);
                let message = "the node's journal has no room for another task; unreported receipts must be fetched first";
                return self.reject(task_id.to_string(), RefusalCode::JournalFull, message);
            }
            Err(error @ AppendError::Failed(_)) => {
                self.release(task_id);
                return self.journal_failed(&error);
            }
        }
        gpuaas_failpoint::hit("agent.accepted");
        tracing::info!("task accepted");
        if begun.is_none() {
            live.set_phase(TaskPhase::Accepted);
            self.acknowledge(task_id, TaskPhase::Accepted);
        }
        let job = Job {
            note,
            task: verified.task().clone(),
            deadline: payload.deadline,
            attempt: 0,
            started_at: None,
            mode: Mode::Fresh,
            begun,
        };
        self.spawn(job, live, Some(permit));
    }

    /// Checks whether the host's owner allows the task. The budget count is on disk when this returns.
    async fn allowed(self: &Arc<Self>, task: &Task) -> Result<(), Denied> {
        if task.task_type().destroys().is_none() {
            return self.policy.check_task(task);
        }
        let (inner, task) = (Arc::clone(self), task.clone());
        let checked = gpuaas_runtime::blocking(move || inner.policy.check_task(&task)).await;
        checked.unwrap_or_else(|error| Err(Denied(format!("the host policy could not be asked: {error}"))))
    }

    fn spawn(self: &Arc<Self>, job: Job, live: Arc<Live>, permit: Option<OwnedSemaphorePermit>) {
        let inner = Arc::clone(self);
        let span = tracing::info_span!(
            // Not inside the span of the offer, which has the same fields.
            parent: None,
            "task",
            task_id = %job.note.task_id,
            correlation_id = %job.note.correlation_id,
            task_type = %job.note.task_type
        );
        self.tracker.spawn(
            async move {
                execute::execute(inner, job, live).await;
                drop(permit);
            }
            .instrument(span),
        );
    }

    /// Answers an invalid offer: with a receipt if the task is for this node, otherwise with a rejection.
    async fn refuse_offer(&self, offered_id: String, refusal: Refusal) {
        let Some(answerable) = refusal.answerable else {
            tracing::warn!(offered_id, code = %refusal.code, reason = refusal.message, "envelope rejected");
            return self.reject(offered_id, refusal.code, &refusal.message);
        };
        let note = TaskNote {
            task_id: answerable.task_id,
            task_type: answerable.task_type,
            digest: answerable.digest,
            correlation_id: answerable.correlation_id,
            start_by: answerable.start_by,
        };
        match self.claim(note.task_id) {
            // A late duplicate of a finished task is not a new refusal.
            Claim::Finished => self.resend(note.task_id).await,
            Claim::InHand(phase) => self.answer_duplicate(note.task_id, phase),
            Claim::New(_) if self.may_have_run(&note, answerable.issued_at) => self.answer_for_lost(note).await,
            Claim::New(_) => self.refuse(note, refusal.code, refusal.message).await,
        }
    }

    /// Returns whether the task may have run before the journal lost records. The envelope may be a new one for an old task, so
    /// the age of the task counts too.
    fn may_have_run(&self, note: &TaskNote, issued_at: Timestamp) -> bool {
        let fence = self.journal.fence();
        fence > Timestamp(0) && (issued_at <= fence || made_at(note.task_id) <= fence)
    }

    /// Answers a claimed task that may have run: a refusal would claim that it did not.
    async fn answer_for_lost(&self, note: TaskNote) {
        tracing::warn!(task_id = %note.task_id, correlation_id = %note.correlation_id, "task may have run before the journal was damaged");
        let task_id = note.task_id;
        let message = "the journal of this node was damaged after this task was created, so it may have run already; check the host before running it again";
        let ended = Ended::plainly(Outcome::Interrupted, "journal_damaged", message.to_owned());
        let result = execute::finish(self, &note, 0, None, Vec::new(), ended).await;
        self.release(task_id);
        if let Err(error) = result {
            // Without space for the receipt there is no answer; a later offer gets one.
            self.journal_failed(&error);
        }
    }

    /// Refuses a claimed task with a signed receipt.
    async fn refuse(&self, note: TaskNote, code: RefusalCode, message: String) {
        tracing::warn!(
            task_id = %note.task_id,
            correlation_id = %note.correlation_id,
            code = %code,
            reason = message,
            "task refused"
        );
        let task_id = note.task_id;
        let ended = Ended::plainly(Outcome::Refused, code.as_str(), message.clone());
        let result = execute::finish(self, &note, 0, None, Vec::new(), ended).await;
        self.release(task_id);
        match result {
            Ok(()) => {}
            // There is no space for the receipt either: reject it without one.
            Err(AppendError::Full | AppendError::TooLarge) => self.reject(task_id.to_string(), code, &message),
            Err(error @ AppendError::Failed(_)) => self.journal_failed(&error),
        }
    }

    fn answer_duplicate(&self, task_id: TaskId, phase: Option<TaskPhase>) {
        tracing::debug!(%task_id, ?phase, "duplicate of a task in hand");
        // While it is being accepted there is no answer yet; the first delivery gives it.
        if let Some(phase) = phase {
            self.acknowledge(task_id, phase);
        }
    }

    /// Sends the stored receipt for a duplicate of a finished task, even if it was reported before.
    async fn resend(&self, task_id: TaskId) {
        tracing::debug!(%task_id, "duplicate of a finished task; sending its receipt again");
        match self.journal.receipt(task_id).await {
            Ok(Some(receipt)) => {
                let message = gpuaas_contract::link::SignedReceipt { task_id: task_id.to_string(), receipt };
                self.say(from_node::Message::Receipt(message));
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%task_id, %error, "stored receipt cannot be read"),
        }
    }

    fn acknowledge(&self, task_id: TaskId, phase: TaskPhase) {
        self.say(from_node::Message::Ack(Ack { task_id: task_id.to_string(), phase: phase.into(), at_us: Timestamp::now().0 }));
    }

    fn reject(&self, task_id: String, code: RefusalCode, message: &str) {
        self.say(from_node::Message::Rejection(Rejection { task_id, code: code.to_string(), message: message.to_owned() }));
    }

    /// Sends a message that the hello or a receipt would repeat: it may be lost.
    fn say(&self, message: from_node::Message) {
        if self.outbound.try_send(message).is_err() {
            tracing::debug!("no link is open; the next hello repeats the message");
        }
    }

    fn journal_failed(&self, error: &AppendError) {
        match error {
            AppendError::Failed(reason) => {
                tracing::error!(reason, "journal failed; the agent ends and claims nothing more");
                self.failed.send_replace(Some(reason.clone()));
                self.closing.cancel();
                self.abandon.cancel();
            }
            AppendError::Full | AppendError::TooLarge => tracing::error!(%error, "a record did not fit into the journal"),
        }
    }
}

/// Returns when the control plane created the task, according to its id; long ago if the id has no time.
fn made_at(task_id: TaskId) -> Timestamp {
    let bytes = task_id.as_bytes();
    if bytes[6] >> 4 != 7 {
        return Timestamp(0);
    }
    let milliseconds = bytes[..6].iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    Timestamp(milliseconds.saturating_mul(1000))
}
