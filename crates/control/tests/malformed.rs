//! Requests that do not conform to the API document, and headers without a meaning where they are.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use gpuaas_api::routes;

async fn answer(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let body: serde_json::Value = response.json().await.unwrap();
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_query_that_makes_no_sense_is_a_bad_request() {
    let server = TestServer::sqlite().await;
    let ask = |query: &str| {
        let url = format!("{}{}?{query}", server.url(), routes::USERS);
        answer(common::plain_http().get(url).bearer_auth(&server.admin_token))
    };
    assert_eq!(ask("state=asleep").await, (400, "query_invalid".to_owned()));
    assert_eq!(ask("email=nobody").await, (400, "email_invalid".to_owned()));
    assert_eq!(ask("state=active&email=ada@example.org").await, (200, String::new()));
}

#[tokio::test]
async fn an_idempotency_key_means_something_only_to_what_makes_something() {
    let server = TestServer::sqlite().await;
    let with_key = |request: reqwest::RequestBuilder, key: &[u8]| {
        let key = reqwest::header::HeaderValue::from_bytes(key).unwrap();
        answer(request.bearer_auth(&server.admin_token).header(routes::IDEMPOTENCY_KEY_HEADER, key))
    };
    let http = common::plain_http();
    let (keys, stage) = (server.url() + routes::SIGNING_KEYS, server.url() + routes::SIGNING_KEYS_STAGE);
    // Bytes that are not text.
    assert_eq!(with_key(http.get(keys), b"\xff\xfe").await, (200, String::new()));
    for bad in [&b"\xff\xfe"[..], b"", &[b'x'; 129]] {
        assert_eq!(with_key(http.post(&stage), bad).await, (422, "idempotency_key_invalid".to_owned()));
    }
    assert_eq!(with_key(http.post(&stage), b"once").await, (200, String::new()));
}
