//! Both transports, the switch between them, outages, cancellation.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpuaas_agent::config::TransportChoice;
use gpuaas_contract::link::{Cancel, Goodbye, Ping, TaskPhase, VerifierSet, from_node, to_node};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::{Task, diag_ping, package_list};
use gpuaas_contract::verifier_set::KeyState;

use crate::harness::{believe, enrolled, eventually, ping};
use crate::server::{self, Server, StreamMode};

async fn a_task_goes_all_the_way(choice: TransportChoice, transport: &'static str) {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(choice);
    agent.connected_by(transport).await;
    let (hello, _) = shared.hello(1).await;
    assert!(hello.facts_json.contains("NVIDIA H100") && hello.capacity == 4 && hello.node_epoch == 1);

    let task = Task::DiagPing(diag_ping::Params { message: "hi".to_owned(), hold_ms: 1, log_lines: 50 });
    let (task_id, signed) = shared.sign(&task, |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, by) = shared.receipt(task_id).await;
    assert_eq!(by, transport);
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str(), receipt.sequence, receipt.attempt), (Outcome::Succeeded, "ok", 1, 1));
    assert!(receipt.output.expect("output").get().contains("\"hi\""));
    assert_eq!(receipt.phases.iter().map(|phase| phase.phase.as_str()).collect::<Vec<_>>(), ["hold", "effect"]);
    assert_eq!(host.effects(task_id), 1);

    let id = task_id.to_string();
    // There was a place to run, so acceptance and start are one.
    assert_eq!(acks(shared, &id, 1).await, [TaskPhase::Started]);
    let lines = all_lines(shared, &id, 50).await;
    assert_eq!(lines.iter().map(|line| line.sequence).collect::<Vec<_>>(), (1..=50).collect::<Vec<_>>());
    assert!(lines.iter().all(|line| line.dropped == 0));
    for wanted in ["heartbeat", "metrics"] {
        shared
            .wait_for(wanted, |heard| {
                heard.iter().find(|heard| match &heard.message {
                    from_node::Message::Heartbeat(_) => wanted == "heartbeat",
                    from_node::Message::Metrics(metrics) => wanted == "metrics" && metrics.metrics_json.contains("gpus"),
                    _ => false,
                })?;
                Some(())
            })
            .await;
    }
    agent.stop().await;
}

async fn all_lines(shared: &server::Shared, task: &str, count: usize) -> Vec<gpuaas_contract::link::LogLine> {
    shared
        .wait_for("the log", |heard| {
            let mut lines: Vec<_> = heard
                .iter()
                .filter_map(|heard| match &heard.message {
                    from_node::Message::Logs(chunk) => Some(chunk.lines.clone()),
                    _ => None,
                })
                .flatten()
                .filter(|line| line.task_id == task)
                .collect();
            lines.sort_by_key(|line| line.sequence);
            lines.dedup_by_key(|line| line.sequence);
            Some(lines).filter(|lines| lines.len() == count)
        })
        .await
}

