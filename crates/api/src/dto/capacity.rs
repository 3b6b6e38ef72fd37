//! Capacity for operators: how much exists, how much of it works, and how much of that is free. Also machines, which are leased as a whole.

use gpuaas_contract::id::{AllocationId, NodeId, SkuId, TaskId};
use gpuaas_contract::names::Open;
use gpuaas_contract::ssh_address::SshAddress;
use gpuaas_contract::state::MachineState;
use gpuaas_contract::time::{Rfc3339, Timestamp};

use super::{Gpu, Product};

/// Capacity of the whole platform.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Capacity {
    /// One row per product on offer.
    pub skus: Vec<SkuCapacity>,
    /// One row per GPU model, over all nodes.
    pub models: Vec<CapacityRow>,
    /// Every node that is not retired.
    pub nodes: Vec<NodeCapacity>,
}

/// Capacity of a product.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SkuCapacity {
    /// The product.
    pub sku_id: SkuId,
    /// Name of the product.
    pub sku: String,
    /// The kind of product and its size.
    pub product: Product,
    /// The GPU as the product names it; null for slots without a GPU.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Vendor, model and PCI id of the GPU; null for slots without a GPU.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// How many could be created now, one after the other.
    pub available: u32,
}

/// The slots of one model. `delivered` = `healthy` + `unhealthy`, and `healthy` = `allocated` + `free`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CapacityRow {
    /// GPU model as products name it; `unknown GPU` or `no GPU` if there is none.
    pub model: String,
    /// Model name of the GPU as nodes report it; empty if none does.
    pub name: String,
    /// Vendor, model and PCI id of the GPU; null for slots without one, or if no node reports it.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// Number of nodes with such slots.
    pub nodes: u32,
    /// Approved slots of nodes that are not retired.
    pub delivered: u32,
    /// Slots that are leased or free.
    pub healthy: u32,
    /// Slots that are neither leased nor free.
    pub unhealthy: u32,
    /// Slots that are leased.
    pub allocated: u32,
    /// Slots that can be leased now.
    pub free: u32,
    /// Largest number of free slots on one node.
    pub largest_free_on_one_node: u32,
}

/// The slots of one node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeCapacity {
    /// Id of the node.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// One row per GPU model.
    pub rows: Vec<CapacityRow>,
    /// Tasks that its slots or the whole machine need but the host's policy does not allow. While there are any, they are not leased.
    #[serde(default)]
    pub host_policy_denies: Vec<String>,
}

/// A whole host on offer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Machine {
    /// Id of the node.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// State of the machine.
    pub state: Open<MachineState>,
    /// Reason for the state; empty while available.
    pub reason: String,
    /// The allocation that holds the machine, or of which something is left on it.
    #[serde(default)]
    pub allocation_id: Option<AllocationId>,
    /// The highest lease epoch that was ever issued for it.
    pub lease_epoch: u64,
    /// The last task that created or removed a user on it.
    #[serde(default)]
    pub lease_task: Option<TaskId>,
    /// SSH address for tenants, if known.
    #[serde(default)]
    pub ssh_address: Option<SshAddress>,
    /// Who offered it.
    pub offered_by: String,
    /// When it was offered.
    #[serde(with = "Rfc3339")]
    pub offered_at: Timestamp,
}

/// Offer of a whole host.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineOffer {
    /// SSH address for tenants, such as `gpu7.example.com` or `192.0.2.7:2222`. If absent, the known address stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_address: Option<SshAddress>,
}

/// Filter for a list of machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineListQuery {
    /// Only items in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<MachineState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
