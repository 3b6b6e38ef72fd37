//! The guest itself: its address, its start, and whether it is there.

use std::time::Duration;

use gpuaas_contract::task::slice_vm_provision::Acceleration;
use gpuaas_host::guests::{ConsoleFrom, DomainSpec, DomainState, GuestAccess, GuestMark, Power, Reservation};

use super::host::{bridge, note};
use super::{TaskFailure, Work};

/// How long a guest may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(20 * 60);
/// Between two questions: short at first, then patient.
const ASK_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
/// How much of the console goes into the log of a guest that did not come up.
const LAST_WORDS: u64 = 4096;

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

/// Ready is: it lets us in, shows the key that it was given, and says itself that its first boot is through.
pub(super) async fn readiness(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    let guest = access(work);
    let until = tokio::time::Instant::now() + READY_WITHIN;
    let mut pause = ASK_EVERY.0;
    loop {
        let answer = work.unless_stopped(work.host().guest_ask(&guest)).await?;
        work.readiness.attempts = work.readiness.attempts.saturating_add(1);
        (work.readiness.ssh, work.readiness.marker) = (answer.ssh, answer.marker);
        if answer.ssh && answer.marker {
            return Ok(());
        }
        if work.host().domain_state(guest.allocation_id).await? != DomainState::Running {
            last_words(work).await;
            return Err(TaskFailure::failed(
                "guest_died",
                "the guest stopped before it was ready; its last words are in the log".to_owned(),
            ));
        }
        if tokio::time::Instant::now() >= until {
            last_words(work).await;
            let what = if answer.ssh { "it lets us in but cloud-init is not through" } else { "it does not answer by SSH" };
            return Err(TaskFailure::failed("guest_not_ready", format!("the guest was not ready in time: {what}; see the log")));
        }
        let message = if answer.ssh { "the guest is up; waiting for cloud-init" } else { "waiting for the guest to answer" };
        work.context.phases.tell("readiness", message.to_owned());
        work.unless_stopped(async {
            tokio::time::sleep(pause).await;
            Ok(())
        })
        .await?;
        pause = (pause * 2).min(ASK_EVERY.1);
    }
}

async fn last_words(work: &Work<'_>) {
    let part = work.host().console_read(work.params.allocation_id, ConsoleFrom::Tail(LAST_WORDS), 4096).await;
    let Ok(part) = part else { return };
    for line in String::from_utf8_lossy(&part.bytes).lines() {
        work.context.log.line(format!("console: {}", line.trim_end())).await;
    }
}

/// How fast it is matters to people, not to whether it is there: an error here is a reason in the answer and no failure.
pub(super) async fn performance_probe(work: &mut Work<'_>) -> Result<(), TaskFailure> {
    work.performance = work.unless_stopped(work.host().guest_measure(&access(work))).await?;
    Ok(())
}
