//! What is really on the hosts, whatever the ledger says. Hosts do as they are told, fail in every way, lose their links, and tell the
//! truth about it, immediately or much later.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::envelope::CLOCK_SKEW;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::machine::MachineState;

use crate::hosts::End;
use crate::ledger::Ledger;

/// Something that only one allocation at a time may occupy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Slot(SlotId),
    Host(NodeId),
}

#[derive(Default)]
pub(crate) struct Truth {
    /// Tasks that were sent over the current link, or over the last one.
    on_the_way: BTreeSet<TaskId>,
    /// Tasks that a host has in its journal.
    taken: BTreeSet<TaskId>,
    /// How finished tasks ended. Their receipts are kept until they are accepted.
    done: BTreeMap<TaskId, End>,
    /// Which allocation has a guest or a user, or has left something, at a place.
    remains: BTreeMap<Place, AllocationId>,
    /// The highest lease epoch that was released. Tasks for that or an older lease are refused.
    fences: BTreeMap<Place, u64>,
}

fn makes(kind: TaskType) -> bool {
    matches!(kind, TaskType::SliceVmProvision | TaskType::AllocationProvisionUser)
}

fn ends(kind: TaskType) -> bool {
    matches!(kind, TaskType::SliceVmRelease | TaskType::AllocationDeprovisionUser)
}

fn places(order: &Task, node: NodeId) -> Vec<Place> {
    match order {
        Task::AllocationProvisionUser(_) | Task::AllocationDeprovisionUser(_) => vec![Place::Host(node)],
        other => other.slots().iter().map(|slot| Place::Slot(slot.slot_id)).collect(),
    }
}

impl Truth {
    /// Whether the node would report that it has the task.
    pub(crate) fn has(&self, id: TaskId) -> bool {
        self.taken.contains(&id)
    }

    /// Sends a queued task over the link, if it is open.
    pub(crate) fn dispatch(&mut self, ledger: &mut Ledger, id: TaskId) -> bool {
        let online = ledger.nodes[&ledger.tasks[&id].node_id].session.is_some();
        let sent = online && ledger.dispatch(id).is_ok();
        if sent && !self.taken.contains(&id) {
            self.on_the_way.insert(id);
        }
        sent
    }

    /// Tasks that a host could accept now.
    pub(crate) fn takable(&self, ledger: &Ledger) -> Vec<TaskId> {
        let good = |id: &TaskId| {
            let start_by = ledger.tasks[id].envelope_start_by;
            self.on_the_way.contains(id) && start_by.is_some_and(|start_by| ledger.now <= start_by.plus(CLOCK_SKEW))
        };
        ledger.made.iter().copied().filter(good).collect()
    }

    /// A host accepts a task and starts it, unless it is too late. Its report may still get lost.
    pub(crate) fn take(&mut self, ledger: &mut Ledger, id: TaskId) {
        self.on_the_way.remove(&id);
        self.taken.insert(id);
        let (order, node) = (ledger.order(id), ledger.tasks[&id].node_id);
        let (kind, holder) = (order.task_type(), order.holder().expect("acts for somebody"));
        let places = places(&order, node);
        let fence = places.iter().filter_map(|place| self.fences.get(place)).max().copied().unwrap_or(0);
        let late = if ends(kind) { holder.lease_epoch < fence } else { holder.lease_epoch <= fence };
        if late {
            self.done.insert(id, End::Refused);
            return;
        }
        for place in places {
            if makes(kind) {
                let before = self.remains.insert(place, holder.allocation_id);
                assert!(before.is_none_or(|before| before == holder.allocation_id), "{place:?}: on the remains of {before:?}");
            } else if ends(kind) {
                self.fences.insert(place, holder.lease_epoch);
                self.overtake(ledger, place, holder.lease_epoch, id);
            }
        }
        if ledger.nodes[&node].session.is_some() {
            ledger.acknowledge(id);
        }
    }

    /// Stops all tasks that still run under this lease epoch or an earlier one.
    fn overtake(&mut self, ledger: &Ledger, place: Place, number: u64, by: TaskId) {
        for id in self.running(ledger) {
            let order = ledger.order(id);
            let overtaken = order.holder().is_some_and(|holder| holder.lease_epoch <= number);
            if id != by && overtaken && places(&order, ledger.tasks[&id].node_id).contains(&place) {
                self.done.insert(id, End::Interrupted);
            }
        }
    }

