//! Slices: guests on slots. A request becomes a task and changes to the slots, in one decision; [`settle`] has the effects of the task's
//! end on the slots.
//!
//! Every order names its allocation and the slots' `lease_epoch`. The epoch grows whenever slots get another holder or an operator takes
//! them over, so that the node can recognize a late order for an earlier lease.

mod settle;

use gpuaas_contract::event::{Event, SlotCause};
use gpuaas_contract::guest::GuestSpec;
use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::slice::{Holder, LeasedSlot, MAX_SLOTS};
use gpuaas_contract::task::slice_vm_power::{DEFAULT_ANSWER_SECONDS, PowerAction};
use gpuaas_contract::task::{ByHand, Task, TaskType, slice_console_read, slice_vm_power, slice_vm_provision, slice_vm_release};

pub use settle::{Ending, TaskEnd, settle};

use crate::decision::{Context, Decision};
use crate::node::{MAX_REASON, Node};
use crate::refusal::Refusal;
use crate::slot::{Slot, SlotState, Step, in_use, moved};
use crate::task::{TaskRecord, TaskState};

/// The slots of an allocation, and the tasks whose ends decide what happens to them.
#[derive(Clone, Copy, Debug)]
pub struct HeldSlots<'a> {
    /// The slots of one allocation.
    pub slots: &'a [Slot],
    /// The [`Slot::lease_task`] of each slot.
    pub tasks: &'a [TaskRecord],
}

impl<'a> HeldSlots<'a> {
    /// The allocation and its lease epoch, if all slots agree on them.
    fn holder(&self) -> Result<Holder, Refusal> {
        let nobody = || Refusal::not_found("slice_unknown", "no slot belongs to this slice");
        let first = self.slots.first().ok_or_else(nobody)?;
        let allocation_id = first.allocation_id.ok_or_else(nobody)?;
        let same = |slot: &Slot| {
            (slot.node_id, slot.allocation_id, slot.lease_epoch) == (first.node_id, Some(allocation_id), first.lease_epoch)
        };
        if self.slots.iter().all(same) {
            return Ok(Holder { allocation_id, lease_epoch: first.lease_epoch });
        }
        let message = "the slots of this slice are not under one lease; force the cleanup of each of them";
        Err(Refusal::conflict("leases_differ", message))
    }

    fn task_of(&self, slot: &Slot) -> Option<&'a TaskRecord> {
        self.tasks.iter().find(|task| Some(task.id) == slot.lease_task)
    }

    /// Refuses if a task that decides about the slots is still running.
    fn check_idle(&self) -> Result<(), Refusal> {
        let open = self.slots.iter().filter_map(|slot| self.task_of(slot)).find(|task| !task.state.ended());
        let Some(task) = open else { return Ok(()) };
        let message = format!("{} ({}) is {}; wait for its end or cancel it", task.id, task.task_type, task.state.as_str());
        Err(Refusal::conflict("slice_busy", message))
    }
}

/// A task to create, and what happens to its slots in the same commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The task to create.
    pub task: Task,
    /// The slots after the change.
    pub slots: Vec<Slot>,
    /// What to write besides the task.
    pub decision: Decision,
}

/// Refuses to create a task directly that acts on slots: the control plane creates such tasks from its records only, together with the
/// changes to the slots.
pub fn check_by_hand(kind: TaskType) -> Result<(), Refusal> {
    let instead = match kind.facts().by_hand {
        ByHand::Allowed => return Ok(()),
        ByHand::Instead(command) => command,
    };
    let message = format!("{kind} acts on what an allocation holds and is not run by hand; use `{instead}`");
    Err(Refusal::invalid("task_needs_lease", message))
}

