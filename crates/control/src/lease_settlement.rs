//! Slots and machines held by tasks: their seals, and their state after the end of a task.

use std::collections::BTreeSet;

use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::id::NodeId;
use gpuaas_contract::task::Leased;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{Allocation, operators_act};
use gpuaas_domain::decision::Context;
use gpuaas_domain::machine::{self, Machine};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::slice::{self, Ending};
use gpuaas_domain::slot::{self, Slot};
use gpuaas_domain::{Actor, Change, Decision, Refusal, task};
use gpuaas_store::StoreError;

use crate::error::ControlError;
use crate::{Control, resources};

/// Returns a function that computes seals of slots.
pub(crate) fn seal(control: &Control) -> impl Fn(&Slot) -> String {
    |slot| control.keys.intent_mac(&slot::seal_text(slot))
}

fn is_sealed(control: &Control, slot: &Slot) -> bool {
    let sealed = control.keys.intent_matches(&slot::seal_text(slot), &slot.seal);
    if !sealed {
        tracing::error!(slot = %slot.id, "a slot row was not written by the control plane: the database was manipulated");
    }
    sealed
}

/// Refuses a slot that the control plane did not write itself.
pub(crate) fn check_seal(control: &Control, slot: &Slot) -> Result<(), ControlError> {
    if is_sealed(control, slot) {
        return Ok(());
    }
    let message = format!("the row of slot {} was changed outside the control plane; restore it from a backup", slot.id);
    Err(Refusal::forbidden("slot_forged", message).into())
}

pub(crate) async fn settled(control: &Control, mut decision: Decision) -> Result<Decision, StoreError> {
    for ending in std::mem::take(&mut decision.endings) {
        let task = &ending.task;
        let genuine = control.keys.intent_matches(&task::intent_text(task), &task.intent);
        if !genuine {
            tracing::error!(task = %task.id, "a task row was not written by the control plane: its slots are not changed");
        }
        let now = task.ended_at.unwrap_or_else(Timestamp::now);
        let context = Context { now, actor: Actor::System, correlation_id: task.correlation_id.clone() };
        let settled = match task.task_type.facts().lease {
            Some(Leased::Host) => machine_settled(control, &ending, genuine, &context).await?,
            Some(Leased::Slots) => slots_settled(control, &ending, genuine, &context).await?,
            None => Decision::default(),
        };
        for event in &settled.events {
            tracing::info!(task = %task.id, subject = %event.subject, kind = %event.kind, "lease settled");
        }
        decision = decision.and(settled);
    }
    Ok(decision)
}

/// Adds to a decision that gives a node other keys, or retires it, the effects on its slots, its offer as a whole host, and the
/// holders: see [`slot::node_gone`].
pub(crate) async fn node_gone(
    control: &Control,
    node: NodeId,
    (action, reason): (OperatorAction, &str),
    decision: Decision,
    context: &Context,
) -> Result<Decision, ControlError> {
    let mut decision = settled(control, decision).await?;
    let mut holders = BTreeSet::new();
    for slot in control.store.slot_of_node(node).await? {
        if !is_sealed(control, &slot) {
            continue;
        }
        // The end of a task may have changed it in the same decision; a row is written once.
        let written = decision.changes.iter_mut().find_map(|change| {
            let Change::SlotUpdate(written) = change else { return None };
            (written.id == slot.id).then_some(written)
        });
        let current = written.as_ref().map_or(&slot, |written| written);
        let Some((next, more)) = slot::node_gone(current, reason, seal(control), context) else { continue };
        holders.extend(next.allocation_id);
        match written {
            Some(written) => {
                **written = next;
                decision = decision.and(Decision { changes: Vec::new(), ..more });
            }
            None => decision = decision.and(more),
        }
    }
    if let Some(machine) = resources::get::<Machine>(control, machine::machine_id(node)).await? {
        let is_machine = |change: &Change| matches!(change, Change::ResourceUpdate(document) if document.id == machine.id);
        let written = decision.changes.iter().position(is_machine);
        let current = match written.and_then(|at| decision.changes.get(at)) {
            Some(Change::ResourceUpdate(document)) => document.read::<Machine>().unwrap_or_else(|_| machine.clone()),
            Some(_) | None => machine,
        };
        if let Some((next, more)) = machine::node_gone(&current, reason, context) {
            holders.extend(next.allocation_id);
            if let Some(at) = written {
                decision.changes.remove(at);
            }
            decision = decision.and(more);
        }
    }
    // The tenants are told now; the runs of their allocations find them gone and end them.
    for holder in holders {
        if let Some(allocation) = resources::get::<Allocation>(control, holder).await? {
            decision = decision.and(operators_act(&allocation, action, None, context));
        }
    }
    Ok(decision)
}

async fn slots_settled(control: &Control, ending: &Ending, genuine: bool, context: &Context) -> Result<Decision, StoreError> {
    let mut slots = control.store.slot_of_task(ending.task.id).await?;
    // A manipulated slot stays as it is and is not usable; the receipt still counts.
    slots.retain(|slot| is_sealed(control, slot));
    Ok(slice::settle(&slots, ending, genuine, seal(control), context))
}

async fn machine_settled(control: &Control, ending: &Ending, genuine: bool, context: &Context) -> Result<Decision, StoreError> {
    let document = control.store.resource_by_lookup(ResourceKind::Machine, &ending.task.id.to_string()).await?;
    // A manipulated machine stays as it is and is not usable; the receipt still counts.
    let machine = document.and_then(|document| resources::open::<Machine>(control, &document).ok());
    Ok(machine.map(|machine| machine::settle(&machine, ending, genuine, context)).unwrap_or_default())
}
