//! Tasks: queued → dispatched (lease) → accepted → started → ended. `docs/state-machines.md` has every transition.
//!
//! A task ends by the node's receipt. The control plane itself states that a task did not run only where it can prove that no node ever
//! will: the task was never sent, or the node has reported since that it does not have it. A task that was sent to a node that is never
//! heard from again ends as lost: it may have run.

use std::time::Duration;

use gpuaas_contract::envelope::{CLOCK_SKEW, MAX_START_WINDOW};
use gpuaas_contract::event::{
    Event, TaskCancelled, TaskDispatched, TaskEnded, TaskQueued, TaskReason, TaskReceipt, TaskRef, TaskReported,
};
use gpuaas_contract::id::{CorrelationId, NodeId, TaskId};
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{Digest, envelope};

pub use gpuaas_contract::state::TaskState;

use crate::decision::{Change, Context, Decision, Wakeup};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::slice::{Ending, TaskEnd};

/// How long an offered task may remain unaccepted before it is offered again.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long after signing a node may start a task.
pub const START_WINDOW: Duration = Duration::from_secs(5 * 60);
/// How long a task waits for its node unless the caller sets a time.
pub const DEFAULT_QUEUE_TIME: Duration = Duration::from_secs(10 * 60);
/// Maximum waiting time a caller may ask for.
pub const MAX_QUEUE_TIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum run time a caller may ask for.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Maximum size of a task's parameters: they must fit into an envelope with its other fields and its signature.
pub const MAX_PARAMS: usize = envelope::MAX_BYTES / 4 * 3 - 2 * 1024;
/// Maximum number of unfinished tasks per node.
pub const MAX_UNFINISHED_PER_NODE: u64 = 10_000;

/// A task as the control plane stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord {
    /// Unique id of the task.
    pub id: TaskId,
    /// Row version.
    pub version: i64,
    /// The node that is to run it.
    pub node_id: NodeId,
    /// The node's epoch when the task was created; no other epoch ever runs it.
    pub node_epoch: u64,
    /// The kind of task.
    pub task_type: TaskType,
    /// Parameters of that kind, as JSON.
    pub params: String,
    /// How far the task has come.
    pub state: TaskState,
    /// The actor who requested it.
    pub requested_by: String,
    /// Ties the task to the request behind it.
    pub correlation_id: CorrelationId,
    /// The caller's idempotency key.
    pub idempotency_key: Option<String>,
    /// Proves that the control plane itself wrote this row (see [`intent_text`]); checked before signing.
    pub intent: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Not sent after this time.
    pub queue_until: Timestamp,
    /// How long it may run.
    pub timeout: Duration,
    /// How often it was sent.
    pub dispatches: u32,
    /// Until when the node may accept it before it is offered again.
    pub lease_until: Option<Timestamp>,
    /// Latest start according to the last envelope that was signed for it; `None` if no envelope can be in circulation.
    pub envelope_start_by: Option<Timestamp>,
    /// When its cancellation was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// When the node accepted it.
    pub accepted_at: Option<Timestamp>,
    /// When the node started it.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Stable code of how it ended.
    pub code: String,
    /// How it ended, for people.
    pub message: String,
    /// Digest of the receipt that ended it; `None` if none did.
    pub receipt_digest: Option<Digest>,
}

impl TaskRecord {
    /// Identifies the task in events.
    pub(crate) fn event_ref(&self) -> TaskRef {
        TaskRef { task_id: self.id, node_id: self.node_id }
    }
}

/// The last accepted receipt of a node's epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptHead {
    /// Its sequence number; 0 before the first receipt.
    pub sequence: u64,
    /// Its digest; `None` before the first receipt.
    pub digest: Option<Digest>,
}

/// A task to create.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// Id of the new task.
    pub id: TaskId,
    /// What to do, with parameters.
    pub task: Task,
    /// How long it may wait for its node.
    pub queue_time: Duration,
    /// How long it may run.
    pub timeout: Duration,
    /// The caller's idempotency key.
    pub idempotency_key: Option<String>,
}

/// Creates a task for a node. The caller, who has the key, computes `intent` with [`intent_text`].
pub fn create(
    node: &Node,
    new: NewTask,
    unfinished: u64,
    context: &Context,
    intent: impl FnOnce(&TaskRecord) -> String,
) -> Result<(TaskRecord, Decision), Refusal> {
    let task = wanted(node, new, unfinished, context, intent)?;
    let decision = queued(&task, Change::TaskInsert(Box::new(task.clone())), context).wakeup(Wakeup::NodeWork(node.id));
    Ok((task, decision))
}

