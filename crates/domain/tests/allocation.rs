//! Allocations: from the request until nothing is left.

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

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use acts::{active, asked, blocked, end, nothing_is_left, settle, wait_for};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{AllocationId, NodeId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::Actor;
use gpuaas_domain::allocation::commands::{self, Request};
use gpuaas_domain::allocation::{
    Allocation, AllocationState, AllocationStep, GuestState, MAX_ATTEMPTS, MAX_LEASE, MAX_RELEASES, MAX_WAIT, Next,
};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::idempotency::RequestKey;
use gpuaas_domain::machine::{self, MachineState};
use gpuaas_domain::node::{NodeService, Operation};
use gpuaas_domain::quota::{self, Limits, Used};
use gpuaas_domain::slot::SlotState;
use gpuaas_domain::task::TaskState;
use hosts::End;
use ledger::{Conflict, Ledger};
use site::{bare_metal, node_id, organization, project, secrets_of, slice, slot_id};
use support::{Report, at, code, later};

fn run(ledger: &Ledger, id: AllocationId) -> &Allocation {
    &ledger.allocations[&id]
}

fn last_error(ledger: &Ledger, id: AllocationId) -> (&str, &str, &str) {
    let last_error = run(ledger, id).last_error.as_ref().expect("something went wrong");
    (&last_error.code, &last_error.reason, &last_error.detail)
}

#[test]
fn a_slice_goes_from_its_request_to_its_last_trace() {
    let mut ledger = Ledger::sliced(&[4]);
    let id = ledger.request(&slice(2)).expect("there is no limit");
    assert_eq!(run(&ledger, id).state, AllocationState::Requested);
    assert_eq!(ledger.used(), Used { allocations: 1, slots: 2, machines: 0 });
    assert_eq!(ledger.quota(&organization(1)).used, ledger.used(), "the organization counts as well");
    assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning);
    let task = ledger.task_of(id);
    let Task::SliceVmProvision(params) = ledger.order(task) else { panic!("{:?}", ledger.tasks[&task]) };
    assert_eq!((params.allocation_id, params.slots.len(), params.lease_epoch), (id, 2, 1));
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Active);
    assert_eq!(ledger.slots_of(id).len(), 2);
    assert_eq!(run(&ledger, id).active_at, Some(ledger.now));

    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    let told = ["requested", "provisioning", "active", "release_requested", "releasing", "release_ordered", "released"];
    assert_eq!(ledger.told(&id), told.map(|kind| format!("allocation.{kind}")));
    assert_eq!(ledger.decide(id).next, Next::Done);
    nothing_is_left(&ledger);
}

#[test]
fn a_whole_host_goes_from_its_request_to_its_last_trace() {
    let mut ledger = Ledger::whole(1);
    let id = ledger.request(&bare_metal()).expect("there is no limit");
    assert_eq!(ledger.used(), Used { allocations: 1, slots: 0, machines: 1 });
    assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning);
    let Task::AllocationProvisionUser(params) = ledger.order(ledger.task_of(id)) else { panic!("a user is made") };
    assert!(params.username.as_str().starts_with("tenant-"), "no name is ever two tenants' on one host");
    assert_eq!((params.allocation_id, params.lease_epoch), (id, 1));
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Active);
    assert_eq!(ledger.machine(node_id(1)).allocation_id, Some(id));
    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    let Task::AllocationDeprovisionUser(ended) = ledger.order(ledger.task_of(id)) else { panic!("the user goes") };
    assert_eq!((ended.username, ended.lease_epoch), (params.username, 1));
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    assert_eq!(
        ledger.told(&"machine:node_01010101010101010101010101010101"),
        ["machine.offered", "machine.leased", "machine.releasing", "machine.freed"]
    );
    nothing_is_left(&ledger);
}

#[test]
fn without_room_it_fails_at_once_and_says_what_to_do() {
    let mut ledger = Ledger::sliced(&[2]);
    let id = ledger.request(&slice(3)).expect("there is no limit");
    assert_eq!(settle(&mut ledger, id), AllocationState::Failed);
    let (code, reason, detail) = last_error(&ledger, id);
    assert_eq!(code, "no_capacity");
    assert!(reason.contains("ask for fewer"), "{reason}");
    assert!(detail.contains("rack-1.site.example"), "{detail}");
    nothing_is_left(&ledger);
}

#[test]
fn it_waits_for_room_as_long_as_it_may() {
    let mut ledger = Ledger::sliced(&[2]);
    let first = active(&mut ledger, &slice(2));
    let waits = Request { wait: Duration::from_secs(600), ..slice(1) };
    let (lucky, late) = (ledger.request(&waits).expect("fits"), ledger.request(&waits).expect("fits"));
    for id in [lucky, late] {
        assert_eq!(settle(&mut ledger, id), AllocationState::Placing);
    }
    let told = ledger.told(&late).len();
    wait_for(&mut ledger, late);
    assert_eq!(ledger.told(&late).len(), told, "waiting on is no news");
    ledger.release(first);
    settle(&mut ledger, first);
    end(&mut ledger, first, End::Succeeded);
    ledger.operate_slot(slot_id(1, 1), gpuaas_domain::slot::Operation::Quarantine).expect("is free");
    assert_eq!(settle(&mut ledger, lucky), AllocationState::Provisioning);
    assert_eq!(settle(&mut ledger, late), AllocationState::Placing);
    for _ in 0..20 {
        if wait_for(&mut ledger, late) == AllocationState::Failed {
            break;
        }
    }
    assert_eq!(run(&ledger, late).ended_at, Some(later(600)), "not before, and not much later");
    assert_eq!(last_error(&ledger, late).0, "no_capacity");
}

