//! The life cycle of a task, transition by transition.

mod support;

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::envelope::CLOCK_SKEW;
use gpuaas_contract::receipt::Outcome;
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_domain::task::{
    self, LEASE, MAX_QUEUE_TIME, MAX_TIMEOUT, MAX_UNFINISHED_PER_NODE, NewTask, ReceiptHead, START_WINDOW, TaskRecord, TaskState,
};
use gpuaas_domain::{Change, Decision, RefusalKind, Wakeup};
use support::{
    CLUSTER, NOW, assert_recorded, at, believed, code, context, dispatched, in_state, later, new_task, node, outgoing, queued,
    task_key, task_of, try_dispatch, verified,
};

fn create(node: &Node, new: NewTask, unfinished: u64) -> Result<(TaskRecord, Decision), gpuaas_domain::Refusal> {
    task::create(node, new, unfinished, &context(), |task| format!("mac of {}", task.id))
}

/// For a node whose journal was never damaged.
const NO_FENCE: gpuaas_contract::time::Timestamp = gpuaas_contract::time::Timestamp(0);

/// When the last envelope of a task can no longer start anywhere.
fn envelope_dead(task: &TaskRecord) -> gpuaas_contract::time::Timestamp {
    task.envelope_start_by.expect("was sent").plus(CLOCK_SKEW + CLOCK_SKEW)
}

#[test]
fn names_of_states_read_back_and_four_are_open() {
    for state in TaskState::ALL {
        assert_eq!(TaskState::parse(state.as_str()), Some(state));
        assert_eq!(in_state(state).state, state);
    }
    assert_eq!(TaskState::parse("done"), None);
    assert_eq!(TaskState::ALL.iter().filter(|state| !state.ended()).count(), 4);
    assert_eq!(TaskState::ALL.iter().filter(|state| state.in_hand()).count(), 2);
}

#[test]
fn a_task_is_queued_with_its_intent_and_wakes_its_node() {
    let new = NewTask { idempotency_key: Some("k".to_owned()), ..new_task() };
    let (made, decision) = create(&node(), new.clone(), MAX_UNFINISHED_PER_NODE - 1).expect("created");
    assert_eq!((made.state, made.version, made.dispatches), (TaskState::Queued, 0, 0));
    assert_eq!((made.node_id, made.node_epoch), (node().id, node().epoch));
    assert_eq!((made.intent.as_str(), made.requested_by), (format!("mac of {}", new.id).as_str(), context().actor.to_string()));
    assert_eq!(made.queue_until, NOW.plus(new.queue_time));
    assert_recorded(&decision, "gpuaas.task.queued.v1", "task.create");
    assert_eq!(decision.wakeups, [Wakeup::Task(made.id), Wakeup::NodeWork(made.node_id)]);
}

#[test]
fn a_task_for_a_waiting_node_is_written_as_sent_with_everything_that_both_steps_record() {
    let sign = |task: &TaskRecord| outgoing(task, &node(), NOW);
    let made = task::create_sent(&node(), new_task(), 0, &context(), |_| "mac".to_owned(), sign).expect("created");
    let (sent, out, decision) = made;
    let (task, created) =
        task::create(&node(), NewTask { id: sent.id, ..new_task() }, 0, &context(), |_| "mac".to_owned()).expect("created");
    let (_, dispatched) = task::dispatch(&task, &node(), &out, &context()).expect("sent");
    assert_eq!(sent, TaskRecord { version: 1, ..task_of(&dispatched) });
    assert_eq!(decision.changes, [vec![Change::TaskInsert(Box::new(sent.clone()))], dispatched.changes[1..].to_vec()].concat());
    let kinds = |decision: &Decision| decision.events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>();
    let actions = |decision: &Decision| decision.audit.iter().map(|row| (row.action, row.detail.clone())).collect::<Vec<_>>();
    assert_eq!(kinds(&decision), [kinds(&created), kinds(&dispatched)].concat());
    assert_eq!(actions(&decision), [actions(&created), actions(&dispatched)].concat());
    assert!(!decision.wakeups.contains(&Wakeup::NodeWork(sent.node_id)), "there is nothing left to look for");

    let draining = Node { service: NodeService::Draining, ..node() };
    let refused =
        task::create_sent(&draining, new_task(), 0, &context(), |_| "mac".to_owned(), |task| outgoing(task, &draining, NOW));
    assert_eq!(refused.expect_err("takes no work").code, "node_takes_no_work");
}

