//! `--jq`, `--since` and `--limit`.

use axum::routing::get;
use axum::{Json, Router};
use gpuaas_api::dto::{AuditRow, Node, Page, Task};
use gpuaas_api::routes;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;
use serde_json::json;

use crate::program::{Ran, gpuaas, gpuaas_with};
use crate::server::{TOKEN, node, nodes, serve, task, tasks};

async fn run(url: &str, arguments: &[&str]) -> Ran {
    gpuaas_with(arguments, &[("GPUAAS_URL", url), ("GPUAAS_TOKEN", TOKEN)]).await
}

#[tokio::test]
async fn jq_filters_lists_documents_streams_and_raw_answers() {
    let things = Router::new().route("/api/v1/things", get(|| async { Json(json!({ "a": [1, 2] })) }));
    let url = serve(Router::new().merge(nodes()).merge(tasks("succeeded")).merge(things)).await;
    for (arguments, printed) in [
        (&["node", "ls", "--jq", ".[].name"][..], "rack-1\nrack-2\ntwin\ntwin\n"),
        (&["node", "ls", "-o", "json", "--jq", "length"], "4\n"),
        (&["node", "show", "rack-1", "--jq", "{name, gpus: (.facts.gpus | length)}"], "{\"name\":\"rack-1\",\"gpus\":2}\n"),
        (&["task", "logs", "task_0909", "--jq", ".sequence"], "1\n2\n"),
        (&["api", "GET", "/api/v1/things", "--jq", ".a | add"], "3\n"),
    ] {
        let ran = run(&url, arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, printed, ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_jq_expression_that_cannot_be_used_is_2_before_anything_is_asked() {
    for (expression, expected) in [(".[", "end of the expression"), ("names", "no filter `names`")] {
        let ran = gpuaas(&["node", "ls", "--jq", expression, "--url", "http://127.0.0.1:1"]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
        assert!(ran.stderr.starts_with("error: --jq: ") && ran.stderr.contains(expected), "{ran:?}");
    }
    let url = serve(nodes()).await;
    let ran = run(&url, &["node", "ls", "-o", "json", "--jq", ".name"]).await;
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("one object");
    assert_eq!((ran.code, error["error"]["code"].as_str()), (2, Some("jq_failed")), "{ran:?}");
    for other in [&["-o", "yaml"][..], &["-o", "wide"], &["-q"], &["--columns", "name"]] {
        let ran = run(&url, &[&["node", "ls", "--jq", "."], other].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{other:?}");
    }
}

#[tokio::test]
async fn since_leaves_out_what_is_older() {
    let hours_ago = |hours: u64| Timestamp::now().minus(std::time::Duration::from_secs(hours * 3600));
    let old_and_new = move || async move {
        let at = |hours, byte| Task { id: TaskId::from_bytes([byte; 16]), created_at: hours_ago(hours), ..task("succeeded") };
        // Newest first, with a next page that must not be requested.
        Json(Page { items: vec![at(1, 3), at(2, 2), at(50, 1)], next: Some("more".to_owned()) })
    };
    let two = move || async move {
        let at = |hours, byte, name| Node { created_at: hours_ago(hours), ..node(byte, name) };
        Json(Page::whole(vec![at(100, 1, "old"), at(1, 2, "new"), at(2, 3, "newer")]))
    };
    let url = serve(Router::new().route(routes::TASKS, get(old_and_new)).route(routes::NODES, get(two))).await;
    for (arguments, count) in [(&["task", "ls", "--since", "3h"][..], 2), (&["node", "ls", "--since", "3d"], 2)] {
        let ran = run(&url, &[arguments, &["-q"]].concat()).await;
        assert_eq!((ran.code, ran.stdout.lines().count()), (0, count), "{arguments:?}: {ran:?}");
    }
    // Rows are filtered before they are counted.
    let ran = run(&url, &["node", "ls", "--since", "3d", "--limit", "1", "--jq", ".[].name"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "new\n"), "{ran:?}");
    let ran = run(&url, &["node", "ls", "--since", &hours_ago(1000).rfc3339(), "--jq", "length"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "3\n"), "{ran:?}");
    let ran = run(&url, &["node", "ls", "--since", "yesterday"]).await;
    assert!(ran.code == 2 && ran.stderr.contains("2h or 3d"), "{ran:?}");
}

#[tokio::test]
async fn recent_audit_rows_are_the_newest_ones() {
    let row = |seq: u64| AuditRow {
        seq,
        at: Timestamp::now(),
        actor: "system".to_owned(),
        action: "x".to_owned(),
        target: "t".to_owned(),
        correlation_id: "c".to_owned(),
        body: "{}".to_owned(),
        prev_hash: String::new(),
        hash: String::new(),
    };
    let list = move || async move { Json(Page::whole((1..=5).map(row).collect())) };
    let url = serve(Router::new().route(routes::AUDIT, get(list))).await;
    let ran = run(&url, &["audit", "ls", "--since", "1h", "--limit", "2", "--jq", "map(.seq)"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "[4,5]\n"), "{ran:?}");
}

#[tokio::test]
async fn every_list_takes_a_limit_and_says_that_there_are_more() {
    let url = serve(nodes()).await;
    let ran = run(&url, &["node", "ls", "--limit", "3", "-q"]).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 3), "{ran:?}");
}

#[tokio::test]
async fn every_list_has_the_options_of_lists() {
    for list in [
        &["alloc", "ls"][..],
        &["ssh-key", "ls"],
        &["image", "ls"],
        &["webhook", "ls"],
        &["webhook", "deliveries"],
        &["org", "ls"],
        &["project", "ls"],
        &["member", "ls"],
        &["service-account", "ls"],
        &["key", "ls"],
        &["sku", "ls"],
        &["machine", "ls"],
        &["maintenance", "ls"],
        &["node", "ls"],
        &["node", "requests"],
        &["node", "token", "ls"],
        &["slot", "ls"],
        &["slice", "ls"],
        &["task", "ls"],
        &["audit", "ls"],
        &["token", "ls"],
        &["user", "ls"],
    ] {
        let help = gpuaas(&[list, &["--help"]].concat()).await;
        assert!(help.stdout.contains("--since <TIME>") && help.stdout.contains("-w, --watch"), "{list:?}: {}", help.stdout);
    }
    for list in [&["catalog"][..], &["capacity"], &["signing-key", "ls"]] {
        let help = gpuaas(&[list, &["--help"]].concat()).await;
        assert!(help.stdout.contains("-w, --watch"), "{list:?}: {}", help.stdout);
    }
}