#[test]
fn another_host_is_tried_after_a_clean_failure_and_never_the_same_again() {
    let mut ledger = Ledger::sliced(&[1, 1, 1, 1]);
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    let mut tried = BTreeSet::new();
    for attempt in 1..=MAX_ATTEMPTS {
        assert_eq!((run(&ledger, id).state, run(&ledger, id).attempts), (AllocationState::Provisioning, attempt));
        assert!(tried.insert(run(&ledger, id).node_id), "the host that failed is avoided");
        end(&mut ledger, id, End::FailedClean);
    }
    assert_eq!(run(&ledger, id).state, AllocationState::Failed, "three hosts are enough");
    assert_eq!(last_error(&ledger, id).0, "some_code");
    nothing_is_left(&ledger);
}

#[test]
fn what_a_host_said_is_not_forgotten_if_there_is_no_other_host() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = asked(&mut ledger, &slice(1), End::FailedClean);
    assert_eq!(run(&ledger, id).state, AllocationState::Failed);
    let (code, reason, detail) = last_error(&ledger, id);
    assert_eq!(code, "some_code", "that there is no second host is not why it failed");
    assert!(!reason.contains("capacity"), "{reason}");
    assert!(detail.contains("some_code") && detail.contains("failed there before"), "{detail}");
    nothing_is_left(&ledger);
}

#[test]
fn a_host_that_failed_and_left_something_is_cleaned_up_before_another_is_tried() {
    let mut ledger = Ledger::sliced(&[2, 2]);
    let id = asked(&mut ledger, &slice(2), End::FailedDirty);
    let first = run(&ledger, id).node_id;
    assert_eq!((run(&ledger, id).state, run(&ledger, id).step), (AllocationState::Releasing, AllocationStep::AwaitRelease));
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Provisioning);
    assert_ne!(run(&ledger, id).node_id, first);
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Active);
    assert_eq!(run(&ledger, id).last_error, None, "what went well in the end is no last_error");
}

#[test]
fn it_can_be_given_back_while_it_waits_for_a_place() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = ledger.request(&Request { wait: Duration::from_secs(600), ..slice(2) }).expect("fits");
    settle(&mut ledger, id);
    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Released);
    let id = ledger.request(&slice(1)).expect("fits");
    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Released);
    assert_eq!(run(&ledger, id).task_id, None, "nothing was ordered any more");
    nothing_is_left(&ledger);
}

#[test]
fn given_back_while_it_is_made_it_is_told_to_stop() {
    for product in [slice(1), bare_metal()] {
        let mut ledger = Ledger::sliced(&[1]);
        ledger.add_whole(2);
        // Not sent yet: it ends immediately.
        let id = ledger.request(&product).expect("fits");
        settle(&mut ledger, id);
        ledger.release(id);
        assert_eq!(settle(&mut ledger, id), AllocationState::Released);
        assert_eq!(ledger.tasks[&ledger.task_of(id)].code, "cancelled_before_dispatch");
        nothing_is_left(&ledger);
        // Running: the host is asked to cancel, and the run waits for its answer.
        for (ends, then) in [
            (End::CancelledUnstarted, AllocationState::Released),
            (End::CancelledClean, AllocationState::Released),
            (End::CancelledDirty, AllocationState::Releasing),
            (End::Succeeded, AllocationState::Releasing),
        ] {
            let id = ledger.request(&product).expect("fits");
            settle(&mut ledger, id);
            let task = ledger.task_of(id);
            ledger.start(task);
            ledger.release(id);
            assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning);
            assert_eq!(ledger.tasks[&task].cancel_requested_at, Some(ledger.now));
            // On a whole host, only the removal of the user is a proof.
            let whole = product.sku.product == Product::BareMetal && ends == End::CancelledClean;
            let then = if whole { AllocationState::Releasing } else { then };
            assert_eq!(end(&mut ledger, id, ends), then, "{ends:?}");
            if then == AllocationState::Releasing {
                assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
            }
            assert!(!ledger.told(&id).contains(&"allocation.active"), "its tenant never had it");
            nothing_is_left(&ledger);
        }
    }
}

#[test]
fn given_back_while_it_is_stopped_it_goes_after_that() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.power(id, PowerAction::Stop).expect("is active");
    settle(&mut ledger, id);
    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::Active, "the host has not answered yet");
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Releasing);
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    nothing_is_left(&ledger);
}

