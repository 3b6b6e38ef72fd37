//! The ledger of one node with slots, and a node that reports.

use std::collections::BTreeMap;

use gpuaas_contract::cleanup::{
    CleanupProof, DriveProof, FunctionProof, RESTING_DRIVER, Reset, SlotProof, WipeMethod, WipeStatus,
};
use gpuaas_contract::guest::{DriverStrategy, GuestSpec, ImageFormat, ImageSource};
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::{LeasedSlot, SlotSpec};
use gpuaas_contract::task::slice_vm_provision::{Acceleration, GuestTelemetry, Performance, Readiness, TelemetrySource};
use gpuaas_contract::task::{
    Output, Task, TaskType, allocation_deprovision_user, allocation_provision_user, slice_console_read, slice_vm_power,
    slice_vm_provision, slice_vm_release,
};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{Digest, envelope};
use gpuaas_domain::slice::{self, HeldSlots, Order};
use gpuaas_domain::slot::{self, Slot, SlotState};
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, NewTask, ReceiptHead, TaskRecord};
use gpuaas_domain::{Change, Decision, OutboxEvent, Refusal};

use super::{Report, at, node, outgoing, receipt_for};

pub(crate) fn guest() -> GuestSpec {
    GuestSpec {
        vm_name: "guest-1".parse().expect("a name"),
        image: ImageSource {
            path: Some("ubuntu.qcow2".to_owned()),
            url: None,
            sha256: Digest::of(b"image"),
            format: ImageFormat::Qcow2,
            trusted: false,
        },
        driver_strategy: DriverStrategy::None,
        default_username: "ubuntu".parse().expect("a name"),
        ssh_public_keys: Vec::new(),
        ovs_bridge: None,
        graceful_timeout_seconds: Some(60),
        graphics: false,
    }
}

/// A free slot with a GPU, its audio function, a fabric function and a drive.
pub(crate) fn slot(slot_index: u32) -> Slot {
    let address = |tail: &str| format!("0000:{slot_index:02x}:{tail}").parse().expect("an address");
    let mut slot = Slot {
        id: SlotId::generate(),
        version: 1,
        node_id: node().id,
        spec: SlotSpec {
            slot_index,
            pci_address: Some(address("00.0")),
            companions: vec![address("00.1")],
            fabric_device: Some(address("01.1")),
            nvme_device: format!("/dev/disk/by-id/nvme-S{slot_index}"),
            nvme_serial: format!("S{slot_index}"),
            numa_node: 0,
            vcpu_count: 12,
            memory_mib: 65_536,
            mac_address: format!("02:00:00:00:00:{slot_index:02x}"),
            private_ip: std::net::Ipv4Addr::new(10, 77, 0, u8::try_from(slot_index).expect("few") + 2),
        },
        state: SlotState::Available,
        reason: String::new(),
        quarantine: None,
        allocation_id: None,
        lease_epoch: 0,
        lease_task: None,
        drive_used: false,
        devices_used: false,
        proposed_by: TaskId::generate(),
        approved_by: "somebody".to_owned(),
        approved_at: super::NOW,
        created_at: super::NOW,
        seal: String::new(),
    };
    slot.seal = slot::seal_text(&slot);
    slot
}

/// A complete proof.
pub(crate) fn proof(task: &Task) -> CleanupProof {
    let holder = task.holder().expect("acts on slots");
    CleanupProof {
        allocation_id: holder.allocation_id,
        lease_epoch: holder.lease_epoch,
        domain_absent: true,
        reservation_absent: true,
        instance_absent: true,
        telemetry_absent: true,
        slots: task.slots().iter().map(slot_proof).collect(),
    }
}

pub(crate) fn slot_proof(slot: &LeasedSlot) -> SlotProof {
    let function = |address: &gpuaas_contract::slice::PciAddress| FunctionProof {
        address: address.clone(),
        reset: if slot.spec.companions.contains(address) { Reset::WithDevice } else { Reset::Done },
        driver: RESTING_DRIVER.to_owned(),
        iommu_group: Some(7),
        group_members: vec![address.clone()],
    };
    SlotProof {
        slot_id: slot.slot_id,
        functions: slot.spec.functions().map(function).collect(),
        drive: DriveProof {
            serial: slot.spec.nvme_serial.clone(),
            method: WipeMethod::Sanitize,
            status: WipeStatus::Verified,
            bytes: 1 << 40,
            canaries_written: 8,
            canaries_gone: 8,
            samples_clean: 64,
            samples: 64,
        },
        lease_absent: true,
    }
}

