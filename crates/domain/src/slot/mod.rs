//! Slots: created when an operator approves what a node discovered on itself, never by the node.
//!
//! A slot is in one of three conditions. It is clean (available, quarantined or withdrawn) and nobody holds it; or an allocation holds it
//! (leased, releasing); or it is dirty (`cleanup_blocked`, `needs_wipe`). It becomes clean again only by a node's complete proof, or if the
//! control plane can prove that nothing ever ran on it; see [`crate::slice::settle`].

mod approve;

use gpuaas_contract::event::{Event, SlotCause, SlotMoved};
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::slice::{LeasedSlot, SlotSpec};
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::SlotState;

pub use approve::{PROPOSAL_LIFE, approve};

use crate::decision::{Change, Context, Decision};
use crate::node::MAX_REASON;
use crate::refusal::Refusal;

/// A GPU with its drive and network function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Unique id of the slot.
    pub id: SlotId,
    /// Row version.
    pub version: i64,
    /// The node it is on.
    pub node_id: NodeId,
    /// The devices and resources it consists of.
    pub spec: SlotSpec,
    /// Who holds it, and whether it is clean.
    pub state: SlotState,
    /// Why it is in this state, for people; empty while available.
    pub reason: String,
    /// Set while an operator quarantines it, with the reason. A slot in use stays with its tenant and is quarantined once it is clean.
    pub quarantine: Option<String>,
    /// The allocation that holds it, or that left something on it. Set exactly while the slot is not clean.
    pub allocation_id: Option<AllocationId>,
    /// The highest lease epoch ever assigned to it. Never decreases.
    pub lease_epoch: u64,
    /// The most recent task that provisions or cleans it. Its end decides the next state.
    pub lease_task: Option<TaskId>,
    /// The drive is known to have been written, so a proof that calls it untouched is rejected.
    pub drive_used: bool,
    /// The functions are known to have been used by a guest, so a proof that calls a reset unnecessary is rejected.
    pub devices_used: bool,
    /// The task whose receipt proposed it.
    pub proposed_by: TaskId,
    /// The actor who approved it.
    pub approved_by: String,
    /// When it was last approved.
    pub approved_at: Timestamp,
    /// When it was first approved.
    pub created_at: Timestamp,
    /// Proves that the control plane itself wrote this row (see [`seal_text`]); checked before the row is used.
    pub seal: String,
}

impl Slot {
    /// The slot as tasks describe it to the node.
    pub fn leased(&self) -> LeasedSlot {
        LeasedSlot { slot_id: self.id, spec: self.spec.clone() }
    }
}

/// The text whose MAC is [`Slot::seal`]: which devices of which node, who approved them, who holds them and what is known about them. A row
/// that was inserted or changed directly in the database does not match and is never used.
pub fn seal_text(slot: &Slot) -> String {
    let Slot { id, node_id, spec, proposed_by, approved_by, approved_at, .. } = slot;
    let Slot { state, allocation_id, lease_epoch, lease_task, drive_used, devices_used, quarantine, .. } = slot;
    let (spec, state, held) = (serde_json::to_string(spec).unwrap_or_default(), state.as_str(), quarantine.is_some());
    let allocation = allocation_id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let task = lease_task.map_or_else(|| "-".to_owned(), |id| id.to_string());
    format!(
        "gpuaas-slot-v2\n{id}\n{node_id}\n{proposed_by}\n{approved_by}\n{}\n{state}\n{held}\n{allocation}\n{lease_epoch}\n{task}\n\
         {drive_used}\n{devices_used}\n{spec}",
        approved_at.0
    )
}

/// What an operator can do to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Keep the slot from being used.
    Quarantine,
    /// Allow the slot to be used again.
    Unquarantine,
    /// Remove the slot until it is approved again.
    Withdraw,
}

