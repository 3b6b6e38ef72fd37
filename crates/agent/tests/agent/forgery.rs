//! Invalid envelopes through the whole agent: each with its own code, none with an effect.

use std::time::Duration;

use gpuaas_agent::config::TransportChoice;
use gpuaas_contract::envelope::Payload;
use gpuaas_contract::id::{ClusterId, NodeId, TaskId};
use gpuaas_contract::link::{Offer, from_node, to_node};
use gpuaas_contract::receipt;
use serde_json::value::RawValue;

use crate::harness::{Host, enrolled, ping};
use crate::server::{Heard, Server};

fn rejection(heard: &[Heard], id: &str) -> Option<String> {
    heard.iter().find_map(|heard| match &heard.message {
        from_node::Message::Rejection(rejection) if rejection.task_id == id => Some(rejection.code.clone()),
        _ => None,
    })
}

/// Returns how the agent answered an envelope: by a rejection or by a receipt, and with which code.
async fn answer(server: &Server, task_id: TaskId, envelope: &[u8]) -> (&'static str, String) {
    let shared = &server.shared;
    assert!(shared.offer(task_id, envelope));
    let id = task_id.to_string();
    shared
        .wait_for("an answer", |heard| {
            if let Some(code) = rejection(heard, &id) {
                return Some(("rejection", code));
            }
            heard.iter().find_map(|heard| match &heard.message {
                from_node::Message::Receipt(found) if found.task_id == id => {
                    let payload = gpuaas_contract::dsse::open(
                        &found.receipt,
                        receipt::MAX_BYTES,
                        receipt::PAYLOAD_TYPE,
                        &shared.receipt_key(),
                    );
                    let payload: receipt::Payload =
                        serde_json::from_slice(&payload.expect("signed by the node")).expect("a receipt");
                    Some(("receipt", payload.code))
                }
                _ => None,
            })
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_wrong_envelope_has_its_own_code_and_no_effect() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    type Change = fn(&mut Payload);
    let cases: [(&str, &str, Change); 9] = [
        ("rejection", "cluster_mismatch", |p| p.cluster_id = ClusterId::generate()),
        ("rejection", "node_mismatch", |p| p.node_id = NodeId::generate()),
        ("rejection", "epoch_mismatch", |p| p.node_epoch += 1),
        ("receipt", "task_type_unknown", |p| p.task_type = "shell.exec".to_owned()),
        ("receipt", "params_invalid", |p| p.params = RawValue::from_string("{\"hold_ms\":-1}".to_owned()).expect("json")),
        ("receipt", "task_unknown_field", |p| p.params = RawValue::from_string("{\"x\":1}".to_owned()).expect("json")),
        ("receipt", "window_invalid", |p| p.start_by = p.issued_at.plus(Duration::from_secs(3600))),
        ("receipt", "task_early", |p| {
            for time in [&mut p.issued_at, &mut p.start_by, &mut p.deadline] {
                *time = time.plus(Duration::from_secs(3600));
            }
        }),
        ("receipt", "task_expired", |p| {
            for time in [&mut p.issued_at, &mut p.start_by, &mut p.deadline] {
                *time = time.minus(Duration::from_secs(3600));
            }
        }),
    ];
    for (how, code, change) in cases {
        let (task_id, signed) = shared.sign(&ping("forged"), change);
        assert_eq!(answer(&server, task_id, &signed.envelope).await, (how, code.to_owned()));
        assert_eq!(host.effects(task_id), 0, "{code}");
    }
    let (task_id, signed) = shared.sign(&ping("x"), |_| {});
    let oversized = vec![b' '; gpuaas_contract::envelope::MAX_BYTES + 1];
    assert_eq!(answer(&server, TaskId::generate(), &oversized).await.1, "envelope_oversized");
    assert_eq!(answer(&server, TaskId::generate(), b"{}").await.1, "envelope_malformed");
    let text = String::from_utf8(signed.envelope.clone()).expect("json");
    let other_key = text.replace("key_", "key_0");
    assert_eq!(answer(&server, TaskId::generate(), other_key.as_bytes()).await.1, "key_unknown");
    let other_type = text.replace("task.v1", "task.v2");
    assert_eq!(answer(&server, TaskId::generate(), other_type.as_bytes()).await.1, "signature_invalid");
    assert_eq!(host.effects(task_id), 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_bits_of_an_envelope_are_all_rejected_and_the_original_still_runs_once() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let agent = host.start(TransportChoice::Stream);
    shared.hello(1).await;
    let (task_id, signed) = shared.sign(&ping("genuine"), |_| {});
    // The contract's test covers every bit; here a sample of them goes through the running agent.
    let bits: Vec<usize> = (0..signed.envelope.len() * 8).step_by(61).collect();
    for bit in &bits {
        let mut forged = signed.envelope.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        let offer = Offer { task_id: format!("bit {bit}"), envelope: forged };
        assert!(shared.tell(to_node::Message::Offer(offer)));
    }
    for bit in &bits {
        shared.wait_for("a rejection", |heard| rejection(heard, &format!("bit {bit}"))).await;
    }
    assert_eq!(host.effects(task_id), 0);
    assert_eq!(answer(&server, task_id, &signed.envelope).await, ("receipt", "ok".to_owned()));
    assert_eq!(host.effects(task_id), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_after_a_restart_gets_the_stored_receipt_and_no_second_effect() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let (task_id, signed) = shared.sign(&ping("once"), |_| {});
    for life in 1..=3 {
        let agent = host.start(TransportChoice::Stream);
        shared.hello(life).await;
        assert!(shared.offer(task_id, &signed.envelope));
        let id = task_id.to_string();
        let receipts = shared
            .wait_for("a receipt per life", |heard| {
                let receipts = heard.iter().filter_map(|h| match &h.message {
                    from_node::Message::Receipt(receipt) if receipt.task_id == id => Some(receipt.receipt.clone()),
                    _ => None,
                });
                Some(receipts.collect::<Vec<_>>()).filter(|receipts| receipts.len() >= life)
            })
            .await;
        assert!(receipts.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(host.effects(task_id), 1);
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_a_policy_that_others_can_write_does_not_start() {
    use std::os::unix::fs::PermissionsExt as _;
    let (server, host): (Server, Host) = enrolled().await;
    std::fs::set_permissions(&host.config.policy_file, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    let error = gpuaas_agent::error_chain::chain(&host.start(TransportChoice::Stream).fails().await);
    assert!(error.contains("chmod go-w"), "{error}");
    drop(server);
}