#[test]
fn what_cannot_be_asked_for_is_refused_with_its_code() {
    for service in NodeService::ALL {
        let result = create(&Node { service, service_reason: "why".to_owned(), ..node() }, new_task(), 0);
        match service {
            NodeService::InService => drop(result.expect("takes work")),
            NodeService::Draining | NodeService::Quarantined | NodeService::Locked | NodeService::Retired => {
                let refusal = result.expect_err("takes no work");
                assert_eq!((refusal.code, refusal.kind), ("node_takes_no_work", RefusalKind::Conflict));
                assert!(refusal.message.contains("why"), "{refusal}");
            }
        }
    }
    let refused = |new: NewTask| code(create(&node(), new, 0));
    for queue_time in [Duration::ZERO, MAX_QUEUE_TIME + Duration::from_micros(1)] {
        assert_eq!(refused(NewTask { queue_time, ..new_task() }), "queue_time_invalid");
    }
    for timeout in [Duration::ZERO, MAX_TIMEOUT + Duration::from_micros(1)] {
        assert_eq!(refused(NewTask { timeout, ..new_task() }), "timeout_invalid");
    }
    for key in [String::new(), "x".repeat(129)] {
        assert_eq!(refused(NewTask { idempotency_key: Some(key), ..new_task() }), "idempotency_key_invalid");
    }
    assert_eq!(code(create(&node(), new_task(), MAX_UNFINISHED_PER_NODE)), "node_queue_full");
}

#[test]
fn an_order_always_fits_into_an_envelope_or_is_refused() {
    let longest = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(task::MAX_PARAMS - 2))).expect("JSON");
    let payload = task::envelope_payload(&queued(), &node(), CLUSTER, NOW).expect("payload");
    let payload = gpuaas_contract::envelope::Payload {
        params: longest,
        allocation_id: Some(gpuaas_contract::id::AllocationId::generate()),
        lease_epoch: Some(u64::MAX),
        correlation_id: "x".repeat(128).try_into().unwrap_or(payload.correlation_id),
        ..payload
    };
    assert!(payload.sign(&task_key()).envelope.len() <= gpuaas_contract::envelope::MAX_BYTES);
    let ping = gpuaas_contract::task::diag_ping::Params { message: "x".repeat(task::MAX_PARAMS), ..Default::default() };
    let new = NewTask { task: gpuaas_contract::task::Task::DiagPing(ping), ..new_task() };
    assert_eq!(code(create(&node(), new, 0)), "params_too_large");
}

#[test]
fn the_intent_covers_everything_that_decides_what_runs_where() {
    let task = queued();
    let text = task::intent_text(&task);
    let changed = [
        TaskRecord { id: gpuaas_contract::id::TaskId::generate(), ..task.clone() },
        TaskRecord { node_id: gpuaas_contract::id::NodeId::generate(), ..task.clone() },
        TaskRecord { node_epoch: 9, ..task.clone() },
        TaskRecord { task_type: gpuaas_contract::task::TaskType::PackageList, ..task.clone() },
        TaskRecord { params: "{}".to_owned(), ..task.clone() },
        TaskRecord { requested_by: "somebody".to_owned(), ..task.clone() },
        TaskRecord { created_at: later(1), ..task.clone() },
        TaskRecord { queue_until: later(1), ..task.clone() },
        TaskRecord { timeout: Duration::from_secs(1), ..task.clone() },
    ];
    for other in changed {
        assert_ne!(task::intent_text(&other), text, "{other:?}");
    }
    assert_eq!(task::intent_text(&dispatched().clone()).lines().count(), text.lines().count());
    let went_on = TaskRecord { state: TaskState::Started, dispatches: 3, version: 8, ..task };
    assert_eq!(task::intent_text(&went_on), text, "what happens to the task does not change what was asked for");
}

