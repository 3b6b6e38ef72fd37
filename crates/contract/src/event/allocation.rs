//! Events of allocations.

use std::collections::BTreeMap;

use super::payload::payloads;
use crate::id::{AllocationId, MaintenanceId, NodeId, OrgId, ProjectId, TaskId};
use crate::money::Money;
use crate::names::{Open, named};
use crate::slice::VmName;
use crate::state::{AllocationState, AllocationStep, GuestState};
use crate::task::slice_vm_power::PowerAction;
use crate::time::{OptionalRfc3339, Rfc3339, Timestamp};

named! {
    /// What operators do to what an allocation has, or to its host.
    pub enum OperatorAction {
        /// They stop the guest.
        Stop = "stop",
        /// They start the guest.
        Start = "start",
        /// They reboot the guest.
        Reboot = "reboot",
        /// They release what the allocation has.
        Release = "release",
        /// They force the cleanup of what is left of the allocation.
        ForceCleanup = "force_cleanup",
        /// They drain its host. The allocation continues.
        Drain = "drain",
        /// They put its host back into service after a drain.
        Undrain = "undrain",
        /// They quarantine its host. The allocation continues.
        Quarantine = "quarantine",
        /// They put its host back into service after a quarantine.
        Unquarantine = "unquarantine",
        /// They retire its host, and the allocation ends.
        Retire = "retire",
        /// They replace its host, and the allocation ends.
        Replace = "replace",
    }
}

impl From<PowerAction> for OperatorAction {
    fn from(action: PowerAction) -> Self {
        match action {
            PowerAction::Stop => Self::Stop,
            PowerAction::Start => Self::Start,
            PowerAction::Reboot => Self::Reboot,
        }
    }
}

payloads! {
    /// Which allocation.
    pub struct AllocationRef {
        /// The allocation.
        tenant allocation_id: AllocationId,
        /// Its project.
        tenant project_id: ProjectId,
        /// Its organization.
        tenant organization_id: OrgId,
        /// Its name.
        tenant name: VmName,
    }

    /// A new allocation.
    pub struct AllocationRequested {
        /// Which allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Name of the product.
        tenant sku: String,
        /// The agreed price.
        tenant price_per_hour: Money,
        /// Its state.
        tenant to: Open<AllocationState>,
    }

    /// A command about an allocation. It changes what is wanted; the run does the rest.
    pub struct AllocationCommand {
        /// Which allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Its state.
        tenant to: Open<AllocationState>,
    }

    /// A request to release an allocation.
    pub struct AllocationReleaseRequested {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// Why, in the words of the caller; may be empty.
        tenant reason: String,
    }

    /// A request to stop, start or reboot.
    pub struct AllocationPowerRequested {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// What is wanted.
        tenant action: Open<PowerAction>,
    }

    /// Another end of the lease.
    pub struct AllocationExtended {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// The new end; null if the lease has none.
        #[serde(default, with = "OptionalRfc3339")]
        tenant expires_at: Option<Timestamp>,
    }

    /// Another try of what failed.
    pub struct AllocationRetried {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// If its release was blocked, how often the release is tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant releases: Option<u32>,
    }

    /// Another name or other tags.
    pub struct AllocationDescribed {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// Its tags.
        tenant tags: BTreeMap<String, String>,
    }

    /// Something that operators do.
    pub struct AllocationOperatorActed {
        /// Which allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// What they do.
        tenant action: Open<OperatorAction>,
        /// The task that does it, if there is one.
        operator task_id: Option<TaskId>,
    }

    /// A step of an allocation's run.
    pub struct AllocationProgress {
        /// Which allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Its state before.
        tenant from: Open<AllocationState>,
        /// Its state now.
        tenant to: Open<AllocationState>,
        /// What its run does next.
        tenant step: Open<AllocationStep>,
        /// Why: what went wrong last, or why it is released.
        tenant reason: Option<String>,
    }

    /// A place was found and the host is told to prepare it.
    pub struct AllocationProvisioning {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The node.
        operator node_id: NodeId,
        /// The task that prepares it.
        operator task_id: TaskId,
        /// How many hosts were tried, with this one.
        tenant attempt: u32,
    }

    /// There is no place yet.
    pub struct AllocationPlacing {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Until when it waits for a place.
        #[serde(default, with = "OptionalRfc3339", skip_serializing_if = "Option::is_none")]
        tenant until: Option<Timestamp>,
        /// After a host failed, the code of the failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant after: Option<String>,
    }

    /// An allocation that can be used.
    pub struct AllocationActive {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The node it is on.
        operator node_id: Option<NodeId>,
        /// The end of the lease; null if it has none.
        #[serde(default, with = "OptionalRfc3339")]
        tenant expires_at: Option<Timestamp>,
    }

    /// An order to the host to stop, start or reboot.
    pub struct AllocationPowerOrdered {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The task.
        operator task_id: TaskId,
        /// What is done.
        tenant action: Open<PowerAction>,
    }

    /// A guest that was stopped, started or rebooted.
    pub struct AllocationPowerDone {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The task.
        operator task_id: TaskId,
        /// What is known of the guest now: after a start, whether it answers by SSH.
        tenant guest: Option<Open<GuestState>>,
    }

    /// Something that did not work, and why.
    pub struct AllocationProblem {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Stable code.
        tenant code: String,
    }

    /// An order to the host to release an allocation.
    pub struct AllocationReleaseOrdered {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The task.
        operator task_id: TaskId,
        /// Which try it is.
        tenant r#try: u32,
    }

    /// A release that is tried again later.
    pub struct AllocationReleaseDelayed {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Stable code.
        tenant code: String,
        /// When it is tried again.
        #[serde(with = "Rfc3339")]
        tenant again_at: Timestamp,
    }

    /// The end of an allocation.
    pub struct AllocationEnded {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Stable code of what went wrong; null if nothing did.
        tenant code: Option<String>,
    }

    /// Work on the host of an allocation.
    pub struct AllocationMaintenance {
        /// Which allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// The maintenance.
        tenant maintenance_id: MaintenanceId,
        /// What is done.
        tenant summary: String,
        /// From.
        #[serde(with = "Rfc3339")]
        tenant starts_at: Timestamp,
        /// To.
        #[serde(with = "Rfc3339")]
        tenant ends_at: Timestamp,
    }
}
