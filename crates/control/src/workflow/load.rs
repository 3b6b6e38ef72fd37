//! Reads the inputs of a step from the store.

use std::collections::BTreeSet;

use gpuaas_contract::id::TaskId;
use gpuaas_contract::task::Output;
use gpuaas_contract::{dsse, receipt};
use gpuaas_domain::allocation::{Allocation, AllocationStep, Chosen, StepInputs};
use gpuaas_domain::budget::{EXHAUSTED, Scope};
use gpuaas_domain::catalog::Product;
use gpuaas_domain::decision::Context;
use gpuaas_domain::machine::{Machine, machine_id};
use gpuaas_domain::placement::{NoFit, Placement};
use gpuaas_domain::slot::Slot;
use gpuaas_domain::task::{TaskRecord, TaskState};
use gpuaas_domain::{Decision, Refusal};

use super::fleet::{HeldPlace, placement_request};
use crate::error::ControlError;
use crate::lease_settlement::check_seal;
use crate::{Control, resources};

/// How often a placement is repeated because the chosen place was gone.
const MAX_LOOKS: u32 = 4;

/// Returns the inputs of a step, without the quotas, which only the end of a run needs; and the chosen place, which is held until
/// the decision is written.
pub(super) async fn load<'a>(
    control: &'a Control,
    run: &Allocation,
    context: &Context,
) -> Result<(StepInputs, Option<HeldPlace<'a>>), ControlError> {
    // The task first: its end and the state of the slots are one commit, so slots that are read after it are never older. In the
    // other order, a release that ends between the two reads would look like one that left the slots dirty.
    let task = match run.task_id {
        Some(id) => control.store.task_get(id).await?,
        None => None,
    };
    let guest_answers = match (run.step, &task) {
        (AllocationStep::AwaitPower, Some(task)) => guest_answers(control, task).await?,
        (
            AllocationStep::Place
            | AllocationStep::AwaitProvision
            | AllocationStep::Serve
            | AllocationStep::AwaitPower
            | AllocationStep::Release
            | AllocationStep::AwaitRelease
            | AllocationStep::Done,
            _,
        ) => None,
    };
    let slots = control.store.slot_of_allocation(run.id).await?;
    for slot in &slots {
        check_seal(control, slot)?;
    }
    let machine = match (run.terms.product, run.node_id) {
        (Product::BareMetal, Some(node)) => resources::get::<Machine>(control, machine_id(node)).await?,
        (Product::BareMetal, None) | (Product::Slice { .. }, _) => None,
    };
    // A machine of another allocation is no longer this run's.
    let machine = machine.filter(|machine| machine.allocation_id == Some(run.id));
    let node_id = slots.first().map(|slot| slot.node_id).or(run.node_id);
    let node = match node_id {
        Some(id) => control.store.node_get(id).await?,
        None => None,
    };
    let lease_tasks = lease_tasks(control, &slots, machine.as_ref(), task.as_ref()).await?;
    let free = slots.is_empty() && machine.is_none();
    let found = match run.step {
        AllocationStep::Place if free && run.release_request.is_none() => Some(look(control, run).await?),
        AllocationStep::Place
        | AllocationStep::AwaitProvision
        | AllocationStep::Serve
        | AllocationStep::AwaitPower
        | AllocationStep::Release
        | AllocationStep::AwaitRelease
        | AllocationStep::Done => None,
    };
    let (place, held) = match found {
        Some(Ok((chosen, held))) => (Some(Ok(chosen)), Some(held)),
        Some(Err(no_fit)) => (Some(Err(no_fit)), None),
        None => (None, None),
    };
    let orders = run.step == AllocationStep::Release && !free && lease_tasks.iter().all(|task| task.state.ended());
    let budget = if orders { Some(budget_of(control, run, context).await?) } else { None };
    Ok((StepInputs { node, slots, lease_tasks, machine, task, guest_answers, place, budget, quotas: Vec::new() }, held))
}

