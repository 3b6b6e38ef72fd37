//! Valid evidence, and every way to tamper with it.

use std::time::Duration;

use gpuaas_api::dto::Task;
use gpuaas_contract::id::{AgentInstanceId, CorrelationId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::receipt::{Outcome, PhaseTiming};
use gpuaas_contract::verifier_set::{Document, Entry};
use serde_json::value::RawValue;

use super::*;

const CLUSTER: ClusterId = ClusterId::from_bytes([1; 16]);
const NODE: NodeId = NodeId::from_bytes([2; 16]);
const TASK: TaskId = TaskId::from_bytes([3; 16]);
const NOW: Timestamp = Timestamp(1_767_225_600_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn key(byte: u8) -> SigningKey {
    SigningKey::from_seed(&[byte; 32])
}

fn root() -> SigningKey {
    key(9)
}

fn control() -> SigningKey {
    key(5)
}

fn node() -> SigningKey {
    key(7)
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).expect("json")
}

fn order() -> envelope::Payload {
    envelope::Payload {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: 1,
        task_id: TASK,
        task_type: "diag.ping".to_owned(),
        params: raw(r#"{"message":"hi","hold_ms":0,"log_lines":0}"#),
        allocation_id: None,
        lease_epoch: None,
        issued_at: NOW,
        start_by: NOW.plus(60 * SECOND),
        deadline: NOW.plus(360 * SECOND),
        correlation_id: CorrelationId::try_from("ticket".to_owned()).expect("plain"),
    }
}

fn answer(order: &envelope::Signed) -> receipt::Payload {
    receipt::Payload {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: 1,
        task_id: TASK,
        task_type: "diag.ping".to_owned(),
        task_digest: order.digest.clone(),
        agent_instance_id: AgentInstanceId::from_bytes([4; 16]),
        boot_id: "boot".to_owned(),
        attempt: 1,
        started_at: Some(NOW.plus(SECOND)),
        finished_at: NOW.plus(2 * SECOND),
        outcome: Outcome::Succeeded,
        code: "ok".to_owned(),
        message: String::new(),
        output: Some(raw(r#"{"message":"hi","host_time":1767225601000000,"recovered":false}"#)),
        phases: vec![PhaseTiming { phase: "effect".to_owned(), milliseconds: 3 }],
        cleanup_proof: None,
        sequence: 1,
        previous_receipt: None,
    }
}

fn set(state: KeyState) -> Vec<u8> {
    let public_key = control().verifying_key();
    let keys = vec![Entry { key_id: public_key.id(), public_key, state }];
    Document { cluster_id: CLUSTER, version: 4, issued_at: NOW, keys }.sign(&root())
}

fn record(receipt_key: &VerifyingKey, node_id: NodeId, signer: &SigningKey) -> Vec<u8> {
    let record = serde_json::json!({
        "cluster_id": CLUSTER, "node_id": node_id, "node_epoch": 1, "receipt_key": receipt_key,
        "tls_key_digest": Digest::of(b"spki"),
    });
    dsse::seal(NODE_RECORD_TYPE, serde_json::to_vec(&record).expect("json"), signer)
}

/// Returns evidence of this envelope and this receipt, as an honest server would present it.
fn evidence_of(
    order: &envelope::Payload,
    signer: &SigningKey,
    answer: impl FnOnce(&envelope::Signed) -> receipt::Payload,
) -> TaskEvidence {
    let signed = order.sign(signer);
    let reported = answer(&signed);
    let receipt = reported.sign(&node());
    TaskEvidence {
        task: Task {
            id: TASK,
            node_id: NODE,
            node_name: "rack-1".to_owned(),
            node_epoch: 1,
            task_type: "diag.ping".to_owned(),
            params: serde_json::from_str(order.params.get()).expect("json"),
            state: TaskState::from(reported.outcome).into(),
            requested_by: "token:x".to_owned(),
            correlation_id: order.correlation_id.clone(),
            idempotency_key: None,
            created_at: NOW,
            queue_until: NOW.plus(60 * SECOND),
            timeout_seconds: 300,
            dispatches: 1,
            lease_until: None,
            cancel_requested_at: None,
            accepted_at: Some(NOW),
            started_at: reported.started_at,
            ended_at: Some(NOW.plus(3 * SECOND)),
            code: reported.code.clone(),
            message: reported.message.clone(),
            receipt_digest: Some(receipt.digest),
            progress: None,
            output: reported.output.as_ref().map(|output| serde_json::from_str(output.get()).expect("json")),
            phases: reported.phases,
        },
        envelopes: vec![EnvelopeEvidence {
            digest: signed.digest,
            key_id: signer.verifying_key().id(),
            signed_at: NOW,
            envelope: signed.envelope,
        }],
        receipt: Some(receipt.receipt),
        receipt_key: node().verifying_key(),
        node_record: Some(record(&node().verifying_key(), NODE, &root())),
        cluster_id: CLUSTER,
        root_key: root().verifying_key(),
        verifier_set: set(KeyState::Active),
    }
}

fn good() -> TaskEvidence {
    evidence_of(&order(), &control(), answer)
}

/// Returns the names of the checks that failed.
fn failed(evidence: &TaskEvidence) -> Vec<&'static str> {
    let report = verify(evidence, None);
    let failed: Vec<_> = report.checks.iter().filter(|check| check.result == Verdict::Failed).map(|check| check.check).collect();
    assert_eq!(report.verified, failed.is_empty());
    failed
}

fn notes(evidence: &TaskEvidence) -> Vec<&'static str> {
    let checks = verify(evidence, None).checks;
    checks.iter().filter(|check| check.result == Verdict::Note).map(|check| check.check).collect()
}

#[test]
fn good_evidence_passes_every_check_under_a_pinned_root() {
    let root = root().verifying_key();
    for trust in [TrustRoot::Id(root.id()), TrustRoot::Key(root)] {
        let report = verify(&good(), Some(&trust));
        assert!(report.verified && report.root_key_pinned);
        let passed: Vec<_> =
            report.checks.iter().filter(|check| check.result == Verdict::Passed).map(|check| check.check).collect();
        assert_eq!(passed, ["root key", "verifier set", "envelope", "receipt key", "receipt", "outcome", "time"]);
    }
}

#[test]
fn evidence_survives_a_file() {
    let text = serde_json::to_string(&good()).expect("json");
    assert_eq!(serde_json::from_str::<TaskEvidence>(&text).expect("reads"), good());
}

#[test]
fn without_a_pinned_root_the_reader_is_told() {
    assert_eq!(notes(&good()), ["root key"]);
    let other = TrustRoot::Id(key(8).verifying_key().id());
    assert!(!verify(&good(), Some(&other)).verified);
}

#[test]
fn what_the_server_tells_must_be_what_was_signed() {
    type Tamper = fn(&mut TaskEvidence);
    let tamper: [(&str, Tamper); 12] = [
        ("outcome", |e| e.task.state = TaskState::Failed.into()),
        ("outcome", |e| e.task.code = "other".to_owned()),
        ("outcome", |e| e.task.message = "other".to_owned()),
        ("outcome", |e| e.task.output = Some(serde_json::json!({ "message": "other" }))),
        ("outcome", |e| e.task.phases.clear()),
        ("outcome", |e| e.task.receipt_digest = None),
        ("envelope", |e| e.task.params = serde_json::json!({ "message": "other" })),
        ("envelope", |e| e.task.task_type = "package.list".to_owned()),
        ("envelope", |e| e.task.id = TaskId::from_bytes([8; 16])),
        ("envelope", |e| e.task.node_id = NodeId::from_bytes([8; 16])),
        ("envelope", |e| e.task.node_epoch = 2),
        ("envelope", |e| e.envelopes[0].digest = Digest::of(b"other")),
    ];
    for (number, (check, tamper)) in tamper.into_iter().enumerate() {
        let mut evidence = good();
        tamper(&mut evidence);
        assert!(failed(&evidence).contains(&check), "case {number}: {:?}", failed(&evidence));
    }
}

#[test]
fn missing_parts_are_not_proof() {
    let mut evidence = good();
    evidence.receipt = None;
    assert_eq!(failed(&evidence), ["receipt"]);
    let mut evidence = good();
    evidence.envelopes.clear();
    assert_eq!(failed(&evidence), ["receipt"]);
}

#[test]
fn every_flipped_bit_of_a_signed_document_is_noticed() {
    type Document = fn(&mut TaskEvidence) -> &mut Vec<u8>;
    let documents: [(&str, Document); 4] = [
        ("verifier set", |e| &mut e.verifier_set),
        ("envelope", |e| &mut e.envelopes[0].envelope),
        ("receipt key", |e| e.node_record.as_mut().expect("there")),
        ("receipt", |e| e.receipt.as_mut().expect("there")),
    ];
    for (check, document) in documents {
        let length = document(&mut good()).len();
        // Every byte once, each time with another bit.
        for byte in 0..length {
            let mut evidence = good();
            document(&mut evidence)[byte] ^= 1 << (byte % 8);
            let noticed = failed(&evidence).contains(&check) || (check == "receipt key" && notes(&evidence).contains(&check));
            assert!(noticed, "{check}: byte {byte} was not noticed");
        }
    }
}

#[test]
fn documents_by_the_wrong_hand_are_refused() {
    let mut evidence = good();
    evidence.root_key = key(8).verifying_key();
    assert!(failed(&evidence).contains(&"verifier set"));

    let evidence = evidence_of(&order(), &key(8), answer);
    assert!(failed(&evidence).contains(&"envelope"));

    let mut evidence = good();
    evidence.receipt_key = key(8).verifying_key();
    assert!(failed(&evidence).contains(&"receipt") && failed(&evidence).contains(&"receipt key"));

    let mut evidence = good();
    evidence.cluster_id = ClusterId::from_bytes([8; 16]);
    assert!(failed(&evidence).contains(&"verifier set"));
}

#[test]
fn a_key_that_was_retired_since_was_good_then_and_a_revoked_one_never_is() {
    for (state, fails) in [
        (KeyState::Active, false),
        (KeyState::Grace, false),
        (KeyState::Retired, false),
        (KeyState::Staged, true),
        (KeyState::Revoked, true),
    ] {
        let mut evidence = good();
        evidence.verifier_set = set(state);
        assert_eq!(failed(&evidence).contains(&"envelope"), fails, "{state:?}");
        assert_eq!(notes(&evidence).contains(&"envelope"), state == KeyState::Retired, "{state:?}");
    }
}

#[test]
fn the_record_of_the_node_must_name_its_receipt_key() {
    let mut evidence = good();
    evidence.node_record = Some(record(&key(8).verifying_key(), NODE, &root()));
    assert_eq!(failed(&evidence), ["receipt key"]);
    evidence.node_record = Some(record(&node().verifying_key(), NodeId::from_bytes([8; 16]), &root()));
    assert_eq!(failed(&evidence), ["receipt key"]);
    // Not signed by the root key, or missing: that is not a false claim, but it proves nothing either.
    evidence.node_record = Some(record(&node().verifying_key(), NODE, &key(6)));
    assert_eq!((failed(&evidence), notes(&evidence)), (vec![], vec!["root key", "receipt key"]));
    evidence.node_record = None;
    assert_eq!((failed(&evidence), notes(&evidence)), (vec![], vec!["root key", "receipt key"]));
}

#[test]
fn times_outside_the_window_are_noticed() {
    let at = |started: Timestamp, finished: Timestamp| {
        evidence_of(&order(), &control(), |signed| receipt::Payload {
            started_at: Some(started),
            finished_at: finished,
            ..answer(signed)
        })
    };
    let end = NOW.plus(600 * SECOND);
    assert_eq!(failed(&at(NOW.minus(61 * SECOND), end)), ["time"]);
    assert_eq!(failed(&at(NOW.plus(121 * SECOND), end)), ["time"]);
    assert_eq!(failed(&at(NOW.plus(120 * SECOND), end)), Vec::<&str>::new());
    // A receipt whose fields contradict each other is rejected as a whole.
    assert_eq!(failed(&at(NOW.plus(2 * SECOND), NOW.plus(SECOND))), ["receipt"]);
    let never = evidence_of(&order(), &control(), |signed| receipt::Payload { started_at: None, ..answer(signed) });
    assert_eq!(failed(&never), ["receipt"]);
}

#[test]
fn a_refusal_is_proof_of_a_refusal() {
    let refused = evidence_of(&order(), &control(), |signed| receipt::Payload {
        outcome: Outcome::Refused,
        code: "policy_denied".to_owned(),
        output: None,
        started_at: None,
        phases: Vec::new(),
        ..answer(signed)
    });
    assert_eq!(failed(&refused), Vec::<&str>::new());
}

#[test]
fn trust_roots_are_read_as_id_or_key() {
    let key = root().verifying_key();
    assert_eq!(TrustRoot::parse(key.id().as_str()), Ok(TrustRoot::Id(key.id())));
    let text = base64::engine::general_purpose::STANDARD.encode(key.as_bytes());
    assert_eq!(TrustRoot::parse(&text), Ok(TrustRoot::Key(key)));
    for bad in ["", "key_", "key_xyz", "AAAA", "hello"] {
        assert!(TrustRoot::parse(bad).is_err(), "{bad}");
    }
}
