//! Events of hosts: enrollment, nodes, maintenance and the budget of destructive commands.

use super::payload::payloads;
use crate::Digest;
use crate::id::{AgentInstanceId, EnrollmentId, JoinTokenId, MaintenanceId, NodeId, SessionId};
use crate::key::VerifyingKey;
use crate::names::Open;
use crate::state::{LinkTransport, NodeService};
use crate::time::{Rfc3339, Timestamp};

payloads! {
    /// A new join token.
    pub struct JoinTokenCreated {
        /// The token.
        operator join_token_id: JoinTokenId,
        /// When it expires.
        #[serde(with = "Rfc3339")]
        operator expires_at: Timestamp,
        /// What it is for, in the operator's words.
        operator note: String,
        /// How many hosts it enrolls at most; absent in events of servers that knew tokens for one host only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator uses: Option<u32>,
        /// The node that a host may replace with it.
        operator replace_node: Option<NodeId>,
    }

    /// A revoked join token.
    pub struct JoinTokenRevoked {
        /// The token.
        operator join_token_id: JoinTokenId,
    }

    /// A use of a join token.
    pub struct JoinTokenUsed {
        /// The token.
        operator join_token_id: JoinTokenId,
        /// The node that joined with it.
        operator node_id: NodeId,
        /// How many more hosts it enrolls.
        operator left: u32,
    }

    /// A host that asks to be enrolled.
    pub struct EnrollmentRequested {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Who asks.
        operator email: String,
        /// What the host calls itself.
        operator hostname: String,
    }

    /// A request that had to make room for another.
    pub struct EnrollmentDisplaced {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Where it came from.
        operator address: String,
    }

    /// An operator's decision about a request.
    pub struct EnrollmentDecided {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Hardware identity of the host.
        operator fingerprint: String,
        /// Why it was rejected.
        operator reason: String,
        /// The node that the host may replace.
        operator replace_node: Option<NodeId>,
    }

    /// A host that became a node, or a node with new keys.
    pub struct NodeEnrolled {
        /// The node.
        operator node_id: NodeId,
        /// Its name.
        operator name: String,
        /// How often it was enrolled.
        operator epoch: u64,
        /// Whether the host is simulated.
        operator simulated: bool,
        /// The key that signs its receipts.
        #[schemars(with = "String")]
        operator receipt_key: VerifyingKey,
        /// Digest of its TLS key.
        operator tls_key_digest: Digest,
    }

    /// Another service state of a node.
    pub struct NodeServiceChanged {
        /// The node.
        operator node_id: NodeId,
        /// The state before.
        operator from: Open<NodeService>,
        /// The state now.
        operator to: Open<NodeService>,
        /// Why; may be empty.
        operator reason: String,
    }

    /// A node with a link.
    pub struct NodeOnline {
        /// The node.
        operator node_id: NodeId,
        /// The link.
        operator session_id: SessionId,
        /// How it is carried.
        operator transport: Open<LinkTransport>,
        /// Which start of the agent it is.
        operator agent_instance_id: AgentInstanceId,
        /// Which boot of the host it is.
        operator boot_id: String,
    }

    /// A node whose link ended.
    pub struct NodeOffline {
        /// The node.
        operator node_id: NodeId,
        /// The link.
        operator session_id: SessionId,
        /// Why it ended.
        operator reason: String,
    }

    /// Another name of a node.
    pub struct NodeRenamed {
        /// The node.
        operator node_id: NodeId,
        /// The name before.
        operator from: String,
        /// The name now.
        operator to: String,
    }

    /// A node that sent more than the server stores of it in an hour.
    pub struct NodeBudgetExceeded {
        /// The node.
        operator node_id: NodeId,
        /// What it sent too much of.
        operator kind: String,
        /// How much is stored.
        operator limit: u64,
    }

    /// Other facts about a node.
    pub struct NodeFactsChanged {
        /// The node.
        operator node_id: NodeId,
        /// Version of its agent.
        operator agent_version: String,
        /// Its kernel.
        operator kernel: String,
        /// How many GPUs it has.
        operator gpus: usize,
    }

    /// A new certificate of a node.
    pub struct NodeCertificateRenewed {
        /// The node.
        operator node_id: NodeId,
        /// Serial number of the certificate.
        operator serial: String,
        /// When it expires.
        #[serde(serialize_with = "Rfc3339::serialize", deserialize_with = "Rfc3339::deserialize_lenient")]
        #[schemars(with = "Rfc3339")]
        operator not_after: Timestamp,
    }

    /// A node that came back after its certificate had expired.
    pub struct NodeRejoined {
        /// The node.
        operator node_id: NodeId,
        /// Serial number of its new certificate.
        operator serial: String,
        /// How often since the last regular renewal.
        operator rejoins: u32,
    }

    /// Announced work on nodes.
    pub struct MaintenanceAnnounced {
        /// The maintenance.
        tenant maintenance_id: MaintenanceId,
        /// What is done, in words that tenants read.
        tenant summary: String,
        /// The nodes.
        operator nodes: Vec<NodeId>,
        /// From.
        #[serde(with = "Rfc3339")]
        tenant starts_at: Timestamp,
        /// To.
        #[serde(with = "Rfc3339")]
        tenant ends_at: Timestamp,
    }

    /// Work on nodes that does not take place.
    pub struct MaintenanceCancelled {
        /// The maintenance.
        tenant maintenance_id: MaintenanceId,
    }

    /// More destructive commands for an hour.
    pub struct BudgetLifted {
        /// How many more.
        operator count: u32,
        /// Why.
        operator reason: String,
        /// Until when.
        #[serde(with = "Rfc3339")]
        operator until: Timestamp,
    }

    /// A budget of destructive commands that is used up.
    pub struct BudgetExhausted {
        /// Whose budget it is.
        operator scope: String,
        /// How many commands were counted within the hour.
        operator total: u32,
        /// How many are allowed.
        operator per_hour: u32,
        /// How many more an operator allowed.
        operator lifted: u32,
    }
}

impl NodeServiceChanged {
    /// The audit action for a node that is back in service; it depends on the state the node was in before.
    pub(super) fn audit_action(&self) -> &'static str {
        if self.from == NodeService::Quarantined { "node.unquarantine" } else { "node.undrain" }
    }
}
