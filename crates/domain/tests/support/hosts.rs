//! Hosts that receive tasks and report on them, in every way in which a task can end.
#![allow(dead_code, reason = "every test file uses its own part")]

use gpuaas_contract::cleanup::DriveProof;
use gpuaas_contract::envelope::CLOCK_SKEW;
use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{operators_act, operators_power};
use gpuaas_domain::machine;
use gpuaas_domain::node::{self, NodeService, Operation};
use gpuaas_domain::slice::{self, HeldSlots};
use gpuaas_domain::slot::{self, Slot};
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, NewTask, ReceiptHead, TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision, Refusal};

use crate::ledger::{Ledger, intent, seal};
use crate::support::{Report, at, outgoing, receipt_for, session, slices};

/// How a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    /// A release that keeps the content of the drives; any other task succeeds.
    NotWiped,
    /// Failed, with proof that nothing is left.
    FailedClean,
    /// Failed, and something is left.
    FailedDirty,
    /// The host went down while it ran.
    Interrupted,
    /// The host did not start it.
    Refused,
    /// Canceled before it started.
    CancelledUnstarted,
    /// Canceled, and cleaned up.
    CancelledClean,
    /// Canceled, and something is left.
    CancelledDirty,
    /// It ran, and its node was retired before it reported.
    NodeGone,
    /// Its node was retired before the task was sent.
    NodeGoneBefore,
    /// It was sent, and its node was never heard from again.
    NoWord,
    /// It was never sent.
    Expired,
}

impl End {
    pub(crate) const ALL: [Self; 13] = [
        Self::Succeeded,
        Self::NotWiped,
        Self::FailedClean,
        Self::FailedDirty,
        Self::Interrupted,
        Self::Refused,
        Self::CancelledUnstarted,
        Self::CancelledClean,
        Self::CancelledDirty,
        Self::NodeGone,
        Self::NodeGoneBefore,
        Self::NoWord,
        Self::Expired,
    ];

    /// What the node reports, if anything.
    pub(crate) fn reported(self, order: &Task) -> Option<Report> {
        let kind = order.task_type();
        let complete = || kind.may_prove_cleanup().then(|| slices::proof(order));
        let incomplete = || {
            let mut proof = complete()?;
            proof.domain_absent = false;
            Some(proof)
        };
        let done = |proof| {
            let output = Some(serde_json::value::to_raw_value(&slices::output(order)).expect("JSON"));
            Report { output, proof, ..Report::plainly(Outcome::Succeeded) }
        };
        let release = kind == TaskType::SliceVmRelease;
        Some(match self {
            Self::Succeeded => done(complete().filter(|_| release)),
            Self::NotWiped => {
                let mut proof = complete().filter(|_| release);
                for slot in proof.iter_mut().flat_map(|proof| &mut proof.slots) {
                    slot.drive = DriveProof::skipped(&slot.drive.serial);
                }
                done(proof)
            }
            Self::FailedClean => Report { proof: complete(), ..Report::plainly(Outcome::Failed) },
            Self::FailedDirty => Report { proof: incomplete(), ..Report::plainly(Outcome::Failed) },
            Self::Interrupted => Report::plainly(Outcome::Interrupted),
            Self::Refused => Report::plainly(Outcome::Refused),
            Self::CancelledUnstarted => Report { started: false, ..Report::plainly(Outcome::Cancelled) },
            Self::CancelledClean => Report { proof: complete(), ..Report::plainly(Outcome::Cancelled) },
            Self::CancelledDirty => Report { proof: incomplete(), ..Report::plainly(Outcome::Cancelled) },
            Self::NodeGone | Self::NodeGoneBefore | Self::NoWord | Self::Expired => return None,
        })
    }
}

impl Ledger {
    /// The task with its parameters.
    pub(crate) fn order(&self, id: TaskId) -> Task {
        let task = &self.tasks[&id];
        Task::parse(task.task_type, &task.params).expect("parses")
    }

    /// Tasks that have not ended, oldest first.
    pub(crate) fn open_tasks(&self) -> Vec<TaskId> {
        self.made.iter().copied().filter(|id| !self.tasks[id].state.ended()).collect()
    }

    /// Tasks of this allocation that have not ended.
    pub(crate) fn open_tasks_of(&self, id: AllocationId) -> Vec<TaskId> {
        let mut open = self.open_tasks();
        open.retain(|task| self.holders.get(task) == Some(&id));
        open
    }

    /// The task that a run waits for.
    pub(crate) fn task_of(&self, id: AllocationId) -> TaskId {
        self.allocations[&id].task_id.expect("it has ordered something")
    }

