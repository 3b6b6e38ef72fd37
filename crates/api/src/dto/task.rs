//! Tasks, their logs, and the evidence that they were done.

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
    /// Its id.
    pub id: TaskId,
    /// The node that shall run it. All zeros for tenants, who are not told where their machines are.
    pub node_id: NodeId,
    /// That node's name. Empty for tenants.
    pub node_name: String,
    /// The node's epoch when it was asked for. 0 for tenants.
    pub node_epoch: u64,
    /// Its kind.
    pub task_type: String,
    /// The kind's parameters.
    pub params: serde_json::Value,
    /// Where it stands.
    pub state: Open<TaskState>,
    /// Who asked for it.
    pub requested_by: String,
    /// Follows the request into the agent's log.
    #[schemars(with = "String")]
    pub correlation_id: CorrelationId,
    /// The caller's own key against asking twice.
    #[serde(default)]
    pub idempotency_key: Option<String>,
    /// When it was asked for.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Not sent out after this.
    #[serde(with = "Rfc3339")]
    pub queue_until: Timestamp,
    /// How long it may run.
    pub timeout_seconds: u64,
    /// How often it was sent out.
    pub dispatches: u32,
    /// Until when the node may take its time to accept.
    #[serde(default, with = "OptionalRfc3339")]
    pub lease_until: Option<Timestamp>,
    /// When its cancellation was asked for.
    #[serde(default, with = "OptionalRfc3339")]
    pub cancel_requested_at: Option<Timestamp>,
    /// When the node accepted it.
    #[serde(default, with = "OptionalRfc3339")]
    pub accepted_at: Option<Timestamp>,
    /// When the node started it.
    #[serde(default, with = "OptionalRfc3339")]
    pub started_at: Option<Timestamp>,
    /// When it ended; set exactly if it has.
    #[serde(default, with = "OptionalRfc3339")]
    pub ended_at: Option<Timestamp>,
    /// Stable code of how it ended; empty before.
    pub code: String,
    /// The same in words.
    pub message: String,
    /// Digest of the receipt that ended it.
    #[serde(default)]
    pub receipt_digest: Option<Digest>,
    /// The last phase the node told of, while it runs.
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
    /// Where it runs, as the end of a sentence; nothing if that is not told.
    pub fn on_node(&self) -> String {
        if self.node_name.is_empty() { String::new() } else { format!(" on {}", self.node_name) }
    }

    /// Whether nothing more will happen.
    pub fn ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// A phase of a running task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskProgress {
    /// The phase.
    pub phase: String,
    /// One line for people; may be empty.
    pub message: String,
    /// When, by the host's clock.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
}

/// A task to run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskCreate {
    /// The node: its id, or its name if no other node has the same.
    pub node: String,
    /// Its kind.
    pub task_type: String,
    /// The kind's parameters; an empty object unless given.
    #[serde(default = "empty_object")]
    pub params: serde_json::Value,
    /// How long it may wait for its node; the server's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_seconds: Option<u64>,
    /// How long it may run; the server's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

fn empty_object() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}

/// Which tasks to list; newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskListQuery {
    /// Only those of this node: its id, or its name if no other node has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only those in this state; `open` means every state in which a task has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<TaskState>>,
    /// Only those whose id starts with this text (`task_` and some hex digits).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
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
    /// How many lines before this one the host had to drop.
    #[serde(default)]
    pub dropped: u64,
}

/// Some log lines of a task, in order.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskLogs {
    /// The lines.
    pub lines: Vec<TaskLogLine>,
    /// Give this as `after` to go on: the last line's sequence, or the `after` of the request.
    pub next_after: u64,
    /// There are no more lines now.
    pub at_end: bool,
    /// There are no more lines now, and the task has ended.
    pub complete: bool,
}

/// Which log lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskLogsQuery {
    /// Only lines after this sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Most lines; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// If there is no such line and the task has not ended, hold the answer (up to 20 s) until either changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<bool>,
}

/// Everything it takes to check, without the server, that a node did a task and that the control plane asked for it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TaskEvidence {
    /// The task as the control plane tells it.
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
    /// When.
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
