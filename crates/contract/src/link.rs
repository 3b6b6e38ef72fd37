//! The link protocol: one conversation over two transports, and the enrollment documents that precede it.
//!
//! Over gRPC the conversation is the stream of `proto/link.proto`. Over HTTP long-poll the same messages travel as JSON; see [`route`]. The
//! certificate decides which node is speaking: a path with another node's id is refused.

use crate::id::{ClusterId, EnrollmentId, NodeId};
use crate::key::VerifyingKey;
use crate::telemetry::HostFacts;
use crate::time::Timestamp;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::restriction)]
mod generated {
    // Generated from `proto/link.proto` by `tests/trust/generated_code.rs`, so that builds need no protobuf compiler.
    include!("generated/gpuaas.link.v1.rs");
}
pub use generated::*;

mod version;
pub use version::{OLDEST_PROTOCOL, Outdated, PROTOCOL, Versions};

/// Maximum size of a link message or long-poll body.
pub const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;
/// Maximum size of an enrollment, renewal or rejoin body.
pub const MAX_ENROLLMENT_BYTES: usize = 128 * 1024;
/// Name in the certificate of every link listener. Nodes and listeners share a private, pinned CA, so the name states what the certificate
/// is for instead of where the listener runs: a listener can move without a new certificate.
pub const SERVER_NAME: &str = "gpuaas-link.internal";

/// Routes of the long-poll transport and of enrollment, all on the link listener.
pub mod route {
    /// `POST`: enroll with a join token. No client certificate yet.
    pub const ENROLL_WITH_TOKEN: &str = "/internal/v1/enrollments/token";
    /// `POST`: request enrollment, to be approved by an operator. No client certificate yet.
    pub const ENROLL_REQUEST: &str = "/internal/v1/enrollments";
    /// `GET`: status of an enrollment request. Needs the poll secret. No client certificate yet.
    pub const ENROLL_POLL: &str = "/internal/v1/enrollments/{enrollment}";
    /// `POST`: get a challenge, for a node whose certificate has expired.
    pub const REJOIN_CHALLENGE: &str = "/internal/v1/rejoin/challenge";
    /// `POST`: rejoin with the old keys.
    pub const REJOIN: &str = "/internal/v1/rejoin";
    /// `POST`: get a new certificate before the current one expires.
    pub const RENEW: &str = "/internal/v1/nodes/{node}/renew";
    /// `POST` [`super::Hello`] → [`super::Welcome`]: opens a long-poll session.
    pub const HELLO: &str = "/internal/v1/nodes/{node}/hello";
    /// `GET`: task offers; held open until there is one. Needs [`super::SESSION_HEADER`].
    pub const TASKS_WAIT: &str = "/internal/v1/nodes/{node}/tasks/wait";
    /// `GET`: cancellations, pings and verifier sets; held open until there is one. `POST` [`super::Pong`]: answers a ping.
    pub const CONTROL: &str = "/internal/v1/nodes/{node}/control";
    /// `POST` [`super::Heartbeat`].
    pub const HEARTBEAT: &str = "/internal/v1/nodes/{node}/heartbeat";
    /// `POST` [`super::Metrics`].
    pub const METRICS: &str = "/internal/v1/nodes/{node}/metrics";
    /// `POST` [`super::Ack`], [`super::Progress`] or [`super::Rejection`] as a [`super::FromNode`].
    pub const TASK_ACK: &str = "/internal/v1/nodes/{node}/tasks/{task}/ack";
    /// `POST` [`super::LogChunk`] → [`super::LogAck`].
    pub const TASK_LOGS: &str = "/internal/v1/nodes/{node}/tasks/{task}/logs";
    /// `POST` receipt bytes → [`super::ReceiptAck`].
    pub const TASK_RESULT: &str = "/internal/v1/nodes/{node}/tasks/{task}/result";
    /// `POST`: close the long-poll session cleanly.
    pub const BYE: &str = "/internal/v1/nodes/{node}/bye";
}

/// Header of every long-poll request after hello: the session it belongs to. [`crate::resume::REQUEST_KEY_HEADER`] carries the proof.
pub const SESSION_HEADER: &str = "gpuaas-session";

/// Response to a long-poll wait.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Messages {
    /// Zero or more messages, in order.
    pub messages: Vec<ToNode>,
}

