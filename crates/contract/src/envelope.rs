//! The envelope: one task for one node, signed by the control plane.
//!
//! [`verify`] is the only way to obtain a [`Verified`] task. It checks in a fixed order: size, signature, payload type, strict parse,
//! audience, time. The agent then checks its journal and the host policy.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::Digest;
use crate::dsse::{self, KeyLookup, OpenError};
use crate::id::{AllocationId, ClusterId, CorrelationId, NodeId, TaskId};
use crate::key::SigningKey;
use crate::task::{self, BadParams, Task, TaskType};
use crate::time::Timestamp;

/// DSSE payload type of an envelope.
pub const PAYLOAD_TYPE: &str = "application/vnd.gpuaas.task.v1+json";
/// Maximum size of an envelope.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum time from signing to the latest start.
pub const MAX_START_WINDOW: Duration = Duration::from_secs(15 * 60);
/// Maximum time from the latest start to the deadline.
pub const MAX_RUN: Duration = Duration::from_secs(24 * 3600);
/// Tolerated difference between the clocks of host and control plane.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// The signed content of an envelope.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The cluster that issued the task.
    pub cluster_id: ClusterId,
    /// The node the task is for.
    pub node_id: NodeId,
    /// Which enrollment of that node: its epoch.
    pub node_epoch: u64,
    /// Identifies the task. A task runs at most once, however often its envelope is delivered.
    pub task_id: TaskId,
    /// Name of the task's kind in the catalog.
    pub task_type: String,
    /// Parameters of that kind, as raw JSON.
    pub params: Box<RawValue>,
    /// The allocation that the task acts on, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_id: Option<AllocationId>,
    /// The lease epoch of that allocation, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
    /// When the envelope was signed.
    pub issued_at: Timestamp,
    /// Latest start, at most [`MAX_START_WINDOW`] after signing.
    pub start_by: Timestamp,
    /// When the task must have finished.
    pub deadline: Timestamp,
    /// Ties the task to the request behind it, through to the agent's log.
    pub correlation_id: CorrelationId,
}

impl Payload {
    /// Signs the payload with the control plane's key.
    pub fn sign(&self, key: &SigningKey) -> Signed {
        let payload = serde_json::to_vec(self).unwrap_or_default();
        let digest = Digest::of(&payload);
        Signed { envelope: dsse::seal(PAYLOAD_TYPE, payload, key), digest }
    }
}

/// An envelope and the digest that its receipt must name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The DSSE document.
    pub envelope: Vec<u8>,
    /// Digest of the signed payload.
    pub digest: Digest,
}

/// What the verifying node knows about itself and about the current time.
pub struct Expectation<'a, K> {
    /// Keys that may sign tasks.
    pub keys: &'a K,
    /// The cluster this node belongs to.
    pub cluster_id: ClusterId,
    /// The id of this node.
    pub node_id: NodeId,
    /// This node's current epoch.
    pub node_epoch: u64,
    /// The host's clock, which may have been set back.
    pub now: Timestamp,
    /// The latest authenticated time ever seen, so that setting the clock back cannot revive an expired task.
    pub highest_seen: Timestamp,
}

impl<K> Expectation<'_, K> {
    /// The later of the host's clock and the latest authenticated time.
    pub fn effective_now(&self) -> Timestamp {
        self.now.max(self.highest_seen)
    }
}

/// A task that passed all checks of [`verify`], the only function that creates one.
#[derive(Clone, Debug)]
pub struct Verified {
    payload: Payload,
    task: Task,
    digest: Digest,
}

impl Verified {
    /// The signed fields.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The parsed task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Digest of the signed payload, for the receipt.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// Why an envelope was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Stable code for programs.
    pub code: RefusalCode,
    /// A sentence for people that says what to do.
    pub message: String,
    /// Set if the envelope was authentic and addressed to this node: only then may a signed receipt answer it.
    pub answerable: Option<Answerable>,
}