#[test]
fn an_envelope_starts_within_its_window_and_never_after_the_queue_time() {
    let task = queued();
    let payload = task::envelope_payload(&task, &node(), CLUSTER, NOW).expect("payload");
    assert_eq!((payload.issued_at, payload.start_by), (NOW, NOW.plus(START_WINDOW)));
    assert_eq!(payload.deadline, payload.start_by.plus(task.timeout));
    assert_eq!((payload.task_id, payload.node_id, payload.node_epoch, payload.cluster_id), (task.id, node().id, 2, CLUSTER));
    let late = task::envelope_payload(&task, &node(), CLUSTER, later(599)).expect("payload");
    assert_eq!(late.start_by, task.queue_until);
    let broken = TaskRecord { params: "{".to_owned(), ..task };
    assert_eq!(code(task::envelope_payload(&broken, &node(), CLUSTER, NOW)), "task_params_corrupt");
}

#[test]
fn a_queued_task_goes_out_with_its_envelope_under_a_lease() {
    let before = queued();
    let decision = try_dispatch(&before, &node(), NOW).expect("sent");
    let after = task_of(&decision);
    assert_eq!((after.state, after.dispatches, after.lease_until), (TaskState::Dispatched, 1, Some(NOW.plus(LEASE))));
    assert_eq!(after.envelope_start_by, Some(NOW.plus(START_WINDOW)));
    let signed = task::envelope_payload(&before, &node(), CLUSTER, NOW).expect("payload").sign(&task_key());
    let insert = Change::EnvelopeInsert {
        task_id: before.id,
        digest: signed.digest,
        envelope: signed.envelope,
        key_id: task_key().verifying_key().id(),
        signed_at: NOW,
    };
    assert!(decision.changes.contains(&insert));
    assert_recorded(&decision, "gpuaas.task.dispatched.v1", "task.dispatch");
}

#[test]
fn what_must_not_go_out_does_not() {
    for state in TaskState::ALL.into_iter().filter(|state| *state != TaskState::Queued) {
        assert_eq!(code(try_dispatch(&in_state(state), &node(), NOW)), "task_not_dispatchable", "{state:?}");
    }
    let task = queued();
    let cancelled = TaskRecord { cancel_requested_at: Some(NOW), ..task.clone() };
    assert_eq!(code(try_dispatch(&cancelled, &node(), NOW)), "task_not_dispatchable");
    assert_eq!(code(try_dispatch(&task, &Node { epoch: 3, ..node() }, NOW)), "task_not_dispatchable");
    assert_eq!(code(try_dispatch(&task, &node(), later(601))), "task_not_dispatchable");
    for service in [NodeService::Draining, NodeService::Quarantined, NodeService::Locked, NodeService::Retired] {
        assert_eq!(code(try_dispatch(&task, &Node { service, ..node() }, NOW)), "task_not_dispatchable");
    }
}

#[test]
fn a_second_envelope_never_shortens_the_life_of_the_first() {
    let first = dispatched();
    let back = task_of(&task::tick(&first, &at(later(31))));
    let shorter = TaskRecord { queue_until: later(40), ..back };
    let second = task_of(&try_dispatch(&shorter, &node(), later(35)).expect("sent"));
    assert_eq!((second.dispatches, second.envelope_start_by), (2, first.envelope_start_by));
}

#[test]
fn every_acknowledgment_in_every_state() {
    for state in TaskState::ALL {
        for started in [false, true] {
            let before = in_state(state);
            let decision = task::acknowledged(&before, started, &at(later(3)));
            let forward = matches!((state, started), (TaskState::Dispatched, _) | (TaskState::Accepted, true));
            if !forward {
                assert_eq!(decision, Decision::default(), "{state:?} {started}");
                continue;
            }
            let after = task_of(&decision);
            assert_eq!(after.state, if started { TaskState::Started } else { TaskState::Accepted });
            assert_eq!(after.lease_until, None, "in hand: no lease takes it away");
            assert_eq!(after.accepted_at, Some(before.accepted_at.unwrap_or(later(3))));
            assert_eq!(after.started_at, started.then_some(later(3)));
            let (kind, action) =
                if started { ("gpuaas.task.started.v1", "task.start") } else { ("gpuaas.task.accepted.v1", "task.accept") };
            assert_recorded(&decision, kind, action);
        }
    }
}