#[test]
fn the_end_of_the_lease_takes_it_back() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &Request { lease: Some(Duration::from_secs(3600)), ..slice(1) });
    assert_eq!(ledger.decide(id).next, Next::At(later(3600)), "nobody needs to look before");
    ledger.now = later(3599);
    assert_eq!(settle(&mut ledger, id), AllocationState::Active);
    ledger.now = later(3600);
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    let request = run(&ledger, id).release_request.clone().expect("it is wanted back");
    assert_eq!((request.by.as_str(), request.at), ("system", later(3600)));
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    nothing_is_left(&ledger);
}

#[test]
fn a_lease_that_is_over_before_there_is_a_place_is_not_begun() {
    let mut ledger = Ledger::sliced(&[1]);
    let first = active(&mut ledger, &slice(1));
    let request = Request { lease: Some(Duration::from_secs(60)), wait: Duration::from_secs(600), ..slice(1) };
    let id = ledger.request(&request).expect("fits");
    assert_eq!(settle(&mut ledger, id), AllocationState::Placing);
    ledger.release(first);
    settle(&mut ledger, first);
    end(&mut ledger, first, End::Succeeded);
    ledger.now = later(60);
    assert_eq!(settle(&mut ledger, id), AllocationState::Failed);
    assert_eq!((last_error(&ledger, id).0, run(&ledger, id).attempts), ("lease_over", 0));
    assert_eq!(code(ledger.retry(id, Duration::ZERO)), "lease_over");
    nothing_is_left(&ledger);
}

#[test]
fn a_lease_can_be_made_longer() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &Request { lease: Some(Duration::from_secs(600)), ..slice(1) });
    ledger.extend(id, Some(Duration::from_secs(600))).expect("is active");
    assert_eq!((run(&ledger, id).expires_at, run(&ledger, id).due_at), (Some(later(1200)), Some(later(1200))));
    assert_eq!(code(ledger.extend(id, Some(MAX_LEASE))), "lease_invalid");
    assert_eq!(code(ledger.extend(id, Some(Duration::from_secs(59)))), "lease_invalid");
    ledger.power(id, PowerAction::Stop).expect("is active");
    ledger.extend(id, Some(Duration::from_secs(60))).expect("is active");
    assert_eq!(run(&ledger, id).due_at, Some(ledger.now), "what was wanted before is not forgotten for it");
    ledger.release(id);
    assert_eq!(code(ledger.extend(id, None)), "allocation_not_active");
}

#[test]
fn a_lease_without_an_end_gets_none_by_asking_for_more_time() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &Request { lease: Some(Duration::from_secs(600)), ..slice(1) });
    ledger.extend(id, None).expect("is active");
    assert_eq!(code(ledger.extend(id, Some(Duration::from_secs(600)))), "lease_without_end");
    ledger.now = later(100_000);
    assert_eq!(settle(&mut ledger, id), AllocationState::Active);
    assert_eq!((run(&ledger, id).expires_at, run(&ledger, id).due_at), (None, None));
}

#[test]
fn a_guest_is_stopped_started_and_rebooted() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.power(id, PowerAction::Start).expect("runs already");
    assert_eq!(run(&ledger, id).pending_power_action, None, "nothing to do");
    for (action, becomes) in [
        (PowerAction::Stop, AllocationState::Stopped),
        (PowerAction::Start, AllocationState::Active),
        (PowerAction::Reboot, AllocationState::Active),
    ] {
        let before = run(&ledger, id).state;
        ledger.power(id, action).expect("is active");
        let version = run(&ledger, id).version;
        ledger.power(id, action).expect("said twice");
        assert_eq!(run(&ledger, id).version, version, "said twice, done once");
        assert_eq!(settle(&mut ledger, id), before);
        assert_eq!(run(&ledger, id).step, AllocationStep::AwaitPower);
        let other = if action == PowerAction::Stop { PowerAction::Reboot } else { PowerAction::Stop };
        assert_eq!(code(ledger.power(id, other)), "allocation_busy");
        assert_eq!(end(&mut ledger, id, End::Succeeded), becomes);
        assert_eq!(run(&ledger, id).pending_power_action, None);
        if becomes == AllocationState::Stopped {
            assert_eq!(code(ledger.power(id, PowerAction::Reboot)), "allocation_stopped");
        }
    }
    let told = ledger.told(&id);
    let kinds = ["stopped", "started", "rebooted"].map(|kind| format!("allocation.{kind}"));
    assert!(kinds.iter().all(|kind| told.contains(&kind.as_str())), "{told:?}");
    ledger.power(id, PowerAction::Stop).expect("is active");
    settle(&mut ledger, id);
    assert_eq!(end(&mut ledger, id, End::FailedDirty), AllocationState::Active, "it is still its tenant's");
    assert_eq!(last_error(&ledger, id).0, "some_code");
    let (mut ledger, whole) = (Ledger::whole(1), bare_metal());
    let id = active(&mut ledger, &whole);
    assert_eq!(code(ledger.power(id, PowerAction::Reboot)), "power_not_supported");
}

#[test]
fn a_release_that_is_requested_while_the_guest_is_stopped_begins_after_the_stop() {
    for how in [End::Succeeded, End::FailedDirty] {
        let mut ledger = Ledger::sliced(&[1]);
        let id = active(&mut ledger, &slice(1));
        ledger.power(id, PowerAction::Stop).expect("is active");
        settle(&mut ledger, id);
        ledger.release(id);
        assert_eq!(settle(&mut ledger, id), AllocationState::Active, "the host is still stopping it");
        assert_eq!(end(&mut ledger, id, how), AllocationState::Releasing);
    }
}

