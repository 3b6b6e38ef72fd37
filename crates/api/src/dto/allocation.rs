//! Allocations: what a tenant leases.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use gpuaas_contract::id::{AllocationId, ImageId, NodeId, OrgId, ProjectId, SkuId, SlotId, TaskId};
use gpuaas_contract::money::Money;
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{AllocationState, AllocationStep, GuestState};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Product;

/// What a tenant leases, from the request to the last trace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Allocation {
    /// Its id, the same for life.
    pub id: AllocationId,
    /// Whose it is.
    pub organization_id: OrgId,
    /// The project within.
    pub project_id: ProjectId,
    /// What people call it; also the guest's own name.
    pub name: String,
    /// More words of the tenant.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Where it stands.
    pub state: Open<AllocationState>,
    /// What happens next.
    pub step: Open<AllocationStep>,
    /// The product's id.
    pub sku_id: SkuId,
    /// The product's name when this was asked for.
    pub sku: String,
    /// What is leased.
    pub product: Product,
    /// The GPU; null for slots without one.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// The agreed price.
    pub price_per_hour: Money,
    /// What the guest is made from; null for a whole host.
    #[serde(default)]
    pub image_id: Option<ImageId>,
    /// That image's name when this was asked for.
    #[serde(default)]
    pub image: Option<String>,
    /// The user to sign in as.
    pub username: String,
    /// The node it is on, or was on last. Only shown to those who run the platform.
    #[serde(default)]
    pub node_id: Option<NodeId>,
    /// That node's name. Only shown to those who run the platform.
    #[serde(default)]
    pub node_name: Option<String>,
    /// How many slots it has.
    pub slots: u32,
    /// The guest's address in its own network, once it is known.
    #[serde(default)]
    pub private_ip: Option<Ipv4Addr>,
    /// Where to sign in, once it is known.
    #[serde(default)]
    pub ssh_host: Option<String>,
    /// The port of that.
    #[serde(default)]
    pub ssh_port: Option<u16>,
    /// The public keys that can sign in.
    #[serde(default)]
    pub ssh_public_keys: Vec<String>,
    /// What its tenant wants of its power and is not done yet.
    #[serde(default)]
    pub pending_power_action: Option<Open<PowerAction>>,
    /// What is known of its guest: `booting` while it is waited for after a start, then whether it answers by SSH. Null for a whole
    /// host, and as long as nothing is known.
    #[serde(default)]
    pub guest: Option<Open<GuestState>>,
    /// Whether somebody wants it back, or its lease is over.
    pub release_requested: bool,
    /// How many hosts were tried.
    pub attempts: u32,
    /// What went wrong last, as a stable code.
    #[serde(default)]
    pub code: Option<String>,
    /// The same in words, with what the tenant can do about it.
    #[serde(default)]
    pub reason: Option<String>,
    /// The same with everything the hosts said. Only shown to those who run the platform.
    #[serde(default)]
    pub detail: Option<String>,
    /// The last task that was ordered for it.
    #[serde(default)]
    pub task: Option<TaskId>,
    /// The phase that task is in, while it runs.
    #[serde(default)]
    pub phase: Option<AllocationPhase>,
    /// Who asked for it.
    pub requested_by: String,
    /// When it was asked for.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// Until when it waits for a place.
    #[serde(default, with = "OptionalRfc3339")]
    pub place_until: Option<Timestamp>,
    /// When the tenant first had it.
    #[serde(default, with = "OptionalRfc3339")]
    pub active_at: Option<Timestamp>,
    /// The end of the lease; null goes on until it is released.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// When it was over.
    #[serde(default, with = "OptionalRfc3339")]
    pub ended_at: Option<Timestamp>,
    /// Announced maintenance that disturbs it.
    #[serde(default)]
    pub maintenance: Vec<AllocationMaintenance>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

impl Allocation {
    /// Whether nothing is held and nothing more happens by itself.
    pub fn is_terminal(&self) -> bool {
        self.state.known().is_some_and(AllocationState::is_terminal)
    }

    /// Whether nothing happens until somebody says something: what a watch with `until=settled` waits for.
    pub fn settled(&self) -> bool {
        match self.state.known() {
            Some(state) => state.is_terminal() || state.is_held() || state == AllocationState::ReleaseBlocked,
            None => false,
        }
    }
}

/// What the host of an allocation is doing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationPhase {
    /// The phase.
    pub phase: String,
    /// One line for people; may be empty.
    pub message: String,
}

/// Announced work that disturbs an allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationMaintenance {
    /// Why, in words.
    pub summary: String,
    /// From.
    #[serde(with = "Rfc3339")]
    pub starts_at: Timestamp,
    /// To.
    #[serde(with = "Rfc3339")]
    pub ends_at: Timestamp,
}

/// What would come of a request now. Nothing is held: the same request may end differently a moment later.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct AllocationPlan {
    /// The product's name.
    pub sku: String,
    /// Its price.
    pub price_per_hour: Money,
    /// Whether there is a place for it, and the quotas leave room.
    pub fits: bool,
    /// Stable code of why not.
    #[serde(default)]
    pub code: Option<String>,
    /// Why not, in words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whether all its slots are near the same memory.
    #[serde(default)]
    pub same_numa: Option<bool>,
    /// What should be known about the place, such as announced maintenance.
    #[serde(default)]
    pub note: Option<String>,
    /// The node it would be on. Only shown to those who run the platform.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The slots it would get. Only shown to those who run the platform.
    #[serde(default)]
    pub slots: Option<Vec<SlotId>>,
    /// Why each node was not taken. Only shown to those who run the platform.
    #[serde(default)]
    pub reasons_by_node: Option<Vec<NodeReasons>>,
}

/// Why a node was not taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct NodeReasons {
    /// The node.
    pub node_id: NodeId,
    /// Its name.
    pub node_name: String,
    /// At least one reason, in words.
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
