//! Reasons why a node does not fit.

use std::fmt;
use std::sync::Arc;

use gpuaas_contract::task::TaskType;

use super::candidate::SlotView;
use crate::slot::SlotState;

/// The kind of a [`Reason`], for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonKind {
    /// See [`Reason::NotPinned`].
    NotPinned,
    /// See [`Reason::Avoided`].
    Avoided,
    /// See [`Reason::Offline`].
    Offline,
    /// See [`Reason::Draining`].
    Draining,
    /// See [`Reason::Quarantined`].
    Quarantined,
    /// See [`Reason::Locked`].
    Locked,
    /// See [`Reason::Retired`].
    Retired,
    /// See [`Reason::HostPolicyDenies`].
    HostPolicyDenies,
    /// See [`Reason::MachineNotOffered`].
    MachineNotOffered,
    /// See [`Reason::MachineLeased`].
    MachineLeased,
    /// See [`Reason::MachineDirty`].
    MachineDirty,
    /// See [`Reason::NoSlots`].
    NoSlots,
    /// See [`Reason::WrongModel`].
    WrongModel,
    /// See [`Reason::WrongGpuCount`].
    WrongGpuCount,
    /// See [`Reason::TooFewFree`].
    TooFewFree,
    /// See [`Reason::TooFewVcpus`].
    TooFewVcpus,
    /// See [`Reason::TooLittleMemory`].
    TooLittleMemory,
}

impl ReasonKind {
    /// All kinds, in the order in which reasons are listed.
    pub const ALL: [Self; 17] = [
        Self::NotPinned,
        Self::Avoided,
        Self::Offline,
        Self::Draining,
        Self::Quarantined,
        Self::Locked,
        Self::Retired,
        Self::HostPolicyDenies,
        Self::MachineNotOffered,
        Self::MachineLeased,
        Self::MachineDirty,
        Self::NoSlots,
        Self::WrongModel,
        Self::WrongGpuCount,
        Self::TooFewFree,
        Self::TooFewVcpus,
        Self::TooLittleMemory,
    ];

    /// Stable code for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotPinned => "not_pinned",
            Self::Avoided => "avoided",
            Self::Offline => "offline",
            Self::Draining => "draining",
            Self::Quarantined => "quarantined",
            Self::Locked => "locked",
            Self::Retired => "retired",
            Self::HostPolicyDenies => "host_policy_denies",
            Self::MachineNotOffered => "machine_not_offered",
            Self::MachineLeased => "machine_leased",
            Self::MachineDirty => "machine_dirty",
            Self::NoSlots => "no_slots",
            Self::WrongModel => "wrong_model",
            Self::WrongGpuCount => "wrong_gpu_count",
            Self::TooFewFree => "too_few_free",
            Self::TooFewVcpus => "too_few_vcpus",
            Self::TooLittleMemory => "too_little_memory",
        }
    }
}

/// Why a node does not fit, with what an operator needs to know to change that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An operator pinned the request to other nodes.
    NotPinned,
    /// The allocation failed on this node before.
    Avoided,
    /// The node has no link.
    Offline,
    /// The node is in maintenance.
    Draining,
    /// The node is quarantined by an operator.
    Quarantined,
    /// The node is locked, because two copies of its identity were seen.
    Locked,
    /// The node is retired.
    Retired,
    /// The host policy does not allow tasks that are needed.
    HostPolicyDenies {
        /// The tasks that it denies.
        tasks: Vec<TaskType>,
    },
    /// The machine is not offered as a whole.
    MachineNotOffered,
    /// An allocation has the whole machine.
    MachineLeased,
    /// Something of an allocation may be left on the machine.
    MachineDirty,
    /// None of the node's devices are approved as slots.
    NoSlots,
    /// The node has other GPUs.
    WrongModel {
        /// The models it has; empty if it has none.
        has: Vec<Arc<str>>,
    },
    /// The node has the right GPUs, but not in this number.
    WrongGpuCount {
        /// How many of these GPUs it has.
        has: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// Not enough of its slots are free.
    TooFewFree {
        /// How many are free, among those that would do.
        free: usize,
        /// How many are wanted; for a whole machine, all its slots.
        wanted: usize,
        /// Why the other slots of this model are not free.
        others: NotFree,
    },
    /// Too few of its slots have enough vCPUs.
    TooFewVcpus {
        /// The largest number of vCPUs of these slots.
        most: u32,
        /// How many vCPUs are wanted.
        wanted: u32,
    },
    /// Too few of its slots have enough memory.
    TooLittleMemory {
        /// The largest memory of these slots, in MiB.
        most_mib: u64,
        /// How much memory is wanted, in MiB.
        wanted_mib: u64,
    },
}

