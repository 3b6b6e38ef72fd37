//! Slots, and the approval that makes them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, Reason, SlotListQuery, Topology, TopologyApprove, TopologyProposal};
use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_contract::receipt;
use gpuaas_contract::task::{Output, TaskType, slice_topology_discover};
use gpuaas_domain::machine::{Machine, MachineState, machine_id};
use gpuaas_domain::node::Node;
use gpuaas_domain::slot::{self, Operation, Slot};
use gpuaas_domain::task::TaskRecord;
use gpuaas_domain::{Change, Refusal};
use gpuaas_store::SlotFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{node_name, page, page_limit, parse_id, parse_opt};
use crate::error::ControlError;
use crate::lease_settlement::{check_seal, seal};
use crate::pki::NodeRecord;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<SlotListQuery>,
) -> Result<Json<Page<dto::Slot>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let node = match &query.node {
        Some(name) => Some(node_name::find(&control, name).await?.id),
        None => None,
    };
    let filter = SlotFilter { node, state: query.state };
    let found = control.store.slot_list(&filter, parse_opt(query.after.as_deref())?, limit.saturating_add(1)).await?;
    let found = page(found, limit, |slot| slot.id.to_string());
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<dto::Slot>, Rejected> {
    one(&control, parse_id(&id)?).await
}

async fn one(control: &Control, id: SlotId) -> Result<Json<dto::Slot>, Rejected> {
    let slot = get(control, id).await?;
    let name = control.store.node_get(slot.node_id).await?.map(|node| node.name).unwrap_or_default();
    Ok(Json(to_dto(slot, name)))
}

pub(super) async fn get(control: &Control, id: SlotId) -> Result<Slot, ControlError> {
    let unknown = || Refusal::not_found("slot_unknown", format!("there is no slot {id}"));
    Ok(control.store.slot_get(id).await?.ok_or_else(unknown)?)
}

pub(super) async fn to_dtos(control: &Control, slots: Vec<Slot>) -> Result<Vec<dto::Slot>, ControlError> {
    let mut names: HashMap<NodeId, String> = HashMap::new();
    let mut items = Vec::with_capacity(slots.len());
    for slot in slots {
        let name = match names.get(&slot.node_id) {
            Some(name) => name.clone(),
            None => {
                let name = control.store.node_get(slot.node_id).await?.map(|node| node.name).unwrap_or_default();
                names.insert(slot.node_id, name.clone());
                name
            }
        };
        items.push(to_dto(slot, name));
    }
    Ok(items)
}

pub(super) fn to_dto(slot: Slot, node_name: String) -> dto::Slot {
    dto::Slot {
        id: slot.id,
        node_id: slot.node_id,
        node_name,
        spec: slot.spec,
        state: slot.state.into(),
        reason: slot.reason,
        quarantine: slot.quarantine,
        allocation_id: slot.allocation_id,
        lease_epoch: slot.lease_epoch,
        lease_task: slot.lease_task,
        proposed_by: slot.proposed_by,
        approved_by: slot.approved_by,
        approved_at: slot.approved_at,
        created_at: slot.created_at,
    }
}

pub(super) async fn topology(State(control): Shared, Segments(name): Segments<String>) -> Result<Json<Topology>, Rejected> {
    let node = node_name::find(&control, &name).await?;
    let (newest, slots) = tokio::try_join!(control.store.task_newest_proposal(node.id), control.store.slot_of_node(node.id))
        .map_err(ControlError::from)?;
    // What an earlier enrollment of the machine found no longer counts.
    let proposal = match newest.filter(|task| task.node_epoch == node.epoch) {
        None => None,
        Some(task) => Some(TopologyProposal {
            task_id: task.id,
            found_at: task.ended_at.unwrap_or_default(),
            found: found_by(&control, &node, &task).await?,
        }),
    };
    let slots = slots.into_iter().map(|slot| to_dto(slot, node.name.clone())).collect();
    Ok(Json(Topology { node_id: node.id, proposal, slots }))
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

pub(super) async fn approve(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(approve): JsonBody<TopologyApprove>,
) -> Result<Json<Page<dto::Slot>>, Rejected> {
    let node_id = node_name::find(&control, &name).await?.id;
    let context = caller.context();
    let wanted: Option<BTreeSet<u32>> = approve.slots.map(|slots| slots.into_iter().collect());
    let slots = transact(&control, || async {
        let node = node_name::find(&control, &node_id.to_string()).await?;
        let newest = control.store.task_newest_proposal(node_id).await?;
        let Some(task) = newest.filter(|task| task.id == approve.task_id && task.node_epoch == node.epoch) else {
            let message = format!("{} is not the newest look of this node at itself; read the topology again", approve.task_id);
            return Err(Refusal::conflict("proposal_outdated", message).into());
        };
        let found = found_by(&control, &node, &task).await?;
        let existing = control.store.slot_of_node(node_id).await?;
        for slot in &existing {
            check_seal(&control, slot)?;
        }
        let machine = resources::get::<Machine>(&control, machine_id(node_id)).await?;
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
            slot::approve(&node, proposal, wanted.as_ref(), &existing, SlotId::generate, seal(&control), &context)?;
        // The node is written as well, unchanged, as it is when it is offered as a whole: of the two at the same moment, one loses.
        let decision = if decision.is_empty() { decision } else { decision.change(Change::NodeUpdate(Box::new(node))) };
        Ok((slots, decision))
    })
    .await?;
    tracing::info!(node = %node_id, slots = slots.len(), actor = %context.actor, "slots approved");
    Ok(Json(Page { items: to_dtos(&control, slots).await?, next: None }))
}

operations! { dto::Slot;
    quarantine => Operation::Quarantine;
    unquarantine => Operation::Unquarantine;
    withdraw => Operation::Withdraw;
}

async fn operate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
    operation: Operation,
) -> Result<Json<dto::Slot>, Rejected> {
    let id = parse_id(&id)?;
    let context = caller.context();
    transact(&control, || async {
        let slot = get(&control, id).await?;
        check_seal(&control, &slot)?;
        Ok(((), slot::operate(&slot, operation, &reason, seal(&control), &context)?))
    })
    .await?;
    one(&control, id).await
}
