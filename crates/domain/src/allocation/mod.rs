//! Allocations: what a tenant leases, from the request to the last trace.
//!
//! ```text
//! requested ─ placing ─ provisioning ─ active ─ releasing ─ released
//!                │            │                     │
//!                └─ failed ◄──┴────── (cleaned up) ─┴─ release_blocked
//! ```
//!
//! `docs/state-machines.md` has every transition.
//!
//! A tenant's word ([`commands`]) only writes down what is wanted. Everything that happens after it is [`advance`]: one step at a time,
//! decided on the allocation's own row and what it holds, and committed together with the leases and tasks it makes. Whoever drives a
//! run may call it as often as they like; a step that was done before changes nothing.

mod advance;
pub mod commands;
mod operators;
mod tenant_messages;

use std::collections::BTreeMap;
use std::time::Duration;

use gpuaas_contract::event::AllocationRef;
use gpuaas_contract::guest::{DriverStrategy, ImageSource};
use gpuaas_contract::id::{AllocationId, CorrelationId, ImageId, NodeId, OrgId, ProjectId, SkuId, SlotId, TaskId};
use gpuaas_contract::money::Money;
use gpuaas_contract::slice::{SshPublicKey, UserName, VmName};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::{AllocationState, AllocationStep, GuestState};

pub use advance::{Advance, Chosen, Next, Signers, StepInputs, advance};
pub use operators::{operators_act, operators_power};

use crate::catalog::Product;
use crate::resource::{Keys, resource};

/// How often another host is tried before an allocation fails.
pub const MAX_ATTEMPTS: u32 = 3;
/// How often a release is tried before an operator has to look.
pub const MAX_RELEASES: u32 = 3;
/// Longest time an allocation may wait for a place.
pub const MAX_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest lease, and longest extension at once.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 24 * 3600);
/// How soon a run looks again if nothing wakes it. Only the answer to a lost wake-up.
pub const SLOW_POLL: Duration = Duration::from_secs(30);

/// The product, image and settings as they were when the allocation was asked for: what changes later in the catalog changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    /// The product.
    pub sku_id: SkuId,
    /// Its name then.
    pub sku_name: String,
    /// What is leased.
    pub product: Product,
    /// The GPU.
    pub gpu_model: Option<String>,
    /// vCPUs of each slot at least.
    pub min_vcpus: u32,
    /// Memory of each slot at least.
    pub min_memory_mib: u64,
    /// The agreed price.
    #[serde(deserialize_with = "Money::read_stored")]
    pub price_per_hour: Money,
    /// What the guest is made from; none for bare metal.
    pub image: Option<ImageTerms>,
    /// The user who is made.
    pub username: UserName,
    /// Their keys.
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// On bare metal, whether they may become root.
    pub sudo: bool,
    /// How long the guest may take to shut down.
    pub graceful_timeout_seconds: u32,
    /// Spread over nodes instead of packing.
    pub spread: bool,
}

/// The image as it was then.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageTerms {
    /// The image.
    pub image_id: ImageId,
    /// Its name then.
    pub name: String,
    /// Where hosts find it; only the platform's own images are vouched for.
    #[serde(flatten)]
    pub source: ImageSource,
    /// How the GPU's driver gets into it.
    pub driver_strategy: DriverStrategy,
}

/// Why an allocation is to be given back.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReleaseRequest {
    /// Who wants it: an actor, or `system` at the end of the lease.
    pub by: String,
    /// Since when.
    pub at: Timestamp,
    /// In words; may be empty.
    pub reason: String,
}

/// What went wrong last.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LastError {
    /// Stable code.
    pub code: String,
    /// For the tenant: says nothing about hosts and other tenants.
    pub reason: String,
    /// For operators: which task of which node reported what.
    pub detail: String,
    /// When.
    pub at: Timestamp,
}

/// What a tenant leases.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Allocation {
    /// Its id, the same for life.
    pub id: AllocationId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Whose it is.
    pub organization_id: OrgId,
    /// The project within.
    pub project_id: ProjectId,
    /// What people call it; also the guest's own name.
    pub name: VmName,
    /// More words of the tenant.
    pub tags: BTreeMap<String, String>,
    /// What was agreed.
    pub terms: Terms,
    /// Where it stands.
    pub state: AllocationState,
    /// What its run does next.
    pub step: AllocationStep,
    /// The node it is on, or was on last.
    pub node_id: Option<NodeId>,
    /// The slots it has, or had last.
    pub slots: Vec<SlotId>,
    /// The last task of its run.
    pub task_id: Option<TaskId>,
    /// What its tenant wants of its power and was not ordered yet.
    pub pending_power_action: Option<PowerAction>,
    /// What is known of its guest, if it has one.
    #[serde(default)]
    pub guest: Option<GuestState>,
    /// Why it is to be given back, once it is.
    pub release_request: Option<ReleaseRequest>,
    /// How many hosts were tried.
    pub attempts: u32,
    /// How many releases were ordered since somebody last asked for one.
    pub releases: u32,
    /// Nodes that could not make it.
    pub avoid: Vec<NodeId>,
    /// What went wrong last.
    pub last_error: Option<LastError>,
    /// Who asked for it.
    pub requested_by: String,
    /// Follows the request.
    pub correlation_id: CorrelationId,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// Until when it waits for a place.
    pub place_until: Timestamp,
    /// When the tenant first had it.
    pub active_at: Option<Timestamp>,
    /// The end of the lease; none goes on until it is released.
    pub expires_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// When its run looks again if nothing wakes it.
    pub due_at: Option<Timestamp>,
}

resource!(Allocation, Allocation);

impl Allocation {
    fn found_by(&self) -> Keys {
        Keys {
            parent: self.project_id.to_string(),
            owner: self.node_id.map(|node| node.to_string()),
            // Of those that are not over, one in a project has a name.
            name: (!self.state.is_terminal()).then(|| self.name.to_string()),
            state: self.state.as_str(),
            due_at: self.due_at,
            ..Keys::default()
        }
    }

    /// Which allocation it is, for events.
    pub(crate) fn event_ref(&self) -> AllocationRef {
        AllocationRef {
            allocation_id: self.id,
            project_id: self.project_id,
            organization_id: self.organization_id,
            name: self.name.clone(),
        }
    }

    /// What is known of its guest while a host does this to it.
    fn guest_during(&self, action: PowerAction) -> Option<GuestState> {
        match action {
            PowerAction::Stop => self.guest,
            PowerAction::Start | PowerAction::Reboot => Some(GuestState::Booting),
        }
    }

    /// Whether its tenant is still to get something out of it: it is not over and nobody wants it back.
    pub fn is_wanted(&self) -> bool {
        self.release_request.is_none() && !self.state.is_terminal() && self.state != AllocationState::ReleaseBlocked
    }
}