/// Returns the phases that the node reported of a task, once there are this many.
async fn acks(shared: &server::Shared, task_id: &str, at_least: usize) -> Vec<TaskPhase> {
    let found = shared.wait_for("acks", |heard| {
        let acks = heard.iter().filter_map(|heard| match &heard.message {
            from_node::Message::Ack(ack) if ack.task_id == task_id => Some(ack.phase()),
            _ => None,
        });
        Some(acks.collect::<Vec<_>>()).filter(|acks| acks.len() >= at_least)
    });
    found.await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_finds_no_place_is_accepted_first_and_started_later() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Stream);
    agent.connected_by("stream").await;
    let mut waited = 0;
    let mut tasks = Vec::new();
    // One more than can run at the same time.
    for number in 0..5 {
        let task = Task::DiagPing(diag_ping::Params { message: format!("{number}"), hold_ms: 500, log_lines: 0 });
        let (task_id, signed) = shared.sign(&task, |_| {});
        assert!(shared.offer(task_id, &signed.envelope));
        tasks.push(task_id);
    }
    for task_id in tasks {
        shared.receipt(task_id).await;
        assert_eq!(host.effects(task_id), 1);
        match acks(shared, &task_id.to_string(), 1).await.as_slice() {
            [TaskPhase::Started] => {}
            [TaskPhase::Accepted, TaskPhase::Started] => waited += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(waited, 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_all_the_way_by_stream() {
    a_task_goes_all_the_way(TransportChoice::Auto, "stream").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_all_the_way_by_long_poll() {
    a_task_goes_all_the_way(TransportChoice::Poll, "poll").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_breaks_streams_gets_long_poll_and_the_stream_back_when_it_works() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    shared.set_stream_mode(StreamMode::NeverWelcomes);
    let agent = host.start(TransportChoice::Auto);
    agent.connected_by("poll").await;
    let (by_poll, signed) = shared.sign(&ping("by poll"), |_| {});
    assert!(shared.offer(by_poll, &signed.envelope));
    assert_eq!(shared.receipt(by_poll).await.1, "poll");

    shared.set_stream_mode(StreamMode::Works);
    agent.connected_by("stream").await;
    let (by_stream, signed) = shared.sign(&ping("by stream"), |_| {});
    assert!(shared.offer(by_stream, &signed.envelope));
    assert_eq!(shared.receipt(by_stream).await.1, "stream");
    assert_eq!((host.effects(by_poll), host.effects(by_stream)), (1, 1));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_only_agent_never_polls() {
    let (server, host) = enrolled().await;
    server.shared.set_stream_mode(StreamMode::NeverWelcomes);
    let agent = host.start(TransportChoice::Stream);
    // More failures than lead to long-poll.
    eventually("six streams", || server.shared.streams.load(Ordering::SeqCst) >= 6).await;
    assert!(server.shared.heard().is_empty());
    server.shared.set_stream_mode(StreamMode::Works);
    agent.connected_by("stream").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_and_is_reported_after_an_outage() {
    let (server, host) = enrolled().await;
    let shared = server.shared.clone();
    let agent = host.start(TransportChoice::Auto);
    agent.connected_by("stream").await;
    let task = Task::DiagPing(diag_ping::Params { message: "m".to_owned(), hold_ms: 1500, log_lines: 2000 });
    let (task_id, signed) = shared.sign(&task, |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let id = task_id.to_string();
    shared
        .wait_for("the start", |heard| {
            heard.iter().find(
                |h| matches!(&h.message, from_node::Message::Ack(ack) if ack.task_id == id && ack.phase() == TaskPhase::Started),
            )?;
            Some(())
        })
        .await;
    let address = server.address;
    drop(server);
    agent.connected_by("").await;
    assert!(shared.heard().iter().all(|h| !matches!(h.message, from_node::Message::Receipt(_))), "it still ran");
    shared.drop_session();
    // The effect happens while there is no link.
    eventually("the effect", || host.effects(task_id) == 1).await;
    let server = Server::start_at(shared.clone(), address).await;
    let (bytes, _) = shared.receipt(task_id).await;
    assert_eq!(believe(&shared, task_id, &signed.digest, &bytes).outcome, Outcome::Succeeded);
    let (hello, _) = shared.hello(2).await;
    let in_hand: Vec<_> = hello.tasks.iter().map(|task| task.task_id.as_str()).collect();
    assert_eq!(in_hand, [task_id.to_string()]);
    let lines = all_lines(&shared, &task_id.to_string(), 2000).await;
    assert!(lines.iter().all(|line| line.dropped == 0));
    assert_eq!(host.effects(task_id), 1);
    agent.stop().await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_receipts_and_lines_are_sent_again_after_a_restart() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    shared.confirm_receipts.store(false, Ordering::SeqCst);
    shared.confirm_logs.store(false, Ordering::SeqCst);
    let agent = host.start(TransportChoice::Auto);
    agent.connected_by("stream").await;
    let task = Task::DiagPing(diag_ping::Params { log_lines: 10, ..diag_ping::Params::default() });
    let (task_id, signed) = shared.sign(&task, |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (first, _) = shared.receipt(task_id).await;
    agent.stop().await;

    shared.confirm_receipts.store(true, Ordering::SeqCst);
    shared.confirm_logs.store(true, Ordering::SeqCst);
    let agent = host.start(TransportChoice::Poll);
    let id = task_id.to_string();
    let again = shared
        .wait_for("the receipt again", |heard| {
            let mut receipts = heard.iter().filter_map(|h| match &h.message {
                from_node::Message::Receipt(receipt) if receipt.task_id == id => Some((receipt.receipt.clone(), h.transport)),
                _ => None,
            });
            receipts.find(|(_, transport)| *transport == "poll")
        })
        .await;
    assert_eq!(again.0, first, "the stored receipt, byte for byte");
    shared
        .wait_for("the lines again", |heard| {
            heard.iter().find(|h| {
                h.transport == "poll" && matches!(&h.message, from_node::Message::Logs(chunk) if chunk.lines.len() == 10)
            })?;
            Some(())
        })
        .await;
    agent.stop().await;
    // Confirmed now: the third run has nothing in hand.
    let agent = host.start(TransportChoice::Auto);
    let (hello, _) = shared.hello(3).await;
    assert!(hello.tasks.is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_stops_and_says_so() {
    for choice in [TransportChoice::Stream, TransportChoice::Poll] {
        let (server, host) = enrolled().await;
        let shared = &server.shared;
        let agent = host.start(choice);
        let task = Task::DiagPing(diag_ping::Params { hold_ms: 600_000, ..diag_ping::Params::default() });
        let (task_id, signed) = shared.sign(&task, |_| {});
        shared.hello(1).await;
        assert!(shared.offer(task_id, &signed.envelope));
        let id = task_id.to_string();
        shared
            .wait_for("the hold", |heard| {
                heard
                    .iter()
                    .find(|h| matches!(&h.message, from_node::Message::Progress(p) if p.task_id == id && p.phase == "hold"))?;
                Some(())
            })
            .await;
        assert!(shared.tell(to_node::Message::Cancel(Cancel { task_id: id, reason: "operator changed their mind".to_owned() })));
        let (bytes, _) = shared.receipt(task_id).await;
        let receipt = believe(shared, task_id, &signed.digest, &bytes);
        assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Cancelled, "cancelled"));
        assert_eq!(receipt.message, "operator changed their mind");
        assert_eq!(host.effects(task_id), 0);
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_past_its_deadline_is_stopped() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    let task = Task::DiagPing(diag_ping::Params { hold_ms: 600_000, ..diag_ping::Params::default() });
    let (task_id, signed) = shared.sign(&task, |payload| {
        payload.start_by = payload.issued_at.plus(Duration::from_millis(500));
        payload.deadline = payload.issued_at.plus(Duration::from_secs(1));
    });
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, _) = shared.receipt(task_id).await;
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Failed, "deadline_exceeded"));
    assert_eq!(host.effects(task_id), 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_and_a_goodbye_is_followed_by_a_new_hello() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    assert!(shared.tell(to_node::Message::Ping(Ping { nonce: 77 })));
    shared
        .wait_for("the pong", |heard| {
            heard.iter().find(|h| matches!(&h.message, from_node::Message::Pong(pong) if pong.nonce == 77))?;
            Some(())
        })
        .await;
    for (number, code) in [(2, "server_shutdown"), (3, "node_locked")] {
        let goodbye = Goodbye { code: code.to_owned(), message: "test".to_owned(), retry_after_seconds: 0 };
        assert!(shared.tell(to_node::Message::Goodbye(goodbye)));
        shared.hello(number).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_verifier_set_counts_at_once_and_after_a_restart_and_never_goes_back() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    let set = |version, state| {
        let document = server::verifier_set(shared.cluster_id, version, state);
        to_node::Message::VerifierSet(VerifierSet { version, document })
    };
    assert!(shared.tell(set(3, KeyState::Revoked)));
    assert!(shared.tell(set(2, KeyState::Active)), "a rollback, to be ignored");
    let (task_id, signed) = shared.sign(&ping("x"), |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let rejected = |heard: &[server::Heard], id: &str| {
        heard.iter().find_map(|h| match &h.message {
            from_node::Message::Rejection(rejection) if rejection.task_id == id => Some(rejection.code.clone()),
            _ => None,
        })
    };
    let id = task_id.to_string();
    assert_eq!(shared.wait_for("a rejection", |heard| rejected(heard, &id)).await, "key_not_usable");
    agent.stop().await;
    let agent = host.start(TransportChoice::Auto);
    let (hello, _) = shared.hello(2).await;
    assert_eq!(hello.verifier_set_version, 3);
    assert_eq!(host.effects(task_id), 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_does_not_allow_is_refused_with_a_receipt() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let write = |text: &str| {
        gpuaas_host::private_file::write_with_mode(&host.config.policy_file, text.as_bytes(), 0o644).expect("policy");
    };
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    write("allowed_tasks = [\"package.list\"]\n");
    let (task_id, signed) = shared.sign(&ping("x"), |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, _) = shared.receipt(task_id).await;
    let receipt = believe(shared, task_id, &signed.digest, &bytes);
    assert_eq!((receipt.outcome, receipt.code.as_str()), (Outcome::Refused, "policy_denied"));
    assert!(receipt.message.contains("policy.toml") && receipt.started_at.is_none());
    assert_eq!(host.effects(task_id), 0);
    let (list_id, list) = shared.sign(&Task::PackageList(package_list::Params::default()), |_| {});
    assert!(shared.offer(list_id, &list.envelope));
    assert!(String::from_utf8_lossy(&shared.receipt(list_id).await.0).contains("payload"));
    agent.stop().await;
}

async fn a_reconnect_proves_the_last_link(choice: TransportChoice, transport: &'static str) {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(choice);
    agent.connected_by(transport).await;
    let (first, _) = shared.hello(1).await;
    assert!(first.resume_session.is_empty() && first.resume_proof.is_empty(), "a new process has nothing to prove");
    shared.drop_session();
    // The server checks every proof.
    let (second, _) = shared.hello(2).await;
    assert!(!second.resume_session.is_empty() && second.resume_proof.len() == 32);
    shared.drop_session();
    let (third, _) = shared.hello(3).await;
    assert_ne!(third.resume_session, second.resume_session, "every link has a secret of its own");
    agent.stop().await;
    // It was in memory only.
    let agent = host.start(choice);
    let (fresh, _) = shared.hello(4).await;
    assert!(fresh.resume_session.is_empty() && fresh.resume_proof.is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_proves_on_its_own_connection_that_the_process_held_the_last_stream() {
    a_reconnect_proves_the_last_link(TransportChoice::Stream, "stream").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_proves_on_its_own_connection_that_the_process_held_the_last_long_poll() {
    a_reconnect_proves_the_last_link(TransportChoice::Poll, "poll").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_over_long_poll_is_answered_with_its_own_nonce() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Poll);
    agent.connected_by("poll").await;
    assert!(shared.tell(to_node::Message::Ping(Ping { nonce: 41 })));
    let answered = shared.wait_for("the pong", |heard| {
        heard.iter().find(|heard| matches!(&heard.message, from_node::Message::Pong(pong) if pong.nonce == 41)).map(drop)
    });
    answered.await;
    agent.stop().await;
}
