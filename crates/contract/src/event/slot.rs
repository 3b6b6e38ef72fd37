//! Events of slots and whole machines.

use super::payload::payloads;
use crate::id::{AllocationId, NodeId, SlotId, TaskId};
use crate::names::Open;
use crate::slice::SlotSpec;
use crate::state::{MachineState, SlotState, TaskState};

payloads! {
    /// A slot that an operator approved.
    pub struct SlotApproved {
        /// The slot.
        operator slot_id: SlotId,
        /// Its node.
        operator node_id: NodeId,
        /// Its devices and its size.
        operator slot: SlotSpec,
        /// The task that found it.
        operator proposed_by: TaskId,
    }

    /// A step in the life of a slot.
    pub struct SlotMoved {
        /// The slot.
        operator slot_id: SlotId,
        /// Its node.
        operator node_id: NodeId,
        /// Its state before.
        operator from: Open<SlotState>,
        /// Its state now.
        operator to: Open<SlotState>,
        /// Whether an operator holds it back.
        operator quarantined: bool,
        /// The allocation that has it, or that had it.
        operator allocation_id: Option<AllocationId>,
        /// Number of its newest lease.
        operator lease_epoch: u64,
        /// Why.
        #[serde(flatten)]
        flat cause: SlotCause,
    }

    /// Why a slot changed.
    pub struct SlotCause {
        /// The task that changed it, or that it waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator task_id: Option<TaskId>,
        /// How that task ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator outcome: Option<Open<TaskState>>,
        /// Whether its drive is wiped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator wipe: Option<bool>,
        /// Why, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator reason: Option<String>,
    }

    /// A step in the life of a whole machine.
    pub struct MachineMoved {
        /// Its node.
        operator node_id: NodeId,
        /// Its state now.
        operator state: Open<MachineState>,
        /// The allocation that has it.
        operator allocation_id: Option<AllocationId>,
        /// Number of its newest lease.
        operator lease_epoch: u64,
        /// The newest task that creates or removes its user.
        operator task_id: Option<TaskId>,
        /// Why; may be empty.
        operator reason: String,
    }
}