    /// Sends a task to its node.
    pub(crate) fn dispatch(&mut self, id: TaskId) -> Result<(), Refusal> {
        let task = self.tasks[&id].clone();
        let node = &self.nodes[&task.node_id];
        assert_eq!(task.intent, intent(&task), "only the control plane makes tasks");
        let (_, decision) = task::dispatch(&task, node, &outgoing(&task, node, self.now)?, &at(self.now))?;
        self.commit(decision).expect("nobody else writes");
        Ok(())
    }

    /// The node reports that the task runs.
    pub(crate) fn acknowledge(&mut self, id: TaskId) {
        let decision = task::acknowledged(&self.tasks[&id], true, &at(self.now));
        self.commit(decision).expect("nobody else writes");
    }

    /// Sends the task if necessary, and starts it.
    pub(crate) fn start(&mut self, id: TaskId) {
        if self.tasks[&id].state == TaskState::Queued {
            self.dispatch(id).expect("can be sent");
        }
        self.acknowledge(id);
    }

    /// Delivers the node's receipt, possibly late.
    pub(crate) fn receipt(&mut self, id: TaskId, reported: Report) {
        let task = self.tasks[&id].clone();
        let order = self.envelopes[&id].last().expect("it was sent");
        let (verified, raw) = receipt_for(&task, order, reported, 1);
        let decision = task::receipt(&task, &ReceiptHead::default(), &verified, &raw, &at(self.now));
        self.commit(decision.expect("taken").expect("news")).expect("nobody else writes");
    }

    /// Ends a task like this, whatever its state.
    pub(crate) fn end(&mut self, id: TaskId, end: End) {
        let order = self.order(id);
        if let Some(reported) = end.reported(&order) {
            if reported.started {
                self.start(id);
            } else if self.tasks[&id].state == TaskState::Queued {
                self.dispatch(id).expect("can be sent");
            }
            return self.receipt(id, reported);
        }
        match end {
            End::NodeGone => self.start(id),
            End::NoWord if self.tasks[&id].state == TaskState::Queued => self.dispatch(id).expect("can be sent"),
            _ => {}
        }
        if matches!(end, End::NodeGone | End::NodeGoneBefore) {
            let gone = task::node_gone(&self.tasks[&id], "its node was retired", &at(self.now));
            return self.commit(gone).expect("nobody else writes");
        }
        let task = &self.tasks[&id];
        let start_by = task.envelope_start_by.unwrap_or_default().plus(CLOCK_SKEW + CLOCK_SKEW);
        self.now = self.now.max(task.queue_until).max(start_by).plus(std::time::Duration::from_secs(1));
        self.tick();
    }

    /// Applies what time alone changes.
    pub(crate) fn tick(&mut self) {
        for id in self.open_tasks() {
            let task = &self.tasks[&id];
            if task::due_at(task).is_some_and(|due| due < self.now) {
                let decision = task::tick(task, &at(self.now));
                self.commit(decision).expect("nobody else writes");
            }
        }
    }

    /// Opens the node's link. Tasks that the node does not have according to `has` will not run unless they are sent again.
    pub(crate) fn connect(&mut self, node: NodeId, has: impl Fn(TaskId) -> bool) -> Result<(), Refusal> {
        let decision = node::connected(&self.nodes[&node], session(), None, &at(self.now))?;
        self.commit(decision).expect("nobody else writes");
        for id in self.open_tasks() {
            let task = &self.tasks[&id];
            if task.node_id != node {
                continue;
            }
            let decision = if has(id) {
                task::acknowledged(task, true, &at(self.now))
            } else {
                task::unknown_to_node(task, Timestamp(0), &at(self.now))
            };
            self.commit(decision).expect("nobody else writes");
        }
        Ok(())
    }

    pub(crate) fn disconnect(&mut self, node: NodeId) {
        let node = &self.nodes[&node];
        let Some(session) = node.session.as_ref().map(|session| session.id) else { return };
        let decision = node::disconnected(node, session, "the link broke", &at(self.now));
        self.commit(decision).expect("nobody else writes");
    }

    /// An operator's operation on a node.
    pub(crate) fn operate(&mut self, id: NodeId, operation: Operation) -> Result<(), Refusal> {
        let mut decision = node::operate(&self.nodes[&id], operation, "", &at(self.now))?;
        if !decision.is_empty() {
            for run in self.allocations.values().filter(|run| run.node_id == Some(id)) {
                decision = decision.and(operators_act(run, operation.into(), None, &at(self.now)));
            }
        }
        if operation == Operation::Retire && !decision.is_empty() {
            for open in self.open_tasks() {
                let task = &self.tasks[&open];
                if task.node_id == id {
                    decision = decision.and(task::node_gone(task, "its node was retired", &at(self.now)));
                }
            }
        }
        self.commit(decision).expect("nobody else writes");
        Ok(())
    }

