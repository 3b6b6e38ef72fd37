//! The link protocol: one conversation, two transports, and the enrollment documents that come before it.
//!
//! Over gRPC the conversation is the stream of `proto/link.proto`. Over HTTP long-poll the same messages travel as
//! JSON: see [`route`]. The node is always the one its certificate names; an id in a path that differs is refused.

use crate::id::{ClusterId, EnrollmentId, NodeId};
use crate::key::VerifyingKey;
use crate::telemetry::HostFacts;
use crate::time::Timestamp;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::restriction)]
mod generated {
    // Generated from `proto/link.proto` by `tests/trust/generated_code.rs`, so that a build needs no compiler for it.
    include!("generated/gpuaas.link.v1.rs");
}
pub use generated::*;

mod version;
pub use version::{OLDEST_PROTOCOL, Outdated, PROTOCOL, Versions};

/// Most bytes of one link message or long-poll body.
pub const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;
/// Most bytes of an enrollment, renewal or rejoin body.
pub const MAX_ENROLLMENT_BYTES: usize = 128 * 1024;
/// Name in the certificate of every link listener. Node and listener share a private, pinned CA, so the name says
/// what the certificate is for and not where it lives: a listener can move without new certificates.
pub const SERVER_NAME: &str = "gpuaas-link.internal";

/// Routes of the long-poll transport and of enrollment, all on the link listener.
pub mod route {
    /// `POST`: door one, a join token. No certificate yet.
    pub const ENROLL_WITH_TOKEN: &str = "/internal/v1/enrollments/token";
    /// `POST`: door two, ask an operator. No certificate yet.
    pub const ENROLL_REQUEST: &str = "/internal/v1/enrollments";
    /// `GET`: door two, is it approved? Needs the poll secret. No certificate yet.
    pub const ENROLL_POLL: &str = "/internal/v1/enrollments/{enrollment}";
    /// `POST`: a challenge for a node whose certificate has expired.
    pub const REJOIN_CHALLENGE: &str = "/internal/v1/rejoin/challenge";
    /// `POST`: rejoin with the old keys.
    pub const REJOIN: &str = "/internal/v1/rejoin";
    /// `POST`: a new certificate before the old one expires.
    pub const RENEW: &str = "/internal/v1/nodes/{node}/renew";
    /// `POST` [`super::Hello`] → [`super::Welcome`]: opens a long-poll session.
    pub const HELLO: &str = "/internal/v1/nodes/{node}/hello";
    /// `GET`: offers, held open until there is one. Needs [`super::SESSION_HEADER`].
    pub const TASKS_WAIT: &str = "/internal/v1/nodes/{node}/tasks/wait";
    /// `GET`: cancellations, pings and verifier sets, held open until there is one. `POST` [`super::Pong`]: the answer to a ping.
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
    /// `POST`: the long-poll session ends in good order.
    pub const BYE: &str = "/internal/v1/nodes/{node}/bye";
}

/// Header of every long-poll request after hello: the session it belongs to. [`crate::resume::REQUEST_KEY_HEADER`] proves it.
pub const SESSION_HEADER: &str = "gpuaas-session";

/// Answer to a long-poll wait: zero or more messages.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Messages {
    /// In order.
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

// The documents of enrollment ignore fields that they do not know, like the messages of the link: a newer peer may send more. What is
// signed is strict.

/// What a host says of itself at either door.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Applicant {
    /// Stable digest of the machine's hardware identity: the same machine is the same node.
    pub fingerprint: String,
    /// PEM certificate signing request; its key never leaves the host.
    pub csr_pem: String,
    /// Public half of the receipt key.
    pub receipt_key: VerifyingKey,
    /// Facts to show to the operator.
    pub facts: HostFacts,
}

/// Door one.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollWithToken {
    /// The secret part of the join token.
    pub token: String,
    /// The host.
    pub applicant: Applicant,
}

/// Door two: the question.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollRequest {
    /// Who asks; shown to the operator.
    pub email: String,
    /// The host.
    pub applicant: Applicant,
}

/// Door two: the waiting slip.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EnrollPending {
    /// What the operator approves.
    pub enrollment_id: EnrollmentId,
    /// Only who has this may fetch the answer (header [`ENROLL_SECRET_HEADER`]).
    pub poll_secret: String,
    /// When the request lapses.
    pub expires_at: Timestamp,
}

/// Header with the secret of [`EnrollPending`].
pub const ENROLL_SECRET_HEADER: &str = "gpuaas-enrollment-secret";

/// Door two: the answer so far.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum EnrollStatus {
    /// An operator has not decided yet.
    Pending,
    /// Welcome.
    Approved {
        /// Everything the node needs.
        grant: Box<Grant>,
    },
    /// An operator said no.
    Rejected {
        /// Why, in the operator's words.
        reason: String,
    },
    /// Nobody decided in time.
    Expired,
}

/// What an enrolled node holds.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Grant {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The node's id.
    pub node_id: NodeId,
    /// Which enrollment of the machine this is.
    pub node_epoch: u64,
    /// Leaf certificate, PEM.
    pub certificate_pem: String,
    /// The cluster's CA, PEM; already pinned by the agent.
    pub ca_pem: String,
    /// The root key that signs verifier sets.
    pub root_key: VerifyingKey,
    /// The current verifier set, DSSE bytes.
    #[serde(with = "crate::bytes_as_base64")]
    pub verifier_set: Vec<u8>,
    /// The control plane's clock.
    pub server_time: Timestamp,
}

/// A renewal.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Renew {
    /// Request with the same key as the certificate in use.
    pub csr_pem: String,
}

/// A fresh certificate.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Renewed {
    /// Leaf certificate, PEM.
    pub certificate_pem: String,
}

/// First step of rejoining after expiry.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RejoinChallengeRequest {
    /// Who wants back in.
    pub node_id: NodeId,
}

/// The challenge.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RejoinChallenge {
    /// Opaque; valid for a minute.
    pub challenge: String,
}

/// Second step: the answer, as a document signed with the receipt key.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Rejoin {
    /// Who wants back in.
    pub node_id: NodeId,
    /// DSSE bytes of a [`RejoinProof`].
    #[serde(with = "crate::bytes_as_base64")]
    pub proof: Vec<u8>,
}

/// Payload type of [`RejoinProof`].
pub const REJOIN_PAYLOAD_TYPE: &str = "application/vnd.gpuaas.rejoin.v1+json";

/// Possession of both old keys, bound to one challenge.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejoinProof {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The node.
    pub node_id: NodeId,
    /// Its epoch.
    pub node_epoch: u64,
    /// The challenge being answered.
    pub challenge: String,
    /// Request signed with the old TLS key.
    pub csr_pem: String,
}
