//! Slices.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, Reason, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease};
use gpuaas_api::routes;
use gpuaas_contract::id::{AllocationId, SlotId};
use gpuaas_contract::task::slice_vm_provision::Params as Guest;
use gpuaas_domain::task::TaskRecord;

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request, slots, tasks};
use crate::Control;
use crate::app::{Caller, slices};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;
type Ordered = (StatusCode, Location, Json<SliceOrder>);

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<SliceCreate>,
) -> Result<Ordered, Rejected> {
    Ok(ordered(&control, slices::create(&control, &caller, wanted).await?).await?)
}

pub(super) async fn release(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(allocation): Segments<AllocationId>,
    JsonBody(wanted): JsonBody<SliceRelease>,
) -> Result<Ordered, Rejected> {
    Ok(ordered(&control, slices::release(&control, &caller, allocation, wanted).await?).await?)
}

pub(super) async fn power(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(allocation): Segments<AllocationId>,
    JsonBody(wanted): JsonBody<SlicePower>,
) -> Result<Ordered, Rejected> {
    Ok(ordered(&control, slices::power(&control, &caller, allocation, wanted).await?).await?)
}

pub(super) async fn console(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(allocation): Segments<AllocationId>,
    JsonBody(wanted): JsonBody<SliceConsole>,
) -> Result<Ordered, Rejected> {
    Ok(ordered(&control, slices::console(&control, &caller, allocation, &wanted).await?).await?)
}

pub(super) async fn force_cleanup(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(slot): Segments<SlotId>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Ordered, Rejected> {
    Ok(ordered(&control, slices::force_cleanup(&control, &caller, slot, reason).await?).await?)
}

async fn ordered(control: &Control, task: TaskRecord) -> Result<Ordered, ControlError> {
    let order = order_to_dto(control, task).await?;
    Ok((StatusCode::CREATED, Location::of(routes::TASK, [&order.task.id]), Json(order)))
}

/// A task of a slice, with the current slots of the slice.
pub(super) async fn order_to_dto(control: &Control, task: TaskRecord) -> Result<SliceOrder, ControlError> {
    let order = slices::of_task(control, task).await?;
    Ok(SliceOrder {
        allocation_id: order.allocation,
        task: tasks::to_dto(control, order.task).await?,
        slots: slots::to_dtos(control, order.slots).await?,
    })
}

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<SliceListQuery>,
) -> Result<Json<Page<dto::Slice>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = slices::list(&control, query.node.as_deref(), query.state, &page).await?;
    let to_dto = |slice| to_dto(&control, slice);
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn show(
    State(control): Shared,
    Segments(allocation): Segments<AllocationId>,
) -> Result<Json<dto::Slice>, Rejected> {
    Ok(Json(to_dto(&control, slices::get(&control, allocation).await?)))
}

fn to_dto(control: &Control, slice: slices::Slice) -> dto::Slice {
    let (guest, node) = (slice.guest.as_ref(), slice.node);
    let node_name = node.name.clone();
    dto::Slice {
        allocation_id: slice.allocation,
        node_id: node.id,
        state: slice.state.into(),
        vm_name: guest.map(|guest| guest.guest.vm_name.to_string()).unwrap_or_default(),
        default_username: guest.map(|guest| guest.guest.default_username.to_string()).unwrap_or_default(),
        private_ip: guest.and_then(Guest::private_ip),
        created_at: slice.created_at,
        slots: slice.slots.into_iter().map(|slot| slots::to_dto(slot, Some(&node))).collect(),
        tasks: slice.tasks.into_iter().map(|task| tasks::row_to_dto(control, task, node_name.clone())).collect(),
        node_name,
    }
}