/// Creates a task for a node whose link is open and has capacity, and sends it, all in one decision: the same rows, events and audit
/// entries as [`create`] and [`dispatch`], in one commit instead of two. The envelope must be sent only after that commit.
pub fn create_sent(
    node: &Node,
    new: NewTask,
    unfinished: u64,
    context: &Context,
    intent: impl FnOnce(&TaskRecord) -> String,
    sign: impl FnOnce(&TaskRecord) -> Result<Outgoing, Refusal>,
) -> Result<(TaskRecord, Outgoing, Decision), Refusal> {
    let task = wanted(node, new, unfinished, context, intent)?;
    let outgoing = sign(&task)?;
    // Two steps are recorded, so the version counts both.
    let sent = TaskRecord { version: task.version + 1, ..dispatched(&task, node, &outgoing.payload, context)? };
    let decision = queued(&task, Change::TaskInsert(Box::new(sent.clone())), context).and(signed_out(&sent, &outgoing, context));
    Ok((sent, outgoing, decision))
}

/// An envelope that is signed but not sent yet.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What was signed.
    pub payload: envelope::Payload,
    /// The signed envelope and its digest.
    pub signed: envelope::Signed,
    /// The key that signed it.
    pub key_id: gpuaas_contract::key::KeyId,
}

fn wanted(
    node: &Node,
    new: NewTask,
    unfinished: u64,
    context: &Context,
    intent: impl FnOnce(&TaskRecord) -> String,
) -> Result<TaskRecord, Refusal> {
    if !node.service.takes(new.task.task_type()) {
        let why = if node.service_reason.is_empty() { String::new() } else { format!(" ({})", node.service_reason) };
        let message = format!("node {} is {}{why} and takes no new work", node.id, node.service.as_str());
        return Err(Refusal::conflict("node_takes_no_work", message));
    }
    if new.queue_time.is_zero() || new.queue_time > MAX_QUEUE_TIME {
        let message = format!("the queue time must be 1 to {} seconds", MAX_QUEUE_TIME.as_secs());
        return Err(Refusal::invalid("queue_time_invalid", message));
    }
    if new.timeout.is_zero() || new.timeout > MAX_TIMEOUT {
        return Err(Refusal::invalid("timeout_invalid", format!("the timeout must be 1 to {} seconds", MAX_TIMEOUT.as_secs())));
    }
    if new.idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > 128) {
        return Err(Refusal::invalid("idempotency_key_invalid", "an idempotency key has 1 to 128 bytes"));
    }
    if unfinished >= MAX_UNFINISHED_PER_NODE {
        let message =
            format!("node {} has {MAX_UNFINISHED_PER_NODE} unfinished tasks; wait for some to end or cancel them", node.id);
        return Err(Refusal::conflict("node_queue_full", message));
    }
    let params = new.task.params_json().get().to_owned();
    if params.len() > MAX_PARAMS {
        let message = format!("the parameters have {} bytes; at most {MAX_PARAMS} fit into an order", params.len());
        return Err(Refusal::invalid("params_too_large", message));
    }
    let mut task = TaskRecord {
        id: new.id,
        version: 0,
        node_id: node.id,
        node_epoch: node.epoch,
        task_type: new.task.task_type(),
        params,
        state: TaskState::Queued,
        requested_by: context.actor.to_string(),
        correlation_id: context.correlation_id.clone(),
        idempotency_key: new.idempotency_key,
        intent: String::new(),
        created_at: context.now,
        queue_until: context.now.plus(new.queue_time),
        timeout: new.timeout,
        dispatches: 0,
        lease_until: None,
        envelope_start_by: None,
        cancel_requested_at: None,
        accepted_at: None,
        started_at: None,
        ended_at: None,
        code: String::new(),
        message: String::new(),
        receipt_digest: None,
    };
    task.intent = intent(&task);
    Ok(task)
}

fn queued(task: &TaskRecord, insert: Change, context: &Context) -> Decision {
    let event = Event::TaskQueued(TaskQueued {
        task: task.event_ref(),
        task_type: task.task_type.to_string(),
        params: serde_json::from_str(&task.params).ok(),
    });
    Decision::default().change(insert).record(context, task.id, event).wakeup(Wakeup::Task(task.id))
}