#[test]
fn a_node_may_accept_what_was_requeued_a_moment_before() {
    let requeued = task_of(&task::tick(&dispatched(), &at(later(31))));
    assert_eq!(requeued.state, TaskState::Queued);
    for started in [false, true] {
        let after = task_of(&task::acknowledged(&requeued, started, &at(later(32))));
        assert!(after.state.in_hand(), "it is not sent again");
        assert_eq!(code(try_dispatch(&after, &node(), later(33))), "task_not_dispatchable");
    }
    assert!(task::acknowledged(&queued(), false, &context()).is_empty(), "nobody can have what was never sent");
}

#[test]
fn an_acknowledgment_of_a_cancelled_task_wakes_the_node_again() {
    let cancelled = task_of(&task::cancel(&dispatched(), "stop", &context()).expect("noted"));
    let decision = task::acknowledged(&cancelled, true, &context());
    assert!(decision.wakeups.contains(&Wakeup::NodeWork(cancelled.node_id)), "the cancellation must follow the task");
}

#[test]
fn cancelling_in_every_state() {
    for state in TaskState::ALL {
        let before = in_state(state);
        let result = task::cancel(&before, "stop", &at(later(5)));
        match state {
            TaskState::Queued => {
                let decision = result.expect("done");
                let after = task_of(&decision);
                assert_eq!((after.state, after.code.as_str()), (TaskState::Cancelled, "cancelled_before_dispatch"));
                assert_eq!((after.message.as_str(), after.ended_at), ("stop", Some(later(5))));
                assert_recorded(&decision, "gpuaas.task.cancelled.v1", "task.cancelled");
            }
            TaskState::Dispatched | TaskState::Accepted | TaskState::Started => {
                let decision = result.expect("noted");
                let after = task_of(&decision);
                assert_eq!((after.state, after.cancel_requested_at), (state, Some(later(5))), "only the node can end it");
                assert_recorded(&decision, "gpuaas.task.cancel_requested.v1", "task.cancel");
                assert_eq!(decision.wakeups, [Wakeup::NodeWork(before.node_id), Wakeup::Task(before.id)]);
                assert_eq!(task::cancel(&after, "again", &at(later(6))), Ok(Decision::default()), "twice is once");
            }
            TaskState::Cancelled => assert_eq!(result, Ok(Decision::default())),
            TaskState::Succeeded
            | TaskState::Failed
            | TaskState::Interrupted
            | TaskState::Refused
            | TaskState::Expired
            | TaskState::Lost => assert_eq!(code(result), "task_ended"),
        }
    }
    let requeued = task_of(&task::tick(&dispatched(), &at(later(31))));
    let after = task_of(&task::cancel(&requeued, "stop", &at(later(32))).expect("noted"));
    assert_eq!((after.state, after.cancel_requested_at), (TaskState::Queued, Some(later(32))), "an envelope is still out there");
    let long = "x".repeat(gpuaas_domain::node::MAX_REASON + 1);
    assert_eq!(code(task::cancel(&queued(), &long, &context())), "reason_too_long");
}

#[test]
fn what_the_node_does_not_know_goes_back_or_is_lost() {
    for state in TaskState::ALL {
        let decision = task::unknown_to_node(&in_state(state), NO_FENCE, &at(later(5)));
        match state {
            TaskState::Dispatched => {
                let after = task_of(&decision);
                assert_eq!((after.state, after.lease_until, after.envelope_start_by), (TaskState::Queued, None, None));
                assert_recorded(&decision, "gpuaas.task.requeued.v1", "task.requeue");
            }
            TaskState::Accepted | TaskState::Started => {
                let after = task_of(&decision);
                assert_eq!((after.state, after.code.as_str()), (TaskState::Lost, "journal_lost"));
                assert_recorded(&decision, "gpuaas.task.lost.v1", "task.lose");
            }
            TaskState::Queued
            | TaskState::Succeeded
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Interrupted
            | TaskState::Refused
            | TaskState::Expired
            | TaskState::Lost => assert_eq!(decision, Decision::default()),
        }
    }
    let cancelled = task_of(&task::cancel(&dispatched(), "stop", &context()).expect("noted"));
    let after = task_of(&task::unknown_to_node(&cancelled, NO_FENCE, &context()));
    assert_eq!((after.state, after.code.as_str()), (TaskState::Cancelled, "cancelled_unaccepted"), "the node has spoken");
}

