//! The receipt: how a task ended on a node, signed with the node's receipt key. Without a receipt, no task is complete.

use serde_json::value::RawValue;

use crate::Digest;
use crate::cleanup::CleanupProof;
use crate::dsse::{self, OpenError};
use crate::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use crate::key::{SigningKey, VerifyingKey};
use crate::task::{self, TaskType};
use crate::time::Timestamp;

/// DSSE payload type of a receipt.
pub const PAYLOAD_TYPE: &str = "application/vnd.gpuaas.receipt.v1+json";
/// Maximum size of a receipt on the wire.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Maximum size of the output, so that it still fits as base64 next to the other fields.
pub const MAX_OUTPUT_BYTES: usize = 640 * 1024;
/// Maximum length of the message, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// Maximum length of the code, the boot id and each phase name, in bytes.
pub const MAX_NAME: usize = 64;
/// Maximum number of phases.
pub const MAX_PHASES: usize = 256;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The task succeeded.
    Succeeded,
    /// The task failed; the code says why.
    Failed,
    /// The task was canceled by the control plane.
    Cancelled,
    /// The agent or the host went down while the task ran; recovery is done.
    Interrupted,
    /// The task was refused and never started; the code says why.
    Refused,
}

impl Outcome {
    /// Name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Refused => "refused",
        }
    }
}

/// Duration of a phase.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseTiming {
    /// Name of the phase.
    pub phase: String,
    /// Duration in milliseconds.
    pub milliseconds: u64,
}

/// The signed content of a receipt.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payload {
    /// The cluster the node belongs to.
    pub cluster_id: ClusterId,
    /// The node that ran or refused the task.
    pub node_id: NodeId,
    /// Which enrollment of that node: its epoch.
    pub node_epoch: u64,
    /// The task that the receipt answers.
    pub task_id: TaskId,
    /// Name of its kind, as signed in the envelope.
    pub task_type: String,
    /// Digest of the envelope's payload: the exact signed order that this receipt answers.
    pub task_digest: Digest,
    /// Identifies the agent process; new at every start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// Identifies the boot of the host.
    pub boot_id: String,
    /// 1, or more if the task was recovered after a restart.
    pub attempt: u32,
    /// When the task started; `None` if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the task ended.
    pub finished_at: Timestamp,
    /// How the task ended.
    pub outcome: Outcome,
    /// Stable code: `ok`, or the reason why the task did not succeed.
    pub code: String,
    /// A sentence for people; may be empty.
    pub message: String,
    /// Output of the task, as raw JSON; present exactly if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// How long each phase took, in order.
    pub phases: Vec<PhaseTiming>,
    /// Cleanup proof, from tasks that clean up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleanup_proof: Option<Box<RawValue>>,
    /// Position among this node's receipts of the same epoch, counted from 1.
    pub sequence: u64,
    /// Digest of the node's previous receipt; `None` for the first receipt of an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_receipt: Option<Digest>,
}

/// A signed receipt and the digest that the next one will name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The DSSE document.
    pub receipt: Vec<u8>,
    /// Digest of the signed payload.
    pub digest: Digest,
}

impl Payload {
    /// Signs the payload with the node's receipt key.
    pub fn sign(&self, key: &SigningKey) -> Signed {
        let payload = serde_json::to_vec(self).unwrap_or_default();
        let digest = Digest::of(&payload);
        Signed { receipt: dsse::seal(PAYLOAD_TYPE, payload, key), digest }
    }
}

/// What the control plane has on record about the task.
pub struct Expectation<'a> {
    /// The node's registered receipt key.
    pub key: &'a VerifyingKey,
    /// The id of this cluster.
    pub cluster_id: ClusterId,
    /// The node whose certificate authenticated the connection.
    pub node_id: NodeId,
    /// The node's current epoch.
    pub node_epoch: u64,
    /// The task as recorded.
    pub task_id: TaskId,
    /// Its kind as recorded.
    pub task_type: TaskType,
    /// Digests of all envelopes that were signed for the task.
    pub envelope_digests: &'a [Digest],
}

/// A receipt that passed all checks of [`verify`], the only function that creates one.
#[derive(Clone, Debug)]
pub struct Verified {
    payload: Payload,
    digest: Digest,
    proof: Option<CleanupProof>,
}

impl Verified {
    /// The signed content.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Digest of the signed payload.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The cleanup proof, if the receipt carries one.
    pub fn cleanup_proof(&self) -> Option<&CleanupProof> {
        self.proof.as_ref()
    }
}

