//! The phases that concern the host: leases, programs, devices, and the final checks before anything is written.

use std::collections::BTreeSet;

use gpuaas_contract::cleanup::RESTING_DRIVER;
use gpuaas_contract::slice::InterfaceName;
use gpuaas_contract::task::slice_topology_discover::Prerequisites;
use gpuaas_contract::task::slice_vm_provision::Acceleration;
use gpuaas_contract::time::Timestamp;
use gpuaas_host::guests::{DriveMark, DriveRef, GuestMark, Lease, Power};

use super::super::on_host;
use super::{TaskFailure, Work};
use crate::policy::Emulation;

/// Memory that a guest needs on top of its own, for the emulator's tables and buffers.
const OVERHEAD_MIB: u64 = 512;

/// Programs, each with the Debian package that contains it.
const PACKAGES: [(&str, &str); 7] = [
    ("cloud-localds", "cloud-image-utils"),
    ("dnsmasq", "dnsmasq-base"),
    ("nft", "nftables"),
    ("ovs-vsctl", "openvswitch-switch"),
    ("qemu-img", "qemu-utils"),
    ("ssh", "openssh-client"),
    ("virsh", "libvirt-clients"),
];

pub(super) async fn lease_acquire(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    for slot in &params.slots {
        let lease = Lease {
            slot_id: slot.slot_id,
            allocation_id: params.allocation_id,
            lease_epoch: params.lease_epoch,
            task_id: work.context.task_id,
            spec: slot.spec.clone(),
            vm_name: params.guest.vm_name.to_string(),
            taken_at: Timestamp::now(),
            boot_id: work.context.boot_id.clone(),
            drive: DriveMark::Clean,
            guest: GuestMark::Never,
            power: Power::Off,
        };
        // A fenced lease epoch stays refused: a release may have overtaken this task and proven that nothing is there.
        work.host().lease_take(&lease, false).await?;
    }
    Ok(())
}

/// Records in every lease what is about to happen to its slot, before it happens.
pub(super) async fn note(work: &Work<'_>, change: impl Fn(&mut Lease)) -> Result<(), TaskFailure> {
    let holder = work.params.holder();
    let leases = work.host().leases().await?;
    let mine: Vec<Lease> = leases.into_iter().filter(|lease| lease.holder() == holder).collect();
    if mine.len() != work.params.slots.len() {
        let message = format!("the host holds {} of {} slots for this task", mine.len(), work.params.slots.len());
        return Err(TaskFailure::failed("lease_lost", message));
    }
    for mut lease in mine {
        let before = lease.clone();
        change(&mut lease);
        if lease != before {
            work.host().lease_note(&lease).await?;
        }
    }
    Ok(())
}

async fn prerequisites(work: &Work<'_>) -> Result<Prerequisites, TaskFailure> {
    let inventory = on_host(work.context, |host| host.inventory()).await?;
    let inventory = inventory.map_err(|error| TaskFailure::failed("machine_unknown", crate::error_chain::chain(&error)))?;
    Ok(inventory.prerequisites)
}

pub(super) async fn host_dependencies(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let missing = |host: &Prerequisites| -> BTreeSet<String> {
        host.required_commands.iter().filter(|command| command.path.is_none()).map(|command| command.name.clone()).collect()
    };
    let mut found = prerequisites(work).await?;
    if !missing(&found).is_empty() && work.context.rules.install_packages {
        let wanted = missing(&found);
        let packages: Vec<&'static str> =
            PACKAGES.iter().filter(|(program, _)| wanted.contains(*program)).map(|(_, package)| *package).collect();
        work.context.log.line(format!("installing {}", packages.join(", "))).await;
        work.unless_stopped(work.host().packages_install(&packages)).await?;
        found = prerequisites(work).await?;
    }
    let left = missing(&found);
    if !left.is_empty() {
        let names = left.into_iter().collect::<Vec<_>>().join(", ");
        let message = format!("install {names} on the host, or let the agent do it with install_packages in the host policy");
        return Err(TaskFailure::failed("host_dependency_missing", message));
    }
    if found.reboot_required {
        return Err(TaskFailure::failed(
            "reboot_required",
            "the distribution asks for a reboot; do it before there are guests".to_owned(),
        ));
    }
    Ok(())
}

