//! Slices: guests on slots. What is asked for becomes a task and a change of the slots, in one commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, Page, Reason, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, SlotName,
};
use gpuaas_api::routes;
use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::state::SliceState;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::allocation::{self, Allocation};
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::Node;
use gpuaas_domain::slice::{self, HeldSlots, NewSlice, Order};
use gpuaas_domain::slot::{Slot, SlotState};
use gpuaas_domain::task::TaskRecord;
use gpuaas_domain::{Decision, Refusal};
use gpuaas_store::SlotFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::task_create::{self, Asked, Planned, TaskRequest};
use super::{CreatedOnce, Location};
use super::{node_name, page, page_limit, parse_id, parse_opt, slots, tasks};
use crate::error::ControlError;
use crate::lease_settlement::{check_seal, seal};
use crate::{Control, resources};

type Shared = State<Arc<Control>>;
type Made = CreatedOnce<Json<SliceOrder>>;

/// Tasks that are shown with a slice.
const LAST_TASKS: u32 = 20;
/// How long a guest may take to shut down unless told otherwise.
const GRACE: u32 = 120;
/// How much of a console is read unless told otherwise.
const TAIL_BYTES: u32 = 64 * 1024;

/// What an operator wants of a slice.
pub(super) enum SliceRequest {
    Provision { allocation: AllocationId, slots: Vec<SlotId>, guest: Box<NewSlice> },
    Release { allocation: AllocationId, wipe: bool, grace: u32 },
    ForceCleanup { slot: SlotId, reason: String, allocation: AllocationId },
    Power { allocation: AllocationId, action: PowerAction, grace: u32 },
    Console { allocation: AllocationId, tail_bytes: u32, follow_seconds: u32 },
}

impl SliceRequest {
    /// The task and what becomes of the slots, decided on the resources as they are now.
    pub(super) async fn plan(
        &self,
        control: &Control,
        node: &Node,
        id: TaskId,
        context: &Context,
    ) -> Result<Planned, ControlError> {
        let order = match self {
            Self::Provision { allocation, slots, guest } => {
                let slots = sealed(control, slots).await?;
                slice::provision(node, &slots, guest, (*allocation, id), seal(control), context)?
            }
            Self::Release { allocation, wipe, grace } => {
                let (slots, tasks) = held(control, *allocation).await?;
                slice::release(HeldSlots { slots: &slots, tasks: &tasks }, *wipe, *grace, id, seal(control), context)?
            }
            Self::ForceCleanup { slot, reason, allocation } => {
                let named = slots::get(control, *slot).await?;
                let (slots, tasks) = match named.allocation_id {
                    Some(allocation) => held(control, allocation).await?,
                    None => with_tasks(control, vec![named]).await?,
                };
                slice::force_cleanup(
                    HeldSlots { slots: &slots, tasks: &tasks },
                    reason,
                    (*allocation, id),
                    seal(control),
                    context,
                )?
            }
            Self::Power { allocation, action, grace } => {
                let (slots, tasks) = held(control, *allocation).await?;
                slice::power(HeldSlots { slots: &slots, tasks: &tasks }, *action, *grace)?
            }
            Self::Console { allocation, tail_bytes, follow_seconds } => {
                let (slots, tasks) = held(control, *allocation).await?;
                slice::console(HeldSlots { slots: &slots, tasks: &tasks }, *tail_bytes, *follow_seconds)?
            }
        };
        let timeout = order.timeout();
        let told = self.tell_tenant(control, &order, id, context).await?;
        let Order { task, decision, .. } = order;
        Ok(Planned { task, timeout, decision: decision.and(told) })
    }

    /// What the order of an operator means for the allocation of a tenant, if the slice belongs to one. Reading a console means nothing.
    async fn tell_tenant(
        &self,
        control: &Control,
        order: &Order,
        id: TaskId,
        context: &Context,
    ) -> Result<Decision, ControlError> {
        let action = match self {
            Self::Provision { .. } | Self::Console { .. } => return Ok(Decision::default()),
            Self::Release { .. } => OperatorAction::Release,
            Self::ForceCleanup { .. } => OperatorAction::ForceCleanup,
            Self::Power { action, .. } => OperatorAction::from(*action),
        };
        let Some(holder) = order.task.holder() else { return Ok(Decision::default()) };
        let Some(allocation) = resources::get::<Allocation>(control, holder.allocation_id).await? else {
            return Ok(Decision::default());
        };
        Ok(match self {
            Self::Power { action, .. } => allocation::operators_power(&allocation, *action, id, context)?,
            Self::Provision { .. } | Self::Release { .. } | Self::ForceCleanup { .. } | Self::Console { .. } => {
                allocation::operators_act(&allocation, action, Some(id), context)
            }
        })
    }