/// The output of a node for a task that succeeded.
pub(crate) fn output(task: &Task) -> Output {
    match task {
        Task::SliceVmProvision(params) => Output::SliceVmProvision(slice_vm_provision::Output {
            allocation_id: params.allocation_id,
            vm_name: params.guest.vm_name.clone(),
            default_user: params.guest.default_username.clone(),
            private_ip: params.private_ip().expect("has a slot"),
            ssh_port: 22,
            slot_count: u32::try_from(params.slots.len()).expect("few"),
            acceleration: Acceleration::Kvm,
            image_sha256: params.guest.image.sha256.clone(),
            image_was_cached: false,
            host_key: String::new(),
            terminal_key: String::new(),
            readiness: Readiness { ssh: true, marker: true, attempts: 1 },
            performance: Performance::default(),
            telemetry: GuestTelemetry { source: TelemetrySource::SliceGuest, reason: String::new() },
            timings: BTreeMap::new(),
            raw_vnc: false,
            console_model: "gateway_required".to_owned(),
            recovered: false,
        }),
        Task::SliceVmRelease(params) => Output::SliceVmRelease(slice_vm_release::Output {
            allocation_id: params.allocation_id,
            already_gone: false,
            hard_stopped: false,
            wiped: params.wipe,
            blockers: Vec::new(),
            timings: BTreeMap::new(),
        }),
        Task::SliceVmPower(params) => Output::SliceVmPower(slice_vm_power::Output {
            allocation_id: params.allocation_id,
            running: true,
            unchanged: false,
            hard_stopped: false,
            answers: None,
        }),
        Task::SliceConsoleRead(params) => Output::SliceConsoleRead(slice_console_read::Output {
            allocation_id: params.allocation_id,
            lines: 0,
            truncated: false,
        }),
        Task::AllocationProvisionUser(params) => Output::AllocationProvisionUser(allocation_provision_user::Output {
            username: params.username.clone(),
            uid: 70_000,
            home: format!("/srv/{}", params.username),
            keys: u32::try_from(params.ssh_public_keys.len()).expect("few"),
            created: true,
        }),
        Task::AllocationDeprovisionUser(params) => Output::AllocationDeprovisionUser(allocation_deprovision_user::Output {
            username: params.username.clone(),
            existed: true,
            sessions_ended: 0,
            processes_ended: 0,
            files_removed: 1,
            home_removed: true,
        }),
        other => panic!("not a task of allocations: {other:?}"),
    }
}

/// The store, for the slots of one node.
#[derive(Clone)]
pub(crate) struct Harness {
    pub(crate) now: Timestamp,
    pub(crate) slots: Vec<Slot>,
    pub(crate) tasks: BTreeMap<TaskId, TaskRecord>,
    pub(crate) envelopes: BTreeMap<TaskId, envelope::Signed>,
    /// Events of all commits.
    pub(crate) events: Vec<OutboxEvent>,
}

impl Harness {
    pub(crate) fn new(slots: u32) -> Self {
        let slots = (0..slots).map(slot).collect();
        Self { now: super::NOW, slots, tasks: BTreeMap::new(), envelopes: BTreeMap::new(), events: Vec::new() }
    }

    /// Writes a decision as the control plane does, with its effects on slots, and returns these effects.
    pub(crate) fn commit(&mut self, decision: Decision) -> Decision {
        self.commit_as(decision, true)
    }

