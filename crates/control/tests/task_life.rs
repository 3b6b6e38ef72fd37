//! The life of a task as the control plane sees it, against a real server with a scripted node.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::lifecycle::Shop;
use common::looking::Looking;
use common::node::Host;
use common::{PATIENCE, TestServer};
use gpuaas_api::dto::{Reason, Task, TaskCreate};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::{LogChunk, LogLine, TaskPhase, from_node, to_node};
use gpuaas_contract::receipt::{Outcome, Signed};
use gpuaas_testkit::eventually_async;
use serde_json::json;

async fn run_ping(server: &TestServer, host: &Host) -> Task {
    server.client().task_create(&ping(host), None).await.unwrap()
}

fn ping(host: &Host) -> TaskCreate {
    TaskCreate {
        node: host.node_id().to_string(),
        task_type: "diag.ping".to_owned(),
        params: json!({ "message": "hi" }),
        queue_seconds: None,
        timeout_seconds: None,
    }
}

async fn state_becomes(server: &TestServer, id: TaskId, wanted: &str) -> Task {
    let client = server.client();
    eventually_async(PATIENCE, &format!("{id} becomes {wanted}"), || async {
        let task = client.task(&id.to_string()).await.unwrap();
        (task.state.as_str() == wanted).then_some(task)
    })
    .await
}

