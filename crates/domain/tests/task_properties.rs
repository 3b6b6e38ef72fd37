//! Invariants of a task, whatever happens to it in whatever order.

mod support;

use std::collections::HashSet;

use gpuaas_contract::id::TaskId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_domain::task::{self, ReceiptHead, TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision};
use proptest::prelude::*;
use support::{NOW, at, node, outgoing, queued, verified_for};

/// Everything that can happen to a task.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Dispatch { service: NodeService, epoch: u64 },
    Accepted,
    Started,
    Cancel,
    Unknown,
    Tick,
    NodeGone,
    Receipt(Outcome, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcomes = [Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted, Outcome::Refused];
    let step = prop_oneof![
        4 => (0u64..500).prop_map(Step::Wait),
        1 => (500u64..100_000).prop_map(Step::Wait),
        6 => Just(Step::Dispatch { service: NodeService::InService, epoch: 2 }),
        1 => (prop::sample::select(NodeService::ALL.to_vec()), 1u64..4).prop_map(|(service, epoch)| Step::Dispatch { service, epoch }),
        3 => Just(Step::Accepted),
        3 => Just(Step::Started),
        1 => Just(Step::Cancel),
        2 => Just(Step::Unknown),
        6 => Just(Step::Tick),
        1 => Just(Step::NodeGone),
        2 => (prop::sample::select(outcomes.to_vec()), 1u64..4).prop_map(|(outcome, sequence)| Step::Receipt(outcome, sequence)),
    ];
    prop::collection::vec(step, 1..60)
}

/// The store, for a single task.
struct Model {
    now: Timestamp,
    task: TaskRecord,
    orders: Vec<gpuaas_contract::envelope::Signed>,
    receipts: u32,
}

impl Model {
    fn decide(&self, step: &Step) -> Option<Decision> {
        let context = at(self.now);
        match step {
            Step::Wait(_) => None,
            Step::Dispatch { service, epoch } => {
                let node = Node { service: *service, epoch: *epoch, ..node() };
                Some(task::dispatch(&self.task, &node, &outgoing(&self.task, &node, self.now).ok()?, &context).ok()?.1)
            }
            Step::Accepted => Some(task::acknowledged(&self.task, false, &context)),
            Step::Started => Some(task::acknowledged(&self.task, true, &context)),
            Step::Cancel => task::cancel(&self.task, "stop", &context).ok(),
            Step::Unknown => Some(task::unknown_to_node(&self.task, gpuaas_contract::time::Timestamp(0), &context)),
            Step::Tick => Some(task::tick(&self.task, &context)),
            Step::NodeGone => Some(task::node_gone(&self.task, "retired", &context)),
            Step::Receipt(outcome, sequence) => {
                // Only a signed order can be answered.
                let order = self.orders.last()?;
                let (verified, raw) = verified_for(&self.task, order, *outcome, *sequence);
                task::receipt(&self.task, &ReceiptHead::default(), &verified, &raw, &context).ok()?
            }
        }
    }

    /// Applies a decision as the store does, and returns the task as it was before.
    fn apply(&mut self, decision: Decision) -> TaskRecord {
        let before = self.task.clone();
        for change in decision.changes {
            match change {
                Change::TaskUpdate(next) => {
                    assert_eq!(next.version, self.task.version, "written over the version it was loaded with");
                    self.task = TaskRecord { version: next.version + 1, ..*next };
                }
                Change::EnvelopeInsert { digest, envelope, .. } => {
                    self.orders.push(gpuaas_contract::envelope::Signed { envelope, digest });
                }
                Change::ReceiptInsert { task_id, digest, .. } => {
                    assert_eq!((task_id, Some(&digest)), (self.task.id, self.task.receipt_digest.as_ref()));
                    self.receipts += 1;
                }
                other => panic!("a task's decision writes {other:?}"),
            }
        }
        before
    }
}