/// What a receipt for a refused task needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answerable {
    /// The task that was refused.
    pub task_id: TaskId,
    /// Name of its kind, as signed.
    pub task_type: String,
    /// Digest of the signed payload.
    pub digest: Digest,
    /// The correlation id from the envelope.
    pub correlation_id: CorrelationId,
    /// When the envelope was signed.
    pub issued_at: Timestamp,
    /// Latest start of the task.
    pub start_by: Timestamp,
}

/// Every reason for which an agent refuses a task. Each reason has its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// Larger than [`MAX_BYTES`].
    EnvelopeOversized,
    /// Not a DSSE document with one signature.
    EnvelopeMalformed,
    /// Signed by a key that is not in the verifier set.
    KeyUnknown,
    /// Signed by a staged, retired or revoked key.
    KeyNotUsable,
    /// The signature does not match.
    SignatureInvalid,
    /// Signed as a document of another type.
    PayloadTypeWrong,
    /// The payload does not parse.
    TaskMalformed,
    /// The payload or the params have a field that this agent does not know.
    TaskUnknownField,
    /// The task type is not compiled into this agent.
    TaskTypeUnknown,
    /// A parameter is invalid or outside its limits.
    ParamsInvalid,
    /// The envelope names a different allocation or lease than the params do.
    LeaseMismatch,
    /// Addressed to another cluster.
    ClusterMismatch,
    /// Addressed to another node.
    NodeMismatch,
    /// Addressed to an earlier or later enrollment of this node.
    EpochMismatch,
    /// The start window is too long, or it ends before it begins.
    WindowInvalid,
    /// Signed in the future: one of the two clocks is wrong.
    TaskEarly,
    /// The latest start has passed.
    TaskExpired,
    /// The host policy does not allow it.
    PolicyDenied,
    /// The journal has no space to record the task durably.
    JournalFull,
}

impl RefusalCode {
    /// The code as it is sent on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnvelopeOversized => "envelope_oversized",
            Self::EnvelopeMalformed => "envelope_malformed",
            Self::KeyUnknown => "key_unknown",
            Self::KeyNotUsable => "key_not_usable",
            Self::SignatureInvalid => "signature_invalid",
            Self::PayloadTypeWrong => "payload_type_wrong",
            Self::TaskMalformed => "task_malformed",
            Self::TaskUnknownField => "task_unknown_field",
            Self::TaskTypeUnknown => "task_type_unknown",
            Self::ParamsInvalid => "params_invalid",
            Self::LeaseMismatch => "lease_mismatch",
            Self::ClusterMismatch => "cluster_mismatch",
            Self::NodeMismatch => "node_mismatch",
            Self::EpochMismatch => "epoch_mismatch",
            Self::WindowInvalid => "window_invalid",
            Self::TaskEarly => "task_early",
            Self::TaskExpired => "task_expired",
            Self::PolicyDenied => "policy_denied",
            Self::JournalFull => "journal_full",
        }
    }
}

impl std::fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Verifies an envelope. The order of the checks is fixed; see the module documentation.
pub fn verify<K: KeyLookup>(envelope: &[u8], expect: &Expectation<'_, K>) -> Result<Verified, Refusal> {
    let unanswerable = |code, message| Refusal { code, message, answerable: None };

    let bytes = dsse::open(envelope, MAX_BYTES, PAYLOAD_TYPE, expect.keys)
        .map_err(|error| unanswerable(code_of(&error), error.to_string()))?;
    let digest = Digest::of(&bytes);

    let payload: Payload = serde_json::from_slice(&bytes).map_err(|error| {
        let code = if task::is_unknown_field(&error) { RefusalCode::TaskUnknownField } else { RefusalCode::TaskMalformed };
        unanswerable(code, format!("task payload: {error}"))
    })?;

    // A signed receipt answers refusals from here on, but only for a task that is addressed to this node.
    let audience = check_audience(&payload, expect);
    let answerable = audience.is_ok().then(|| Answerable {
        task_id: payload.task_id,
        task_type: payload.task_type.clone(),
        digest: digest.clone(),
        correlation_id: payload.correlation_id.clone(),
        issued_at: payload.issued_at,
        start_by: payload.start_by,
    });
    let refuse = |(code, message)| Refusal { code, message, answerable: answerable.clone() };

    let task = parse_task(&payload).map_err(&refuse)?;
    audience.map_err(&refuse)?;
    check_times(&payload, expect).map_err(&refuse)?;
    Ok(Verified { payload, task, digest })
}

