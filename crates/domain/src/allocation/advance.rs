//! Advances a run by one step.

use gpuaas_contract::event::{
    AllocationActive, AllocationEnded, AllocationPlacing, AllocationPowerDone, AllocationPowerOrdered, AllocationProblem,
    AllocationProgress, AllocationProvisioning, AllocationReleaseDelayed, AllocationReleaseOrdered, Event,
};
use gpuaas_contract::guest::GuestSpec;
use gpuaas_contract::id::{NodeId, SlotId, TaskId};
use gpuaas_contract::task::Task;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::Timestamp;
use std::time::Duration;

use super::{
    Allocation, AllocationState, AllocationStep, GuestState, LastError, MAX_ATTEMPTS, MAX_RELEASES, SLOW_POLL, tenant_messages,
};
use crate::catalog::Product;
use crate::decision::{Context, Decision, Wakeup};
use crate::machine::{self, Machine, MachineState, Tenant};
use crate::node::Node;
use crate::placement::NoFit;
use crate::quota::{Quota, Used};
use crate::refusal::{Refusal, RefusalKind};
use crate::slice::{self, HeldSlots};
use crate::slot::{Slot, SlotState};
use crate::task::{self, DEFAULT_QUEUE_TIME, NewTask, TaskRecord, TaskState};

/// How soon placement is tried again if nothing becomes free before that.
const PLACE_AGAIN: Duration = Duration::from_secs(60);
/// How soon placement is tried again if another allocation took the place first.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How soon a release that exceeded the budget of destructive commands is tried again.
const BUDGET_AGAIN: Duration = Duration::from_secs(5);
/// Delays before the second and the third release. The third is the last; see [`MAX_RELEASES`].
const RELEASE_AGAIN: [Duration; MAX_RELEASES as usize - 1] = [Duration::from_secs(10), Duration::from_secs(60)];
/// The code of a release that is blocked because an operator released the slice without wiping it.
const CONTENT_KEPT: &str = "content_kept";

/// A place that was found, with its rows as they are now.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The node to place the allocation on.
    pub node: Node,
    /// The slots to lease; empty for bare metal.
    pub slots: Vec<Slot>,
    /// The machine to lease; `None` for a slice.
    pub machine: Option<Machine>,
}

/// The loaded state on which a step is decided.
#[derive(Clone, Debug)]
pub struct StepInputs {
    /// The node the allocation is on; `None` if it has none.
    pub node: Option<Node>,
    /// The slots that the allocation holds, or that it has left something on.
    pub slots: Vec<Slot>,
    /// The [`Slot::lease_task`] of each of these slots, or that of the machine.
    pub lease_tasks: Vec<TaskRecord>,
    /// The machine that the allocation holds, or that it has left something on.
    pub machine: Option<Machine>,
    /// The task of [`Allocation::task_id`].
    pub task: Option<TaskRecord>,
    /// Whether the guest responds, as the node reported in the receipt of the task that started it.
    pub guest_answers: Option<bool>,
    /// Where the allocation can be placed, or why nowhere. Loaded only for [`AllocationStep::Place`].
    pub place: Option<Result<Chosen, NoFit>>,
    /// What to write to the budget of destructive commands if a release is ordered, or why none may be ordered. Loaded only for
    /// [`AllocationStep::Release`].
    pub budget: Option<Result<Decision, Refusal>>,
    /// The quotas of the allocation's project and organization. A run writes to them only when the allocation ends.
    pub quotas: Vec<Quota>,
}

impl StepInputs {
    /// Whether the allocation holds, or has left something on, any slot or machine.
    fn is_held(&self) -> bool {
        !self.slots.is_empty() || self.machine.as_ref().is_some_and(|machine| !machine.state.is_clean())
    }
}

/// Functions that need the control plane's keys.
pub struct Signers<'a> {
    /// Computes [`Slot::seal`].
    pub seal: &'a dyn Fn(&Slot) -> String,
    /// Computes [`TaskRecord::intent`].
    pub intent: &'a dyn Fn(&TaskRecord) -> String,
}

