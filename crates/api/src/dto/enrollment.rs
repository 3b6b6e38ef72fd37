//! The two ways to enroll: join tokens, and requests that wait for an operator.

use gpuaas_contract::id::{EnrollmentId, JoinTokenId, NodeId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{EnrollmentState, EnrollmentStatus, JoinTokenState, NodeService};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A host's request to be enrolled.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Enrollment {
    /// Id of the request.
    pub id: EnrollmentId,
    /// State of the request.
    pub state: Open<EnrollmentStatus>,
    /// Email address of the requester. Not verified: compare the receipt key with the one that the agent printed.
    pub email: String,
    /// Digest of the hardware identity of the host.
    pub fingerprint: String,
    /// The host's receipt key.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// Facts that the host reports about itself. Not verified.
    pub facts: HostFacts,
    /// Address of the host: an IPv4 address, or the /64 network of an IPv6 address.
    #[serde(default)]
    pub address: String,
    /// Reason for the rejection.
    pub reason: String,
    /// The node that was created.
    #[serde(default)]
    pub node_id: Option<NodeId>,
    /// The node that already has this fingerprint and that approval replaces. Only for open requests.
    #[serde(default)]
    pub existing_node: Option<ExistingNode>,
    /// The node that the host may replace, as approved by an operator.
    #[serde(default)]
    pub replace_node: Option<NodeId>,
    /// When the host sent the request.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When the request expires.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
}

/// The node that already has the fingerprint of a host that requests enrollment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ExistingNode {
    /// Id of the node.
    pub id: NodeId,
    /// Name of the node, which may differ from the host name.
    pub name: String,
    /// Service state: whether the node accepts work.
    pub service: Open<NodeService>,
    /// Whether the node is connected.
    pub online: bool,
    /// Whether the host has other keys than the node. Approval then ends the node's old identity.
    pub keys_differ: bool,
    /// Whether approval needs `replace_node`.
    pub needs_replace: bool,
}

/// Approval of an enrollment request.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentApprove {
    /// Reason, recorded in the audit log.
    #[serde(default)]
    pub reason: String,
    /// The node that the host may replace; must be the one in `existing_node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_node: Option<NodeId>,
}

/// Filter for a list of enrollment requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentListQuery {
    /// Only items in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<EnrollmentState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A join token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct JoinToken {
    /// Id of the token.
    pub id: JoinTokenId,
    /// State: whether it can be used.
    pub state: Open<JoinTokenState>,
    /// Note of the operator.
    pub note: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it expires.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
    /// Maximum number of hosts that it enrolls.
    #[serde(default = "one_use")]
    pub uses: u32,
    /// Number of hosts that it can still enroll, while its state is `open`.
    #[serde(default)]
    pub left: u32,
    /// When it was last used.
    #[serde(default, with = "OptionalRfc3339")]
    pub used_at: Option<Timestamp>,
    /// The node that last used it.
    #[serde(default)]
    pub used_by: Option<NodeId>,
    /// The nodes that joined with it, in order.
    #[serde(default)]
    pub joined: Vec<JoinedNode>,
    /// When it was revoked.
    #[serde(default, with = "OptionalRfc3339")]
    pub revoked_at: Option<Timestamp>,
    /// The node that a host may replace with this token.
    #[serde(default)]
    pub replace_node: Option<NodeId>,
}

/// The default for a server that does not know tokens with several uses.
const fn one_use() -> u32 {
    1
}

/// A node that joined with a token.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct JoinedNode {
    /// The node that joined.
    pub node_id: NodeId,
    /// When it joined.
    #[serde(with = "Rfc3339")]
    pub joined_at: Timestamp,
}

/// A join token to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinTokenCreate {
    /// Note of the operator.
    #[serde(default)]
    pub note: String,
    /// Lifetime in seconds, at most 900; 900 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
    /// How many hosts it enrolls, 1 to 1000; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// The node that a host may replace with this token. Without it, the token enrolls new machines only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_node: Option<NodeId>,
}

/// A new join token. The only response with its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct JoinTokenCreated {
    /// The token, without its secret.
    pub join_token: JoinToken,
    /// The token with its secret, `gpj_<secret>.<pin of the CA>`. Shown once.
    pub token: String,
    /// The command to run on the host.
    pub enroll_command: String,
}

/// Omits the secret.
impl std::fmt::Debug for JoinTokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinTokenCreated").field("join_token", &self.join_token).finish_non_exhaustive()
    }
}
