//! What a decision consists of. `store::commit` writes all of it in one transaction, or none.

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

/// One indivisible change of the world, with its events, its audit rows and its wake-ups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Rows to write.
    pub changes: Vec<Change>,
    /// Events for the outbox.
    pub events: Vec<OutboxEvent>,
    /// Rows for the audit chain.
    pub audit: Vec<AuditEntry>,
    /// Whom to wake after the commit. Losing one delays work by one slow poll and loses nothing.
    pub wakeups: Vec<Wakeup>,
    /// Tasks that decide about slots and end with this decision. What that means for the slots ([`crate::slice::settle`]) must take
    /// their place before the decision is written: the store refuses it otherwise, so that nobody can forget a slot.
    pub endings: Vec<Ending>,
}

/// One row to write.
///
/// An `…Update` carries the row's new content and the version it was loaded with; the store writes it only over that
/// version and counts it up by one. If another writer was faster, the whole decision is a conflict: load and decide again.
/// An `…Insert` of an id that exists is a conflict, too.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new node.
    NodeInsert(Box<Node>),
    /// A changed node.
    NodeUpdate(Box<Node>),
    /// A new request to enroll.
    EnrollmentInsert(Box<Enrollment>),
    /// A decided or claimed request to enroll.
    EnrollmentUpdate(Box<Enrollment>),
    /// A new join token.
    JoinTokenInsert(JoinToken),
    /// A used or revoked join token.
    JoinTokenUpdate(JoinToken),
    /// A new certificate.
    CertificateInsert(Certificate),
    /// Every certificate of the node issued for an epoch up to this one no longer counts.
    CertificatesRevoke {
        /// The node.
        node_id: NodeId,
        /// Up to and including this epoch.
        up_to_epoch: u64,
        /// From when on.
        at: Timestamp,
    },
    /// A new slot.
    SlotInsert(Box<Slot>),
    /// A changed slot.
    SlotUpdate(Box<Slot>),
    /// A new task.
    TaskInsert(Box<TaskRecord>),
    /// A task that went on.
    TaskUpdate(Box<TaskRecord>),
    /// An envelope that was signed for a task.
    EnvelopeInsert {
        /// The task.
        task_id: TaskId,
        /// Digest of the signed payload.
        digest: Digest,
        /// DSSE bytes.
        envelope: Vec<u8>,
        /// The key that signed.
        key_id: KeyId,
        /// When.
        signed_at: Timestamp,
    },
    /// A receipt that was believed.
    ReceiptInsert {
        /// The task it answers.
        task_id: TaskId,
        /// The node that signed it.
        node_id: NodeId,
        /// The node's epoch.
        node_epoch: u64,
        /// The node's count of receipts.
        sequence: u64,
        /// Digest of the signed payload.
        digest: Digest,
        /// Digest of the receipt before it.
        previous: Option<Digest>,
        /// DSSE bytes.
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
    /// Resources whose time to be kept is over are forgotten: codes, answered keys, deliveries. No event, no audit row.
    ResourcesForget {
        /// Those that expired before this.
        before: Timestamp,
    },
    /// A server process is alive. Presence only: no event, no audit row.
    ServerSeen {
        /// The process.
        server: ServerId,
        /// When.
        at: Timestamp,
    },
    /// Log lines of tasks. Lines that are already there are skipped.
    LogAppend(Vec<TaskLogLine>),
}

/// One stored log line of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskLogLine {
    /// The task.
    pub task_id: TaskId,
    /// Position within the task, from 1.
    pub sequence: u64,
    /// When the host wrote it.
    pub at: Timestamp,
    /// `stdout`, `stderr` or `agent`.
    pub stream: String,
    /// The line without its line break.
    pub text: String,
    /// How many lines before this one the host had to drop.
    pub dropped: u64,
}

/// An [`Event`] for the outbox. The store adds what CloudEvents wants.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxEvent {
    /// Its id; consumers see an event at least once and dedupe by this.
    pub id: EventId,
    /// What happened.
    pub kind: EventKind,
    /// The aggregate it belongs to (a node, task or enrollment id); ordered per subject.
    pub subject: String,
    /// When.
    pub at: Timestamp,
    /// Follows the request.
    pub correlation_id: CorrelationId,
    /// What a consumer needs to know.
    pub data: serde_json::Value,
}

/// Who did what to what, for the audit chain.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What, such as `task.create`.
    pub action: &'static str,
    /// To what.
    pub target: String,
    /// Follows the request.
    pub correlation_id: CorrelationId,
    /// More, without secrets.
    pub detail: serde_json::Value,
}

/// A wake-up after a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wakeup {
    /// There is work, or a cancellation, for this node's link.
    NodeWork(NodeId),
    /// The node's right to speak changed: its link must be looked at now.
    NodeAccess(NodeId),
    /// Somebody may be waiting for this task.
    Task(TaskId),
    /// The run of this allocation can go on, or somebody may be waiting for it.
    Allocation(AllocationId),
    /// What can be placed on this node changed; on any node, if none is named.
    Fleet(Option<NodeId>),
    /// There are events in the outbox that were not published yet.
    Outbox,
    /// Somebody's rights changed: what is remembered of them is read anew.
    Rights,
    /// Server processes ask each other about links they hold. Never stored.
    Link(LinkWakeup),
    /// A running task went into another phase. Never stored: only shown to whoever is watching.
    Progress {
        /// The task.
        task_id: TaskId,
        /// The phase.
        phase: String,
        /// One line for people.
        message: String,
        /// When, by the host's clock.
        at: Timestamp,
    },
}

/// A question between server processes about a link, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkWakeup {
    /// A second link of a node came to another process: is the agent at the end of this one alive?
    Probe {
        /// The process that holds the link.
        server: ServerId,
        /// The node.
        node_id: NodeId,
        /// The link.
        session_id: SessionId,
        /// Names the question.
        nonce: u64,
    },
    /// The answer.
    Probed {
        /// The question.
        nonce: u64,
        /// Whether the agent answered.
        alive: bool,
    },
}

/// What every decision is made with.
#[derive(Clone, Debug)]
pub struct Context {
    /// The clock.
    pub now: Timestamp,
    /// Who asks.
    pub actor: Actor,
    /// Follows the request.
    pub correlation_id: CorrelationId,
}

impl Decision {
    /// Adds an event and the audit row that belongs to it: no state change is without either.
    /// `subject` is the id of what it happened to; events of one subject keep their order.
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

    /// Adds a row.
    pub fn change(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }

    /// Adds a new resource.
    pub fn insert(self, resource: &impl Resource) -> Self {
        self.change(Change::ResourceInsert(Box::new(Document::of(resource))))
    }

    /// Adds a changed resource.
    pub fn update(self, resource: &impl Resource) -> Self {
        self.change(Change::ResourceUpdate(Box::new(Document::of(resource))))
    }

    /// Adds a wake-up.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeups.push(wakeup);
        self
    }

    /// Both decisions as one.
    pub fn and(mut self, other: Self) -> Self {
        self.changes.extend(other.changes);
        self.events.extend(other.events);
        self.audit.extend(other.audit);
        self.wakeups.extend(other.wakeups);
        self.endings.extend(other.endings);
        self
    }

    /// Adds the end of a task that decides about slots.
    pub(crate) fn ending(mut self, ending: Ending) -> Self {
        self.endings.push(ending);
        self
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.events.is_empty() && self.audit.is_empty()
    }
}