#[test]
fn a_guest_that_was_started_is_booting_until_its_host_says_whether_it_answers() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    assert_eq!(run(&ledger, id).guest, Some(GuestState::Answering), "no guest is made before it answers");
    ledger.power(id, PowerAction::Stop).expect("is active");
    settle(&mut ledger, id);
    end(&mut ledger, id, End::Succeeded);
    assert_eq!(run(&ledger, id).guest, Some(GuestState::Off));
    for (answers, guest, code) in [
        (Some(false), Some(GuestState::NotAnswering), Some("guest_not_answering")),
        (Some(true), Some(GuestState::Answering), None),
        (None, None, None),
    ] {
        ledger.guest_answers = answers;
        let is_off = run(&ledger, id).state == AllocationState::Stopped;
        let action = if is_off { PowerAction::Start } else { PowerAction::Reboot };
        ledger.power(id, action).expect("is held");
        settle(&mut ledger, id);
        assert_eq!(run(&ledger, id).guest, Some(GuestState::Booting));
        assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Active);
        let now = run(&ledger, id);
        assert_eq!((now.guest, now.last_error.as_ref().map(|error| error.code.as_str())), (guest, code));
    }
    ledger.power(id, PowerAction::Reboot).expect("is active");
    settle(&mut ledger, id);
    end(&mut ledger, id, End::FailedDirty);
    assert_eq!(run(&ledger, id).guest, None, "nobody knows");
}

#[test]
fn a_guest_that_is_given_back_while_it_boots_is_waited_for_by_nobody() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.power(id, PowerAction::Reboot).expect("is active");
    settle(&mut ledger, id);
    let task = ledger.task_of(id);
    assert!(ledger.tasks[&task].cancel_requested_at.is_none());
    ledger.release(id);
    settle(&mut ledger, id);
    let task = &ledger.tasks[&task];
    assert!(task.cancel_requested_at.is_some() || task.state == TaskState::Cancelled);
}

#[test]
fn power_that_cannot_be_ordered_is_said_and_forgotten() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.operate(node_id(1), Operation::Retire).expect("an operator may");
    ledger.power(id, PowerAction::Stop).expect("is active");
    assert_eq!(settle(&mut ledger, id), AllocationState::Active);
    assert_eq!((last_error(&ledger, id).0, run(&ledger, id).pending_power_action), ("node_takes_no_work", None));
    assert_eq!(run(&ledger, id).due_at, None, "and nobody looks again for it");
}

#[test]
fn what_failed_can_be_tried_again_from_the_beginning() {
    let mut ledger = Ledger::sliced(&[1, 1]);
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    end(&mut ledger, id, End::FailedClean);
    end(&mut ledger, id, End::FailedClean);
    assert_eq!(run(&ledger, id).state, AllocationState::Failed);
    let told = ledger.told(&id).len();
    ledger.retry(id, Duration::ZERO).expect("it failed");
    assert_eq!(ledger.told(&id)[told..], ["allocation.retried"]);
    assert_eq!(ledger.used(), Used { allocations: 1, slots: 1, machines: 0 });
    assert_eq!(code(ledger.retry(id, Duration::ZERO)), "nothing_to_retry");
    assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning, "no host is avoided any more");
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Active);
    assert_eq!(run(&ledger, id).attempts, 1);
}

#[test]
fn trying_again_counts_against_the_quota() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = asked(&mut ledger, &slice(1), End::FailedClean);
    let limits = Limits { slots: Some(0), ..Limits::default() };
    let (_, lowered) = quota::set_limits(ledger.quota(&project(1, 0)), limits, &at(ledger.now));
    ledger.commit(lowered).expect("nobody else writes");
    assert_eq!(code(ledger.retry(id, Duration::ZERO)), "quota_exceeded");
    assert_eq!(code(ledger.request(&slice(1)).map(drop)), "quota_exceeded");
    assert_eq!(code(ledger.retry(id, MAX_WAIT + Duration::from_secs(1))), "wait_invalid");
    nothing_is_left(&ledger);
}

#[test]
fn a_release_that_fails_is_tried_again_and_then_left_to_an_operator() {
    for (mut ledger, request) in [(Ledger::sliced(&[2]), slice(2)), (Ledger::whole(1), bare_metal())] {
        let id = active(&mut ledger, &request);
        ledger.release(id);
        settle(&mut ledger, id);
        end(&mut ledger, id, End::FailedDirty);
        assert_eq!((run(&ledger, id).state, run(&ledger, id).step), (AllocationState::Releasing, AllocationStep::Release));
        assert!(run(&ledger, id).due_at > Some(ledger.now), "not at once");
        assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
        assert_eq!(run(&ledger, id).step, AllocationStep::Release, "looking again does not help");
        wait_for(&mut ledger, id);
        for _ in 1..MAX_RELEASES {
            end(&mut ledger, id, End::Interrupted);
            wait_for(&mut ledger, id);
        }
        assert_eq!(run(&ledger, id).state, AllocationState::ReleaseBlocked);
        assert_eq!((run(&ledger, id).due_at, run(&ledger, id).releases), (None, MAX_RELEASES));
        assert_ne!(ledger.used(), Used::default(), "what is not clean is not free");
        ledger.wait(100_000);
        let told = ledger.told(&id).len();
        settle(&mut ledger, id);
        assert_eq!(ledger.told(&id).len(), told, "nothing happens by itself any more");

        ledger.retry(id, Duration::ZERO).expect("an operator may");
        assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
        assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
        nothing_is_left(&ledger);
    }
}

