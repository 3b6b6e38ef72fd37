//! The answers of a simulated node: every task succeeds immediately, and released slots are clean.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use gpuaas_contract::cleanup::{
    CleanupProof, DriveProof, FunctionProof, RESTING_DRIVER, Reset, SlotProof, WipeMethod, WipeStatus,
};
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Prerequisites, Summary};
use gpuaas_contract::task::slice_vm_provision::{Acceleration, GuestTelemetry, Performance, Readiness, TelemetrySource};
use gpuaas_contract::task::{Output, Task, diag_ping, slice_topology_discover, slice_vm_provision, slice_vm_release};
use gpuaas_contract::time::Timestamp;

use crate::Result;

/// Number of slots per node.
pub(crate) const SLOTS: u32 = 8;

pub(crate) struct Answered {
    pub(crate) output: Output,
    pub(crate) proof: Option<CleanupProof>,
}

/// Returns the node's answer to a task.
pub(crate) fn to(task: &Task, now: Timestamp) -> Result<Answered> {
    if let Task::SliceVmRelease(params) = task {
        let output = slice_vm_release::Output {
            allocation_id: params.allocation_id,
            already_gone: false,
            hard_stopped: false,
            wiped: params.wipe,
            blockers: Vec::new(),
            timings: BTreeMap::new(),
        };
        return Ok(Answered { output: Output::SliceVmRelease(output), proof: Some(clean(params)) });
    }
    let output = if let Task::DiagPing(params) = task {
        Output::DiagPing(diag_ping::Output { message: params.message.clone(), host_time: now, recovered: false })
    } else if let Task::SliceVmProvision(params) = task {
        Output::SliceVmProvision(provisioned(params)?)
    } else if let Task::SliceTopologyDiscover(_) = task {
        Output::SliceTopologyDiscover(topology()?)
    } else {
        return Err(format!("nobody asks for {} here", task.task_type()).into());
    };
    Ok(Answered { output, proof: None })
}

fn topology() -> Result<slice_topology_discover::Output> {
    let slot = |slot_index: u32| -> Result<CandidateSlot> {
        Ok(CandidateSlot {
            slot_index,
            pci_address: Some(format!("0000:{slot_index:02x}:00.0").parse()?),
            companions: Vec::new(),
            fabric_device: None,
            nvme_device: Some(format!("/dev/disk/by-id/nvme-bench-{slot_index}")),
            nvme_serial: Some(format!("bench-{slot_index}")),
            numa_node: 0,
            vcpu_count: 24,
            memory_mib: 245_760,
            mac_address: format!("02:00:00:00:00:{slot_index:02x}"),
            private_ip: Some(Ipv4Addr::new(10, 77, 0, u8::try_from(slot_index)? + 2)),
            schedulable: true,
            blockers: Vec::new(),
        })
    };
    Ok(slice_topology_discover::Output {
        approval_required: true,
        simulated: true,
        prerequisites: Prerequisites::default(),
        gpu_devices: Vec::new(),
        fabric_devices: Vec::new(),
        nvme_devices: Vec::new(),
        candidate_slots: (0..SLOTS).map(slot).collect::<Result<_>>()?,
        candidate_summary: Summary { slots: SLOTS, schedulable: SLOTS, blockers: Vec::new() },
    })
}

fn provisioned(params: &slice_vm_provision::Params) -> Result<slice_vm_provision::Output> {
    Ok(slice_vm_provision::Output {
        allocation_id: params.allocation_id,
        vm_name: params.guest.vm_name.clone(),
        default_user: params.guest.default_username.clone(),
        private_ip: params.private_ip().ok_or("a guest without an address")?,
        ssh_port: 22,
        slot_count: u32::try_from(params.slots.len())?,
        acceleration: Acceleration::Kvm,
        image_sha256: params.guest.image.sha256.clone(),
        image_was_cached: true,
        host_key: String::new(),
        terminal_key: String::new(),
        readiness: Readiness { ssh: true, marker: true, attempts: 1 },
        performance: Performance::default(),
        telemetry: GuestTelemetry { source: TelemetrySource::SliceGuest, reason: String::new() },
        timings: slice_vm_provision::PHASES.into_iter().map(|phase| (format!("{phase}_ms"), 1)).collect(),
        raw_vnc: false,
        console_model: "gateway_required".to_owned(),
        recovered: false,
    })
}

/// Returns a proof that everything of these slots is clean.
fn clean(params: &slice_vm_release::Params) -> CleanupProof {
    let slot = |slot: &LeasedSlot| SlotProof {
        slot_id: slot.slot_id,
        functions: slot
            .spec
            .functions()
            .map(|address| FunctionProof {
                address: address.clone(),
                reset: Reset::Done,
                driver: RESTING_DRIVER.to_owned(),
                iommu_group: Some(1),
                group_members: vec![address.clone()],
            })
            .collect(),
        drive: DriveProof {
            serial: slot.spec.nvme_serial.clone(),
            method: WipeMethod::CryptoErase,
            status: WipeStatus::Verified,
            bytes: 1 << 40,
            canaries_written: 8,
            canaries_gone: 8,
            samples_clean: 64,
            samples: 64,
        },
        lease_absent: true,
    };
    CleanupProof {
        allocation_id: params.allocation_id,
        lease_epoch: params.lease_epoch,
        domain_absent: true,
        reservation_absent: true,
        instance_absent: true,
        telemetry_absent: true,
        slots: params.slots.iter().map(slot).collect(),
    }
}