    /// Like [`Self::commit`]; `genuine` says whether the control plane itself wrote the rows of the tasks that end.
    pub(crate) fn commit_as(&mut self, decision: Decision, genuine: bool) -> Decision {
        let (mut decision, mut of_slots) = (decision, Decision::default());
        for ending in std::mem::take(&mut decision.endings) {
            let slots: Vec<Slot> = self.slots.iter().filter(|slot| slot.lease_task == Some(ending.task.id)).cloned().collect();
            of_slots = of_slots.and(slice::settle(&slots, &ending, genuine, slot::seal_text, &at(self.now)));
        }
        assert_eq!(of_slots.changes.len(), of_slots.events.len(), "every change of a slot has an event");
        assert_eq!(of_slots.changes.len(), of_slots.audit.len(), "and an audit row");
        let Decision { changes, events, .. } = decision.and(of_slots.clone());
        self.events.extend(events);
        for change in changes {
            match change {
                Change::SlotUpdate(next) => {
                    assert_eq!(next.seal, slot::seal_text(&next), "sealed as it is written");
                    let slot = self.slots.iter_mut().find(|slot| slot.id == next.id).expect("is there");
                    assert_eq!(slot.version, next.version, "written over the version it was loaded with");
                    *slot = Slot { version: next.version + 1, ..*next };
                }
                Change::TaskInsert(task) => assert!(self.tasks.insert(task.id, *task).is_none()),
                Change::TaskUpdate(next) => {
                    let task = self.tasks.get_mut(&next.id).expect("is there");
                    assert_eq!(task.version, next.version);
                    *task = TaskRecord { version: next.version + 1, ..*next };
                }
                Change::EnvelopeInsert { task_id, digest, envelope, .. } => {
                    self.envelopes.insert(task_id, envelope::Signed { envelope, digest });
                }
                Change::ReceiptInsert { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        of_slots
    }

    fn make(&mut self, id: TaskId, order: Result<Order, Refusal>) -> Result<TaskId, Refusal> {
        let order = order?;
        let timeout = order.task.timeout();
        let new = NewTask { id, task: order.task, queue_time: DEFAULT_QUEUE_TIME, timeout, idempotency_key: None };
        let (_, decision) = task::create(&node(), new, 0, &at(self.now), |_| "mac".to_owned())?;
        self.commit(decision.and(order.decision));
        Ok(id)
    }

    pub(crate) fn provision(&mut self, indexes: &[usize]) -> Result<TaskId, Refusal> {
        let slots: Vec<Slot> = indexes.iter().map(|index| self.slots[*index].clone()).collect();
        let id = TaskId::generate();
        let ids = (AllocationId::generate(), id);
        let order = slice::provision(&node(), &slots, &guest(), ids, slot::seal_text, &at(self.now));
        self.make(id, order)
    }

    fn with<T>(&self, slot: usize, ask: impl FnOnce(HeldSlots<'_>) -> T) -> T {
        let named = &self.slots[slot];
        let together = |slot: &&Slot| match named.allocation_id {
            Some(allocation) => slot.allocation_id == Some(allocation),
            None => slot.id == named.id,
        };
        let slots: Vec<Slot> = self.slots.iter().filter(together).cloned().collect();
        let tasks: Vec<TaskRecord> = slots.iter().filter_map(|slot| slot.lease_task).map(|id| self.tasks[&id].clone()).collect();
        ask(HeldSlots { slots: &slots, tasks: &tasks })
    }

    pub(crate) fn release(&mut self, slot: usize, wipe: bool) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let order = self.with(slot, |held| slice::release(held, wipe, 60, id, slot::seal_text, &at(self.now)));
        self.make(id, order)
    }

    pub(crate) fn force_cleanup(&mut self, slot: usize) -> Result<TaskId, Refusal> {
        let id = TaskId::generate();
        let ids = (AllocationId::generate(), id);
        let order = self.with(slot, |held| slice::force_cleanup(held, "stuck", ids, slot::seal_text, &at(self.now)));
        self.make(id, order)
    }

    pub(crate) fn power(&mut self, slot: usize) -> Result<TaskId, Refusal> {
        let order = self.with(slot, |held| slice::power(held, slice_vm_power::PowerAction::Reboot, 60));
        self.make(TaskId::generate(), order)
    }

    pub(crate) fn console(&mut self, slot: usize) -> Result<TaskId, Refusal> {
        let order = self.with(slot, |held| slice::console(held, 100, 5));
        self.make(TaskId::generate(), order)
    }

    pub(crate) fn operate(&mut self, slot: usize, operation: slot::Operation) -> Result<(), Refusal> {
        let decision = slot::operate(&self.slots[slot], operation, "", slot::seal_text, &at(self.now))?;
        self.commit(decision);
        Ok(())
    }

    pub(crate) fn task(&self, id: TaskId) -> &TaskRecord {
        &self.tasks[&id]
    }

    /// The task with its parameters.
    pub(crate) fn order(&self, id: TaskId) -> Task {
        let task = self.task(id);
        Task::parse(task.task_type, &task.params).expect("parses")
    }

    pub(crate) fn dispatch(&mut self, id: TaskId) -> Result<(), Refusal> {
        let task = self.task(id).clone();
        let sent = task::dispatch(&task, &node(), &outgoing(&task, &node(), self.now)?, &at(self.now))?.1;
        self.commit(sent);
        Ok(())
    }

    /// Sends the task and starts it on the node.
    pub(crate) fn start(&mut self, id: TaskId) {
        self.dispatch(id).expect("can be sent");
        let started = task::acknowledged(self.task(id), true, &at(self.now));
        self.commit(started);
    }

    /// Delivers the node's receipt for a task that was sent.
    pub(crate) fn receipt(&mut self, id: TaskId, outcome: Outcome, proof: Option<CleanupProof>) -> Decision {
        self.receipt_said(id, outcome, proof, outcome != Outcome::Refused)
    }

    pub(crate) fn receipt_said(&mut self, id: TaskId, outcome: Outcome, proof: Option<CleanupProof>, started: bool) -> Decision {
        let order = self.order(id);
        let output = (outcome == Outcome::Succeeded).then(|| serde_json::value::to_raw_value(&output(&order)).expect("JSON"));
        self.report(id, Report { started, output, proof, ..Report::plainly(outcome) })
    }

    /// Delivers a receipt with this content.
    pub(crate) fn report(&mut self, id: TaskId, reported: Report) -> Decision {
        let task = self.task(id).clone();
        let (verified, raw) = receipt_for(&task, &self.envelopes[&id], reported, 1);
        let decision = task::receipt(&task, &ReceiptHead::default(), &verified, &raw, &at(self.now));
        self.commit(decision.expect("taken").expect("news"))
    }

    /// A harness with a guest that runs on these slots.
    pub(crate) fn running(slots: u32, indexes: &[usize]) -> (Self, TaskId) {
        let mut harness = Self::new(slots);
        let id = harness.provision(indexes).expect("free");
        harness.start(id);
        harness.receipt(id, Outcome::Succeeded, None);
        (harness, id)
    }

    pub(crate) fn states(&self) -> Vec<SlotState> {
        self.slots.iter().map(|slot| slot.state).collect()
    }

    pub(crate) fn is_kind(&self, id: TaskId, kind: TaskType) -> bool {
        self.task(id).task_type == kind
    }
}
