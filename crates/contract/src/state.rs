//! The states of the control plane's records, as all programs name them.
//!
//! This module has their names and the meaning of each state by itself; `gpuaas-domain` decides which state may follow which.

use crate::names::named;
use crate::receipt::Outcome;
use crate::task::TaskType;

named! {
    /// Whether a node takes work.
    pub enum NodeService {
        /// Takes work.
        InService = "in_service",
        /// Maintenance: no new work, running tasks finish.
        Draining = "draining",
        /// Held back because something is wrong: no new work.
        Quarantined = "quarantined",
        /// Two live copies of its identity were seen: its certificates no longer count until it is enrolled again.
        Locked = "locked",
        /// Gone for good, unless the machine is enrolled again.
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
    /// What is known of the guest of an allocation.
    pub enum GuestState {
        /// It is stopped.
        Off = "off",
        /// It was started and is waited for.
        Booting = "booting",
        /// It let us in by SSH after its last start.
        Answering = "answering",
        /// It runs, and did not let us in within its time after its last start.
        NotAnswering = "not_answering",
    }
}

named! {
    /// How a link is carried.
    pub enum LinkTransport {
        /// The gRPC stream.
        Stream = "stream",
        /// HTTP long-poll.
        Poll = "poll",
    }
}

named! {
    /// Where a slot stands.
    pub enum SlotState {
        /// Clean and free.
        Available = "available",
        /// In the hands of an allocation.
        Leased = "leased",
        /// An allocation is giving it back.
        Releasing = "releasing",
        /// Something of an allocation may be left on it.
        CleanupBlocked = "cleanup_blocked",
        /// Nothing of an allocation is left on it but the content of its drive.
        NeedsWipe = "needs_wipe",
        /// Clean, and held back by an operator; the rest of the node stays in service.
        Quarantined = "quarantined",
        /// No longer a slot. Approving it again brings it back.
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
    /// Where a machine stands.
    pub enum MachineState {
        /// Clean and free.
        Available = "available",
        /// In the hands of an allocation.
        Leased = "leased",
        /// An allocation is giving it back.
        Releasing = "releasing",
        /// Something of an allocation may be left on it.
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
    /// Where a task stands.
    pub enum TaskState {
        /// Waits for its node.
        Queued = "queued",
        /// Signed and sent; the node has not said that it has it.
        Dispatched = "dispatched",
        /// In the node's journal.
        Accepted = "accepted",
        /// Running.
        Started = "started",
        /// The node's receipt says it is done.
        Succeeded = "succeeded",
        /// The node's receipt says it failed.
        Failed = "failed",
        /// Stopped by request: by receipt, or before it was ever accepted.
        Cancelled = "cancelled",
        /// The node's receipt says that it went down in the middle.
        Interrupted = "interrupted",
        /// The node's receipt says that it will not do it.
        Refused = "refused",
        /// No node accepted it in time.
        Expired = "expired",
        /// It may have run: its node was retired, enrolled again, lost its journal or fell silent before a receipt came.
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
    /// Where an allocation stands.
    pub enum AllocationState {
        /// Asked for.
        Requested = "requested",
        /// Waits for a place.
        Placing = "placing",
        /// A host is making it.
        Provisioning = "provisioning",
        /// The tenant has it.
        Active = "active",
        /// The tenant has it and stopped its guest, which keeps its place, its disks and its address.
        Stopped = "stopped",
        /// A host is cleaning up.
        Releasing = "releasing",
        /// Given back, with proof that nothing is left.
        Released = "released",
        /// Over without ever, or no longer, being of use; nothing is held.
        Failed = "failed",
        /// It is over for the tenant, but a host could not prove that nothing is left; an operator has to look.
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
    /// What a run does next; the name of a step is the name of its activity.
    pub enum AllocationStep {
        /// Find a place, lease it and order the work, in one commit.
        Place = "place",
        /// Wait for the host to have made it.
        AwaitProvision = "await_provision",
        /// The tenant has it: wait for their next word, or for the end of the lease.
        Serve = "serve",
        /// Wait for the host to have stopped, started or rebooted it.
        AwaitPower = "await_power",
        /// Order the cleanup.
        Release = "release",
        /// Wait for the host's proof.
        AwaitRelease = "await_release",
        /// Nothing more.
        Done = "done",
    }
}

named! {
    /// Where a request stands.
    pub enum EnrollmentState {
        /// An operator has to decide.
        Pending = "pending",
        /// An operator said yes; the host may fetch its certificate.
        Approved = "approved",
        /// The host has its certificate.
        Enrolled = "enrolled",
        /// An operator said no.
        Rejected = "rejected",
    }
}

named! {
    /// Where a delivery stands.
    pub enum DeliveryState {
        /// Waits for its next try.
        Pending = "pending",
        /// The address has taken it.
        Delivered = "delivered",
        /// Given up.
        Failed = "failed",
    }
}

named! {
    /// Where a request to enroll stands, as it is shown: [`EnrollmentState`], or expired.
    pub enum EnrollmentStatus {
        /// An operator has to decide.
        Pending = "pending",
        /// An operator said yes; the host may fetch its certificate.
        Approved = "approved",
        /// The host has its certificate.
        Enrolled = "enrolled",
        /// An operator said no.
        Rejected = "rejected",
        /// Nobody decided, or the host did not come back, in time.
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
        /// It can.
        Open = "open",
        /// It was used as often as it can be.
        Used = "used",
        /// Its time is over.
        Expired = "expired",
        /// An operator took it back.
        Revoked = "revoked",
    }
}

named! {
    /// Where a slice stands: the state of the slot that is worst off.
    pub enum SliceState {
        /// It is in use.
        Leased = "leased",
        /// It is being released.
        Releasing = "releasing",
        /// Nothing is left of it but the content of its drives.
        NeedsWipe = "needs_wipe",
        /// Something of it may be left on a slot.
        CleanupBlocked = "cleanup_blocked",
        /// It has no slot any more.
        Released = "released",
    }
}

named! {
    /// Where a maintenance window stands.
    pub enum MaintenanceState {
        /// It is to come.
        Announced = "announced",
        /// It has begun.
        Running = "running",
        /// Its time is over.
        Ended = "ended",
        /// It was called off.
        Cancelled = "cancelled",
    }
}

named! {
    /// Whether a product is on offer.
    pub enum SkuState {
        /// It is.
        Active = "active",
        /// It is not; what was leased keeps its price.
        Retired = "retired",
    }
}

named! {
    /// Whether a person can sign in.
    pub enum UserState {
        /// They can.
        Active = "active",
        /// They cannot.
        Deactivated = "deactivated",
        /// They are gone, with their roles and keys.
        Deleted = "deleted",
    }
}

named! {
    /// Whether a project is there.
    pub enum ProjectState {
        /// It is.
        Active = "active",
        /// It was deleted.
        Deleted = "deleted",
    }
}

named! {
    /// Whether an API key counts.
    pub enum ApiKeyState {
        /// It does.
        Active = "active",
        /// Its life is over.
        Expired = "expired",
        /// It was taken back.
        Revoked = "revoked",
    }
}

named! {
    /// Whether a role counts.
    pub enum MemberState {
        /// It does.
        Active = "active",
        /// It does from the first sign-in on.
        Invited = "invited",
        /// It was taken away.
        Removed = "removed",
    }
}

named! {
    /// Who holds a role.
    pub enum MemberKind {
        /// A person.
        User = "user",
        /// A program.
        ServiceAccount = "service_account",
        /// A person who has not signed in yet.
        Invited = "invited",
    }
}

named! {
    /// Who makes a request.
    pub enum CallerKind {
        /// A person who signed in.
        User = "user",
        /// A program, with a key of its service account.
        ServiceAccount = "service_account",
        /// The bearer of an API token.
        Token = "token",
        /// Somebody at the server itself.
        LocalAdmin = "local_admin",
    }
}

named! {
    /// What is leased.
    pub enum ProductKind {
        /// A guest on slots of one host.
        Slice = "slice",
        /// A whole host, with a user of its own on it.
        BareMetal = "bare_metal",
    }
}
