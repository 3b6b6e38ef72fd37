//! Every step of an allocation's run, taken twice and failing in every way.

mod support;

#[path = "support/acts.rs"]
mod acts;
#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/ledger.rs"]
mod ledger;
#[path = "support/rules.rs"]
mod rules;
#[path = "support/site.rs"]
mod site;

use std::time::Duration;

use acts::nothing_is_left;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_domain::allocation::commands::Request;
use gpuaas_domain::allocation::{Allocation, AllocationState, AllocationStep, Next};
use gpuaas_domain::catalog::Product;
use hosts::End;
use ledger::{Conflict, Ledger};
use site::wanted;

const PRODUCTS: [Product; 2] = [Product::Slice { slots: 2 }, Product::BareMetal];
/// More steps than any run needs: three hosts, three releases on each, and the waits between them.
const BOUND: usize = 100;

/// When the tenant releases the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TenantCommand {
    Never,
    BeforeTheEnd,
    AfterTheEnd,
}

/// A run that is about to take this step; `None` if runs of this product never take it.
fn about_to(step: AllocationStep, product: Product) -> Option<(Ledger, AllocationId)> {
    let mut ledger = match product {
        Product::Slice { .. } => Ledger::sliced(&[2, 2, 2, 2]),
        Product::BareMetal => Ledger::whole(4),
    };
    let request = Request { wait: Duration::from_secs(3600), ..wanted(product) };
    let id = ledger.request(&request).expect("there is no limit");
    match step {
        AllocationStep::Place => {}
        AllocationStep::AwaitProvision => drop(ledger.advance(id)),
        AllocationStep::Serve => active(&mut ledger, id),
        AllocationStep::AwaitPower if product == Product::BareMetal => return None,
        AllocationStep::AwaitPower => {
            active(&mut ledger, id);
            ledger.power(id, PowerAction::Stop).expect("is active");
            ledger.advance(id);
        }
        AllocationStep::Release => {
            active(&mut ledger, id);
            ledger.release(id);
            ledger.advance(id);
        }
        AllocationStep::AwaitRelease => {
            active(&mut ledger, id);
            ledger.release(id);
            ledger.advance(id);
            ledger.advance(id);
        }
        AllocationStep::Done => {
            ledger.release(id);
            ledger.advance(id);
        }
    }
    assert_eq!(ledger.allocations[&id].step, step);
    rules::check(&ledger);
    Some((ledger, id))
}

fn active(ledger: &mut Ledger, id: AllocationId) {
    ledger.advance(id);
    let task = ledger.task_of(id);
    ledger.end(task, End::Succeeded);
    ledger.advance(id);
    assert_eq!(ledger.allocations[&id].state, AllocationState::Active);
}

/// Takes a step. A step that changes nothing must return a later time, never that it is due now.
fn advance(ledger: &mut Ledger, id: AllocationId) -> Next {
    let advance = ledger.advance(id);
    rules::check(ledger);
    let spins = match advance.next {
        Next::Now => true,
        Next::At(at) => at <= ledger.now,
        Next::Done => false,
    };
    let run = &ledger.allocations[&id];
    assert!(!(advance.decision.is_empty() && spins), "{:?} spins at {:?}", run.state, run.step);
    assert_eq!(advance.next == Next::Done, run.state.is_terminal(), "{:?}", run.state);
    advance.next
}

/// Drives a run until nothing happens by itself any more; all its tasks end like this.
fn drive(ledger: &mut Ledger, id: AllocationId, ends: End) -> AllocationState {
    for _ in 0..BOUND {
        let next = advance(ledger, id);
        let run = &ledger.allocations[&id];
        let open = ledger.open_tasks_of(id);
        match next {
            Next::Done => return run.state,
            Next::Now => {}
            Next::At(_) if !open.is_empty() => open.into_iter().for_each(|task| ledger.end(task, ends)),
            // Only a command can continue the run now.
            Next::At(_) if rests(run) => return run.state,
            Next::At(at) => ledger.now = ledger.now.max(at),
        }
    }
    panic!("it does not come to an end: {:#?}", ledger.allocations[&id]);
}