common::on_both_stores! {
    async fn queued_work_reaches_a_connected_node_by_wake_up_and_ends_with_its_receipt(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let offer = link.offer().await;
        assert_eq!(offer.task_id, task.id.to_string());
        let verified = host.verify(&offer.envelope);
        link.ack(task.id, TaskPhase::Accepted).await;
        state_becomes(&server, task.id, "accepted").await;
        link.ack(task.id, TaskPhase::Started).await;
        state_becomes(&server, task.id, "started").await;
        let Signed { receipt, digest } = host.receipt_payload(&verified, 1, None).sign(&host.receipt_key);
        assert_eq!(link.receipt(task.id, receipt.clone()).await, "");
        let done = server.client().task(&task.id.to_string()).await.unwrap();
        assert_eq!((done.state.as_str(), &done.receipt_digest), ("succeeded", &Some(digest.clone())));
        assert_eq!(done.output.unwrap()["message"], "hi");
        // The same receipt again is accepted; another one is not.
        assert_eq!(link.receipt(task.id, receipt).await, "");
        let mut other = host.receipt_payload(&verified, 2, Some(digest));
        other.message = "a second truth".to_owned();
        assert_eq!(link.receipt(task.id, other.sign(&host.receipt_key).receipt).await, "receipt_conflict");
        let metrics = server.metrics().await;
        for line in [
            "gpuaas_links{transport=\"stream\"} 1",
            "gpuaas_agents{version=\"test\"} 1",
            "gpuaas_tasks_dispatched_total 1",
            "gpuaas_tasks_ended_total{outcome=\"succeeded\"} 1",
            "gpuaas_receipts_rejected_total{code=\"receipt_conflict\"} 1",
        ] {
            assert!(metrics.contains(line), "`{line}` is not in\n{metrics}");
        }
        server.server.unwrap().stop().await;
    }

    async fn a_receipt_is_verified_before_it_is_believed(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let stranger = Host::enrolled(&server).await;
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let verified = host.verify(&link.offer().await.envelope);
        let good = host.receipt_payload(&verified, 1, None);
        let sign = |payload: &gpuaas_contract::receipt::Payload| payload.sign(&host.receipt_key).receipt;
        let with = |change: &dyn Fn(&mut gpuaas_contract::receipt::Payload)| {
            let mut payload = good.clone();
            change(&mut payload);
            sign(&payload)
        };
        let forged = good.sign(&SigningKey::from_seed(&[9; 32])).receipt;
        let mut flipped = sign(&good);
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for (receipt, code) in [
            (forged, "receipt_key_unknown"),
            (with(&|p| p.node_id = stranger.node_id()), "receipt_other_node"),
            (with(&|p| p.cluster_id = gpuaas_contract::id::ClusterId::generate()), "receipt_other_cluster"),
            (with(&|p| p.node_epoch += 1), "receipt_other_epoch"),
            (with(&|p| p.task_id = TaskId::generate()), "receipt_other_task"),
            (with(&|p| p.task_digest = Digest::of(b"never signed")), "receipt_other_envelope"),
            (with(&|p| p.output = None), "receipt_output_invalid"),
            (with(&|p| p.outcome = Outcome::Failed), "receipt_output_invalid"),
            (vec![b'x'; gpuaas_contract::receipt::MAX_BYTES + 1], "receipt_oversized"),
        ] {
            assert_eq!(link.receipt(task.id, receipt).await, code);
        }
        let flipped = link.receipt(task.id, flipped).await;
        assert!(["receipt_malformed", "receipt_signature_invalid"].contains(&flipped.as_str()), "{flipped}");
        // A task of another node cannot be ended, whoever signs.
        let other = run_ping(&server, &stranger).await;
        assert_eq!(link.receipt(other.id, sign(&good)).await, "receipt_task_unknown");
        assert_eq!(server.client().task(&task.id.to_string()).await.unwrap().state.as_str(), "dispatched");
        assert_eq!(link.receipt(task.id, sign(&good)).await, "");
        server.server.unwrap().stop().await;
    }

    async fn what_was_sent_and_never_accepted_is_sent_again_after_a_reconnect(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let first = link.offer().await;
        drop(link);
        let mut link = host.connect(&[]).await;
        let second = link.offer().await;
        assert_eq!((first.task_id, &second.task_id), (task.id.to_string(), &task.id.to_string()));
        assert_eq!(server.client().task(&task.id.to_string()).await.unwrap().dispatches, 2);
        // The answer to the first envelope is also valid: it was signed for this task.
        let verified = host.verify(&first.envelope);
        assert_eq!(link.receipt(task.id, host.receipt_payload(&verified, 1, None).sign(&host.receipt_key).receipt).await, "");
        server.server.unwrap().stop().await;
    }

    async fn what_the_node_has_in_hand_is_not_sent_again(server: TestServer) {
        let mut server = server;
        let mut host = Host::enrolled(&server).await;
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let offer = link.offer().await;
        let verified = host.verify(&offer.envelope);
        drop(link);
        // The acknowledgment was lost, and the server was restarted in the meantime.
        server.restart().await;
        host.link = server.server().link_address.unwrap();
        let mut link = host.connect(&[(task.id, TaskPhase::Started)]).await;
        assert_eq!(state_becomes(&server, task.id, "started").await.dispatches, 1);
        assert_eq!(link.receipt(task.id, host.receipt_payload(&verified, 1, None).sign(&host.receipt_key).receipt).await, "");
        server.server.unwrap().stop().await;
    }

    async fn a_task_the_node_forgot_is_lost_until_its_receipt_turns_up(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let verified = host.verify(&link.offer().await.envelope);
        link.ack(task.id, TaskPhase::Started).await;
        state_becomes(&server, task.id, "started").await;
        drop(link);
        let mut link = host.connect(&[]).await;
        assert_eq!(state_becomes(&server, task.id, "lost").await.code, "journal_lost");
        assert_eq!(link.receipt(task.id, host.receipt_payload(&verified, 1, None).sign(&host.receipt_key).receipt).await, "");
        state_becomes(&server, task.id, "succeeded").await;
        server.server.unwrap().stop().await;
    }

    async fn cancellation_reaches_the_node_and_ends_queued_work_at_once(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let client = server.client();
        let never_sent = run_ping(&server, &host).await;
        let reason = Reason { reason: "not needed".to_owned() };
        let ended = client.task_cancel(&never_sent.id.to_string(), &reason).await.unwrap();
        assert_eq!((ended.state.as_str(), ended.code.as_str()), ("cancelled", "cancelled_before_dispatch"));
        let mut link = host.connect(&[]).await;
        let task = run_ping(&server, &host).await;
        let verified = host.verify(&link.offer().await.envelope);
        link.ack(task.id, TaskPhase::Started).await;
        client.task_cancel(&task.id.to_string(), &reason).await.unwrap();
        let told = loop {
            if let Some(to_node::Message::Cancel(cancel)) = link.next().await {
                break cancel;
            }
        };
        assert_eq!((told.task_id, told.reason), (task.id.to_string(), "not needed".to_owned()));
        let mut payload = host.receipt_payload(&verified, 1, None);
        payload.outcome = Outcome::Cancelled;
        payload.code = "cancelled".to_owned();
        payload.output = None;
        assert_eq!(link.receipt(task.id, payload.sign(&host.receipt_key).receipt).await, "");
        assert_eq!(state_becomes(&server, task.id, "cancelled").await.code, "cancelled");
        server.server.unwrap().stop().await;
    }

    async fn a_draining_node_gets_no_new_work_and_finishes_what_it_has(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let client = server.client();
        let mut link = host.connect(&[]).await;
        let running = run_ping(&server, &host).await;
        let verified = host.verify(&link.offer().await.envelope);
        client.node_drain(&host.node_id().to_string(), &Reason { reason: "new fans".to_owned() }).await.unwrap();
        let refused = client.task_create(&ping(&host), None).await.unwrap_err();
        assert!(refused.to_string().contains("takes no new work"), "{refused}");
        assert_eq!(link.receipt(running.id, host.receipt_payload(&verified, 1, None).sign(&host.receipt_key).receipt).await, "");
        client.node_undrain(&host.node_id().to_string(), &Reason::default()).await.unwrap();
        let after = run_ping(&server, &host).await;
        assert_eq!(link.offer().await.task_id, after.id.to_string());
        server.server.unwrap().stop().await;
    }

    async fn a_row_that_somebody_wrote_into_the_database_is_never_signed(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let queued = run_ping(&server, &host).await;
        // An attacker with the database's password changes the task.
        let forged = r#"{"message":"forged","hold_ms":0,"log_lines":0}"#;
        let query = "UPDATE tasks SET params = $1 WHERE id = $2";
        match &server.pg {
            None => {
                let path = format!("sqlite:{}", server.dir.join("test.db").display());
                let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
                sqlx::query(query).bind(forged).bind(queued.id.to_string()).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Some(pg) => {
                let pool = sqlx::PgPool::connect(pg.url()).await.unwrap();
                sqlx::query(query).bind(forged).bind(queued.id.to_string()).execute(&pool).await.unwrap();
                pool.close().await;
            }
        }
        let mut link = host.connect(&[]).await;
        let task = state_becomes(&server, queued.id, "cancelled").await;
        assert_eq!((task.code.as_str(), task.dispatches), ("intent_forged", 0));
        let honest = run_ping(&server, &host).await;
        assert_eq!(link.offer().await.task_id, honest.id.to_string());
        server.server.unwrap().stop().await;
    }

    async fn the_same_idempotency_key_makes_one_task(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let client = server.client();
        let first = client.task_create(&ping(&host), Some("order-1")).await.unwrap();
        let again = client.task_create(&ping(&host), Some("order-1")).await.unwrap();
        assert_eq!(first.id, again.id);
        let mut other = ping(&host);
        other.params = json!({ "message": "something else" });
        let refused = client.task_create(&other, Some("order-1")).await.unwrap_err();
        assert!(refused.to_string().contains("idempotency key"), "{refused}");
        server.server.unwrap().stop().await;
    }

    async fn a_request_that_is_sent_many_times_at_once_is_done_once(server: TestServer) {
        let (_node, _) = Looking::with_slots(&server, 4).await;
        let shop = Shop::open(&server).await;
        let organization = json!({ "name": "once", "description": "" });
        let organizations = send_at_once(&server, routes::ORGANIZATIONS, "k-1", &organization).await;
        assert!(organizations.iter().all(|answer| answer.status == 201), "{organizations:?}");
        done_once(&organizations);

        let allocation = serde_json::to_value(shop.wants("once", "one")).unwrap();
        let path = routes::fill(routes::PROJECT_ALLOCATIONS, &[&shop.project]).unwrap();
        let allocations = send_at_once(&server, &path, "k-2", &allocation).await;
        assert!(allocations.iter().all(|answer| answer.status == if answer.replayed { 200 } else { 201 }), "{allocations:?}");
        done_once(&allocations);
        assert_eq!(server.client().project_quota(&shop.project).await.unwrap().used.allocations, 1);

        // The same key for something else is a mistake, whatever it was used for.
        let refused = send(&server, routes::ORGANIZATIONS, "k-2", &organization).await;
        assert_eq!((refused.status, refused.body["code"].as_str()), (409, Some("idempotency_key_reused")));
        // A request that was refused did nothing: its key is free.
        let taken = send(&server, routes::ORGANIZATIONS, "k-3", &organization).await;
        assert_eq!((taken.status, taken.body["code"].as_str()), (409, Some("name_taken")));
        let other = send(&server, routes::ORGANIZATIONS, "k-3", &json!({ "name": "twice", "description": "" })).await;
        assert_eq!((other.status, other.replayed), (201, false));
        server.server.unwrap().stop().await;
    }

    async fn a_secret_is_told_once_and_its_request_is_done_once(server: TestServer) {
        let token = json!({ "name": "ci", "role": "support" });
        let first = send(&server, routes::API_TOKENS, "k", &token).await;
        assert_eq!((first.status, first.replayed), (201, false), "{first:?}");
        let again = send(&server, routes::API_TOKENS, "k", &token).await;
        assert_eq!((again.status, again.body["code"].as_str()), (409, Some("idempotency_answer_lost")));
        let id = first.body["api_token"]["id"].as_str().unwrap();
        assert!(again.body["detail"].as_str().unwrap().contains(id), "it says where to look: {again:?}");
        server.server.unwrap().stop().await;
    }
}

/// What a request with a key was answered with.
#[derive(Debug)]
struct Answered {
    status: u16,
    replayed: bool,
    body: serde_json::Value,
}

async fn send(server: &TestServer, path: &str, key: &str, body: &serde_json::Value) -> Answered {
    let request = common::plain_http().post(server.url() + path).bearer_auth(&server.admin_token).json(body);
    let response = request.header(routes::IDEMPOTENCY_KEY_HEADER, key).send().await.unwrap();
    let replayed = response.headers().contains_key(routes::IDEMPOTENCY_REPLAYED_HEADER);
    Answered { status: response.status().as_u16(), replayed, body: response.json().await.unwrap() }
}

async fn send_at_once(server: &TestServer, path: &str, key: &str, body: &serde_json::Value) -> Vec<Answered> {
    futures::future::join_all((0..8).map(|_| send(server, path, key, body))).await
}

/// All are about the same thing, and all but one were told so.
fn done_once(answers: &[Answered]) {
    assert!(answers.iter().all(|answer| answer.body["id"] == answers[0].body["id"]), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1, "{answers:?}");
}

/// Sends log lines and waits until the last of them is acknowledged.
async fn floods(link: &mut common::node::Link, task: TaskId, lines: std::ops::Range<u64>, text: &str) {
    let numbers: Vec<u64> = lines.collect();
    // Chunks are stored concurrently.
    let mut unanswered: std::collections::BTreeSet<u64> = numbers.chunks(100).filter_map(|chunk| chunk.last().copied()).collect();
    for chunk in numbers.chunks(100) {
        let line = |sequence: &u64| LogLine {
            task_id: task.to_string(),
            sequence: *sequence,
            stream: "stdout".to_owned(),
            text: text.to_owned(),
            ..LogLine::default()
        };
        let chunk = LogChunk { lines: chunk.iter().map(line).collect() };
        link.say.send(from_node::Message::Logs(chunk).into()).await.unwrap();
    }
    while !unanswered.is_empty() {
        match link.next().await {
            Some(to_node::Message::LogAck(ack)) => {
                for position in ack.positions {
                    unanswered.remove(&position.sequence);
                }
            }
            Some(to_node::Message::Goodbye(goodbye)) => panic!("{goodbye:?}"),
            Some(_) => {}
            None => panic!("the stream ended"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_beyond_its_budget_is_cut_off_with_one_line_and_still_acknowledged() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let mut link = host.connect(&[]).await;
    let task = run_ping(&server, &host).await;
    link.offer().await;
    // 40 MB, of which 32 MiB are the budget of a task.
    floods(&mut link, task.id, 1..2_501, &"x".repeat(16_000)).await;
    let client = server.client();
    let (mut after, mut bytes, mut markers) = (0, 0, 0);
    loop {
        let query = gpuaas_api::dto::TaskLogsQuery { after: Some(after), limit: Some(500), follow: None };
        let page = client.task_logs(&task.id.to_string(), &query).await.unwrap();
        for line in page.lines {
            bytes += line.text.len();
            markers += usize::from(line.text.contains("budget"));
        }
        after = page.next_after;
        if page.at_end {
            break;
        }
    }
    assert!(bytes <= 32 * 1024 * 1024 && bytes > 30 * 1024 * 1024, "{bytes}");
    assert_eq!(markers, 1, "one line says that the rest is missing");
    assert!(server.metrics().await.contains("gpuaas_node_budget_exceeded_total{kind=\"task_log_bytes\"}"));
    // Another task of the node is not cut off.
    let other = run_ping(&server, &host).await;
    link.offer().await;
    floods(&mut link, other.id, 1..2, "hello").await;
    let lines = client.task_logs(&other.id.to_string(), &Default::default()).await.unwrap().lines;
    assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["hello"]);
}

common::on_both_stores! {
    async fn facts_beyond_their_budget_are_not_written_and_operators_are_told_once(server: TestServer) {
        let host = Host::enrolled(&server).await;
        let link = host.connect(&[]).await;
        for number in 0..140 {
            let facts_json = format!("{{\"kernel\":\"{number}\"}}");
            let beat = gpuaas_contract::link::Heartbeat { facts_json, ..Default::default() };
            link.say.send(from_node::Message::Heartbeat(beat).into()).await.unwrap();
        }
        let client = server.client();
        let query = gpuaas_api::dto::AuditQuery {
            target: Some(host.node_id().to_string()),
            limit: Some(1000),
            ..Default::default()
        };
        let rows = eventually_async(PATIENCE, "the node is beyond its budget", || async {
            let rows = client.audit(&query).await.unwrap().items;
            rows.iter().any(|row| row.action == "node.budget").then_some(rows)
        })
        .await;
        assert_eq!(rows.iter().filter(|row| row.action == "node.facts").count(), 120);
        // A receipt is answered after everything before it.
        let task = run_ping(&server, &host).await;
        let mut link = link;
        link.offer().await;
        assert_eq!(link.receipt(task.id, b"nonsense".to_vec()).await, "receipt_malformed");
        let rows = client.audit(&query).await.unwrap().items;
        assert_eq!(rows.iter().filter(|row| row.action == "node.facts").count(), 120, "the rest was dropped");
        assert_eq!(rows.iter().filter(|row| row.action == "node.budget").count(), 1);
        assert!(client.node(&host.node_id().to_string()).await.unwrap().online, "the link goes on");
    }
}