/// Carries out an operator's operation on a slot. Idempotent. `seal` computes [`Slot::seal`].
pub fn operate(
    slot: &Slot,
    operation: Operation,
    reason: &str,
    seal: impl Fn(&Slot) -> String,
    context: &Context,
) -> Result<Decision, Refusal> {
    if reason.len() > MAX_REASON {
        return Err(Refusal::invalid("reason_too_long", format!("the reason may have at most {MAX_REASON} bytes")));
    }
    let reported = |known: &str| reason.is_empty() || reason == known;
    let (next, step): (_, Step) = match (operation, slot.state) {
        (Operation::Quarantine | Operation::Unquarantine, SlotState::Withdrawn) => {
            let message = format!("slot {} was withdrawn; approve it again first", slot.id);
            return Err(Refusal::conflict("slot_withdrawn", message));
        }
        (Operation::Quarantine, _) if slot.quarantine.as_deref().is_some_and(reported) => return Ok(Decision::default()),
        (Operation::Quarantine, _) => (held(slot, Some(reason)), Event::SlotQuarantined),
        (Operation::Unquarantine, _) if slot.quarantine.is_none() => return Ok(Decision::default()),
        (Operation::Unquarantine, _) => (held(slot, None), Event::SlotUnquarantined),
        (Operation::Withdraw, SlotState::Withdrawn) if reported(&slot.reason) => return Ok(Decision::default()),
        (Operation::Withdraw, SlotState::Available | SlotState::Quarantined | SlotState::Withdrawn) => {
            let gone = Slot { state: SlotState::Withdrawn, reason: reason.to_owned(), quarantine: None, ..slot.clone() };
            (gone, Event::SlotWithdrawn)
        }
        (Operation::Withdraw, SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe) => {
            return Err(in_use(slot));
        }
    };
    Ok(moved(slot, next, step, because(reason), &seal, context).1)
}

/// The node of this slot was retired, or got other keys: it is another installation of the machine, or another machine. Nothing that was
/// known about the slot is known any more. A clean slot comes back when an operator approves what the node discovers now; any other comes
/// back by the node's own proof. `None` if nothing changes.
pub fn node_gone(slot: &Slot, reason: &str, seal: impl Fn(&Slot) -> String, context: &Context) -> Option<(Slot, Decision)> {
    let (state, step): (_, Step) = match slot.state {
        SlotState::Available | SlotState::Quarantined => (SlotState::Withdrawn, Event::SlotWithdrawn),
        SlotState::Leased | SlotState::Releasing => (SlotState::CleanupBlocked, Event::SlotCleanupBlocked),
        SlotState::CleanupBlocked | SlotState::NeedsWipe | SlotState::Withdrawn => return None,
    };
    let quarantine = if state == SlotState::Withdrawn { None } else { slot.quarantine.clone() };
    let next = Slot { state, reason: reason.to_owned(), quarantine, ..slot.clone() };
    Some(moved(slot, next, step, because(reason), &seal, context))
}

/// Sets or removes the quarantine. The state of a clean slot changes with it; any other slot keeps its state.
fn held(slot: &Slot, reason: Option<&str>) -> Slot {
    let slot = Slot { quarantine: reason.map(str::to_owned), ..slot.clone() };
    match slot.state {
        SlotState::Available | SlotState::Quarantined => freed(&slot),
        SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe | SlotState::Withdrawn => {
            slot
        }
    }
}

/// The slot once it is clean: held by nobody, and available unless it is quarantined.
pub(crate) fn freed(slot: &Slot) -> Slot {
    let state = if slot.quarantine.is_some() { SlotState::Quarantined } else { SlotState::Available };
    Slot {
        state,
        reason: slot.quarantine.clone().unwrap_or_default(),
        allocation_id: None,
        drive_used: false,
        devices_used: false,
        ..slot.clone()
    }
}

/// The refusal for a slot that is in use or not clean.
pub(crate) fn in_use(slot: &Slot) -> Refusal {
    let todo = match slot.state {
        SlotState::Leased | SlotState::Releasing => "release its slice first",
        SlotState::CleanupBlocked | SlotState::NeedsWipe => "its cleanup must be forced first",
        SlotState::Available | SlotState::Quarantined | SlotState::Withdrawn => "it is clean",
    };
    let message = format!("slot {} ({}) is {}; {todo}", slot.spec.slot_index, slot.id, slot.state.as_str());
    Refusal::conflict("slot_in_use", message)
}

/// Builds the event for a change of a slot.
pub(crate) type Step = fn(SlotMoved) -> Event;

/// The cause of a change that has a reason in text.
fn because(reason: &str) -> SlotCause {
    SlotCause { task_id: None, outcome: None, wipe: None, reason: Some(reason.to_owned()) }
}

/// Seals, writes and records a change of a slot.
pub(crate) fn moved(
    before: &Slot,
    after: Slot,
    step: Step,
    cause: SlotCause,
    seal: &impl Fn(&Slot) -> String,
    context: &Context,
) -> (Slot, Decision) {
    let mut after = after;
    after.seal = seal(&after);
    let data = SlotMoved {
        slot_id: after.id,
        node_id: after.node_id,
        from: before.state.into(),
        to: after.state.into(),
        quarantined: after.quarantine.is_some(),
        // For a slot that became clean, the allocation that held it before.
        allocation_id: after.allocation_id.or(before.allocation_id),
        lease_epoch: after.lease_epoch,
        cause,
    };
    let change = Change::SlotUpdate(Box::new(after.clone()));
    let decision = Decision::default().change(change).record(context, after.id, step(data));
    (after, decision)
}