fn rests(run: &Allocation) -> bool {
    let nothing_wanted = run.release_request.is_none() && run.pending_power_action.is_none();
    match run.state {
        AllocationState::Active | AllocationState::Stopped => nothing_wanted,
        AllocationState::ReleaseBlocked => run.due_at.is_none(),
        AllocationState::Requested
        | AllocationState::Placing
        | AllocationState::Provisioning
        | AllocationState::Releasing
        | AllocationState::Released
        | AllocationState::Failed => false,
    }
}

/// An operator forces the cleanup of whatever is blocked.
fn force(ledger: &mut Ledger, id: AllocationId) {
    let slot = ledger.slots_of(id).first().map(|slot| slot.id);
    let machine = ledger.machines.values().find(|machine| machine.allocation_id == Some(id)).map(|machine| machine.node_id);
    let task = match (slot, machine) {
        (Some(slot), _) => ledger.force_cleanup(slot),
        (None, Some(node)) => ledger.force_machine(node),
        (None, None) => panic!("it is blocked and has nothing"),
    };
    ledger.end(task.expect("it is blocked"), End::Succeeded);
}

/// Takes the due step twice on the same inputs, and once on inputs that are outdated by then.
fn twice(ledger: &mut Ledger, id: AllocationId, shown: &str) {
    let (run, inputs) = (ledger.allocations[&id].clone(), ledger.inputs(&ledger.allocations[&id]));
    let (first, second) = (ledger.decide_on(&run, &inputs), ledger.decide_on(&run, &inputs));
    assert_eq!(first.decision.is_empty(), second.decision.is_empty(), "{shown}");
    assert_eq!((first.allocation.state, first.allocation.step), (second.allocation.state, second.allocation.step), "{shown}");
    assert_eq!(first.next, second.next, "{shown}");
    ledger.commit(first.decision).expect("nobody else writes");
    let after = ledger.clone();
    for late in [second, ledger.decide_on(&run, &inputs)] {
        let empty = late.decision.is_empty();
        let written = ledger.commit(late.decision);
        assert_eq!(written, if empty { Ok(()) } else { Err(Conflict) }, "{shown}");
    }
    assert_eq!(ledger.allocations, after.allocations, "{shown}");
    assert_eq!((ledger.tasks.len(), ledger.events.len()), (after.tasks.len(), after.events.len()), "{shown}");
    rules::check(ledger);
}

#[test]
fn every_step_that_is_taken_twice_is_taken_once() {
    for product in PRODUCTS {
        for step in AllocationStep::ALL {
            for ends in End::ALL.map(Some).into_iter().chain([None]) {
                for command in [TenantCommand::Never, TenantCommand::BeforeTheEnd, TenantCommand::AfterTheEnd] {
                    let Some((mut ledger, id)) = about_to(step, product) else { continue };
                    let shown = format!("{product:?} {step:?} {ends:?} {command:?}");
                    unfold(&mut ledger, id, ends, command);
                    for _ in 0..4 {
                        twice(&mut ledger, id, &shown);
                        if let Next::At(at) = ledger.decide(id).next {
                            ledger.now = ledger.now.max(at);
                        }
                    }
                    // The run then continues as if nothing had happened.
                    drive(&mut ledger, id, End::Succeeded);
                }
            }
        }
    }
}

/// The task of this step ends, and the tenant releases the allocation before that, after it or not at all.
fn unfold(ledger: &mut Ledger, id: AllocationId, ends: Option<End>, command: TenantCommand) {
    if command == TenantCommand::BeforeTheEnd {
        ledger.release(id);
        // The task is canceled if its result is no longer wanted.
        ledger.advance(id);
    }
    if let Some(ends) = ends {
        ledger.open_tasks_of(id).into_iter().for_each(|task| ledger.end(task, ends));
    }
    if command == TenantCommand::AfterTheEnd {
        ledger.release(id);
    }
}

