//! `allocation.deprovision_user`: removes the system user of the tenant who leased the whole host. Succeeds only if nothing of that user
//! is left on the host; a user that is already gone is released as well.

use gpuaas_contract::task::allocation_deprovision_user::{Output, Params};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::HostError;
use gpuaas_host::users::{MachineLease, SystemUser};

use super::{Context, TaskFailure};
use crate::tenant::{Departure, Steps, check_identity, check_name};

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let _machine = context.guests.claim_machine().await;
    let steps = Steps { host: &context.host, phases: &context.phases, stop: &context.stop };
    let (lease, existed) = steps.run("lease", "holding the whole machine", hold(params, context)).await?;
    let departure = Departure { host: &context.host, phases: &context.phases, stop: &context.stop, lease };
    let gone = departure.run().await?;
    Ok(Output {
        username: params.username.clone(),
        existed,
        sessions_ended: gone.sessions,
        processes_ended: gone.processes,
        files_removed: gone.files,
        home_removed: gone.home,
    })
}

/// Takes or keeps the machine lease, so that nobody else gets the machine during cleanup. Returns the lease and whether there is anything
/// to remove.
async fn hold(params: &Params, context: &Context) -> Result<(MachineLease, bool), HostError> {
    let (host, holder) = (&context.host, params.holder());
    let user = host.user_find(&params.username).await?;
    let mut wanted = MachineLease {
        allocation_id: params.allocation_id,
        lease_epoch: params.lease_epoch,
        task_id: context.task_id,
        username: params.username.clone(),
        user_of: params.allocation_id,
        uid: None,
        adopted: false,
        leaving: true,
        taken_at: Timestamp::now(),
    };
    let Some(present) = host.machine_lease().await? else {
        remember(params, context, user.as_ref(), &mut wanted).await?;
        host.machine_lease_take(&wanted, true).await?;
        return Ok((wanted, user.is_some()));
    };
    let earlier = params.take_over && present.lease_epoch < holder.lease_epoch;
    if present.holder() != holder && !earlier {
        let (whose, number) = (present.allocation_id, present.lease_epoch);
        let message = format!("the whole machine is leased to {whose} with number {number}, for the user {}", present.username);
        return Err(HostError::new("machine_leased", message));
    }
    check_name(&present, &params.username)?;
    user.as_ref().map_or(Ok(()), |user| check_identity(user, present.user_of))?;
    let existed = user.is_some() || present.uid.is_some();
    let lease = if earlier { host.machine_lease_take_over(&wanted).await? } else { present };
    Ok((lease, existed))
}

/// Fills in the user's allocation and uid when there is no lease: from the user itself, or from the fence if the user is gone.
async fn remember(
    params: &Params,
    context: &Context,
    user: Option<&SystemUser>,
    wanted: &mut MachineLease,
) -> Result<(), HostError> {
    if let Some(user) = user {
        if params.take_over
            && let Some(allocation) = user.allocation()
        {
            wanted.user_of = allocation;
        }
        check_identity(user, wanted.user_of)?;
        wanted.uid = Some(user.uid);
        return Ok(());
    }
    let fence = context.host.machine_fence().await?;
    if let Some(fence) = fence.filter(|fence| fence.username == params.username) {
        wanted.uid = fence.uid;
        wanted.user_of = fence.user_of;
    }
    Ok(())
}
