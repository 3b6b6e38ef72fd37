//! The states of the control plane's records, as all programs name them.
//!
//! This module has their names and the meaning of each state by itself; `gpuaas-domain` decides which state may follow which.

use crate::names::named;
use crate::receipt::Outcome;
use crate::task::TaskType;

named! {
    /// Whether a node accepts work.
    pub enum NodeService {
        /// Accepts work.
        InService = "in_service",
        /// Accepts no new work; running tasks finish.
        Draining = "draining",
        /// Accepts no new work, because something is wrong with it.
        Quarantined = "quarantined",
        /// Two live copies of its identity were seen. Its certificates are not accepted until it is enrolled again.
        Locked = "locked",
        /// Permanently out of service, unless the machine is enrolled again.
        Retired = "retired",
    }
}

impl NodeService {
    /// Whether new tasks may be created for the node and queued ones dispatched to it.
    pub const fn takes_work(self) -> bool {
        matches!(self, Self::InService)
    }

    /// Whether a task of this kind may be created for the node and dispatched to it. A node that is draining or quarantined still serves
    /// the slices and tenants on it, because they must be able to leave.
    pub const fn takes(self, kind: TaskType) -> bool {
        if kind.facts().taken_in_maintenance { self.may_connect() } else { self.takes_work() }
    }

    /// Whether the node's certificate may open a link at all.
    pub const fn may_connect(self) -> bool {
        matches!(self, Self::InService | Self::Draining | Self::Quarantined)
    }
}

named! {
    /// Last known state of the guest of an allocation.
    pub enum GuestState {
        /// Stopped.
        Off = "off",
        /// Started; its first answer is awaited.
        Booting = "booting",
        /// Accepted an SSH sign-in after its last start.
        Answering = "answering",
        /// Runs, but did not accept an SSH sign-in in time after its last start.
        NotAnswering = "not_answering",
    }
}

named! {
    /// Transport of a link.
    pub enum LinkTransport {
        /// gRPC stream.
        Stream = "stream",
        /// HTTP long-poll.
        Poll = "poll",
    }
}

named! {
    /// State of a slot.
    pub enum SlotState {
        /// Clean and free.
        Available = "available",
        /// Leased to an allocation.
        Leased = "leased",
        /// Being released by its allocation.
        Releasing = "releasing",
        /// Not proven clean: something of an allocation may be left on it.
        CleanupBlocked = "cleanup_blocked",
        /// Clean except for the content of its drive, which has to be wiped.
        NeedsWipe = "needs_wipe",
        /// Clean, but quarantined by an operator; the rest of the node stays in service.
        Quarantined = "quarantined",
        /// No longer a slot, until it is approved again.
        Withdrawn = "withdrawn",
    }
}

impl SlotState {
    /// Whether the slot holds nothing of any allocation.
    pub const fn is_clean(self) -> bool {
        match self {
            Self::Available | Self::Quarantined | Self::Withdrawn => true,
            Self::Leased | Self::Releasing | Self::CleanupBlocked | Self::NeedsWipe => false,
        }
    }
}

named! {
    /// State of a machine.
    pub enum MachineState {
        /// Clean and free.
        Available = "available",
        /// Leased to an allocation.
        Leased = "leased",
        /// Being released by its allocation.
        Releasing = "releasing",
        /// Not proven clean: something of an allocation may be left on it.
        CleanupBlocked = "cleanup_blocked",
        /// No longer offered.
        Withdrawn = "withdrawn",
    }
}

impl MachineState {
    /// Whether the machine holds nothing of any allocation.
    pub const fn is_clean(self) -> bool {
        match self {
            Self::Available | Self::Withdrawn => true,
            Self::Leased | Self::Releasing | Self::CleanupBlocked => false,
        }
    }
}

named! {
    /// State of a task.
    pub enum TaskState {
        /// Waiting for its node.
        Queued = "queued",
        /// Signed and sent; the node has not confirmed it yet.
        Dispatched = "dispatched",
        /// Recorded in the node's journal.
        Accepted = "accepted",
        /// Running.
        Started = "started",
        /// Succeeded, according to the node's receipt.
        Succeeded = "succeeded",
        /// Failed, according to the node's receipt.
        Failed = "failed",
        /// Canceled by request: according to the node's receipt, or before a node accepted it.
        Cancelled = "cancelled",
        /// Interrupted: the agent or the host went down while it ran, according to the node's receipt.
        Interrupted = "interrupted",
        /// Refused, according to the node's receipt.
        Refused = "refused",
        /// No node accepted it in time.
        Expired = "expired",
        /// May have run: the node was retired, enrolled again, lost its journal or went silent before it sent a receipt.
        Lost = "lost",
    }
}

impl TaskState {
    /// Whether the task has ended; only a late receipt can still change it.
    pub const fn ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Dispatched | Self::Accepted | Self::Started)
    }

    /// Whether the node has confirmed that it has the task.
    pub const fn in_hand(self) -> bool {
        matches!(self, Self::Accepted | Self::Started)
    }
}

impl From<Outcome> for TaskState {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Succeeded,
            Outcome::Failed => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Interrupted => Self::Interrupted,
            Outcome::Refused => Self::Refused,
        }
    }
}

named! {
    /// State of an allocation.
    pub enum AllocationState {
        /// Requested; its run has not started.
        Requested = "requested",
        /// Waiting for free capacity.
        Placing = "placing",
        /// A host is preparing it.
        Provisioning = "provisioning",
        /// The tenant can use it.
        Active = "active",
        /// Its guest is stopped, and keeps its slots, disks and address.
        Stopped = "stopped",
        /// A host is cleaning up.
        Releasing = "releasing",
        /// Released, with proof that nothing is left on the host.
        Released = "released",
        /// Ended because of an error, before or after it was active. It holds nothing.
        Failed = "failed",
        /// Ended for the tenant, but the host could not prove that nothing is left. An operator has to act.
        ReleaseBlocked = "release_blocked",
    }
}

