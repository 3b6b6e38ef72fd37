//! Slices: guests on slots. What is asked for becomes a task and a change of the slots, in one commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpuaas_api::dto::{Page, SliceConsole, SliceCreate, SlicePower, SliceRelease, SlotName};
use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::guest::{DEFAULT_SHUTDOWN_SECONDS, GuestSpec};
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::state::SliceState;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{Task, TaskType, slice_vm_provision};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{self, Allocation};
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::Node;
use gpuaas_domain::slice::{self, HeldSlots, Order};
use gpuaas_domain::slot::{Slot, SlotState};
use gpuaas_domain::task::TaskRecord;
use gpuaas_domain::{Decision, Refusal};
use gpuaas_store::SlotFilter;

use super::tasks::create::{NewTaskRequest, Planned, TaskRequest, create as create_task};
use super::{Caller, PageRequest, nodes, slots, tasks};
use crate::error::ControlError;
use crate::lease_settlement::{check_seal, seal};
use crate::{Control, resources};

/// Tasks that are shown with a slice.
const LAST_TASKS: u32 = 20;
/// How much of a console is read unless told otherwise.
const TAIL_BYTES: u32 = 64 * 1024;

/// What an operator wants of a slice.
pub(in crate::app) enum SliceRequest {
    Provision { allocation: AllocationId, slots: Vec<SlotId>, guest: Box<GuestSpec> },
    Release { allocation: AllocationId, wipe: bool, grace: u32 },
    ForceCleanup { slot: SlotId, reason: String, allocation: AllocationId },
    Power { allocation: AllocationId, action: PowerAction, grace: u32 },
    Console { allocation: AllocationId, tail_bytes: u32, follow_seconds: u32 },
}

impl SliceRequest {
    /// The task and what becomes of the slots, decided on the resources as they are now.
    pub(in crate::app) async fn plan(
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
        let told = self.tell_tenant(control, &order, id, context).await?;
        let Order { task, decision, .. } = order;
        Ok(Planned { task, decision: decision.and(told) })
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
        tasks.push(tasks::get(control, id).await?);
    }
    Ok((slots, tasks))
}

async fn unknown_or_gone(control: &Control, allocation: AllocationId) -> Result<Refusal, ControlError> {
    Ok(match control.store.task_first_of_allocation(allocation).await? {
        Some(_) => Refusal::conflict("slice_released", format!("{allocation} has no slots any more; it was released")),
        None => Refusal::not_found("slice_unknown", format!("there is no slice {allocation}")),
    })
}

