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
        /// The node it is on.
        operator node_id: NodeId,
        /// Its devices and its size.
        operator slot: SlotSpec,
        /// The task that discovered it.
        operator proposed_by: TaskId,
    }

    /// A change of the state of a slot.
    pub struct SlotMoved {
        /// The slot.
        operator slot_id: SlotId,
        /// The node it is on.
        operator node_id: NodeId,
        /// Its state before.
        operator from: Open<SlotState>,
        /// Its state now.
        operator to: Open<SlotState>,
        /// Whether it is quarantined by an operator.
        operator quarantined: bool,
        /// The allocation that holds or held it.
        operator allocation_id: Option<AllocationId>,
        /// Epoch of its newest lease.
        operator lease_epoch: u64,
        /// Reason of the change.
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
        /// Reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operator reason: Option<String>,
    }

    /// A change of the state of a whole machine.
    pub struct MachineMoved {
        /// The node it is on.
        operator node_id: NodeId,
        /// Its state now.
        operator state: Open<MachineState>,
        /// The allocation that holds it.
        operator allocation_id: Option<AllocationId>,
        /// Epoch of its newest lease.
        operator lease_epoch: u64,
        /// The newest task that creates or removes its user.
        operator task_id: Option<TaskId>,
        /// Reason; may be empty.
        operator reason: String,
    }
}
