//! `task verify` offline, with valid and invalid evidence files.

use crate::program::gpuaas;

/// Nothing listens here, so any use of the network fails.
const NOWHERE: &str = "http://127.0.0.1:1";

fn evidence() -> gpuaas_api::dto::TaskEvidence {
    use gpuaas_api::dto::{EnvelopeEvidence, Task, TaskEvidence};
    use gpuaas_contract::id::{AgentInstanceId, ClusterId};
    use gpuaas_contract::key::SigningKey;
    use gpuaas_contract::time::Timestamp;
    use gpuaas_contract::verifier_set::{Document, Entry, KeyState};
    use gpuaas_contract::{envelope, receipt};

    let (root, control, node) =
        (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]), SigningKey::from_seed(&[3; 32]));
    let cluster_id = ClusterId::from_bytes([1; 16]);
    let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).expect("json");
    let told = crate::server::task("failed");
    let signed = envelope::Payload {
        cluster_id,
        node_id: told.node_id,
        node_epoch: 1,
        task_id: told.id,
        task_type: told.task_type.clone(),
        params: raw("{}"),
        allocation_id: None,
        lease_epoch: None,
        issued_at: Timestamp(10),
        start_by: Timestamp(20),
        deadline: Timestamp(30),
        correlation_id: told.correlation_id.clone(),
    }
    .sign(&control);
    let answer = receipt::Payload {
        cluster_id,
        node_id: told.node_id,
        node_epoch: 1,
        task_id: told.id,
        task_type: told.task_type.clone(),
        task_digest: signed.digest.clone(),
        agent_instance_id: AgentInstanceId::from_bytes([4; 16]),
        boot_id: String::new(),
        attempt: 1,
        started_at: Some(Timestamp(11)),
        finished_at: Timestamp(12),
        outcome: receipt::Outcome::Failed,
        code: told.code.clone(),
        message: String::new(),
        output: None,
        phases: Vec::new(),
        cleanup_proof: None,
        sequence: 1,
        previous_receipt: None,
    }
    .sign(&node);
    let public_key = control.verifying_key();
    let keys = vec![Entry { key_id: public_key.id(), public_key: public_key.clone(), state: KeyState::Active }];
    TaskEvidence {
        task: Task { receipt_digest: Some(answer.digest), ..told },
        envelopes: vec![EnvelopeEvidence {
            digest: signed.digest,
            key_id: public_key.id(),
            signed_at: Timestamp(10),
            envelope: signed.envelope,
        }],
        receipt: Some(answer.receipt),
        receipt_key: node.verifying_key(),
        node_record: None,
        cluster_id,
        root_key: root.verifying_key(),
        verifier_set: Document { cluster_id, version: 1, issued_at: Timestamp(1), keys }.sign(&root),
    }
}

fn save(folder: &tempfile::TempDir, evidence: &gpuaas_api::dto::TaskEvidence) -> String {
    let path = folder.path().join("evidence.json");
    std::fs::write(&path, serde_json::to_vec(evidence).expect("json")).expect("written");
    path.display().to_string()
}

#[tokio::test]
async fn evidence_is_verified_without_any_network() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(&folder, &evidence());
    let root = evidence().root_key.id().to_string();
    let ran = gpuaas(&["task", "verify", "--evidence", &path, "--trust-root", &root, "--url", NOWHERE, "-o", "json"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!((&ran.json()["verified"], &ran.json()["root_key_pinned"]), (&true.into(), &true.into()));
    let ran = gpuaas(&["task", "verify", "--evidence", &path]).await;
    assert!(ran.code == 0 && ran.stdout.contains("pin it with --trust-root"), "{ran:?}");
}

#[tokio::test]
async fn tampered_evidence_exits_with_1_and_names_the_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tampered = evidence();
    tampered.task.state = crate::server::open("succeeded");
    let path = save(&folder, &tampered);
    let ran = gpuaas(&["task", "verify", "--evidence", &path]).await;
    assert!(ran.code == 1 && ran.stdout.contains("the control plane tells another state"), "{ran:?}");
    let path = save(&folder, &evidence());
    let ran = gpuaas(&["task", "verify", "--evidence", &path, "--trust-root", &format!("key_{}", "0".repeat(32))]).await;
    assert!(ran.code == 1 && ran.stdout.contains("is not the one you trust"), "{ran:?}");
}

#[tokio::test]
async fn a_file_that_is_no_evidence_or_of_another_task_is_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(&folder, &evidence());
    let ran = gpuaas(&["task", "verify", "task_08", "--evidence", &path]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    std::fs::write(&path, "{}").expect("written");
    assert_eq!(gpuaas(&["task", "verify", "--evidence", &path]).await.code, 2);
    assert_eq!(gpuaas(&["task", "verify", "--evidence", "/nonexistent"]).await.code, 2);
    assert_eq!(gpuaas(&["task", "verify"]).await.code, 2);
}

#[tokio::test]
async fn evidence_fetched_from_a_server_can_be_saved_and_verified_later() {
    let router = axum::Router::new()
        .route(gpuaas_api::routes::TASK_EVIDENCE, axum::routing::get(|| async { axum::Json(evidence()) }))
        .merge(crate::server::tasks("failed"));
    let url = crate::server::serve(router).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved.json").display().to_string();
    let ran = gpuaas(&["task", "verify", "task_0909", "--save", &path, "--url", &url, "--token", crate::server::TOKEN]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(gpuaas(&["task", "verify", "--evidence", &path]).await.code, 0);
}
