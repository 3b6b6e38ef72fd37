//! A storm: tenants, operators, hosts, time and several drivers at once, in random order.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::time::Duration;

use gpuaas_contract::id::{AllocationId, MaintenanceId, NodeId, SlotId, TaskId};
use gpuaas_contract::task::slice_vm_power::PowerAction as Power;
use gpuaas_domain::allocation::AllocationState;
use gpuaas_domain::allocation::commands::{self, Request};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::machine::{self, MachineState};
use gpuaas_domain::maintenance::{self, Window};
use gpuaas_domain::node::{Node, NodeService, Operation};
use gpuaas_domain::quota::{self, Limits};
use gpuaas_domain::slot::{self, SlotState};
use gpuaas_domain::task::TaskState;
use gpuaas_domain::{Decision, allocation};

use crate::hosts::End;
use crate::ledger::{Conflict, Ledger, seal};
use crate::rules::Watch;
use crate::site::{ORGANIZATIONS, PROJECTS, node_id, wanted};
use crate::support::at;
use crate::truth::Truth;

/// Slots of the sliced hosts; two more hosts are leased as a whole.
const SLICED: [u32; 3] = [4, 2, 3];
const WHOLE: [u8; 2] = [4, 5];
/// How tasks end on ordinary hosts.
pub(crate) const ENDS: [End; 12] = [
    End::Succeeded,
    End::Succeeded,
    End::Succeeded,
    End::NotWiped,
    End::FailedClean,
    End::FailedDirty,
    End::FailedDirty,
    End::Interrupted,
    End::CancelledClean,
    End::CancelledDirty,
    End::Refused,
    End::CancelledUnstarted,
];
/// How tasks end on broken hosts.
pub(crate) const BAD_ENDS: [End; 4] = [End::FailedDirty, End::Interrupted, End::CancelledDirty, End::NotWiped];
/// States of allocations that have not ended.
const GOING: [AllocationState; 7] = [
    AllocationState::Requested,
    AllocationState::Placing,
    AllocationState::Provisioning,
    AllocationState::Active,
    AllocationState::Stopped,
    AllocationState::Releasing,
    AllocationState::ReleaseBlocked,
];
/// Number of rounds within which everything must come to rest after the storm.
const CALM_ROUNDS: usize = 60;

/// A random number generator that returns the same numbers for the same seed on every machine.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit.max(1)).expect("small")).expect("small")
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An actor who decides something and commits it later, when the ledger may have changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slow {
    Driver,
    Tenant,
    Retry,
    Quarantine,
    Withdraw,
    Limits,
}

/// What can happen. Numbers select among the existing candidates, newest first.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A tenant requests this many slots, or a whole host.
    Request {
        tenant: (u8, u8),
        slots: Option<u32>,
        wait: u64,
        lease: Option<u64>,
        spread: bool,
    },
    Release(usize),
    Power(usize, Power),
    Extend(usize, Option<u64>),
    Retry(usize, u64),
    Describe(usize, u64),
    Node(usize, Operation),
    /// A node that was drained or quarantined accepts work again.
    Restore(usize),
    Enroll(usize),
    Slot(usize, slot::Operation),
    /// A slot that was quarantined can be used again.
    RestoreSlot(usize),
    Offer(usize),
    Withdraw(usize),
    ForceSlot(usize),
    PowerSlot(usize, Power),
    ForceMachine(usize),
    Limits(usize, Limits),
    Announce(usize, u64),
    CancelWindow(usize),
    Connect(usize),
    Disconnect(usize),
    Dispatch(usize),
    Take(usize),
    Finish(usize, End),
    Deliver(usize),
    /// A host receives a task, runs it and reports, as far as its link allows.
    Work(usize, End),
    /// All open tasks are worked on: up to seven succeed, the next one ends like this, and so on.
    WorkAll(usize, End),
    /// A host receives a task and starts it, and is not heard from again.
    Vanish(usize),
    Wait(u64),
    Advance(usize),
    AdvanceAll,
    Decide(usize, Slow),
    Commit(usize),
}