    /// A host does not start a task.
    pub(crate) fn refuse(&mut self, id: TaskId, end: End) {
        self.on_the_way.remove(&id);
        self.taken.insert(id);
        self.done.insert(id, end);
    }

    /// Tasks that hosts are running.
    pub(crate) fn running(&self, ledger: &Ledger) -> Vec<TaskId> {
        let runs = |id: &TaskId| self.taken.contains(id) && !self.done.contains_key(id);
        ledger.made.iter().copied().filter(runs).collect()
    }

    /// A host finishes a task that it started.
    pub(crate) fn finish(&mut self, ledger: &Ledger, id: TaskId, end: End) {
        let (order, node) = (ledger.order(id), ledger.tasks[&id].node_id);
        let kind = order.task_type();
        let whole = matches!(kind, TaskType::AllocationProvisionUser | TaskType::AllocationDeprovisionUser);
        let clean = match end {
            End::Succeeded => ends(kind),
            // A whole host has no release that keeps the content.
            End::NotWiped => ends(kind) && whole,
            // A whole host proves cleanup only by removing the user.
            End::FailedClean | End::CancelledClean => !whole && (ends(kind) || makes(kind)),
            End::FailedDirty | End::CancelledDirty | End::Interrupted => false,
            // A task that has started is not refused any more; it fails.
            End::Refused | End::CancelledUnstarted => return self.finish(ledger, id, End::FailedDirty),
            End::NodeGone | End::NodeGoneBefore | End::NoWord | End::Expired => panic!("no end that a host knows: {end:?}"),
        };
        for place in places(&order, node) {
            if clean {
                self.remains.remove(&place);
            }
        }
        self.done.insert(id, end);
    }

    /// Tasks whose receipts can arrive now.
    pub(crate) fn deliverable(&self, ledger: &Ledger) -> Vec<TaskId> {
        let can = |id: &TaskId| {
            let task = &ledger.tasks[id];
            let node = &ledger.nodes[&task.node_id];
            let speaks = node.session.is_some() && node.epoch == task.node_epoch;
            self.done.contains_key(id) && task.receipt_digest.is_none() && speaks
        };
        ledger.made.iter().copied().filter(can).collect()
    }

    /// A receipt arrives, possibly long after the task was given up.
    pub(crate) fn deliver(&self, ledger: &mut Ledger, id: TaskId) {
        let order = ledger.order(id);
        ledger.receipt(id, self.done[&id].reported(&order).expect("a host has ended it"));
    }

    /// A link opens. What was sent over the previous one is void.
    pub(crate) fn connect(&mut self, ledger: &mut Ledger, node: NodeId) -> bool {
        self.on_the_way.retain(|id| ledger.tasks[id].node_id != node);
        ledger.connect(node, |id| self.taken.contains(&id)).is_ok()
    }

    /// A machine is enrolled again: it has forgotten its tasks, but what is on it is still there.
    pub(crate) fn enroll(&mut self, ledger: &mut Ledger, node: NodeId) {
        self.on_the_way.retain(|id| ledger.tasks[id].node_id != node);
        for id in self.running(ledger) {
            if ledger.tasks[&id].node_id == node {
                self.done.insert(id, End::Interrupted);
            }
        }
        ledger.enroll(node);
    }

    /// Checks that the ledger knows everything that is left anywhere: nothing is recorded as clean that is not.
    pub(crate) fn check(&self, ledger: &Ledger) {
        for (place, allocation) in &self.remains {
            let holder = match place {
                Place::Slot(id) => ledger.slots[id].allocation_id,
                Place::Host(node) => ledger.machines[node].allocation_id,
            };
            assert_eq!(holder, Some(*allocation), "{place:?}: what the ledger say is not what is there");
        }
        for machine in ledger.machines.values().filter(|machine| machine.state == MachineState::Available) {
            assert_eq!(self.remains.get(&Place::Host(machine.node_id)), None, "{} is given out dirty", machine.id);
        }
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.remains.is_empty()
    }
}
