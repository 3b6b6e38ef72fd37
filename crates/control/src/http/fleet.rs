//! What operators see of the fleet as a whole: capacity, whole machines, maintenance, and what draining a node would mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, MachineListQuery, MachineOffer, MaintenanceCreate, MaintenanceListQuery, Page, Reason};
use gpuaas_api::routes;
use gpuaas_contract::id::{MaintenanceId, NodeId};
use gpuaas_contract::state::MaintenanceState;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::allocation::{Allocation, AllocationState};
use gpuaas_domain::catalog::Sku;
use gpuaas_domain::machine::{self, Machine, machine_id};
use gpuaas_domain::maintenance::{self, Window};
use gpuaas_domain::placement::CapacityRow;
use gpuaas_domain::slot::SlotState;
use gpuaas_domain::tenancy::Organization;
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::catalog::{available, product_shown};
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, node_name, page, page_limit, parse_id};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn row_shown(row: CapacityRow) -> dto::CapacityRow {
    dto::CapacityRow {
        model: row.model.to_string(),
        name: row.name.to_string(),
        nodes: count(row.nodes),
        delivered: count(row.delivered),
        healthy: count(row.healthy),
        unhealthy: count(row.unhealthy),
        allocated: count(row.allocated),
        free: count(row.free),
        largest_free_on_one_node: count(row.largest_free_on_one_node),
    }
}

pub(super) async fn capacity(State(control): Shared) -> Result<Json<dto::Capacity>, Rejected> {
    let filter = ResourceFilter { states: vec!["active"], ..ResourceFilter::default() };
    let mut skus = Vec::new();
    for sku in resources::all::<Sku>(&control, &filter).await? {
        let available = available(&control, &sku).await?;
        let product = product_shown(sku.product);
        skus.push(dto::SkuCapacity { sku_id: sku.id, sku: sku.name, product, gpu_model: sku.gpu_model, available });
    }
    let (models, nodes) = control.fleet.ask(&control, |fleet| (fleet.capacity(), fleet.capacity_by_node())).await?;
    let of_node = |node: gpuaas_domain::placement::NodeCapacity| dto::NodeCapacity {
        node_id: node.node_id,
        node_name: node.name,
        rows: node.rows.into_iter().map(row_shown).collect(),
    };
    Ok(Json(dto::Capacity {
        skus,
        models: models.into_iter().map(row_shown).collect(),
        nodes: nodes.into_iter().map(of_node).collect(),
    }))
}

/// The allocations that are on a node, or of which something is left there.
pub(super) async fn on_node(control: &Control, node: NodeId) -> Result<Vec<Allocation>, ControlError> {
    let states = AllocationState::ALL.into_iter().filter(|state| !state.is_terminal()).map(AllocationState::as_str).collect();
    let filter = ResourceFilter { owner: Some(node.to_string()), states, ..ResourceFilter::default() };
    resources::all(control, &filter).await
}

pub(super) async fn drain_preview(
    State(control): Shared,
    Segments(name): Segments<String>,
) -> Result<Json<dto::DrainPreview>, Rejected> {
    let node = node_name::find(&control, &name).await?;
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut allocations = Vec::new();
    for allocation in on_node(&control, node.id).await? {
        let key = allocation.organization_id.to_string();
        if !names.contains_key(&key) {
            let organization = resources::get::<Organization>(&control, allocation.organization_id).await?;
            names.insert(key.clone(), organization.map(|organization| organization.name).unwrap_or_default());
        }
        let why = match allocation.state {
            AllocationState::Active | AllocationState::Stopped if allocation.expires_at.is_some() => {
                "it stays until its lease ends or it is released"
            }
            AllocationState::Active | AllocationState::Stopped => "it stays until it is released: its lease has no end",
            AllocationState::Provisioning => "it is being made and will be finished",
            AllocationState::Releasing => "it is being given back",
            AllocationState::ReleaseBlocked => "what is left of it must be cleaned up",
            AllocationState::Requested | AllocationState::Placing | AllocationState::Released | AllocationState::Failed => {
                "it has nothing on the node now"
            }
        };
        allocations.push(dto::DrainAllocation {
            id: allocation.id,
            name: allocation.name.to_string(),
            project_id: allocation.project_id,
            organization: names.get(&key).cloned().unwrap_or_default(),
            state: allocation.state.into(),
            expires_at: allocation.expires_at,
            why: why.to_owned(),
        });
    }
    let slots = control.store.slot_of_node(node.id).await?;
    let free = slots.iter().filter(|slot| slot.state == SlotState::Available).count();
    let note = match (allocations.len(), allocations.iter().filter_map(|of| of.expires_at).max()) {
        (0, _) => "nobody is affected; the node is empty as soon as it is drained".to_owned(),
        (number, Some(last)) if allocations.iter().all(|of| of.expires_at.is_some()) => {
            format!("{number} allocations stay; the last lease ends {}", last.rfc3339())
        }
        (number, _) => format!("{number} allocations stay; some have no end: announce maintenance so that their tenants know"),
    };
    Ok(Json(dto::DrainPreview { node_id: node.id, node_name: node.name, allocations, slots_free: count(free), note }))
}

