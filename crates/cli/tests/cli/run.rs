//! Running tasks, waiting for them, reading their logs.

use axum::Router;

use crate::program::gpuaas;
use crate::server::{TOKEN, nodes, serve, tasks};

async fn serve_all(end: &'static str) -> String {
    serve(Router::new().merge(nodes()).merge(tasks(end))).await
}

#[tokio::test]
async fn waiting_shows_phases_on_stderr_and_only_the_ended_task_on_stdout() {
    let url = serve_all("succeeded").await;
    let ran = gpuaas(&["task", "run", "rack-1", "diag.ping", "--wait", "-o", "json", "--url", &url, "--token", TOKEN]).await;
    assert_eq!((ran.code, ran.json()["state"].as_str()), (0, Some("succeeded")), "{ran:?}");
    let told: Vec<&str> = ran.stderr.lines().collect();
    let id = "task_09090909090909090909090909090909";
    let state = |state: &str| format!("{id} diag.ping on rack-1: {state}");
    assert_eq!(told, [&state("queued"), &state("started"), "  phase effect: leaving a mark", &state("succeeded")]);
}

#[tokio::test]
async fn the_exit_code_is_the_outcome() {
    for (end, code) in
        [("failed", 1), ("cancelled", 1), ("interrupted", 1), ("lost", 1), ("refused", 4), ("expired", 7), ("succeeded", 0)]
    {
        let url = serve_all(end).await;
        let ran = gpuaas(&["task", "run", "rack-1", "diag.ping", "-w", "-o", "json", "--url", &url, "--token", TOKEN]).await;
        assert_eq!((ran.code, ran.json()["state"].as_str()), (code, Some(end)));
    }
}

#[tokio::test]
async fn parameters_limits_and_headers_reach_the_server() {
    let url = serve_all("succeeded").await;
    let ran = gpuaas(&[
        "task",
        "run",
        "rack-1",
        "diag.ping",
        "--params",
        r#"{"hold_ms":5}"#,
        "--param",
        "message=7",
        "--timeout",
        "2m",
        "--queue-time",
        "90",
        "--idempotency-key",
        "once",
        "--correlation-id",
        "ticket-1",
        "-o",
        "json",
        "--url",
        &url,
        "--token",
        TOKEN,
    ])
    .await;
    let task = ran.json();
    assert_eq!(task["params"], serde_json::json!({ "hold_ms": 5, "message": "7" }));
    assert_eq!(task["idempotency_key"], "once");
    assert_eq!(task["message"], "node_01010101010101010101010101010101 Some(90) Some(120) Some(\"ticket-1\")");
    assert!(ran.code == 0 && ran.stderr.contains("gpuaas task show"), "{ran:?}");
}

#[tokio::test]
async fn log_lines_can_be_read_followed_and_shown_while_waiting() {
    let url = serve_all("succeeded").await;
    let connection = ["--url", &url, "--token", TOKEN];
    let ran = gpuaas(&[&["task", "logs", "task_0909", "-f"], &connection[..]].concat()).await;
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((ran.code, lines.len()), (0, 2));
    assert!(lines[0].ends_with("line 1\u{fffd}[2J"), "a host must not steer the terminal: {ran:?}");
    let ran = gpuaas(&[&["task", "logs", "task_0909", "-o", "json"], &connection[..]].concat()).await;
    let sequences: Vec<u64> = ran
        .stdout
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("one object per line")["sequence"].as_u64().expect("a number")
        })
        .collect();
    assert_eq!(sequences, [1, 2]);
    let ran = gpuaas(&[&["task", "run", "rack-1", "diag.ping", "--logs", "-o", "json"], &connection[..]].concat()).await;
    assert!(ran.code == 0 && ran.json()["state"] == "succeeded" && ran.stderr.contains("line 2"), "{ran:?}");
}
