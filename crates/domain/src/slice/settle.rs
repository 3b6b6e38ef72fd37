//! Settling: the effect of a task's end on the slots it worked on.

use gpuaas_contract::cleanup::{CleanupProof, NOT_WIPED, Reset, SlotProof, WipeMethod, WipeStatus};
use gpuaas_contract::event::{Event, SlotCause};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::{Blocker, Holder};
use gpuaas_contract::task::{Task, TaskType};

use super::keeps_content;
use crate::decision::{Context, Decision};
use crate::slot::{Slot, SlotState, Step, freed, moved};
use crate::task::TaskRecord;

/// Maximum length of the reason that is stored with a slot.
const MAX_REASON: usize = 1000;

/// The end of a task that decides what happens to slots.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// The task as it is written.
    pub task: TaskRecord,
    /// What is known about whether and how it ran.
    pub end: TaskEnd,
}

/// What is known about whether and how a task ran.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskEnd {
    /// No node has the task, and none will ever have it.
    NeverRan,
    /// A node may have run it, or may still be running it.
    MayHaveRun,
    /// The node reported how it ended.
    Receipt {
        /// How the task ended.
        outcome: Outcome,
        /// Whether the task was ever started.
        started: bool,
        /// The cleanup proof, if the receipt has one.
        proof: Option<CleanupProof>,
    },
}

/// The next state of a slot.
enum Next {
    /// Its tenant uses it.
    Leased,
    /// Available again.
    Free,
    /// Waits for a wipe, for this reason.
    NeedsWipe(String),
    /// Cannot be used, for this reason.
    Blocked(String),
}

/// The effect of a task's end on those slots whose [`Slot::lease_task`] it is. Other slots have moved on to another task or lease epoch,
/// and a late result does not affect them.
///
/// `genuine` says whether the control plane itself wrote the task's row; otherwise nothing in it is trusted.
pub fn settle(slots: &[Slot], ending: &Ending, genuine: bool, seal: impl Fn(&Slot) -> String, context: &Context) -> Decision {
    let task = &ending.task;
    let mut decision = Decision::default();
    for slot in slots.iter().filter(|slot| slot.lease_task == Some(task.id) && slot.node_id == task.node_id) {
        let Some((next, step)) = settled(slot, ending, genuine) else { continue };
        if next == *slot {
            continue;
        }
        let cause =
            SlotCause { task_id: Some(task.id), outcome: Some(task.state.into()), wipe: None, reason: Some(next.reason.clone()) };
        decision = decision.and(moved(slot, next, step, cause, &seal, context).1);
    }
    decision
}

fn settled(slot: &Slot, ending: &Ending, genuine: bool) -> Option<(Slot, Step)> {
    let slot = &match slot.state {
        SlotState::Leased | SlotState::Releasing | SlotState::CleanupBlocked | SlotState::NeedsWipe => slot.clone(),
        // The slot was freed because the records said that the task never ran. If the node contradicts that now, the slot is not free after
        // all.
        SlotState::Available | SlotState::Quarantined => contradicted(slot, ending)?,
        SlotState::Withdrawn => return None,
    };
    let proof = ending.end.proof_of(slot);
    let next =
        if genuine { next(slot, ending, proof.as_ref()) } else { Next::Blocked("the row of its task was changed".to_owned()) };
    let known = match (genuine, &proof) {
        (true, Some(Ok((_, proof)))) => learned(slot, proof),
        (true, Some(Err(_)) | None) | (false, _) => slot.clone(),
    };
    let with = |state, reason: &str| Slot { state, reason: clipped(reason), ..known.clone() };
    Some(match next {
        Next::Free => (freed(slot), Event::SlotFreed),
        Next::Leased => (Slot { drive_used: true, devices_used: true, ..with(SlotState::Leased, "") }, Event::SlotInUse),
        Next::NeedsWipe(reason) => (with(SlotState::NeedsWipe, &reason), Event::SlotNeedsWipe),
        Next::Blocked(reason) => (with(SlotState::CleanupBlocked, &reason), Event::SlotCleanupBlocked),
    })
}

/// A free slot as it was under this task's lease, if it was not leased again since and the node reports that the task ran.
fn contradicted(slot: &Slot, ending: &Ending) -> Option<Slot> {
    let Holder { allocation_id, lease_epoch } = Task::parse(ending.task.task_type, &ending.task.params).ok()?.holder()?;
    if ending.task.task_type != TaskType::SliceVmProvision || lease_epoch != slot.lease_epoch {
        return None;
    }
    let leased = Slot { allocation_id: Some(allocation_id), ..slot.clone() };
    match next(&leased, ending, ending.end.proof_of(&leased).as_ref()) {
        Next::Free => None,
        Next::Leased | Next::NeedsWipe(_) | Next::Blocked(_) => Some(leased),
    }
}

