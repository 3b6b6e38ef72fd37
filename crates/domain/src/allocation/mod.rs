//! Allocations: what a tenant leases, from the request until nothing is left of it.
//!
//! ```text
//! requested ─ placing ─ provisioning ─ active ─ releasing ─ released
//!                │            │                     │
//!                └─ failed ◄──┴────── (cleaned up) ─┴─ release_blocked
//! ```
//!
//! `docs/state-machines.md` has every transition.
//!
//! A command ([`commands`]) only records what is wanted. Everything after that is [`advance`]: one step at a time, decided on the
//! allocation's own row and what it holds, and committed together with the leases and tasks that the step creates. A driver may call it as
//! often as it likes; a step that was already taken has no effect.

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

/// How many hosts are tried before an allocation fails.
pub const MAX_ATTEMPTS: u32 = 3;
/// How many releases are tried before an operator has to intervene.
pub const MAX_RELEASES: u32 = 3;
/// Maximum time an allocation may wait for a place.
pub const MAX_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum length of a lease, and of a single extension.
pub const MAX_LEASE: Duration = Duration::from_secs(366 * 24 * 3600);
/// How soon a run checks again if nothing wakes it. Only compensates for lost wake-ups.
pub const SLOW_POLL: Duration = Duration::from_secs(30);

/// The product, image and settings at the time of the request. Later changes to the catalog do not affect them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    /// The product that was ordered.
    pub sku_id: SkuId,
    /// Name of the product at that time.
    pub sku_name: String,
    /// Kind and size of what is leased.
    pub product: Product,
    /// Required GPU model; `None` for any slot or machine.
    pub gpu_model: Option<String>,
    /// Minimum number of vCPUs of each slot.
    pub min_vcpus: u32,
    /// Minimum memory of each slot, in MiB.
    pub min_memory_mib: u64,
    /// The agreed price.
    #[serde(deserialize_with = "Money::read_stored")]
    pub price_per_hour: Money,
    /// The image for the guest's disk; `None` for bare metal.
    pub image: Option<ImageTerms>,
    /// User name to create in the guest or on the host.
    pub username: UserName,
    /// Keys of that user.
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// On bare metal, whether that user may become root.
    pub sudo: bool,
    /// How long the guest has to shut down.
    pub graceful_timeout_seconds: u32,
    /// Spread allocations over nodes instead of packing them.
    pub spread: bool,
}

/// The image at the time of the request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageTerms {
    /// The image that was ordered.
    pub image_id: ImageId,
    /// Name of the image at that time.
    pub name: String,
    /// Where hosts find the image; only the platform's own images are marked as trusted.
    #[serde(flatten)]
    pub source: ImageSource,
    /// How the GPU driver gets into the guest.
    pub driver_strategy: DriverStrategy,
}

/// A recorded request to release an allocation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReleaseRequest {
    /// Who requested it: an actor, or `system` at the end of the lease.
    pub by: String,
    /// When it was requested.
    pub at: Timestamp,
    /// Free text; may be empty.
    pub reason: String,
}

/// The most recent error.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LastError {
    /// Stable code for programs.
    pub code: String,
    /// Message for the tenant; reveals nothing about hosts and other tenants.
    pub reason: String,
    /// Message for operators: which task of which node reported what.
    pub detail: String,
    /// When the error occurred.
    pub at: Timestamp,
}

/// A tenant's lease of a slice or a machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Allocation {
    /// Unique id, which never changes.
    pub id: AllocationId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The organization that the project belongs to.
    pub organization_id: OrgId,
    /// The project that owns the allocation.
    pub project_id: ProjectId,
    /// Name for people; also the guest's host name.
    pub name: VmName,
    /// Labels that the tenant chose.
    pub tags: BTreeMap<String, String>,
    /// What was agreed at the time of the request.
    pub terms: Terms,
    /// Current state, as tenants see it.
    pub state: AllocationState,
    /// What the run does next.
    pub step: AllocationStep,
    /// The node the allocation is on, or was on last.
    pub node_id: Option<NodeId>,
    /// The slots it holds, or held last.
    pub slots: Vec<SlotId>,
    /// The most recent task of the run.
    pub task_id: Option<TaskId>,
    /// A power action that is wanted and not completed yet.
    pub pending_power_action: Option<PowerAction>,
    /// What is known about the guest; `None` if there is no guest or nothing is known.
    #[serde(default)]
    pub guest: Option<GuestState>,
    /// Set once a release is requested.
    pub release_request: Option<ReleaseRequest>,
    /// How many hosts were tried.
    pub attempts: u32,
    /// How many releases were ordered since the release was last requested.
    pub releases: u32,
    /// Nodes that failed to provision the allocation.
    pub avoid: Vec<NodeId>,
    /// The most recent error; cleared by a success.
    pub last_error: Option<LastError>,
    /// The actor who requested the allocation.
    pub requested_by: String,
    /// Ties the run to the request behind it.
    pub correlation_id: CorrelationId,
    /// When the allocation was requested.
    pub created_at: Timestamp,
    /// When to stop waiting for a place.
    pub place_until: Timestamp,
    /// When the tenant first had it; `None` if that never happened.
    pub active_at: Option<Timestamp>,
    /// End of the lease; `None` if it lasts until it is released.
    pub expires_at: Option<Timestamp>,
    /// When the run ended; `None` while it has not.
    pub ended_at: Option<Timestamp>,
    /// When the run checks again if nothing wakes it.
    pub due_at: Option<Timestamp>,
}

resource!(Allocation, Allocation);

impl Allocation {
    fn found_by(&self) -> Keys {
        Keys {
            parent: self.project_id.to_string(),
            owner: self.node_id.map(|node| node.to_string()),
            // Within a project, names are unique among the allocations that have not ended.
            name: (!self.state.is_terminal()).then(|| self.name.to_string()),
            state: self.state.as_str(),
            due_at: self.due_at,
            ..Keys::default()
        }
    }

    /// Identifies the allocation in events.
    pub(crate) fn event_ref(&self) -> AllocationRef {
        AllocationRef {
            allocation_id: self.id,
            project_id: self.project_id,
            organization_id: self.organization_id,
            name: self.name.clone(),
        }
    }

    /// What is known about the guest while a host carries out `action`.
    fn guest_during(&self, action: PowerAction) -> Option<GuestState> {
        match action {
            PowerAction::Stop => self.guest,
            PowerAction::Start | PowerAction::Reboot => Some(GuestState::Booting),
        }
    }

    /// Whether the tenant still wants it: it has not ended and no release was requested.
    pub fn is_wanted(&self) -> bool {
        self.release_request.is_none() && !self.state.is_terminal() && self.state != AllocationState::ReleaseBlocked
    }
}
