//! Invariants of slots, whatever is ordered and however tasks end.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpuaas_contract::cleanup::{CleanupProof, DriveProof, Reset, WipeStatus};
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::slot::{Operation, Slot, SlotState};
use gpuaas_domain::task::{self, TaskState};
use proptest::prelude::*;
use support::at;
use support::slices::{Harness, proof};

const SLOTS: u32 = 3;

/// Everything that operators, nodes and time can do. Numbers select among the existing tasks and slots.
#[derive(Clone, Debug)]
enum Step {
    Provision(Vec<usize>),
    Release(usize, bool),
    ForceCleanup(usize),
    Power(usize),
    Operate(usize, Operation),
    Wait(u64),
    Dispatch(usize),
    Run(usize),
    Cancel(usize),
    NodeGone(usize),
    /// The node reports that it does not have a task; only if that is true.
    Unknown(usize),
    Receipt(usize, Outcome, Proof),
}

/// What a node reports about its slots.
#[derive(Clone, Copy, Debug)]
enum Proof {
    Complete,
    None,
    OtherAllocation,
    OldNumber,
    DomainPresent,
    LeasePresent,
    NotWiped,
    WipeFailed,
    ResetFailed,
    Untouched,
}

impl Proof {
    const ALL: [Self; 10] = [
        Self::Complete,
        Self::None,
        Self::OtherAllocation,
        Self::OldNumber,
        Self::DomainPresent,
        Self::LeasePresent,
        Self::NotWiped,
        Self::WipeFailed,
        Self::ResetFailed,
        Self::Untouched,
    ];

    fn of(self, order: &Task) -> Option<CleanupProof> {
        let mut proof = proof(order);
        match self {
            Self::Complete => {}
            Self::None => return None,
            Self::OtherAllocation => proof.allocation_id = AllocationId::generate(),
            Self::OldNumber => proof.lease_epoch -= 1,
            Self::DomainPresent => proof.domain_absent = false,
            Self::LeasePresent => proof.slots.iter_mut().for_each(|slot| slot.lease_absent = false),
            Self::NotWiped => proof.slots.iter_mut().for_each(|slot| slot.drive = DriveProof::skipped(&slot.drive.serial)),
            Self::WipeFailed => proof.slots.iter_mut().for_each(|slot| slot.drive.status = WipeStatus::Failed),
            Self::ResetFailed => proof.slots.iter_mut().for_each(|slot| slot.functions[0].reset = Reset::Failed),
            Self::Untouched => {
                for slot in &mut proof.slots {
                    slot.drive = DriveProof::untouched(&slot.drive.serial);
                    slot.functions.iter_mut().for_each(|function| function.reset = Reset::NotNeeded);
                }
            }
        }
        Some(proof)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = || 0..usize::try_from(SLOTS).expect("few");
    let any = || 0usize..8;
    let outcomes = vec![Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted, Outcome::Refused];
    let operations = vec![Operation::Quarantine, Operation::Unquarantine, Operation::Withdraw];
    let some_slots = prop::sample::subsequence((0..usize::try_from(SLOTS).expect("few")).collect::<Vec<_>>(), 1..=2);
    let proofs = prop_oneof![1 => Just(Proof::Complete), 1 => prop::sample::select(Proof::ALL.to_vec())];
    let step = prop_oneof![
        6 => some_slots.prop_map(Step::Provision),
        5 => (slot(), prop::bool::ANY).prop_map(|(slot, wipe)| Step::Release(slot, wipe)),
        3 => slot().prop_map(Step::ForceCleanup),
        1 => slot().prop_map(Step::Power),
        3 => (slot(), prop::sample::select(operations)).prop_map(|(slot, operation)| Step::Operate(slot, operation)),
        2 => (1u64..900).prop_map(Step::Wait),
        8 => any().prop_map(Step::Dispatch),
        8 => any().prop_map(Step::Run),
        1 => any().prop_map(Step::Cancel),
        1 => any().prop_map(Step::NodeGone),
        2 => any().prop_map(Step::Unknown),
        12 => (any(), prop::sample::select(outcomes), proofs).prop_map(|(n, outcome, proof)| Step::Receipt(n, outcome, proof)),
    ];
    prop::collection::vec(step, 1..80)
}

/// What is really on the node.
#[derive(Default)]
struct Node {
    /// Tasks that it has run or is running.
    has: BTreeSet<TaskId>,
    /// The allocation that left something on a slot: set when a guest may have been created on it, cleared only by a complete proof.
    dirty: BTreeMap<SlotId, AllocationId>,
}

struct Play {
    harness: Harness,
    node: Node,
    /// Which allocation had which lease epoch of a slot.
    leases: BTreeMap<(SlotId, u64), AllocationId>,
}

impl Play {
    fn nth(&self, number: usize, wanted: impl Fn(TaskId) -> bool) -> Option<TaskId> {
        // Counted from the newest, so that most steps hit something that is in progress.
        let found: Vec<TaskId> = self.harness.tasks.keys().rev().copied().filter(|id| wanted(*id)).collect();
        found.get(number % found.len().max(1)).copied()
    }

