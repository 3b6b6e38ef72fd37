//! Slots, and the proposals of nodes.

use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::names::Open;
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::state::SlotState;
use gpuaas_contract::task::slice_topology_discover;
use gpuaas_contract::time::{Rfc3339, Timestamp};

use super::Gpu;

/// A GPU with its drive and fabric function, the unit of slicing.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Slot {
    /// Id of the slot, stable for the life of its hardware on this node.
    pub id: SlotId,
    /// The node it is on.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// The hardware of the slot.
    pub spec: SlotSpec,
    /// Its GPU, as the node reports it; null for a slot without a GPU, or if the node does not report it.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// State of the slot.
    pub state: Open<SlotState>,
    /// Reason for the state; empty while available.
    pub reason: String,
    /// Reason for the quarantine. A slot that is in use stays with its slice and is quarantined once it is clean.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// The slice that holds the slot, or of which something is left on it.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// The highest lease epoch that was ever issued for it.
    #[serde(default)]
    pub lease_epoch: u64,
    /// The last task that created a guest on it or cleaned it up.
    #[serde(default)]
    pub lease_task: Option<TaskId>,
    /// The task whose receipt proposed it.
    pub proposed_by: TaskId,
    /// Who approved it.
    pub approved_by: String,
    /// When it was approved.
    #[serde(with = "Rfc3339")]
    pub approved_at: Timestamp,
    /// When it was first approved.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
}

/// Filter for a list of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotListQuery {
    /// Only items of this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only items in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SlotState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The topology that a node discovered, and its approved slots.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Topology {
    /// Id of the node.
    pub node_id: NodeId,
    /// The newest successful `slice.topology_discover`, if there is one.
    #[serde(default)]
    pub proposal: Option<TopologyProposal>,
    /// The node's slots, by index.
    pub slots: Vec<Slot>,
    /// Tasks that slots need but the host's policy does not allow. While there are any, no slot of the node is leased.
    #[serde(default)]
    pub host_policy_denies: Vec<String>,
}

/// The topology that a node discovered.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TopologyProposal {
    /// The task that discovered it.
    pub task_id: TaskId,
    /// When its receipt arrived.
    #[serde(with = "Rfc3339")]
    pub found_at: Timestamp,
    /// The discovered topology, from the receipt.
    pub found: slice_topology_discover::Output,
}

/// Discovered slots to approve.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopologyApprove {
    /// The task whose result the operator reviewed. If the node has discovered its topology again since, nothing is approved.
    pub task_id: TaskId,
    /// Indexes of the slots; all usable ones by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<u32>>,
}