impl Action {
    fn request(chance: &mut Chance) -> Self {
        let tenant = (1 + chance.below(ORGANIZATIONS.into()), chance.below(PROJECTS.into()));
        Self::Request {
            tenant: (u8::try_from(tenant.0).expect("few"), u8::try_from(tenant.1).expect("few")),
            slots: chance.pick(&[Some(1), Some(1), Some(2), Some(3), Some(4), None, None]),
            wait: chance.pick(&[0, 300, 3600]),
            lease: chance.pick(&[None, None, Some(600), Some(7200)]),
            spread: chance.below(2) == 0,
        }
    }

    /// The beginning of a storm: some tenants have what they requested, and some wait.
    pub(crate) fn opening(chance: &mut Chance) -> Vec<Self> {
        let mut actions: Vec<Self> = (0..chance.below(8)).map(|_| Self::request(chance)).collect();
        actions.extend([Self::AdvanceAll, Self::WorkAll(chance.below(64), End::Succeeded), Self::AdvanceAll]);
        actions
    }

    /// Any action; tasks end in one of these ways.
    pub(crate) fn any(chance: &mut Chance, ends: &[End]) -> Self {
        let n = chance.below(64);
        match chance.below(100) {
            0..7 => Self::request(chance),
            7..11 => Self::Release(n),
            11..15 => Self::Power(n, chance.pick(&[Power::Stop, Power::Start, Power::Reboot])),
            15 => Self::PowerSlot(n, chance.pick(&[Power::Stop, Power::Start, Power::Reboot])),
            16 => Self::Extend(n, chance.pick(&[None, Some(60), Some(3600)])),
            17..20 => Self::Retry(n, chance.pick(&[0, 3600])),
            20 => Self::Describe(n, chance.next() % 3),
            21..23 => Self::Node(n, chance.pick(&[Operation::Drain, Operation::Quarantine, Operation::Drain, Operation::Retire])),
            23..26 => Self::Restore(n),
            26 => Self::Enroll(n),
            27 => {
                Self::Slot(n, chance.pick(&[slot::Operation::Quarantine, slot::Operation::Quarantine, slot::Operation::Withdraw]))
            }
            28 => Self::RestoreSlot(n),
            29 => Self::Offer(n),
            30 => Self::Withdraw(n),
            31..34 => Self::ForceSlot(n),
            34 => Self::ForceMachine(n),
            35 => {
                let some = |chance: &mut Chance| chance.pick(&[None, None, Some(0), Some(2), Some(5)]);
                Self::Limits(n, Limits { allocations: some(chance), slots: some(chance), machines: some(chance) })
            }
            36 => Self::Announce(n, chance.pick(&[60, 3600])),
            37 => Self::CancelWindow(n),
            38..42 => Self::Connect(n),
            42 => Self::Disconnect(n),
            43..46 => Self::Dispatch(n),
            46..49 => Self::Take(n),
            49..54 => Self::Finish(n, chance.pick(ends)),
            54..58 => Self::Deliver(n),
            58..66 => Self::Work(n, chance.pick(ends)),
            66..70 => Self::WorkAll(n, chance.pick(ends)),
            70..72 => Self::Vanish(n),
            72..78 => Self::Wait(chance.pick(&[1, 11, 61, 61, 800, 800])),
            78..86 => Self::Advance(n),
            86..94 => Self::AdvanceAll,
            94..97 => {
                let others = [Slow::Tenant, Slow::Retry, Slow::Quarantine, Slow::Withdraw, Slow::Limits];
                Self::Decide(n, if chance.below(2) == 0 { Slow::Driver } else { chance.pick(&others) })
            }
            _ => Self::Commit(n),
        }
    }
}

pub(crate) struct Storm {
    pub(crate) ledger: Ledger,
    truth: Truth,
    watch: Watch,
    /// Decisions that were not committed yet.
    decided: Vec<Decision>,
    /// How many of them were conflicts.
    pub(crate) conflicts: usize,
}

impl Storm {
    pub(crate) fn new() -> Self {
        let mut ledger = Ledger::sliced(&SLICED);
        WHOLE.into_iter().for_each(|number| ledger.add_whole(number));
        Self { ledger, truth: Truth::default(), watch: Watch::default(), decided: Vec::new(), conflicts: 0 }
    }