/// Whether the guest runs on KVM or is emulated, depending on the host and on its policy.
pub(super) async fn acceleration(work: &Work<'_>) -> Result<Acceleration, TaskFailure> {
    let kvm = prerequisites(work).await?.kvm_available;
    match (work.context.rules.emulation, kvm) {
        (Emulation::Always, _) | (Emulation::Fallback, false) => Ok(Acceleration::Emulation),
        (Emulation::Never | Emulation::Fallback, true) => Ok(Acceleration::Kvm),
        (Emulation::Never, false) => {
            let message = "/dev/kvm is missing, and the host policy does not allow emulation; load kvm_intel or kvm_amd";
            Err(TaskFailure::failed("kvm_missing", message.to_owned()))
        }
    }
}

pub(super) async fn host_passthrough_check(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    if work.params.slots.iter().all(|slot| slot.spec.functions().next().is_none()) {
        return Ok(());
    }
    if prerequisites(work).await?.iommu_group_count == 0 {
        let message =
            "there are no IOMMU groups; enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or amd_iommu=on";
        return Err(TaskFailure::failed("iommu_off", message.to_owned()));
    }
    Ok(work.host().vfio_load().await?)
}

pub(super) async fn vfio_bind_check(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    for slot in &work.params.slots {
        for address in slot.spec.functions() {
            let state = work.host().function_state(address).await?;
            let stranger = state.group_members.iter().find(|member| !slot.spec.functions().any(|own| own == *member));
            if let Some(stranger) = stranger {
                let message = format!("{address} shares its IOMMU group with {stranger}, which is not part of the slot");
                return Err(TaskFailure::failed("iommu_group_shared", message));
            }
            if state.iommu_group.is_none() {
                return Err(TaskFailure::failed("iommu_group_missing", format!("{address} is in no IOMMU group")));
            }
            if state.driver != RESTING_DRIVER {
                work.host().function_bind(address).await?;
            }
        }
    }
    Ok(())
}

/// The bridge that the guest is connected to, as the host policy decides.
pub(super) fn bridge(work: &Work<'_>) -> Result<InterfaceName, TaskFailure> {
    let named = work.params.guest.ovs_bridge.as_ref();
    work.context.rules.bridge(named).map_err(|why| TaskFailure::failed("bridge_denied", format!("the host policy: {why}")))
}

/// The last checks before anything is written: the drive is the leased one and unused, the bridge exists, there is enough memory, and the
/// firmware assigned memory windows to all PCI functions.
pub(super) async fn runtime_validate(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let bridge = bridge(work)?;
    let network = work.host().slice_network(&bridge).await;
    if !network.bridge_exists {
        let message = format!("Open vSwitch has no bridge {bridge}; add it with `ovs-vsctl add-br {bridge}`");
        return Err(TaskFailure::failed("bridge_missing", message));
    }
    for (place, slot) in params.slots.iter().enumerate() {
        let drive = work.host().drive_check(&DriveRef::of(&slot.spec)).await?;
        if place == 0 && drive.size_bytes < work.disk_bytes {
            let message = format!(
                "the image's disk has {} bytes and drive {} only {}",
                work.disk_bytes, slot.spec.nvme_serial, drive.size_bytes
            );
            return Err(TaskFailure::failed("image_too_large", message));
        }
        for address in slot.spec.functions() {
            if !work.host().function_state(address).await?.bars_assigned {
                let message = format!("the firmware gave {address} no memory window; enable Above 4G Decoding and Resizable BAR");
                return Err(TaskFailure::failed("bar_unassigned", message));
            }
        }
    }
    let free = work.host().memory_free().await?;
    let wanted: u64 = params.slots.iter().map(|slot| slot.spec.memory_mib).sum();
    let (available, kind) = if work.host().layout().huge_pages {
        (free.huge_pages_mib, "huge pages")
    } else {
        (free.available_mib.saturating_sub(OVERHEAD_MIB), "memory")
    };
    if wanted > available {
        let message = format!("the guest wants {wanted} MiB and the host has {available} MiB of {kind} left");
        return Err(TaskFailure::failed("memory_short", message));
    }
    Ok(())
}
