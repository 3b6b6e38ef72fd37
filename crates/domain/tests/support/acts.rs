//! Scenes of an allocation's life, played until somebody has to say something.
#![allow(dead_code, reason = "every test file uses its own part")]

use gpuaas_contract::id::AllocationId;
use gpuaas_domain::allocation::commands::Request;
use gpuaas_domain::allocation::{AllocationState, MAX_RELEASES, Next, Step};
use gpuaas_domain::machine::MachineState;
use gpuaas_domain::quota::Used;
use gpuaas_domain::slot::SlotState;

use crate::books::Books;
use crate::hosts::End;
use crate::rules;

/// Advances a run until it waits for somebody or is over.
pub(crate) fn settle(books: &mut Books, id: AllocationId) -> AllocationState {
    for _ in 0..20 {
        let advance = books.advance(id);
        rules::check(books);
        if advance.decision.is_empty() {
            return books.allocations[&id].state;
        }
    }
    panic!("{id} does not come to rest: {:?}", books.allocations[&id]);
}

/// Asks, and ends the first order in this way.
pub(crate) fn asked(books: &mut Books, request: &Request, end: End) -> AllocationId {
    let id = books.request(request).expect("within the quota");
    settle(books, id);
    let task = books.task_of(id);
    books.end(task, end);
    settle(books, id);
    id
}

pub(crate) fn active(books: &mut Books, request: &Request) -> AllocationId {
    let id = asked(books, request, End::Succeeded);
    assert_eq!(books.allocations[&id].state, AllocationState::Active);
    id
}

/// Ends the order that a run waits for.
pub(crate) fn end(books: &mut Books, id: AllocationId, end: End) -> AllocationState {
    let task = books.task_of(id);
    books.end(task, end);
    settle(books, id)
}

/// Lets time pass until the run wants to be looked at.
pub(crate) fn wait_for(books: &mut Books, id: AllocationId) -> AllocationState {
    match books.decide(id).next {
        Next::At(at) => books.now = books.now.max(at),
        Next::Now | Next::Done => {}
    }
    settle(books, id)
}

/// Lets every release fail until an operator has to look.
pub(crate) fn blocked(books: &mut Books, id: AllocationId) {
    for _ in 0..MAX_RELEASES {
        while books.allocations[&id].step != Step::AwaitRelease {
            wait_for(books, id);
        }
        end(books, id, End::FailedDirty);
    }
    assert_eq!(books.allocations[&id].state, AllocationState::ReleaseBlocked);
}

pub(crate) fn nothing_is_left(books: &Books) {
    assert_eq!(books.used(), Used::default());
    assert!(books.slots.values().all(|slot| slot.state == SlotState::Available));
    assert!(books.machines.values().all(|machine| machine.state == MachineState::Available));
    assert_eq!(books.open_tasks(), []);
}
