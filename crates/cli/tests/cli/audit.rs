//! The audit chain: exported, verified, broken.

use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::AuditEntry;
use gpuaas_domain::audit_chain::{Head, append};

use crate::program::gpuaas;
use crate::server::{TOKEN, serve};

/// Returns a chain as one JSON row per line, and its head.
fn chain(rows: u64) -> (Vec<String>, String) {
    let mut head = Head::genesis();
    let lines = (0..rows)
        .map(|number| {
            let entry = AuditEntry {
                at: Timestamp(1),
                actor: "system".to_owned(),
                action: "task.create",
                target: format!("task_{number}"),
                correlation_id: CorrelationId::try_from("c".to_owned()).expect("plain"),
                detail: serde_json::json!({ "number": number }),
            };
            let row = append(&head, &entry).expect("json");
            head = Head { seq: row.seq, hash: row.hash.clone() };
            serde_json::to_string(&row).expect("json")
        })
        .collect();
    (lines, head.hash)
}

async fn serve_chain(lines: Vec<String>) -> String {
    let body = lines.join("\n") + "\n";
    serve(axum::Router::new().route(gpuaas_api::routes::AUDIT_EXPORT, axum::routing::get(|| async { body }))).await
}

#[tokio::test]
async fn a_chain_is_exported_to_a_file_and_verified_offline() {
    let (lines, head) = chain(50);
    let url = serve_chain(lines.clone()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.ndjson").display().to_string();
    let ran = gpuaas(&["audit", "export", "-f", &path, "-o", "json", "--url", &url, "--token", TOKEN]).await;
    assert_eq!((ran.code, ran.json()["rows"].as_u64()), (0, Some(50)), "{ran:?}");
    let ran = gpuaas(&["audit", "verify", "--file", &path, "--head", &head, "-o", "json"]).await;
    assert_eq!((ran.code, ran.json()["head"].as_str()), (0, Some(head.as_str())), "{ran:?}");
    let ran = gpuaas(&["audit", "export", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.stdout, lines.join("\n") + "\n");
    let ran = gpuaas(&["audit", "verify", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[tokio::test]
async fn a_changed_missing_or_cut_row_exits_with_1() {
    let (lines, head) = chain(5);
    let mut changed = lines.clone();
    changed[2] = changed[2].replace("\"actor\":\"system\"", "\"actor\":\"nobody\"");
    let mut missing = lines.clone();
    missing.remove(2);
    let mut garbage = lines.clone();
    garbage[4] = "{".to_owned();
    for (broken, words) in [(changed, "broken at row 3"), (missing, "broken at row 4"), (garbage, "the line after row 4")] {
        let url = serve_chain(broken).await;
        let ran = gpuaas(&["audit", "verify", "--url", &url, "--token", TOKEN]).await;
        assert!(ran.code == 1 && ran.stdout.contains(words), "{ran:?}");
    }
    // Rows cut off at the end leave a valid chain. Only the head from an earlier run reveals it.
    let url = serve_chain(lines[..4].to_vec()).await;
    assert_eq!(gpuaas(&["audit", "verify", "--url", &url, "--token", TOKEN]).await.code, 0);
    let ran = gpuaas(&["audit", "verify", "--head", &head, "--url", &url, "--token", TOKEN]).await;
    assert!(ran.code == 1 && ran.stdout.contains("cut off"), "{ran:?}");
}
