//! Slices: what operators can order, and the effects of task ends on slots.

mod support;

use gpuaas_contract::cleanup::{CleanupProof, DriveProof, Reset, SlotProof, WipeMethod, WipeStatus};
use gpuaas_contract::guest::{GuestSpec, ImageSource};
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::MAX_SLOTS;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::slice::{self, Ending, TaskEnd};
use gpuaas_domain::slot::{self, Operation, Slot, SlotState};
use gpuaas_domain::task::{self, TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision, Refusal};
use support::slices::{Harness, guest, proof, slot, slot_proof};
use support::{NOW, at, code, context, later, node, outgoing};

use SlotState::{Available, CleanupBlocked, Leased, NeedsWipe, Quarantined, Releasing, Withdrawn};

fn provision(slots: &[Slot], guest: &GuestSpec) -> Result<slice::Order, Refusal> {
    let ids = (AllocationId::generate(), TaskId::generate());
    slice::provision(&node(), slots, guest, ids, slot::seal_text, &context())
}

#[test]
fn free_slots_are_leased_under_a_number_that_none_of_them_ever_had() {
    let slots = [Slot { lease_epoch: 3, ..slot(5) }, Slot { lease_epoch: 8, ..slot(2) }];
    let ids = (AllocationId::generate(), TaskId::generate());
    let order = slice::provision(&node(), &slots, &guest(), ids, slot::seal_text, &context()).expect("free");
    let Task::SliceVmProvision(params) = &order.task else { panic!("{:?}", order.task) };
    assert_eq!((params.allocation_id, params.lease_epoch), (ids.0, 9));
    assert_eq!(params.slots, [slots[1].leased(), slots[0].leased()], "by index, so that the address is the first one's");
    for after in &order.slots {
        assert_eq!((after.state, after.allocation_id, after.lease_epoch), (Leased, Some(ids.0), 9));
        assert_eq!((after.lease_task, &after.seal), (Some(ids.1), &slot::seal_text(after)));
        assert!(order.decision.changes.contains(&Change::SlotUpdate(Box::new(after.clone()))));
    }
    assert_eq!(order.decision.audit.iter().map(|row| row.action).collect::<Vec<_>>(), ["slot.lease"; 2]);
    assert_eq!(order.decision.events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["gpuaas.slot.leased.v1"; 2]);
}

#[test]
fn only_free_slots_of_the_node_can_be_leased() {
    for state in SlotState::ALL.into_iter().filter(|state| *state != Available) {
        let refusal = provision(&[slot(0), Slot { state, reason: "why".to_owned(), ..slot(1) }], &guest()).expect_err("taken");
        assert_eq!(refusal.code, "slot_not_available", "{state:?}");
        assert!(refusal.message.contains(state.as_str()) && refusal.message.contains("why"), "{refusal}");
    }
    let refused = |slots: &[Slot]| code(provision(slots, &guest()));
    assert_eq!(refused(&[Slot { quarantine: Some("held".to_owned()), ..slot(0) }]), "slot_not_available");
    assert_eq!(refused(&[Slot { allocation_id: Some(AllocationId::generate()), ..slot(0) }]), "slot_not_available");
    assert_eq!(refused(&[slot(0), Slot { node_id: NodeId::generate(), ..slot(1) }]), "slot_of_another_node");
    assert_eq!(refused(&[]), "slots_invalid");
    assert_eq!(refused(&(0..=u32::try_from(MAX_SLOTS).expect("few")).map(slot).collect::<Vec<_>>()), "slots_invalid");
    let twice = slot(0);
    assert_eq!(refused(&[twice.clone(), twice]), "params_invalid");
    assert_eq!(refused(&[slot(0), Slot { id: SlotId::generate(), ..slot(0) }]), "params_invalid", "they share devices");
    let last = u64::try_from(i64::MAX).expect("positive");
    assert_eq!(refused(&[Slot { lease_epoch: last, ..slot(0) }]), "lease_epochs_used_up");
    let nowhere = GuestSpec { image: ImageSource { path: None, ..guest().image }, ..guest() };
    assert_eq!(code(provision(&[slot(0)], &nowhere)), "params_invalid");
    let root = GuestSpec { default_username: "root".parse().expect("a name"), ..guest() };
    assert_eq!(code(provision(&[slot(0)], &root)), "params_invalid");
}