pub(super) async fn machines(
    State(control): Shared,
    Params(query): Params<MachineListQuery>,
) -> Result<Json<Page<dto::Machine>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let mut found: Vec<Machine> = resources::all(&control, &ResourceFilter::default()).await?;
    found.retain(|machine| query.state.is_none_or(|state| machine.state == state));
    found.retain(|machine| query.after.as_deref().is_none_or(|after| machine.node_id.to_string().as_str() > after));
    found.sort_by_key(|machine| machine.node_id);
    let found = page(found, limit, |machine| machine.node_id.to_string());
    let mut items = Vec::with_capacity(found.items.len());
    for machine in found.items {
        items.push(machine_shown(&control, machine).await?);
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn offer(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(wanted): JsonBody<MachineOffer>,
) -> Result<Json<dto::Machine>, Rejected> {
    let context = caller.context();
    let machine = transact(&control, || async {
        let node = node_name::find(&control, &name).await?;
        let slots = control.store.slot_of_node(node.id).await?;
        let known = resources::get::<Machine>(&control, machine_id(node.id)).await?;
        Ok(machine::offer(&node, &slots, known.as_ref(), wanted.ssh_address.clone(), &context)?)
    })
    .await?;
    Ok(Json(machine_shown(&control, machine).await?))
}

pub(super) async fn withdraw(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Machine>, Rejected> {
    let context = caller.context();
    let machine = transact(&control, || async {
        let node = node_name::find(&control, &name).await?;
        let message = format!("node {} is not offered as a whole", node.name);
        let known = resources::get::<Machine>(&control, machine_id(node.id)).await?;
        let known = known.ok_or_else(|| Refusal::not_found("machine_unknown", message))?;
        Ok(machine::withdraw(&known, &reason, &context)?)
    })
    .await?;
    Ok(Json(machine_shown(&control, machine).await?))
}

async fn machine_shown(control: &Control, machine: Machine) -> Result<dto::Machine, ControlError> {
    let node = control.store.node_get(machine.node_id).await?;
    Ok(dto::Machine {
        node_id: machine.node_id,
        node_name: node.map(|node| node.name).unwrap_or_default(),
        state: machine.state.into(),
        reason: machine.reason,
        ssh_address: machine.ssh_address,
        allocation_id: machine.allocation_id,
        lease_epoch: machine.lease_epoch,
        lease_task: machine.lease_task,
        offered_by: machine.offered_by,
        offered_at: machine.offered_at,
    })
}

pub(super) async fn windows(
    State(control): Shared,
    Params(query): Params<MaintenanceListQuery>,
) -> Result<Json<Page<dto::MaintenanceWindow>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<MaintenanceId>(after)?;
    }
    let node = match &query.node {
        Some(name) => Some(node_name::find(&control, name).await?.id),
        None => None,
    };
    let now = Timestamp::now();
    let mut found: Vec<Window> = resources::all(&control, &ResourceFilter::default()).await?;
    found.retain(|window| query.all.unwrap_or(false) || window.counts(now));
    found.retain(|window| node.is_none_or(|node| window.nodes.contains(&node)));
    found.retain(|window| query.after.as_deref().is_none_or(|after| window.id.to_string().as_str() > after));
    let found = page(found, limit, |window| window.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(window_shown).collect(), next: found.next }))
}

pub(super) async fn announce(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<MaintenanceCreate>,
) -> Result<(StatusCode, Location, Json<dto::MaintenanceWindow>), Rejected> {
    let context = caller.context();
    let mut nodes = Vec::with_capacity(wanted.nodes.len().min(maintenance::MAX_NODES));
    for name in wanted.nodes.iter().take(maintenance::MAX_NODES + 1) {
        let node = node_name::find(&control, name).await?.id;
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    let window = Window {
        id: MaintenanceId::generate(),
        version: 0,
        summary: wanted.summary,
        nodes,
        starts_at: wanted.starts_at,
        ends_at: wanted.ends_at,
        created_by: caller.actor.to_string(),
        created_at: context.now,
        cancelled_at: None,
    };
    let made = transact(&control, || async {
        let affected = affected(&control, &window).await?;
        Ok(maintenance::announce(window.clone(), &affected, &context)?)
    })
    .await?;
    let location = Location::of(routes::MAINTENANCE_WINDOW, [&made.id]);
    Ok((StatusCode::CREATED, location, Json(window_shown(made))))
}

async fn affected(control: &Control, window: &Window) -> Result<Vec<Allocation>, ControlError> {
    let mut affected = Vec::new();
    for node in &window.nodes {
        affected.extend(on_node(control, *node).await?);
    }
    Ok(affected)
}

pub(super) async fn cancel(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::MaintenanceWindow>, Rejected> {
    let id: MaintenanceId = parse_id(&id)?;
    let context = caller.context();
    let unknown = || Refusal::not_found("maintenance_unknown", format!("there is no maintenance window {id}"));
    let gone = transact(&control, || async {
        let window = resources::get::<Window>(&control, id).await?.ok_or_else(unknown)?;
        let affected = affected(&control, &window).await?;
        Ok(maintenance::cancel(&window, &affected, &context))
    })
    .await?;
    Ok(Json(window_shown(gone)))
}

fn window_shown(window: Window) -> dto::MaintenanceWindow {
    let now = Timestamp::now();
    let state = match (window.cancelled_at, window.starts_at <= now, window.ends_at <= now) {
        (Some(_), _, _) => MaintenanceState::Cancelled,
        (None, _, true) => MaintenanceState::Ended,
        (None, true, false) => MaintenanceState::Running,
        (None, false, false) => MaintenanceState::Announced,
    };
    dto::MaintenanceWindow {
        id: window.id,
        summary: window.summary,
        nodes: window.nodes,
        state: state.into(),
        starts_at: window.starts_at,
        ends_at: window.ends_at,
        created_by: window.created_by,
        created_at: window.created_at,
        cancelled_at: window.cancelled_at,
    }
}