    /// Enrolls a retired machine again.
    pub(crate) fn enroll(&mut self, id: NodeId) {
        let known = self.nodes[&id].clone();
        assert_eq!(known.service, NodeService::Retired);
        let admission = node::Admission {
            fingerprint: known.fingerprint.clone(),
            receipt_key: known.receipt_key.clone(),
            tls_key_digest: known.tls_key_digest.clone(),
            facts: known.facts.clone(),
        };
        let (node, mut decision) = node::enroll(Some(known), admission, id, &at(self.now));
        decision = decision.change(Change::NodeUpdate(Box::new(node)));
        for open in self.open_tasks() {
            if self.tasks[&open].node_id == id {
                decision = decision.and(task::node_gone(&self.tasks[&open], "its node was enrolled again", &at(self.now)));
            }
        }
        self.commit(decision).expect("nobody else writes");
    }

    pub(crate) fn operate_slot(&mut self, id: SlotId, operation: slot::Operation) -> Result<(), Refusal> {
        let decision = slot::operate(&self.slots[&id], operation, "", seal, &at(self.now))?;
        self.commit(decision).expect("nobody else writes");
        Ok(())
    }

    /// Creates a task for an operator, together with the changes to slots or a machine in the same commit.
    fn ordered(&mut self, node: NodeId, id: TaskId, task: Task, with: Decision) -> Result<TaskId, Refusal> {
        let timeout = task.timeout();
        let new = NewTask { id, task, queue_time: DEFAULT_QUEUE_TIME, timeout, idempotency_key: None };
        let (_, decision) = task::create(&self.nodes[&node], new, 0, &at(self.now), intent)?;
        self.commit(decision.and(with)).expect("nobody else writes");
        Ok(id)
    }

    fn held_with<T>(&self, slot: SlotId, ask: impl FnOnce(HeldSlots<'_>) -> T) -> T {
        let named = &self.slots[&slot];
        let slots: Vec<Slot> = match named.allocation_id {
            Some(allocation) => self.slots_of(allocation),
            None => vec![named.clone()],
        };
        let tasks: Vec<TaskRecord> = slots.iter().filter_map(|slot| slot.lease_task).map(|id| self.tasks[&id].clone()).collect();
        ask(HeldSlots { slots: &slots, tasks: &tasks })
    }

    /// An operator forces the cleanup of a slot.
    pub(crate) fn force_cleanup(&mut self, slot: SlotId) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let ids = (AllocationId::generate(), id);
        let order = self.held_with(slot, |held| slice::force_cleanup(held, "stuck", ids, seal, &at(self.now)))?;
        let told = self.tell_tenant(slot, OperatorAction::ForceCleanup, id);
        self.ordered(self.slots[&slot].node_id, id, order.task, order.decision.and(told))
    }

    /// An operator releases a slice without its tenant's consent.
    pub(crate) fn release_slots(&mut self, slot: SlotId, wipe: bool) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let order = self.held_with(slot, |held| slice::release(held, wipe, 0, id, seal, &at(self.now)))?;
        let told = self.tell_tenant(slot, OperatorAction::Release, id);
        self.ordered(self.slots[&slot].node_id, id, order.task, order.decision.and(told))
    }

    /// An operator stops, starts or reboots a slice without its tenant's consent.
    pub(crate) fn power_slots(&mut self, slot: SlotId, action: PowerAction) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let order = self.held_with(slot, |held| slice::power(held, action, 0))?;
        let allocation = self.slots[&slot].allocation_id.expect("somebody has it");
        let told = operators_power(&self.allocations[&allocation], action, id, &at(self.now))?;
        self.ordered(self.slots[&slot].node_id, id, order.task, order.decision.and(told))
    }

    fn tell_tenant(&self, slot: SlotId, action: OperatorAction, task: TaskId) -> Decision {
        let run = self.slots[&slot].allocation_id.and_then(|id| self.allocations.get(&id));
        run.map(|run| operators_act(run, action, Some(task), &at(self.now))).unwrap_or_default()
    }

    /// An operator forces the cleanup of a machine.
    pub(crate) fn force_machine(&mut self, node: NodeId) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let machine = &self.machines[&node];
        let last = machine.lease_task.map(|task| &self.tasks[&task]);
        let username = match machine.allocation_id {
            Some(allocation) => self.allocations[&allocation].terms.username.clone(),
            None => "nobody-there".parse().expect("a name"),
        };
        let (task, decision) = machine::release(machine, last, &username, true, id, &at(self.now))?;
        self.ordered(node, id, task, decision)
    }
}
