//! Allocations: all commands, and all steps of a run.

use std::time::Duration;

use gpuaas_contract::id::{AllocationId, NodeId};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_domain::allocation::AllocationState;
use gpuaas_domain::allocation::commands::Request;
use gpuaas_domain::catalog::Product;
use gpuaas_domain::machine::{self, MachineState};
use gpuaas_domain::node::{NodeService, Operation};
use gpuaas_domain::slot::{self, SlotState};

use crate::diagram::assert_drawn;
use crate::hosts::End;
use crate::ledger::{Ledger, seal};
use crate::observed::{BEGINNING, Observed, search};
use crate::site::wanted;
use crate::support::at;

/// How tasks end: success, clean failure, failure that leaves something behind, refusal, and silence.
const ENDS: [End; 5] = [End::Succeeded, End::FailedClean, End::FailedDirty, End::Refused, End::NoWord];

/// What happens in addition to a tenant who leases and releases, hosts that succeed or fail, and time that passes. One at a time:
/// combinations reach more states, but no other transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Besides {
    /// The tenant stops the guest.
    Power,
    /// The lease ends.
    LeaseEnds,
    /// Operators release the tenant's slots and clean up after it.
    TakeAway,
    /// Operators quarantine free slots and allow them again.
    HoldBack,
    /// Operators retire the node.
    Retire,
}

impl Besides {
    const ALL: [Self; 5] = [Self::Power, Self::LeaseEnds, Self::TakeAway, Self::HoldBack, Self::Retire];
}

/// A site with as many hosts as are tried for one allocation.
fn site(product: Product) -> Ledger {
    match product {
        Product::Slice { .. } => Ledger::sliced(&[1, 1, 1]),
        Product::BareMetal => Ledger::whole(3),
    }
}

/// Everything that can happen: the command or step that causes it, and the ledger afterwards.
fn decided(before: &Ledger, id: AllocationId, besides: Besides) -> Vec<(&'static str, Ledger)> {
    let mut all = Vec::new();
    let run = &before.allocations[&id];
    let mut take = |by, happen: &dyn Fn(&mut Ledger)| {
        let mut ledger = before.clone();
        happen(&mut ledger);
        all.push((by, ledger));
    };
    take(run.step.as_str(), &|ledger| drop(ledger.advance(id)));
    take("release", &|ledger| ledger.release(id));
    take("retry", &|ledger| drop(ledger.retry(id, Duration::from_secs(3600))));
    for task in before.open_tasks_of(id) {
        for end in ENDS {
            take("a host", &|ledger| ledger.end(task, end));
        }
    }
    for moment in [run.due_at, Some(run.place_until), run.expires_at].into_iter().flatten() {
        take("time", &|ledger| {
            ledger.now = ledger.now.max(moment);
            ledger.tick();
        });
    }
    match besides {
        Besides::LeaseEnds => {}
        Besides::Power => {
            for action in PowerAction::ALL {
                take("power", &|ledger| drop(ledger.power(id, action)));
            }
        }
        Besides::TakeAway => {
            for held in before.slots_of(id) {
                take("an operator", &|ledger| drop(ledger.force_cleanup(held.id)));
                take("an operator", &|ledger| drop(ledger.release_slots(held.id, true)));
            }
            let machine = before.machines.values().find(|machine| machine.allocation_id == Some(id));
            if let Some(machine) = machine {
                take("an operator", &|ledger| drop(ledger.force_machine(machine.node_id)));
            }
        }
        Besides::HoldBack => {
            for operation in [slot::Operation::Quarantine, slot::Operation::Unquarantine] {
                take("an operator", &|ledger| {
                    let clean = ledger.slots.values().filter(|slot| slot.state.is_clean());
                    for slot in clean.map(|slot| slot.id).collect::<Vec<_>>() {
                        ledger.operate_slot(slot, operation).expect("it is clean");
                    }
                });
            }
        }
        Besides::Retire => {
            // Retiring one node is enough.
            let all_serve = before.nodes.values().all(|node| node.service == NodeService::InService);
            if let Some(node) = run.node_id.filter(|_| all_serve) {
                take("an operator", &|ledger| retire(ledger, node));
            }
        }
    }
    all
}