/// Creates a slice on slots that an operator names.
pub(crate) async fn create(control: &Arc<Control>, caller: &Caller, wanted: SliceCreate) -> Result<TaskRecord, ControlError> {
    let node = nodes::find_in_body(control, &wanted.node).await?;
    let slots = named(control, &node, &wanted.slots).await?;
    let guest = Box::new(wanted.guest);
    order(control, caller, node, SliceRequest::Provision { allocation: AllocationId::generate(), slots, guest }).await
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

/// Ends a slice.
pub(crate) async fn release(
    control: &Arc<Control>,
    caller: &Caller,
    allocation: AllocationId,
    SliceRelease { wipe, graceful_timeout_seconds }: SliceRelease,
) -> Result<TaskRecord, ControlError> {
    let request = SliceRequest::Release { allocation, wipe, grace: graceful_timeout_seconds.unwrap_or(DEFAULT_SHUTDOWN_SECONDS) };
    order_of(control, caller, allocation, request).await
}

/// Starts, stops or reboots a slice.
pub(crate) async fn power(
    control: &Arc<Control>,
    caller: &Caller,
    allocation: AllocationId,
    SlicePower { action, graceful_timeout_seconds }: SlicePower,
) -> Result<TaskRecord, ControlError> {
    let request = SliceRequest::Power { allocation, action, grace: graceful_timeout_seconds.unwrap_or(DEFAULT_SHUTDOWN_SECONDS) };
    order_of(control, caller, allocation, request).await
}

/// Reads the console of a slice.
pub(crate) async fn console(
    control: &Arc<Control>,
    caller: &Caller,
    allocation: AllocationId,
    wanted: &SliceConsole,
) -> Result<TaskRecord, ControlError> {
    let (tail_bytes, follow_seconds) = (wanted.tail_bytes.unwrap_or(TAIL_BYTES), wanted.follow_seconds.unwrap_or(0));
    order_of(control, caller, allocation, SliceRequest::Console { allocation, tail_bytes, follow_seconds }).await
}

/// Cleans up a slot whoever held it, for a reason.
pub(crate) async fn force_cleanup(
    control: &Arc<Control>,
    caller: &Caller,
    slot: SlotId,
    reason: String,
) -> Result<TaskRecord, ControlError> {
    let slot = slots::get(control, slot).await?;
    let node = nodes::get(control, slot.node_id).await?;
    let request = SliceRequest::ForceCleanup { slot: slot.id, reason, allocation: AllocationId::generate() };
    order(control, caller, node, request).await
}

/// Orders something of a slice that is there.
async fn order_of(
    control: &Arc<Control>,
    caller: &Caller,
    allocation: AllocationId,
    request: SliceRequest,
) -> Result<TaskRecord, ControlError> {
    let slots = control.store.slot_of_allocation(allocation).await?;
    let Some(slot) = slots.first() else { return Err(unknown_or_gone(control, allocation).await?.into()) };
    let node = nodes::get(control, slot.node_id).await?;
    order(control, caller, node, request).await
}

async fn order(control: &Arc<Control>, caller: &Caller, node: Node, request: SliceRequest) -> Result<TaskRecord, ControlError> {
    let new = NewTaskRequest { request: TaskRequest::Slice(request), queue_time: None, timeout: None };
    create_task(control, caller, node, new).await
}

/// A task of a slice, with the slots the slice has now.
pub(crate) struct OrderedSlice {
    /// The allocation.
    pub(crate) allocation: AllocationId,
    /// The task.
    pub(crate) task: TaskRecord,
    /// Its slots.
    pub(crate) slots: Vec<Slot>,
}

/// The slice that a task is about.
pub(crate) async fn of_task(control: &Control, task: TaskRecord) -> Result<OrderedSlice, ControlError> {
    let of_task = Task::parse(task.task_type, &task.params).ok().and_then(|task| task.holder());
    let Some(holder) = of_task else { return Err(ControlError::Internal(format!("{} has no allocation", task.id))) };
    let slots = control.store.slot_of_allocation(holder.allocation_id).await?;
    Ok(OrderedSlice { allocation: holder.allocation_id, task, slots })
}

/// A slice, as far as its slots and tasks tell.
pub(crate) struct Slice {
    /// The allocation.
    pub(crate) allocation: AllocationId,
    /// The node it is, or was, on.
    pub(crate) node: Node,
    /// The state of the slot that is worst off.
    pub(crate) state: SliceState,
    /// What its guest was made with.
    pub(crate) guest: Option<slice_vm_provision::Params>,
    /// When it was ordered.
    pub(crate) created_at: Option<Timestamp>,
    /// The slots it has.
    pub(crate) slots: Vec<Slot>,
    /// Its last tasks.
    pub(crate) tasks: Vec<TaskRecord>,
}

/// Lists slices, on one node or in one state if asked for.
pub(crate) async fn list(
    control: &Control,
    node: Option<&str>,
    state: Option<SlotState>,
    page: &PageRequest<AllocationId>,
) -> Result<Page<Slice>, ControlError> {
    let node = nodes::find_id(control, node).await?;
    if let Some(state) = state.filter(|state| state.is_clean()) {
        let message = format!("a slice has no slot that is {state}; choose from leased, releasing, needs_wipe, cleanup_blocked");
        return Err(ControlError::BadInput { code: "state_invalid", message });
    }
    let found = control.store.allocation_list(&SlotFilter { node, state }, page.after, page.rows()).await?;
    let found = page.cut(found, ToString::to_string);
    let mut items = Vec::with_capacity(found.items.len());
    for allocation in found.items {
        // One that was given back meanwhile is no longer in the list.
        items.extend(find(control, allocation, 1).await?.filter(|slice| !slice.slots.is_empty()));
    }
    Ok(Page { items, next: found.next })
}

/// The slice of an allocation.
pub(crate) async fn get(control: &Control, allocation: AllocationId) -> Result<Slice, ControlError> {
    match find(control, allocation, LAST_TASKS).await? {
        Some(slice) => Ok(slice),
        None => Err(unknown_or_gone(control, allocation).await?.into()),
    }
}

/// A slice with its last tasks, if there is or was one.
async fn find(control: &Control, allocation: AllocationId, tasks: u32) -> Result<Option<Slice>, ControlError> {
    let store = &control.store;
    let (slots, first, tasks) = tokio::try_join!(
        store.slot_of_allocation(allocation),
        store.task_first_of_allocation(allocation),
        store.task_of_allocation(allocation, tasks)
    )?;
    let node = match (slots.first(), &first) {
        (Some(slot), _) => slot.node_id,
        (None, Some(task)) => task.node_id,
        (None, None) => return Ok(None),
    };
    let node = nodes::get(control, node).await?;
    let guest = first.as_ref().filter(|task| task.task_type == TaskType::SliceVmProvision).and_then(|task| {
        match Task::parse(task.task_type, &task.params) {
            Ok(Task::SliceVmProvision(params)) => Some(params),
            Ok(_) | Err(_) => None,
        }
    });
    let created_at = first.map(|task| task.created_at);
    Ok(Some(Slice { allocation, node, state: worst(&slots), guest, created_at, slots, tasks }))
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