#[test]
fn the_envelope_names_the_same_lease_as_its_params() {
    let (mut harness, made) = Harness::running(2, &[0, 1]);
    let release = harness.release(0, true).expect("is there");
    for id in [made, release] {
        let holder = harness.order(id).holder().expect("has one");
        let payload = task::envelope_payload(harness.task(id), &node(), support::CLUSTER, NOW).expect("payload");
        assert_eq!((payload.allocation_id, payload.lease_epoch), (Some(holder.allocation_id), Some(holder.lease_epoch)));
    }
    let corrupt = TaskRecord { params: "{}".to_owned(), ..harness.task(made).clone() };
    assert_eq!(outgoing(&corrupt, &node(), NOW).expect_err("no lease").code, "task_params_corrupt");
}

#[test]
fn tasks_on_slots_are_not_made_by_hand() {
    for kind in TaskType::ALL {
        match slice::check_by_hand(kind) {
            Ok(()) => assert!(!kind.needs_lease(), "{kind}"),
            Err(refusal) => {
                assert!(kind.needs_lease() && refusal.code == "task_needs_lease", "{kind}");
                assert!(refusal.message.contains("gpuaas slice") || refusal.message.contains("gpuaas alloc"), "{refusal}");
            }
        }
    }
}

#[test]
fn a_guest_is_made_used_released_and_its_slots_are_free_again() {
    let (mut harness, made) = Harness::running(3, &[0, 1]);
    assert_eq!(harness.states(), [Leased, Leased, Available]);
    assert!(harness.slots[0].drive_used && harness.slots[0].devices_used, "nobody can say otherwise from now on");
    let power = harness.power(1).expect("runs");
    let console = harness.console(0).expect("has one");
    for id in [power, console] {
        harness.start(id);
        assert!(harness.receipt(id, Outcome::Succeeded, None).is_empty(), "slots do not care");
    }
    assert_eq!(harness.slots[0].lease_task, Some(made));

    let release = harness.release(0, true).expect("runs");
    assert_eq!(harness.states(), [Releasing, Releasing, Available]);
    let Task::SliceVmRelease(params) = harness.order(release) else { panic!() };
    assert_eq!((params.lease_epoch, params.wipe, params.take_over, params.slots.len()), (1, true, false, 2));
    harness.start(release);
    let order = harness.order(release);
    let settled = harness.receipt(release, Outcome::Succeeded, Some(proof(&order)));
    assert_eq!(settled.audit.iter().map(|row| row.action).collect::<Vec<_>>(), ["slot.free"; 2]);
    assert_eq!(harness.states(), [Available; 3]);
    for slot in &harness.slots[..2] {
        assert_eq!((slot.allocation_id, slot.lease_epoch, slot.reason.as_str()), (None, 1, ""));
        assert!(!slot.drive_used && !slot.devices_used);
    }
    let next = harness.provision(&[1, 2]).expect("free again");
    assert_eq!(harness.order(next).holder().expect("has one").lease_epoch, 2);
}

