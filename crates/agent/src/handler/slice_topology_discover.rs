//! `slice.topology_discover`: inspects the host and reports which of its devices could become slots. It changes nothing.

use gpuaas_contract::task::slice_topology_discover::{Output, Params};
use gpuaas_host::topology;

use super::{Context, TaskFailure, on_host};
use crate::policy::Emulation;

pub(super) async fn run(params: &Params, context: &Context) -> Result<Output, TaskFailure> {
    context.phases.enter("inventory", "reading the PCI bus, drives and kernel").await;
    let inventory = on_host(context, |host| host.inventory()).await?;
    let mut inventory = inventory.map_err(|error| TaskFailure::failed("machine_unknown", crate::error_chain::chain(&error)))?;
    let wanted = context.rules.drives_without_gpu.clone();
    inventory.drives_without_gpu = on_host(context, move |host| host.drives_at(&wanted)).await?;
    inventory.emulation = context.rules.emulation != Emulation::Never;
    context.phases.enter("network", "asking Open vSwitch and the packet filter").await;
    let network = tokio::select! {
        biased;
        // Dropping the calls kills the programs that they started.
        () = context.stop.cancelled() => return Err(TaskFailure::stopped()),
        network = context.host.slice_network(&params.ovs_bridge) => network,
    };
    Ok(topology::discover(&inventory, network, params))
}
