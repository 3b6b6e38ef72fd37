//! Random lives of eight slots: provisions, releases, cancellations, restarts, reboots, devices that break and are repaired. In
//! any order, a slot serves one allocation, no device is touched outside a lease, and no slot is reused without proof.

use std::collections::BTreeMap;

use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{Task, TaskType};
use proptest::prelude::*;

use super::rig::{Rig, power, provision, release};

#[derive(Clone, Debug)]
enum Step {
    Provision { slots: Vec<usize> },
    Release { guest: usize, wipe: bool },
    Power { guest: usize, action: u8 },
    Cancel { task: usize },
    Settle,
    Restart,
    Reboot,
    BreakDrive { slot: usize },
    MendDrives,
    BreakReset { slot: usize },
    Unbind { slot: usize },
    Reconcile,
}

fn step() -> impl Strategy<Value = Step> {
    let slot = 0..8_usize;
    prop_oneof![
        6 => proptest::collection::btree_set(slot.clone(), 1..4).prop_map(|slots| Step::Provision { slots: slots.into_iter().collect() }),
        5 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(guest, wipe)| Step::Release { guest, wipe }),
        2 => (any::<usize>(), 0..3_u8).prop_map(|(guest, action)| Step::Power { guest, action }),
        2 => any::<usize>().prop_map(|task| Step::Cancel { task }),
        4 => Just(Step::Settle),
        2 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => slot.clone().prop_map(|slot| Step::BreakDrive { slot }),
        2 => Just(Step::MendDrives),
        1 => slot.clone().prop_map(|slot| Step::BreakReset { slot }),
        1 => slot.prop_map(|slot| Step::Unbind { slot }),
        1 => Just(Step::Reconcile),
    ]
}

/// What a control plane would know.
struct Model {
    rig: Rig,
    epoch: u64,
    /// The holder of each slot. Only a proof removes an entry.
    holders: BTreeMap<usize, (AllocationId, u64)>,
    guests: Vec<(AllocationId, u64, Vec<usize>)>,
    open: Vec<(TaskId, TaskType, AllocationId, Vec<usize>)>,
    /// The newest task on a slot: only its receipt counts.
    newest: BTreeMap<usize, TaskId>,
    /// The receipts, for debugging a failure.
    account: Vec<String>,
}

impl Model {
    fn slots(&self, indexes: &[usize]) -> Vec<LeasedSlot> {
        self.rig.slots(indexes)
    }

    fn give(&mut self, task: &Task, allocation: AllocationId, slots: Vec<usize>) {
        let id = self.rig.give(task);
        if task.task_type().may_prove_cleanup() {
            self.newest.extend(slots.iter().map(|slot| (*slot, id)));
        }
        self.open.push((id, task.task_type(), allocation, slots));
    }