/// The text whose MAC is [`TaskRecord::intent`]: everything that determines what will run where, and how long the request is valid. A row
/// that was inserted or changed directly in the database does not match and is never signed.
pub fn intent_text(task: &TaskRecord) -> String {
    let TaskRecord { id, node_id, node_epoch, task_type, params, requested_by, created_at, queue_until, timeout, .. } = task;
    let micros = timeout.as_micros();
    format!(
        "gpuaas-task-intent-v1\n{id}\n{node_id}\n{node_epoch}\n{task_type}\n{requested_by}\n{}\n{}\n{micros}\n{params}",
        created_at.0, queue_until.0
    )
}

/// The payload to sign now for a queued task.
pub fn envelope_payload(
    task: &TaskRecord,
    node: &Node,
    cluster_id: gpuaas_contract::id::ClusterId,
    now: Timestamp,
) -> Result<envelope::Payload, Refusal> {
    let corrupt =
        || Refusal::conflict("task_params_corrupt", format!("the stored params of {} are not what they should be", task.id));
    let params = serde_json::value::RawValue::from_string(task.params.clone()).map_err(|_| corrupt())?;
    let holder = if task.task_type.needs_lease() {
        Some(Task::parse(task.task_type, &task.params).ok().and_then(|task| task.holder()).ok_or_else(corrupt)?)
    } else {
        None
    };
    let start_by = now.plus(START_WINDOW.min(MAX_START_WINDOW)).min(task.queue_until).max(now);
    Ok(envelope::Payload {
        cluster_id,
        node_id: node.id,
        node_epoch: node.epoch,
        task_id: task.id,
        task_type: task.task_type.as_str().to_owned(),
        params,
        allocation_id: holder.map(|holder| holder.allocation_id),
        lease_epoch: holder.map(|holder| holder.lease_epoch),
        issued_at: now,
        start_by,
        deadline: start_by.plus(task.timeout),
        correlation_id: task.correlation_id.clone(),
    })
}

/// Sends a queued task under a lease.
pub fn dispatch(
    task: &TaskRecord,
    node: &Node,
    outgoing: &Outgoing,
    context: &Context,
) -> Result<(TaskRecord, Decision), Refusal> {
    let sent = dispatched(task, node, &outgoing.payload, context)?;
    let decision =
        Decision::default().change(Change::TaskUpdate(Box::new(sent.clone()))).and(signed_out(&sent, outgoing, context));
    Ok((sent, decision))
}

/// The row of a queued task after it is sent.
fn dispatched(task: &TaskRecord, node: &Node, payload: &envelope::Payload, context: &Context) -> Result<TaskRecord, Refusal> {
    if task.state != TaskState::Queued || task.cancel_requested_at.is_some() {
        return Err(not_now(task));
    }
    if !node.service.takes(task.task_type) || node.epoch != task.node_epoch || context.now > task.queue_until {
        return Err(not_now(task));
    }
    Ok(TaskRecord {
        state: TaskState::Dispatched,
        dispatches: task.dispatches + 1,
        lease_until: Some(context.now.plus(LEASE)),
        envelope_start_by: Some(payload.start_by.max(task.envelope_start_by.unwrap_or_default())),
        ..task.clone()
    })
}

fn signed_out(sent: &TaskRecord, outgoing: &Outgoing, context: &Context) -> Decision {
    let Outgoing { signed, key_id, .. } = outgoing;
    let event = Event::TaskDispatched(TaskDispatched {
        task: sent.event_ref(),
        dispatch: sent.dispatches,
        envelope: signed.digest.clone(),
    });
    Decision::default()
        .change(Change::EnvelopeInsert {
            task_id: sent.id,
            digest: signed.digest.clone(),
            envelope: signed.envelope.clone(),
            key_id: key_id.clone(),
            signed_at: context.now,
        })
        .record(context, sent.id, event)
        .wakeup(Wakeup::Task(sent.id))
}