    fn take(&mut self, step: Step) {
        let harness = &mut self.harness;
        match step {
            Step::Provision(slots) => drop(harness.provision(&slots)),
            Step::Release(slot, wipe) => drop(harness.release(slot, wipe)),
            Step::ForceCleanup(slot) => drop(harness.force_cleanup(slot)),
            Step::Power(slot) => drop(harness.power(slot)),
            Step::Operate(slot, operation) => drop(harness.operate(slot, operation)),
            Step::Wait(seconds) => {
                harness.now = harness.now.plus(Duration::from_secs(seconds));
                let ids: Vec<TaskId> = harness.tasks.keys().copied().collect();
                for id in ids {
                    let decision = task::tick(harness.task(id), &at(harness.now));
                    harness.commit(decision);
                }
            }
            Step::Dispatch(number) => {
                let id = self.nth(number, |id| self.harness.task(id).state == TaskState::Queued);
                if let Some(id) = id {
                    drop(self.harness.dispatch(id));
                }
            }
            Step::Run(number) => {
                // A node may accept an envelope in circulation as long as it is valid, whatever the ledger says in the meantime.
                let now = self.harness.now;
                let takes = |id| {
                    let task = self.harness.task(id);
                    let good = task.envelope_start_by.is_some_and(|start_by| now <= start_by);
                    good && !self.node.has.contains(&id) && task.state != TaskState::Lost && !task.state.ended()
                };
                let Some(id) = self.nth(number, takes) else { return };
                self.node.has.insert(id);
                if self.harness.is_kind(id, TaskType::SliceVmProvision) {
                    let order = self.harness.order(id);
                    let allocation = order.holder().expect("has one").allocation_id;
                    for slot in order.slots() {
                        let before = self.node.dirty.insert(slot.slot_id, allocation);
                        assert!(before.is_none_or(|before| before == allocation), "a guest on the remains of another");
                    }
                }
                let started = task::acknowledged(self.harness.task(id), true, &at(now));
                self.harness.commit(started);
            }
            Step::Cancel(number) => {
                let Some(id) = self.nth(number, |_| true) else { return };
                if let Ok(decision) = task::cancel(self.harness.task(id), "no", &at(self.harness.now)) {
                    self.harness.commit(decision);
                }
            }
            Step::NodeGone(number) => {
                let Some(id) = self.nth(number, |_| true) else { return };
                let decision = task::node_gone(self.harness.task(id), "gone", &at(self.harness.now));
                self.harness.commit(decision);
            }
            Step::Unknown(number) => {
                let Some(id) = self.nth(number, |id| !self.node.has.contains(&id)) else { return };
                let decision = task::unknown_to_node(self.harness.task(id), Timestamp(0), &at(self.harness.now));
                self.harness.commit(decision);
            }
            Step::Receipt(number, outcome, proof) => self.receipt(number, outcome, proof),
        }
    }

