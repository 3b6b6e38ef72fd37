//! The answers of a node about slots and whole hosts.

use gpuaas_contract::cleanup::{
    CleanupProof, DriveProof, FunctionProof, RESTING_DRIVER, Reset, SlotProof, WipeMethod, WipeStatus,
};
use gpuaas_contract::envelope::Verified;
use gpuaas_contract::receipt::{Outcome, Payload};
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use serde_json::json;

/// Returns a complete cleanup proof.
pub fn proof(task: &Verified) -> CleanupProof {
    let holder = task.task().holder().unwrap();
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
        allocation_id: holder.allocation_id,
        lease_epoch: holder.lease_epoch,
        domain_absent: true,
        reservation_absent: true,
        instance_absent: true,
        telemetry_absent: true,
        slots: task.task().slots().iter().map(slot).collect(),
    }
}

/// Returns the output of a successful task.
pub fn output(task: &Verified) -> serde_json::Value {
    match task.task() {
        task::Task::SliceVmProvision(params) => json!({
            "allocation_id": params.allocation_id, "vm_name": params.guest.vm_name, "default_user": params.guest.default_username,
            "private_ip": params.private_ip(), "ssh_port": 22, "slot_count": params.slots.len(), "acceleration": "kvm",
            "image_sha256": params.guest.image.sha256, "image_was_cached": false, "host_key": "", "terminal_key": "",
            "readiness": { "ssh": true, "marker": true, "attempts": 1 },
            "performance": { "measured": false, "reason": "", "cpus": 0, "memory_mib": 0, "gpus": 0, "boot_ms": 0, "disk_write_mib_per_s": 0 },
            "telemetry": { "source": "slice_guest", "reason": "" },
            "timings": {}, "raw_vnc": false, "console_model": "gateway_required", "recovered": false,
        }),
        task::Task::SliceVmRelease(params) => json!({
            "allocation_id": params.allocation_id, "already_gone": false, "hard_stopped": false, "wiped": params.wipe,
            "blockers": [], "timings": {},
        }),
        task::Task::SliceVmPower(params) => {
            let answers = (params.action != PowerAction::Stop).then_some(true);
            json!({
                "allocation_id": params.allocation_id, "running": params.action != PowerAction::Stop, "unchanged": false,
                "hard_stopped": false, "answers": answers,
            })
        }
        task::Task::SliceConsoleRead(params) => json!({ "allocation_id": params.allocation_id, "lines": 0, "truncated": false }),
        task::Task::AllocationProvisionUser(params) => json!({
            "username": params.username, "uid": 1500, "home": format!("/srv/{}", params.username), "keys": params.ssh_public_keys.len(),
            "created": true,
        }),
        task::Task::AllocationDeprovisionUser(params) => json!({
            "username": params.username, "existed": true, "sessions_ended": 0, "processes_ended": 0, "files_removed": 0,
            "home_removed": true,
        }),
        other => panic!("not a task of an allocation: {other:?}"),
    }
}

pub fn succeeded(payload: &mut Payload, task: &Verified, proof: Option<&CleanupProof>) {
    payload.output = Some(serde_json::value::to_raw_value(&output(task)).unwrap());
    payload.cleanup_proof = proof.map(|proof| serde_json::value::to_raw_value(proof).unwrap());
}

pub fn ended(payload: &mut Payload, outcome: Outcome, proof: Option<&CleanupProof>) {
    (payload.outcome, payload.code, payload.message) = (outcome, "some_code".to_owned(), "in words".to_owned());
    payload.output = None;
    payload.cleanup_proof = proof.map(|proof| serde_json::value::to_raw_value(proof).unwrap());
    if outcome == Outcome::Refused {
        payload.started_at = None;
    }
}
