//! What there is, what of it works and what of that is free: for operators. And machines, the hosts that are leased as a whole.

use gpuaas_contract::id::{AllocationId, NodeId, SkuId, TaskId};
use gpuaas_contract::names::Open;
use gpuaas_contract::ssh_address::SshAddress;
use gpuaas_contract::state::MachineState;
use gpuaas_contract::time::{Rfc3339, Timestamp};

use super::Product;

/// What there is on the whole platform.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Capacity {
    /// A row per product on offer.
    pub skus: Vec<SkuCapacity>,
    /// A row per model of GPU, over all nodes.
    pub models: Vec<CapacityRow>,
    /// Every node that is not retired.
    pub nodes: Vec<NodeCapacity>,
}

/// How many of a product there are.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SkuCapacity {
    /// The product.
    pub sku_id: SkuId,
    /// Its name.
    pub sku: String,
    /// What is leased.
    pub product: Product,
    /// The GPU; null for slots without one.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// How many could be placed now, one after the other.
    pub available: u32,
}

/// The slots of one model. `delivered` = `healthy` + `unhealthy`, and `healthy` = `allocated` + `free`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CapacityRow {
    /// The GPU, as it can be asked for; `unknown GPU` or `no GPU` where that cannot be said.
    pub model: String,
    /// What its nodes call it; empty if none does.
    pub name: String,
    /// Nodes with such slots.
    pub nodes: u32,
    /// Approved slots of nodes that are not retired.
    pub delivered: u32,
    /// Slots that serve somebody or could at once.
    pub healthy: u32,
    /// All others.
    pub unhealthy: u32,
    /// In the hands of an allocation.
    pub allocated: u32,
    /// Can be given out now.
    pub free: u32,
    /// The most that one allocation could get.
    pub largest_free_on_one_node: u32,
}

/// The slots of one node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeCapacity {
    /// The node.
    pub node_id: NodeId,
    /// Its name.
    pub node_name: String,
    /// A row per model.
    pub rows: Vec<CapacityRow>,
}

/// A whole host on offer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Machine {
    /// The node.
    pub node_id: NodeId,
    /// Its name.
    pub node_name: String,
    /// Where it stands.
    pub state: Open<MachineState>,
    /// Why, in words; empty while available.
    pub reason: String,
    /// The allocation that has it, or whose remains are on it.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// The highest fencing number that was ever given out for it.
    pub lease_epoch: u64,
    /// The last task that was to make or remove a user on it.
    #[serde(default)]
    pub lease_task: Option<TaskId>,
    /// Where its tenants sign in, if that is known.
    #[serde(default)]
    pub ssh_address: Option<SshAddress>,
    /// Who offered it.
    pub offered_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub offered_at: Timestamp,
}

/// How to offer a whole host.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineOffer {
    /// Where its tenants sign in, such as `gpu7.example.com` or `192.0.2.7:2222`. What is known stays if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_address: Option<SshAddress>,
}

/// Which machines to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineListQuery {
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<MachineState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
