//! Decisions: what the pure functions of this crate return. `store::commit` writes all of a decision in one transaction, or nothing.

use gpuaas_contract::Digest;
use gpuaas_contract::event::{Event, EventKind};
use gpuaas_contract::id::{AllocationId, CorrelationId, EventId, NodeId, ServerId, SessionId, TaskId};
use gpuaas_contract::key::KeyId;
use gpuaas_contract::time::Timestamp;

use crate::access::{Actor, ApiToken};
use crate::enrollment::{Enrollment, JoinToken};
use crate::node::{Certificate, Node};
use crate::resource::{Document, Resource};
use crate::slice::Ending;
use crate::slot::Slot;
use crate::task::TaskRecord;

/// An atomic change, with its events, audit entries and wake-ups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Rows to write.
    pub changes: Vec<Change>,
    /// Events for the outbox.
    pub events: Vec<OutboxEvent>,
    /// Entries for the audit chain.
    pub audit: Vec<AuditEntry>,
    /// Wake-ups to send after the commit. Losing one delays work by one slow poll and loses nothing.
    pub wakeups: Vec<Wakeup>,
    /// Ends of tasks that decide what happens to slots. They must be replaced by their effect on the slots ([`crate::slice::settle`])
    /// before the decision is written; the store refuses it otherwise, so that no slot can be forgotten.
    pub endings: Vec<Ending>,
}

/// One row to write.
///
/// An `…Update` carries the row's new content and the version it was loaded with; the store writes it only over that version and increments
/// the version. If another writer was faster, the whole decision is a conflict: load and decide again. An `…Insert` of an existing id is a
/// conflict, too.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new node.
    NodeInsert(Box<Node>),
    /// A changed node.
    NodeUpdate(Box<Node>),
    /// A new enrollment request.
    EnrollmentInsert(Box<Enrollment>),
    /// An enrollment request that was decided, claimed, renewed or displaced.
    EnrollmentUpdate(Box<Enrollment>),
    /// A new join token.
    JoinTokenInsert(JoinToken),
    /// A used or revoked join token.
    JoinTokenUpdate(JoinToken),
    /// A new certificate.
    CertificateInsert(Certificate),
    /// Revokes all certificates that were issued to the node for epochs up to this one.
    CertificatesRevoke {
        /// The node whose certificates are revoked.
        node_id: NodeId,
        /// The last affected epoch, inclusive.
        up_to_epoch: u64,
        /// When they are revoked.
        at: Timestamp,
    },
    /// A new slot.
    SlotInsert(Box<Slot>),
    /// A changed slot.
    SlotUpdate(Box<Slot>),
    /// A new task.
    TaskInsert(Box<TaskRecord>),
    /// A task that changed state.
    TaskUpdate(Box<TaskRecord>),
    /// An envelope that was signed for a task.
    EnvelopeInsert {
        /// The task it was signed for.
        task_id: TaskId,
        /// Digest of the signed payload.
        digest: Digest,
        /// The DSSE document.
        envelope: Vec<u8>,
        /// The key that signed it.
        key_id: KeyId,
        /// When it was signed.
        signed_at: Timestamp,
    },
    /// A receipt that was accepted.
    ReceiptInsert {
        /// The task it answers.
        task_id: TaskId,
        /// The node that signed it.
        node_id: NodeId,
        /// The node's epoch.
        node_epoch: u64,
        /// Position among the node's receipts of that epoch.
        sequence: u64,
        /// Digest of the signed payload.
        digest: Digest,
        /// Digest of the node's previous receipt.
        previous: Option<Digest>,
        /// The DSSE document.
        receipt: Vec<u8>,
        /// When it arrived.
        received_at: Timestamp,
    },
    /// A new API token.
    ApiTokenInsert(ApiToken),
    /// A revoked API token.
    ApiTokenUpdate(ApiToken),
    /// A new resource.
    ResourceInsert(Box<Document>),
    /// A changed resource.
    ResourceUpdate(Box<Document>),
    /// Deletes expired resources: sign-in codes, idempotency keys, deliveries. No event, no audit entry.
    ResourcesForget {
        /// Deletes those that expired before this time.
        before: Timestamp,
    },
    /// A server process is alive. Presence only: no event, no audit entry.
    ServerSeen {
        /// The id of the process.
        server: ServerId,
        /// When it was alive.
        at: Timestamp,
    },
    /// Log lines of tasks. Lines that are already stored are skipped.
    LogAppend(Vec<TaskLogLine>),
}

/// A stored log line of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskLogLine {
    /// The task that wrote it.
    pub task_id: TaskId,
    /// Position within the task's log, counted from 1.
    pub sequence: u64,
    /// When the line was written, by the host's clock.
    pub at: Timestamp,
    /// `stdout`, `stderr` or `agent`.
    pub stream: String,
    /// The text without its line break.
    pub text: String,
    /// How many lines before this one the host had to drop.
    pub dropped: u64,
}

