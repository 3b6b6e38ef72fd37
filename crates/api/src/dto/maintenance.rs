//! Maintenance windows, and what draining a node would mean.

use gpuaas_contract::id::{AllocationId, MaintenanceId, NodeId, ProjectId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{AllocationState, MaintenanceState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A time in which operators work on nodes, announced to those who have something there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct MaintenanceWindow {
    /// Its id.
    pub id: MaintenanceId,
    /// Why, in words that tenants read.
    pub summary: String,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// Where it stands.
    pub state: Open<MaintenanceState>,
    /// From.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// To.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
    /// Who announced it.
    pub created_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was cancelled.
    #[serde(default, with = "OptionalRfc3339")]
    pub cancelled_at: Option<Timestamp>,
}

/// Which windows to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceListQuery {
    /// Only those of this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Those that are over or cancelled, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A window to announce.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceCreate {
    /// Why, in words that tenants read.
    pub summary: String,
    /// The nodes, by id or unique name: 1 to 1000.
    pub nodes: Vec<String>,
    /// From.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// To.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
}

/// What is in the way before a node is empty.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct DrainPreview {
    /// The node.
    pub node_id: NodeId,
    /// Its name.
    pub node_name: String,
    /// Everything on it, the one that ends first before the others; those without an end come last.
    pub allocations: Vec<DrainAllocation>,
    /// Slots of it that are free now and would be taken out of service at once.
    pub slots_free: u32,
    /// What should be known, in words.
    pub note: String,
}

/// An allocation that keeps a node from being empty.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct DrainAllocation {
    /// Its id.
    pub id: AllocationId,
    /// What its tenant calls it.
    pub name: String,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// The name of that project's organization.
    pub organization: String,
    /// Where it stands.
    pub state: Open<AllocationState>,
    /// The end of its lease; null goes on until it is released.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// Why it is in the way, in words.
    pub why: String,
}
