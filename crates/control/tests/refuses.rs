//! Every link method called by a host without the right, and requests that are never allowed. `authorization.rs` tests who may
//! call which endpoint of the API.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use common::node::Host;
use gpuaas_api::dto::{ApiTokenCreate, PageQuery};
use gpuaas_api::routes;
use gpuaas_contract::access::PlatformRole;
use gpuaas_contract::id::{SessionId, TaskId};
use gpuaas_contract::link::{self, route};
use reqwest::Method;

#[tokio::test]
async fn what_is_no_endpoint_says_so_to_those_who_are_known() {
    let server = TestServer::sqlite().await;
    let ask = async |method: Method, path: &str, token: Option<&str>| {
        let mut request = common::plain_http().request(method, format!("{}{path}", server.url()));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.unwrap();
        let allow = response.headers().get("allow").map(|value| value.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body: serde_json::Value = response.json().await.unwrap();
        assert_eq!(body["status"], status);
        assert!(body["correlation_id"].is_string() && body["detail"].is_string());
        (status, body["code"].as_str().unwrap().to_owned(), allow.filter(|_| status == 405))
    };
    let admin = Some(server.admin_token.as_str());
    let answer = |status: u16, code: &str| (status, code.to_owned(), None);
    assert_eq!(ask(Method::GET, "/api/v1/secrets", None).await, answer(401, "token_required"));
    assert_eq!(ask(Method::GET, "/api/v1/secrets", admin).await, answer(404, "route_unknown"));
    assert_eq!(ask(Method::PUT, routes::NODES, None).await, answer(401, "token_required"));
    let (status, code, allow) = ask(Method::PUT, routes::TASKS, admin).await;
    assert_eq!((status, code.as_str(), allow.as_deref()), (405, "method_not_allowed", Some("GET, HEAD, POST, OPTIONS")));
}

#[tokio::test]
async fn a_token_that_was_revoked_opens_nothing() {
    let server = TestServer::sqlite().await;
    let client = server.client();
    let wanted = ApiTokenCreate { name: "gone".to_owned(), role: PlatformRole::Admin, life_seconds: None };
    let revoked = client.api_token_create(&wanted, None).await.unwrap();
    let with_it = server.client_with(Some(&revoked.token));
    with_it.api_tokens(&PageQuery::default()).await.unwrap();
    client.api_token_revoke(&revoked.api_token.id.to_string()).await.unwrap();
    let refused = with_it.api_tokens(&PageQuery::default()).await.unwrap_err();
    assert_eq!(refused.code(), "token_invalid", "{refused}");
}

/// Every route of the link that needs a certificate.
const LINK: &[(&str, &str)] = &[
    ("POST", route::RENEW),
    ("POST", route::HELLO),
    ("GET", route::TASKS_WAIT),
    ("GET", route::CONTROL),
    ("POST", route::CONTROL),
    ("POST", route::HEARTBEAT),
    ("POST", route::METRICS),
    ("POST", route::TASK_ACK),
    ("POST", route::TASK_LOGS),
    ("POST", route::TASK_RESULT),
    ("POST", route::BYE),
];

/// Routes for hosts without a (valid) certificate. Their requirements are tested with them. May only shrink.
const LINK_OPEN: &[&str] =
    &[route::ENROLL_WITH_TOKEN, route::ENROLL_REQUEST, route::ENROLL_POLL, route::REJOIN_CHALLENGE, route::REJOIN];

#[test]
fn every_route_of_the_link_is_in_one_of_the_lists() {
    let source = include_str!("../../contract/src/link.rs");
    let paths: Vec<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const ")?.split('"').nth(1))
        .filter(|p| p.starts_with('/'))
        .collect();
    assert!(paths.len() > 10);
    for path in paths {
        assert!(LINK.iter().any(|(_, listed)| *listed == path) || LINK_OPEN.contains(&path), "{path} is in no list");
    }
}

#[tokio::test]
async fn the_link_serves_only_the_node_its_certificate_names() {
    let server = TestServer::sqlite().await;
    let (node, other) = (Host::enrolled(&server).await, Host::enrolled(&server).await);
    let session = SessionId::generate().to_string();
    let task = TaskId::generate().to_string();
    for (method, route) in LINK {
        let ask = async |client: reqwest::Client, url: String| {
            let request = client.request(method.parse::<Method>().unwrap(), url).header(link::SESSION_HEADER, &session);
            // A body that parses everywhere, so that only the identity can be the reason.
            let body = if *route == route::RENEW { r#"{"csr_pem":""}"# } else { "{}" };
            let response = request.body(body).send().await.unwrap();
            let status = response.status().as_u16();
            (status, response.json::<serde_json::Value>().await.unwrap()["code"].as_str().unwrap().to_owned())
        };
        let own = node.own_url(route, &task);
        assert_eq!(
            ask(node.anonymous(), own.clone()).await,
            (401, "certificate_required".to_owned()),
            "{route} without a certificate"
        );
        assert_eq!(ask(other.https(), own).await, (403, "node_mismatch".to_owned()), "{route} as another node");
    }
    // With its own certificate but a session that is not its link.
    let polls = LINK.iter().filter(|(_, route)| ![route::RENEW, route::HELLO].contains(route));
    for (method, route) in polls {
        let request = node
            .https()
            .request(method.parse::<Method>().unwrap(), node.own_url(route, &task))
            .header(link::SESSION_HEADER, &session);
        let response = request.body("{}").send().await.unwrap();
        assert_eq!(response.status().as_u16(), 410, "{route}");
        let request = node.https().request(method.parse::<Method>().unwrap(), node.own_url(route, &task));
        let response = request.body("{}").send().await.unwrap();
        assert_eq!(response.json::<serde_json::Value>().await.unwrap()["code"], "session_missing", "{route}");
    }
    // The stream.
    let (say, words) = tokio::sync::mpsc::channel(1);
    say.send(link::from_node::Message::Hello(node.hello(&[])).into()).await.unwrap();
    let words = tokio_stream::wrappers::ReceiverStream::new(words);
    let refused = node.grpc(false).await.connect(words).await.map(|_| ()).unwrap_err();
    assert!(refused.message().starts_with("certificate_required"), "{refused}");
    let mut wrong = node.hello(&[]);
    wrong.protocol = 99;
    let mut link = node.try_connect(wrong).await.unwrap();
    assert_eq!(link.goodbye().await, "protocol_unsupported");
    let mut wrong = node.hello(&[]);
    wrong.node_epoch = 7;
    let mut link = node.try_connect(wrong).await.unwrap();
    assert_eq!(link.goodbye().await, "epoch_retired");
}

#[tokio::test]
async fn a_certificate_of_another_authority_does_not_get_through_the_handshake() {
    let (server, elsewhere) = (TestServer::sqlite().await, TestServer::sqlite().await);
    let mut stranger = Host::enrolled(&elsewhere).await;
    // It knows our address and even trusts us; its own certificate is from elsewhere.
    stranger.link = server.server().link_address.unwrap();
    stranger.ca_pem = std::fs::read_to_string(server.ca_pem()).unwrap();
    let answer = stranger.https().post(stranger.own_url(route::HELLO, "")).body("{}").send().await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test]
async fn bodies_that_are_malformed_or_too_large_get_a_clear_no() {
    let server = TestServer::sqlite().await;
    let post = async |path: &str, body: Vec<u8>| {
        let response = common::plain_http()
            .post(format!("{}{path}", server.url()))
            .bearer_auth(&server.admin_token)
            .body(body)
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        let body: serde_json::Value = response.json().await.unwrap();
        (status, body["code"].as_str().unwrap().to_owned(), body["detail"].as_str().unwrap().to_owned())
    };
    let (status, code, detail) = post(routes::TASKS, b"{not json".to_vec()).await;
    assert_eq!((status, code.as_str()), (400, "json_invalid"), "{detail}");
    let (status, code, detail) = post(routes::TASKS, br#"{"node":"n","task_type":"diag.ping","shell":"rm"}"#.to_vec()).await;
    assert_eq!((status, code.as_str()), (422, "body_invalid"));
    assert!(detail.contains("/shell"), "{detail}");
    let (status, code, _) = post(routes::TASKS, vec![b' '; 1024 * 1024]).await;
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    let (status, code, detail) = post(routes::TASKS, br#"{"node":"n","task_type":"shell.exec"}"#.to_vec()).await;
    assert_eq!((status, code.as_str()), (422, "task_type_unknown"));
    assert!(detail.contains("diag.ping"), "{detail}");
    let (status, code, _) =
        post(routes::TASKS, br#"{"node":"n","task_type":"diag.ping","params":{"hold_ms":-1}}"#.to_vec()).await;
    assert_eq!((status, code.as_str()), (422, "params_invalid"));
}

#[tokio::test]
async fn every_fault_of_a_body_is_told_with_where_it_is() {
    let server = TestServer::sqlite().await;
    let post = async |path: &str, content_type: &str, body: serde_json::Value| {
        let request = common::plain_http().post(format!("{}{path}", server.url())).bearer_auth(&server.admin_token);
        let response = request.header("content-type", content_type).body(body.to_string()).send().await.unwrap();
        (response.status().as_u16(), response.json::<gpuaas_api::dto::Problem>().await.unwrap())
    };
    let body = serde_json::json!({ "kind": "slise", "slots": "one", "price_per_hour": { "amount": "2.50" }, "color": "red" });
    let (status, problem) = post(routes::SKUS, "application/json", body).await;
    assert_eq!((status, problem.code.as_str()), (422, "body_invalid"));
    let mut pointers: Vec<&str> = problem.faults.iter().map(|fault| fault.pointer.as_str()).collect();
    pointers.sort_unstable();
    assert_eq!(pointers, ["/color", "/kind", "/name", "/price_per_hour/currency", "/slots"], "{problem:?}");
    // What the schema does not cover is reported by the parser of the value.
    let body =
        serde_json::json!({ "name": "a", "kind": "slice", "slots": 1, "price_per_hour": { "amount": "1e3", "currency": "USD" } });
    let (status, problem) = post(routes::SKUS, "application/json", body.clone()).await;
    assert_eq!((status, problem.faults.len()), (422, 1), "{problem:?}");
    assert_eq!(problem.faults[0].pointer, "/price_per_hour/amount", "{problem:?}");
    // An unknown reference in the body is a fault of the body, not of the path.
    let body = serde_json::json!({ "node": "nobody", "task_type": "diag.ping" });
    let (status, problem) = post(routes::TASKS, "application/json; charset=utf-8", body.clone()).await;
    assert_eq!((status, problem.code.as_str()), (422, "node_unknown"));
    assert_eq!(problem.faults[0].pointer, "/node");
    let (status, problem) = post(routes::TASKS, "text/plain", body).await;
    assert_eq!((status, problem.code.as_str()), (415, "content_type_unsupported"));
}

#[tokio::test]
async fn resources_behave_as_http_expects() {
    let server = TestServer::configured(|config| config.cors_origins = vec!["https://portal.example.com".parse().unwrap()]).await;
    let http = common::plain_http();
    let ask = |method: Method, path: &str| http.request(method, format!("{}{path}", server.url()));
    // The root redirects.
    let root = ask(Method::GET, "/").send().await.unwrap();
    assert_eq!((root.status().as_u16(), &root.headers()["location"]), (307, &routes::REFERENCE.parse().unwrap()));
    // A created resource is found at its `Location`.
    let wanted = serde_json::json!({ "name": "physics" });
    let made = ask(Method::POST, routes::ORGANIZATIONS).bearer_auth(&server.admin_token).json(&wanted).send().await.unwrap();
    assert_eq!(made.status(), 201);
    let path = made.headers()["location"].to_str().unwrap().to_owned();
    let read = ask(Method::GET, &path).bearer_auth(&server.admin_token).send().await.unwrap();
    assert_eq!(read.status(), 200);
    let tag = read.headers()["etag"].clone();
    // It is not sent again to clients that have it.
    let again = ask(Method::GET, &path).bearer_auth(&server.admin_token).header("if-none-match", &tag).send().await.unwrap();
    assert_eq!((again.status().as_u16(), again.headers()["etag"].clone()), (304, tag));
    assert!(again.bytes().await.unwrap().is_empty());
    // One with projects stays; one without is deleted.
    let project = serde_json::json!({ "name": "optics" });
    let made =
        ask(Method::POST, &format!("{path}/projects")).bearer_auth(&server.admin_token).json(&project).send().await.unwrap();
    assert_eq!(made.status(), 201);
    let project = made.headers()["location"].to_str().unwrap().to_owned();
    let delete =
        async |path: &str| ask(Method::DELETE, path).bearer_auth(&server.admin_token).send().await.unwrap().status().as_u16();
    assert_eq!((delete(&path).await, delete(&project).await, delete(&path).await, delete(&path).await), (409, 200, 200, 404));
    // Large answers are compressed for clients that accept it.
    for encoding in ["gzip", "br"] {
        let document = ask(Method::GET, routes::OPENAPI).header("accept-encoding", encoding).send().await.unwrap();
        assert_eq!(document.headers()["content-encoding"], encoding);
    }
    // `OPTIONS` and CORS list methods and origins.
    let options = ask(Method::OPTIONS, &path).send().await.unwrap();
    assert_eq!(
        (options.status().as_u16(), &options.headers()["allow"]),
        (204, &"GET, HEAD, PATCH, DELETE, OPTIONS".parse().unwrap())
    );
    let from = |origin: &'static str| {
        ask(Method::OPTIONS, &path).header("origin", origin).header("access-control-request-method", "PATCH")
    };
    let known = from("https://portal.example.com").send().await.unwrap();
    assert_eq!(known.headers()["access-control-allow-origin"], "https://portal.example.com");
    assert!(known.headers()["access-control-allow-headers"].to_str().unwrap().contains("authorization"));
    let stranger = from("https://elsewhere.example.com").send().await.unwrap();
    assert!(!stranger.headers().contains_key("access-control-allow-origin"));
}