/// Records that the node has the task in its journal, or that it runs. Late and repeated messages change nothing.
pub fn acknowledged(task: &TaskRecord, started: bool, context: &Context) -> Decision {
    let forward = match task.state {
        // A node may accept a task that was requeued a moment ago. It has the task, so it must not be sent again.
        TaskState::Queued => task.dispatches > 0,
        TaskState::Dispatched => true,
        TaskState::Accepted => started,
        TaskState::Started
        | TaskState::Succeeded
        | TaskState::Failed
        | TaskState::Cancelled
        | TaskState::Interrupted
        | TaskState::Refused
        | TaskState::Expired
        | TaskState::Lost => false,
    };
    if !forward {
        return Decision::default();
    }
    let (state, event) = if started {
        (TaskState::Started, Event::TaskStarted(task.event_ref()))
    } else {
        (TaskState::Accepted, Event::TaskAccepted(task.event_ref()))
    };
    let next = TaskRecord {
        state,
        lease_until: None,
        accepted_at: task.accepted_at.or(Some(context.now)),
        started_at: if started { Some(context.now) } else { None },
        ..task.clone()
    };
    let mut decision = Decision::default()
        .change(Change::TaskUpdate(Box::new(next)))
        .record(context, task.id, event)
        .wakeup(Wakeup::Task(task.id));
    if task.cancel_requested_at.is_some() {
        decision = decision.wakeup(Wakeup::NodeWork(task.node_id));
    }
    decision
}

/// Requests the cancellation of a task.
pub fn cancel(task: &TaskRecord, reason: &str, context: &Context) -> Result<Decision, Refusal> {
    if reason.len() > crate::node::MAX_REASON {
        return Err(Refusal::invalid(
            "reason_too_long",
            format!("the reason may have at most {} bytes", crate::node::MAX_REASON),
        ));
    }
    if task.state == TaskState::Cancelled || (task.cancel_requested_at.is_some() && !task.state.ended()) {
        return Ok(Decision::default());
    }
    if task.state.ended() {
        let message = format!("task {} has ended already ({})", task.id, task.state.as_str());
        return Err(Refusal::conflict("task_ended", message));
    }
    if task.state == TaskState::Queued && task.envelope_start_by.is_none() {
        // No envelope is in circulation, so nothing can run.
        return Ok(end(task, TaskState::Cancelled, "cancelled_before_dispatch", reason, context));
    }
    let next = TaskRecord { cancel_requested_at: Some(context.now), message: reason.to_owned(), ..task.clone() };
    let event = Event::TaskCancelRequested(TaskReason { task: task.event_ref(), reason: reason.to_owned() });
    Ok(Decision::default()
        .change(Change::TaskUpdate(Box::new(next)))
        .record(context, task.id, event)
        .wakeup(Wakeup::NodeWork(task.node_id))
        .wakeup(Wakeup::Task(task.id)))
}

/// The node, on (re)connecting, does not know a task it was sent: the task goes back to the queue, or is lost if the node had confirmed it
/// before.
///
/// After its hello, a node accepts nothing from an older link, so no envelope is in circulation any more. That does not hold for tasks
/// created before `fence`: the node's journal was damaged and may have forgotten them.
pub fn unknown_to_node(task: &TaskRecord, fence: Timestamp, context: &Context) -> Decision {
    let surely_not = task.created_at > fence.plus(CLOCK_SKEW) || fence <= Timestamp(0);
    match task.state {
        TaskState::Queued | TaskState::Dispatched if task.cancel_requested_at.is_some() && surely_not => {
            end(task, TaskState::Cancelled, "cancelled_unaccepted", &task.message, context)
        }
        TaskState::Queued | TaskState::Dispatched if task.envelope_start_by.is_some() && surely_not => {
            let recalled = TaskRecord { envelope_start_by: None, ..task.clone() };
            requeue(&recalled, "not in the node's journal", context)
        }
        TaskState::Dispatched => requeue(task, "not in the node's journal", context),
        TaskState::Accepted | TaskState::Started => {
            let message = "the node no longer knows this task: its journal was lost";
            end(task, TaskState::Lost, "journal_lost", message, context)
        }
        TaskState::Queued
        | TaskState::Succeeded
        | TaskState::Failed
        | TaskState::Cancelled
        | TaskState::Interrupted
        | TaskState::Refused
        | TaskState::Expired
        | TaskState::Lost => Decision::default(),
    }
}