/// All ways in which a provisioning can end, and the effect on its slot.
#[test]
fn how_a_provision_ends_decides_about_its_slots() {
    let ended = |end: &dyn Fn(&mut Harness, TaskId)| {
        let mut harness = Harness::new(1);
        let id = harness.provision(&[0]).expect("free");
        end(&mut harness, id);
        assert!(harness.task(id).state.ended(), "{:?}", harness.task(id).state);
        let slot = harness.slots[0].clone();
        assert_eq!(slot.allocation_id.is_none(), slot.state.is_clean(), "clean slots are nobody's");
        slot.state
    };
    let by_receipt = |outcome, with_proof: bool| {
        ended(&move |harness, id| {
            harness.start(id);
            let proof = with_proof.then(|| proof(&harness.order(id)));
            harness.receipt(id, outcome, proof);
        })
    };
    assert_eq!(by_receipt(Outcome::Succeeded, false), Leased);
    assert_eq!(by_receipt(Outcome::Refused, false), Available, "it never started");
    for outcome in [Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted] {
        assert_eq!(by_receipt(outcome, false), CleanupBlocked, "{outcome:?}");
        assert_eq!(by_receipt(outcome, true), Available, "{outcome:?}");
    }
    let unstarted = |outcome| {
        ended(&move |harness, id| {
            harness.start(id);
            harness.receipt_said(id, outcome, None, false);
        })
    };
    assert_eq!(unstarted(Outcome::Cancelled), Available, "cancelled before it started");
    assert_eq!(unstarted(Outcome::Interrupted), CleanupBlocked, "a damaged journal does not know");
    assert_eq!(unstarted(Outcome::Failed), CleanupBlocked);

    // Without a receipt, the slot is freed only if it is certain that the task never runs.
    let cancel = |harness: &mut Harness, id| {
        let decision = task::cancel(harness.task(id), "no", &at(harness.now)).expect("may");
        harness.commit(decision);
    };
    let tick = |harness: &mut Harness, id, seconds| {
        harness.now = later(seconds);
        let decision = task::tick(harness.task(id), &at(harness.now));
        harness.commit(decision);
    };
    assert_eq!(ended(&cancel), Available, "never sent");
    assert_eq!(ended(&|harness, id| tick(harness, id, 601)), Available, "expired without being sent");
    let gone = |harness: &mut Harness, id| {
        let decision = task::node_gone(harness.task(id), "retired", &at(harness.now));
        harness.commit(decision);
    };
    assert_eq!(ended(&gone), Available, "its node is gone and never had it");
    let sent = |end: &dyn Fn(&mut Harness, TaskId)| {
        ended(&|harness, id| {
            harness.dispatch(id).expect("sent");
            end(harness, id);
        })
    };
    assert_eq!(sent(&gone), CleanupBlocked, "its node may have it");
    assert_eq!(sent(&|harness, id| tick(harness, id, 2000)), CleanupBlocked, "no word from its node");
    let unknown = |harness: &mut Harness, id| {
        let decision = task::unknown_to_node(harness.task(id), gpuaas_contract::time::Timestamp(0), &at(harness.now));
        harness.commit(decision);
    };
    let cancelled_unaccepted = |harness: &mut Harness, id| {
        cancel(harness, id);
        unknown(harness, id);
    };
    assert_eq!(sent(&cancelled_unaccepted), Available, "its node says that it does not have it");
    let expired_unaccepted = |harness: &mut Harness, id| {
        unknown(harness, id);
        tick(harness, id, 2000);
    };
    assert_eq!(sent(&expired_unaccepted), Available);
    let lost = |harness: &mut Harness, id| {
        let started = task::acknowledged(harness.task(id), true, &at(harness.now));
        harness.commit(started);
        unknown(harness, id);
    };
    assert_eq!(sent(&lost), CleanupBlocked, "its node had it and lost its journal");
    let forged = |harness: &mut Harness, id| {
        let decision = task::intent_forged(harness.task(id), &at(harness.now));
        harness.commit(decision);
    };
    assert_eq!(ended(&forged), CleanupBlocked, "nothing is believed of a row that somebody changed");
}

#[test]
fn a_task_whose_row_was_changed_frees_nothing() {
    let (harness, made) = Harness::running(1, &[0]);
    let complete = TaskEnd::Receipt { outcome: Outcome::Failed, started: true, proof: Some(proof(&harness.order(made))) };
    for end in [TaskEnd::NeverRan, TaskEnd::MayHaveRun, complete] {
        let ending = Ending { task: harness.task(made).clone(), end };
        let decision = slice::settle(&harness.slots, &ending, false, slot::seal_text, &context());
        assert_eq!(slot_of(&decision).expect("changes").state, CleanupBlocked);
    }
}

fn slot_of(decision: &Decision) -> Option<Slot> {
    decision.changes.iter().find_map(|change| match change {
        Change::SlotUpdate(slot) => Some((**slot).clone()),
        _ => None,
    })
}

/// A release that has started, of a guest that was running.
fn releasing(wipe: bool) -> (Harness, TaskId, CleanupProof) {
    let (mut harness, _) = Harness::running(1, &[0]);
    let id = harness.release(0, wipe).expect("runs");
    harness.start(id);
    let proof = proof(&harness.order(id));
    (harness, id, proof)
}

