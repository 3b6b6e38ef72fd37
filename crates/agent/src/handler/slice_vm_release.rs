//! `slice.vm_release`: removes a guest and proves that nothing of it is left. A guest that is already gone is released as well.

use std::collections::BTreeMap;
use std::time::Instant;

use gpuaas_contract::cleanup::NOT_WIPED;
use gpuaas_contract::task::Output as AnyOutput;
use gpuaas_contract::task::slice_vm_release::{Output, Params};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::guests::{DomainState, DriveMark, GuestMark, Lease, Point, Power};

use super::{Context, Success, TaskFailure, shut_down};
use crate::guests::cleanup::Cleanup;

pub(super) async fn run(params: &Params, context: &Context) -> Result<Success, TaskFailure> {
    let _claim = context.guests.claim(&params.slots).await;
    let mut timings = BTreeMap::new();

    let begun = begin("lease", context, "holding the slots").await?;
    let known = hold(params, context).await?;
    end(&mut timings, "lease", context, begun).await?;

    let begun = begin("shutdown", context, "asking the guest to shut down").await?;
    let stopped = stop_guest(params, context).await?;
    end(&mut timings, "shutdown", context, begun).await?;

    let begun = begin("cleanup", context, "resetting devices and wiping drives").await?;
    let cleanup = Cleanup {
        host: &context.host,
        phases: &context.phases,
        guests: &context.guests,
        holder: params.holder(),
        slots: &params.slots,
        wipe: params.wipe,
        take_over: params.take_over,
        only_of: None,
    };
    let (proof, errors) = cleanup.run().await;
    let blockers = proof.blockers(&params.slots, true);
    let only_unwiped = blockers.iter().all(|blocker| !params.wipe && blocker.code == NOT_WIPED);
    if !only_unwiped || !errors.is_empty() {
        let reasons = errors.iter().map(|error| error.message.as_str()).chain(blockers.iter().map(|b| b.message.as_str()));
        let message = reasons.collect::<Vec<_>>().join("; ");
        return Err(TaskFailure { proof: Some(Box::new(proof)), ..TaskFailure::failed("cleanup_blocked", message) });
    }
    // A failure from here on still carries the proof.
    let proof = Some(Box::new(proof));
    end(&mut timings, "cleanup", context, begun).await.map_err(|failure| TaskFailure { proof: proof.clone(), ..failure })?;
    let output = Output {
        allocation_id: params.allocation_id,
        already_gone: !known && stopped.was_absent,
        hard_stopped: stopped.hard,
        wiped: params.wipe,
        blockers,
        timings,
    };
    Ok(Success { output: AnyOutput::SliceVmRelease(output), proof })
}

async fn begin(step: &'static str, context: &Context, message: &str) -> Result<Instant, TaskFailure> {
    context.host.checkpoint(step, Point::Begin).await?;
    context.phases.enter(step, message).await;
    context.host.checkpoint(step, Point::Journaled).await?;
    Ok(Instant::now())
}

async fn end(
    timings: &mut BTreeMap<String, u64>,
    step: &'static str,
    context: &Context,
    begun: Instant,
) -> Result<(), TaskFailure> {
    timings.insert(format!("{step}_ms"), u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    context.host.checkpoint(step, Point::Done).await?;
    Ok(())
}

/// Makes sure that nobody else can take the slots during cleanup. A slot without a lease is leased here: nothing is known about its
/// contents, so all of it counts as touched. Returns whether any slot was held before.
async fn hold(params: &Params, context: &Context) -> Result<bool, TaskFailure> {
    let leases = context.host.leases().await?;
    let mut known = false;
    for slot in &params.slots {
        let holder = params.holder();
        match leases.iter().find(|lease| lease.slot_id == slot.slot_id) {
            // Only the devices in the lease are cleaned, never others that a task names.
            Some(lease) if lease.spec != slot.spec => {
                let message = format!("{} consists of other devices than this task says; approve it again", slot.slot_id);
                return Err(TaskFailure::failed("slot_differs", message));
            }
            Some(lease) if lease.holder() == holder => known = true,
            Some(lease) if params.take_over && lease.lease_epoch < holder.lease_epoch => known = true,
            Some(lease) => {
                let message = format!("{} is held by {} with number {}", slot.slot_id, lease.allocation_id, lease.lease_epoch);
                return Err(TaskFailure::failed("slot_leased", message));
            }
            None => {
                let lease = Lease {
                    slot_id: slot.slot_id,
                    allocation_id: holder.allocation_id,
                    lease_epoch: holder.lease_epoch,
                    task_id: context.task_id,
                    spec: slot.spec.clone(),
                    vm_name: String::new(),
                    taken_at: Timestamp::now(),
                    boot_id: context.boot_id.clone(),
                    drive: DriveMark::Dirty,
                    guest: GuestMark::Given,
                    power: Power::Off,
                };
                context.host.lease_take(&lease, true).await?;
            }
        }
    }
    Ok(known)
}

struct Stopped {
    was_absent: bool,
    hard: bool,
}

/// Gives the guest time to shut down. Cleanup stops it if it is still running after that.
async fn stop_guest(params: &Params, context: &Context) -> Result<Stopped, TaskFailure> {
    // The guest must not be started again, whatever happens from here on.
    for mut lease in context.host.leases().await?.into_iter().filter(|lease| lease.holder() == params.holder()) {
        if lease.power != Power::Off {
            lease.power = Power::Off;
            context.host.lease_note(&lease).await?;
        }
    }
    let state = context.host.domain_state(params.allocation_id).await?;
    if state != DomainState::Running {
        return Ok(Stopped { was_absent: state == DomainState::Absent, hard: false });
    }
    let hard = shut_down(context, params.allocation_id, params.graceful_timeout_seconds).await?;
    Ok(Stopped { was_absent: false, hard })
}
