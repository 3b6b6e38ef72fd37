//! Slots: made by an operator's approval of what a node found on itself, and never by the node.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuaas_contract::id::{NodeId, SlotId, TaskId};
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, Output};
use gpuaas_contract::time::Timestamp;
use serde_json::json;

use crate::decision::{Change, Context, Decision};
use crate::node::{MAX_REASON, Node};
use crate::refusal::Refusal;
use crate::task::{TaskRecord, TaskState};

/// How old a proposal may be when it is approved: hardware that was changed since must be looked at again.
pub const PROPOSAL_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Where a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Clean and free.
    Available,
    /// Held back by an operator; the rest of the node goes on.
    Quarantined,
    /// No longer a slot. Approving it again brings it back.
    Withdrawn,
}

impl SlotState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Available, Self::Quarantined, Self::Withdrawn];

    /// Name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Quarantined => "quarantined",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// A GPU with its drive and fabric function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its id.
    pub id: SlotId,
    /// Row version.
    pub version: i64,
    /// The node it is on.
    pub node_id: NodeId,
    /// What it consists of.
    pub spec: SlotSpec,
    /// Where it stands.
    pub state: SlotState,
    /// Why, in words; empty while available.
    pub reason: String,
    /// The task whose receipt proposed it.
    pub proposed_by: TaskId,
    /// Who approved that.
    pub approved_by: String,
    /// When.
    pub approved_at: Timestamp,
    /// First approval.
    pub created_at: Timestamp,
    /// Proof that the control plane itself wrote what this slot consists of (see [`seal_text`]); checked before it is used.
    pub seal: String,
}

/// The text whose MAC is [`Slot::seal`]: which devices of which node, and who approved them. A row that somebody wrote into the
/// database, or changed there, does not match and is never used.
pub fn seal_text(slot: &Slot) -> String {
    let Slot { id, node_id, spec, proposed_by, approved_by, approved_at, .. } = slot;
    let spec = serde_json::to_string(spec).unwrap_or_default();
    format!("gpuaas-slot-v1\n{id}\n{node_id}\n{proposed_by}\n{approved_by}\n{}\n{spec}", approved_at.0)
}

/// What an operator may do with one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Hold it back.
    Quarantine,
    /// Let it go again.
    Unquarantine,
    /// End it.
    Withdraw,
}

/// Turns what a node found into slots: those with the wanted indexes, or all that could be used. Returns the slots that are wanted,
/// as they are afterwards.
///
/// `existing` are all slots of the node, `new_id` makes ids for new ones, `seal` computes [`Slot::seal`].
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
    for candidate in &chosen {
        let spec = candidate.spec().filter(|_| candidate.schedulable).ok_or_else(|| not_schedulable(found, candidate))?;
        let before = existing.iter().find(|slot| slot.spec.slot_index == spec.slot_index);
        // Those that are approved together get new devices together.
        let stays = |slot: &&Slot| {
            slot.state != SlotState::Withdrawn && chosen.iter().all(|chosen| chosen.slot_index != slot.spec.slot_index)
        };
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
            Some(slot) => (slot.id, slot.version, slot.created_at),
            None => (new_id(), 0, context.now),
        };
        let (id, version, created_at) = known;
        let mut slot = Slot {
            id,
            version,
            node_id: node.id,
            spec,
            state: SlotState::Available,
            reason: String::new(),
            proposed_by: task.id,
            approved_by: context.actor.to_string(),
            approved_at: context.now,
            created_at,
            seal: String::new(),
        };
        slot.seal = seal(&slot);
        let id = slot.id.to_string();
        let data = json!({ "slot_id": id, "node_id": node.id, "slot": slot.spec, "proposed_by": task.id });
        let change = if before.is_some() {
            Change::SlotUpdate(Box::new(slot.clone()))
        } else {
            Change::SlotInsert(Box::new(slot.clone()))
        };
        decision = decision.change(change).record(context, "gpuaas.slot.approved.v1", "slot.approve", &id, data);
        slots.push(slot);
    }
    Ok((slots, decision))
}

/// The candidates with these indexes, or all that could be used.
fn chosen<'a>(found: &'a Output, wanted: Option<&BTreeSet<u32>>) -> Result<Vec<&'a CandidateSlot>, Refusal> {
    let Some(wanted) = wanted else {
        let usable: Vec<_> = found.candidate_slots.iter().filter(|candidate| candidate.schedulable).collect();
        if usable.is_empty() {
            let message = "no slot of this node can be used; `gpuaas node topology show` says why";
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

/// An operator's word about one slot. Saying it twice changes nothing.
pub fn operate(slot: &Slot, operation: Operation, reason: &str, context: &Context) -> Result<Decision, Refusal> {
    if reason.len() > MAX_REASON {
        return Err(Refusal::invalid("reason_too_long", format!("the reason may have at most {MAX_REASON} bytes")));
    }
    let (next, kind, action) = match (operation, slot.state) {
        (Operation::Quarantine, SlotState::Available | SlotState::Quarantined) => {
            (SlotState::Quarantined, "gpuaas.slot.quarantined.v1", "slot.quarantine")
        }
        (Operation::Unquarantine, SlotState::Quarantined | SlotState::Available) => {
            (SlotState::Available, "gpuaas.slot.unquarantined.v1", "slot.unquarantine")
        }
        (Operation::Withdraw, SlotState::Available | SlotState::Quarantined | SlotState::Withdrawn) => {
            (SlotState::Withdrawn, "gpuaas.slot.withdrawn.v1", "slot.withdraw")
        }
        (Operation::Quarantine | Operation::Unquarantine, SlotState::Withdrawn) => {
            let message = format!("slot {} was withdrawn; approve it again first", slot.id);
            return Err(Refusal::conflict("slot_withdrawn", message));
        }
    };
    let reason = if next == SlotState::Available { "" } else { reason };
    if next == slot.state && (reason.is_empty() || reason == slot.reason) {
        return Ok(Decision::default());
    }
    let id = slot.id.to_string();
    let data =
        json!({ "slot_id": id, "node_id": slot.node_id, "from": slot.state.as_str(), "to": next.as_str(), "reason": reason });
    let changed = Slot { state: next, reason: reason.to_owned(), ..slot.clone() };
    Ok(Decision::default().change(Change::SlotUpdate(Box::new(changed))).record(context, kind, action, &id, data))
}
