//! Scenes from an allocation's life, played until the run waits for a command, a task or time.
#![allow(dead_code, reason = "every test file uses its own part")]

use gpuaas_contract::id::AllocationId;
use gpuaas_domain::Wakeup;
use gpuaas_domain::allocation::commands::Request;
use gpuaas_domain::allocation::{AllocationState, AllocationStep, MAX_RELEASES, Next};
use gpuaas_domain::machine::MachineState;
use gpuaas_domain::quota::Used;
use gpuaas_domain::slot::SlotState;

use crate::hosts::End;
use crate::ledger::Ledger;
use crate::rules;

/// Advances a run until it waits or has ended. A run that can continue after a step is due, or what else the step did wakes it.
pub(crate) fn settle(ledger: &mut Ledger, id: AllocationId) -> AllocationState {
    let mut due = true;
    for _ in 0..20 {
        let advance = ledger.advance(id);
        rules::check(ledger);
        if advance.decision.is_empty() {
            return ledger.allocations[&id].state;
        }
        assert!(due, "{id} can continue, and nothing continues it: {:?}", ledger.allocations[&id]);
        due = advance.decision.wakeups.contains(&Wakeup::Allocation(id))
            || match advance.next {
                Next::Now => true,
                Next::At(at) => at <= ledger.now,
                Next::Done => false,
            };
    }
    panic!("{id} does not come to rest: {:?}", ledger.allocations[&id]);
}

/// Requests an allocation, and ends its first task like this.
pub(crate) fn asked(ledger: &mut Ledger, request: &Request, end: End) -> AllocationId {
    let id = ledger.request(request).expect("within the quota");
    settle(ledger, id);
    let task = ledger.task_of(id);
    ledger.end(task, end);
    settle(ledger, id);
    id
}

pub(crate) fn active(ledger: &mut Ledger, request: &Request) -> AllocationId {
    let id = asked(ledger, request, End::Succeeded);
    assert_eq!(ledger.allocations[&id].state, AllocationState::Active);
    id
}

/// Ends the task that a run waits for.
pub(crate) fn end(ledger: &mut Ledger, id: AllocationId, end: End) -> AllocationState {
    let task = ledger.task_of(id);
    ledger.end(task, end);
    settle(ledger, id)
}

/// Lets time pass until the run is due.
pub(crate) fn wait_for(ledger: &mut Ledger, id: AllocationId) -> AllocationState {
    match ledger.decide(id).next {
        Next::At(at) => ledger.now = ledger.now.max(at),
        Next::Now | Next::Done => {}
    }
    settle(ledger, id)
}

/// Lets all releases fail until an operator has to intervene.
pub(crate) fn blocked(ledger: &mut Ledger, id: AllocationId) {
    for _ in 0..MAX_RELEASES {
        while ledger.allocations[&id].step != AllocationStep::AwaitRelease {
            wait_for(ledger, id);
        }
        end(ledger, id, End::FailedDirty);
    }
    assert_eq!(ledger.allocations[&id].state, AllocationState::ReleaseBlocked);
}

pub(crate) fn nothing_is_left(ledger: &Ledger) {
    assert_eq!(ledger.used(), Used::default());
    assert!(ledger.slots.values().all(|slot| slot.state == SlotState::Available));
    assert!(ledger.machines.values().all(|machine| machine.state == MachineState::Available));
    assert_eq!(ledger.open_tasks(), []);
}
