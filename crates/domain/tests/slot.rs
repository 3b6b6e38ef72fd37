//! Slots: what operators can make of what nodes discover.

mod support;

use std::collections::BTreeSet;

use gpuaas_contract::id::{AllocationId, SlotId};
use gpuaas_contract::slice::Blocker;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Output, Prerequisites, Summary};
use gpuaas_domain::slot::{self, Operation, PROPOSAL_LIFE, Slot, SlotState};
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision, Refusal};
use support::{NOW, assert_recorded, at, code, context, node, queued};

fn candidate(slot_index: u32) -> CandidateSlot {
    CandidateSlot {
        slot_index,
        pci_address: Some(format!("0000:{slot_index:02x}:00.0").parse().expect("an address")),
        companions: vec![format!("0000:{slot_index:02x}:00.1").parse().expect("an address")],
        fabric_device: Some(format!("0000:{slot_index:02x}:01.1").parse().expect("an address")),
        nvme_device: Some(format!("/dev/disk/by-id/nvme-S{slot_index}")),
        nvme_serial: Some(format!("S{slot_index}")),
        numa_node: 0,
        vcpu_count: 12,
        memory_mib: 65_536,
        mac_address: format!("02:00:00:00:00:{slot_index:02x}"),
        private_ip: Some(std::net::Ipv4Addr::new(10, 77, 0, u8::try_from(slot_index).unwrap_or(0) + 2)),
        schedulable: true,
        blockers: Vec::new(),
    }
}

fn found(slots: Vec<CandidateSlot>) -> Output {
    let count = |count: usize| u32::try_from(count).unwrap_or(0);
    Output {
        approval_required: true,
        simulated: false,
        prerequisites: Prerequisites::default(),
        gpu_devices: Vec::new(),
        fabric_devices: Vec::new(),
        nvme_devices: Vec::new(),
        candidate_summary: Summary {
            slots: count(slots.len()),
            schedulable: count(slots.iter().filter(|slot| slot.schedulable).count()),
            blockers: Vec::new(),
        },
        candidate_slots: slots,
    }
}

/// The task whose receipt has the proposal.
fn proposal() -> TaskRecord {
    TaskRecord { task_type: TaskType::SliceTopologyDiscover, state: TaskState::Succeeded, ended_at: Some(NOW), ..queued() }
}

fn try_approve(
    task: &TaskRecord,
    found: &Output,
    wanted: Option<&[u32]>,
    existing: &[Slot],
) -> Result<(Vec<Slot>, Decision), Refusal> {
    let wanted: Option<BTreeSet<u32>> = wanted.map(|wanted| wanted.iter().copied().collect());
    slot::approve(&node(), (task, found), wanted.as_ref(), existing, SlotId::generate, slot::seal_text, &context())
}

fn approve(found: &Output, wanted: Option<&[u32]>, existing: &[Slot]) -> Result<(Vec<Slot>, Decision), Refusal> {
    try_approve(&proposal(), found, wanted, existing)
}

#[test]
fn approval_makes_slots_of_what_can_be_used_and_of_nothing_else() {
    let blocked =
        CandidateSlot { schedulable: false, blockers: vec![Blocker::new("nvme_missing", "add drives")], ..candidate(1) };
    let found = found(vec![candidate(0), blocked, candidate(2)]);
    let (slots, decision) = approve(&found, None, &[]).expect("approved");
    assert_eq!(slots.iter().map(|slot| slot.spec.slot_index).collect::<Vec<_>>(), [0, 2]);
    assert!(slots.iter().all(|slot| slot.state == SlotState::Available && slot.approved_by == context().actor.to_string()));
    assert_eq!(slots[0].seal, slot::seal_text(&slots[0]));
    let inserted = slots.iter().map(|slot| Change::SlotInsert(Box::new(slot.clone()))).collect::<Vec<_>>();
    assert_eq!(decision.changes, inserted);
    assert_eq!(decision.audit.iter().map(|row| row.action).collect::<Vec<_>>(), ["slot.approve"; 2]);
    assert_eq!(decision.events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["gpuaas.slot.approved.v1"; 2]);

    let refusal = approve(&found, Some(&[1]), &[]).expect_err("blocked");
    assert!(refusal.code == "slot_not_schedulable" && refusal.message.contains("add drives"), "{refusal}");
    assert_eq!(code(approve(&found, Some(&[7]), &[])), "slot_unknown");
    assert_eq!(code(approve(&found, Some(&[]), &[])), "nothing_to_approve");
    assert_eq!(code(approve(&self::found(Vec::new()), None, &[])), "nothing_to_approve");
}

