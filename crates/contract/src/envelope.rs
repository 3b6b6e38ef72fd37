//! The envelope: one task for one node, signed by the control plane.
//!
//! [`verify`] is the only way to a [`Verified`] task, and its order of checks is fixed: size, signature, payload type,
//! strict parse, audience, time. What follows (journal, host policy) is the agent's.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::Digest;
use crate::dsse::{self, KeyLookup, OpenError};
use crate::id::{AllocationId, ClusterId, CorrelationId, NodeId, TaskId};
use crate::key::SigningKey;
use crate::task::{self, BadParams, Task, TaskType};
use crate::time::Timestamp;

/// Payload type of an envelope.
pub const PAYLOAD_TYPE: &str = "application/vnd.gpuaas.task.v1+json";
/// Most bytes of one envelope.
pub const MAX_BYTES: usize = 64 * 1024;
/// Longest time between signing and the latest start.
pub const MAX_START_WINDOW: Duration = Duration::from_secs(15 * 60);
/// Longest time between the latest start and the deadline.
pub const MAX_RUN: Duration = Duration::from_secs(24 * 3600);
/// How far the clocks of host and control plane may be apart.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// What is signed.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The cluster that speaks.
    pub cluster_id: ClusterId,
    /// The node it speaks to.
    pub node_id: NodeId,
    /// Which enrollment of that node.
    pub node_epoch: u64,
    /// The task. Executed at most once, whatever is delivered.
    pub task_id: TaskId,
    /// Name of a kind in the catalog.
    pub task_type: String,
    /// The kind's parameters.
    pub params: Box<RawValue>,
    /// The allocation it serves, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_id: Option<AllocationId>,
    /// The allocation's fencing number, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_epoch: Option<u64>,
    /// When it was signed.
    pub issued_at: Timestamp,
    /// Latest start, at most 15 minutes after signing.
    pub start_by: Timestamp,
    /// When it must be over.
    pub deadline: Timestamp,
    /// Follows the request into the agent's log.
    pub correlation_id: CorrelationId,
}

impl Payload {
    /// Signs the payload.
    pub fn sign(&self, key: &SigningKey) -> Signed {
        let payload = serde_json::to_vec(self).unwrap_or_default();
        let digest = Digest::of(&payload);
        Signed { envelope: dsse::seal(PAYLOAD_TYPE, payload, key), digest }
    }
}

/// An envelope and the digest that its receipt will name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// DSSE bytes.
    pub envelope: Vec<u8>,
    /// Digest of the signed payload.
    pub digest: Digest,
}

/// What the verifier knows about itself and the moment.
pub struct Expectation<'a, K> {
    /// Keys that may sign tasks.
    pub keys: &'a K,
    /// The cluster this node belongs to.
    pub cluster_id: ClusterId,
    /// This node.
    pub node_id: NodeId,
    /// This node's current epoch.
    pub node_epoch: u64,
    /// The host's clock.
    pub now: Timestamp,
    /// The latest authenticated time ever seen: a clock set back cannot revive an old task.
    pub highest_seen: Timestamp,
}

impl<K> Expectation<'_, K> {
    /// The later of the host's clock and what was already proven to be past.
    pub fn effective_now(&self) -> Timestamp {
        self.now.max(self.highest_seen)
    }
}

/// A task that passed every check up to time. Only [`verify`] makes one.
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
    /// Stable code.
    pub code: RefusalCode,
    /// A sentence that says what to do.
    pub message: String,
    /// Set if the envelope was authentic and meant for this node, so that a signed receipt may answer it.
    pub answerable: Option<Answerable>,
}

/// What a receipt of refusal needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answerable {
    /// The task.
    pub task_id: TaskId,
    /// Name of its kind, as signed.
    pub task_type: String,
    /// Digest of the signed payload.
    pub digest: Digest,
    /// Its correlation id.
    pub correlation_id: CorrelationId,
    /// When it was signed.
    pub issued_at: Timestamp,
    /// Its latest start.
    pub start_by: Timestamp,
}

/// Every reason an agent refuses for. One code, one reason.
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
    /// Signed for another purpose.
    PayloadTypeWrong,
    /// The payload does not parse.
    TaskMalformed,
    /// The payload or the params have a field this agent does not know.
    TaskUnknownField,
    /// The task type is not compiled into this agent.
    TaskTypeUnknown,
    /// The params break a limit.
    ParamsInvalid,
    /// The envelope names another allocation or lease than the params.
    LeaseMismatch,
    /// Meant for another cluster.
    ClusterMismatch,
    /// Meant for another node.
    NodeMismatch,
    /// Meant for an earlier (or later) enrollment of this node.
    EpochMismatch,
    /// The start window is longer than allowed or turned round.
    WindowInvalid,
    /// Signed in the future: one of the clocks is off.
    TaskEarly,
    /// Too late to start.
    TaskExpired,
    /// The host's owner does not allow it.
    PolicyDenied,
    /// No room to record it durably.
    JournalFull,
}

impl RefusalCode {
    /// The code on the wire.
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

/// Verifies an envelope.
pub fn verify<K: KeyLookup>(envelope: &[u8], expect: &Expectation<'_, K>) -> Result<Verified, Refusal> {
    let unanswerable = |code, message| Refusal { code, message, answerable: None };

    let bytes = dsse::open(envelope, MAX_BYTES, PAYLOAD_TYPE, expect.keys)
        .map_err(|error| unanswerable(code_of(&error), error.to_string()))?;
    let digest = Digest::of(&bytes);

    let payload: Payload = serde_json::from_slice(&bytes).map_err(|error| {
        let code = if task::is_unknown_field(&error) { RefusalCode::TaskUnknownField } else { RefusalCode::TaskMalformed };
        unanswerable(code, format!("task payload: {error}"))
    })?;

    // From here on a refusal can be answered, if the task is ours to speak of.
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
