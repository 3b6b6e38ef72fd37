//! Maintenance windows, and what draining a node would affect.

use gpuaas_contract::id::{AllocationId, MaintenanceId, NodeId, ProjectId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{AllocationState, MaintenanceState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A maintenance window, announced to the tenants on its nodes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct MaintenanceWindow {
    /// Id of the window.
    pub id: MaintenanceId,
    /// Summary that tenants read.
    pub summary: String,
    /// The nodes that are maintained.
    pub nodes: Vec<NodeId>,
    /// State of the window.
    pub state: Open<MaintenanceState>,
    /// Start of the window.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// End of the window.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
    /// Who announced it.
    pub created_by: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was canceled.
    #[serde(default, with = "OptionalRfc3339")]
    pub cancelled_at: Option<Timestamp>,
}

/// Filter for a list of maintenance windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceListQuery {
    /// Only items of this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Includes windows that are over or canceled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A maintenance window to announce.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceCreate {
    /// Summary that tenants read.
    pub summary: String,
    /// The nodes, by id or unique name: 1 to 1000.
    pub nodes: Vec<String>,
    /// Start of the window.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// End of the window.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
}

/// The allocations that have to end before a node is empty.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct DrainPreview {
    /// Id of the node.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// The allocations on the node, by the end of their lease; those without an end come last.
    pub allocations: Vec<DrainAllocation>,
    /// Number of free slots, which leave service immediately.
    pub slots_free: u32,
    /// Summary of the consequences of draining the node.
    pub note: String,
}

/// An allocation on a node that is being drained.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct DrainAllocation {
    /// Id of the allocation.
    pub id: AllocationId,
    /// Name of the allocation.
    pub name: String,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// The name of that project's organization.
    pub organization: String,
    /// State of the allocation.
    pub state: Open<AllocationState>,
    /// End of its lease; null if it has no end.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// Why it has to end before the node is empty.
    pub why: String,
}