    /// Whether a task that was made before is what is asked for.
    pub(super) fn is_that_of(&self, earlier: &TaskRecord) -> bool {
        let Ok(earlier) = Task::parse(earlier.task_type, &earlier.params) else { return false };
        match (self, &earlier) {
            (Self::Provision { slots, guest, .. }, Task::SliceVmProvision(params)) => guest.is_that_of(params, slots),
            (Self::Release { allocation, wipe, grace }, Task::SliceVmRelease(params)) => {
                (params.allocation_id, params.wipe, params.graceful_timeout_seconds, params.take_over)
                    == (*allocation, *wipe, *grace, false)
            }
            (Self::ForceCleanup { slot, .. }, Task::SliceVmRelease(params)) => {
                params.take_over && params.slots.iter().any(|of| of.slot_id == *slot)
            }
            (Self::Power { allocation, action, grace }, Task::SliceVmPower(params)) => {
                (params.allocation_id, params.action, params.graceful_timeout_seconds) == (*allocation, *action, *grace)
            }
            (Self::Console { allocation, tail_bytes, follow_seconds }, Task::SliceConsoleRead(params)) => {
                (params.allocation_id, params.tail_bytes, params.follow_seconds) == (*allocation, *tail_bytes, *follow_seconds)
            }
            (
                Self::Provision { .. }
                | Self::Release { .. }
                | Self::ForceCleanup { .. }
                | Self::Power { .. }
                | Self::Console { .. },
                _,
            ) => false,
        }
    }
}

/// The slots with these ids, written by the control plane itself.
async fn sealed(control: &Control, ids: &[SlotId]) -> Result<Vec<Slot>, ControlError> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let slot = slots::get(control, *id).await?;
        check_seal(control, &slot)?;
        found.push(slot);
    }
    Ok(found)
}

/// The slots of an allocation and the tasks that decide about them.
async fn held(control: &Control, allocation: AllocationId) -> Result<(Vec<Slot>, Vec<TaskRecord>), ControlError> {
    let slots = control.store.slot_of_allocation(allocation).await?;
    if slots.is_empty() {
        return Err(unknown_or_gone(control, allocation).await?.into());
    }
    with_tasks(control, slots).await
}

async fn with_tasks(control: &Control, slots: Vec<Slot>) -> Result<(Vec<Slot>, Vec<TaskRecord>), ControlError> {
    let mut tasks = Vec::new();
    let ids: BTreeSet<TaskId> = slots.iter().filter_map(|slot| slot.lease_task).collect();
    for slot in &slots {
        check_seal(control, slot)?;
    }
    for id in ids {
        tasks.push(super::tasks::get(control, id).await?);
    }
    Ok((slots, tasks))
}

async fn unknown_or_gone(control: &Control, allocation: AllocationId) -> Result<Refusal, ControlError> {
    Ok(match control.store.task_first_of_allocation(allocation).await? {
        Some(_) => Refusal::conflict("slice_released", format!("{allocation} has no slots any more; it was released")),
        None => Refusal::not_found("slice_unknown", format!("there is no slice {allocation}")),
    })
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(wanted): JsonBody<SliceCreate>,
) -> Result<Made, Rejected> {
    let node = node_name::in_body(&control, &wanted.node).await?;
    let slots = named(&control, &node, &wanted.slots).await?;
    let guest = Box::new(NewSlice {
        vm_name: wanted.vm_name,
        image_path: wanted.image.path,
        image_url: wanted.image.url,
        image_sha256: wanted.image.sha256,
        image_format: wanted.image.format,
        image_trusted: wanted.image.trusted,
        driver_strategy: wanted.driver_strategy,
        default_username: wanted.default_username,
        ssh_public_keys: wanted.ssh_public_keys,
        ovs_bridge: wanted.ovs_bridge,
        graceful_timeout_seconds: wanted.graceful_timeout_seconds.unwrap_or(GRACE),
        graphics: wanted.graphics,
    });
    let request = SliceRequest::Provision { allocation: AllocationId::generate(), slots, guest };
    ask(&control, &caller, &headers, node, request).await
}