#[test]
fn only_a_fresh_look_of_this_very_node_can_be_approved() {
    let found = found(vec![candidate(0)]);
    let refused = |task: TaskRecord| code(try_approve(&task, &found, None, &[]));
    assert_eq!(refused(TaskRecord { task_type: TaskType::DiagPing, ..proposal() }), "not_a_proposal");
    assert_eq!(refused(TaskRecord { state: TaskState::Failed, ..proposal() }), "not_a_proposal");
    assert_eq!(refused(TaskRecord { node_id: gpuaas_contract::id::NodeId::generate(), ..proposal() }), "not_a_proposal");
    assert_eq!(refused(TaskRecord { node_epoch: node().epoch + 1, ..proposal() }), "proposal_outdated");
    let seal = slot::seal_text;
    let late = at(NOW.plus(PROPOSAL_LIFE).plus(std::time::Duration::from_micros(1)));
    let result = slot::approve(&node(), (&proposal(), &found), None, &[], SlotId::generate, seal, &late);
    assert_eq!(code(result), "proposal_outdated");
}

#[test]
fn approving_again_changes_nothing_and_new_hardware_changes_the_same_slot() {
    let first = found(vec![candidate(0), candidate(1)]);
    let (slots, _) = approve(&first, None, &[]).expect("approved");
    let (again, decision) = approve(&first, None, &slots).expect("approved");
    assert!(decision.is_empty() && again == slots);

    let replaced = CandidateSlot { nvme_serial: Some("NEW".to_owned()), ..candidate(1) };
    let (after, decision) = approve(&found(vec![candidate(0), replaced]), None, &slots).expect("approved");
    assert_eq!((after[1].id, after[1].spec.nvme_serial.as_str()), (slots[1].id, "NEW"));
    assert_eq!(decision.changes, [Change::SlotUpdate(Box::new(after[1].clone()))]);
    assert_recorded(&decision, "gpuaas.slot.approved.v1", "slot.approve");
}

#[test]
fn two_slots_never_share_a_device_but_may_swap_theirs_together() {
    let (slots, _) = approve(&found(vec![candidate(0), candidate(1)]), None, &[]).expect("approved");
    let with_drive = |index, drive: &str| CandidateSlot { nvme_serial: Some(drive.to_owned()), ..candidate(index) };
    let swapped = found(vec![with_drive(0, "S1"), with_drive(1, "S0")]);
    let refusal = approve(&swapped, Some(&[0]), &slots).expect_err("shares a drive");
    assert!(refusal.code == "slot_collides" && refusal.message.contains("S1"), "{refusal}");
    assert_eq!(approve(&swapped, None, &slots).expect("both at once").0.len(), 2);
    for shared in [
        CandidateSlot { companions: vec!["0000:00:00.0".parse().expect("an address")], ..candidate(2) },
        CandidateSlot { fabric_device: Some("0000:01:01.1".parse().expect("an address")), ..candidate(2) },
        CandidateSlot { mac_address: "02:00:00:00:00:01".to_owned(), ..candidate(2) },
        CandidateSlot { private_ip: candidate(0).private_ip, ..candidate(2) },
    ] {
        assert_eq!(code(approve(&found(vec![shared]), None, &slots)), "slot_collides");
    }
}

/// The slot in this state.
fn in_state(slot: &Slot, state: SlotState) -> Slot {
    let quarantine = (state == SlotState::Quarantined).then(|| "smells".to_owned());
    let allocation_id = (!state.is_clean()).then(AllocationId::generate);
    Slot { state, reason: "smells".to_owned(), quarantine, allocation_id, lease_epoch: 4, ..slot.clone() }
}

