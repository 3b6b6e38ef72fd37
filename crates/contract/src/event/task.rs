//! Events of tasks.

use super::payload::payloads;
use crate::Digest;
use crate::id::{NodeId, TaskId};
use crate::receipt::Outcome;

payloads! {
    /// Ids of a task and its node.
    pub struct TaskRef {
        /// The task.
        operator task_id: TaskId,
        /// The node that runs it.
        operator node_id: NodeId,
    }

    /// A new task.
    pub struct TaskQueued {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// The task type.
        operator task_type: String,
        /// Its parameters.
        operator params: Option<serde_json::Value>,
    }

    /// A task that was sent to its node.
    pub struct TaskDispatched {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Number of times it was sent.
        operator dispatch: u32,
        /// Digest of the signed envelope.
        operator envelope: Digest,
    }

    /// A task, and the reason for its event.
    pub struct TaskReason {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Reason; may be empty.
        operator reason: String,
    }

    /// The end of a task for which the node sent no receipt.
    pub struct TaskEnded {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
    }

    /// The end of a task, as its node reports it.
    pub struct TaskReported {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
        /// Summary of the receipt.
        #[serde(flatten)]
        flat receipt: TaskReceipt,
    }

    /// A canceled task: canceled by its node, which sent a receipt, or before it was sent.
    pub struct TaskCancelled {
        /// The task.
        #[serde(flatten)]
        flat task: TaskRef,
        /// Stable code.
        operator code: String,
        /// Summary of the receipt, if there is one.
        #[serde(flatten)]
        flat receipt: Option<TaskReceipt>,
    }

    /// A verified receipt.
    pub struct TaskReceipt {
        /// How the task ended.
        operator outcome: Outcome,
        /// Digest of the receipt.
        operator receipt: Digest,
        /// Position among the node's receipts.
        operator sequence: u64,
        /// Whether it continues the chain of the node's receipts.
        operator chain_intact: bool,
    }
}

impl TaskCancelled {
    /// The audit action: a receipt arrived, or the task was canceled without one.
    pub(super) fn audit_action(&self) -> &'static str {
        if self.receipt.is_some() { "task.receipt" } else { "task.cancelled" }
    }
}