#[test]
fn how_a_release_ends_decides_about_its_slots() {
    for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted] {
        let (mut harness, id, proof) = releasing(true);
        harness.receipt(id, outcome, Some(proof));
        assert_eq!(harness.states(), [Available], "{outcome:?} with a complete proof");
    }
    for outcome in [Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted, Outcome::Refused] {
        let (mut harness, id, _) = releasing(true);
        harness.receipt(id, outcome, None);
        assert_eq!(harness.states(), [CleanupBlocked], "{outcome:?} without a proof");
        assert!(harness.slots[0].reason.contains("some_code"), "{}", harness.slots[0].reason);
    }
    let (mut harness, id, _) = releasing(true);
    let decision = task::node_gone(harness.task(id), "retired", &context());
    harness.commit(decision);
    assert_eq!((harness.states(), harness.task(id).state), (vec![CleanupBlocked], TaskState::Lost));

    let (mut harness, _) = Harness::running(1, &[0]);
    let id = harness.release(0, true).expect("runs");
    let decision = task::cancel(harness.task(id), "stay", &context()).expect("may");
    harness.commit(decision);
    assert_eq!(harness.states(), [CleanupBlocked], "a release that never ran cleans nothing");
}

#[test]
fn without_a_wipe_a_slot_waits_for_one_and_only_a_real_wipe_counts() {
    let skipped = |proof: CleanupProof| with(proof, |slot| slot.drive = DriveProof::skipped("S0"));
    let (mut harness, id, complete) = releasing(false);
    let settled = harness.receipt(id, Outcome::Succeeded, Some(skipped(complete)));
    assert_eq!(settled.audit[0].action, "slot.needs_wipe");
    assert_eq!(harness.states(), [NeedsWipe]);
    assert!(harness.slots[0].reason.contains("S0 was not wiped"), "{}", harness.slots[0].reason);
    assert!(harness.slots[0].drive_used && !harness.slots[0].devices_used, "the devices are proven to be reset");
    assert_eq!(code(harness.provision(&[0])), "slot_not_available");

    // The host has dropped its lease and no longer knows that the drive was ever written.
    let id = harness.release(0, true).expect("waits");
    harness.start(id);
    let forgetful = with(proof(&harness.order(id)), |slot| {
        slot.drive = DriveProof::untouched("S0");
        slot.functions.iter_mut().for_each(|function| function.reset = Reset::NotNeeded);
    });
    harness.receipt(id, Outcome::Succeeded, Some(forgetful));
    assert_eq!(harness.states(), [CleanupBlocked]);
    assert!(harness.slots[0].reason.contains("drive S0 was in use"), "{}", harness.slots[0].reason);

    let id = harness.force_cleanup(0).expect("is blocked");
    harness.start(id);
    let wiped = with(proof(&harness.order(id)), |slot| {
        slot.functions.iter_mut().for_each(|function| function.reset = Reset::NotNeeded);
    });
    harness.receipt(id, Outcome::Succeeded, Some(wiped));
    assert_eq!(harness.states(), [Available], "the devices were reset before");

    // Only a release that succeeded waits for a wipe.
    let (mut harness, id, complete) = releasing(false);
    harness.receipt(id, Outcome::Failed, Some(skipped(complete)));
    assert_eq!(harness.states(), [CleanupBlocked]);
}

fn with(mut proof: CleanupProof, change: impl Fn(&mut SlotProof)) -> CleanupProof {
    proof.slots.iter_mut().for_each(change);
    proof
}

