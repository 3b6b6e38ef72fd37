//! `package.list`: queries the host's package manager.

use gpuaas_contract::task::package_list::{Output, Params};
use gpuaas_host::packages::PackagesError;

use super::{Context, TaskFailure};

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    context.phases.enter("query", "asking the package manager").await;
    let listed = tokio::select! {
        biased;
        // Dropping the call kills the package manager's process.
        () = context.stop.cancelled() => return Err(TaskFailure::stopped()),
        listed = context.host.package_list(params) => listed,
    };
    listed.map_err(|error| {
        let code = match error {
            PackagesError::NoManager => "package_manager_missing",
            PackagesError::Exec(_) => "package_manager_failed",
            PackagesError::Malformed { .. } => "package_manager_output",
        };
        TaskFailure::failed(code, crate::error_chain::chain(&error))
    })
}