    pub(crate) fn check(&mut self) {
        self.watch.check(&self.ledger);
        self.truth.check(&self.ledger);
    }

    fn slot(&self, number: usize) -> SlotId {
        nth(self.ledger.slots.keys().copied(), number).expect("there are slots")
    }

    /// Usually selects an allocation in one of these states; sometimes any allocation.
    fn run(&self, number: usize, states: &[AllocationState]) -> Option<AllocationId> {
        let all = self.ledger.allocations.values().rev();
        let meant = |run: &&allocation::Allocation| number % 8 == 7 || states.contains(&run.state);
        nth(all.filter(meant).map(|run| run.id), number)
    }

    pub(crate) fn take(&mut self, action: &Action) {
        match action {
            Action::Request { tenant, slots, wait, lease, spread } => {
                let product = slots.map_or(Product::BareMetal, |slots| Product::Slice { slots });
                let lease = lease.map(Duration::from_secs);
                let request = Request { wait: Duration::from_secs(*wait), lease, spread: *spread, ..wanted(product) };
                drop(self.ledger.request_in(*tenant, &request));
            }
            Action::Release(_) | Action::Power(..) | Action::Extend(..) | Action::Retry(..) | Action::Describe(..) => {
                self.tenant(action);
            }
            Action::Node(..)
            | Action::Restore(_)
            | Action::Enroll(_)
            | Action::Slot(..)
            | Action::RestoreSlot(_)
            | Action::Offer(_)
            | Action::Withdraw(_)
            | Action::ForceSlot(_)
            | Action::PowerSlot(..)
            | Action::ForceMachine(_)
            | Action::Limits(..)
            | Action::Announce(..)
            | Action::CancelWindow(_) => self.operator(action),
            Action::Connect(_)
            | Action::Disconnect(_)
            | Action::Dispatch(_)
            | Action::Take(_)
            | Action::Finish(..)
            | Action::Deliver(_)
            | Action::Work(..)
            | Action::WorkAll(..)
            | Action::Vanish(_) => self.host(action),
            Action::Wait(seconds) => {
                self.ledger.wait(*seconds);
                self.ledger.tick();
            }
            Action::Advance(number) => {
                if let Some(id) = self.run(*number, &GOING) {
                    self.ledger.advance(id);
                }
            }
            Action::AdvanceAll => {
                let going = self.ledger.allocations.values().filter(|run| !run.state.is_terminal());
                for id in going.map(|run| run.id).collect::<Vec<_>>() {
                    self.ledger.advance(id);
                    self.check();
                }
            }
            Action::Decide(number, who) => {
                let decision = self.decide(*number, *who).filter(|decision| !decision.is_empty());
                self.decided.extend(decision);
            }
            Action::Commit(number) => {
                if !self.decided.is_empty() {
                    let decision = self.decided.remove(number % self.decided.len());
                    self.conflicts += usize::from(self.ledger.commit(decision) == Err(Conflict));
                }
            }
        }
    }

    fn tenant(&mut self, action: &Action) {
        let (number, states): (usize, &[AllocationState]) = match action {
            Action::Release(number) | Action::Extend(number, _) | Action::Describe(number, _) => (*number, &GOING),
            Action::Power(number, _) => (*number, &[AllocationState::Active, AllocationState::Stopped]),
            Action::Retry(number, _) => (*number, &[AllocationState::Failed, AllocationState::ReleaseBlocked]),
            other => panic!("no tenant's word: {other:?}"),
        };
        let Some(id) = self.run(number, states) else { return };
        let ledger = &mut self.ledger;
        match action {
            Action::Power(_, action) => drop(ledger.power(id, *action)),
            Action::Extend(_, by) => drop(ledger.extend(id, by.map(Duration::from_secs))),
            Action::Retry(_, wait) => drop(ledger.retry(id, Duration::from_secs(*wait))),
            Action::Describe(_, name) => {
                let name = Some(format!("name-{name}").parse().expect("a name"));
                drop(ledger.say(id, |run, context| commands::describe(run, name, None, context)));
            }
            _ => ledger.release(id),
        }
    }

