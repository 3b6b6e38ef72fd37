//! What operators do to an allocation's resources outside of its run. The tenant is notified in the same commit, without details about the
//! host, and the run continues from there.

use gpuaas_contract::event::{AllocationCommand, AllocationOperatorActed, Event, OperatorAction};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::task::slice_vm_power::PowerAction;

use super::{Allocation, AllocationStep, SLOW_POLL};
use crate::decision::{Context, Decision, Wakeup};
use crate::refusal::Refusal;

/// Records that operators act on the allocation's host, or on what it holds there. `task` is the task that does it. An allocation that has
/// ended is not notified.
pub fn operators_act(allocation: &Allocation, action: OperatorAction, task: Option<TaskId>, context: &Context) -> Decision {
    if allocation.state.is_terminal() {
        return Decision::default();
    }
    let due_at = match action {
        // Lets the run find out immediately that nothing is left to serve, even if the wake-up is lost.
        OperatorAction::Retire | OperatorAction::Replace => Some(context.now),
        OperatorAction::Release if allocation.step == AllocationStep::Serve => Some(context.now),
        OperatorAction::Release
        | OperatorAction::Stop
        | OperatorAction::Start
        | OperatorAction::Reboot
        | OperatorAction::ForceCleanup
        | OperatorAction::Drain
        | OperatorAction::Undrain
        | OperatorAction::Quarantine
        | OperatorAction::Unquarantine => allocation.due_at,
    };
    told(Allocation { due_at, ..allocation.clone() }, action, task, context)
}

/// Records that operators stop, start or reboot the guest with this task. The run waits for the task as if it had ordered it, so that the
/// state of the allocation matches that of the guest.
pub fn operators_power(
    allocation: &Allocation,
    action: PowerAction,
    task_id: TaskId,
    context: &Context,
) -> Result<Decision, Refusal> {
    let is_idle = allocation.step == AllocationStep::Serve
        && allocation.pending_power_action.is_none()
        && allocation.release_request.is_none();
    if !is_idle {
        let message = format!("{} is busy ({}); wait for the end of that first", allocation.id, allocation.step);
        return Err(Refusal::conflict("allocation_busy", message));
    }
    let next = Allocation {
        step: AllocationStep::AwaitPower,
        task_id: Some(task_id),
        pending_power_action: Some(action),
        guest: allocation.guest_during(action),
        due_at: Some(context.now.plus(SLOW_POLL)),
        correlation_id: context.correlation_id.clone(),
        ..allocation.clone()
    };
    Ok(told(next, action.into(), Some(task_id), context))
}

fn told(next: Allocation, action: OperatorAction, task_id: Option<TaskId>, context: &Context) -> Decision {
    let event = Event::AllocationOperatorActed(AllocationOperatorActed {
        command: AllocationCommand { allocation: next.event_ref(), to: next.state.into() },
        action: action.into(),
        task_id,
    });
    // Written even if nothing changes: a concurrent step of the run is then decided again, and the event is accurate.
    Decision::default().update(&next).wakeup(Wakeup::Allocation(next.id)).record(context, next.id, event)
}
