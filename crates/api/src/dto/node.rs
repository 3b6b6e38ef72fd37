//! Nodes.

use gpuaas_contract::id::{AgentInstanceId, NodeId, SessionId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::telemetry::{HostFacts, HostMetrics};
use gpuaas_contract::time::Timestamp;

/// An enrolled host.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Node {
    /// Its id, the same for the life of the machine.
    pub id: NodeId,
    /// Host name; not necessarily unique.
    pub name: String,
    /// Counts the machine's enrollments.
    pub epoch: u64,
    /// Stable digest of the machine's hardware identity.
    pub fingerprint: String,
    /// Public half of the key that signs its receipts in this epoch.
    #[schemars(with = "String")]
    pub receipt_key: VerifyingKey,
    /// `in_service`, `draining`, `quarantined`, `locked` or `retired`.
    pub service: String,
    /// Why, in words; empty when in service.
    pub service_reason: String,
    /// Whether its link is open now.
    pub online: bool,
    /// The open link, if any.
    #[serde(default)]
    pub session: Option<NodeSession>,
    /// When it was last heard of.
    #[serde(default)]
    pub last_seen_at: Option<Timestamp>,
    /// What it says about itself.
    pub facts: HostFacts,
    /// The last sample of its metrics, if there is one.
    #[serde(default)]
    pub metrics: Option<HostMetrics>,
    /// The host is a simulation.
    pub simulated: bool,
    /// When its newest certificate ends.
    #[serde(default)]
    pub certificate_not_after: Option<Timestamp>,
    /// Rejoins after expiry since the last regular renewal.
    pub rejoins: u32,
    /// Last enrollment.
    pub enrolled_at: Timestamp,
    /// First enrollment.
    pub created_at: Timestamp,
    /// Tasks for it that have not ended.
    pub tasks_open: u64,
}

/// One life of a node's link.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeSession {
    /// Its id.
    pub id: SessionId,
    /// `stream` or `poll`.
    pub transport: String,
    /// Since when.
    pub since: Timestamp,
    /// Which start of the agent.
    pub agent_instance_id: AgentInstanceId,
    /// Which boot of the host.
    pub boot_id: String,
}

/// How to end a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRetire {
    /// Why, in the operator's words; may be empty. Kept in the audit log.
    #[serde(default)]
    pub reason: String,
    /// Retire the node even if tenants have something on it. They lose it, and their allocations say so.
    #[serde(default)]
    pub force: bool,
}

/// What an operator changes about a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Its new name: 1 to 253 letters, digits, dashes, dots and underscores.
    pub name: String,
}

/// Which nodes to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeListQuery {
    /// Only those in this service state. Without it, retired nodes are left out unless `all` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Retired nodes, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
