//! Errors are reported in one line, with what to do next and the right exit code.

use crate::program::{gpuaas, gpuaas_with};
use crate::server::{TOKEN, nodes, problem, serve, tasks};

#[tokio::test]
async fn a_wrong_command_line_is_2() {
    for arguments in [
        &["frobnicate"][..],
        &["node"],
        &["node", "show"],
        &["task", "run", "n", "t", "--timeout", "soon"],
        &["node", "ls", "-o", "xml"],
    ] {
        let ran = gpuaas(arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}");
    }
    let ran = gpuaas(&["node", "ls", "--url", "nonsense"]).await;
    assert!(ran.code == 2 && ran.stderr.starts_with("error: `nonsense` is not the address of a server"), "{ran:?}");
}

#[tokio::test]
async fn no_server_is_6_and_says_how_to_start_one() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let ran = gpuaas(&["node", "ls", "--url", &url]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (6, ""));
    let first = ran.stderr.lines().next().expect("a line");
    assert_eq!(first, format!("error: cannot reach {url}: is `gpuaas server` or `gpuaas dev` running there?"));
    assert!(ran.stderr.contains("  hint: start one with `gpuaas dev`"), "{ran:?}");
}

#[tokio::test]
async fn no_token_is_5_and_a_json_error_is_one_object_on_stderr() {
    let url = serve(nodes()).await;
    let ran = gpuaas(&["node", "ls", "--url", &url, "-o", "json"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""));
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("one object");
    assert_eq!(error["error"]["code"], "token_required");
    assert_eq!(error["error"]["exit_code"], 5);
    assert_eq!(error["error"]["correlation_id"], "corr_test");
}

#[tokio::test]
async fn a_conflict_is_4_with_the_servers_own_words() {
    let url = serve(tasks("succeeded")).await;
    let ran = gpuaas(&["task", "cancel", "task_0909", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.code, 4);
    assert!(ran.stderr.starts_with("error: the task has ended already\n"), "{ran:?}");
}

#[tokio::test]
async fn a_broken_server_is_8() {
    let broken = axum::routing::get(|| async { problem(500, "internal", "something broke") });
    let url = serve(axum::Router::new().route(gpuaas_api::routes::CLUSTER, broken)).await;
    assert_eq!(gpuaas(&["cluster", "info", "--url", &url, "--token", TOKEN]).await.code, 8);
}

#[tokio::test]
async fn a_config_file_with_an_unknown_key_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.toml");
    std::fs::write(&path, "url = \"http://127.0.0.1:1\"\ncolor = \"blue\"\n").expect("written");
    let ran = gpuaas_with(&["node", "ls"], &[("GPUAAS_CONFIG", path.to_str().expect("text"))]).await;
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("c.toml line 2: unknown field `color`"), "{ran:?}");
}

#[tokio::test]
async fn a_token_that_is_refused_by_a_server_of_another_time_leads_to_the_clock() {
    let refused = || async {
        let mut response = problem(401, "token_expired", "the token has expired");
        response.headers_mut().insert("date", "Tue, 15 Nov 1994 08:12:31 GMT".parse().expect("a date"));
        response
    };
    let url = serve(axum::Router::new().route(gpuaas_api::routes::NODES, axum::routing::get(refused))).await;
    let ran = gpuaas(&["node", "ls", "-o", "json", "--url", &url, "--token", TOKEN]).await;
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("one object");
    assert_eq!((ran.code, error["error"]["code"].as_str()), (5, Some("clock_skew")), "{ran:?}");
    assert!(ran.stderr.contains("ahead of") && ran.stderr.contains("set the clock"), "{ran:?}");
}