/// Applies what time alone changes: leases expire, and waiting ends.
pub fn tick(task: &TaskRecord, context: &Context) -> Decision {
    let now = context.now;
    let envelope_dead = task.envelope_start_by.is_none_or(|start_by| now > start_by.plus(CLOCK_SKEW + CLOCK_SKEW));
    // An envelope was in circulation: the node may have accepted it, and its message may have been lost.
    let no_word = || {
        let message = "the task was sent to its node, which has not been heard of since: it may have run; look at the node before \
                       you run it again";
        end(task, TaskState::Lost, "no_word", message, context)
    };
    match task.state {
        TaskState::Queued | TaskState::Dispatched if task.cancel_requested_at.is_some() => match task.envelope_start_by {
            None => end(task, TaskState::Cancelled, "cancelled_unaccepted", &task.message, context),
            Some(_) if envelope_dead => no_word(),
            Some(_) => Decision::default(),
        },
        TaskState::Queued | TaskState::Dispatched if now > task.queue_until && envelope_dead => {
            if task.envelope_start_by.is_some() {
                return no_word();
            }
            let message = "no node accepted the task in time; check that the node is online and create the task again";
            end(task, TaskState::Expired, "queue_time_over", message, context)
        }
        TaskState::Dispatched if task.lease_until.is_some_and(|lease| now > lease) => {
            requeue(task, "not accepted within its lease", context)
        }
        TaskState::Queued
        | TaskState::Dispatched
        | TaskState::Accepted
        | TaskState::Started
        | TaskState::Succeeded
        | TaskState::Failed
        | TaskState::Cancelled
        | TaskState::Interrupted
        | TaskState::Refused
        | TaskState::Expired
        | TaskState::Lost => Decision::default(),
    }
}

/// When [`tick`] next has something to do for this task; `None` if time alone changes nothing. The store keeps it in an index, so that
/// finding due tasks does not read all others.
pub fn due_at(task: &TaskRecord) -> Option<Timestamp> {
    let waits = matches!(task.state, TaskState::Queued | TaskState::Dispatched);
    let envelope_dead_at = task.envelope_start_by.map_or(Timestamp(i64::MIN), |start_by| start_by.plus(CLOCK_SKEW + CLOCK_SKEW));
    let over_at = if task.cancel_requested_at.is_some() { envelope_dead_at } else { task.queue_until.max(envelope_dead_at) };
    let lease = task.lease_until.filter(|_| task.state == TaskState::Dispatched && task.cancel_requested_at.is_none());
    waits.then(|| lease.map_or(over_at, |lease| lease.min(over_at)))
}

/// The node was retired, locked or enrolled again: it will never report on this task.
pub fn node_gone(task: &TaskRecord, why: &str, context: &Context) -> Decision {
    if task.state.ended() {
        return Decision::default();
    }
    if task.state == TaskState::Queued && task.envelope_start_by.is_none() {
        return end(task, TaskState::Cancelled, "node_gone", why, context);
    }
    end(task, TaskState::Lost, "node_gone", why, context)
}

/// Ends a task whose row was not written by the control plane itself: such a row is never signed.
pub fn intent_forged(task: &TaskRecord, context: &Context) -> Decision {
    let message = "this row was not written by the control plane; nothing was signed";
    let mut decision = end(task, TaskState::Cancelled, "intent_forged", message, context);
    // Its state cannot be trusted either, so the task may have been sent before.
    for ending in &mut decision.endings {
        ending.end = TaskEnd::MayHaveRun;
    }
    decision
}

