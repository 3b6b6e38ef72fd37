//! Approval: turns what a node discovered on itself into slots.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuaas_contract::event::{Event, SlotApproved};
use gpuaas_contract::id::SlotId;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Output};

use super::{Slot, SlotState, in_use};
use crate::decision::{Change, Context, Decision};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::task::{TaskRecord, TaskState};

/// Maximum age of a proposal when it is approved: hardware that may have changed since must be discovered again.
pub const PROPOSAL_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Turns what a node discovered into slots: those with the wanted indexes, or all that are usable. Returns these slots after the change. A
/// slot that is in use or not clean keeps its devices.
///
/// `existing` are all slots of the node, `new_id` generates ids for new ones, and `seal` computes [`Slot::seal`].
pub fn approve(
    node: &Node,
    proposal: (&TaskRecord, &Output),
    wanted: Option<&BTreeSet<u32>>,
    existing: &[Slot],
    new_id: impl Fn() -> SlotId,
    seal: impl Fn(&Slot) -> String,
    context: &Context,
) -> Result<(Vec<Slot>, Decision), Refusal> {
    let (task, found) = proposal;
    if task.node_id != node.id || task.task_type != TaskType::SliceTopologyDiscover || task.state != TaskState::Succeeded {
        let message = format!("{} is not a finished {} of this node", task.id, TaskType::SliceTopologyDiscover);
        return Err(Refusal::invalid("not_a_proposal", message));
    }
    let age = context.now.since(task.ended_at.unwrap_or_default());
    if task.node_epoch != node.epoch || age > PROPOSAL_LIFE {
        let message = format!("what {} found is too old to rely on; run {} again", task.id, TaskType::SliceTopologyDiscover);
        return Err(Refusal::conflict("proposal_outdated", message));
    }
    let mut slots = Vec::new();
    let mut decision = Decision::default();
    let chosen = chosen(found, wanted)?;
    let of_index = |index: u32| existing.iter().find(|slot| slot.spec.slot_index == index);
    // Slots that are approved together get their new devices together, so they cannot collide with each other's old ones.
    let stays = |slot: &&Slot| {
        let chosen = chosen.iter().any(|chosen| chosen.slot_index == slot.spec.slot_index);
        slot.state != SlotState::Withdrawn && !(chosen && slot.state.is_clean())
    };
    for candidate in &chosen {
        let before = of_index(candidate.slot_index);
        // A slot in use looks different to the node than a free one; that does not change its record.
        if let Some(slot) = before.filter(|slot| !slot.state.is_clean()) {
            if wanted.is_some() && candidate.spec().as_ref() != Some(&slot.spec) {
                return Err(in_use(slot));
            }
            slots.push(slot.clone());
            continue;
        }
        let spec = candidate.spec().filter(|_| candidate.schedulable).ok_or_else(|| not_schedulable(found, candidate))?;
        let others = existing.iter().filter(stays);
        if let Some((other, what)) = others.filter_map(|other| Some((other, other.spec.collides_with(&spec)?))).next() {
            let message = format!(
                "slot {} would share {what} with {} (slot {}); withdraw that one first",
                spec.slot_index, other.id, other.spec.slot_index
            );
            return Err(Refusal::conflict("slot_collides", message));
        }
        let known = match before {
            Some(slot) if slot.state == SlotState::Quarantined => {
                let message = format!("slot {} is quarantined ({}); let it go first", spec.slot_index, slot.reason);
                return Err(Refusal::conflict("slot_quarantined", message));
            }
            Some(slot) if slot.state == SlotState::Available && slot.spec == spec => {
                slots.push(slot.clone());
                continue;
            }
            Some(slot) => (slot.id, slot.version, slot.created_at, slot.lease_epoch),
            None => (new_id(), 0, context.now, 0),
        };
        let (id, version, created_at, lease_epoch) = known;
        let mut slot = Slot {
            id,
            version,
            node_id: node.id,
            spec,
            state: SlotState::Available,
            reason: String::new(),
            quarantine: None,
            allocation_id: None,
            lease_epoch,
            lease_task: None,
            drive_used: false,
            devices_used: false,
            proposed_by: task.id,
            approved_by: context.actor.to_string(),
            approved_at: context.now,
            created_at,
            seal: String::new(),
        };
        slot.seal = seal(&slot);
        let event = Event::SlotApproved(SlotApproved {
            slot_id: slot.id,
            node_id: node.id,
            slot: slot.spec.clone(),
            proposed_by: task.id,
        });
        let change = if before.is_some() {
            Change::SlotUpdate(Box::new(slot.clone()))
        } else {
            Change::SlotInsert(Box::new(slot.clone()))
        };
        decision = decision.change(change).record(context, slot.id, event);
        slots.push(slot);
    }
    Ok((slots, decision))
}

/// The candidates with these indexes, or all that are usable.
fn chosen<'a>(found: &'a Output, wanted: Option<&BTreeSet<u32>>) -> Result<Vec<&'a CandidateSlot>, Refusal> {
    let Some(wanted) = wanted else {
        let usable: Vec<_> = found.candidate_slots.iter().filter(|candidate| candidate.schedulable).collect();
        if usable.is_empty() {
            let message = "no slot of this node can be used";
            return Err(Refusal::conflict("nothing_to_approve", message));
        }
        return Ok(usable);
    };
    if wanted.is_empty() {
        return Err(Refusal::invalid("nothing_to_approve", "name at least one slot, or none to take all that can be used"));
    }
    let of_index = |index: &u32| {
        let candidate = found.candidate_slots.iter().find(|candidate| candidate.slot_index == *index);
        candidate.ok_or_else(|| {
            Refusal::invalid("slot_unknown", format!("there is no slot {index}; the node has {}", found.candidate_summary.slots))
        })
    };
    wanted.iter().map(of_index).collect()
}

fn not_schedulable(found: &Output, candidate: &CandidateSlot) -> Refusal {
    let reasons: Vec<&str> =
        found.candidate_summary.blockers.iter().chain(&candidate.blockers).map(|blocker| blocker.message.as_str()).collect();
    let message = format!("slot {} cannot be used: {}", candidate.slot_index, reasons.join("; "));
    Refusal::conflict("slot_not_schedulable", message)
}