fn check(model: &Model, before: &TaskRecord, step: &Step) {
    let after = &model.task;
    let by_receipt = matches!(step, Step::Receipt(..));
    if before.state.ended() && before.state != after.state {
        assert!(by_receipt && before.receipt_digest.is_none(), "{:?} became {:?} by {step:?}", before.state, after.state);
    }
    assert!(model.receipts <= 1, "two receipts");
    assert_eq!(model.receipts == 1, after.receipt_digest.is_some());
    let succeeded = matches!(after.state, TaskState::Succeeded | TaskState::Failed | TaskState::Interrupted | TaskState::Refused);
    assert!(!succeeded || model.receipts == 1, "no receipt, no completion");
    let sent = matches!(after.state, TaskState::Dispatched | TaskState::Accepted | TaskState::Started);
    assert!(!sent || !model.orders.is_empty(), "{:?} without an envelope", after.state);
    assert_eq!(after.dispatches, u32::try_from(model.orders.len()).expect("few"), "every dispatch has its envelope");
    assert!(
        !(before.state.in_hand() && matches!(after.state, TaskState::Queued | TaskState::Dispatched)),
        "what the node has was taken back by {step:?}"
    );
    assert_eq!(after.state.ended(), after.ended_at.is_some(), "the store's indexes rely on this");
    assert!(!after.state.in_hand() || after.dispatches > 0, "the store's indexes rely on this");
    assert_eq!(after.state == TaskState::Dispatched, after.lease_until.is_some(), "a lease exactly while dispatched");
    let dispatched_now = matches!(step, Step::Dispatch { .. }) && after.version != before.version;
    assert!(!(dispatched_now && before.cancel_requested_at.is_some()), "sent although it shall be cancelled");
    let same = |of: fn(&TaskRecord) -> String| of(before) == of(after);
    assert!(same(task::intent_text) && same(|task| task.intent.clone()), "what was asked for changed");
}

proptest! {
    #[test]
    fn invariants_hold_for_any_sequence_of_steps(steps in steps()) {
        let mut model = Model { now: NOW, task: queued(), orders: Vec::new(), receipts: 0 };
        for step in steps {
            if let Step::Wait(seconds) = step {
                model.now = model.now.plus(std::time::Duration::from_secs(seconds));
            }
            let Some(decision) = model.decide(&step) else { continue };
            let changed = decision.changes.iter().any(|change| matches!(change, Change::TaskUpdate(_)));
            prop_assert_eq!(changed, !decision.events.is_empty(), "every state change has an event, and only those");
            prop_assert_eq!(decision.events.len(), decision.audit.len());
            let before = model.apply(decision);
            check(&model, &before, &step);
        }
    }

    #[test]
    fn tick_changes_a_task_exactly_after_its_due_moment(steps in steps(), seconds in 0u64..200_000) {
        let mut model = Model { now: NOW, task: queued(), orders: Vec::new(), receipts: 0 };
        for step in steps.into_iter().take(12) {
            if let Step::Wait(seconds) = step {
                model.now = model.now.plus(std::time::Duration::from_secs(seconds));
            }
            if let Some(decision) = model.decide(&step) {
                model.apply(decision);
            }
        }
        let due = task::due_at(&model.task);
        let around = due.into_iter().flat_map(|due| [Timestamp(due.0.saturating_sub(1)), due, Timestamp(due.0.saturating_add(1))]);
        for now in around.chain([NOW.plus(std::time::Duration::from_secs(seconds))]) {
            let ticks = !task::tick(&model.task, &at(now)).is_empty();
            prop_assert_eq!(ticks, due.is_some_and(|due| now > due), "at {}", now);
        }
    }
}

#[test]
fn an_open_task_always_ends_if_time_passes_and_no_node_has_it() {
    for (state, end) in [(TaskState::Queued, TaskState::Expired), (TaskState::Dispatched, TaskState::Lost)] {
        let mut task = support::in_state(state);
        let mut seen: HashSet<(TaskId, &str)> = HashSet::new();
        while let Some(due) = task::due_at(&task) {
            let decision = task::tick(&task, &at(Timestamp(due.0 + 1)));
            task = support::task_of(&decision);
            assert!(seen.insert((task.id, task.state.as_str())), "it goes round in circles");
        }
        assert_eq!(task.state, end);
    }
}