    fn operator(&mut self, action: &Action) {
        match action {
            Action::Node(number, operation) => drop(self.ledger.operate(any_node(*number), *operation)),
            Action::Enroll(number) => {
                let retired = |node: &&Node| node.service == NodeService::Retired;
                let found = nth(self.ledger.nodes.values().filter(retired).map(|node| node.id), *number);
                if let Some(node) = found {
                    self.truth.enroll(&mut self.ledger, node);
                }
            }
            Action::Restore(number) => {
                let held = |node: &&Node| matches!(node.service, NodeService::Draining | NodeService::Quarantined);
                if let Some(node) = nth(self.ledger.nodes.values().filter(held), *number) {
                    let drained = node.service == NodeService::Draining;
                    let operation = if drained { Operation::Undrain } else { Operation::Unquarantine };
                    self.ledger.operate(node.id, operation).expect("it is held back");
                }
            }
            Action::RestoreSlot(number) => {
                let held = self.ledger.slots.values().filter(|slot| slot.quarantine.is_some()).map(|slot| slot.id);
                if let Some(slot) = nth(held, *number) {
                    self.ledger.operate_slot(slot, slot::Operation::Unquarantine).expect("it is held back");
                }
            }
            Action::Slot(number, operation) => drop(self.ledger.operate_slot(self.slot(*number), *operation)),
            Action::Offer(number) => drop(self.ledger.offer(any_node(*number))),
            Action::Withdraw(number) => {
                if let Some(decision) = self.withdrawn(*number) {
                    self.ledger.commit(decision).expect("nobody else writes");
                }
            }
            Action::ForceSlot(number) => {
                let dirty = self.ledger.slots.values().filter(|slot| number % 8 == 7 || is_dirty(slot.state)).map(|slot| slot.id);
                if let Some(slot) = nth(dirty, *number) {
                    drop(self.ledger.force_cleanup(slot));
                }
            }
            Action::PowerSlot(number, action) => {
                let is_leased = |slot: &&slot::Slot| slot.allocation_id.is_some();
                let leased = self.ledger.slots.values().filter(is_leased).map(|slot| slot.id);
                if let Some(slot) = nth(leased, *number) {
                    drop(self.ledger.power_slots(slot, *action));
                }
            }
            Action::ForceMachine(number) => {
                if let Some(node) = nth(self.ledger.machines.keys().copied(), *number) {
                    drop(self.ledger.force_machine(node));
                }
            }
            Action::Limits(number, limits) => {
                let decision = self.limited(*number, *limits);
                self.ledger.commit(decision).expect("nobody else writes");
            }
            Action::Announce(number, after) => self.announce(any_node(*number), *after),
            Action::CancelWindow(number) => {
                if let Some(window) = nth(self.ledger.windows.values().cloned(), *number) {
                    let (_, decision) = maintenance::cancel(&window, &[], &at(self.ledger.now));
                    self.ledger.commit(decision).expect("nobody else writes");
                }
            }
            other => panic!("no operator's word: {other:?}"),
        }
    }

    fn withdrawn(&self, number: usize) -> Option<Decision> {
        let machine = nth(self.ledger.machines.values(), number)?;
        machine::withdraw(machine, "sold", &at(self.ledger.now)).ok().map(|(_, decision)| decision)
    }

    fn limited(&self, number: usize, limits: Limits) -> Decision {
        let quota = nth(self.ledger.quotas.values(), number).expect("everybody has one");
        quota::set_limits(quota, limits, &at(self.ledger.now)).1
    }