/// Leases free slots of one node under a new lease epoch, and orders the node to create a guest on them.
///
/// `ids` are the ids of the new allocation and of its task.
pub fn provision(
    node: &Node,
    slots: &[Slot],
    guest: &GuestSpec,
    ids: (AllocationId, TaskId),
    seal: impl Fn(&Slot) -> String,
    context: &Context,
) -> Result<Order, Refusal> {
    let (allocation_id, task_id) = ids;
    if slots.is_empty() || slots.len() > MAX_SLOTS {
        let message = format!("a slice has 1 to {MAX_SLOTS} slots; {} are given", slots.len());
        return Err(Refusal::invalid("slots_invalid", message));
    }
    for slot in slots {
        if slot.node_id != node.id {
            let message = format!("slot {} is on another node; all slots of a slice are on one", slot.id);
            return Err(Refusal::invalid("slot_of_another_node", message));
        }
        if slot.state != SlotState::Available || slot.quarantine.is_some() || slot.allocation_id.is_some() {
            return Err(not_available(slot));
        }
    }
    let lease_epoch = next_epoch(slots)?;
    let mut slots = slots.to_vec();
    slots.sort_by_key(|slot| slot.spec.slot_index);
    let leased = slots.iter().map(Slot::leased).collect();
    let params = slice_vm_provision::Params { allocation_id, lease_epoch, guest: guest.clone(), slots: leased };
    let task = checked(Task::SliceVmProvision(params))?;
    let next = |slot: &Slot| Slot {
        state: SlotState::Leased,
        allocation_id: Some(allocation_id),
        lease_epoch,
        lease_task: Some(task_id),
        reason: String::new(),
        drive_used: false,
        devices_used: false,
        ..slot.clone()
    };
    Ok(ordered(task, &slots, next, Event::SlotLeased, by_task(task_id), &seal, context))
}

/// Releases the slots of an allocation: the node removes the guest, resets its devices, wipes its drives, and proves it.
pub fn release(
    held: HeldSlots<'_>,
    wipe: bool,
    graceful_timeout_seconds: u32,
    task_id: TaskId,
    seal: impl Fn(&Slot) -> String,
    context: &Context,
) -> Result<Order, Refusal> {
    let Holder { allocation_id, lease_epoch } = held.holder()?;
    held.check_idle()?;
    if let Some(slot) = held.slots.iter().find(|slot| slot.state.is_clean()) {
        return Err(clean_already(slot));
    }
    let task = checked(Task::SliceVmRelease(slice_vm_release::Params {
        allocation_id,
        lease_epoch,
        slots: in_order(held.slots),
        graceful_timeout_seconds,
        wipe,
        take_over: false,
    }))?;
    let next =
        |slot: &Slot| Slot { state: SlotState::Releasing, lease_task: Some(task_id), reason: String::new(), ..slot.clone() };
    let cause = SlotCause { wipe: Some(wipe), ..by_task(task_id) };
    Ok(ordered(task, held.slots, next, Event::SlotReleasing, cause, &seal, context))
}

/// Whether a task is a release that keeps the content of the drives. After that, only an operator orders the wipe, because whoever asked
/// for it wants to look at the drives, whether or not the release succeeded.
pub fn keeps_content(task: &TaskRecord) -> bool {
    let Ok(Task::SliceVmRelease(params)) = Task::parse(task.task_type, &task.params) else { return false };
    !params.wipe
}

/// An operator's order to remove what is left of an allocation, regardless of which lease the node thinks is current: a release under a new
/// lease epoch that takes over all earlier leases and wipes the drives. It frees nothing by itself; only the node's complete proof does.
///
/// `held` are all slots of the same guest as the named one, because they can only be cleaned up together. `ids` are an allocation id for
/// slots that have none, and the id of the task.
pub fn force_cleanup(
    held: HeldSlots<'_>,
    reason: &str,
    ids: (AllocationId, TaskId),
    seal: impl Fn(&Slot) -> String,
    context: &Context,
) -> Result<Order, Refusal> {
    let (new_allocation, task_id) = ids;
    if reason.len() > MAX_REASON {
        return Err(Refusal::invalid("reason_too_long", format!("the reason may have at most {MAX_REASON} bytes")));
    }
    let Some(first) = held.slots.first() else {
        return Err(Refusal::not_found("slot_unknown", "there is no such slot"));
    };
    held.check_idle()?;
    for slot in held.slots {
        match slot.state {
            SlotState::CleanupBlocked | SlotState::NeedsWipe => {}
            SlotState::Leased | SlotState::Releasing => {
                if held.task_of(slot).is_some_and(|task| task.state == TaskState::Succeeded) {
                    return Err(in_use(slot));
                }
            }
            SlotState::Available | SlotState::Quarantined | SlotState::Withdrawn => return Err(clean_already(slot)),
        }
    }
    let allocation_id = first.allocation_id.unwrap_or(new_allocation);
    let lease_epoch = next_epoch(held.slots)?;
    let task = checked(Task::SliceVmRelease(slice_vm_release::Params {
        allocation_id,
        lease_epoch,
        slots: in_order(held.slots),
        graceful_timeout_seconds: 0,
        wipe: true,
        take_over: true,
    }))?;
    let next = |slot: &Slot| Slot {
        state: SlotState::Releasing,
        allocation_id: Some(allocation_id),
        lease_epoch,
        lease_task: Some(task_id),
        reason: String::new(),
        ..slot.clone()
    };
    let cause = SlotCause { reason: Some(reason.to_owned()), ..by_task(task_id) };
    Ok(ordered(task, held.slots, next, Event::SlotTakenOver, cause, &seal, context))
}