#[test]
fn an_operator_cleans_up_what_is_blocked_and_it_is_released() {
    for (mut ledger, request) in [(Ledger::sliced(&[2]), slice(2)), (Ledger::whole(1), bare_metal())] {
        let id = active(&mut ledger, &request);
        let sliced = !ledger.slots.is_empty();
        ledger.release(id);
        blocked(&mut ledger, id);
        let force = |ledger: &mut Ledger| match sliced {
            true => ledger.force_cleanup(slot_id(1, 0)),
            false => ledger.force_machine(node_id(1)),
        };
        let task = force(&mut ledger).expect("it is blocked");
        settle(&mut ledger, id);
        assert!(code(force(&mut ledger)).ends_with("_busy"), "one at a time");
        ledger.end(task, End::FailedDirty);
        assert_eq!(settle(&mut ledger, id), AllocationState::ReleaseBlocked, "that did not help either");
        let task = force(&mut ledger).expect("it is blocked");
        ledger.end(task, End::Succeeded);
        assert_eq!(settle(&mut ledger, id), AllocationState::Released);
        nothing_is_left(&ledger);
    }
}

#[test]
fn what_was_never_made_and_is_blocked_fails_once_it_is_clean_and_goes_to_no_other_host() {
    for by_operator in [true, false] {
        let mut ledger = Ledger::sliced(&[1, 1]);
        let id = asked(&mut ledger, &slice(1), End::FailedDirty);
        blocked(&mut ledger, id);
        assert_eq!(run(&ledger, id).release_request, None);
        if by_operator {
            let slot = ledger.slots_of(id)[0].id;
            let task = ledger.force_cleanup(slot).expect("it is blocked");
            ledger.end(task, End::Succeeded);
        } else {
            ledger.retry(id, Duration::ZERO).expect("an operator may");
            settle(&mut ledger, id);
            let task = ledger.task_of(id);
            ledger.end(task, End::Succeeded);
        }
        assert_eq!(settle(&mut ledger, id), AllocationState::Failed, "its tenant was told that it is over");
        nothing_is_left(&ledger);
        ledger.retry(id, Duration::ZERO).expect("its tenant may");
        rules::check(&ledger);
        assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning);
    }
}

#[test]
fn a_release_that_nobody_can_be_told_waits_for_an_operator() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.operate(node_id(1), Operation::Retire).expect("an operator may");
    ledger.release(id);
    assert_eq!(settle(&mut ledger, id), AllocationState::ReleaseBlocked);
    assert_eq!(last_error(&ledger, id).0, "node_takes_no_work");
    ledger.retry(id, Duration::ZERO).expect("an operator may");
    assert_eq!(settle(&mut ledger, id), AllocationState::ReleaseBlocked);
    assert_eq!((run(&ledger, id).releases, run(&ledger, id).due_at), (MAX_RELEASES, None), "and waits again");
    ledger.enroll(node_id(1));
    ledger.connect(node_id(1), |_| false).expect("enrolled again");
    ledger.retry(id, Duration::ZERO).expect("an operator may");
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    nothing_is_left(&ledger);
}

#[test]
fn what_an_operator_takes_away_is_no_longer_active() {
    for ends in [End::Succeeded, End::FailedDirty] {
        let mut ledger = Ledger::sliced(&[2]);
        let id = active(&mut ledger, &slice(2));
        assert_eq!(code(ledger.force_cleanup(slot_id(1, 0))), "slot_in_use", "not by mistake");
        let task = ledger.release_slots(slot_id(1, 0), true).expect("an operator may");
        assert_eq!(settle_unchecked(&mut ledger, id), AllocationState::Releasing, "its guest is going");
        ledger.end(task, ends);
        settle(&mut ledger, id);
        if ends == End::FailedDirty {
            assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Failed);
        }
        assert_eq!(run(&ledger, id).state, AllocationState::Failed);
        assert_eq!(last_error(&ledger, id).0, "taken_away");
        nothing_is_left(&ledger);
    }
    let mut ledger = Ledger::whole(1);
    let id = active(&mut ledger, &bare_metal());
    assert_eq!(code(ledger.force_machine(node_id(1))), "machine_in_use", "not by mistake");
    assert_eq!(run(&ledger, id).state, AllocationState::Active);
}

