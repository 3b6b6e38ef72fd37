//! Slots, and what nodes propose.

use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::names::Open;
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::state::SlotState;
use gpuaas_contract::task::slice_topology_discover;
use gpuaas_contract::time::{Rfc3339, Timestamp};

/// A GPU with its drive and fabric function, the unit of slicing.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Slot {
    /// Its id, the same for the life of this place on this node.
    pub id: SlotId,
    /// The node it is on.
    pub node_id: NodeId,
    /// That node's name.
    pub node_name: String,
    /// What it consists of.
    pub spec: SlotSpec,
    /// Where it stands.
    pub state: Open<SlotState>,
    /// Why, in words; empty while available.
    pub reason: String,
    /// Why an operator holds it back, if one does. One that is in use stays with its slice and is quarantined once it is clean.
    #[serde(default)]
    pub quarantine: Option<String>,
    /// The slice that has it, or whose remains are on it.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// The highest fencing number that was ever given out for it.
    #[serde(default)]
    pub lease_epoch: u64,
    /// The last task that was to make a guest on it, or to clean it up.
    #[serde(default)]
    pub lease_task: Option<TaskId>,
    /// The task whose receipt proposed it.
    pub proposed_by: TaskId,
    /// Who approved that.
    pub approved_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub approved_at: Timestamp,
    /// First approval.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
}

/// Which slots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotListQuery {
    /// Only those of this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SlotState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What a node found on itself, and what operators made of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Topology {
    /// The node.
    pub node_id: NodeId,
    /// The newest successful `slice.topology_discover`, if there is one.
    #[serde(default)]
    pub proposal: Option<TopologyProposal>,
    /// The node's slots, by index.
    pub slots: Vec<Slot>,
}

/// What a node found on itself.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct TopologyProposal {
    /// The task that looked.
    pub task_id: TaskId,
    /// When its receipt came.
    #[serde(with = "Rfc3339")]
    pub found_at: Timestamp,
    /// What it found, from the receipt.
    pub found: slice_topology_discover::Output,
}

/// Which slots to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopologyApprove {
    /// The task that the operator has seen the result of. If the node has looked again since, nothing is approved.
    pub task_id: TaskId,
    /// Indexes of the slots; without it, all that could be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<u32>>,
}
