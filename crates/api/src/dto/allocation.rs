//! Allocations: what a tenant leases.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use gpuaas_contract::id::{AllocationId, ImageId, NodeId, OrgId, ProjectId, SkuId, SlotId, TaskId};
use gpuaas_contract::money::Money;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{AllocationState, AllocationStep, GuestState};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::{Gpu, Product};

/// A lease of a guest on GPU slots or of a whole machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Allocation {
    /// Id of the allocation.
    pub id: AllocationId,
    /// The organization that owns it.
    pub organization_id: OrgId,
    /// The project that owns it.
    pub project_id: ProjectId,
    /// Name, which is also the host name of the guest.
    pub name: String,
    /// Tags of the tenant.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// State of the allocation.
    pub state: Open<AllocationState>,
    /// The current step.
    pub step: Open<AllocationStep>,
    /// Id of the product.
    pub sku_id: SkuId,
    /// Name of the product when the allocation was requested.
    pub sku: String,
    /// The kind of product and its size.
    pub product: Product,
    /// The GPU as the product names it; null for slots without a GPU.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Vendor, model and PCI id of the GPU; null for slots without a GPU.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// Agreed price per hour.
    pub price_per_hour: Money,
    /// Id of the image of the guest; null for a whole host.
    #[serde(default)]
    pub image_id: Option<ImageId>,
    /// Name of the image when the allocation was requested.
    #[serde(default)]
    pub image: Option<String>,
    /// The user to sign in as.
    pub username: String,
    /// The node it is on, or was on last. Only shown to platform operators.
    #[serde(default)]
    pub node_id: Option<NodeId>,
    /// Name of the node. Only shown to platform operators.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Number of slots.
    pub slots: u32,
    /// IP address of the guest in its network, once known.
    #[serde(default)]
    pub private_ip: Option<Ipv4Addr>,
    /// SSH host name or address, once known.
    #[serde(default)]
    pub ssh_host: Option<String>,
    /// SSH port.
    #[serde(default)]
    pub ssh_port: Option<u16>,
    /// The public keys that can sign in.
    #[serde(default)]
    pub ssh_public_keys: Vec<String>,
    /// Power action that was requested and is not done yet.
    #[serde(default)]
    pub pending_power_action: Option<Open<PowerAction>>,
    /// Last known state of its guest: `booting` after a start, then whether it answers by SSH. Null for a whole host, and while the
    /// state is unknown.
    #[serde(default)]
    pub guest: Option<Open<GuestState>>,
    /// Whether its release was requested or its lease has ended.
    pub release_requested: bool,
    /// Number of hosts that were tried.
    pub attempts: u32,
    /// Stable code of the last error.
    #[serde(default)]
    pub code: Option<String>,
    /// Message that explains the code and what the tenant can do.
    #[serde(default)]
    pub reason: Option<String>,
    /// The full error message of the hosts. Only shown to platform operators.
    #[serde(default)]
    pub detail: Option<String>,
    /// The last task of the allocation.
    #[serde(default)]
    pub task: Option<TaskId>,
    /// The phase of that task while it runs.
    #[serde(default)]
    pub phase: Option<AllocationPhase>,
    /// Who requested it.
    pub requested_by: String,
    /// When it was requested.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Until when it waits for free capacity.
    #[serde(default, with = "OptionalRfc3339")]
    pub place_until: Option<Timestamp>,
    /// When it first became active.
    #[serde(default, with = "OptionalRfc3339")]
    pub active_at: Option<Timestamp>,
    /// End of the lease; null if it has no end.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, with = "OptionalRfc3339")]
    pub ended_at: Option<Timestamp>,
    /// Maintenance windows that affect it.
    #[serde(default)]
    pub maintenance: Vec<AllocationMaintenance>,
    /// Entity tag of this version, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

impl Allocation {
    /// Whether the allocation has ended: it holds nothing, and its state does not change anymore.
    pub fn is_terminal(&self) -> bool {
        self.state.known().is_some_and(AllocationState::is_terminal)
    }

    /// Whether nothing more happens without a new request. A watch with `until=settled` waits for this.
    pub fn settled(&self) -> bool {
        match self.state.known() {
            Some(state) => state.is_terminal() || state.is_held() || state == AllocationState::ReleaseBlocked,
            None => false,
        }
    }
}

/// The phase of a running task of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationPhase {
    /// The phase.
    pub phase: String,
    /// Message; may be empty.
    pub message: String,
}

/// A maintenance window that affects an allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationMaintenance {
    /// Summary that tenants read.
    pub summary: String,
    /// Start of the window.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// End of the window.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
}

/// The expected result of a request. Nothing is reserved: the same request may have another result a moment later.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationPlan {
    /// Name of the product.
    pub sku: String,
    /// Price per hour.
    pub price_per_hour: Money,
    /// Whether capacity and quotas suffice.
    pub fits: bool,
    /// Stable code of the reason, if `fits` is false.
    #[serde(default)]
    pub code: Option<String>,
    /// Reason, if `fits` is false.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whether all its slots are on one NUMA node.
    #[serde(default)]
    pub same_numa: Option<bool>,
    /// Notes about the node, such as announced maintenance.
    #[serde(default)]
    pub note: Option<String>,
    /// The node it would be on. Only shown to platform operators.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The slots it would get. Only shown to platform operators.
    #[serde(default)]
    pub slots: Option<Vec<SlotId>>,
    /// Why each node was not chosen. Only shown to platform operators.
    #[serde(default)]
    pub reasons_by_node: Option<Vec<NodeReasons>>,
}

/// Why a node was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeReasons {
    /// Id of the node.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// The reasons; at least one.
    pub reasons: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_settled_and_an_unknown_state_is_neither() {
        let mut allocation: Allocation = serde_json::from_value(serde_json::json!({
            "id": AllocationId::generate(), "organization_id": OrgId::generate(), "project_id": ProjectId::generate(),
            "name": "a", "state": "requested", "step": "place", "sku_id": SkuId::generate(), "sku": "h100",
            "product": { "kind": "slice", "slots": 1 }, "price_per_hour": { "amount": "2.50", "currency": "USD" }, "username": "ubuntu", "slots": 0,
            "release_requested": false, "attempts": 0, "requested_by": "local-admin", "created_at": "2027-03-01T08:00:00Z",
        }))
        .expect("what an older server says is enough");
        for (state, over, settled) in [
            ("requested", false, false),
            ("placing", false, false),
            ("provisioning", false, false),
            ("active", false, true),
            ("stopped", false, true),
            ("releasing", false, false),
            ("released", true, true),
            ("failed", true, true),
            ("release_blocked", false, true),
            ("something_new", false, false),
        ] {
            allocation.state = serde_json::from_value(state.into()).expect("any name");
            assert_eq!((allocation.is_terminal(), allocation.settled()), (over, settled), "{state}");
        }
    }
}
