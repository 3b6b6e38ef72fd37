//! `diag.health_probe`: reads the state of the host.

use gpuaas_contract::task::diag_health_probe::Output;

use super::{Context, Failure, on_host};

pub(super) async fn run(context: &Context) -> Result<Output, Failure> {
    context.phases.enter("probe", "reading the state of the host").await;
    let output = on_host(context, |host| host.health_probe()).await?;
    for warning in &output.warnings {
        context.log.line(format!("{}: {}", warning.code, warning.message)).await;
    }
    Ok(output)
}