/// Everything that can be missing from a proof, one piece at a time.
#[test]
fn a_proof_with_any_piece_missing_frees_nothing() {
    type Spoil = fn(&mut CleanupProof);
    let pieces: [(&str, Spoil); 29] = [
        ("a guest of the allocation", |proof| proof.domain_absent = false),
        ("still reserved", |proof| proof.reservation_absent = false),
        ("folder", |proof| proof.instance_absent = false),
        ("telemetry", |proof| proof.telemetry_absent = false),
        ("another lease", |proof| proof.allocation_id = AllocationId::generate()),
        ("another lease", |proof| proof.lease_epoch += 1),
        ("another lease", |proof| proof.lease_epoch -= 1),
        ("does not speak of", |proof| proof.slots.clear()),
        ("does not speak of", |proof| proof.slots[0].slot_id = SlotId::generate()),
        ("more than once", |proof| proof.slots.push(proof.slots[0].clone())),
        ("does not speak of 0000:00:00.0", |proof| drop(proof.slots[0].functions.remove(0))),
        ("does not speak of 0000:00:00.1", |proof| drop(proof.slots[0].functions.remove(1))),
        ("does not speak of 0000:00:01.1", |proof| drop(proof.slots[0].functions.remove(2))),
        ("could not be reset", |proof| proof.slots[0].functions[0].reset = Reset::Failed),
        ("could not be reset", |proof| proof.slots[0].functions[2].reset = Reset::Unsupported),
        ("could not be reset", |proof| proof.slots[0].functions[0].reset = Reset::WithDevice),
        ("says that it was not", |proof| proof.slots[0].functions[0].reset = Reset::NotNeeded),
        ("held by nvidia", |proof| proof.slots[0].functions[0].driver = "nvidia".to_owned()),
        ("held by no driver", |proof| proof.slots[0].functions[1].driver.clear()),
        ("shares its IOMMU group", |proof| {
            proof.slots[0].functions[0].group_members.push("0000:ff:00.0".parse().expect("an address"));
        }),
        ("does not speak of S0", |proof| proof.slots[0].drive.serial = "S1".to_owned()),
        ("not proven to be clean", |proof| proof.slots[0].drive.status = WipeStatus::Failed),
        ("not proven to be clean", |proof| proof.slots[0].drive.method = WipeMethod::None),
        ("says that it was not", |proof| proof.slots[0].drive = DriveProof::untouched("S0")),
        ("not proven to be clean", |proof| proof.slots[0].drive.canaries_written = 0),
        ("not proven to be clean", |proof| proof.slots[0].drive.canaries_gone -= 1),
        ("not proven to be clean", |proof| proof.slots[0].drive.samples_clean -= 1),
        ("not proven to be clean", |proof| (proof.slots[0].drive.samples, proof.slots[0].drive.samples_clean) = (0, 0)),
        ("still holds a lease", |proof| proof.slots[0].lease_absent = false),
    ];
    for (number, (why, spoil)) in pieces.into_iter().enumerate() {
        let (mut harness, id, mut proof) = releasing(true);
        spoil(&mut proof);
        harness.receipt(id, Outcome::Succeeded, Some(proof));
        assert_eq!(harness.states(), [CleanupBlocked], "piece {number}: {why}");
        let reason = &harness.slots[0].reason;
        assert!(reason.contains(why), "piece {number}: {reason}");
        assert_eq!(code(harness.provision(&[0])), "slot_not_available");
        // A complete proof frees it after all.
        let id = harness.release(0, true).expect("can be tried again");
        harness.start(id);
        let complete = support::slices::proof(&harness.order(id));
        harness.receipt(id, Outcome::Succeeded, Some(complete));
        assert_eq!(harness.states(), [Available], "piece {number}");
    }
}

#[test]
fn a_proof_counts_slot_by_slot() {
    let (mut harness, _) = Harness::running(2, &[0, 1]);
    let id = harness.release(0, true).expect("runs");
    harness.start(id);
    let mut half = proof(&harness.order(id));
    half.slots[1].functions[0].reset = Reset::Failed;
    harness.receipt(id, Outcome::Failed, Some(half));
    assert_eq!(harness.states(), [Available, CleanupBlocked]);
    // The remaining slot is cleaned up alone, while the other one serves another allocation.
    let other = harness.provision(&[0]).expect("free");
    let id = harness.release(1, true).expect("blocked");
    let Task::SliceVmRelease(params) = harness.order(id) else { panic!() };
    assert_eq!(params.slots, [harness.slots[1].leased()]);
    harness.start(id);
    // A proof that also covers a slot of another allocation does not affect that slot.
    let mut proof = proof(&harness.order(id));
    proof.slots.push(slot_proof(&harness.slots[0].leased()));
    harness.receipt(id, Outcome::Succeeded, Some(proof));
    assert_eq!(harness.states(), [Leased, Available]);
    assert_eq!(harness.slots[0].lease_task, Some(other));
}

