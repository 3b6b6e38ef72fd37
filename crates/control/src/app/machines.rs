//! Whole hosts that are leased as one.

use gpuaas_api::dto::{MachineOffer, Page};
use gpuaas_contract::id::NodeId;
use gpuaas_domain::Refusal;
use gpuaas_domain::machine::{self, Machine, MachineState, machine_id};
use gpuaas_store::ResourceFilter;

use super::{Caller, PageRequest, nodes};
use crate::error::ControlError;
use crate::{Control, resources};

/// Lists machines, in one state if asked for.
pub(crate) async fn list(
    control: &Control,
    state: Option<MachineState>,
    page: &PageRequest<NodeId>,
) -> Result<Page<Machine>, ControlError> {
    let mut found: Vec<Machine> = resources::all(control, &ResourceFilter::default()).await?;
    found.retain(|machine| state.is_none_or(|state| machine.state == state));
    found.retain(|machine| page.after.is_none_or(|after| machine.node_id > after));
    found.sort_by_key(|machine| machine.node_id);
    Ok(page.cut(found, |machine| machine.node_id.to_string()))
}

/// Offers a node as a whole.
pub(crate) async fn offer(
    control: &Control,
    caller: &Caller,
    node: &str,
    wanted: &MachineOffer,
) -> Result<Machine, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let node = nodes::find(control, node).await?;
        let slots = control.store.slot_of_node(node.id).await?;
        let known = resources::get::<Machine>(control, machine_id(node.id)).await?;
        Ok(machine::offer(&node, &slots, known.as_ref(), wanted.ssh_address.clone(), &context)?)
    };
    caller.transact(control, attempt).await
}

/// No longer offers a node as a whole.
pub(crate) async fn withdraw(control: &Control, caller: &Caller, node: &str, reason: &str) -> Result<Machine, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let node = nodes::find(control, node).await?;
        let message = format!("node {} is not offered as a whole", node.name);
        let known = resources::get::<Machine>(control, machine_id(node.id)).await?;
        let known = known.ok_or_else(|| Refusal::not_found("machine_unknown", message))?;
        Ok(machine::withdraw(&known, reason, &context)?)
    };
    caller.transact(control, attempt).await
}