    fn announce(&mut self, node: NodeId, after: u64) {
        let now = self.ledger.now;
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&u64::try_from(self.ledger.windows.len()).expect("few").to_be_bytes());
        let window = Window {
            id: MaintenanceId::from_bytes(bytes),
            version: 0,
            summary: "new power supplies".to_owned(),
            nodes: vec![node],
            starts_at: now.plus(Duration::from_secs(after)),
            ends_at: now.plus(Duration::from_secs(after + 3600)),
            created_by: "somebody".to_owned(),
            created_at: now,
            cancelled_at: None,
        };
        let affected: Vec<_> = self.ledger.allocations.values().filter(|run| run.node_id == Some(node)).cloned().collect();
        let (_, decision) = maintenance::announce(window, &affected, &at(now)).expect("a good window");
        self.ledger.commit(decision).expect("nobody else writes");
    }

    fn host(&mut self, action: &Action) {
        let (ledger, truth) = (&mut self.ledger, &mut self.truth);
        match action {
            Action::Connect(number) => {
                let away = ledger.nodes.values().filter(|node| node.session.is_none()).map(|node| node.id);
                if let Some(node) = nth(away, *number) {
                    truth.connect(ledger, node);
                }
            }
            Action::Disconnect(number) => ledger.disconnect(any_node(*number)),
            Action::Dispatch(number) => {
                let queued = ledger.open_tasks().into_iter().filter(|id| ledger.tasks[id].state == TaskState::Queued).rev();
                if let Some(id) = nth(queued, *number) {
                    truth.dispatch(ledger, id);
                }
            }
            Action::Take(number) => {
                if let Some(id) = nth(truth.takable(ledger).into_iter().rev(), *number) {
                    truth.take(ledger, id);
                }
            }
            Action::Finish(number, end) => {
                if let Some(id) = nth(truth.running(ledger).into_iter().rev(), *number) {
                    truth.finish(ledger, id, *end);
                }
            }
            Action::Deliver(number) => {
                if let Some(id) = nth(truth.deliverable(ledger).into_iter().rev(), *number) {
                    truth.deliver(ledger, id);
                }
            }
            Action::Work(number, end) => {
                if let Some(id) = nth(ledger.open_tasks().into_iter(), *number) {
                    self.work(id, *end);
                }
            }
            Action::WorkAll(number, end) => {
                for (place, id) in ledger.open_tasks().into_iter().enumerate() {
                    let well = place % (number % 8 + 1) != number % 8;
                    self.work(id, if well { End::Succeeded } else { *end });
                    self.check();
                }
            }
            Action::Vanish(number) => {
                let queued = ledger.open_tasks().into_iter().filter(|id| ledger.tasks[id].state == TaskState::Queued);
                if let Some(id) = nth(queued, *number)
                    && truth.dispatch(ledger, id)
                {
                    ledger.disconnect(ledger.tasks[&id].node_id);
                    truth.take(ledger, id);
                }
            }
            other => panic!("no host does this: {other:?}"),
        }
    }

    /// Brings a task to its end as far as its host can.
    fn work(&mut self, id: TaskId, end: End) {
        let (ledger, truth) = (&mut self.ledger, &mut self.truth);
        if ledger.tasks[&id].state == TaskState::Queued {
            truth.dispatch(ledger, id);
        }
        if truth.takable(ledger).contains(&id) {
            if matches!(end, End::Refused | End::CancelledUnstarted) {
                truth.refuse(id, end);
            } else {
                truth.take(ledger, id);
            }
        }
        if truth.running(ledger).contains(&id) {
            truth.finish(ledger, id, end);
        }
        if truth.deliverable(ledger).contains(&id) {
            truth.deliver(ledger, id);
        }
    }

    /// A decision on the ledger as it is now.
    fn decide(&self, number: usize, who: Slow) -> Option<Decision> {
        let context = at(self.ledger.now);
        let states: &[AllocationState] = if matches!(who, Slow::Retry) { &[AllocationState::Failed] } else { &GOING };
        let id = self.run(number, states);
        Some(match who {
            Slow::Driver => self.ledger.decide(id?).decision,
            Slow::Tenant => commands::release(&self.ledger.allocations[&id?], "late", &context).ok()?.1,
            Slow::Retry => {
                let run = &self.ledger.allocations[&id?];
                let quotas = self.ledger.quotas_of(run.project_id, run.organization_id);
                commands::retry(run, &quotas, Duration::ZERO, &context).ok()?.1
            }
            Slow::Quarantine => {
                let slot = &self.ledger.slots[&self.slot(number)];
                slot::operate(slot, slot::Operation::Quarantine, "", seal, &context).ok()?
            }
            Slow::Withdraw => self.withdrawn(number)?,
            Slow::Limits => self.limited(number, Limits { slots: Some(3), ..Limits::default() }),
        })
    }

    /// The storm is over: hosts respond properly, operators clean up what is blocked, and all tenants leave.
    pub(crate) fn calm(&mut self) {
        for decision in std::mem::take(&mut self.decided) {
            self.conflicts += usize::from(self.ledger.commit(decision) == Err(Conflict));
            self.check();
        }
        for _ in 0..CALM_ROUNDS {
            self.hosts_come_back();
            for id in self.ledger.allocations.keys().copied().collect::<Vec<_>>() {
                self.ledger.release(id);
                self.ledger.advance(id);
                self.check();
            }
            // Finally, whatever was running ends.
            for id in self.truth.running(&self.ledger) {
                self.truth.finish(&self.ledger, id, End::Succeeded);
            }
            for id in self.truth.deliverable(&self.ledger) {
                self.truth.deliver(&mut self.ledger, id);
            }
            self.ledger.open_tasks().into_iter().for_each(|id| self.work(id, End::Succeeded));
            self.check();
            self.operators_clean_up();
            if self.is_calm() {
                assert_eq!(self.ledger.picture, self.ledger.fleet(), "the picture is what the rows say");
                return;
            }
            self.ledger.wait(120);
            self.ledger.tick();
            self.check();
        }
        let left: Vec<_> = self.ledger.allocations.values().filter(|run| !run.state.is_terminal()).collect();
        panic!(
            "it does not become calm: {left:#?}, slots {:?}",
            self.ledger.slots.values().map(|slot| slot.state).collect::<Vec<_>>()
        );
    }

    fn hosts_come_back(&mut self) {
        for node in self.ledger.nodes.keys().copied().collect::<Vec<_>>() {
            if self.ledger.nodes[&node].service == NodeService::Retired {
                self.truth.enroll(&mut self.ledger, node);
            }
            if self.ledger.nodes[&node].session.is_none() {
                assert!(self.truth.connect(&mut self.ledger, node), "whoever is not retired may come back");
            }
        }
        self.check();
    }

    fn operators_clean_up(&mut self) {
        for slot in self.ledger.slots.values().filter(|slot| is_dirty(slot.state)).map(|slot| slot.id).collect::<Vec<_>>() {
            // Slots of the same guest are cleaned up together, so forcing the second one fails because the first is in progress.
            drop(self.ledger.force_cleanup(slot));
        }
        let blocked = self.ledger.machines.values().filter(|machine| machine.state == MachineState::CleanupBlocked);
        for node in blocked.map(|machine| machine.node_id).collect::<Vec<_>>() {
            drop(self.ledger.force_machine(node));
        }
        // What is blocked but intact, because its node was away, is released by the run itself.
        let blocked = self.ledger.allocations.values().filter(|run| run.state == AllocationState::ReleaseBlocked);
        for id in blocked.map(|run| run.id).collect::<Vec<_>>() {
            if self.ledger.open_tasks_of(id).is_empty() {
                self.ledger.retry(id, Duration::ZERO).expect("an operator may");
            }
        }
        self.check();
    }

    fn is_calm(&self) -> bool {
        let over = self.ledger.allocations.values().all(|run| run.state.is_terminal());
        let slots = self.ledger.slots.values().all(|slot| slot.state.is_clean());
        let machines = self.ledger.machines.values().all(|machine| machine.state.is_clean());
        over && slots && machines && self.truth.is_clean() && self.ledger.open_tasks().is_empty()
    }
}

fn is_dirty(state: SlotState) -> bool {
    matches!(state, SlotState::CleanupBlocked | SlotState::NeedsWipe)
}

fn any_node(number: usize) -> NodeId {
    let hosts = SLICED.len() + WHOLE.len();
    node_id(u8::try_from(number % hosts).expect("few") + 1)
}

/// Wraps around, so that every number selects something if there is anything.
fn nth<T>(among: impl Iterator<Item = T>, number: usize) -> Option<T> {
    let mut among: Vec<T> = among.collect();
    if among.is_empty() { None } else { Some(among.swap_remove(number % among.len())) }
}