#[test]
fn a_quarantined_slot_is_left_alone_and_a_withdrawn_one_can_come_back() {
    let found = found(vec![candidate(0)]);
    let (slots, _) = approve(&found, None, &[]).expect("approved");
    let as_it_is = |state| vec![in_state(&slots[0], state)];
    assert_eq!(code(approve(&found, None, &as_it_is(SlotState::Quarantined))), "slot_quarantined");
    let (back, _) = approve(&found, None, &as_it_is(SlotState::Withdrawn)).expect("approved");
    assert_eq!((back[0].id, back[0].state, back[0].reason.as_str()), (slots[0].id, SlotState::Available, ""));
    assert_eq!(back[0].lease_epoch, 4, "the fencing number never goes back");
}

#[test]
fn approval_never_touches_a_slot_that_is_in_use_or_dirty() {
    let (slots, _) = approve(&found(vec![candidate(0), candidate(1)]), None, &[]).expect("approved");
    let replaced = CandidateSlot { nvme_serial: Some("NEW".to_owned()), ..candidate(0) };
    for state in [SlotState::Leased, SlotState::Releasing, SlotState::CleanupBlocked, SlotState::NeedsWipe] {
        let busy = in_state(&slots[0], state);
        let existing = vec![busy.clone(), slots[1].clone()];
        // Slots that are named must match the proposal; all others stay as they are.
        assert_eq!(code(approve(&found(vec![replaced.clone()]), Some(&[0]), &existing)), "slot_in_use");
        let (after, decision) = approve(&found(vec![replaced.clone(), candidate(1)]), None, &existing).expect("approved");
        assert!(decision.is_empty(), "{state:?}");
        assert_eq!(after, existing);
        let (after, decision) = approve(&found(vec![candidate(0)]), Some(&[0]), &existing).expect("nothing changes");
        assert!(decision.is_empty() && after == [busy.clone()]);
        // Its devices cannot go to another slot, even if both are approved together.
        let swapped = CandidateSlot { nvme_serial: Some("S0".to_owned()), ..candidate(1) };
        assert_eq!(code(approve(&found(vec![replaced.clone(), swapped]), None, &existing)), "slot_collides");
    }
}

#[test]
fn every_operation_in_every_state_has_one_answer_and_saying_it_twice_changes_nothing() {
    let (slots, _) = approve(&found(vec![candidate(0)]), None, &[]).expect("approved");
    let operate = |slot: &Slot, operation| slot::operate(slot, operation, "because", slot::seal_text, &context());
    for state in SlotState::ALL {
        for operation in [Operation::Quarantine, Operation::Unquarantine, Operation::Withdraw] {
            let before = in_state(&slots[0], state);
            let result = operate(&before, operation);
            let (expected, held) = match (operation, state) {
                (Operation::Quarantine | Operation::Unquarantine, SlotState::Withdrawn) => {
                    assert_eq!(code(result), "slot_withdrawn");
                    continue;
                }
                (
                    Operation::Withdraw,
                    SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe,
                ) => {
                    assert_eq!(code(result), "slot_in_use");
                    continue;
                }
                (Operation::Quarantine, SlotState::Available | SlotState::Quarantined) => (SlotState::Quarantined, true),
                (Operation::Unquarantine, SlotState::Available | SlotState::Quarantined) => (SlotState::Available, false),
                (Operation::Withdraw, SlotState::Available | SlotState::Quarantined | SlotState::Withdrawn) => {
                    (SlotState::Withdrawn, false)
                }
                // It stays with its tenant, or remains as dirty as it is.
                (
                    Operation::Quarantine,
                    SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe,
                ) => (state, true),
                (
                    Operation::Unquarantine,
                    SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe,
                ) => (state, false),
            };
            let decision = result.expect("may");
            let Some(Change::SlotUpdate(after)) = decision.changes.first() else {
                assert!(decision.is_empty() && expected == state, "{operation:?} in {state:?}");
                continue;
            };
            assert_eq!((after.state, after.quarantine.is_some()), (expected, held), "{operation:?} in {state:?}");
            assert_eq!((after.allocation_id, after.lease_epoch), (before.allocation_id, before.lease_epoch));
            assert_eq!(after.seal, slot::seal_text(after), "sealed again");
            assert!(operate(after, operation).expect("may").is_empty());
        }
    }
    let long = "x".repeat(501);
    let result = slot::operate(&slots[0], Operation::Quarantine, &long, slot::seal_text, &context());
    assert_eq!(code(result), "reason_too_long");
}

