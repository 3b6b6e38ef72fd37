//! `slice.vm_power`: stops, starts or reboots a guest. Its lease says whether it is meant to run, so a crash in between is made good.

use gpuaas_contract::slice::Holder;
use gpuaas_contract::task::slice_vm_power::{Output, Params, PowerAction};
use gpuaas_host::guests::{DomainState, Lease, Power};

use super::{Context, TaskFailure, shut_down};
use crate::guests::cleanup::bind;

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let _claim = context.guests.claim(&params.slots).await;
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
    if running && (stop || before == DomainState::Off) {
        context.phases.enter("start", "starting the guest").await;
        for function in leases.iter().flat_map(|lease| lease.spec.functions()) {
            bind(&context.host, function).await?;
        }
        context.host.domain_start(params.allocation_id).await?;
    }
    let unchanged = !stop && (before == DomainState::Running) == running;
    Ok(Output { allocation_id: params.allocation_id, running, unchanged, hard_stopped })
}

/// After a restart of the agent: the guest is brought to what the task wanted. A reboot that may have happened is not done again.
pub(super) async fn recover(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    if !context.still_allowed {
        return Err(TaskFailure::interrupted("policy_denied", "the host policy does not allow this task any more"));
    }
    let action = match params.action {
        PowerAction::Stop => PowerAction::Stop,
        PowerAction::Start | PowerAction::Reboot => PowerAction::Start,
    };
    run(&Params { action, ..params.clone() }, context).await
}

/// The leases of the holder: all its slots, or it does not hold them.
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