#[test]
fn a_node_whose_journal_was_damaged_proves_nothing_about_older_tasks() {
    let fence = later(100);
    let after = task_of(&task::unknown_to_node(&dispatched(), fence, &at(later(101))));
    assert_eq!((after.state, after.envelope_start_by), (TaskState::Queued, dispatched().envelope_start_by));
    let cancelled = task_of(&task::cancel(&dispatched(), "stop", &context()).expect("noted"));
    assert!(task::unknown_to_node(&cancelled, fence, &at(later(101))).is_empty(), "it may have run");
    // A task that was certainly created after the damage.
    let young = TaskRecord { created_at: later(200), ..dispatched() };
    assert_eq!(task_of(&task::unknown_to_node(&young, fence, &at(later(201)))).envelope_start_by, None);
}

#[test]
fn time_alone_changes_only_what_no_node_has() {
    let long_after = at(later(10_000_000));
    for state in TaskState::ALL {
        let before = in_state(state);
        let decision = task::tick(&before, &long_after);
        match state {
            TaskState::Queued => {
                let after = task_of(&decision);
                assert_eq!((after.state, after.code.as_str()), (TaskState::Expired, "queue_time_over"));
                assert_recorded(&decision, "gpuaas.task.expired.v1", "task.expire");
            }
            TaskState::Dispatched => {
                let after = task_of(&decision);
                assert_eq!((after.state, after.code.as_str()), (TaskState::Lost, "no_word"), "the node may have run it");
                assert_recorded(&decision, "gpuaas.task.lost.v1", "task.lose");
            }
            TaskState::Accepted
            | TaskState::Started
            | TaskState::Succeeded
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Interrupted
            | TaskState::Refused
            | TaskState::Expired
            | TaskState::Lost => assert_eq!(decision, Decision::default(), "{state:?}"),
        }
        assert_eq!(task::due_at(&before).is_some(), matches!(state, TaskState::Queued | TaskState::Dispatched));
    }
}

#[test]
fn a_lease_lapses_and_an_unsent_task_expires_at_their_own_moments() {
    let sent = dispatched();
    assert!(task::tick(&sent, &at(NOW.plus(LEASE))).is_empty(), "the last moment of the lease counts");
    let decision = task::tick(&sent, &at(later(31)));
    let after = task_of(&decision);
    assert_eq!((after.state, after.lease_until, after.dispatches), (TaskState::Queued, None, 1));
    assert_eq!(decision.wakeups, [Wakeup::NodeWork(sent.node_id), Wakeup::Task(sent.id)]);

    let waiting = queued();
    assert!(task::tick(&waiting, &at(waiting.queue_until)).is_empty());
    assert_eq!(task_of(&task::tick(&waiting, &at(later(601)))).state, TaskState::Expired);
}

#[test]
fn a_task_with_an_envelope_out_there_ends_only_when_that_is_dead() {
    let sent = TaskRecord { queue_until: later(10), ..dispatched() };
    let requeued = task_of(&task::tick(&sent, &at(later(31))));
    let dead = envelope_dead(&requeued);
    assert!(task::tick(&requeued, &at(dead)).is_empty(), "a node may still start it");
    assert_eq!(task_of(&task::tick(&requeued, &at(dead.plus(Duration::from_micros(1))))).state, TaskState::Lost);
    // Unless the node has reported since that it does not have the task.
    let recalled = task_of(&task::unknown_to_node(&requeued, NO_FENCE, &at(later(40))));
    assert_eq!(task_of(&task::tick(&recalled, &at(later(41)))).state, TaskState::Expired);

    let cancelled = task_of(&task::cancel(&dispatched(), "stop", &context()).expect("noted"));
    assert!(task::tick(&cancelled, &at(envelope_dead(&cancelled))).is_empty());
    let after = task_of(&task::tick(&cancelled, &at(envelope_dead(&cancelled).plus(Duration::from_micros(1)))));
    assert_eq!(
        (after.state, after.code.as_str()),
        (TaskState::Lost, "no_word"),
        "the node may have accepted it, and its word was lost"
    );
}