#[test]
fn an_operator_takes_over_what_is_stuck_under_a_new_number_and_frees_nothing_by_that() {
    let (mut harness, id, _) = releasing(true);
    let (_, before) = (harness.receipt(id, Outcome::Failed, None), harness.slots[0].clone());
    assert_eq!(before.state, CleanupBlocked);
    let id = harness.force_cleanup(0).expect("is blocked");
    let after = &harness.slots[0];
    assert_eq!((after.state, after.allocation_id), (Releasing, before.allocation_id));
    assert_eq!((after.lease_epoch, after.lease_task), (before.lease_epoch + 1, Some(id)));
    let Task::SliceVmRelease(params) = harness.order(id) else { panic!() };
    assert!(params.take_over && params.wipe && params.lease_epoch == before.lease_epoch + 1);
    assert_eq!(code(harness.force_cleanup(0)), "slice_busy");
    harness.start(id);
    harness.receipt(id, Outcome::Interrupted, None);
    assert_eq!(harness.states(), [CleanupBlocked], "no proof, no slot");
    let id = harness.force_cleanup(0).expect("again");
    harness.start(id);
    let complete = proof(&harness.order(id));
    harness.receipt(id, Outcome::Succeeded, Some(complete));
    assert_eq!(harness.states(), [Available]);
    assert_eq!(harness.slots[0].lease_epoch, before.lease_epoch + 2);
    assert_eq!(code(harness.force_cleanup(0)), "slot_clean");
}

#[test]
fn slots_of_one_guest_are_cleaned_up_together() {
    let mut harness = Harness::new(3);
    let id = harness.provision(&[0, 2]).expect("free");
    harness.start(id);
    harness.receipt(id, Outcome::Interrupted, None);
    assert_eq!(harness.states(), [CleanupBlocked, Available, CleanupBlocked]);
    let id = harness.force_cleanup(2).expect("is blocked");
    assert_eq!(harness.states(), [Releasing, Available, Releasing]);
    assert_eq!((harness.slots[0].lease_epoch, harness.slots[2].lease_epoch), (2, 2));
    assert_eq!(harness.order(id).slots().len(), 2);
}

#[test]
fn what_runs_or_is_under_way_is_not_taken_over_or_released_twice() {
    let (mut harness, _) = Harness::running(1, &[0]);
    assert_eq!(code(harness.force_cleanup(0)), "slot_in_use");
    let id = harness.release(0, true).expect("runs");
    assert_eq!(code(harness.release(0, true)), "slice_busy");
    assert_eq!(code(harness.power(0)), "slice_busy");
    assert!(harness.console(0).is_ok(), "its console can be read all the time");
    harness.start(id);
    harness.receipt(id, Outcome::Failed, None);
    assert_eq!(code(harness.power(0)), "slice_not_running");

    let mut harness = Harness::new(1);
    harness.provision(&[0]).expect("free");
    assert_eq!(code(harness.release(0, true)), "slice_busy", "its provision is to be cancelled first");
    assert_eq!(code(harness.power(0)), "slice_busy");
    assert!(harness.console(0).is_ok());
    let mut empty = Harness::new(1);
    for refused in [empty.release(0, true), empty.power(0), empty.console(0)] {
        assert_eq!(code(refused), "slice_unknown");
    }
    assert_eq!(code(empty.force_cleanup(0)), "slot_clean");
}

#[test]
fn a_slot_left_behind_by_an_ended_task_can_still_be_cleaned_up() {
    // Should be impossible, because every task end settles its slots. If it happens anyway, an operator can recover the slot.
    for state in [Leased, Releasing] {
        let (mut harness, id, _) = releasing(true);
        harness.receipt(id, Outcome::Failed, None);
        harness.slots[0].state = state;
        harness.slots[0].seal = slot::seal_text(&harness.slots[0]);
        assert!(harness.force_cleanup(0).is_ok(), "{state:?}");
    }
}

