//! Events of tasks.

use super::payload::payloads;
use crate::Digest;
use crate::id::{NodeId, TaskId};
use crate::receipt::Outcome;

payloads! {
    /// Which task.
    pub struct TaskRef {
        /// The task.
        operator task_id: TaskId,
        /// Its node.
        operator node_id: NodeId,
    }

    /// A new task.
    pub struct TaskQueued {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Its kind.
        operator task_type: String,
        /// Its parameters.
        operator params: Option<serde_json::Value>,
    }

    /// A task that was sent to its node.
    pub struct TaskDispatched {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// How often it was sent.
        operator dispatch: u32,
        /// Digest of the signed envelope.
        operator envelope: Digest,
    }

    /// Something about a task, and why.
    pub struct TaskReason {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Why; may be empty.
        operator reason: String,
    }

    /// The end of a task of which the node sent no receipt.
    pub struct TaskEnded {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
    }

    /// The end of a task, as its node reports it.
    pub struct TaskReported {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
        /// What the receipt says.
        #[serde(flatten)]
        flat receipt: TaskReceipt,
    }

    /// A task that was cancelled: by its node, which sent a receipt, or before it was sent.
    pub struct TaskCancelled {
        /// Which task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
        /// What the receipt says, if there is one.
        #[serde(flatten)]
        flat receipt: Option<TaskReceipt>,
    }

    /// A verified receipt.
    pub struct TaskReceipt {
        /// How the task ended.
        operator outcome: Outcome,
        /// Digest of the receipt.
        operator receipt: Digest,
        /// Its number among the node's receipts.
        operator sequence: u64,
        /// Whether it follows the receipt before it.
        operator chain_intact: bool,
    }
}

impl TaskCancelled {
    /// The audit action: a receipt arrived, or the task was canceled without one.
    pub(super) fn audit_action(&self) -> &'static str {
        if self.receipt.is_some() { "task.receipt" } else { "task.cancelled" }
    }
}