#[test]
fn a_node_that_is_gone_takes_its_open_tasks_with_it() {
    for state in TaskState::ALL {
        let decision = task::node_gone(&in_state(state), "retired", &context());
        match state {
            TaskState::Queued => {
                assert_eq!(task_of(&decision).state, TaskState::Cancelled, "it was never sent: surely nothing ran");
            }
            TaskState::Dispatched | TaskState::Accepted | TaskState::Started => {
                let after = task_of(&decision);
                assert_eq!((after.state, after.code.as_str(), after.message.as_str()), (TaskState::Lost, "node_gone", "retired"));
            }
            TaskState::Succeeded
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Interrupted
            | TaskState::Refused
            | TaskState::Expired
            | TaskState::Lost => assert_eq!(decision, Decision::default()),
        }
    }
}

#[test]
fn a_forged_row_is_ended_and_never_signed() {
    let after = task_of(&task::intent_forged(&queued(), &context()));
    assert_eq!((after.state, after.code.as_str()), (TaskState::Cancelled, "intent_forged"));
}

#[test]
fn a_receipt_ends_a_task_whatever_was_believed_before() {
    let outcomes = [
        (Outcome::Succeeded, "gpuaas.task.succeeded.v1"),
        (Outcome::Failed, "gpuaas.task.failed.v1"),
        (Outcome::Cancelled, "gpuaas.task.cancelled.v1"),
        (Outcome::Interrupted, "gpuaas.task.interrupted.v1"),
        (Outcome::Refused, "gpuaas.task.refused.v1"),
    ];
    // Expired and lost tasks were given up, not ended by the node: a late receipt still counts.
    for state in
        [TaskState::Queued, TaskState::Dispatched, TaskState::Accepted, TaskState::Started, TaskState::Expired, TaskState::Lost]
    {
        for (outcome, kind) in outcomes {
            let before = in_state(state);
            let decision = believed(&before, outcome, later(9));
            let after = task_of(&decision);
            assert_eq!(after.state, TaskState::from(outcome), "{state:?}");
            assert_eq!((after.ended_at, after.lease_until), (Some(later(9)), None));
            assert_eq!(
                (after.code.as_str(), after.message.as_str()),
                (if outcome == Outcome::Succeeded { "ok" } else { "some_code" }, "in words")
            );
            assert!(after.receipt_digest.is_some() && after.accepted_at.is_some());
            let receipts = decision.changes.iter().filter(|change| matches!(change, Change::ReceiptInsert { .. })).count();
            assert_eq!(receipts, 1);
            assert_recorded(&decision, kind, "task.receipt");
            assert!(decision.wakeups.contains(&Wakeup::Task(before.id)));
        }
    }
}

#[test]
fn a_receipt_counts_once_and_another_one_conflicts() {
    let before = in_state(TaskState::Started);
    let (first, raw) = verified(&before, Outcome::Succeeded, 1);
    let decision = task::receipt(&before, &ReceiptHead::default(), &first, &raw, &context()).expect("taken").expect("news");
    let ended = task_of(&decision);
    assert_eq!(task::receipt(&ended, &ReceiptHead::default(), &first, &raw, &context()), Ok(None), "the same again is no news");
    let (second, raw) = verified(&before, Outcome::Failed, 2);
    assert_eq!(code(task::receipt(&ended, &ReceiptHead::default(), &second, &raw, &context())), "receipt_conflict");
}

#[test]
fn a_broken_receipt_chain_is_told_and_stops_nothing() {
    let before = in_state(TaskState::Started);
    for (sequence, head, intact) in [
        (1, ReceiptHead::default(), true),
        (2, ReceiptHead::default(), false),
        (1, ReceiptHead { sequence: 1, digest: Some(Digest::of(b"r")) }, false),
        (2, ReceiptHead { sequence: 1, digest: Some(Digest::of(b"r")) }, false),
        (2, ReceiptHead { sequence: 1, digest: Some(Digest::of(b"the receipt before")) }, true),
        (u64::MAX, ReceiptHead::default(), false),
        (1, ReceiptHead { sequence: u64::MAX, digest: None }, false),
    ] {
        let (verified, raw) = verified(&before, Outcome::Succeeded, sequence);
        let decision = task::receipt(&before, &head, &verified, &raw, &context()).expect("taken").expect("news");
        assert_eq!(decision.events[0].data["chain_intact"], intact, "{sequence} after {head:?}");
    }
}