#[test]
fn a_leased_slot_can_be_held_back_and_let_go_and_stays_with_its_tenant() {
    let (slots, _) = approve(&found(vec![candidate(0)]), None, &[]).expect("approved");
    let leased = Slot { reason: String::new(), ..in_state(&slots[0], SlotState::Leased) };
    let held = slot::operate(&leased, Operation::Quarantine, "loud", slot::seal_text, &context()).expect("may");
    assert_recorded(&held, "gpuaas.slot.quarantined.v1", "slot.quarantine");
    let Some(Change::SlotUpdate(held)) = held.changes.first() else { panic!("{held:?}") };
    assert_eq!((held.state, held.quarantine.as_deref(), held.reason.as_str()), (SlotState::Leased, Some("loud"), ""));
    let go = slot::operate(held, Operation::Unquarantine, "", slot::seal_text, &context()).expect("may");
    let Some(Change::SlotUpdate(go)) = go.changes.first() else { panic!("{go:?}") };
    assert_eq!(**go, Slot { seal: slot::seal_text(&leased), ..leased });
}

#[test]
fn the_seal_covers_every_device_who_approved_it_and_who_has_it() {
    let (slots, _) = approve(&found(vec![candidate(0)]), None, &[]).expect("approved");
    let slot = &slots[0];
    let text = slot::seal_text(slot);
    let spec = |change: fn(&mut gpuaas_contract::slice::SlotSpec)| {
        let mut changed = slot.clone();
        change(&mut changed.spec);
        changed
    };
    for changed in [
        spec(|spec| spec.nvme_serial.push('x')),
        spec(|spec| spec.nvme_device.push('x')),
        spec(|spec| spec.companions.clear()),
        spec(|spec| spec.fabric_device = None),
        spec(|spec| spec.memory_mib += 1),
        spec(|spec| spec.mac_address.push('x')),
        Slot { node_id: gpuaas_contract::id::NodeId::generate(), ..slot.clone() },
        Slot { approved_by: "somebody".to_owned(), ..slot.clone() },
        Slot { id: SlotId::generate(), ..slot.clone() },
        Slot { state: SlotState::NeedsWipe, ..slot.clone() },
        Slot { allocation_id: Some(AllocationId::generate()), ..slot.clone() },
        Slot { lease_epoch: 1, ..slot.clone() },
        Slot { lease_task: Some(proposal().id), ..slot.clone() },
        Slot { quarantine: Some(String::new()), ..slot.clone() },
        Slot { drive_used: true, ..slot.clone() },
        Slot { devices_used: true, ..slot.clone() },
    ] {
        assert_ne!(slot::seal_text(&changed), text);
    }
    let told = Slot { reason: "x".to_owned(), version: 9, ..slot.clone() };
    assert_eq!(slot::seal_text(&told), text, "words and the version decide nothing");
}

#[test]
fn no_slot_of_a_replaced_node_is_used_before_it_is_proved_again() {
    let (slots, _) = approve(&found(vec![candidate(0)]), None, &[]).expect("approved");
    for state in SlotState::ALL {
        let before = in_state(&slots[0], state);
        let after = slot::node_gone(&before, "its node was replaced", |_| "sealed".to_owned(), &context());
        let (next, kind) = match state {
            SlotState::Available | SlotState::Quarantined => (SlotState::Withdrawn, "gpuaas.slot.withdrawn.v1"),
            SlotState::Leased | SlotState::Releasing => (SlotState::CleanupBlocked, "gpuaas.slot.cleanup_blocked.v1"),
            SlotState::CleanupBlocked | SlotState::NeedsWipe | SlotState::Withdrawn => {
                assert!(after.is_none(), "{} is proved by nothing that was said before", state.as_str());
                continue;
            }
        };
        let (slot, decision) = after.expect("it changes");
        assert_eq!((slot.state, slot.allocation_id), (next, before.allocation_id), "whose remains they are is not forgotten");
        assert_eq!((slot.lease_epoch, slot.seal.as_str()), (before.lease_epoch, "sealed"));
        assert_eq!(decision.changes, [Change::SlotUpdate(Box::new(slot))]);
        assert_eq!(decision.events[0].kind.as_str(), kind);
    }
}
