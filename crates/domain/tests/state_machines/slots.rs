//! Slots: approved, leased, released, and everything that can keep them from being clean.

use gpuaas_contract::id::{SlotId, TaskId};
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Output, Prerequisites, Summary};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::slot::{self, Operation, Slot, SlotState};
use gpuaas_domain::task::{self, TaskRecord, TaskState};
use gpuaas_domain::{Decision, Refusal};

use crate::diagram::assert_drawn;
use crate::hosts::End;
use crate::observed::{BEGINNING, Observed, search};
use crate::support::slices::{Harness, slot};
use crate::support::{NOW, at, context, later, node, queued};

const OPERATIONS: [Operation; 3] = [Operation::Quarantine, Operation::Unquarantine, Operation::Withdraw];

/// Exhaustive, so that a new operation needs a name here. It must be added to the list above as well.
const fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Quarantine => "quarantine",
        Operation::Unquarantine => "unquarantine",
        Operation::Withdraw => "withdraw",
    }
}

/// The result of a node that discovers these devices on itself.
fn found(spec: &SlotSpec) -> Output {
    let candidate = CandidateSlot {
        slot_index: spec.slot_index,
        pci_address: spec.pci_address.clone(),
        companions: spec.companions.clone(),
        fabric_device: spec.fabric_device.clone(),
        nvme_device: Some(spec.nvme_device.clone()),
        nvme_serial: Some(spec.nvme_serial.clone()),
        numa_node: spec.numa_node,
        vcpu_count: spec.vcpu_count,
        memory_mib: spec.memory_mib,
        mac_address: spec.mac_address.clone(),
        private_ip: Some(spec.private_ip),
        schedulable: true,
        blockers: Vec::new(),
    };
    Output {
        approval_required: true,
        simulated: false,
        prerequisites: Prerequisites::default(),
        gpu_devices: Vec::new(),
        fabric_devices: Vec::new(),
        nvme_devices: Vec::new(),
        candidate_summary: Summary { slots: 1, schedulable: 1, blockers: Vec::new() },
        candidate_slots: vec![candidate],
    }
}

fn approve(existing: &[Slot]) -> Result<(Vec<Slot>, Decision), Refusal> {
    let (kind, state) = (TaskType::SliceTopologyDiscover, TaskState::Succeeded);
    let proposal = TaskRecord { task_type: kind, state, ended_at: Some(NOW), ..queued() };
    let found = found(&slot(0).spec);
    slot::approve(&node(), (&proposal, &found), None, existing, SlotId::generate, slot::seal_text, &context())
}

/// The task whose end decides the slot's next state.
fn lease_task(harness: &Harness) -> Option<TaskRecord> {
    harness.slots[0].lease_task.map(|id| harness.task(id).clone())
}

/// Everything that operators and tenants can order: the cause, and the harness afterwards.
fn asked(before: &Harness) -> Vec<(&'static str, Harness)> {
    let mut all = Vec::new();
    let mut take = |by, ask: &dyn Fn(&mut Harness) -> Result<(), Refusal>| {
        let mut harness = before.clone();
        if ask(&mut harness).is_ok() {
            all.push((by, harness));
        }
    };
    take("provision", &|harness| harness.provision(&[0]).map(drop));
    take("release", &|harness| harness.release(0, true).map(drop));
    take("release", &|harness| harness.release(0, false).map(drop));
    take("force_cleanup", &|harness| harness.force_cleanup(0).map(drop));
    for operation in OPERATIONS {
        take(name(operation), &|harness| harness.operate(0, operation));
    }
    take("approve", &|harness| {
        let decision = approve(&harness.slots)?.1;
        harness.commit(decision);
        Ok(())
    });
    take("node_gone", &|harness| {
        if let Some((_, decision)) = slot::node_gone(&harness.slots[0], "retired", slot::seal_text, &context()) {
            harness.commit(decision);
        }
        Ok(())
    });
    all
}

/// All ways in which the task that decides about the slot can end.
fn ended(before: &Harness) -> Vec<Harness> {
    let Some(task) = lease_task(before) else { return Vec::new() };
    let mut decisions = vec![
        task::acknowledged(&task, true, &context()),
        task::unknown_to_node(&task, Timestamp(0), &context()),
        task::tick(&task, &at(later(2 * 24 * 3600))),
        task::node_gone(&task, "retired", &context()),
    ];
    decisions.extend(task::cancel(&task, "stop", &context()));
    let mut all: Vec<Harness> = decisions.into_iter().map(|decision| committed(before, decision, true)).collect();
    if task.state == TaskState::Queued {
        all.push(committed(before, task::intent_forged(&task, &context()), false));
        let mut sent = before.clone();
        if sent.dispatch(task.id).is_ok() {
            all.push(sent);
        }
    }
    if before.envelopes.contains_key(&task.id) && task.receipt_digest.is_none() {
        all.extend(End::ALL.into_iter().filter_map(|end| answered(before, task.id, end)));
    }
    all
}

fn committed(before: &Harness, decision: Decision, genuine: bool) -> Harness {
    let mut after = before.clone();
    after.commit_as(decision, genuine);
    after
}

fn answered(before: &Harness, task: TaskId, end: End) -> Option<Harness> {
    let report = end.reported(&before.order(task))?;
    let mut after = before.clone();
    after.report(task, report);
    Some(after)
}

fn key(harness: &Harness) -> String {
    let slot = &harness.slots[0];
    let task = lease_task(harness).map(|task| {
        let marks = [task.envelope_start_by, task.cancel_requested_at].map(|mark| mark.is_some());
        let is_clear = task.params.contains("\"wipe\":true");
        format!("{} {is_clear} {} {marks:?} {}", task.task_type, task.state.as_str(), task.receipt_digest.is_some())
    });
    let marks = (slot.quarantine.is_some(), slot.drive_used, slot.devices_used);
    format!("{} {marks:?} {task:?}", slot.state.as_str())
}

#[test]
fn the_diagram_of_slots_is_what_the_code_decides() {
    let mut observed = Observed::default();
    let (slots, decision) = approve(&[]).expect("approved");
    observed.note(BEGINNING, slots[0].state.as_str(), "approve", &decision.events);
    search(vec![Harness::new(1)], key, |before| {
        let ended = ended(before).into_iter().map(|after| ("settle", after));
        let follows = |(by, after): (&'static str, Harness)| {
            let (from, to) = (&before.slots[0], &after.slots[0]);
            let subject = to.id.to_string();
            let events = after.events.iter().filter(|event| event.subject == subject);
            observed.note(from.state.as_str(), to.state.as_str(), by, events);
            Harness { events: Vec::new(), ..after }
        };
        asked(before).into_iter().chain(ended).map(follows).collect()
    });
    assert_drawn("Slot", &SlotState::ALL.map(SlotState::as_str), &observed);
}