#[test]
fn what_an_operator_releases_without_a_wipe_is_wiped_by_nobody_but_an_operator() {
    for (ends, leaves) in [
        (End::NotWiped, SlotState::NeedsWipe),
        (End::FailedDirty, SlotState::CleanupBlocked),
        (End::Refused, SlotState::CleanupBlocked),
    ] {
        let mut ledger = Ledger::sliced(&[2]);
        let id = active(&mut ledger, &slice(2));
        let task = ledger.release_slots(slot_id(1, 0), false).expect("an operator may");
        assert_eq!(settle_unchecked(&mut ledger, id), AllocationState::Releasing, "its guest is going");
        ledger.end(task, ends);
        assert_eq!(settle(&mut ledger, id), AllocationState::ReleaseBlocked, "{ends:?}");
        let (code, reason, _) = last_error(&ledger, id);
        assert_eq!(code, "content_kept");
        assert!(reason.contains("an operator keeps what is on its disks"), "{reason}");
        let tasks = ledger.tasks.len();
        ledger.wait(100_000);
        settle(&mut ledger, id);
        ledger.release(id);
        settle(&mut ledger, id);
        ledger.retry(id, Duration::ZERO).expect("it is blocked");
        assert_eq!(settle(&mut ledger, id), AllocationState::ReleaseBlocked, "neither time nor its tenant wipes the drives");
        assert_eq!(ledger.tasks.len(), tasks, "{ends:?}: nothing was ordered");
        for slot in ledger.slots_of(id) {
            assert_eq!(slot.state, leaves);
            assert!(!slot.reason.is_empty(), "the operator sees why");
        }
        let task = ledger.force_cleanup(slot_id(1, 0)).expect("an operator may");
        ledger.end(task, End::Succeeded);
        assert_eq!(settle(&mut ledger, id), AllocationState::Released);
        nothing_is_left(&ledger);
    }
}

/// Does not compare what the tenant sees with what operators did, because they differ until the run has advanced once.
fn settle_unchecked(ledger: &mut Ledger, id: AllocationId) -> AllocationState {
    ledger.advance(id);
    settle(ledger, id)
}

#[test]
fn what_was_taken_away_can_be_asked_for_again() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    let task = ledger.release_slots(slot_id(1, 0), true).expect("an operator may");
    ledger.end(task, End::Succeeded);
    ledger.advance(id);
    assert_eq!(run(&ledger, id).state, AllocationState::Failed);
    ledger.retry(id, Duration::ZERO).expect("it failed");
    assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning);
}

#[test]
fn what_an_operator_takes_away_before_its_run_has_looked_never_was_active() {
    let mut ledger = Ledger::sliced(&[1, 1]);
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    let (task, slot) = (ledger.task_of(id), run(&ledger, id).slots[0]);
    ledger.end(task, End::Succeeded);
    let release = ledger.release_slots(slot, true).expect("an operator may");
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing);
    assert_eq!(last_error(&ledger, id).0, "taken_away");
    ledger.end(release, End::Succeeded);
    assert_eq!(settle(&mut ledger, id), AllocationState::Provisioning, "on another host");
    assert!(!ledger.told(&id).contains(&"allocation.active"));
}

#[test]
fn a_host_that_answers_too_late_changes_nothing_that_went_on_without_it() {
    let mut ledger = Ledger::sliced(&[1, 1]);
    let id = asked(&mut ledger, &slice(1), End::NoWord);
    let lost = ledger.made[0];
    assert_eq!((ledger.tasks[&lost].state, run(&ledger, id).state), (TaskState::Lost, AllocationState::Releasing));
    let order = ledger.order(lost);
    ledger.receipt(lost, End::Succeeded.reported(&order).expect("speaks"));
    assert_eq!(settle(&mut ledger, id), AllocationState::Releasing, "it is being given back");
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Provisioning, "and another host was tried");
    // The same before the release is ordered: the guest exists after all, and is removed anyway.
    let mut ledger = Ledger::sliced(&[1, 1]);
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    let task = ledger.task_of(id);
    ledger.end(task, End::NoWord);
    let order = ledger.order(task);
    ledger.receipt(task, End::Succeeded.reported(&order).expect("speaks"));
    assert_eq!(settle(&mut ledger, id), AllocationState::Active, "nobody had looked yet: it is there");
}

#[test]
fn the_record_of_a_key_names_the_allocation_and_is_kept_as_long() {
    let ledger = Ledger::sliced(&[2]);
    let (id, project) = (AllocationId::generate(), &ledger.projects[&project(1, 0)]);
    let quotas = ledger.quotas_of(project.id, project.organization_id);
    let (_, decision) = commands::request(id, project, &quotas, &slice(1), &at(ledger.now)).expect("decided");
    let key = RequestKey::new(&Actor::System, "key-1", Digest::of(b"request")).expect("a key");
    let record = key.record(&decision, ledger.now);
    assert_eq!((record.subject, record.expires_at), (id.to_string(), None));
}