/// The ids of slots that were named by id or by their place on the node, each once.
async fn named(control: &Control, node: &Node, names: &[SlotName]) -> Result<Vec<SlotId>, ControlError> {
    let of_node = control.store.slot_of_node(node.id).await?;
    let mut ids = Vec::with_capacity(names.len());
    for name in names {
        let found = of_node.iter().find(|slot| match name {
            SlotName::Index(index) => slot.spec.slot_index == *index,
            SlotName::Id(id) => slot.id == *id,
        });
        let id = found.map(|slot| slot.id).ok_or_else(|| {
            let name = match name {
                SlotName::Index(index) => format!("slot {index}"),
                SlotName::Id(id) => format!("slot {id}"),
            };
            let message = format!("node {} has no {name}", node.name);
            Refusal::invalid("slot_unknown", message).in_body("/slots")
        })?;
        if ids.contains(&id) {
            return Err(Refusal::invalid("slots_invalid", format!("{id} is given twice")).into());
        }
        ids.push(id);
    }
    Ok(ids)
}

pub(super) async fn release(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(SliceRelease { wipe, graceful_timeout_seconds }): JsonBody<SliceRelease>,
) -> Result<Made, Rejected> {
    let allocation = parse_id(&id)?;
    let request = SliceRequest::Release { allocation, wipe, grace: graceful_timeout_seconds.unwrap_or(GRACE) };
    ask_of(&control, &caller, &headers, allocation, request).await
}

pub(super) async fn power(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(SlicePower { action, graceful_timeout_seconds }): JsonBody<SlicePower>,
) -> Result<Made, Rejected> {
    let allocation = parse_id(&id)?;
    let request = SliceRequest::Power { allocation, action, grace: graceful_timeout_seconds.unwrap_or(GRACE) };
    ask_of(&control, &caller, &headers, allocation, request).await
}

pub(super) async fn console(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(SliceConsole { tail_bytes, follow_seconds }): JsonBody<SliceConsole>,
) -> Result<Made, Rejected> {
    let allocation = parse_id(&id)?;
    let (tail_bytes, follow_seconds) = (tail_bytes.unwrap_or(TAIL_BYTES), follow_seconds.unwrap_or(0));
    ask_of(&control, &caller, &headers, allocation, SliceRequest::Console { allocation, tail_bytes, follow_seconds }).await
}

/// Reads the console of the guest of an allocation.
pub(super) async fn console_of(
    control: &Arc<Control>,
    caller: &Caller,
    headers: &HeaderMap,
    allocation: AllocationId,
    wanted: &SliceConsole,
) -> Result<CreatedOnce<SliceOrder>, Rejected> {
    let (tail_bytes, follow_seconds) = (wanted.tail_bytes.unwrap_or(TAIL_BYTES), wanted.follow_seconds.unwrap_or(0));
    let request = SliceRequest::Console { allocation, tail_bytes, follow_seconds };
    let CreatedOnce { is_new, location, document: Json(document) } =
        ask_of(control, caller, headers, allocation, request).await?;
    Ok(CreatedOnce { is_new, location, document })
}