    async fn settle(&mut self) {
        for (id, kind, allocation, slots) in std::mem::take(&mut self.open) {
            let ended = self.rig.receipt(id, kind).await;
            self.account.push(format!("{kind} {allocation} {slots:?}: {:?} {} {}", ended.outcome, ended.code, ended.message));
            if !kind.may_prove_cleanup() || (kind == TaskType::SliceVmProvision && ended.outcome == Outcome::Succeeded) {
                continue;
            }
            for index in slots {
                let slot = &self.rig.slots(&[index])[0];
                let proven = ended
                    .proof
                    .as_ref()
                    .is_some_and(|proof| proof.common_blockers().is_empty() && proof.slot_blockers(slot, true).is_empty());
                let ours = self.holders.get(&index).is_some_and(|(holder, _)| *holder == allocation)
                    && self.newest.get(&index) == Some(&id);
                if proven && ours {
                    self.holders.remove(&index);
                    let serial = &slot.spec.nvme_serial;
                    assert_eq!(
                        self.rig.life.sim.drive_contents(serial),
                        [],
                        "slot {index} was freed with something on its drive"
                    );
                }
            }
        }
        self.guests.retain(|(allocation, ..)| self.holders.values().any(|(holder, _)| holder == allocation));
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Provision { slots } => {
                if slots.iter().any(|slot| self.holders.contains_key(slot)) {
                    return;
                }
                self.epoch += 1;
                let allocation = AllocationId::generate();
                for slot in &slots {
                    self.holders.insert(*slot, (allocation, self.epoch));
                }
                self.guests.push((allocation, self.epoch, slots.clone()));
                let task = provision(allocation, self.epoch, self.slots(&slots));
                self.give(&task, allocation, slots);
            }
            Step::Release { guest, wipe } => {
                let Some((allocation, epoch, slots)) = pick(&self.guests, guest).cloned() else { return };
                // A control plane waits for one release before it sends another.
                if self.open.iter().any(|(_, kind, whose, _)| *kind == TaskType::SliceVmRelease && *whose == allocation) {
                    return;
                }
                let params = release(allocation, epoch, self.slots(&slots));
                let params = gpuaas_contract::task::slice_vm_release::Params { wipe, ..params };
                self.give(&Task::SliceVmRelease(params), allocation, slots);
            }
            Step::Power { guest, action } => {
                let Some((allocation, epoch, slots)) = pick(&self.guests, guest).cloned() else { return };
                let action = [PowerAction::Stop, PowerAction::Start, PowerAction::Reboot][usize::from(action)];
                let task = power(allocation, epoch, self.slots(&slots), action);
                self.give(&task, allocation, slots);
            }
            Step::Cancel { task } => {
                if let Some((id, ..)) = pick(&self.open, task) {
                    self.rig.life.pipeline.cancel(*id, "at random");
                }
            }
            Step::Settle => self.settle().await,
            Step::Restart => {
                self.rig.kill().await;
                self.rig.revive().await;
                self.give_again().await;
            }
            Step::Reboot => {
                self.rig.reboot().await;
                self.give_again().await;
            }
            Step::BreakDrive { slot } => {
                self.rig.life.sim.fail_drive(&self.slots(&[slot])[0].spec.nvme_serial).expect("set");
            }
            Step::BreakReset { slot } => {
                if let Some(gpu) = &self.slots(&[slot])[0].spec.pci_address {
                    self.rig.life.sim.fail_reset(gpu).expect("set");
                }
            }
            Step::MendDrives => self.mend(),
            Step::Unbind { slot } => {
                if let Some(gpu) = &self.slots(&[slot])[0].spec.pci_address {
                    // The kernel does not release a function that a guest has.
                    let _ = self.rig.life.sim.unbind_outside(gpu);
                }
            }
            Step::Reconcile => {
                let host = self.rig.host();
                self.rig.life.guests.reconcile(&host, &host.boot_id()).await;
            }
        }
        assert_eq!(self.rig.life.sim.violations(), [""; 0]);
    }

    fn mend(&self) {
        for slot in self.slots(&[0, 1, 2, 3, 4, 5, 6, 7]) {
            self.rig.life.sim.repair_drive(&slot.spec.nvme_serial).expect("set");
            if let Some(gpu) = &slot.spec.pci_address {
                self.rig.life.sim.repair_reset(gpu).expect("set");
            }
        }
    }

    /// Forgets offers that were never accepted: they are gone with the agent and never ran. The control plane would offer them
    /// again.
    async fn give_again(&mut self) {
        let known = self.rig.life.pipeline.begin_round();
        self.rig.life.use_round(known.1);
        let in_hand: Vec<String> = known.0.into_iter().map(|task| task.task_id).collect();
        let mut kept = Vec::new();
        for (id, kind, allocation, slots) in std::mem::take(&mut self.open) {
            if in_hand.contains(&id.to_string()) || self.rig.is_finished(id).await {
                kept.push((id, kind, allocation, slots));
                continue;
            }
            if kind == TaskType::SliceVmProvision && slots.iter().all(|slot| self.newest.get(slot) == Some(&id)) {
                self.holders.retain(|_, (holder, _)| *holder != allocation);
                self.guests.retain(|(guest, ..)| *guest != allocation);
            }
        }
        self.open = kept;
    }
}

fn pick<T>(items: &[T], number: usize) -> Option<&T> {
    if items.is_empty() { None } else { items.get(number % items.len()) }
}

/// Returns the number of cases. `cargo xtask prove guests` runs many more.
fn cases() -> u32 {
    let long = std::env::var("GPUAAS_PROVE").is_ok_and(|form| form == "long");
    let wanted = std::env::var("GPUAAS_PROVE_COUNT").ok().map(|count| count.parse().expect("GPUAAS_PROVE_COUNT is a number"));
    if long { wanted.unwrap_or(5_000) } else { 48 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_events_leases_a_slot_twice_or_frees_it_without_proof(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let rig = Rig::with_journal(64 << 20).await;
            let mut model = Model { rig, epoch: 0, holders: BTreeMap::new(), guests: Vec::new(), open: Vec::new(), newest: BTreeMap::new(), account: Vec::new() };
            for step in steps {
                model.take(step).await;
            }
            // At the end everything can be cleaned up.
            model.settle().await;
            model.mend();
            for (allocation, epoch, slots) in model.guests.clone() {
                let task = Task::SliceVmRelease(release(allocation, epoch, model.slots(&slots)));
                model.give(&task, allocation, slots);
            }
            model.settle().await;
            assert!(model.holders.is_empty(), "{:?}\n{}", model.holders, model.account.join("\n"));
            let left = model.rig.life.sim.leftovers();
            assert!(left.is_empty(), "{left:?}\n{}", model.account.join("\n"));
            assert_eq!(model.rig.life.sim.violations(), [""; 0]);
        });
    }
}
