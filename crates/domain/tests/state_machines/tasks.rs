//! Tasks: from creation to the receipt, and what happens if either is missing.

use gpuaas_contract::envelope;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::task::{self, ReceiptHead, TaskRecord, TaskState};
use gpuaas_domain::{Change, Decision};

use crate::diagram::assert_drawn;
use crate::observed::{BEGINNING, Observed, search};
use crate::support::{NOW, at, context, later, new_task, node, outgoing, verified_for};

const OUTCOMES: [Outcome; 5] = [Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted, Outcome::Refused];
/// Seconds: after the lease of a dispatch, after the queue time, and after any envelope has expired.
const TIMES: [u64; 3] = [31, 601, 2 * 24 * 3600];

/// A task, and the last envelope that was signed for it.
#[derive(Clone)]
struct Sent {
    task: TaskRecord,
    envelope: Option<envelope::Signed>,
}

/// Everything that can be decided about a task: the cause, and the decision.
fn decided(Sent { task, envelope }: &Sent) -> Vec<(&'static str, Decision)> {
    let context = context();
    let mut all = vec![
        ("acknowledged", task::acknowledged(task, false, &context)),
        ("acknowledged", task::acknowledged(task, true, &context)),
        ("node_gone", task::node_gone(task, "retired", &context)),
        // The node's journal is intact, or was damaged after the task was created.
        ("unknown_to_node", task::unknown_to_node(task, Timestamp(0), &context)),
        ("unknown_to_node", task::unknown_to_node(task, later(24 * 3600), &context)),
    ];
    all.extend(TIMES.map(|seconds| ("tick", task::tick(task, &at(later(seconds))))));
    all.extend(task::cancel(task, "stop", &context).ok().map(|decision| ("cancel", decision)));
    if let Ok(outgoing) = outgoing(task, &node(), NOW) {
        all.extend(task::dispatch(task, &node(), &outgoing, &context).ok().map(|(_, decision)| ("dispatch", decision)));
    }
    // The intent is only checked before signing.
    if task.state == TaskState::Queued {
        all.push(("intent_forged", task::intent_forged(task, &context)));
    }
    for outcome in OUTCOMES {
        let Some(order) = envelope else { continue };
        let (verified, raw) = verified_for(task, order, outcome, 1);
        let decision = task::receipt(task, &ReceiptHead::default(), &verified, &raw, &context);
        all.extend(decision.ok().flatten().map(|decision| ("receipt", decision)));
    }
    all
}

fn applied(before: &Sent, decision: Decision) -> Sent {
    let mut after = before.clone();
    for change in decision.changes {
        match change {
            Change::TaskUpdate(task) => after.task = *task,
            Change::EnvelopeInsert { digest, envelope, .. } => {
                after.envelope = Some(envelope::Signed { envelope, digest });
            }
            Change::ReceiptInsert { .. } => {}
            other => panic!("a task's decision writes {other:?}"),
        }
    }
    after
}

#[test]
fn the_diagram_of_tasks_is_what_the_code_decides() {
    let mut observed = Observed::default();
    let (queued, decision) = task::create(&node(), new_task(), 0, &context(), |_| "mac".to_owned()).expect("created");
    observed.note(BEGINNING, queued.state.as_str(), "create", &decision.events);
    let sign = |task: &TaskRecord| outgoing(task, &node(), NOW);
    let (sent, order, decision) =
        task::create_sent(&node(), new_task(), 0, &context(), |_| "mac".to_owned(), sign).expect("created and sent");
    observed.note(BEGINNING, sent.state.as_str(), "create_sent", &decision.events);
    let start = vec![Sent { task: queued, envelope: None }, Sent { task: sent, envelope: Some(order.signed) }];
    let key = |Sent { task, envelope }: &Sent| {
        let marks = [
            envelope.is_some(),
            task.envelope_start_by.is_some(),
            task.cancel_requested_at.is_some(),
            task.receipt_digest.is_some(),
            task.dispatches > 0,
        ];
        (task.state.as_str(), marks)
    };
    search(start, key, |before| {
        let follows = |(by, decision): (&str, Decision)| {
            let after = applied(before, decision.clone());
            observed.note(before.task.state.as_str(), after.task.state.as_str(), by, &decision.events);
            after
        };
        decided(before).into_iter().map(follows).collect()
    });
    assert_drawn("Task", &TaskState::ALL.map(TaskState::as_str), &observed);
}