pub(super) async fn force_cleanup(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Made, Rejected> {
    let slot = slots::get(&control, parse_id(&id)?).await?;
    let node = node_name::find(&control, &slot.node_id.to_string()).await?;
    let request = SliceRequest::ForceCleanup { slot: slot.id, reason, allocation: AllocationId::generate() };
    ask(&control, &caller, &headers, node, request).await
}

/// Asks for something of a slice that is there.
async fn ask_of(
    control: &Arc<Control>,
    caller: &Caller,
    headers: &HeaderMap,
    allocation: AllocationId,
    request: SliceRequest,
) -> Result<Made, Rejected> {
    // Its first task tells the node also of one whose slots are free again: the same question may have been answered before.
    let node = match control.store.slot_of_allocation(allocation).await?.first() {
        Some(slot) => Some(slot.node_id),
        None => control.store.task_first_of_allocation(allocation).await?.map(|task| task.node_id),
    };
    let Some(node) = node else { return Err(unknown_or_gone(control, allocation).await?.into()) };
    let node = node_name::find(control, &node.to_string()).await?;
    ask(control, caller, headers, node, request).await
}

async fn ask(
    control: &Arc<Control>,
    caller: &Caller,
    headers: &HeaderMap,
    node: Node,
    request: SliceRequest,
) -> Result<Made, Rejected> {
    let idempotency_key = task_create::idempotency_key(headers)?;
    let (request, context) = (TaskRequest::Slice(request), caller.context());
    let asked = Asked { request, queue_time: None, timeout: None, idempotency_key, context };
    let (made, task) = task_create::make(control, node, asked).await?;
    let of_task = Task::parse(task.task_type, &task.params).ok().and_then(|task| task.holder());
    let Some(holder) = of_task else { return Err(ControlError::Internal(format!("{} has no allocation", task.id)).into()) };
    let slots = control.store.slot_of_allocation(holder.allocation_id).await?;
    let order = SliceOrder {
        allocation_id: holder.allocation_id,
        task: tasks::to_dto(control, task).await?,
        slots: slots::to_dtos(control, slots).await?,
    };
    let location = Location::of(routes::TASK, [&order.task.id]);
    Ok(CreatedOnce { is_new: made, location, document: Json(order) })
}

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<SliceListQuery>,
) -> Result<Json<Page<dto::Slice>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let node = match &query.node {
        Some(name) => Some(node_name::find(&control, name).await?.id),
        None => None,
    };
    if let Some(state) = query.state.filter(|state| state.is_clean()) {
        let message = format!("a slice has no slot that is {state}; choose from leased, releasing, needs_wipe, cleanup_blocked");
        return Err(ControlError::BadInput { code: "state_invalid", message }.into());
    }
    let filter = SlotFilter { node, state: query.state };
    let after = parse_opt(query.after.as_deref())?;
    let found = control.store.allocation_list(&filter, after, limit.saturating_add(1)).await?;
    let found = page(found, limit, ToString::to_string);
    let mut items = Vec::with_capacity(found.items.len());
    for allocation in found.items {
        // One that was given back meanwhile is no longer in the list.
        items.extend(to_dto(&control, allocation, 1).await?.filter(|slice| !slice.slots.is_empty()));
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<dto::Slice>, Rejected> {
    let allocation = parse_id(&id)?;
    match to_dto(&control, allocation, LAST_TASKS).await? {
        Some(slice) => Ok(Json(slice)),
        None => Err(unknown_or_gone(&control, allocation).await?.into()),
    }
}

/// A slice as callers see it, if there is or was one.
async fn to_dto(control: &Control, allocation: AllocationId, tasks: u32) -> Result<Option<dto::Slice>, ControlError> {
    let store = &control.store;
    let (slots, first, last) = tokio::try_join!(
        store.slot_of_allocation(allocation),
        store.task_first_of_allocation(allocation),
        store.task_of_allocation(allocation, tasks)
    )?;
    let node_id: NodeId = match (slots.first(), &first) {
        (Some(slot), _) => slot.node_id,
        (None, Some(task)) => task.node_id,
        (None, None) => return Ok(None),
    };
    let node_name = store.node_get(node_id).await?.map(|node| node.name).unwrap_or_default();
    let guest = first.as_ref().filter(|task| task.task_type == TaskType::SliceVmProvision).and_then(|task| {
        match Task::parse(task.task_type, &task.params) {
            Ok(Task::SliceVmProvision(params)) => Some(params),
            Ok(_) | Err(_) => None,
        }
    });
    let state = worst(&slots);
    Ok(Some(dto::Slice {
        allocation_id: allocation,
        node_id,
        state: state.into(),
        vm_name: guest.as_ref().map(|guest| guest.vm_name.to_string()).unwrap_or_default(),
        default_username: guest.as_ref().map(|guest| guest.default_username.to_string()).unwrap_or_default(),
        private_ip: guest.as_ref().and_then(gpuaas_contract::task::slice_vm_provision::Params::private_ip),
        created_at: first.map(|task| task.created_at),
        slots: slots.into_iter().map(|slot| slots::to_dto(slot, node_name.clone())).collect(),
        tasks: last.into_iter().map(|task| tasks::row_shown(control, task, node_name.clone())).collect(),
        node_name,
    }))
}

/// The state of the slot that is worst off.
fn worst(slots: &[Slot]) -> SliceState {
    let order = [
        (SlotState::CleanupBlocked, SliceState::CleanupBlocked),
        (SlotState::NeedsWipe, SliceState::NeedsWipe),
        (SlotState::Releasing, SliceState::Releasing),
        (SlotState::Leased, SliceState::Leased),
    ];
    let found = order.into_iter().find(|(state, _)| slots.iter().any(|slot| slot.state == *state));
    found.map_or(SliceState::Released, |(_, state)| state)
}
