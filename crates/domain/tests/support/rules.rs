//! Invariants of the ledger.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::id::{AllocationId, NodeId, SlotId};
use gpuaas_domain::allocation::{Allocation, AllocationState, AllocationStep, MAX_ATTEMPTS};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::machine::MachineState;
use gpuaas_domain::quota::{Used, quota_id};
use gpuaas_domain::slot::SlotState;

use crate::ledger::Ledger;

/// Whether an allocation may go from one state to the other.
fn may_follow(before: AllocationState, after: AllocationState) -> bool {
    use AllocationState as S;
    let next: &[S] = match before {
        S::Requested => &[S::Placing, S::Provisioning, S::Released, S::Failed],
        S::Placing => &[S::Provisioning, S::Released, S::Failed],
        S::Provisioning => &[S::Active, S::Releasing, S::Placing, S::Released, S::Failed],
        S::Active => &[S::Stopped, S::Releasing, S::Released, S::Failed],
        S::Stopped => &[S::Active, S::Releasing, S::Released, S::Failed],
        S::Releasing => &[S::Placing, S::Released, S::Failed, S::ReleaseBlocked],
        S::ReleaseBlocked => &[S::Releasing, S::Released, S::Failed],
        S::Released => &[],
        S::Failed => &[S::Requested],
    };
    before == after || next.contains(&after)
}

/// What was seen before, for invariants that relate two points in time.
#[derive(Default)]
pub(crate) struct Watch {
    states: BTreeMap<AllocationId, AllocationState>,
    slot_epochs: BTreeMap<SlotId, u64>,
    machine_epochs: BTreeMap<NodeId, u64>,
    /// Which allocation had which lease epoch of a slot or a machine.
    leases: BTreeMap<(String, u64), AllocationId>,
}

impl Watch {
    /// Checks all invariants, now and since the last check.
    pub(crate) fn check(&mut self, ledger: &Ledger) {
        self.numbers_grow(ledger);
        for run in ledger.allocations.values() {
            let before = self.states.insert(run.id, run.state).unwrap_or(AllocationState::Requested);
            assert!(may_follow(before, run.state), "{} went from {before:?} to {:?}", run.id, run.state);
        }
        check(ledger);
    }

    /// Every lease has an epoch of its own, and epochs never decrease.
    fn numbers_grow(&mut self, ledger: &Ledger) {
        let slots = ledger.slots.values().map(|slot| {
            let before = self.slot_epochs.insert(slot.id, slot.lease_epoch).unwrap_or(0);
            (slot.id.to_string(), before, slot.lease_epoch, slot.allocation_id)
        });
        let mut seen: Vec<_> = slots.collect();
        seen.extend(ledger.machines.values().map(|machine| {
            let before = self.machine_epochs.insert(machine.node_id, machine.lease_epoch).unwrap_or(0);
            (machine.id.clone(), before, machine.lease_epoch, machine.allocation_id)
        }));
        for (id, before, now, holder) in seen {
            assert!(now >= before, "the number of {id} went back from {before} to {now}");
            if let Some(holder) = holder {
                let first = *self.leases.entry((id.clone(), now)).or_insert(holder);
                assert_eq!(first, holder, "two allocations had number {now} of {id}");
            }
        }
    }
}

/// Checks all invariants of a single point in time.
pub(crate) fn check(ledger: &Ledger) {
    let mut held: BTreeMap<AllocationId, HeldSlot> = BTreeMap::new();
    one_holder(ledger, &mut held);
    for run in ledger.allocations.values() {
        belongs_to_somebody(ledger, run);
        holds_what_it_should(run, held.get(&run.id).unwrap_or(&HeldSlot::default()));
    }
    nothing_runs_for_who_is_gone(ledger);
    quotas_are_what_they_count(ledger);
    capacity_adds_up(ledger);
}

#[derive(Default)]
struct HeldSlot {
    slots: BTreeMap<SlotId, SlotState>,
    machine: Option<(NodeId, MachineState)>,
}