#[test]
fn two_requests_that_are_too_much_together_do_not_both_pass() {
    let mut ledger = Ledger::sliced(&[4]);
    let limits = Limits { slots: Some(3), ..Limits::default() };
    let (_, set) = quota::set_limits(ledger.quota(&organization(1)), limits, &at(ledger.now));
    ledger.commit(set).expect("nobody else writes");
    let decided: Vec<_> = [0, 1]
        .into_iter()
        .map(|number| {
            let project = &ledger.projects[&project(1, number)];
            let quotas = ledger.quotas_of(project.id, project.organization_id);
            commands::request(AllocationId::generate(), project, &quotas, &slice(2), &at(ledger.now)).expect("fits").1
        })
        .collect();
    let mut written = decided.into_iter().map(|decision| ledger.commit(decision));
    assert_eq!((written.next(), written.next()), (Some(Ok(())), Some(Err(Conflict))));
    assert_eq!(code(ledger.request_in((1, 1), &slice(2))), "quota_exceeded");
    rules::check(&ledger);
}

#[test]
fn saying_it_twice_changes_nothing() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.release(id);
    let (version, told) = (run(&ledger, id).version, ledger.told(&id).len());
    ledger.release(id);
    settle(&mut ledger, id);
    ledger.release(id);
    end(&mut ledger, id, End::Succeeded);
    ledger.release(id);
    assert_eq!(run(&ledger, id).state, AllocationState::Released);
    assert_eq!(ledger.told(&id).iter().filter(|kind| **kind == "allocation.release_requested").count(), 1);
    assert!(run(&ledger, id).version > version && ledger.told(&id).len() > told);
    assert_eq!(code(ledger.retry(id, Duration::ZERO)), "nothing_to_retry", "what was given back stays given back");
    let long = "x".repeat(501);
    assert_eq!(code(ledger.say(id, |run, context| commands::release(run, &long, context))), "reason_too_long");
}

#[test]
fn tenants_read_nothing_about_hosts_and_operators_everything() {
    let hidden = secrets_of(1);
    let message = format!("{} at {}2 lost drive {}0", hidden[0], hidden[2], hidden[1]);
    let tells = |ledger: &Ledger, id: AllocationId, operators: &[&str]| {
        let run = run(ledger, id);
        let last_error = run.last_error.as_ref().expect("something went wrong");
        for secret in &hidden {
            assert!(!last_error.reason.contains(secret.as_str()), "{} tells {secret}", last_error.reason);
            for event in ledger.events.iter().filter(|event| event.subject == id.to_string()) {
                assert!(!event.data["reason"].to_string().contains(secret.as_str()), "{} tells {secret}", event.data);
            }
        }
        for word in operators {
            assert!(last_error.detail.contains(word), "{} does not tell {word}", last_error.detail);
        }
    };
    // A provisioning that fails and leaves something behind, its release, and a blocked release.
    let mut ledger = Ledger::sliced(&[1]);
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    let task = ledger.task_of(id);
    ledger.start(task);
    ledger.receipt(task, Report { message: message.clone(), code: "drive_failed", ..Report::plainly(Outcome::Failed) });
    settle(&mut ledger, id);
    tells(&ledger, id, &[&hidden[0], &message, "drive_failed", &task.to_string()]);
    blocked(&mut ledger, id);
    tells(&ledger, id, &[&hidden[0], "slot 0 is cleanup_blocked"]);
    // Tenants are told what they can fix themselves.
    for (code, word) in [("image_digest_mismatch", "digest"), ("readiness_timeout", "console"), ("image_too_large", "smaller")] {
        let mut ledger = Ledger::sliced(&[1]);
        let id = ledger.request(&slice(1)).expect("fits");
        settle(&mut ledger, id);
        let task = ledger.task_of(id);
        let reported = End::FailedClean.reported(&ledger.order(task)).expect("speaks");
        ledger.start(task);
        ledger.receipt(task, Report { message: message.clone(), code, ..reported });
        settle(&mut ledger, id);
        assert!(last_error(&ledger, id).1.contains(word), "{:?}", last_error(&ledger, id));
        tells(&ledger, id, &[code, &message]);
    }
    // No capacity, and a power action that fails.
    let mut ledger = Ledger::sliced(&[1]);
    let other = active(&mut ledger, &slice(1));
    let id = ledger.request(&slice(1)).expect("fits");
    settle(&mut ledger, id);
    tells(&ledger, id, &[&hidden[0]]);
    ledger.power(other, PowerAction::Stop).expect("is active");
    settle(&mut ledger, other);
    let task = ledger.task_of(other);
    ledger.start(task);
    ledger.receipt(task, Report { message: message.clone(), ..Report::plainly(Outcome::Failed) });
    settle(&mut ledger, other);
    tells(&ledger, other, &[&hidden[0], &message]);
}

#[test]
fn what_can_never_be_had_is_refused_at_once() {
    let mut ledger = Ledger::whole(1);
    for (request, code) in [
        (Request { username: Some("docker".parse().expect("a name")), ..bare_metal() }, "username_reserved"),
        (Request { image: None, ..slice(1) }, "image_required"),
        (Request { image: slice(1).image, ..bare_metal() }, "image_not_allowed"),
        (Request { ssh_public_keys: Vec::new(), ..slice(1) }, "ssh_keys_invalid"),
        (Request { lease: Some(Duration::from_secs(1)), ..slice(1) }, "lease_invalid"),
        (Request { wait: MAX_WAIT * 2, ..slice(1) }, "wait_invalid"),
        (Request { tags: BTreeMap::from([("a b".to_owned(), String::new())]), ..slice(1) }, "tags_invalid"),
    ] {
        assert_eq!(support::code(ledger.request(&request)), code);
    }
    let mut retired = slice(1);
    retired.sku.retired_at = Some(ledger.now);
    assert_eq!(code(ledger.request(&retired)), "sku_retired");
    let mut foreign = slice(1);
    foreign.image.as_mut().expect("a slice has one").organization_id = Some(organization(2));
    assert_eq!(code(ledger.request(&foreign)), "image_unknown");
    assert!(ledger.request_in((2, 0), &foreign).is_ok(), "its own organization may");
}