/// Why a receipt was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// Too large, not authentic, or a document of another type.
    #[error("receipt not opened")]
    Open(#[from] OpenError),
    /// The signature is valid, but the payload is not a receipt.
    #[error("receipt is malformed: {0}")]
    Malformed(String),
    /// The payload has a field that this control plane does not know.
    #[error("receipt has an unknown field: {0}")]
    UnknownField(String),
    /// Issued for another cluster.
    #[error("receipt names another cluster")]
    OtherCluster,
    /// Issued by another node.
    #[error("receipt names another node")]
    OtherNode,
    /// Issued under another enrollment of the node.
    #[error("receipt names another epoch of the node")]
    OtherEpoch,
    /// Names another task, or another kind of task.
    #[error("receipt names another task")]
    OtherTask,
    /// Answers an envelope that this control plane never signed for the task.
    #[error("receipt answers an envelope that was never signed for this task")]
    OtherEnvelope,
    /// The output does not match the kind of task.
    #[error("receipt's output does not fit the task: {0}")]
    BadOutput(String),
    /// The cleanup proof is missing, unexpected or malformed.
    #[error("receipt's proof of cleanup is not accepted: {0}")]
    BadProof(String),
    /// Its fields contradict each other or exceed their limits.
    #[error("receipt contradicts itself: {0}")]
    Inconsistent(&'static str),
}

impl ReceiptError {
    /// Stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Open(OpenError::Oversized { .. }) => "receipt_oversized",
            Self::Open(OpenError::UnknownKey(_) | OpenError::KeyNotUsable { .. }) => "receipt_key_unknown",
            Self::Open(OpenError::BadSignature) => "receipt_signature_invalid",
            Self::Open(OpenError::WrongPayloadType { .. }) => "receipt_payload_type_wrong",
            Self::Open(OpenError::Malformed(_)) | Self::Malformed(_) => "receipt_malformed",
            Self::UnknownField(_) => "receipt_unknown_field",
            Self::OtherCluster => "receipt_other_cluster",
            Self::OtherNode => "receipt_other_node",
            Self::OtherEpoch => "receipt_other_epoch",
            Self::OtherTask => "receipt_other_task",
            Self::OtherEnvelope => "receipt_other_envelope",
            Self::BadOutput(_) => "receipt_output_invalid",
            Self::BadProof(_) => "receipt_proof_invalid",
            Self::Inconsistent(_) => "receipt_inconsistent",
        }
    }
}

/// Verifies a receipt against the task it claims to answer.
pub fn verify(receipt: &[u8], expect: &Expectation<'_>) -> Result<Verified, ReceiptError> {
    let bytes = dsse::open(receipt, MAX_BYTES, PAYLOAD_TYPE, expect.key)?;
    let digest = Digest::of(&bytes);
    let payload: Payload = serde_json::from_slice(&bytes).map_err(|error| {
        let text = error.to_string();
        if task::is_unknown_field(&error) { ReceiptError::UnknownField(text) } else { ReceiptError::Malformed(text) }
    })?;
    let differs = [
        (payload.cluster_id != expect.cluster_id, ReceiptError::OtherCluster),
        (payload.node_id != expect.node_id, ReceiptError::OtherNode),
        (payload.node_epoch != expect.node_epoch, ReceiptError::OtherEpoch),
        (payload.task_id != expect.task_id || payload.task_type != expect.task_type.as_str(), ReceiptError::OtherTask),
        (!expect.envelope_digests.contains(&payload.task_digest), ReceiptError::OtherEnvelope),
    ];
    if let Some((_, disbelief)) = differs.into_iter().find(|(differs, _)| *differs) {
        return Err(disbelief);
    }
    match (&payload.output, payload.outcome) {
        (Some(output), Outcome::Succeeded) => {
            task::Output::parse(expect.task_type, output.get()).map_err(|e| ReceiptError::BadOutput(e.to_string()))?;
        }
        (None, Outcome::Succeeded) => return Err(ReceiptError::BadOutput("a success without output".to_owned())),
        (Some(_), _) => return Err(ReceiptError::BadOutput("output without success".to_owned())),
        (None, _) => {}
    }
    let proof = parse_proof(&payload, expect.task_type)?;
    check_consistency(&payload)?;
    Ok(Verified { payload, digest, proof })
}

/// Only tasks that clean up may carry a cleanup proof, and a successful release must.
fn parse_proof(reported: &Payload, kind: TaskType) -> Result<Option<CleanupProof>, ReceiptError> {
    let Some(raw) = &reported.cleanup_proof else {
        return if kind == TaskType::SliceVmRelease && reported.outcome == Outcome::Succeeded {
            Err(ReceiptError::BadProof("a release without a proof".to_owned()))
        } else {
            Ok(None)
        };
    };
    if !kind.may_prove_cleanup() {
        return Err(ReceiptError::BadProof(format!("{kind} owes none")));
    }
    if raw.get().len() > CleanupProof::MAX_BYTES {
        return Err(ReceiptError::BadProof("it is longer than allowed".to_owned()));
    }
    serde_json::from_str(raw.get()).map(Some).map_err(|error| ReceiptError::BadProof(error.to_string()))
}

fn check_consistency(reported: &Payload) -> Result<(), ReceiptError> {
    let output_bytes = reported.output.as_ref().map_or(0, |output| output.get().len());
    let too_long = |name: &str| name.len() > MAX_NAME;
    let contradictions = [
        (reported.attempt == 0, "attempts count from 1"),
        (reported.sequence == 0, "receipts count from 1"),
        (
            (reported.sequence == 1) != reported.previous_receipt.is_none(),
            "exactly the first receipt of an epoch has no receipt before it",
        ),
        (reported.started_at.is_some_and(|started| started > reported.finished_at), "it ends before it starts"),
        (reported.outcome == Outcome::Refused && reported.started_at.is_some(), "a refused task never starts"),
        (reported.outcome == Outcome::Succeeded && reported.started_at.is_none(), "a task that succeeded was started"),
        ((reported.outcome == Outcome::Succeeded) != (reported.code == "ok"), "exactly a success has the code `ok`"),
        (reported.code.is_empty() || too_long(&reported.code), "the code must have 1 to 64 bytes"),
        (too_long(&reported.boot_id), "the boot id has more than 64 bytes"),
        (reported.message.len() > MAX_MESSAGE, "the message is longer than allowed"),
        (output_bytes > MAX_OUTPUT_BYTES, "the output is longer than allowed"),
        (reported.phases.len() > MAX_PHASES || reported.phases.iter().any(|p| too_long(&p.phase)), "too many or too long phases"),
    ];
    match contradictions.into_iter().find(|(holds, _)| *holds) {
        Some((_, what)) => Err(ReceiptError::Inconsistent(what)),
        None => Ok(()),
    }
}
