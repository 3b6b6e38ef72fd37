//! `diag.ping`: leaves one line in the host's ping log. The journal guarantees that it is exactly one line per task.

use std::time::Duration;

use gpuaas_contract::task::diag_ping::{Output, Params};
use gpuaas_contract::time::Timestamp;

use super::{Context, TaskFailure, on_host};

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    if params.hold_ms > 0 {
        context.phases.enter("hold", &format!("waiting {} ms", params.hold_ms)).await;
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return Err(TaskFailure::stopped()),
            () = tokio::time::sleep(Duration::from_millis(params.hold_ms.into())) => {}
        }
    }
    write_lines(params, context).await?;
    if context.stop.is_cancelled() {
        return Err(TaskFailure::stopped());
    }
    leave_mark(params, context, false).await
}

/// After a restart of the agent: the line is already in the log, or it is written now if the deadline has not passed.
pub(super) async fn recover(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    let task_id = context.task_id;
    let done = on_host(context, move |host| host.ping_done(task_id)).await?;
    let done = done.map_err(|error| TaskFailure::failed("host_error", crate::error_chain::chain(&error)))?;
    if done {
        return Ok(Output { message: params.message.clone(), host_time: Timestamp::now(), recovered: true });
    }
    if !context.still_allowed {
        return Err(TaskFailure::interrupted("policy_denied", "the host policy does not allow this task any more"));
    }
    if Timestamp::now() > context.deadline {
        return Err(TaskFailure::interrupted(
            "deadline_exceeded",
            "the agent came back after the task's deadline; nothing was done",
        ));
    }
    if context.stop.is_cancelled() {
        return Err(TaskFailure::stopped());
    }
    leave_mark(params, context, true).await
}

async fn leave_mark(params: &Params, context: &Context, recovered: bool) -> Result<Output, TaskFailure> {
    context.phases.enter("effect", "leaving one line in the ping log").await;
    let host_time = Timestamp::now();
    let (task_id, message) = (context.task_id, params.message.clone());
    if gpuaas_runtime::broken("agent.effect") {
        return Ok(Output { message, host_time, recovered });
    }
    let left = on_host(context, move |host| host.ping(task_id, host_time, &message)).await?;
    left.map_err(|error| TaskFailure::failed("host_error", crate::error_chain::chain(&error)))?;
    gpuaas_failpoint::hit("agent.effect_done");
    Ok(Output { message: params.message.clone(), host_time, recovered })
}

async fn write_lines(params: &Params, context: &Context) -> Result<(), TaskFailure> {
    for number in 1..=params.log_lines {
        if context.stop.is_cancelled() {
            return Err(TaskFailure::stopped());
        }
        context.log.line(format!("ping line {number} of {}", params.log_lines)).await;
    }
    Ok(())
}
