//! Operators act on the guest or the host of an allocation: its tenant sees the resulting state, and that operators caused it.

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

use acts::{active, blocked, end, nothing_is_left, settle};
use gpuaas_contract::event::EventKind;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_domain::allocation::{AllocationState, AllocationStep, GuestState};
use gpuaas_domain::node::Operation;
use hosts::End;
use ledger::Ledger;
use site::{node_id, secrets_of, slice, slot_id};
use support::code;

/// The operator actions that the tenant of an allocation was notified of.
fn acts(ledger: &Ledger, id: AllocationId) -> Vec<String> {
    let of_run = ledger.events.iter().filter(|event| event.subject == id.to_string());
    let acted = of_run.filter(|event| event.kind == EventKind::AllocationOperatorActed);
    acted.map(|event| event.data["action"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_guest_that_operators_stop_is_stopped_for_its_tenant() {
    let mut ledger = Ledger::sliced(&[2]);
    let id = active(&mut ledger, &slice(2));
    let cases = [
        (PowerAction::Stop, AllocationState::Stopped, "allocation.stopped"),
        (PowerAction::Start, AllocationState::Active, "allocation.started"),
        (PowerAction::Reboot, AllocationState::Active, "allocation.rebooted"),
    ];
    for (action, after, kind) in cases {
        let task = ledger.power_slots(slot_id(1, 0), action).expect("an operator may");
        let run = &ledger.allocations[&id];
        assert_eq!((run.step, run.task_id, run.pending_power_action), (AllocationStep::AwaitPower, Some(task), Some(action)));
        assert_eq!(run.guest == Some(GuestState::Booting), action != PowerAction::Stop, "{action}: {:?}", run.guest);
        assert_eq!(code(ledger.power_slots(slot_id(1, 0), PowerAction::Reboot)), "allocation_busy", "one after the other");
        ledger.end(task, End::Succeeded);
        assert_eq!(settle(&mut ledger, id), after);
        assert_eq!(ledger.told(&id).last(), Some(&kind));
    }
    assert_eq!(acts(&ledger, id), ["stop", "start", "reboot"]);
    let task = ledger.power_slots(slot_id(1, 0), PowerAction::Stop).expect("an operator may");
    ledger.end(task, End::FailedDirty);
    assert_eq!(settle(&mut ledger, id), AllocationState::Active, "it was not stopped");
    assert_eq!(ledger.told(&id).last(), Some(&"allocation.power_failed"));
    ledger.release(id);
    assert_eq!(code(ledger.power_slots(slot_id(1, 0), PowerAction::Stop)), "allocation_busy", "it is being released");
}

#[test]
fn a_tenant_is_told_at_once_that_operators_release_or_clean_up() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    let task = ledger.release_slots(slot_id(1, 0), true).expect("an operator may");
    let run = &ledger.allocations[&id];
    assert_eq!((acts(&ledger, id), run.due_at), (vec!["release".to_owned()], Some(ledger.now)), "its run is due");
    ledger.advance(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    ledger.end(task, End::Succeeded);
    assert_eq!(settle(&mut ledger, id), AllocationState::Failed);
    nothing_is_left(&ledger);

    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.release(id);
    blocked(&mut ledger, id);
    let task = ledger.force_cleanup(slot_id(1, 0)).expect("it is blocked");
    assert_eq!(acts(&ledger, id), ["force_cleanup"]);
    ledger.end(task, End::Succeeded);
    assert_eq!(settle(&mut ledger, id), AllocationState::Released);
}

#[test]
fn a_tenant_is_told_what_operators_do_to_the_host_and_not_which_host_it_is() {
    let mut ledger = Ledger::sliced(&[1, 1]);
    let (id, other) = (active(&mut ledger, &slice(1)), active(&mut ledger, &slice(1)));
    let node = ledger.allocations[&id].node_id.expect("it is somewhere");
    for operation in [Operation::Drain, Operation::Undrain, Operation::Undrain, Operation::Quarantine, Operation::Unquarantine] {
        ledger.operate(node, operation).expect("an operator may");
        assert_eq!(settle(&mut ledger, id), AllocationState::Active, "it continues");
    }
    assert_eq!(acts(&ledger, id), ["drain", "undrain", "quarantine", "unquarantine"]);
    assert!(acts(&ledger, other).is_empty(), "it is on another host");
    let hidden = secrets_of(1);
    for event in ledger.events.iter().filter(|event| event.kind == EventKind::AllocationOperatorActed) {
        let seen = event.kind.tenant_fields();
        let shown = event.data.as_object().expect("fields").iter().filter(|(name, _)| seen.contains(&name.as_str()));
        let shown = format!("{:?}", shown.collect::<Vec<_>>());
        assert!(hidden.iter().all(|secret| !shown.contains(secret.as_str())) && !shown.contains(&node.to_string()), "{shown}");
    }
    ledger.operate(node_id(2), Operation::Drain).expect("an operator may");
    ledger.release(id);
    settle(&mut ledger, id);
    end(&mut ledger, id, End::Succeeded);
    let before = acts(&ledger, id);
    ledger.operate(node, Operation::Drain).expect("an operator may");
    assert_eq!(acts(&ledger, id), before, "what is over is over");
}
