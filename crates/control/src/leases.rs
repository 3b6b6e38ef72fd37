//! Slots in the hands of tasks: their seals, and what becomes of them when a task ends.

use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::slice;
use gpuaas_domain::slot::{self, Slot};
use gpuaas_domain::{Actor, Decision, Refusal, task};
use gpuaas_store::{CommitError, StoreError};

use crate::Control;
use crate::failure::Failure;

/// Computes seals of slots.
pub(crate) fn seal(control: &Control) -> impl Fn(&Slot) -> String {
    |slot| control.keys.intent_mac(&slot::seal_text(slot))
}

fn is_sealed(control: &Control, slot: &Slot) -> bool {
    let sealed = control.keys.intent_matches(&slot::seal_text(slot), &slot.seal);
    if !sealed {
        tracing::error!(slot = %slot.id, "a slot row was not written by the control plane: somebody wrote to the database");
    }
    sealed
}

/// A slot that the control plane did not write itself is not touched.
pub(crate) fn check_seal(control: &Control, slot: &Slot) -> Result<(), Failure> {
    if is_sealed(control, slot) {
        return Ok(());
    }
    let message = format!("the row of slot {} was changed outside the control plane; restore it from a backup", slot.id);
    Err(Refusal::forbidden("slot_forged", message).into())
}

/// Writes a decision, with what it means for the slots of every task that ends in it. Everything that the control plane writes goes
/// through here; the store takes no decision that leaves a slot behind.
pub(crate) async fn commit(control: &Control, decision: Decision) -> Result<(), CommitError> {
    let decision = if decision.endings.is_empty() { decision } else { settled(control, decision).await? };
    control.store.commit(decision).await
}

async fn settled(control: &Control, mut decision: Decision) -> Result<Decision, StoreError> {
    for ending in std::mem::take(&mut decision.endings) {
        let task = &ending.task;
        let mut slots = control.store.slot_of_task(task.id).await?;
        // One that somebody changed stays as it is, which nobody can use; the receipt counts all the same.
        slots.retain(|slot| is_sealed(control, slot));
        let genuine = control.keys.intent_matches(&task::intent_text(task), &task.intent);
        if !genuine {
            tracing::error!(task = %task.id, "a task row was not written by the control plane: nothing is believed of its slots");
        }
        let now = task.ended_at.unwrap_or_else(Timestamp::now);
        let context = Context { now, actor: Actor::System, correlation_id: task.correlation_id.clone() };
        let of_slots = slice::settle(&slots, &ending, genuine, seal(control), &context);
        for event in &of_slots.events {
            tracing::info!(task = %task.id, slot = %event.subject, kind = event.kind, to = %event.data["to"], "slot settled");
        }
        decision = decision.and(of_slots);
    }
    Ok(decision)
}