#[test]
fn every_step_comes_to_an_end_however_its_orders_end() {
    for product in PRODUCTS {
        for step in AllocationStep::ALL {
            for ends in End::ALL {
                for command in [TenantCommand::Never, TenantCommand::BeforeTheEnd, TenantCommand::AfterTheEnd] {
                    for then in [End::Succeeded, ends] {
                        let Some((mut ledger, id)) = about_to(step, product) else { continue };
                        let shown = format!("{product:?} {step:?} {ends:?} then {then:?}, given back {command:?}");
                        unfold(&mut ledger, id, Some(ends), command);
                        let mut state = drive(&mut ledger, id, then);
                        if state.is_held() {
                            assert_eq!(command, TenantCommand::Never, "{shown}: it was given back");
                            ledger.release(id);
                            state = drive(&mut ledger, id, then);
                        }
                        if state == AllocationState::ReleaseBlocked {
                            assert_ne!(then, End::Succeeded, "{shown}: hosts that clean up need no operator");
                            force(&mut ledger, id);
                            state = drive(&mut ledger, id, End::Succeeded);
                        }
                        let run = &ledger.allocations[&id];
                        assert!(state.is_terminal(), "{shown}: {run:#?}");
                        assert_eq!(state == AllocationState::Released, run.release_request.is_some(), "{shown}");
                        assert_eq!(state == AllocationState::Failed, run.last_error.is_some(), "{shown}");
                        nothing_is_left(&ledger);
                    }
                }
            }
        }
    }
}

#[test]
fn a_host_that_answers_after_it_was_given_up_disturbs_nobody() {
    for product in PRODUCTS {
        for step in [AllocationStep::AwaitProvision, AllocationStep::AwaitPower, AllocationStep::AwaitRelease] {
            for late in End::ALL {
                for turns in 0..6 {
                    let Some((mut ledger, id)) = about_to(step, product) else { continue };
                    let lost = ledger.task_of(id);
                    let order = ledger.order(lost);
                    let Some(reported) = late.reported(&order) else { continue };
                    ledger.end(lost, End::NoWord);
                    // Take some steps first, in which all other tasks succeed immediately.
                    for _ in 0..turns {
                        advance(&mut ledger, id);
                        ledger.open_tasks_of(id).into_iter().for_each(|task| ledger.end(task, End::Succeeded));
                        if let Next::At(at) = ledger.decide(id).next {
                            ledger.now = ledger.now.max(at);
                        }
                    }
                    ledger.receipt(lost, reported);
                    if ledger.allocations[&id].state.is_held() {
                        advance(&mut ledger, id);
                        ledger.release(id);
                    }
                    let mut state = drive(&mut ledger, id, End::Succeeded);
                    if state.is_held() {
                        ledger.release(id);
                        state = drive(&mut ledger, id, End::Succeeded);
                    }
                    assert!(state.is_terminal(), "{product:?} {step:?} {late:?} after {turns} turns: {state:?}");
                    nothing_is_left(&ledger);
                }
            }
        }
    }
}

#[test]
fn an_operator_who_cleans_up_at_any_moment_disturbs_no_run() {
    for product in PRODUCTS {
        for ends in [End::FailedDirty, End::Interrupted, End::NoWord, End::NodeGone] {
            for moment in 0..8 {
                let (mut ledger, id) = about_to(AllocationStep::AwaitProvision, product).expect("every product is made");
                for _ in 0..moment {
                    advance(&mut ledger, id);
                    ledger.open_tasks_of(id).into_iter().for_each(|task| ledger.end(task, ends));
                    if let Next::At(at) = ledger.decide(id).next {
                        ledger.now = ledger.now.max(at);
                    }
                }
                if ledger.allocations[&id].step == AllocationStep::Release && ledger.open_tasks_of(id).is_empty() {
                    force(&mut ledger, id);
                }
                drive(&mut ledger, id, End::Succeeded);
                if !ledger.allocations[&id].state.is_terminal() {
                    ledger.release(id);
                    if drive(&mut ledger, id, End::Succeeded) == AllocationState::ReleaseBlocked {
                        force(&mut ledger, id);
                        drive(&mut ledger, id, End::Succeeded);
                    }
                }
                assert!(ledger.allocations[&id].state.is_terminal(), "{product:?} {ends:?} {moment}");
                nothing_is_left(&ledger);
            }
        }
    }
}
