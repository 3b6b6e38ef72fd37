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
    /// Action of an operator on an allocation or its host.
    pub enum OperatorAction {
        /// The guest is stopped.
        Stop = "stop",
        /// The guest is started.
        Start = "start",
        /// The guest is rebooted.
        Reboot = "reboot",
        /// The slots or the machine of the allocation are released.
        Release = "release",
        /// The cleanup of what is left of the allocation is forced.
        ForceCleanup = "force_cleanup",
        /// Its host is drained. The allocation continues.
        Drain = "drain",
        /// Its host is back in service after a drain.
        Undrain = "undrain",
        /// Its host is quarantined. The allocation continues.
        Quarantine = "quarantine",
        /// Its host is back in service after a quarantine.
        Unquarantine = "unquarantine",
        /// Its host is retired, and the allocation ends.
        Retire = "retire",
        /// Its host is replaced, and the allocation ends.
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
    /// Ids and name of an allocation.
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
        /// The allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Name of the product.
        tenant sku: String,
        /// Agreed price per hour.
        tenant price_per_hour: Money,
        /// Its state.
        tenant to: Open<AllocationState>,
    }

    /// A request that changes the wanted state of an allocation. The run of the allocation carries it out.
    pub struct AllocationCommand {
        /// The allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Its state.
        tenant to: Open<AllocationState>,
    }

    /// A request to release an allocation.
    pub struct AllocationReleaseRequested {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// Reason given by the caller; may be empty.
        tenant reason: String,
    }

    /// A request to stop, start or reboot.
    pub struct AllocationPowerRequested {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// The requested power action.
        tenant action: Open<PowerAction>,
    }

    /// A changed end of a lease.
    pub struct AllocationExtended {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// The new end; null if the lease has none.
        #[serde(default, with = "OptionalRfc3339")]
        tenant expires_at: Option<Timestamp>,
    }

    /// A retry of a failed allocation or a blocked release.
    pub struct AllocationRetried {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// Number of attempts of the release, if it was blocked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant releases: Option<u32>,
    }

    /// A changed name or changed tags of an allocation.
    pub struct AllocationDescribed {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// Its tags.
        tenant tags: BTreeMap<String, String>,
    }

    /// An action of an operator.
    pub struct AllocationOperatorActed {
        /// The allocation.
        #[serde(flatten)]
        flat command: AllocationCommand,
        /// The action.
        tenant action: Open<OperatorAction>,
        /// The task that carries it out, if there is one.
        operator task_id: Option<TaskId>,
    }

    /// A step of the run of an allocation.
    pub struct AllocationProgress {
        /// The allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// Its state before.
        tenant from: Open<AllocationState>,
        /// Its state now.
        tenant to: Open<AllocationState>,
        /// Next step of its run.
        tenant step: Open<AllocationStep>,
        /// Reason: the last error, or why it is released.
        tenant reason: Option<String>,
    }

    /// Capacity was found, and the host is ordered to prepare the allocation.
    pub struct AllocationProvisioning {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The node.
        operator node_id: NodeId,
        /// The task that prepares it.
        operator task_id: TaskId,
        /// Number of hosts that were tried, including this one.
        tenant attempt: u32,
    }

    /// No capacity is free yet.
    pub struct AllocationPlacing {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Until when it waits for free capacity.
        #[serde(default, with = "OptionalRfc3339", skip_serializing_if = "Option::is_none")]
        tenant until: Option<Timestamp>,
        /// Stable code of the error, if a host failed before.
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
        /// The power action.
        tenant action: Open<PowerAction>,
    }

    /// A guest that was stopped, started or rebooted.
    pub struct AllocationPowerDone {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// The task.
        operator task_id: TaskId,
        /// State of the guest: after a start, whether it answers by SSH.
        tenant guest: Option<Open<GuestState>>,
    }

    /// An error of an allocation.
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
        /// Number of the attempt.
        tenant r#try: u32,
    }

    /// A release that is attempted again later.
    pub struct AllocationReleaseDelayed {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Stable code.
        tenant code: String,
        /// When it is attempted again.
        #[serde(with = "Rfc3339")]
        tenant again_at: Timestamp,
    }

    /// The end of an allocation.
    pub struct AllocationEnded {
        /// The step.
        #[serde(flatten)]
        flat progress: AllocationProgress,
        /// Stable code of the error; null if there was none.
        tenant code: Option<String>,
    }

    /// Maintenance of the host of an allocation.
    pub struct AllocationMaintenance {
        /// The allocation.
        #[serde(flatten)]
        flat allocation: AllocationRef,
        /// The maintenance window.
        tenant maintenance_id: MaintenanceId,
        /// Summary that tenants read.
        tenant summary: String,
        /// Start of the window.
        #[serde(with = "Rfc3339")]
        tenant starts_at: Timestamp,
        /// End of the window.
        #[serde(with = "Rfc3339")]
        tenant ends_at: Timestamp,
    }
}
