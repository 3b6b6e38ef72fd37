//! The phases that concern the guest itself: its address, its start and its readiness.

use std::time::Duration;

use gpuaas_contract::task::slice_vm_provision::Acceleration;
use gpuaas_host::guests::{DomainSpec, GuestAccess, GuestMark, Power, Reservation};

use super::super::readiness::{self, Until};
use super::host::{bridge, note};
use super::{TaskFailure, Work};

/// How long a guest may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(20 * 60);

pub(super) async fn dhcp_reservation(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let Some(first) = params.slots.first() else {
        return Err(TaskFailure::failed("params_invalid", "there is no slot".to_owned()));
    };
    let reservation = Reservation {
        allocation_id: params.allocation_id,
        mac_address: first.spec.mac_address.clone(),
        private_ip: first.spec.private_ip,
        vm_name: params.guest.vm_name.clone(),
    };
    Ok(work.host().reservation_add(&reservation).await?)
}

pub(super) async fn virt_install(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let params = work.params;
    let boot_id = work.context.boot_id.clone();
    note(work, |lease| {
        (lease.guest, lease.power) = (GuestMark::Given, Power::On);
        lease.boot_id.clone_from(&boot_id);
    })
    .await?;
    let domain = DomainSpec {
        allocation_id: params.allocation_id,
        lease_epoch: params.lease_epoch,
        vm_name: params.guest.vm_name.clone(),
        slots: params.slots.iter().map(|slot| slot.spec.clone()).collect(),
        ovs_bridge: bridge(work)?,
        kvm: work.acceleration == Acceleration::Kvm,
        graphics: params.guest.graphics,
    };
    work.host().domain_define(&domain).await?;
    Ok(work.host().domain_start(params.allocation_id).await?)
}

fn access(work: &Work<'_>) -> GuestAccess {
    GuestAccess {
        allocation_id: work.params.allocation_id,
        address: work.params.private_ip().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
        user: work.params.guest.default_username.clone(),
    }
}

/// A guest is ready when it accepts our SSH login, presents the host key that it was given, and reports that its first boot is complete.
pub(super) async fn readiness(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let (found, is_ready) = readiness::wait(work.context, &access(work), Until::Provisioned, READY_WITHIN).await?;
    let what = if found.ssh { "it lets us in but cloud-init is not through" } else { "it does not answer by SSH" };
    work.readiness = found;
    if is_ready {
        return Ok(());
    }
    Err(TaskFailure::failed("guest_not_ready", format!("the guest was not ready in time: {what}; see the log")))
}

/// Measures the guest's performance for people to read. If that fails, the output says why and the task still succeeds.
pub(super) async fn performance_probe(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    work.performance = work.unless_stopped(work.host().guest_measure(&access(work))).await?;
    Ok(())
}