/// Records a verified receipt. Ends the task, even one that was given up as expired or lost.
///
/// `Ok(None)` means that the same receipt was already accepted.
pub fn receipt(
    task: &TaskRecord,
    head: &ReceiptHead,
    verified: &receipt::Verified,
    raw: &[u8],
    context: &Context,
) -> Result<Option<Decision>, Refusal> {
    if let Some(known) = &task.receipt_digest {
        if known == verified.digest() {
            return Ok(None);
        }
        let message = format!("task {} already has another receipt", task.id);
        return Err(Refusal::conflict("receipt_conflict", message));
    }
    let reported = verified.payload();
    let state = TaskState::from(reported.outcome);
    let next = TaskRecord {
        state,
        lease_until: None,
        accepted_at: task.accepted_at.or(Some(context.now)),
        started_at: reported.started_at.or(task.started_at),
        ended_at: Some(context.now),
        code: reported.code.clone(),
        message: reported.message.clone(),
        receipt_digest: Some(verified.digest().clone()),
        ..task.clone()
    };
    // The chain reveals whether the node forgot or hides something; it never keeps a receipt from counting.
    let follows = head.sequence.checked_add(1) == Some(reported.sequence) && reported.previous_receipt == head.digest;
    let data = TaskReported {
        task: TaskRef { task_id: task.id, node_id: reported.node_id },
        code: reported.code.clone(),
        receipt: TaskReceipt {
            outcome: reported.outcome,
            receipt: verified.digest().clone(),
            sequence: reported.sequence,
            chain_intact: follows,
        },
    };
    let event = match reported.outcome {
        Outcome::Succeeded => Event::TaskSucceeded(data),
        Outcome::Failed => Event::TaskFailed(data),
        Outcome::Cancelled => {
            Event::TaskCancelled(TaskCancelled { task: data.task, code: data.code, receipt: Some(data.receipt) })
        }
        Outcome::Interrupted => Event::TaskInterrupted(data),
        Outcome::Refused => Event::TaskRefused(data),
    };
    let decision = Decision::default()
        .change(Change::TaskUpdate(Box::new(next.clone())))
        .change(Change::ReceiptInsert {
            task_id: task.id,
            node_id: reported.node_id,
            node_epoch: reported.node_epoch,
            sequence: reported.sequence,
            digest: verified.digest().clone(),
            previous: reported.previous_receipt.clone(),
            receipt: raw.to_vec(),
            received_at: context.now,
        })
        .record(context, task.id, event)
        .wakeup(Wakeup::Task(task.id));
    let how = TaskEnd::Receipt {
        outcome: reported.outcome,
        started: reported.started_at.is_some(),
        proof: verified.cleanup_proof().cloned(),
    };
    Ok(Some(with_ending(decision, next, how)))
}

fn requeue(task: &TaskRecord, why: &str, context: &Context) -> Decision {
    if task.cancel_requested_at.is_some() {
        return Decision::default();
    }
    let next = TaskRecord { state: TaskState::Queued, lease_until: None, ..task.clone() };
    let event = Event::TaskRequeued(TaskReason { task: task.event_ref(), reason: why.to_owned() });
    Decision::default()
        .change(Change::TaskUpdate(Box::new(next)))
        .record(context, task.id, event)
        .wakeup(Wakeup::NodeWork(task.node_id))
        .wakeup(Wakeup::Task(task.id))
}

fn end(task: &TaskRecord, state: TaskState, code: &str, message: &str, context: &Context) -> Decision {
    let next = TaskRecord {
        state,
        lease_until: None,
        ended_at: Some(context.now),
        code: code.to_owned(),
        message: message.to_owned(),
        ..task.clone()
    };
    // Without a receipt, a task ends as canceled or expired only if it is certain that it never runs.
    let data = TaskEnded { task: task.event_ref(), code: code.to_owned() };
    let (event, how) = match state {
        TaskState::Cancelled => {
            let event = TaskCancelled { task: data.task, code: data.code, receipt: None };
            (Event::TaskCancelled(event), TaskEnd::NeverRan)
        }
        TaskState::Expired => (Event::TaskExpired(data), TaskEnd::NeverRan),
        TaskState::Queued
        | TaskState::Dispatched
        | TaskState::Accepted
        | TaskState::Started
        | TaskState::Succeeded
        | TaskState::Failed
        | TaskState::Interrupted
        | TaskState::Refused
        | TaskState::Lost => (Event::TaskLost(data), TaskEnd::MayHaveRun),
    };
    let decision = Decision::default()
        .change(Change::TaskUpdate(Box::new(next.clone())))
        .record(context, task.id, event)
        .wakeup(Wakeup::Task(task.id));
    with_ending(decision, next, how)
}

/// Every end of a task goes through here: if the task decides about slots or a machine, its end is added to the decision, and the run that
/// waits for it is woken.
fn with_ending(decision: Decision, task: TaskRecord, end: TaskEnd) -> Decision {
    if !task.task_type.needs_lease() {
        return decision;
    }
    let holder = Task::parse(task.task_type, &task.params).ok().and_then(|task| task.holder());
    let decision = match holder {
        Some(holder) => decision.wakeup(Wakeup::Allocation(holder.allocation_id)),
        None => decision,
    };
    if task.task_type.facts().decides_lease { decision.ending(Ending { task, end }) } else { decision }
}

fn not_now(task: &TaskRecord) -> Refusal {
    Refusal::conflict("task_not_dispatchable", format!("task {} is {} and cannot be sent now", task.id, task.state.as_str()))
}