/// The part of a proof that covers a slot under its current lease, or why there is none.
type Spoken<'a> = Result<(&'a CleanupProof, &'a SlotProof), String>;

impl TaskEnd {
    /// What the receipt proves about a slot; `None` if there is no receipt.
    fn proof_of(&self, slot: &Slot) -> Option<Spoken<'_>> {
        let Self::Receipt { proof, .. } = self else { return None };
        let Some(proof) = proof else { return Some(Err("the node gave no proof of cleanup".to_owned())) };
        if Some(proof.allocation_id) != slot.allocation_id || proof.lease_epoch != slot.lease_epoch {
            return Some(Err("the node's proof of cleanup speaks of another lease".to_owned()));
        }
        let of_slot: Vec<&SlotProof> = proof.slots.iter().filter(|of| of.slot_id == slot.id).collect();
        Some(match of_slot.as_slice() {
            [one] => Ok((proof, one)),
            [] => Err(format!("the node's proof of cleanup does not speak of {}", slot.id)),
            _ => Err(format!("the node's proof of cleanup speaks of {} more than once", slot.id)),
        })
    }
}

fn next(slot: &Slot, ending: &Ending, proof: Option<&Spoken<'_>>) -> Next {
    let Ending { task, end } = ending;
    let provision = task.task_type == TaskType::SliceVmProvision;
    let outcome = match end {
        // The slot was clean before, and nothing has happened since.
        TaskEnd::NeverRan if provision => return Next::Free,
        TaskEnd::NeverRan => return Next::Blocked(format!("the release did not run: {}", because(task))),
        TaskEnd::MayHaveRun => return Next::Blocked(format!("{} was lost: {}", task.task_type, because(task))),
        TaskEnd::Receipt { outcome: Outcome::Refused, .. } if provision => return Next::Free,
        TaskEnd::Receipt { outcome: Outcome::Cancelled, started: false, .. } if provision => return Next::Free,
        TaskEnd::Receipt { outcome: Outcome::Succeeded, .. } if provision => return Next::Leased,
        TaskEnd::Receipt { outcome, .. } => *outcome,
    };
    let blockers = match proof {
        Some(Ok((proof, of_slot))) => blockers(slot, proof, of_slot),
        Some(Err(why)) => return Next::Blocked(format!("{why}; {}", because(task))),
        None => return Next::Blocked(because(task)),
    };
    let reason = blockers.iter().map(|blocker| blocker.message.as_str()).collect::<Vec<_>>().join("; ");
    if blockers.is_empty() {
        Next::Free
    } else if !provision && outcome == Outcome::Succeeded && blockers.iter().all(|blocker| blocker.code == NOT_WIPED) {
        let kept = if keeps_content(task) { "; it was released without a wipe, which only an operator orders" } else { "" };
        Next::NeedsWipe(format!("{reason}{kept}"))
    } else {
        Next::Blocked(reason)
    }
}

/// What is not proven, or contradicts what the control plane knows.
fn blockers(slot: &Slot, proof: &CleanupProof, of_slot: &SlotProof) -> Vec<Blocker> {
    let mut blockers = proof.common_blockers();
    blockers.extend(proof.slot_blockers(&slot.leased(), true));
    if slot.drive_used && of_slot.drive.method == WipeMethod::Untouched {
        let message = format!("drive {} was in use, and the node says that it was not", slot.spec.nvme_serial);
        blockers.push(Blocker::new("drive_not_clean", message));
    }
    let not_reset = of_slot.functions.iter().find(|function| function.reset == Reset::NotNeeded);
    if let Some(function) = not_reset.filter(|_| slot.devices_used) {
        let message = format!("{} was in a guest's hands, and the node says that it was not", function.address);
        blockers.push(Blocker::new("function_not_reset", message));
    }
    blockers
}

/// The slot with what this proof reveals about it, for checking the next proof.
fn learned(slot: &Slot, proof: &SlotProof) -> Slot {
    let wiped =
        proof.drive.serial == slot.spec.nvme_serial && proof.drive.is_clean() && proof.drive.method != WipeMethod::Untouched;
    let skipped = proof.drive.status == WipeStatus::Skipped;
    let reset = |address| {
        let companion = slot.spec.companions.contains(address);
        proof
            .functions
            .iter()
            .any(|of| of.address == *address && (of.reset == Reset::Done || (companion && of.reset == Reset::WithDevice)))
    };
    Slot {
        drive_used: !wiped && (slot.drive_used || skipped),
        devices_used: slot.devices_used && !slot.spec.functions().all(reset),
        ..slot.clone()
    }
}

fn because(task: &TaskRecord) -> String {
    if task.message.is_empty() { task.code.clone() } else { format!("{} ({})", task.message, task.code) }
}

fn clipped(text: &str) -> String {
    if text.chars().count() <= MAX_REASON { text.to_owned() } else { text.chars().take(MAX_REASON).chain(['…']).collect() }
}