/// A slot or a machine has a holder exactly while it is not clean, and a host is never sliced and leased as a whole at the same time.
fn one_holder(ledger: &Ledger, held: &mut BTreeMap<AllocationId, HeldSlot>) {
    for slot in ledger.slots.values() {
        assert_eq!(slot.allocation_id.is_none(), slot.state.is_clean(), "{} is {:?}", slot.id, slot.state);
        assert_eq!(slot.state == SlotState::Quarantined, slot.quarantine.is_some() && slot.state.is_clean(), "{}", slot.id);
        let Some(holder) = slot.allocation_id else { continue };
        assert!(ledger.allocations.contains_key(&holder), "{} belongs to {holder}, which does not exist", slot.id);
        held.entry(holder).or_default().slots.insert(slot.id, slot.state);
        let whole = ledger.machines.get(&slot.node_id).and_then(|machine| machine.allocation_id);
        assert_eq!(whole, None, "{} has a tenant, and so has its whole host", slot.id);
    }
    for machine in ledger.machines.values() {
        assert_eq!(machine.allocation_id.is_none(), machine.state.is_clean(), "{} is {:?}", machine.id, machine.state);
        let Some(holder) = machine.allocation_id else { continue };
        assert!(ledger.allocations.contains_key(&holder), "{} belongs to {holder}, which does not exist", machine.id);
        let before = held.entry(holder).or_default().machine.replace((machine.node_id, machine.state));
        assert_eq!(before, None, "{holder} has two machines");
    }
    let nodes_of = |held: &HeldSlot| {
        let of_slots = held.slots.keys().map(|id| ledger.slots[id].node_id);
        of_slots.chain(held.machine.map(|(node, _)| node)).collect::<BTreeSet<_>>()
    };
    for (id, held) in held {
        assert_eq!(nodes_of(held), ledger.allocations[id].node_id.into_iter().collect(), "{id} is on the node it says");
    }
}

fn belongs_to_somebody(ledger: &Ledger, run: &Allocation) {
    assert!(ledger.organizations.contains_key(&run.organization_id), "{} belongs to no organization", run.id);
    let project = ledger.projects.get(&run.project_id).expect("it belongs to a project");
    assert_eq!(project.organization_id, run.organization_id);
}

fn holds_what_it_should(run: &Allocation, held: &HeldSlot) {
    let shown = format!("{} ({:?}, {:?})", run.id, run.state, run.step);
    let has = held.slots.len() + usize::from(held.machine.is_some());
    assert!(run.attempts <= MAX_ATTEMPTS, "{shown} was tried on {} hosts", run.attempts);
    assert_eq!(run.state.is_terminal(), run.step == AllocationStep::Done, "{shown}");
    assert_eq!(run.state.is_terminal(), run.ended_at.is_some(), "{shown}");
    assert!(!(run.state.is_terminal() && run.due_at.is_some()), "{shown} is over and waits for {:?}", run.due_at);
    if matches!(run.state, AllocationState::Requested | AllocationState::Placing) {
        assert_eq!((run.node_id, run.slots.as_slice()), (None, [].as_slice()), "{shown} is nowhere yet");
    }
    match run.state {
        AllocationState::Requested | AllocationState::Placing | AllocationState::Released | AllocationState::Failed => {
            assert_eq!(has, 0, "{shown} holds {:?} {:?}", held.slots, held.machine);
        }
        AllocationState::Active | AllocationState::Stopped => match run.terms.product {
            Product::Slice { slots } => {
                let wanted: BTreeSet<SlotId> = run.slots.iter().copied().collect();
                assert_eq!(held.slots.keys().copied().collect::<BTreeSet<_>>(), wanted, "{shown}");
                assert_eq!(wanted.len(), usize::try_from(slots).expect("few"), "{shown}");
                assert!(held.slots.values().all(|state| *state == SlotState::Leased), "{shown}: {:?}", held.slots);
            }
            Product::BareMetal => {
                let node = run.node_id.expect("it is somewhere");
                assert_eq!(held.machine, Some((node, MachineState::Leased)), "{shown}");
            }
        },
        AllocationState::Provisioning | AllocationState::Releasing | AllocationState::ReleaseBlocked => {}
    }
}

/// No task is open for an allocation that has ended.
fn nothing_runs_for_who_is_gone(ledger: &Ledger) {
    for id in ledger.open_tasks() {
        let holder = ledger.holders[&id];
        let state = ledger.allocations[&holder].state;
        assert!(!state.is_terminal(), "{id} is {:?} for {holder}, which is {state:?}", ledger.tasks[&id].state);
    }
}

/// A quota counts exactly the allocations that have not ended.
fn quotas_are_what_they_count(ledger: &Ledger) {
    let mut counted: BTreeMap<String, Used> = ledger.quotas.keys().map(|id| (id.clone(), Used::default())).collect();
    for run in ledger.allocations.values().filter(|run| !run.state.is_terminal()) {
        for id in [quota_id(&run.project_id), quota_id(&run.organization_id)] {
            let (used, more) = (counted.get_mut(&id).expect("everybody has a quota"), Used::of(run.terms.product));
            used.allocations += more.allocations;
            used.slots += more.slots;
            used.machines += more.machines;
        }
    }
    for (id, used) in counted {
        assert_eq!(ledger.quotas[&id].used, used, "{id}");
    }
}

/// Every approved slot is counted exactly once.
fn capacity_adds_up(ledger: &Ledger) {
    for row in ledger.picture.capacity() {
        assert_eq!(row.delivered, row.healthy + row.unhealthy, "{row:?}");
        assert_eq!(row.healthy, row.allocated + row.free, "{row:?}");
        assert!(row.largest_free_on_one_node <= row.free, "{row:?}");
    }
}