impl Reason {
    /// The kind of the reason, without details.
    pub const fn kind(&self) -> ReasonKind {
        match self {
            Self::NotPinned => ReasonKind::NotPinned,
            Self::Avoided => ReasonKind::Avoided,
            Self::Offline => ReasonKind::Offline,
            Self::Draining => ReasonKind::Draining,
            Self::Quarantined => ReasonKind::Quarantined,
            Self::Locked => ReasonKind::Locked,
            Self::Retired => ReasonKind::Retired,
            Self::HostPolicyDenies { .. } => ReasonKind::HostPolicyDenies,
            Self::MachineNotOffered => ReasonKind::MachineNotOffered,
            Self::MachineLeased => ReasonKind::MachineLeased,
            Self::MachineDirty => ReasonKind::MachineDirty,
            Self::NoSlots => ReasonKind::NoSlots,
            Self::WrongModel { .. } => ReasonKind::WrongModel,
            Self::WrongGpuCount { .. } => ReasonKind::WrongGpuCount,
            Self::TooFewFree { .. } => ReasonKind::TooFewFree,
            Self::TooFewVcpus { .. } => ReasonKind::TooFewVcpus,
            Self::TooLittleMemory { .. } => ReasonKind::TooLittleMemory,
        }
    }

    /// Stable code for programs.
    pub const fn as_str(&self) -> &'static str {
        self.kind().as_str()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPinned => f.write_str("the allocation is pinned to other nodes"),
            Self::Avoided => f.write_str("the allocation failed there before; look at its tasks on this node"),
            Self::Offline => f.write_str("it is offline; see whether its agent runs and reaches the control plane"),
            Self::Draining => f.write_str("it is in maintenance; undrain it when that is done"),
            Self::Quarantined => f.write_str("it is quarantined; unquarantine it when what is wrong is settled"),
            Self::Locked => f.write_str("it is locked because two copies of its identity were seen; enroll it again"),
            Self::Retired => f.write_str("it is retired"),
            Self::HostPolicyDenies { tasks } => {
                let tasks: Vec<&str> = tasks.iter().map(|task| task.as_str()).collect();
                write!(f, "its host policy does not allow {}; only the host's owner can change that", tasks.join(", "))
            }
            Self::MachineNotOffered => f.write_str("it is not given out as a whole machine"),
            Self::MachineLeased => f.write_str("an allocation has the whole machine"),
            Self::MachineDirty => {
                f.write_str("something of an allocation may be left on the machine; it must be cleaned up first")
            }
            Self::NoSlots => f.write_str("it has no approved slots; discover and approve them"),
            Self::WrongModel { has } if has.is_empty() => f.write_str("it has no such GPUs"),
            Self::WrongModel { has } => write!(f, "it has other GPUs: {}", has.join(", ")),
            Self::WrongGpuCount { has, wanted } => write!(f, "it has {has} of these GPUs, and exactly {wanted} are wanted"),
            Self::TooFewFree { free, wanted, others } => write!(f, "{free} of {wanted} wanted slots are free ({others})"),
            Self::TooFewVcpus { most, wanted } => {
                write!(f, "too few of its slots have {wanted} vCPUs; the largest has {most}")
            }
            Self::TooLittleMemory { most_mib, wanted_mib } => {
                write!(f, "too few of its slots have {wanted_mib} MiB of memory; the largest has {most_mib}")
            }
        }
    }
}

/// Number of slots that are not free, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotFree {
    /// Held by an allocation.
    pub leased: usize,
    /// Being released.
    pub releasing: usize,
    /// Something of an allocation may be left on them.
    pub cleanup_blocked: usize,
    /// Their drive must be wiped first.
    pub needs_wipe: usize,
    /// Quarantined by an operator.
    pub quarantined: usize,
}

impl NotFree {
    pub(super) fn count<'a>(slots: impl Iterator<Item = &'a SlotView>) -> Self {
        let mut counts = Self::default();
        for slot in slots {
            match slot.state {
                SlotState::Available if slot.quarantined => counts.quarantined += 1,
                // Withdrawn slots no longer count as slots.
                SlotState::Available | SlotState::Withdrawn => {}
                SlotState::Leased => counts.leased += 1,
                SlotState::Releasing => counts.releasing += 1,
                SlotState::CleanupBlocked => counts.cleanup_blocked += 1,
                SlotState::NeedsWipe => counts.needs_wipe += 1,
                SlotState::Quarantined => counts.quarantined += 1,
            }
        }
        counts
    }
}

impl fmt::Display for NotFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leased, releasing, cleanup_blocked, needs_wipe, quarantined } = *self;
        let counts = [
            (SlotState::Leased, leased),
            (SlotState::Releasing, releasing),
            (SlotState::CleanupBlocked, cleanup_blocked),
            (SlotState::NeedsWipe, needs_wipe),
            (SlotState::Quarantined, quarantined),
        ];
        let mut separator = "";
        for (state, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, "{separator}{count} {}", state.as_str())?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("there are no more") } else { Ok(()) }
    }
}