#[test]
fn a_late_receipt_settles_again_but_never_what_has_gone_on() {
    let lost = || {
        let mut harness = Harness::new(1);
        let id = harness.provision(&[0]).expect("free");
        harness.start(id);
        let decision = task::node_gone(harness.task(id), "silent", &context());
        harness.commit(decision);
        assert_eq!(harness.states(), [CleanupBlocked]);
        (harness, id)
    };
    let (mut harness, id) = lost();
    harness.receipt(id, Outcome::Succeeded, None);
    assert_eq!((harness.states(), harness.slots[0].drive_used), (vec![Leased], true), "it was made after all");
    let (mut harness, id) = lost();
    let complete = proof(&harness.order(id));
    harness.receipt(id, Outcome::Failed, Some(complete));
    assert_eq!(harness.states(), [Available], "and this one was undone");

    // A later release has taken over: the late receipt refers to a lease that no longer exists.
    for late in [Outcome::Succeeded, Outcome::Failed, Outcome::Refused] {
        let (mut harness, id) = lost();
        let release = harness.force_cleanup(0).expect("blocked");
        let complete = proof(&harness.order(id));
        let settled = harness.receipt(id, late, (late == Outcome::Failed).then_some(complete));
        assert!(settled.is_empty(), "{late:?}");
        assert_eq!((harness.states(), harness.slots[0].lease_task), (vec![Releasing], Some(release)));
    }
    // A proof under the old lease epoch does not count under the new one, whichever task reports it.
    let (mut harness, old) = lost();
    let stale = proof(&harness.order(old));
    let id = harness.force_cleanup(0).expect("blocked");
    harness.start(id);
    harness.receipt(id, Outcome::Succeeded, Some(stale));
    assert_eq!(harness.states(), [CleanupBlocked]);
}

#[test]
fn a_slot_that_was_freed_by_the_books_is_taken_back_if_the_node_says_that_it_ran() {
    let expired = || {
        let mut harness = Harness::new(2);
        let id = harness.provision(&[0, 1]).expect("free");
        harness.dispatch(id).expect("sent");
        let unknown = task::unknown_to_node(harness.task(id), gpuaas_contract::time::Timestamp(0), &at(harness.now));
        harness.commit(unknown);
        harness.now = later(2000);
        let tick = task::tick(harness.task(id), &at(harness.now));
        harness.commit(tick);
        assert_eq!(harness.states(), [Available, Available]);
        (harness, id)
    };
    let (mut harness, id) = expired();
    let allocation = harness.order(id).holder().expect("has one").allocation_id;
    // One of the slots serves another allocation by now.
    let other = harness.provision(&[1]).expect("free");
    harness.receipt(id, Outcome::Failed, None);
    assert_eq!(harness.states(), [CleanupBlocked, Leased]);
    assert_eq!((harness.slots[0].allocation_id, harness.slots[1].lease_task), (Some(allocation), Some(other)));
    let (mut harness, id) = expired();
    harness.receipt(id, Outcome::Refused, None);
    assert_eq!(harness.states(), [Available, Available]);
    let (mut harness, id) = expired();
    harness.operate(0, Operation::Withdraw).expect("clean");
    let complete = proof(&harness.order(id));
    harness.receipt(id, Outcome::Failed, Some(complete));
    assert_eq!(harness.states(), [Withdrawn, Available]);
}

#[test]
fn a_quarantined_slot_is_held_back_when_it_is_clean_and_not_before() {
    let (mut harness, _) = Harness::running(1, &[0]);
    harness.operate(0, Operation::Quarantine).expect("may");
    assert_eq!((harness.states(), harness.power(0).is_ok()), (vec![Leased], true), "its tenant does not notice");
    let id = harness.release(0, true).expect("runs");
    harness.start(id);
    harness.receipt(id, Outcome::Failed, None);
    assert_eq!(harness.states(), [CleanupBlocked]);
    harness.operate(0, Operation::Unquarantine).expect("may");
    assert_eq!(harness.states(), [CleanupBlocked], "letting go is no proof");
    harness.operate(0, Operation::Quarantine).expect("may");
    assert_eq!(code(harness.operate(0, Operation::Withdraw)), "slot_in_use");
    let id = harness.force_cleanup(0).expect("blocked");
    harness.start(id);
    let complete = proof(&harness.order(id));
    harness.receipt(id, Outcome::Succeeded, Some(complete));
    assert_eq!(harness.states(), [Quarantined]);
    harness.operate(0, Operation::Unquarantine).expect("may");
    assert_eq!(harness.states(), [Available]);
}
