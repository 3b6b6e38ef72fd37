//! Tasks, their logs, and the evidence that they ran.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, CorrelationId, NodeId, TaskId};
use gpuaas_contract::key::{KeyId, VerifyingKey};
use gpuaas_contract::names::Open;
use gpuaas_contract::receipt::PhaseTiming;
use gpuaas_contract::state::TaskState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::StateFilter;

/// One typed operation on one node.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// The node that runs it. All zeros for tenants, who cannot see nodes.
    pub node_id: NodeId,
    /// Name of the node. Empty for tenants.
    pub node_name: String,
    /// The epoch of the node when the task was requested. 0 for tenants.
    pub node_epoch: u64,
    /// The task type.
    pub task_type: String,
    /// Parameters of the task type.
    pub params: serde_json::Value,
    /// State of the task.
    pub state: Open<TaskState>,
    /// Who requested it.
    pub requested_by: String,
    /// Correlation id of the request, which is also in the log of the agent.
    #[schemars(with = "String")]
    pub correlation_id: CorrelationId,
    /// Idempotency key of the request.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// When it was requested.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it expires if it was not sent to the node.
    #[serde(with = "Rfc3339")]
    pub queue_until: Timestamp,
    /// How many seconds it may run.
    pub timeout_seconds: u64,
    /// How often it was sent to the node.
    pub dispatches: u32,
    /// Until when the node may accept it before it is sent again.
    #[serde(default, with = "OptionalRfc3339")]
    pub lease_until: Option<Timestamp>,
    /// When its cancellation was requested.
    #[serde(default, with = "OptionalRfc3339")]
    pub cancel_requested_at: Option<Timestamp>,
    /// When the node accepted it.
    #[serde(default, with = "OptionalRfc3339")]
    pub accepted_at: Option<Timestamp>,
    /// When the node started it.
    #[serde(default, with = "OptionalRfc3339")]
    pub started_at: Option<Timestamp>,
    /// When it ended; null until then.
    #[serde(default, with = "OptionalRfc3339")]
    pub ended_at: Option<Timestamp>,
    /// Stable code of its result; empty before it ends.
    pub code: String,
    /// Message that explains the code.
    pub message: String,
    /// Digest of the receipt that ended it.
    #[serde(default)]
    pub receipt_digest: Option<Digest>,
    /// The last phase that the node reported, while the task runs.
    #[serde(default)]
    pub progress: Option<TaskProgress>,
    /// Output, from the receipt.
    #[serde(default)]
    pub output: Option<serde_json::Value>,
    /// Phase timings, from the receipt.
    #[serde(default)]
    pub phases: Vec<PhaseTiming>,
}

impl Task {
    /// The node as the end of a sentence, such as ` on node-1`. Empty if the caller does not see nodes.
    pub fn on_node(&self) -> String {
        if self.node_name.is_empty() { String::new() } else { format!(" on {}", self.node_name) }
    }

    /// Whether the task has ended.
    pub fn ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// A phase of a running task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskProgress {
    /// The phase.
    pub phase: String,
    /// Message; may be empty.
    pub message: String,
    /// Time, by the clock of the host.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
}

/// A task to create.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskCreate {
    /// Id of the node, or its name if that is unique.
    pub node: String,
    /// The task type.
    pub task_type: String,
    /// Parameters of the task type; an empty object by default.
    #[serde(default = "empty_object")]
    pub params: serde_json::Value,
    /// How many seconds it may wait for its node; the server's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_seconds: Option<u64>,
    /// How many seconds it may run; the server's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

fn empty_object() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}

/// Filter for a list of tasks, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskListQuery {
    /// Only tasks of this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only tasks in this state; `open` means every state that is not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<TaskState>>,
    /// Only tasks whose id starts with this text (`task_` and hex digits).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One log line of a task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskLogLine {
    /// Position within the task, from 1.
    pub sequence: u64,
    /// When the host wrote it.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// `stdout`, `stderr` or `agent`.
    pub stream: String,
    /// The line without its line break.
    pub text: String,
    /// Number of lines that the host dropped before this one.
    #[serde(default)]
    pub dropped: u64,
}

/// Log lines of a task, in order.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskLogs {
    /// The lines.
    pub lines: Vec<TaskLogLine>,
    /// Value of `after` for the next request: the sequence number of the last line, or the `after` of the request.
    pub next_after: u64,
    /// Whether there are no more lines now.
    pub at_end: bool,
    /// Whether there are no more lines and the task has ended.
    pub complete: bool,
}

/// Range of log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskLogsQuery {
    /// Only lines after this sequence number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of lines, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Waits up to 20 seconds for more lines if there are none and the task has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

/// Everything that is needed to verify offline that the control plane requested a task and that a node ran it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskEvidence {
    /// The task as the control plane shows it.
    pub task: Task,
    /// Every envelope that was signed for it.
    pub envelopes: Vec<EnvelopeEvidence>,
    /// The receipt that ended it, DSSE bytes.
    #[serde(default, with = "optional_base64")]
    #[schemars(with = "Option<String>")]
    pub receipt: Option<Vec<u8>>,
    /// The receipt key of the node in the task's epoch.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// The control plane's signed record of that node's keys, DSSE bytes.
    #[serde(default, with = "optional_base64")]
    #[schemars(with = "Option<String>")]
    pub node_record: Option<Vec<u8>>,
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The key that signs verifier sets.
    #[schemars(with = "String")]
    pub root_key: VerifyingKey,
    /// The current verifier set, DSSE bytes.
    #[serde(with = "gpuaas_contract::bytes_as_base64")]
    #[schemars(with = "String")]
    pub verifier_set: Vec<u8>,
}

/// One envelope that was signed for a task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct EnvelopeEvidence {
    /// Digest of the signed payload.
    pub digest: Digest,
    /// The key that signed.
    #[schemars(with = "String")]
    pub key_id: KeyId,
    /// When it was signed.
    #[serde(with = "Rfc3339")]
    pub signed_at: Timestamp,
    /// DSSE bytes.
    #[serde(with = "gpuaas_contract::bytes_as_base64")]
    #[schemars(with = "String")]
    pub envelope: Vec<u8>,
}

/// Serde helper: optional bytes as optional base64.
mod optional_base64 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Bytes(#[serde(with = "gpuaas_contract::bytes_as_base64")] Vec<u8>);

    pub(super) fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Bytes).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Bytes>::deserialize(deserializer)?.map(|bytes| bytes.0))
    }
}
