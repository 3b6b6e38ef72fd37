//! The operators' view of the whole fleet: capacity, machines, maintenance, and what draining a node would affect.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, MachineListQuery, MachineOffer, MaintenanceCreate, MaintenanceListQuery, Page, Reason};
use gpuaas_api::routes;
use gpuaas_contract::id::MaintenanceId;
use gpuaas_contract::state::MaintenanceState;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{Allocation, AllocationState};
use gpuaas_domain::machine::Machine;
use gpuaas_domain::maintenance::Window;
use gpuaas_domain::placement::{CapacityRow, NodeCapacity, SlotModel};

use super::catalog::{gpu_of, product_to_dto};
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::{Caller, catalog, machines, maintenance, nodes};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn row_to_dto(row: CapacityRow) -> dto::CapacityRow {
    let gpu = match &row.model {
        SlotModel::Gpu(model) => {
            // Models are counted by PCI id, or by name if the node reports no PCI id.
            let (vendor, device) = model.split_once(':').unwrap_or_default();
            Some(dto::Gpu::new(&row.name, vendor, device))
        }
        SlotModel::UnknownGpu | SlotModel::NoGpu => None,
    };
    dto::CapacityRow {
        gpu,
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
    let offers = catalog::offers(&control).await?;
    let gpus = catalog::gpus(&control, offers.iter().filter_map(|(sku, _)| sku.gpu_model.as_deref()).collect()).await?;
    let skus = offers.into_iter().map(|(sku, available)| {
        let (product, gpu) = (product_to_dto(sku.product), gpu_of(&gpus, sku.gpu_model.as_deref()));
        dto::SkuCapacity { sku_id: sku.id, sku: sku.name, product, gpu_model: sku.gpu_model, gpu, available }
    });
    let (models, by_node) = nodes::capacity(&control).await?;
    let of_node = |node: NodeCapacity| dto::NodeCapacity {
        node_id: node.node_id,
        node_name: node.name,
        rows: node.rows.into_iter().map(row_to_dto).collect(),
        host_policy_denies: node.denied_tasks.iter().map(ToString::to_string).collect(),
    };
    Ok(Json(dto::Capacity {
        skus: skus.collect(),
        models: models.into_iter().map(row_to_dto).collect(),
        nodes: by_node.into_iter().map(of_node).collect(),
    }))
}

pub(super) async fn drain_preview(
    State(control): Shared,
    Segments(name): Segments<String>,
) -> Result<Json<dto::DrainPreview>, Rejected> {
    let found = nodes::drain_preview(&control, &name).await?;
    let allocations: Vec<_> = found.allocations.into_iter().map(drain_allocation_to_dto).collect();
    let note = match (allocations.len(), allocations.iter().filter_map(|of| of.expires_at).max()) {
        (0, _) => "nobody is affected; the node is empty as soon as it is drained".to_owned(),
        (number, Some(last)) if allocations.iter().all(|of| of.expires_at.is_some()) => {
            format!("{number} allocations stay; the last lease ends {}", last.rfc3339())
        }
        (number, _) => format!("{number} allocations stay; some have no end: announce maintenance so that their tenants know"),
    };
    let (node_id, node_name) = (found.node.id, found.node.name);
    Ok(Json(dto::DrainPreview { node_id, node_name, allocations, slots_free: count(found.slots_free), note }))
}

fn drain_allocation_to_dto((allocation, organization): (Allocation, String)) -> dto::DrainAllocation {
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
    dto::DrainAllocation {
        id: allocation.id,
        name: allocation.name.to_string(),
        project_id: allocation.project_id,
        organization,
        state: allocation.state.into(),
        expires_at: allocation.expires_at,
        why: why.to_owned(),
    }
}

pub(super) async fn machines(
    State(control): Shared,
    Params(query): Params<MachineListQuery>,
) -> Result<Json<Page<dto::Machine>>, Rejected> {
    let found = machines::list(&control, query.state, &page_request(query.after.as_deref(), query.limit)?).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for machine in found.items {
        items.push(machine_to_dto(&control, machine).await?);
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn offer(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(wanted): JsonBody<MachineOffer>,
) -> Result<Json<dto::Machine>, Rejected> {
    let machine = machines::offer(&control, &caller, &name, &wanted).await?;
    Ok(Json(machine_to_dto(&control, machine).await?))
}

pub(super) async fn withdraw(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Machine>, Rejected> {
    let machine = machines::withdraw(&control, &caller, &name, &reason).await?;
    Ok(Json(machine_to_dto(&control, machine).await?))
}

async fn machine_to_dto(control: &Control, machine: Machine) -> Result<dto::Machine, ControlError> {
    Ok(dto::Machine {
        node_id: machine.node_id,
        node_name: nodes::name_of(control, machine.node_id).await?,
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
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = maintenance::list(&control, query.node.as_deref(), query.all.unwrap_or(false), &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(window_to_dto).collect(), next: found.next }))
}

pub(super) async fn announce(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<MaintenanceCreate>,
) -> Result<(StatusCode, Location, Json<dto::MaintenanceWindow>), Rejected> {
    let made = maintenance::announce(&control, &caller, wanted).await?;
    let location = Location::of(routes::MAINTENANCE_WINDOW, [&made.id]);
    Ok((StatusCode::CREATED, location, Json(window_to_dto(made))))
}

pub(super) async fn cancel(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<MaintenanceId>,
) -> Result<Json<dto::MaintenanceWindow>, Rejected> {
    Ok(Json(window_to_dto(maintenance::cancel(&control, &caller, id).await?)))
}

fn window_to_dto(window: Window) -> dto::MaintenanceWindow {
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
