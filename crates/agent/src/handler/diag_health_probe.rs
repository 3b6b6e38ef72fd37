//! `diag.health_probe`: reads the state of the host.

use gpuaas_contract::task::diag_health_probe::{Output, Warning};

use super::{Context, TaskFailure, on_host};

pub(super) async fn run(context: &Context) -> Result<Output, TaskFailure> {
    context.phases.enter("probe", "reading the state of the host").await;
    let mut output = on_host(context, |host| host.health_probe()).await?;
    output.drift = context.guests.drift();
    let wrong = output.drift.iter().filter(|drift| !drift.repaired);
    let warnings: Vec<Warning> =
        wrong.map(|drift| Warning { code: drift.code.clone(), message: drift.message.clone() }).collect();
    output.healthy &= warnings.is_empty();
    output.warnings.extend(warnings);
    for warning in &output.warnings {
        context.log.line(format!("{}: {}", warning.code, warning.message)).await;
    }
    Ok(output)
}