/// Stops, starts or reboots an existing guest.
pub fn power(held: HeldSlots<'_>, action: PowerAction, graceful_timeout_seconds: u32) -> Result<Order, Refusal> {
    let Holder { allocation_id, lease_epoch } = held.holder()?;
    held.check_idle()?;
    let ready = |slot: &Slot| {
        let made = held.task_of(slot).is_some_and(|task| task.state == TaskState::Succeeded);
        slot.state == SlotState::Leased && made
    };
    if let Some(slot) = held.slots.iter().find(|slot| !ready(slot)) {
        let message =
            format!("slot {} of this slice is {}; there is no guest to {}", slot.id, slot.state.as_str(), action.as_str());
        return Err(Refusal::conflict("slice_not_running", message));
    }
    let task = checked(Task::SliceVmPower(slice_vm_power::Params {
        allocation_id,
        lease_epoch,
        slots: in_order(held.slots),
        action,
        graceful_timeout_seconds,
        answer_timeout_seconds: DEFAULT_ANSWER_SECONDS,
    }))?;
    Ok(Order { task, slots: held.slots.to_vec(), decision: Decision::default() })
}

/// Reads the serial console of a guest, even while it is being created or released.
pub fn console(held: HeldSlots<'_>, tail_bytes: u32, follow_seconds: u32) -> Result<Order, Refusal> {
    let Holder { allocation_id, lease_epoch } = held.holder()?;
    let params = slice_console_read::Params { allocation_id, lease_epoch, tail_bytes, follow_seconds };
    let task = checked(Task::SliceConsoleRead(params))?;
    Ok(Order { task, slots: held.slots.to_vec(), decision: Decision::default() })
}

/// Parses the task as the node would, so that the caller learns about a refusal now.
fn checked(task: Task) -> Result<Task, Refusal> {
    match Task::parse(task.task_type(), task.params_json().get()) {
        Ok(_) => Ok(task),
        Err(error) => Err(Refusal::invalid("params_invalid", error.to_string())),
    }
}

/// The cause of a change by a new task.
fn by_task(task_id: TaskId) -> SlotCause {
    SlotCause { task_id: Some(task_id), outcome: None, wipe: None, reason: None }
}

fn ordered(
    task: Task,
    slots: &[Slot],
    next: impl Fn(&Slot) -> Slot,
    step: Step,
    cause: SlotCause,
    seal: &impl Fn(&Slot) -> String,
    context: &Context,
) -> Order {
    let mut order = Order { task, slots: Vec::new(), decision: Decision::default() };
    for slot in slots {
        let (after, decision) = moved(slot, next(slot), step, cause.clone(), seal, context);
        order.slots.push(after);
        order.decision = order.decision.and(decision);
    }
    order
}

fn in_order(slots: &[Slot]) -> Vec<LeasedSlot> {
    let mut slots: Vec<&Slot> = slots.iter().collect();
    slots.sort_by_key(|slot| slot.spec.slot_index);
    slots.into_iter().map(Slot::leased).collect()
}

/// A lease epoch that is higher than any assigned to these slots before.
fn next_epoch(slots: &[Slot]) -> Result<u64, Refusal> {
    let highest = slots.iter().map(|slot| slot.lease_epoch).max().unwrap_or(0);
    // The stores have signed integers.
    let next = highest.checked_add(1).filter(|next| i64::try_from(*next).is_ok());
    next.ok_or_else(|| Refusal::conflict("lease_epochs_used_up", "the slots' lease numbers are used up"))
}

fn not_available(slot: &Slot) -> Refusal {
    let why = if slot.reason.is_empty() { String::new() } else { format!(" ({})", slot.reason) };
    let message = format!("slot {} ({}) is {}{why}", slot.spec.slot_index, slot.id, slot.state.as_str());
    Refusal::conflict("slot_not_available", message)
}

fn clean_already(slot: &Slot) -> Refusal {
    let message = format!("slot {} ({}) is {}; there is nothing to clean up", slot.spec.slot_index, slot.id, slot.state.as_str());
    Refusal::conflict("slot_clean", message)
}