#[test]
fn names_and_tags_can_be_changed_and_the_guest_keeps_its_name() {
    let mut ledger = Ledger::sliced(&[1]);
    let tags = BTreeMap::from([("team".to_owned(), "vision".to_owned())]);
    let id = active(&mut ledger, &Request { tags: tags.clone(), ..slice(1) });
    let version = run(&ledger, id).version;
    let name = || Some("other-name".parse().expect("a name"));
    ledger.say(id, |run, context| commands::describe(run, None, Some(tags.clone()), context)).expect("the same");
    assert_eq!(run(&ledger, id).version, version, "the same is no change");
    ledger.say(id, |run, context| commands::describe(run, name(), None, context)).expect("may");
    assert_eq!((run(&ledger, id).name.as_str(), &run(&ledger, id).tags), ("other-name", &tags));
    assert_eq!(ledger.told(&id).last(), Some(&"allocation.described"));
    let bad = BTreeMap::from([(String::new(), String::new())]);
    assert_eq!(code(ledger.say(id, |run, context| commands::describe(run, None, Some(bad.clone()), context))), "tags_invalid");
    let Task::SliceVmProvision(params) = ledger.order(ledger.made[0]) else { panic!("it was made") };
    assert_eq!(params.guest.vm_name.as_str(), "train-1");
    assert_eq!(settle(&mut ledger, id), AllocationState::Active);
}

#[test]
fn a_node_that_is_drained_or_held_back_still_lets_its_tenants_go() {
    for operation in [Operation::Drain, Operation::Quarantine] {
        let mut ledger = Ledger::sliced(&[1]);
        let id = active(&mut ledger, &slice(1));
        ledger.operate(node_id(1), operation).expect("an operator may");
        let other = ledger.request(&slice(1)).expect("fits");
        assert_eq!(settle(&mut ledger, other), AllocationState::Failed, "nobody new");
        ledger.power(id, PowerAction::Stop).expect("is active");
        settle(&mut ledger, id);
        assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Stopped);
        ledger.release(id);
        settle(&mut ledger, id);
        assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
        assert_ne!(ledger.nodes[&node_id(1)].service, NodeService::InService);
        nothing_is_left(&ledger);
    }
}

#[test]
fn a_slot_that_is_held_back_stays_with_its_tenant_until_it_is_given_back() {
    let mut ledger = Ledger::sliced(&[1]);
    let id = active(&mut ledger, &slice(1));
    ledger.operate_slot(slot_id(1, 0), gpuaas_domain::slot::Operation::Quarantine).expect("an operator may");
    assert_eq!(settle(&mut ledger, id), AllocationState::Active);
    ledger.release(id);
    settle(&mut ledger, id);
    assert_eq!(end(&mut ledger, id, End::Succeeded), AllocationState::Released);
    assert_eq!(ledger.slots[&slot_id(1, 0)].state, SlotState::Quarantined);
    assert_eq!(ledger.used(), Used::default());
}

#[test]
fn a_machine_is_offered_and_withdrawn_only_while_nobody_has_it() {
    let mut ledger = Ledger::sliced(&[1]);
    assert_eq!(code(ledger.offer(node_id(1))), "node_is_sliced");
    ledger.operate_slot(slot_id(1, 0), gpuaas_domain::slot::Operation::Withdraw).expect("is free");
    ledger.offer(node_id(1)).expect("no longer sliced");
    ledger.offer(node_id(1)).expect("said twice");
    let id = active(&mut ledger, &bare_metal());
    let withdraw = |ledger: &Ledger, node: NodeId| machine::withdraw(ledger.machine(node), "sold", &at(ledger.now));
    assert_eq!(code(withdraw(&ledger, node_id(1))), "machine_in_use");
    ledger.release(id);
    settle(&mut ledger, id);
    end(&mut ledger, id, End::Succeeded);
    let (_, decision) = withdraw(&ledger, node_id(1)).expect("is free");
    ledger.commit(decision).expect("nobody else writes");
    let (same, nothing) = withdraw(&ledger, node_id(1)).expect("said twice");
    assert!(nothing.is_empty() && same.state == MachineState::Withdrawn);
    ledger.offer(node_id(1)).expect("offered again");
    assert_eq!(ledger.machine(node_id(1)).lease_epoch, 1, "numbers never go back");
    let id = active(&mut ledger, &bare_metal());
    assert_eq!(ledger.machine(node_id(1)).lease_epoch, 2);
    assert!(ledger.tasks.values().all(|task| task.task_type != TaskType::SliceVmProvision));
    assert_eq!(run(&ledger, id).slots, []);
}