/// What the receipt of a task says of whether the guest answers. It was verified when it came.
async fn guest_answers(control: &Control, task: &TaskRecord) -> Result<Option<bool>, ControlError> {
    if task.state != TaskState::Succeeded {
        return Ok(None);
    }
    let Some(row) = control.store.receipt_get(task.id).await? else { return Ok(None) };
    let internal = |error: &dyn std::error::Error| ControlError::Internal(error.to_string());
    let payload = dsse::payload_unverified(&row.receipt).map_err(|error| internal(&error))?;
    let receipt: receipt::Payload = serde_json::from_slice(&payload).map_err(|error| internal(&error))?;
    let Some(output) = receipt.output else { return Ok(None) };
    let Ok(Output::SliceVmPower(output)) = Output::parse(task.task_type, output.get()) else { return Ok(None) };
    Ok(output.answers)
}

/// Returns whether the holdings of the allocation may be destroyed within this hour's budget.
async fn budget_of(control: &Control, run: &Allocation, context: &Context) -> Result<Result<Decision, Refusal>, ControlError> {
    let scope = Scope::Organization(run.organization_id);
    match control.budget.take(control, scope, Some(run.id), context).await {
        Ok(counted) => Ok(Ok(counted)),
        Err(ControlError::Refused(refusal)) if refusal.code == EXHAUSTED => Ok(Err(refusal)),
        Err(failure) => Err(failure),
    }
}

async fn lease_tasks(
    control: &Control,
    slots: &[Slot],
    machine: Option<&Machine>,
    known: Option<&TaskRecord>,
) -> Result<Vec<TaskRecord>, ControlError> {
    let of_slots = slots.iter().filter_map(|slot| slot.lease_task);
    let ids: BTreeSet<TaskId> = of_slots.chain(machine.and_then(|machine| machine.lease_task)).collect();
    let mut tasks = Vec::with_capacity(ids.len());
    for id in ids {
        match known.filter(|task| task.id == id) {
            Some(task) => tasks.push(task.clone()),
            None => tasks.extend(control.store.task_get(id).await?),
        }
    }
    Ok(tasks)
}

/// Returns a place with its rows. The view may be outdated: then that node is read again and another place is chosen.
async fn look<'a>(control: &'a Control, run: &Allocation) -> Result<Result<(Chosen, HeldPlace<'a>), NoFit>, ControlError> {
    let request = placement_request(&run.terms, &run.avoid, run.expires_at);
    for _ in 0..=MAX_LOOKS {
        let (place, held) = match control.fleet.hold(control, &request).await? {
            Ok(found) => found,
            Err(no_fit) => return Ok(Err(no_fit)),
        };
        if let Some(chosen) = rows_of(control, run, &place).await? {
            return Ok(Ok((chosen, held)));
        }
    }
    Err(ControlError::Contended)
}

/// Returns the rows of a place, if they still match.
async fn rows_of(control: &Control, run: &Allocation, placement: &Placement) -> Result<Option<Chosen>, ControlError> {
    let Some(node) = control.store.node_get(placement.node_id).await? else { return Ok(None) };
    if !node.service.takes_work() {
        return Ok(None);
    }
    match run.terms.product {
        Product::Slice { .. } => {
            let mut slots = control.store.slot_of_node(node.id).await?;
            slots.retain(|slot| placement.slots.contains(&slot.id));
            for slot in &slots {
                check_seal(control, slot)?;
            }
            let free = |slot: &Slot| {
                slot.state == gpuaas_domain::slot::SlotState::Available
                    && slot.quarantine.is_none()
                    && slot.allocation_id.is_none()
            };
            let good = slots.len() == placement.slots.len() && slots.iter().all(free);
            Ok(good.then_some(Chosen { node, slots, machine: None }))
        }
        Product::BareMetal => {
            let machine = resources::get::<Machine>(control, machine_id(node.id)).await?;
            let free = |machine: &Machine| machine.state == gpuaas_domain::machine::MachineState::Available;
            Ok(machine.filter(free).map(|machine| Chosen { node, slots: Vec::new(), machine: Some(machine) }))
        }
    }
}