type Check<T> = Result<T, (RefusalCode, String)>;

fn parse_task(payload: &Payload) -> Check<Task> {
    let kind = TaskType::parse(&payload.task_type).ok_or_else(|| {
        let known = TaskType::ALL.map(TaskType::as_str).join(", ");
        let message =
            format!("task type `{}` is not compiled into this agent (it has {known}); update the agent", payload.task_type);
        (RefusalCode::TaskTypeUnknown, message)
    })?;
    let task = Task::parse(kind, payload.params.get()).map_err(|error| {
        let code = match error {
            BadParams::UnknownField { .. } => RefusalCode::TaskUnknownField,
            BadParams::Invalid { .. } => RefusalCode::ParamsInvalid,
        };
        (code, error.to_string())
    })?;
    let named = payload.allocation_id.zip(payload.lease_epoch);
    let held = task.holder().map(|holder| (holder.allocation_id, holder.lease_epoch));
    if held.is_some() && named != held {
        let message = "the allocation and lease of the envelope are not those of its params".to_owned();
        return Err((RefusalCode::LeaseMismatch, message));
    }
    Ok(task)
}

fn check_audience<K>(payload: &Payload, expect: &Expectation<'_, K>) -> Check<()> {
    if payload.cluster_id != expect.cluster_id {
        return Err((
            RefusalCode::ClusterMismatch,
            format!("task is from {}, this node belongs to {}", payload.cluster_id, expect.cluster_id),
        ));
    }
    if payload.node_id != expect.node_id {
        return Err((RefusalCode::NodeMismatch, format!("task is for {}, this is {}", payload.node_id, expect.node_id)));
    }
    if payload.node_epoch != expect.node_epoch {
        let message = format!("task is for epoch {}, this node is in epoch {}", payload.node_epoch, expect.node_epoch);
        return Err((RefusalCode::EpochMismatch, message));
    }
    Ok(())
}

fn check_times<K>(payload: &Payload, expect: &Expectation<'_, K>) -> Check<()> {
    let Payload { issued_at, start_by, deadline, .. } = *payload;
    let window_fits = issued_at <= start_by && start_by <= issued_at.plus(MAX_START_WINDOW);
    if !window_fits || deadline < start_by || deadline > start_by.plus(MAX_RUN) {
        let message = format!(
            "issued {issued_at}, start by {start_by}, deadline {deadline}: the start window must be 0 to 15 minutes, and the deadline 0 to 24 hours after its end"
        );
        return Err((RefusalCode::WindowInvalid, message));
    }
    let now = expect.effective_now();
    if issued_at > now.plus(CLOCK_SKEW) {
        let message = format!(
            "task was signed at {issued_at} but this host's clock says {now}; check the clocks (NTP) of host and control plane"
        );
        return Err((RefusalCode::TaskEarly, message));
    }
    if now > start_by.plus(CLOCK_SKEW) {
        let message =
            format!("task had to start by {start_by} and it is {now}; run it again, and check this host's clock if that repeats");
        return Err((RefusalCode::TaskExpired, message));
    }
    Ok(())
}

fn code_of(error: &OpenError) -> RefusalCode {
    match error {
        OpenError::Oversized { .. } => RefusalCode::EnvelopeOversized,
        OpenError::Malformed(_) => RefusalCode::EnvelopeMalformed,
        OpenError::UnknownKey(_) => RefusalCode::KeyUnknown,
        OpenError::KeyNotUsable { .. } => RefusalCode::KeyNotUsable,
        OpenError::BadSignature => RefusalCode::SignatureInvalid,
        OpenError::WrongPayloadType { .. } => RefusalCode::PayloadTypeWrong,
    }
}