impl AllocationState {
    /// Whether the allocation holds nothing and does not advance any further.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Released | Self::Failed)
    }

    /// Whether the tenant has the use of it.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Active | Self::Stopped)
    }
}

named! {
    /// Next step of the run of an allocation. The name of a step is the name of its activity.
    pub enum AllocationStep {
        /// Find free capacity, lease it and order the work, in one commit.
        Place = "place",
        /// Wait until the host has prepared it.
        AwaitProvision = "await_provision",
        /// The tenant can use it: wait for their next request, or for the end of the lease.
        Serve = "serve",
        /// Wait until the host has stopped, started or rebooted the guest.
        AwaitPower = "await_power",
        /// Order the cleanup.
        Release = "release",
        /// Wait for the host's cleanup proof.
        AwaitRelease = "await_release",
        /// Nothing is left to do.
        Done = "done",
    }
}

named! {
    /// State of an enrollment request.
    pub enum EnrollmentState {
        /// Waiting for the decision of an operator.
        Pending = "pending",
        /// Approved by an operator; the host can fetch its certificate.
        Approved = "approved",
        /// The host has its certificate.
        Enrolled = "enrolled",
        /// Rejected by an operator.
        Rejected = "rejected",
    }
}

named! {
    /// State of a delivery.
    pub enum DeliveryState {
        /// Waiting for its next attempt.
        Pending = "pending",
        /// Accepted by the receiver.
        Delivered = "delivered",
        /// Not delivered; there are no further attempts.
        Failed = "failed",
    }
}

named! {
    /// State of an enrollment request, as it is shown: [`EnrollmentState`], or expired.
    pub enum EnrollmentStatus {
        /// Waiting for the decision of an operator.
        Pending = "pending",
        /// Approved by an operator; the host can fetch its certificate.
        Approved = "approved",
        /// The host has its certificate.
        Enrolled = "enrolled",
        /// Rejected by an operator.
        Rejected = "rejected",
        /// No operator decided in time, or the host did not fetch its certificate in time.
        Expired = "expired",
    }
}

impl From<EnrollmentState> for EnrollmentStatus {
    fn from(state: EnrollmentState) -> Self {
        match state {
            EnrollmentState::Pending => Self::Pending,
            EnrollmentState::Approved => Self::Approved,
            EnrollmentState::Enrolled => Self::Enrolled,
            EnrollmentState::Rejected => Self::Rejected,
        }
    }
}

named! {
    /// Whether a join token can be used.
    pub enum JoinTokenState {
        /// It can be used.
        Open = "open",
        /// It has enrolled as many hosts as it was created for.
        Used = "used",
        /// It has expired.
        Expired = "expired",
        /// It was revoked by an operator.
        Revoked = "revoked",
    }
}

named! {
    /// State of a slice: the worst state among its slots.
    pub enum SliceState {
        /// In use.
        Leased = "leased",
        /// Being released.
        Releasing = "releasing",
        /// Nothing of it is left but the content of its drives, which have to be wiped.
        NeedsWipe = "needs_wipe",
        /// Not proven clean: something of it may be left on a slot.
        CleanupBlocked = "cleanup_blocked",
        /// It no longer has slots.
        Released = "released",
    }
}

named! {
    /// State of a maintenance window.
    pub enum MaintenanceState {
        /// It has not started yet.
        Announced = "announced",
        /// It has started.
        Running = "running",
        /// It has ended.
        Ended = "ended",
        /// It was canceled.
        Cancelled = "cancelled",
    }
}

named! {
    /// Whether a product is on offer.
    pub enum SkuState {
        /// It is on offer.
        Active = "active",
        /// It is no longer on offer. Existing allocations keep their price.
        Retired = "retired",
    }
}

named! {
    /// Whether a user can sign in.
    pub enum UserState {
        /// The user can sign in.
        Active = "active",
        /// The user cannot sign in.
        Deactivated = "deactivated",
        /// The user was deleted, with their roles and keys.
        Deleted = "deleted",
    }
}

named! {
    /// State of a project.
    pub enum ProjectState {
        /// It exists.
        Active = "active",
        /// It was deleted.
        Deleted = "deleted",
    }
}

named! {
    /// Whether an API key is valid.
    pub enum ApiKeyState {
        /// It is valid.
        Active = "active",
        /// It has expired.
        Expired = "expired",
        /// It was revoked.
        Revoked = "revoked",
    }
}

named! {
    /// Whether a membership is valid.
    pub enum MemberState {
        /// It is valid.
        Active = "active",
        /// It becomes valid with the first sign-in.
        Invited = "invited",
        /// The member was removed.
        Removed = "removed",
    }
}

named! {
    /// Kind of member.
    pub enum MemberKind {
        /// A person.
        User = "user",
        /// A service account.
        ServiceAccount = "service_account",
        /// A person who has not signed in yet.
        Invited = "invited",
    }
}

named! {
    /// Kind of caller.
    pub enum CallerKind {
        /// A person who signed in.
        User = "user",
        /// A service account, with one of its API keys.
        ServiceAccount = "service_account",
        /// The bearer of an API token.
        Token = "token",
        /// A caller on the local socket of the server.
        LocalAdmin = "local_admin",
    }
}

named! {
    /// Kind of product.
    pub enum ProductKind {
        /// A guest on slots of one host.
        Slice = "slice",
        /// A whole host, with a user account for the tenant.
        BareMetal = "bare_metal",
    }
}