/// An [`Event`] for the outbox. The store adds the attributes that CloudEvents requires.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEvent {
    /// Unique id. Consumers see an event at least once and deduplicate by it.
    pub id: EventId,
    /// What happened.
    pub kind: EventKind,
    /// Id of what the event is about, such as a node, task or enrollment; events of one subject are ordered.
    pub subject: String,
    /// When it happened.
    pub at: Timestamp,
    /// Ties the event to the request behind it.
    pub correlation_id: CorrelationId,
    /// Data of the event, in the form that its kind declares.
    pub data: serde_json::Value,
}

/// Who did what to what, for the audit chain.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// When it happened.
    pub at: Timestamp,
    /// Who did it.
    pub actor: String,
    /// What was done, such as `task.create`.
    pub action: &'static str,
    /// Id of what it was done to.
    pub target: String,
    /// Ties the entry to the request behind it.
    pub correlation_id: CorrelationId,
    /// Further details, without secrets.
    pub detail: serde_json::Value,
}

/// A signal that something changed, sent after a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wakeup {
    /// There is work or a cancellation for this node's link.
    NodeWork(NodeId),
    /// The node's right to connect may have changed; check its link now.
    NodeAccess(NodeId),
    /// The task changed; someone may be waiting for it.
    Task(TaskId),
    /// The run of this allocation can continue, or someone may be waiting for it.
    Allocation(AllocationId),
    /// The run of this allocation has advanced, and knows itself when to continue; someone may be waiting for it.
    AllocationAdvanced(AllocationId),
    /// The capacity of this node changed; of any node, if it is `None`.
    Fleet(Option<NodeId>),
    /// The outbox has events that were not published yet.
    Outbox,
    /// Someone's permissions changed; cached permissions must be loaded again.
    Rights,
    /// A question from one server process to another about a link, or its answer. Never stored.
    Link(LinkWakeup),
    /// A running task entered another phase. Never stored; only shown to live watchers.
    Progress {
        /// The running task.
        task_id: TaskId,
        /// Name of the phase.
        phase: String,
        /// One line of text for people.
        message: String,
        /// When it entered the phase, by the host's clock.
        at: Timestamp,
    },
}

/// A question from one server process to another about a link, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkWakeup {
    /// A second link of a node reached another process: is the agent on this link alive?
    Probe {
        /// The process that holds the link in question.
        server: ServerId,
        /// The node whose link it is.
        node_id: NodeId,
        /// The session of the link in question.
        session_id: SessionId,
        /// Matches the answer to the question.
        nonce: u64,
    },
    /// The answer to a probe.
    Probed {
        /// The nonce of the question.
        nonce: u64,
        /// Whether the agent responded.
        alive: bool,
    },
}

/// The circumstances of a decision.
#[derive(Clone, Debug)]
pub struct Context {
    /// The current time.
    pub now: Timestamp,
    /// Who causes the change.
    pub actor: Actor,
    /// Ties the change to the request behind it.
    pub correlation_id: CorrelationId,
}

impl Decision {
    /// Adds an event and its audit entry; every state change has both. `subject` is the id of what changed; events of one subject stay in
    /// order.
    pub fn record(mut self, context: &Context, subject: impl std::fmt::Display, event: Event) -> Self {
        let (subject, data) = (subject.to_string(), event.data());
        self.events.push(OutboxEvent {
            id: EventId::generate(),
            kind: event.kind(),
            subject: subject.clone(),
            at: context.now,
            correlation_id: context.correlation_id.clone(),
            data: data.clone(),
        });
        self.audit.push(AuditEntry {
            at: context.now,
            actor: context.actor.to_string(),
            action: event.action(),
            target: subject,
            correlation_id: context.correlation_id.clone(),
            detail: data,
        });
        self
    }

    /// Adds a row to write.
    pub fn change(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }

    /// Adds an insert of a resource.
    pub fn insert(self, resource: &impl Resource) -> Self {
        self.change(Change::ResourceInsert(Box::new(Document::of(resource))))
    }

    /// Adds an update of a resource.
    pub fn update(self, resource: &impl Resource) -> Self {
        self.change(Change::ResourceUpdate(Box::new(Document::of(resource))))
    }

    /// Adds a wake-up.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeups.push(wakeup);
        self
    }

    /// Combines two decisions into one.
    pub fn and(mut self, other: Self) -> Self {
        self.changes.extend(other.changes);
        self.events.extend(other.events);
        self.audit.extend(other.audit);
        self.wakeups.extend(other.wakeups);
        self.endings.extend(other.endings);
        self
    }

    /// Adds the end of a task that decides what happens to slots.
    pub(crate) fn ending(mut self, ending: Ending) -> Self {
        self.endings.push(ending);
        self
    }

    /// Whether there are no rows, events and audit entries to write.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.events.is_empty() && self.audit.is_empty()
    }
}
