//! Lists, and how resources are named.

use axum::extract::Path;
use axum::routing::get;
use axum::{Json, Router};
use gpuaas_api::dto::{Node, Page};
use gpuaas_api::routes;

use crate::program::{gpuaas, gpuaas_with};
use crate::server::{TOKEN, node, nodes, open, serve, tasks};

#[tokio::test]
async fn every_format_prints_the_result_and_nothing_else() {
    let url = serve(nodes()).await;
    let connection = ["--url", &url, "--token", TOKEN];

    let table = gpuaas(&[&["node", "ls"], &connection[..]].concat()).await;
    let lines: Vec<&str> = table.stdout.lines().collect();
    assert_eq!((table.code, lines.len()), (0, 5), "{table:?}");
    assert!(lines[0].starts_with("ID ") && lines[1].contains("2 × H100 (simulated)"), "{table:?}");

    let json = gpuaas(&[&["node", "ls", "-o", "json"], &connection[..]].concat()).await;
    assert_eq!(json.json().as_array().map(Vec::len), Some(4));
    let yaml = gpuaas(&[&["-o", "yaml", "node", "ls"], &connection[..]].concat()).await;
    let read: serde_json::Value = serde_yaml_ng::from_str(&yaml.stdout).expect("yaml");
    assert_eq!(read, json.json());
    assert_eq!((table.stderr.as_str(), json.stderr.as_str(), yaml.stderr.as_str()), ("", "", ""));
}

#[tokio::test]
async fn a_node_is_found_by_id_beginning_and_name() {
    let url = serve(nodes()).await;
    let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN)];
    for name in ["rack-2", "node_02", "node_02020202020202020202020202020202"] {
        let shown = gpuaas_with(&["node", "show", name, "-o", "json"], &env).await;
        assert_eq!(shown.json()["name"], "rack-2", "{name}");
    }
    let ambiguous = gpuaas_with(&["node", "show", "twin"], &env).await;
    assert_eq!((ambiguous.code, ambiguous.stdout.as_str()), (2, ""));
    assert!(ambiguous.stderr.contains("hint: choose one: node_3131"), "{ambiguous:?}");
    let unknown = gpuaas_with(&["node", "show", "rack-9"], &env).await;
    assert_eq!(unknown.code, 3);
    let gone = gpuaas_with(&["node", "show", "node_77777777777777777777777777777777"], &env).await;
    assert_eq!(gone.code, 3, "{gone:?}");
}

#[tokio::test]
async fn an_empty_list_says_what_to_do_next_on_stderr() {
    let empty = axum::Router::new().route(
        gpuaas_api::routes::NODES,
        axum::routing::get(|| async { axum::Json(gpuaas_api::dto::Page::<gpuaas_api::dto::Node>::whole(Vec::new())) }),
    );
    let url = serve(empty).await;
    let ran = gpuaas(&["node", "ls", "--url", &url, "--token", TOKEN]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.contains("gpuaas node token create"), "{ran:?}");
    let ran = gpuaas(&["node", "ls", "-o", "json", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.stdout, "[]\n");
}

#[tokio::test]
async fn a_task_is_found_by_its_beginning() {
    let url = serve(tasks("succeeded")).await;
    let ran = gpuaas(&["task", "show", "task_0909", "-o", "json", "--url", &url, "--token", TOKEN]).await;
    assert_eq!((ran.code, ran.json()["state"].as_str()), (0, Some("succeeded")));
    let ran = gpuaas(&["task", "show", "task_08", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.code, 3);
    let ran = gpuaas(&["task", "show", "rack-1", "--url", &url, "--token", TOKEN]).await;
    assert_eq!(ran.code, 2);
}

#[tokio::test]
async fn completions_and_help_need_no_server() {
    let ran = gpuaas(&["completions", "bash"]).await;
    assert!(ran.code == 0 && ran.stdout.contains("_gpuaas") && ran.stderr.is_empty());
    let help = gpuaas(&["--help"]).await;
    assert!(help.code == 0 && help.stdout.contains("Exit codes:"));
}

#[tokio::test]
async fn revoking_a_token_signs_in_with_ones_own() {
    use gpuaas_api::dto::{ApiToken, Page};
    let token = ApiToken {
        id: gpuaas_contract::id::ApiTokenId::from_bytes([7; 16]),
        name: "dashboards".to_owned(),
        role: Some(open("support")),
        project: None,
        service_account: None,
        parent_id: None,
        created_by: None,
        scopes: None,
        created_at: gpuaas_contract::time::Timestamp(1),
        expires_at: None,
        revoked_at: None,
    };
    let revoked = ApiToken { revoked_at: Some(gpuaas_contract::time::Timestamp(2)), ..token.clone() };
    let router = axum::Router::new()
        .route(gpuaas_api::routes::API_TOKENS, axum::routing::get(|| async { axum::Json(Page::whole(vec![token])) }))
        .route(gpuaas_api::routes::API_TOKEN, axum::routing::delete(|| async { axum::Json(revoked) }));
    let url = serve(router).await;
    let ran =
        gpuaas_with(&["token", "revoke", "dashboards", "--yes", "-o", "json"], &[("GPUAAS_URL", &url), ("GPUAAS_TOKEN", TOKEN)])
            .await;
    assert_eq!((ran.code, ran.json()["revoked_at"].as_str()), (0, Some("1970-01-01T00:00:00.000002Z")), "{ran:?}");
}

#[tokio::test]
async fn a_retired_node_is_found_by_its_name_unless_another_has_it() {
    let retired = |node: Node| Node { service: open("retired"), ..node };
    let all = [retired(node(1, "gone")), retired(node(2, "rack-1")), node(3, "rack-1")];
    let by_id = all.clone();
    let router = Router::new().route(routes::NODES, get(move || async move { Json(Page::whole(all.to_vec())) })).route(
        routes::NODE,
        get(move |Path(id): Path<String>| async move { Json(by_id.into_iter().find(|node| node.id.to_string() == id)) }),
    );
    let url = serve(router).await;
    let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN)];
    for (name, service) in [("gone", "retired"), ("rack-1", "in_service")] {
        let ran = gpuaas_with(&["node", "show", name, "-o", "json"], &env).await;
        assert_eq!((ran.code, ran.json()["service"].as_str()), (0, Some(service)), "{ran:?}");
    }
}
