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
        /// Note of the operator.
        operator note: String,
        /// Maximum number of hosts it enrolls; absent in events of older servers, whose tokens enroll one host.
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
        /// Number of hosts that it can still enroll.
        operator left: u32,
    }

    /// A host that requests enrollment.
    pub struct EnrollmentRequested {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Email address of the requester.
        operator email: String,
        /// Host name.
        operator hostname: String,
    }

    /// An enrollment request that was dropped because the queue was full.
    pub struct EnrollmentDisplaced {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Address that it came from.
        operator address: String,
    }

    /// An operator's decision about an enrollment request.
    pub struct EnrollmentDecided {
        /// The request.
        operator enrollment_id: EnrollmentId,
        /// Digest of the hardware identity of the host.
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
        /// Number of its enrollments.
        operator epoch: u64,
        /// Whether the host is simulated.
        operator simulated: bool,
        /// The key that signs its receipts.
        #[schemars(with = "String")]
        operator receipt_key: VerifyingKey,
        /// Digest of its TLS key.
        operator tls_key_digest: Digest,
    }

    /// A changed service state of a node.
    pub struct NodeServiceChanged {
        /// The node.
        operator node_id: NodeId,
        /// The state before.
        operator from: Open<NodeService>,
        /// The state now.
        operator to: Open<NodeService>,
        /// Reason; may be empty.
        operator reason: String,
    }

    /// A node with a link.
    pub struct NodeOnline {
        /// The node.
        operator node_id: NodeId,
        /// The link.
        operator session_id: SessionId,
        /// Transport of the link.
        operator transport: Open<LinkTransport>,
        /// Id of the agent process; new at every start of the agent.
        operator agent_instance_id: AgentInstanceId,
        /// Id of the boot of the host.
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

    /// A changed name of a node.
    pub struct NodeRenamed {
        /// The node.
        operator node_id: NodeId,
        /// The name before.
        operator from: String,
        /// The name now.
        operator to: String,
    }

    /// A node that sent more than the server stores from it within an hour.
    pub struct NodeBudgetExceeded {
        /// The node.
        operator node_id: NodeId,
        /// Kind of data that exceeded the limit.
        operator kind: String,
        /// Amount that the server stores per hour.
        operator limit: u64,
    }

    /// Changed facts about a node.
    pub struct NodeFactsChanged {
        /// The node.
        operator node_id: NodeId,
        /// Version of its agent.
        operator agent_version: String,
        /// Kernel release of its host.
        operator kernel: String,
        /// Number of its GPUs.
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

    /// A node that rejoined after its certificate had expired.
    pub struct NodeRejoined {
        /// The node.
        operator node_id: NodeId,
        /// Serial number of its new certificate.
        operator serial: String,
        /// Number of rejoins since the last regular renewal.
        operator rejoins: u32,
    }

    /// A maintenance window that was announced.
    pub struct MaintenanceAnnounced {
        /// The maintenance window.
        tenant maintenance_id: MaintenanceId,
        /// Summary that tenants read.
        tenant summary: String,
        /// The nodes.
        operator nodes: Vec<NodeId>,
        /// Start of the window.
        #[serde(with = "Rfc3339")]
        tenant starts_at: Timestamp,
        /// End of the window.
        #[serde(with = "Rfc3339")]
        tenant ends_at: Timestamp,
    }

    /// A maintenance window that was canceled.
    pub struct MaintenanceCancelled {
        /// The maintenance window.
        tenant maintenance_id: MaintenanceId,
    }

    /// An increase of the budget of destructive commands, for an hour.
    pub struct BudgetLifted {
        /// Number of additional commands.
        operator count: u32,
        /// Reason.
        operator reason: String,
        /// When the increase ends.
        #[serde(with = "Rfc3339")]
        operator until: Timestamp,
    }

    /// A budget of destructive commands that is used up.
    pub struct BudgetExhausted {
        /// The id of an organization, or `operators`.
        operator scope: String,
        /// Number of commands within the hour.
        operator total: u32,
        /// Number of commands that are allowed per hour.
        operator per_hour: u32,
        /// Number of additional commands that operators allowed.
        operator lifted: u32,
    }
}

impl NodeServiceChanged {
    /// The audit action for a node that is back in service; it depends on the state the node was in before.
    pub(super) fn audit_action(&self) -> &'static str {
        if self.from == NodeService::Quarantined { "node.unquarantine" } else { "node.undrain" }
    }
}
