//! Slots, and the approval that creates them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, Reason, SlotListQuery, Topology, TopologyApprove, TopologyProposal};
use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_domain::node::Node;
use gpuaas_domain::placement;
use gpuaas_domain::slot::{Operation, Slot};

use super::page_request;
use super::problem::{JsonBody, Params, Rejected, Segments};
use crate::Control;
use crate::app::{Caller, slots};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<SlotListQuery>,
) -> Result<Json<Page<dto::Slot>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = slots::list(&control, query.node.as_deref(), query.state, &page).await?;
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<SlotId>) -> Result<Json<dto::Slot>, Rejected> {
    let slot = slots::get(&control, id).await?;
    Ok(Json(shown(&control, slot).await?))
}

async fn shown(control: &Control, slot: Slot) -> Result<dto::Slot, ControlError> {
    let node = control.store.node_get(slot.node_id).await?;
    Ok(to_dto(slot, node.as_ref()))
}

pub(super) async fn to_dtos(control: &Control, slots: Vec<Slot>) -> Result<Vec<dto::Slot>, ControlError> {
    let mut nodes: HashMap<NodeId, Option<Node>> = HashMap::new();
    let mut items = Vec::with_capacity(slots.len());
    for slot in slots {
        let node = match nodes.entry(slot.node_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(control.store.node_get(slot.node_id).await?),
        };
        items.push(to_dto(slot, node.as_ref()));
    }
    Ok(items)
}

/// The document of a slot, including what its node reports about the GPU.
pub(super) fn to_dto(slot: Slot, node: Option<&Node>) -> dto::Slot {
    let address = slot.spec.pci_address.as_ref().map(|address| address.as_str());
    let gpus = node.map(|node| node.facts.gpus.as_slice()).unwrap_or_default();
    let gpu = gpus.iter().find(|gpu| address == Some(gpu.pci_address.as_str()));
    dto::Slot {
        gpu: gpu.map(|gpu| dto::Gpu::new(&gpu.name, &gpu.vendor_id, &gpu.device_id)),
        id: slot.id,
        node_id: slot.node_id,
        node_name: node.map(|node| node.name.clone()).unwrap_or_default(),
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
    let found = slots::topology(&control, &name).await?;
    let proposal = found.proposal.map(|(task, found)| TopologyProposal {
        task_id: task.id,
        found_at: task.ended_at.unwrap_or_default(),
        found,
    });
    let slots = found.slots.into_iter().map(|slot| to_dto(slot, Some(&found.node))).collect();
    let host_policy_denies = placement::denied_to_slots(&found.node).iter().map(ToString::to_string).collect();
    Ok(Json(Topology { node_id: found.node.id, proposal, slots, host_policy_denies }))
}

pub(super) async fn approve(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(approve): JsonBody<TopologyApprove>,
) -> Result<Json<Page<dto::Slot>>, Rejected> {
    let slots = slots::approve(&control, &caller, &name, approve).await?;
    Ok(Json(Page { items: to_dtos(&control, slots).await?, next: None }))
}

operations! { SlotId, dto::Slot;
    quarantine => Operation::Quarantine;
    unquarantine => Operation::Unquarantine;
    withdraw => Operation::Withdraw;
}

async fn operate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<SlotId>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
    operation: Operation,
) -> Result<Json<dto::Slot>, Rejected> {
    let slot = slots::operate(&control, &caller, id, operation, &reason).await?;
    Ok(Json(shown(&control, slot).await?))
}
