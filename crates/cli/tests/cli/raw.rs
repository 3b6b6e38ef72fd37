//! Raw API requests, and versions.

use axum::extract::RawQuery;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::program::gpuaas_with;
use crate::server::{TOKEN, serve};

#[tokio::test]
async fn any_request_is_sent_with_the_sign_in_and_its_answer_printed_as_it_is() {
    let echo = |RawQuery(query): RawQuery| async move { Json(json!({ "query": query })) };
    let create = |Json(body): Json<Value>| async move { Json(body) };
    let url = serve(Router::new().route("/api/v1/things", get(echo).post(create))).await;
    let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN)];
    let ran = gpuaas_with(&["api", "GET", "/api/v1/things?limit=5&name=a%20b"], &env).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"query\":\"limit=5&name=a+b\"}\n"), "{ran:?}");
    let ran = gpuaas_with(&["api", "post", "/api/v1/things", "-d", r#"{"a":1}"#], &env).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"a\":1}\n"), "{ran:?}");
    for bad in ["api/v1/things", "/api/v1/{thing}"] {
        let ran = gpuaas_with(&["api", "GET", bad], &env).await;
        assert!(ran.code != 0 && ran.stdout.is_empty() && ran.stderr.contains("/api/v1/nodes"), "{ran:?}");
    }
    let unknown = gpuaas_with(&["api", "GET", "/api/v1/nothing"], &env).await;
    assert!(unknown.code != 0 && unknown.stdout.is_empty(), "{unknown:?}");
}

#[tokio::test]
async fn the_version_of_this_program_is_printed_with_and_without_a_server() {
    let ran = gpuaas_with(&["version", "-o", "json"], &[("GPUAAS_URL", "http://127.0.0.1:1"), ("GPUAAS_TOKEN", TOKEN)]).await;
    assert_eq!((ran.code, ran.json()["client"].as_str()), (0, Some(env!("CARGO_PKG_VERSION"))), "{ran:?}");
    assert!(ran.json()["server"].is_null() && ran.stderr.contains("is unknown"), "{ran:?}");
}