/// When to advance a run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Immediately.
    Now,
    /// At this time, or earlier if it is woken.
    At(Timestamp),
    /// Never: the run has ended.
    Done,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub struct Advance {
    /// The allocation after the step.
    pub allocation: Allocation,
    /// What to write; empty if there is nothing to do yet.
    pub decision: Decision,
    /// When to call [`advance`] again.
    pub next: Next,
}

/// Decides the next step of a run. Calling it again before anything has changed has no effect.
pub fn advance(allocation: &Allocation, inputs: &StepInputs, signers: &Signers<'_>, context: &Context) -> Advance {
    let run = Run { now: allocation, inputs, signers, context };
    match allocation.step {
        AllocationStep::Place => run.place(),
        AllocationStep::AwaitProvision => run.await_provision(),
        AllocationStep::Serve => run.serve(),
        AllocationStep::AwaitPower => run.await_power(),
        AllocationStep::Release => run.release(),
        AllocationStep::AwaitRelease => run.await_release(),
        AllocationStep::Done => run.wait_until(None),
    }
}

struct Run<'a> {
    now: &'a Allocation,
    inputs: &'a StepInputs,
    signers: &'a Signers<'a>,
    context: &'a Context,
}

impl Run<'_> {
    fn place(&self) -> Advance {
        // An earlier placement holds something, and the run has not advanced since. Release it first: an allocation never has two places.
        if self.inputs.is_held() {
            return self.begin_release(self.now.clone());
        }
        if self.now.release_request.is_some() {
            return self.finish(self.now.clone(), AllocationState::Released);
        }
        if self.now.expires_at.is_some_and(|end| end <= self.context.now) {
            let reason = "its lease was over before there was a place for it; ask for a new one";
            let last_error = self.last_error("lease_over", reason, reason);
            return self.finish(Allocation { last_error: Some(last_error), ..self.now.clone() }, AllocationState::Failed);
        }
        let chosen = match &self.inputs.place {
            Some(Ok(chosen)) => chosen,
            Some(Err(no_fit)) => return self.no_place(no_fit),
            None => return self.wait_until(Some(self.context.now.plus(SLOW_POLL))),
        };
        let task_id = TaskId::generate();
        match self.lease(chosen, task_id) {
            Ok((decision, slots)) => {
                let next = Allocation {
                    state: AllocationState::Provisioning,
                    step: AllocationStep::AwaitProvision,
                    node_id: Some(chosen.node.id),
                    slots,
                    task_id: Some(task_id),
                    attempts: self.now.attempts.saturating_add(1),
                    due_at: Some(self.context.now.plus(SLOW_POLL)),
                    ..self.now.clone()
                };
                let (node_id, attempt) = (chosen.node.id, next.attempts);
                self.moved(next, decision, |progress| {
                    Event::AllocationProvisioning(AllocationProvisioning { progress, node_id, task_id, attempt })
                })
            }
            // Another allocation was faster, or the node was taken out of service in the meantime: look for another place.
            Err(refusal) if refusal.kind == RefusalKind::Conflict => self.wait_until(Some(self.context.now.plus(LOOK_AGAIN))),
            // The terms cannot be turned into an order at all, so trying again would not help.
            Err(refusal) => {
                let last_error = self.last_error(refusal.code, &refusal.message, &refusal.message);
                self.finish(Allocation { last_error: Some(last_error), ..self.now.clone() }, AllocationState::Failed)
            }
        }
    }

    fn no_place(&self, no_fit: &NoFit) -> Advance {
        let lines = no_fit.for_operators().join("; ");
        let last_error = match self.now.last_error.as_ref().filter(|_| self.now.attempts > 0) {
            // Keep the host's error as the cause; that there is no other host only explains why the allocation still waits.
            Some(earlier) => {
                self.last_error(&earlier.code, &earlier.reason, &format!("{}; no other place: {lines}", earlier.detail))
            }
            None => self.last_error("no_capacity", &no_fit.for_tenants(), &lines),
        };
        if self.context.now >= self.now.place_until {
            return self.finish(Allocation { last_error: Some(last_error), ..self.now.clone() }, AllocationState::Failed);
        }
        let again = self.context.now.plus(PLACE_AGAIN).min(self.now.place_until);
        let known =
            self.now.last_error.as_ref().is_some_and(|known| known.code == last_error.code && known.reason == last_error.reason);
        if self.now.state == AllocationState::Placing && known {
            return self.wait_until(Some(again));
        }
        let next =
            Allocation { state: AllocationState::Placing, last_error: Some(last_error), due_at: Some(again), ..self.now.clone() };
        let until = Some(self.now.place_until);
        self.moved(next, Decision::default(), |progress| {
            Event::AllocationPlacing(AllocationPlacing { progress, until, after: None })
        })
    }

    /// Leases the place and creates the provisioning task.
    fn lease(&self, chosen: &Chosen, task_id: TaskId) -> Result<(Decision, Vec<SlotId>), Refusal> {
        let ids = (self.now.id, task_id);
        let terms = &self.now.terms;
        let (task, leased, slots) = match (terms.product, &terms.image, &chosen.machine) {
            (Product::Slice { .. }, Some(image), _) => {
                let guest = GuestSpec {
                    vm_name: self.now.name.clone(),
                    image: image.source.clone(),
                    driver_strategy: image.driver_strategy,
                    default_username: terms.username.clone(),
                    ssh_public_keys: terms.ssh_public_keys.clone(),
                    // The host decides which network a guest is connected to.
                    ovs_bridge: None,
                    graceful_timeout_seconds: Some(terms.graceful_timeout_seconds),
                    graphics: false,
                };
                let order = slice::provision(&chosen.node, &chosen.slots, &guest, ids, self.signers.seal, self.context)?;
                let slots = order.slots.iter().map(|slot| slot.id).collect();
                (order.task, order.decision, slots)
            }
            (Product::Slice { .. }, None, _) => {
                return Err(Refusal::invalid("image_missing", "a slice needs an image"));
            }
            (Product::BareMetal, _, Some(machine)) => {
                let tenant =
                    Tenant { username: terms.username.clone(), ssh_public_keys: terms.ssh_public_keys.clone(), sudo: terms.sudo };
                let (task, leased) = machine::provision(machine, &tenant, ids, self.context)?;
                (task, leased, Vec::new())
            }
            (Product::BareMetal, _, None) => {
                return Err(Refusal::conflict("machine_not_available", "the node is not offered as a whole"));
            }
        };
        Ok((self.order(&chosen.node, task, task_id)?.and(leased), slots))
    }

    /// Creates a task of this run in the queue of its node.
    fn order(&self, node: &Node, task: Task, id: TaskId) -> Result<Decision, Refusal> {
        let timeout = task.timeout();
        let new = NewTask { id, task, queue_time: DEFAULT_QUEUE_TIME, timeout, idempotency_key: None };
        // Passing 0 skips the limit on queued tasks. The number is bounded anyway: a slot has one holder, and a holder has one run.
        let (_, decision) = task::create(node, new, 0, self.context, self.signers.intent)?;
        Ok(decision)
    }

    fn await_provision(&self) -> Advance {
        let Some(task) = &self.inputs.task else { return self.begin_release(self.now.clone()) };
        if !task.state.ended() {
            return self.wait_for(task);
        }
        let made = task.state == TaskState::Succeeded && self.is_in_hand();
        if made && self.now.release_request.is_some() {
            return self.begin_release(self.now.clone());
        }
        if made {
            let next = Allocation {
                state: AllocationState::Active,
                step: AllocationStep::Serve,
                active_at: self.now.active_at.or(Some(self.context.now)),
                // A node reports a provisioned guest only once it responds.
                guest: match self.now.terms.product {
                    Product::Slice { .. } => Some(GuestState::Answering),
                    Product::BareMetal => None,
                },
                last_error: None,
                due_at: self.now.expires_at,
                ..self.now.clone()
            };
            let (node_id, expires_at) = (next.node_id, next.expires_at);
            return self.moved(next, Decision::default(), |progress| {
                Event::AllocationActive(AllocationActive { progress, node_id, expires_at })
            });
        }
        let last_error = if task.state == TaskState::Succeeded {
            self.taken_away()
        } else {
            self.last_error(&task.code, &tenant_messages::of_task(task), &self.detail_of(task))
        };
        let avoid = self.now.node_id.into_iter().chain(self.now.avoid.iter().copied());
        let mut unique: Vec<NodeId> = Vec::new();
        for node in avoid {
            if !unique.contains(&node) {
                unique.push(node);
            }
        }
        let next = Allocation { last_error: Some(last_error), avoid: unique, ..self.now.clone() };
        if self.inputs.is_held() { self.begin_release(next) } else { self.after_cleanup(next) }
    }

    /// Whether the allocation still holds everything it was given.
    fn is_in_hand(&self) -> bool {
        match self.now.terms.product {
            Product::Slice { .. } => {
                self.inputs.slots.len() == self.now.slots.len()
                    && self.inputs.slots.iter().all(|slot| slot.state == SlotState::Leased)
            }
            Product::BareMetal => self.inputs.machine.as_ref().is_some_and(|machine| machine.state == MachineState::Leased),
        }
    }

    fn serve(&self) -> Advance {
        if !self.is_in_hand() {
            // The tenant cannot use it any more, whether or not the operator's cleanup succeeds.
            return self.begin_release(Allocation { last_error: Some(self.taken_away()), ..self.now.clone() });
        }
        if self.now.release_request.is_some() {
            return self.begin_release(self.now.clone());
        }
        if let Some(end) = self.now.expires_at.filter(|end| *end <= self.context.now) {
            let request = super::ReleaseRequest { by: "system".to_owned(), at: end, reason: "the lease is over".to_owned() };
            return self.begin_release(Allocation { release_request: Some(request), ..self.now.clone() });
        }
        match self.now.pending_power_action {
            Some(action) => self.power(action),
            None => self.wait_until(self.now.expires_at),
        }
    }

    fn power(&self, action: PowerAction) -> Advance {
        let forget =
            |last_error| Allocation { pending_power_action: None, last_error, due_at: self.now.expires_at, ..self.now.clone() };
        let Some(node) = &self.inputs.node else { return self.wait_until(Some(self.context.now.plus(SLOW_POLL))) };
        let held = HeldSlots { slots: &self.inputs.slots, tasks: &self.inputs.lease_tasks };
        let ordered = slice::power(held, action, self.now.terms.graceful_timeout_seconds).and_then(|order| {
            let id = TaskId::generate();
            Ok((id, self.order(node, order.task, id)?.and(order.decision)))
        });
        match ordered {
            Ok((task_id, decision)) => {
                let next = Allocation {
                    step: AllocationStep::AwaitPower,
                    guest: self.now.guest_during(action),
                    task_id: Some(task_id),
                    due_at: Some(self.context.now.plus(SLOW_POLL)),
                    ..self.now.clone()
                };
                self.moved(next, decision, |progress| {
                    Event::AllocationPowerOrdered(AllocationPowerOrdered { progress, task_id, action: action.into() })
                })
            }
            Err(refusal) => {
                let reason = format!("it could not be told to {}", action.as_str());
                let next = forget(Some(self.last_error(refusal.code, &reason, &refusal.message)));
                self.moved(next, Decision::default(), problem(Event::AllocationPowerFailed, refusal.code))
            }
        }
    }

    fn await_power(&self) -> Advance {
        let ended = match &self.inputs.task {
            Some(task) if !task.state.ended() => return self.wait_for(task),
            Some(task) => Some(task),
            None => None,
        };
        let action = self.now.pending_power_action;
        let released = self.now.release_request.is_some();
        let back = Allocation {
            step: AllocationStep::Serve,
            pending_power_action: None,
            // A release that was requested in the meantime begins at once.
            due_at: if released { Some(self.context.now) } else { self.now.expires_at },
            ..self.now.clone()
        };
        match (ended, action) {
            (Some(task), Some(action)) if task.state == TaskState::Succeeded => {
                let (state, guest) = match (action, self.inputs.guest_answers) {
                    (PowerAction::Stop, _) => (AllocationState::Stopped, Some(GuestState::Off)),
                    (PowerAction::Start | PowerAction::Reboot, Some(true)) => {
                        (AllocationState::Active, Some(GuestState::Answering))
                    }
                    (PowerAction::Start | PowerAction::Reboot, Some(false)) => {
                        (AllocationState::Active, Some(GuestState::NotAnswering))
                    }
                    (PowerAction::Start | PowerAction::Reboot, None) => (AllocationState::Active, None),
                };
                let silent = guest == Some(GuestState::NotAnswering);
                let last_error = silent.then(|| {
                    let reason = "it runs, and does not answer by SSH; its console shows what it does";
                    self.last_error("guest_not_answering", reason, &self.detail_of(task))
                });
                let next = Allocation { state, guest, last_error, ..back };
                let event = match action {
                    PowerAction::Stop => Event::AllocationStopped,
                    PowerAction::Start => Event::AllocationStarted,
                    PowerAction::Reboot => Event::AllocationRebooted,
                };
                let task_id = task.id;
                self.moved(next, Decision::default(), |progress| {
                    event(AllocationPowerDone { progress, task_id, guest: guest.map(Into::into) })
                })
            }
            (task, _) => {
                let (code, reason, detail) = match task {
                    Some(task) => (task.code.as_str(), tenant_messages::of_task(task), self.detail_of(task)),
                    None => (
                        "task_unknown",
                        "the host did not answer".to_owned(),
                        "the task of this step is not in the records".to_owned(),
                    ),
                };
                // The guest's state is unknown now, except that a stopped guest was not started.
                let guest = (self.now.state == AllocationState::Stopped).then_some(GuestState::Off);
                let next = Allocation { guest, last_error: Some(self.last_error(code, &reason, &detail)), ..back };
                self.moved(next, Decision::default(), problem(Event::AllocationPowerFailed, code))
            }
        }
    }

    /// Moves on to releasing what the allocation holds.
    fn begin_release(&self, allocation: Allocation) -> Advance {
        if !self.inputs.is_held() {
            return self.after_cleanup(allocation);
        }
        let next = Allocation {
            state: AllocationState::Releasing,
            step: AllocationStep::Release,
            pending_power_action: None,
            guest: None,
            due_at: Some(self.context.now),
            ..allocation
        };
        let reason = next.release_request.as_ref().map(|request| request.reason.clone());
        let mut advance = self
            .moved(next, Decision::default(), |progress| Event::AllocationReleasing(AllocationProgress { reason, ..progress }));
        advance.next = Next::Now;
        advance
    }

    fn release(&self) -> Advance {
        if !self.inputs.is_held() {
            return self.after_cleanup(self.now.clone());
        }
        // A task that still works on the slots or the machine must end first; `wait_for` cancels it if it provisions.
        if let Some(task) = self.inputs.lease_tasks.iter().find(|task| !task.state.ended()) {
            return self.wait_for(task);
        }
        // An operator has to intervene; the run continues when the operator retries or when nothing is held any more.
        if self.now.state == AllocationState::ReleaseBlocked && self.now.releases >= MAX_RELEASES {
            return self.wait_until(None);
        }
        if self.now.due_at.is_some_and(|due| due > self.context.now) && self.now.releases > 0 {
            return self.wait_until(self.now.due_at);
        }
        if let Some(task) = self.inputs.lease_tasks.iter().find(|task| slice::keeps_content(task)) {
            return self.blocked(CONTENT_KEPT, &self.detail_of(task));
        }
        let Some(node) = &self.inputs.node else { return self.blocked("node_unknown", "its node is not in the records") };
        let counted = match &self.inputs.budget {
            Some(Ok(counted)) => counted.clone(),
            Some(Err(refusal)) => return self.over_budget(refusal),
            None => Decision::default(),
        };
        let task_id = TaskId::generate();
        match self.order_release(node, task_id).map(|decision| decision.and(counted)) {
            Ok(decision) => {
                let next = Allocation {
                    state: AllocationState::Releasing,
                    step: AllocationStep::AwaitRelease,
                    task_id: Some(task_id),
                    releases: self.now.releases.saturating_add(1),
                    due_at: Some(self.context.now.plus(SLOW_POLL)),
                    ..self.now.clone()
                };
                let r#try = next.releases;
                self.moved(next, decision, |progress| {
                    Event::AllocationReleaseOrdered(AllocationReleaseOrdered { progress, task_id, r#try })
                })
            }
            Err(refusal) => self.blocked(refusal.code, &refusal.message),
        }
    }

    /// The budget of destructive commands per hour is used up. The tenant does not have to wait for the release, but tenant and operators
    /// can see the delay.
    fn over_budget(&self, refusal: &Refusal) -> Advance {
        let again = self.context.now.plus(BUDGET_AGAIN);
        if self.now.last_error.as_ref().is_some_and(|known| known.code == refusal.code) {
            return self.wait_until(Some(again));
        }
        let reason = "it waits to be given back: the platform gives back only so much per hour, and goes on by itself";
        let last_error = self.last_error(refusal.code, reason, &refusal.message);
        let next = Allocation { last_error: Some(last_error), due_at: Some(again), ..self.now.clone() };
        let code = refusal.code.to_owned();
        self.moved(next, Decision::default(), |progress| {
            Event::AllocationReleaseWaiting(AllocationReleaseDelayed { progress, code, again_at: again })
        })
    }

    fn order_release(&self, node: &Node, task_id: TaskId) -> Result<Decision, Refusal> {
        let terms = &self.now.terms;
        let (task, changes) = match (terms.product, &self.inputs.machine) {
            (Product::Slice { .. }, _) => {
                let held = HeldSlots { slots: &self.inputs.slots, tasks: &self.inputs.lease_tasks };
                let grace = terms.graceful_timeout_seconds;
                let order = slice::release(held, true, grace, task_id, self.signers.seal, self.context)?;
                (order.task, order.decision)
            }
            (Product::BareMetal, Some(machine)) => {
                let last = self.inputs.lease_tasks.first();
                machine::release(machine, last, &terms.username, false, task_id, self.context)?
            }
            (Product::BareMetal, None) => {
                return Err(Refusal::conflict("machine_unknown", "its machine is not in the records"));
            }
        };
        Ok(self.order(node, task, task_id)?.and(changes))
    }

    fn await_release(&self) -> Advance {
        if let Some(task) = self.inputs.task.as_ref().filter(|task| !task.state.ended()) {
            return self.wait_for(task);
        }
        if !self.inputs.is_held() {
            return self.after_cleanup(self.now.clone());
        }
        let (code, detail) = match &self.inputs.task {
            Some(task) => (task.code.clone(), self.detail_of(task)),
            None => ("task_unknown".to_owned(), "the task of this step is not in the records".to_owned()),
        };
        if self.now.releases >= MAX_RELEASES {
            return self.blocked(&code, &detail);
        }
        let index = usize::try_from(self.now.releases.saturating_sub(1)).unwrap_or(usize::MAX).min(RELEASE_AGAIN.len() - 1);
        let again = self.context.now.plus(RELEASE_AGAIN[index]);
        let last_error = self.last_error(&code, "giving it back takes longer than usual", &detail);
        let next =
            Allocation { step: AllocationStep::Release, due_at: Some(again), last_error: Some(last_error), ..self.now.clone() };
        let mut advance = self.moved(next, Decision::default(), |progress| {
            Event::AllocationReleaseFailed(AllocationReleaseDelayed { progress, code, again_at: again })
        });
        advance.next = Next::At(again);
        advance
    }

    /// An operator has to intervene. The tenant no longer has anything, and nothing to do.
    fn blocked(&self, code: &str, detail: &str) -> Advance {
        let reason = match code {
            CONTENT_KEPT => "it is no longer yours; an operator keeps what is on its disks until they are wiped",
            _ => "it is no longer yours; the operators are cleaning up what is left",
        };
        let next = Allocation {
            state: AllocationState::ReleaseBlocked,
            step: AllocationStep::Release,
            releases: MAX_RELEASES.max(self.now.releases),
            // The tenant is told that it is over, so no other host is tried once everything is clean.
            attempts: MAX_ATTEMPTS.max(self.now.attempts),
            last_error: Some(self.last_error(code, reason, detail)),
            due_at: None,
            ..self.now.clone()
        };
        let same = |known: &LastError| {
            Some((known.code.as_str(), known.detail.as_str()))
                == next.last_error.as_ref().map(|t| (t.code.as_str(), t.detail.as_str()))
        };
        let waits = self.now.state == AllocationState::ReleaseBlocked && self.now.releases >= MAX_RELEASES;
        if waits && self.now.last_error.as_ref().is_some_and(same) {
            return self.wait_until(None);
        }
        self.moved(next, Decision::default(), problem(Event::AllocationReleaseBlocked, code))
    }

    /// Nothing is held any more: finishes the allocation, or tries another host.
    fn after_cleanup(&self, allocation: Allocation) -> Advance {
        if allocation.release_request.is_some() {
            return self.finish(allocation, AllocationState::Released);
        }
        if allocation.attempts >= MAX_ATTEMPTS || allocation.active_at.is_some() {
            return self.finish(allocation, AllocationState::Failed);
        }
        let next = Allocation {
            state: AllocationState::Placing,
            step: AllocationStep::Place,
            node_id: None,
            slots: Vec::new(),
            releases: 0,
            due_at: Some(self.context.now),
            ..allocation
        };
        let after = next.last_error.as_ref().map(|last_error| last_error.code.clone());
        let mut advance = self.moved(next, Decision::default(), |progress| {
            Event::AllocationPlacing(AllocationPlacing { progress, until: None, after })
        });
        advance.next = Next::Now;
        advance
    }

    /// Ends the run and returns its usage to the quotas.
    fn finish(&self, allocation: Allocation, state: AllocationState) -> Advance {
        let used = Used::of(allocation.terms.product);
        let mut decision = Decision::default();
        for quota in &self.inputs.quotas {
            decision = decision.update(&quota.give_back(used));
        }
        let next = Allocation {
            state,
            step: AllocationStep::Done,
            pending_power_action: None,
            guest: None,
            ended_at: Some(self.context.now),
            due_at: None,
            last_error: if state == AllocationState::Released { None } else { allocation.last_error.clone() },
            ..allocation
        };
        let event = match state {
            AllocationState::Released => Event::AllocationReleased,
            AllocationState::Requested
            | AllocationState::Placing
            | AllocationState::Provisioning
            | AllocationState::Active
            | AllocationState::Stopped
            | AllocationState::Releasing
            | AllocationState::Failed
            | AllocationState::ReleaseBlocked => Event::AllocationFailed,
        };
        let code = next.last_error.as_ref().map(|last_error| last_error.code.clone());
        let mut advance = self.moved(next, decision, |progress| event(AllocationEnded { progress, code }));
        advance.next = Next::Done;
        advance
    }

    /// Waits for a task, and cancels it if its result is no longer wanted.
    fn wait_for(&self, task: &TaskRecord) -> Advance {
        let mut advance = self.wait_until(Some(self.context.now.plus(SLOW_POLL)));
        let boots = self.now.guest == Some(GuestState::Booting);
        let makes = boots || matches!(self.now.step, AllocationStep::AwaitProvision | AllocationStep::Release);
        // A guest that boots after the end of its lease is of no use to anyone.
        let too_late = boots && self.now.expires_at.is_some_and(|end| end <= self.context.now);
        let unwanted = (self.now.release_request.is_some() || too_late)
            && makes
            && !matches!(
                task.task_type,
                gpuaas_contract::task::TaskType::SliceVmRelease | gpuaas_contract::task::TaskType::AllocationDeprovisionUser
            );
        if unwanted && task.cancel_requested_at.is_none() {
            // If the task has ended in the meantime, its end wakes the run.
            if let Ok(cancelled) = task::cancel(task, "the allocation is given back", self.context) {
                advance.decision = cancelled;
            }
        }
        advance
    }

    /// Nothing to do before `at`.
    fn wait_until(&self, at: Option<Timestamp>) -> Advance {
        let over = self.now.step == AllocationStep::Done;
        let next = match at {
            _ if over => Next::Done,
            Some(at) => Next::At(at),
            // Only a wake-up continues the run; the slow poll covers a lost one.
            None => Next::At(self.context.now.plus(SLOW_POLL * 20)),
        };
        Advance { allocation: self.now.clone(), decision: Decision::default(), next }
    }

    fn moved(&self, next: Allocation, with: Decision, event: impl FnOnce(AllocationProgress) -> Event) -> Advance {
        let progress = AllocationProgress {
            allocation: next.event_ref(),
            from: self.now.state.into(),
            to: next.state.into(),
            step: next.step.into(),
            reason: next.last_error.as_ref().map(|last_error| last_error.reason.clone()),
        };
        let decision = with.update(&next).wakeup(Wakeup::AllocationAdvanced(next.id));
        let decision = decision.record(self.context, next.id, event(progress));
        let due = next.due_at.unwrap_or_else(|| self.context.now.plus(SLOW_POLL));
        let next_at = if next.step == AllocationStep::Done { Next::Done } else { Next::At(due) };
        Advance { allocation: next, decision, next: next_at }
    }

    fn last_error(&self, code: &str, reason: &str, detail: &str) -> LastError {
        let cut = |text: &str| text.chars().take(2000).collect();
        LastError { code: code.to_owned(), reason: cut(reason), detail: cut(detail), at: self.context.now }
    }

    fn taken_away(&self) -> LastError {
        let detail = "its slots or its machine were released by an operator";
        self.last_error("taken_away", "the machine was taken away by an operator", detail)
    }

    fn detail_of(&self, task: &TaskRecord) -> String {
        let node = self.inputs.node.as_ref().map_or_else(|| task.node_id.to_string(), |node| node.name.clone());
        let slots = self.inputs.slots.iter().filter(|slot| !slot.reason.is_empty());
        let slots: Vec<String> =
            slots.map(|slot| format!("slot {} is {}: {}", slot.spec.slot_index, slot.state.as_str(), slot.reason)).collect();
        let mut text =
            format!("{} ({}) on {node} is {}: {} ({})", task.id, task.task_type, task.state.as_str(), task.message, task.code);
        for slot in slots {
            text.push_str("; ");
            text.push_str(&slot);
        }
        text
    }
}

/// Builds the event for something that failed with this code.
fn problem(event: fn(AllocationProblem) -> Event, code: &str) -> impl FnOnce(AllocationProgress) -> Event {
    let code = code.to_owned();
    move |progress| event(AllocationProblem { progress, code })
}