/// Retires a node, with everything on it.
fn retire(ledger: &mut Ledger, node: NodeId) {
    ledger.operate(node, Operation::Retire).expect("can always be done");
    let context = at(ledger.now);
    let slots = ledger.slots.values().filter(|slot| slot.node_id == node);
    let slots = slots.filter_map(|slot| slot::node_gone(slot, "retired", seal, &context)).map(|(_, decision)| decision);
    let machine = ledger.machines.get(&node).and_then(|machine| machine::node_gone(machine, "retired", &context));
    for decision in slots.chain(machine.map(|(_, decision)| decision)).collect::<Vec<_>>() {
        ledger.commit(decision).expect("nobody else writes");
    }
}

fn key(ledger: &Ledger, id: AllocationId) -> String {
    let run = &ledger.allocations[&id];
    let marks = [
        run.release_request.is_some(),
        run.active_at.is_some(),
        run.pending_power_action.is_some(),
        ledger.now >= run.place_until,
        run.expires_at.is_some_and(|end| ledger.now >= end),
        run.due_at.is_some_and(|due| due > ledger.now),
    ];
    // Which host it is makes no difference, only how many are left.
    let slots: Vec<_> = ledger.slots_of(id).iter().map(|slot| slot.state.as_str()).collect();
    let machine =
        ledger.machines.values().find(|machine| machine.allocation_id == Some(id)).map(|machine| machine.state.as_str());
    let service = run.node_id.map(|node| ledger.nodes[&node].service.as_str());
    let free_slots = ledger.slots.values().filter(|slot| slot.state == SlotState::Available).count();
    let free_machines = ledger.machines.values().filter(|machine| machine.state == MachineState::Available).count();
    let task = run.task_id.map(|task| ledger.tasks[&task].state.ended());
    let open: Vec<_> = ledger.open_tasks_of(id).iter().map(|task| ledger.tasks[task].task_type.as_str()).collect();
    let (state, step) = (run.state.as_str(), run.step.as_str());
    let place = format!("{slots:?} {machine:?} {service:?} {free_slots} {free_machines}");
    format!("{state} {step} {} {} {marks:?} {place} {task:?} {open:?}", run.attempts, run.releases)
}

fn observe(product: Product, besides: Besides) -> Observed {
    let mut observed = Observed::default();
    let mut ledger = site(product);
    let wait = Duration::from_secs(3600);
    let lease = (besides == Besides::LeaseEnds).then_some(Duration::from_secs(24 * 3600));
    let id = ledger.request(&Request { wait, lease, ..wanted(product) }).expect("there is no limit");
    let subject = id.to_string();
    let told = |ledger: &Ledger| ledger.events.iter().filter(|event| event.subject == subject).cloned().collect::<Vec<_>>();
    observed.note(BEGINNING, ledger.allocations[&id].state.as_str(), "request", &told(&ledger));
    ledger.events.clear();
    search(
        vec![ledger],
        |ledger| key(ledger, id),
        |before| {
            let follows = |(by, mut after): (&'static str, Ledger)| {
                let (from, to) = (&before.allocations[&id], &after.allocations[&id]);
                observed.note(from.state.as_str(), to.state.as_str(), by, &told(&after));
                after.events.clear();
                after.audit.clear();
                after
            };
            decided(before, id, besides).into_iter().map(follows).collect()
        },
    );
    observed
}

#[test]
fn the_diagram_of_allocations_is_what_the_code_decides() {
    let products = [Product::Slice { slots: 1 }, Product::BareMetal];
    let mut observed = Observed::default();
    std::thread::scope(|scope| {
        let sites = products.into_iter().flat_map(|product| Besides::ALL.map(|besides| (product, besides)));
        let searches: Vec<_> = sites.map(|(product, besides)| scope.spawn(move || observe(product, besides))).collect();
        searches.into_iter().for_each(|search| observed.add(search.join().expect("the reason is above")));
    });
    assert_drawn("Allocation", &AllocationState::ALL.map(AllocationState::as_str), &observed);
}