    fn receipt(&mut self, number: usize, outcome: Outcome, proof: Proof) {
        let has_envelope = |id| self.harness.envelopes.contains_key(&id) && self.harness.task(id).receipt_digest.is_none();
        let Some(id) = self.nth(number, has_envelope) else { return };
        let ran = self.node.has.contains(&id);
        // Nodes tell the truth about what they did: they refuse only tasks that they have not run.
        let outcome = match (ran, outcome) {
            (false, _) => Outcome::Refused,
            (true, Outcome::Refused) => Outcome::Failed,
            (true, outcome) => outcome,
        };
        self.node.has.insert(id);
        let order = self.harness.order(id);
        let proves = order.task_type().may_prove_cleanup() && outcome != Outcome::Refused;
        let release = order.task_type() == TaskType::SliceVmRelease;
        let mut reported = if proves { proof.of(&order) } else { None };
        if release && outcome == Outcome::Succeeded && reported.is_none() {
            reported = Proof::DomainPresent.of(&order);
        }
        let provision_failed = order.task_type() == TaskType::SliceVmProvision && outcome != Outcome::Succeeded;
        let complete = match proof {
            Proof::Complete => true,
            // True only if no guest used the drive, which the node knows when its own provisioning failed.
            Proof::Untouched => provision_failed,
            _ => false,
        };
        if matches!(proof, Proof::Untouched) && !provision_failed && !self.known_to_be_used(&order) {
            // For slots about which the ledger knows nothing, such a report would be the truth.
            reported = None;
            if release && outcome == Outcome::Succeeded {
                reported = Proof::DomainPresent.of(&order);
            }
        }
        if complete && proves && (release || provision_failed) {
            // The host's own fence: a task whose lease was taken over cleans nothing up.
            let epoch = order.holder().expect("has one").lease_epoch;
            for slot in order.slots() {
                let current = self.harness.slots.iter().find(|of| of.id == slot.slot_id).expect("is there");
                if current.lease_epoch == epoch {
                    self.node.dirty.remove(&slot.slot_id);
                }
            }
        }
        self.harness.receipt(id, outcome, reported);
    }

    fn known_to_be_used(&self, order: &Task) -> bool {
        let of = |id: SlotId| self.harness.slots.iter().find(|slot| slot.id == id);
        order.slots().iter().all(|slot| of(slot.slot_id).is_some_and(|slot| slot.drive_used))
    }

    fn check(&mut self, before: &[Slot], step: &Step) {
        for (slot, before) in self.harness.slots.iter().zip(before) {
            let shown = format!("{step:?}: {:?} -> {:?}, epoch {}", before.state, slot.state, slot.lease_epoch);
            assert!(slot.lease_epoch >= before.lease_epoch, "a number went back: {shown}");
            assert_eq!(slot.allocation_id.is_none(), slot.state.is_clean(), "{shown}");
            assert!(slot.state != SlotState::Available || slot.quarantine.is_none(), "{shown}");
            assert!(slot.state != SlotState::Quarantined || slot.quarantine.is_some(), "{shown}");
            if slot.state.is_clean() {
                assert_eq!(self.node.dirty.get(&slot.id), None, "a dirty slot is clean in the ledger: {shown}");
            }
            if let (Some(now), Some(then)) = (slot.allocation_id, before.allocation_id) {
                assert_eq!(now, then, "given away without being clean: {shown}");
            }
            if let Some(allocation) = slot.allocation_id {
                let first = *self.leases.entry((slot.id, slot.lease_epoch)).or_insert(allocation);
                assert_eq!(first, allocation, "two allocations had one number: {shown}");
            }
            if before.state.is_clean() && slot.state == SlotState::Leased && before.lease_task != slot.lease_task {
                assert_eq!(before.state, SlotState::Available, "{shown}");
                assert!(slot.lease_epoch > before.lease_epoch, "leased again under an old number: {shown}");
            }
            let undecided = matches!(slot.state, SlotState::Releasing);
            let open = slot.lease_task.is_some_and(|id| !self.harness.task(id).state.ended());
            assert!(!undecided || open, "left behind by its task: {shown}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn no_slot_has_two_holders_and_no_dirty_slot_is_free_without_proof(steps in steps()) {
        let mut play = Play { harness: Harness::new(SLOTS), node: Node::default(), leases: BTreeMap::new() };
        for step in steps {
            let before = play.harness.slots.clone();
            play.take(step.clone());
            play.check(&before, &step);
        }
    }
}
