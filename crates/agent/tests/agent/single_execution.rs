//! A task runs at most once, even if it is delivered twice, reordered or interrupted.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use gpuaas_agent::config::TransportChoice;
use gpuaas_agent::{JournalError, RunError};
use gpuaas_contract::link::{TaskPhase, from_node};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::{Task, diag_health_probe, diag_ping};

use crate::harness::{believe, enrolled, ping};

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_in_any_order_over_both_transports_and_restarts_leave_one_effect_each() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let tasks: Vec<_> = (0..120).map(|n| shared.sign(&ping(&format!("task {n}")), |_| {})).collect();
    // A fixed and thorough disorder: every task several times, far from its first delivery.
    let order: Vec<usize> = (0..tasks.len() * 4).map(|n| n * 37 % tasks.len()).collect();
    let lives = [TransportChoice::Stream, TransportChoice::Poll, TransportChoice::Stream];
    for (life, (choice, deliveries)) in lives.into_iter().zip(order.chunks(order.len() / 3)).enumerate() {
        let agent = host.start(choice);
        shared.hello(life + 1).await;
        for index in deliveries {
            let (task_id, signed) = &tasks[*index];
            assert!(shared.offer(*task_id, &signed.envelope));
        }
        // Waits for some, so that the restart happens in the middle of the work.
        let some = deliveries[deliveries.len() / 2];
        shared.receipt(tasks[some].0).await;
        agent.stop().await;
        shared.drop_session();
    }
    let agent = host.start(TransportChoice::Stream);
    shared.hello(lives.len() + 1).await;
    for (task_id, signed) in &tasks {
        assert!(shared.offer(*task_id, &signed.envelope));
    }
    let mut sequences = HashSet::new();
    for (task_id, signed) in &tasks {
        let (bytes, _) = shared.receipt(*task_id).await;
        let receipt = believe(shared, *task_id, &signed.digest, &bytes);
        assert_eq!(receipt.outcome, Outcome::Succeeded, "{} {}", receipt.code, receipt.message);
        assert!(sequences.insert(receipt.sequence), "two receipts share a sequence");
        assert_eq!(host.effects(*task_id), 1);
    }
    // All receipts of a task are identical.
    let mut seen = std::collections::HashMap::new();
    for heard in shared.heard() {
        if let from_node::Message::Receipt(receipt) = heard.message {
            let first = seen.entry(receipt.task_id).or_insert_with(|| receipt.receipt.clone());
            assert_eq!(*first, receipt.receipt);
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_form_a_chain() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let mut previous = None;
    for life in 1..=2 {
        let agent = host.start(TransportChoice::Stream);
        shared.hello(life).await;
        for _ in 0..3 {
            let (task_id, signed) = shared.sign(&ping("x"), |_| {});
            assert!(shared.offer(task_id, &signed.envelope));
            let (bytes, _) = shared.receipt(task_id).await;
            let receipt = believe(shared, task_id, &signed.digest, &bytes);
            assert_eq!(receipt.previous_receipt, previous);
            let payload = gpuaas_contract::dsse::open(
                &bytes,
                gpuaas_contract::receipt::MAX_BYTES,
                gpuaas_contract::receipt::PAYLOAD_TYPE,
                &shared.receipt_key(),
            );
            previous = Some(gpuaas_contract::Digest::of(&payload.expect("opens")));
        }
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_interrupted_by_a_restart_is_recovered_with_one_effect() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let hold = Task::DiagPing(diag_ping::Params { message: "held".to_owned(), hold_ms: 600_000, log_lines: 0 });
    let (task_id, signed) = shared.sign(&hold, |_| {});
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    assert!(shared.offer(task_id, &signed.envelope));
    let id = task_id.to_string();
    let started = |heard: &[crate::server::Heard]| {
        heard
            .iter()
            .find(|h| matches!(&h.message, from_node::Message::Ack(a) if a.task_id == id && a.phase() == TaskPhase::Started))?;
        Some(())
    };
    shared.wait_for("the start", started).await;
    agent.stop().await;
    assert_eq!(host.effects(task_id), 0);

    let agent = host.start(TransportChoice::Stream);
    let (hello, _) = shared.hello(2).await;
    assert_eq!((hello.tasks.len(), hello.tasks[0].phase()), (1, TaskPhase::Started));
    let (bytes, _) = shared.receipt(task_id).await;
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.attempt), (Outcome::Succeeded, 2));
    assert!(receipt.output.expect("output").get().contains("\"recovered\":true"));
    assert_eq!(host.effects(task_id), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_tasks_than_places_wait_and_all_run() {
    let (server, mut host) = enrolled().await;
    host.config.max_tasks = 1;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    let tasks: Vec<_> = (0..40).map(|_| shared.sign(&ping("x"), |_| {})).collect();
    for (task_id, signed) in &tasks {
        assert!(shared.offer(*task_id, &signed.envelope));
    }
    for (task_id, _) in &tasks {
        shared.receipt(*task_id).await;
        assert_eq!(host.effects(*task_id), 1);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_journal_is_repaired_and_the_control_plane_is_told() {
    use std::os::unix::fs::FileExt as _;
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    shared.confirm_receipts.store(false, Ordering::SeqCst);
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    let tasks: Vec<_> = (0..3).map(|_| shared.sign(&Task::DiagHealthProbe(diag_health_probe::Params {}), |_| {})).collect();
    for (task_id, signed) in &tasks {
        assert!(shared.offer(*task_id, &signed.envelope));
        shared.receipt(*task_id).await;
    }
    agent.stop().await;
    let journal = std::fs::OpenOptions::new().read(true).write(true).open(host.state("journal")).expect("opens");
    let mut byte = [0_u8; 1];
    journal.read_exact_at(&mut byte, 4096 + 100).expect("read");
    journal.write_all_at(&[byte[0] ^ 1], 4096 + 100).expect("rot");

    shared.confirm_receipts.store(true, Ordering::SeqCst);
    let agent = host.start(TransportChoice::Stream);
    let (hello, _) = shared.hello(2).await;
    assert!(hello.notices.iter().any(|notice| notice.contains("journal.damaged-1")), "{:?}", hello.notices);
    assert!(host.state("journal.damaged-1").exists());
    // An envelope signed before the damage, of a task unknown to the journal, may have run: it is not run again.
    let (old_id, old) = shared.sign(&ping("old"), |payload| {
        payload.issued_at = payload.issued_at.minus(std::time::Duration::from_secs(60));
    });
    assert!(shared.offer(old_id, &old.envelope));
    let (bytes, _) = shared.receipt(old_id).await;
    let receipt = believe(shared, old_id, &old.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Interrupted, "journal_damaged"));
    let (new_id, new) = shared.sign(&ping("new"), |_| {});
    assert!(shared.offer(new_id, &new.envelope));
    let (bytes, _) = shared.receipt(new_id).await;
    assert_eq!(believe(shared, new_id, &new.digest, &bytes).outcome, Outcome::Succeeded);
    assert_eq!((host.effects(old_id), host.effects(new_id)), (0, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_journal_is_gone_does_not_start_and_runs_nothing_twice() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let (task_id, signed) = shared.sign(&ping("once"), |_| {});
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    assert!(shared.offer(task_id, &signed.envelope));
    shared.receipt(task_id).await;
    agent.stop().await;
    shared.drop_session();
    std::fs::remove_file(host.state("journal")).expect("removed");

    let refused = host.start(TransportChoice::Stream).fails().await;
    assert!(matches!(refused, RunError::Journal(JournalError::Missing { .. })), "{refused}");
    assert!(refused.to_string().contains("gpuaas-agent journal accept-loss"), "{refused}");

    // The operator accepts the loss: the same task is answered, and not run.
    gpuaas_agent::accept_journal_loss(&host.config).expect("accepted");
    let agent = host.start(TransportChoice::Stream);
    shared.hello(2).await;
    let heard = shared.heard().len();
    assert!(shared.offer(task_id, &signed.envelope));
    let id = task_id.to_string();
    let bytes = shared
        .wait_for("the answer", |all: &[crate::server::Heard]| {
            all.iter().skip(heard).find_map(|heard| match &heard.message {
                from_node::Message::Receipt(receipt) if receipt.task_id == id => Some(receipt.receipt.clone()),
                _ => None,
            })
        })
        .await;
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Interrupted, "journal_damaged"));
    assert_eq!(host.effects(task_id), 1);
    let (after, signed) = shared.sign(&ping("later"), |_| {});
    assert!(shared.offer(after, &signed.envelope));
    shared.receipt(after).await;
    assert_eq!(host.effects(after), 1, "what is made later is run");
    agent.stop().await;
}
