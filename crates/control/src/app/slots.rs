//! Slots, and the approval that creates them.

use std::collections::BTreeSet;

use gpuaas_api::dto::{Page, TopologyApprove};
use gpuaas_contract::id::SlotId;
use gpuaas_contract::receipt;
use gpuaas_contract::task::{Output, TaskType, slice_topology_discover};
use gpuaas_domain::machine::{Machine, MachineState, machine_id};
use gpuaas_domain::node::Node;
use gpuaas_domain::slot::{self, Operation, Slot, SlotState};
use gpuaas_domain::task::TaskRecord;
use gpuaas_domain::{Change, Refusal};
use gpuaas_store::SlotFilter;

use super::{Caller, PageRequest, nodes};
use crate::error::ControlError;
use crate::lease_settlement::{check_seal, seal};
use crate::pki::NodeRecord;
use crate::{Control, resources};

/// Lists slots, of one node or in one state if asked for.
pub(crate) async fn list(
    control: &Control,
    node: Option<&str>,
    state: Option<SlotState>,
    page: &PageRequest<SlotId>,
) -> Result<Page<Slot>, ControlError> {
    let filter = SlotFilter { node: nodes::find_id(control, node).await?, state };
    let found = control.store.slot_list(&filter, page.after, page.rows()).await?;
    Ok(page.cut(found, |slot| slot.id.to_string()))
}

/// The slot with this id.
pub(crate) async fn get(control: &Control, id: SlotId) -> Result<Slot, ControlError> {
    let unknown = || Refusal::not_found("slot_unknown", format!("there is no slot {id}"));
    Ok(control.store.slot_get(id).await?.ok_or_else(unknown)?)
}

/// What a node found in itself last, and the slots it has.
pub(crate) struct Topology {
    /// The node.
    pub(crate) node: Node,
    /// Its newest proposal, with the task that made it.
    pub(crate) proposal: Option<(TaskRecord, slice_topology_discover::Output)>,
    /// Its slots.
    pub(crate) slots: Vec<Slot>,
}

/// Shows what a node proposes as slots, and those that were approved.
pub(crate) async fn topology(control: &Control, node: &str) -> Result<Topology, ControlError> {
    let node = nodes::find(control, node).await?;
    let (newest, slots) = tokio::try_join!(control.store.task_newest_proposal(node.id), control.store.slot_of_node(node.id))
        .map_err(ControlError::from)?;
    // What an earlier enrollment of the machine found no longer counts.
    let proposal = match newest.filter(|task| task.node_epoch == node.epoch) {
        None => None,
        Some(task) => {
            let found = found_by(control, &node, &task).await?;
            Some((task, found))
        }
    };
    Ok(Topology { node, proposal, slots })
}

/// What a node's receipt says that it found. It decides which devices become slots, so it is not taken from the database's word: the
/// node's keys must match their signed record, and the receipt must be signed with them.
async fn found_by(control: &Control, node: &Node, task: &TaskRecord) -> Result<slice_topology_discover::Output, ControlError> {
    let forged = |what: &str| {
        tracing::error!(node = %node.id, task = %task.id, what, "a stored receipt is not believed: somebody wrote to the database");
        let message = format!("the stored receipt of {} is not the node's word ({what}); let the node look again", task.id);
        ControlError::from(Refusal::forbidden("receipt_forged", message))
    };
    if !NodeRecord::matches(node, control.cluster_id, &control.keys.root_key()).unwrap_or(false) {
        return Err(forged("the node's keys were changed"));
    }
    let row = control.store.receipt_get(task.id).await?.ok_or_else(|| forged("it is gone"))?;
    let (_, envelope_digests) = control.store.task_with_envelopes(task.id).await?.ok_or_else(|| forged("its task is gone"))?;
    let expect = receipt::Expectation {
        key: &node.receipt_key,
        cluster_id: control.cluster_id,
        node_id: node.id,
        node_epoch: task.node_epoch,
        task_id: task.id,
        task_type: task.task_type,
        envelope_digests: &envelope_digests,
    };
    let verified = receipt::verify(&row.receipt, &expect).map_err(|disbelief| forged(disbelief.code()))?;
    let output = verified.payload().output.as_deref().ok_or_else(|| forged("it has no output"))?;
    match Output::parse(TaskType::SliceTopologyDiscover, output.get()) {
        Ok(Output::SliceTopologyDiscover(found)) => Ok(found),
        Ok(_) | Err(_) => Err(forged("its output is of another kind")),
    }
}

/// Approves what a node proposes: all of it, or some slots by their place.
pub(crate) async fn approve(
    control: &Control,
    caller: &Caller,
    node: &str,
    approve: TopologyApprove,
) -> Result<Vec<Slot>, ControlError> {
    let (node_id, context) = (nodes::find(control, node).await?.id, caller.context());
    let wanted: Option<BTreeSet<u32>> = approve.slots.map(|slots| slots.into_iter().collect());
    let attempt = || async {
        let node = nodes::get(control, node_id).await?;
        let newest = control.store.task_newest_proposal(node_id).await?;
        let Some(task) = newest.filter(|task| task.id == approve.task_id && task.node_epoch == node.epoch) else {
            let message = format!("{} is not the newest look of this node at itself; read the topology again", approve.task_id);
            return Err(Refusal::conflict("proposal_outdated", message).into());
        };
        let found = found_by(control, &node, &task).await?;
        let existing = control.store.slot_of_node(node_id).await?;
        for slot in &existing {
            check_seal(control, slot)?;
        }
        let machine = resources::get::<Machine>(control, machine_id(node_id)).await?;
        if machine.is_some_and(|machine| machine.state != MachineState::Withdrawn) {
            let message = format!(
                "node {} is offered as a whole; withdraw the machine first: a host is sliced or leased as a whole, \
                 never both",
                node.name
            );
            return Err(Refusal::conflict("machine_offered", message).into());
        }
        let proposal = (&task, &found);
        let (slots, decision) =
            slot::approve(&node, proposal, wanted.as_ref(), &existing, SlotId::generate, seal(control), &context)?;
        // The node is written as well, unchanged, as it is when it is offered as a whole: of the two at the same moment, one loses.
        let decision = if decision.is_empty() { decision } else { decision.change(Change::NodeUpdate(Box::new(node))) };
        Ok((slots, decision))
    };
    let slots = caller.transact(control, attempt).await?;
    tracing::info!(node = %node_id, slots = slots.len(), actor = %context.actor, "slots approved");
    Ok(slots)
}

/// Takes a slot out of service, or back in.
pub(crate) async fn operate(
    control: &Control,
    caller: &Caller,
    id: SlotId,
    operation: Operation,
    reason: &str,
) -> Result<Slot, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let slot = get(control, id).await?;
        check_seal(control, &slot)?;
        Ok(((), slot::operate(&slot, operation, reason, seal(control), &context)?))
    };
    caller.transact(control, attempt).await?;
    get(control, id).await
}
