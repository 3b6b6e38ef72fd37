//! `slice.vm_power`: stops, starts or reboots a guest. The lease records whether the guest should run, so the agent can recover from a
//! crash in between.

use std::time::Duration;

use gpuaas_contract::slice::Holder;
use gpuaas_contract::task::slice_vm_power::{Output, Params, PowerAction};
use gpuaas_host::cloud_init;
use gpuaas_host::guests::{DomainState, GuestAccess, InstanceFile, Lease, Power};

use super::readiness::{self, Until};
use super::{Context, TaskFailure, shut_down};
use crate::guests::cleanup::bind;

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    go(params, context, false).await
}

async fn go(params: &Params, context: &Context, recovered: bool) -> Result<Output, TaskFailure> {
    let claim = context.guests.claim(&params.slots).await;
    let leases = held(context, params.holder(), params.slots.len()).await?;
    let before = context.host.domain_state(params.allocation_id).await?;
    if before == DomainState::Absent {
        return Err(TaskFailure::failed("guest_missing", "the hypervisor knows no guest of this allocation".to_owned()));
    }
    let (wanted, stop) = match params.action {
        PowerAction::Stop => (Power::Off, before == DomainState::Running),
        PowerAction::Start => (Power::On, false),
        PowerAction::Reboot => (Power::On, before == DomainState::Running),
    };
    if context.stop.is_cancelled() {
        return Err(TaskFailure::stopped());
    }
    note(context, &leases, wanted).await?;
    let hard_stopped = if stop {
        context.phases.enter("stop", "asking the guest to shut down").await;
        shut_down(context, params.allocation_id, params.graceful_timeout_seconds).await?
    } else {
        false
    };
    let running = wanted == Power::On;
    let starts = running && (stop || before == DomainState::Off);
    if starts {
        context.phases.enter("start", "starting the guest").await;
        for function in leases.iter().flat_map(|lease| lease.spec.functions()) {
            bind(&context.host, function).await?;
        }
        context.host.domain_start(params.allocation_id).await?;
    }
    let unchanged = !stop && (before == DomainState::Running) == running;
    // Nothing is changed from here on: a task that releases the guest must not wait for it to boot.
    drop(claim);
    // Also wait for a guest that was started before the agent restarted.
    let answers = if starts || (running && recovered) { Some(answers(params, context).await?) } else { None };
    Ok(Output { allocation_id: params.allocation_id, running, unchanged, hard_stopped, answers })
}

/// Whether the guest accepts our SSH login again in time. One that does not is left running: the cause may be something its tenant did.
async fn answers(params: &Params, context: &Context) -> Result<bool, TaskFailure> {
    context.phases.enter(readiness::PHASE, "waiting for the guest to answer").await;
    let seed = context.host.instance_read(params.allocation_id, InstanceFile::UserData).await?;
    let user = seed.as_deref().and_then(cloud_init::user_of);
    let (Some(user), Some(slot)) = (user, params.slots.first()) else {
        context.log.line("the guest's seed does not say who its user is, so it cannot be asked".to_owned()).await;
        return Ok(false);
    };
    let guest = GuestAccess { allocation_id: params.allocation_id, address: slot.spec.private_ip, user };
    let within = Duration::from_secs(params.answer_timeout_seconds.into());
    let (_, answers) = readiness::wait(context, &guest, Until::Answers, within).await?;
    if !answers {
        context.log.line(format!("the guest did not answer by SSH within {} s", within.as_secs())).await;
    }
    Ok(answers)
}

/// After a restart of the agent: brings the guest to the requested state. A reboot that may have happened is not repeated.
pub(super) async fn recover(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    if !context.still_allowed {
        return Err(TaskFailure::interrupted("policy_denied", "the host policy does not allow this task any more"));
    }
    let action = match params.action {
        PowerAction::Stop => PowerAction::Stop,
        PowerAction::Start | PowerAction::Reboot => PowerAction::Start,
    };
    go(&Params { action, ..params.clone() }, context, true).await
}

/// Returns the holder's leases, or an error unless it holds all of its slots.
async fn held(context: &Context, holder: Holder, slots: usize) -> Result<Vec<Lease>, TaskFailure> {
    let leases: Vec<Lease> = context.host.leases().await?.into_iter().filter(|lease| lease.holder() == holder).collect();
    if leases.len() == slots {
        return Ok(leases);
    }
    let message = format!(
        "the host holds {} of {slots} slots for {} with number {}",
        leases.len(),
        holder.allocation_id,
        holder.lease_epoch
    );
    Err(TaskFailure::failed("lease_missing", message))
}

async fn note(context: &Context, leases: &[Lease], power: Power) -> Result<(), TaskFailure> {
    for lease in leases {
        let lease = Lease { power, boot_id: context.boot_id.clone(), ..lease.clone() };
        context.host.lease_note(&lease).await?;
    }
    Ok(())
}