impl From<to_node::Message> for ToNode {
    fn from(message: to_node::Message) -> Self {
        Self { message: Some(message) }
    }
}

impl From<from_node::Message> for FromNode {
    fn from(message: from_node::Message) -> Self {
        Self { message: Some(message) }
    }
}

// Like link messages, enrollment documents ignore unknown fields, because a newer peer may send more. Signed documents are strict.

/// How a host describes itself, however it enrolls.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Applicant {
    /// Digest of the machine's hardware identity. It stays the same across enrollments: the same machine is the same node.
    pub fingerprint: String,
    /// PEM certificate signing request. The private key never leaves the host.
    pub csr_pem: String,
    /// Public half of the node's receipt key.
    pub receipt_key: VerifyingKey,
    /// Facts to show to the operator. Not verified.
    pub facts: HostFacts,
}

/// Enrollment with a join token.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollWithToken {
    /// The secret part of the join token.
    pub token: String,
    /// The host that wants to enroll.
    pub applicant: Applicant,
}

/// Enrollment that an operator must approve: the request.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollRequest {
    /// Email address of the person who asks; shown to the operator.
    pub email: String,
    /// The host that wants to enroll.
    pub applicant: Applicant,
}

/// Enrollment that an operator must approve: the response to the request.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollPending {
    /// Identifies the request; operators approve it by this id.
    pub enrollment_id: EnrollmentId,
    /// Required to fetch the result, in the header [`ENROLL_SECRET_HEADER`].
    pub poll_secret: String,
    /// When the request expires.
    pub expires_at: Timestamp,
}

/// Header with the poll secret from [`EnrollPending`].
pub const ENROLL_SECRET_HEADER: &str = "gpuaas-enrollment-secret";

/// Enrollment that an operator must approve: its status.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum EnrollStatus {
    /// No operator has decided yet.
    Pending,
    /// An operator approved the request.
    Approved {
        /// Everything the node needs to connect.
        grant: Box<Grant>,
    },
    /// An operator rejected the request.
    Rejected {
        /// Why, as the operator wrote it.
        reason: String,
    },
    /// No operator decided in time.
    Expired,
}

/// What an enrolled node receives.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Grant {
    /// The cluster the node now belongs to.
    pub cluster_id: ClusterId,
    /// The id of the node.
    pub node_id: NodeId,
    /// Counts the enrollments of the machine.
    pub node_epoch: u64,
    /// Leaf certificate, as PEM.
    pub certificate_pem: String,
    /// The cluster's CA certificate, as PEM. The agent has already pinned it.
    pub ca_pem: String,
    /// The root key that signs verifier sets.
    pub root_key: VerifyingKey,
    /// The current verifier set, as a DSSE document.
    #[serde(with = "crate::bytes_as_base64")]
    pub verifier_set: Vec<u8>,
    /// The control plane's clock at the time of the grant.
    pub server_time: Timestamp,
}

/// Request to renew a certificate.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Renew {
    /// PEM certificate signing request for the key of the current certificate.
    pub csr_pem: String,
}

/// A renewed certificate.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Renewed {
    /// Leaf certificate, as PEM.
    pub certificate_pem: String,
}

/// First step of rejoining after the certificate expired.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RejoinChallengeRequest {
    /// The node that wants to rejoin.
    pub node_id: NodeId,
}

/// Response to the first step.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RejoinChallenge {
    /// Opaque to the node; valid for one minute.
    pub challenge: String,
}

/// Second step of rejoining: the response to the challenge, signed with the receipt key.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Rejoin {
    /// The node that wants to rejoin.
    pub node_id: NodeId,
    /// A [`RejoinProof`] as a DSSE document.
    #[serde(with = "crate::bytes_as_base64")]
    pub proof: Vec<u8>,
}

/// DSSE payload type of [`RejoinProof`].
pub const REJOIN_PAYLOAD_TYPE: &str = "application/vnd.gpuaas.rejoin.v1+json";

/// Proves that the node still has both of its keys; bound to one challenge.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejoinProof {
    /// The cluster the node belongs to.
    pub cluster_id: ClusterId,
    /// The node that wants to rejoin.
    pub node_id: NodeId,
    /// The node's current epoch.
    pub node_epoch: u64,
    /// The challenge being answered.
    pub challenge: String,
    /// PEM certificate signing request, signed with the existing TLS key.
    pub csr_pem: String,
}
