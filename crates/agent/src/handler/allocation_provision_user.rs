//! `allocation.provision_user`: creates a system user for the tenant who leases the whole host.
//!
//! Every step is idempotent: after a restart of the agent the task resumes by running all of them, and each step finds what it did before.
//! If the task fails, the user that it created is removed in the same way as on release (`tenant.rs`). A user that an earlier task of the
//! allocation created stays: in that case only the SSH keys are being replaced, and the user has either the old or the new ones.

use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::allocation_provision_user::{Output, Params};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::HostError;
use gpuaas_host::users::{MachineLease, NewUser, SystemUser, Traces};
use tokio_util::sync::CancellationToken;

use super::{Context, TaskFailure};
use crate::tenant::{Departure, NOT_GONE, Steps, check_name, told};

/// How often one task is started before the agent gives up: a crash that repeats is not a coincidence.
const MAX_ATTEMPTS: u32 = 3;

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let _machine = context.guests.claim_machine().await;
    match make(params, context).await {
        Ok(output) => Ok(output),
        Err(failure) => Err(undo(params, context, failure).await),
    }
}

/// After a restart of the agent: resumes the task if it is still allowed, within its deadline and not crash-looping. Undoes it otherwise.
pub(super) async fn recover(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let reason = if !context.still_allowed {
        Some(("policy_denied", "the host policy does not allow this task any more"))
    } else if Timestamp::now() > context.deadline {
        Some(("deadline_exceeded", "the agent came back after the task's deadline"))
    } else if context.attempt > MAX_ATTEMPTS {
        Some(("agent_restarted", "the agent was restarted again and again while the task ran"))
    } else {
        None
    };
    let Some((code, message)) = reason else { return run(params, context).await };
    let _machine = context.guests.claim_machine().await;
    Err(undo(params, context, TaskFailure::interrupted(code, message)).await)
}

async fn make(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let host = &context.host;
    let steps = Steps { host, phases: &context.phases, stop: &context.stop };
    let lease = steps.run("lease", "taking the whole machine", hold(params, context)).await?;
    let number = number(&steps, lease);
    let lease = steps.run("number", "choosing a number that nothing on this host belongs to", number).await?;
    let Some(uid) = lease.uid else {
        return Err(TaskFailure::failed("lease_lost", "the lease of the machine has lost the user's number".to_owned()));
    };
    let wanted = NewUser { name: params.username.clone(), allocation_id: params.allocation_id, uid };
    let user: SystemUser = steps.run("account", "making the user", host.user_create(&wanted)).await?;
    let keys = steps.run("keys", "writing the keys", host.user_keys(&user, &params.ssh_public_keys)).await?;
    let sudo = host.user_sudo(&params.username, params.sudo);
    steps.run("sudo", "saying whether the user may become root", sudo).await?;
    let created = lease.task_id == context.task_id && !lease.adopted;
    Ok(Output { username: params.username.clone(), uid, home: user.home, keys, created })
}

/// Takes the machine lease for the user, if the name is free or the existing user belongs to this allocation.
async fn hold(params: &Params, context: &Context) -> Result<MachineLease, HostError> {
    let (host, name) = (&context.host, &params.username);
    let user = host.user_find(name).await?;
    let present = host.machine_lease().await?;
    let held = present.is_some_and(|lease| lease.holder() == params.holder() && lease.username == *name);
    match &user {
        Some(user) if user.allocation() == Some(params.allocation_id) => {}
        Some(user) => {
            let message = format!("there is a user {name} already, with number {}; choose another name", user.uid);
            return Err(HostError::new("user_exists", message));
        }
        // Any traces of the name were left under this lease.
        None if held => {}
        None => {
            let traces = Traces { name: name.clone(), uid: None };
            let left = host.user_leftovers(&traces, &|_, _| {}, &context.stop).await?;
            if !left.is_empty() {
                let message = format!("this host has something of that name already ({}); choose another name", told(&left));
                return Err(HostError::new("user_exists", message));
            }
        }
    }
    let lease = MachineLease {
        allocation_id: params.allocation_id,
        lease_epoch: params.lease_epoch,
        task_id: context.task_id,
        username: name.clone(),
        user_of: params.allocation_id,
        uid: user.as_ref().map(|user| user.uid),
        adopted: user.is_some(),
        leaving: false,
        taken_at: Timestamp::now(),
    };
    host.machine_lease_take(&lease, false).await?;
    let lost = || HostError::new("lease_lost", "the lease of the machine is gone, although it was just taken");
    let lease = host.machine_lease().await?.ok_or_else(lost)?;
    check_name(&lease, name)?;
    Ok(lease)
}

/// Chooses the uid once, and records it in the lease before anything is created with it.
async fn number(steps: &Steps<'_>, lease: MachineLease) -> Result<MachineLease, HostError> {
    if lease.uid.is_some() {
        return Ok(lease);
    }
    let last = steps.host.machine_fence().await?.and_then(|fence| fence.last_uid);
    let uid = steps.host.user_number(last, &|seen, _| steps.tell("number", seen), steps.stop).await?;
    let lease = MachineLease { uid: Some(uid), ..lease };
    steps.host.machine_lease_note(&lease).await?;
    Ok(lease)
}

/// Removes the user that this task created, and adds whatever could not be removed to the reason of the failure.
async fn undo(params: &Params, context: &Context, why: TaskFailure) -> TaskFailure {
    let host = &context.host;
    let not_undone = |left: String| {
        let message = format!("{} ({}); not undone: {left}", why.message, why.code);
        let outcome = if why.outcome == Outcome::Interrupted { Outcome::Interrupted } else { Outcome::Failed };
        TaskFailure { outcome, ..TaskFailure::failed(NOT_GONE, message) }
    };
    let lease = match host.machine_lease().await {
        Ok(Some(lease)) => lease,
        Ok(None) => return why,
        // The lease may be this task's.
        Err(error) => return not_undone(error.message),
    };
    let made_here = lease.holder() == params.holder() && lease.task_id == context.task_id && !lease.adopted;
    if !made_here {
        return why;
    }
    tracing::warn!(code = why.code, message = why.message, "making a user did not succeed; undoing it");
    // A fresh token: stopping a task means undoing it, so the undo itself must not stop.
    let departure = Departure { host, phases: &context.phases, stop: &CancellationToken::new(), lease };
    match departure.run().await {
        Ok(_) => why,
        Err(failure) => not_undone(failure.message),
    }
}
