//! Every REST endpoint and every link method, called by somebody who may not.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use common::node::Host;
use gpuaas_api::dto::{ApiTokenCreate, Reason};
use gpuaas_api::routes;
use gpuaas_contract::id::{NodeId, SessionId, TaskId};
use gpuaas_contract::link::{self, route};
use reqwest::Method;

/// Every guarded endpoint. A test below fails if the server has one that is not listed here.
const GUARDED: &[(&str, &str)] = &[
    ("GET", routes::CLUSTER),
    ("GET", routes::NODES),
    ("GET", routes::NODE),
    ("POST", routes::NODE_DRAIN),
    ("POST", routes::NODE_UNDRAIN),
    ("POST", routes::NODE_QUARANTINE),
    ("POST", routes::NODE_UNQUARANTINE),
    ("POST", routes::NODE_RETIRE),
    ("GET", routes::NODE_TOPOLOGY),
    ("POST", routes::NODE_TOPOLOGY_APPROVE),
    ("GET", routes::SLOTS),
    ("GET", routes::SLOT),
    ("POST", routes::SLOT_QUARANTINE),
    ("POST", routes::SLOT_UNQUARANTINE),
    ("POST", routes::SLOT_WITHDRAW),
    ("POST", routes::SLOT_FORCE_CLEANUP),
    ("GET", routes::SLICES),
    ("POST", routes::SLICES),
    ("GET", routes::SLICE),
    ("POST", routes::SLICE_RELEASE),
    ("POST", routes::SLICE_POWER),
    ("POST", routes::SLICE_CONSOLE),
    ("GET", routes::ENROLMENTS),
    ("GET", routes::ENROLMENT),
    ("POST", routes::ENROLMENT_APPROVE),
    ("POST", routes::ENROLMENT_REJECT),
    ("GET", routes::JOIN_TOKENS),
    ("POST", routes::JOIN_TOKENS),
    ("DELETE", routes::JOIN_TOKEN),
    ("GET", routes::TASKS),
    ("POST", routes::TASKS),
    ("GET", routes::TASK),
    ("POST", routes::TASK_CANCEL),
    ("GET", routes::TASK_LOGS),
    ("GET", routes::TASK_WATCH),
    ("GET", routes::TASK_EVIDENCE),
    ("GET", routes::TASK_TYPES),
    ("GET", routes::AUDIT),
    ("GET", routes::AUDIT_EXPORT),
    ("GET", routes::SIGNING_KEYS),
    ("POST", routes::SIGNING_KEYS_STAGE),
    ("POST", routes::SIGNING_KEYS_ROTATE),
    ("POST", routes::SIGNING_KEY_REVOKE),
    ("GET", routes::API_TOKENS),
    ("POST", routes::API_TOKENS),
    ("DELETE", routes::API_TOKEN),
    ("GET", routes::METRICS),
];

/// The only endpoints that answer without a token. This list may only shrink.
const OPEN: &[(&str, &str)] = &[("GET", routes::HEALTHZ), ("GET", routes::READYZ)];

fn path_of(route: &str) -> String {
    route
        .replace("{node}", &NodeId::generate().to_string())
        .replace("{task}", &TaskId::generate().to_string())
        .replace("{enrolment}", "enrol_0")
        .replace("{slot}", "slot_0")
        .replace("{slice}", "alloc_0")
        .replace("{token}", "t")
        .replace("{key}", "k")
}

async fn call(server: &TestServer, method: &str, route: &str, token: Option<&str>) -> (u16, String) {
    let mut request = reqwest_plain().request(method.parse::<Method>().unwrap(), format!("{}{}", server.url(), path_of(route)));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    if response.headers().get("content-type").is_some_and(|t| t == "application/problem+json") {
        let body: serde_json::Value = response.json().await.unwrap();
        assert_eq!(body["status"], status);
        assert!(body["correlation_id"].is_string() && body["detail"].is_string());
        return (status, body["code"].as_str().unwrap().to_owned());
    }
    (status, String::new())
}

fn reqwest_plain() -> reqwest::Client {
    let config = rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(config).build().unwrap()
}

#[tokio::test]
async fn no_endpoint_answers_without_a_token_that_counts() {
    let server = TestServer::sqlite().await;
    let client = server.client();
    let revoked = client
        .api_token_create(&ApiTokenCreate { name: "gone".to_owned(), role: "admin".to_owned(), life_seconds: None })
        .await
        .unwrap();
    client.api_token_revoke(&revoked.api_token.id.to_string()).await.unwrap();
    for (method, route) in GUARDED {
        assert_eq!(call(&server, method, route, None).await, (401, "token_required".to_owned()), "{method} {route}");
        assert_eq!(call(&server, method, route, Some("gpt_guess")).await, (401, "token_invalid".to_owned()), "{method} {route}");
        assert_eq!(
            call(&server, method, route, Some(&revoked.token)).await,
            (401, "token_invalid".to_owned()),
            "{method} {route}"
        );
    }
    for (method, route) in OPEN {
        assert_eq!(call(&server, method, route, None).await.0, 200, "{method} {route}");
    }
    // Also a path that does not exist says nothing to a stranger.
    assert_eq!(call(&server, "GET", "/api/v1/secrets", None).await, (401, "token_required".to_owned()));
    assert_eq!(call(&server, "GET", "/api/v1/secrets", Some(&server.admin_token)).await, (404, "route_unknown".to_owned()));
    assert_eq!(call(&server, "PUT", routes::NODES, Some(&server.admin_token)).await, (405, "method_not_allowed".to_owned()));
}

#[tokio::test]
async fn support_reads_and_changes_nothing() {
    let server = TestServer::sqlite().await;
    // The old name of the role is still taken.
    let wanted = ApiTokenCreate { name: "eyes".to_owned(), role: "viewer".to_owned(), ..ApiTokenCreate::default() };
    let viewer = server.client().api_token_create(&wanted).await.unwrap();
    for (method, route) in GUARDED {
        let (status, code) = call(&server, method, route, Some(&viewer.token)).await;
        if *method == "GET" {
            assert_ne!(status, 401, "{route}");
            assert_ne!(code, "role_forbidden", "{route}");
        } else {
            assert_eq!((status, code.as_str()), (403, "role_forbidden"), "{method} {route}");
        }
    }
    let refused = server.client_with(Some(&viewer.token)).node_retire("x", &Reason::default()).await.unwrap_err();
    assert!(refused.to_string().contains("needs the role operator"), "{refused}");
}

#[test]
fn every_route_of_the_interface_is_in_one_of_the_lists() {
    let source = include_str!("../../api/src/routes.rs");
    let paths: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1))
        .filter(|p| p.starts_with('/'))
        .collect();
    assert!(paths.len() > 20, "the routes are not where this test looks for them");
    for path in paths {
        assert!(GUARDED.iter().chain(OPEN).any(|(_, listed)| *listed == path), "{path} is in no list");
    }
    let router = include_str!("../src/http/mod.rs");
    let methods = router.matches("get(").count() + router.matches("post(").count() + router.matches("delete(").count();
    assert_eq!(methods, GUARDED.len() + OPEN.len(), "a method of the router is not in the lists");
}

/// Every route of the link that needs a certificate.
const LINK: &[(&str, &str)] = &[
    ("POST", route::RENEW),
    ("POST", route::HELLO),
    ("GET", route::TASKS_WAIT),
    ("GET", route::CONTROL),
    ("POST", route::HEARTBEAT),
    ("POST", route::METRICS),
    ("POST", route::TASK_ACK),
    ("POST", route::TASK_LOGS),
    ("POST", route::TASK_RESULT),
    ("POST", route::BYE),
];

/// Doors for hosts that have no certificate (any more). What they need instead is tested with them. May only shrink.
const LINK_OPEN: &[&str] =
    &[route::ENROL_WITH_TOKEN, route::ENROL_REQUEST, route::ENROL_POLL, route::REJOIN_CHALLENGE, route::REJOIN];

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
            // A body that parses everywhere, so that only identity can be the reason.
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
    // It knows where we are and even trusts us; its own certificate is from elsewhere.
    stranger.link = server.server().link_address.unwrap();
    stranger.ca_pem = std::fs::read_to_string(server.ca_pem()).unwrap();
    let answer = stranger.https().post(stranger.own_url(route::HELLO, "")).body("{}").send().await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test]
async fn bodies_that_are_malformed_or_too_large_get_a_clear_no() {
    let server = TestServer::sqlite().await;
    let post = async |path: &str, body: Vec<u8>| {
        let response = reqwest_plain()
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
    assert_eq!((status, code.as_str()), (400, "json_invalid"));
    assert!(detail.contains("shell"), "{detail}");
    let (status, code, _) = post(routes::TASKS, vec![b' '; 1024 * 1024]).await;
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    let (status, code, detail) = post(routes::TASKS, br#"{"node":"n","task_type":"shell.exec"}"#.to_vec()).await;
    assert_eq!((status, code.as_str()), (422, "task_type_unknown"));
    assert!(detail.contains("diag.ping"), "{detail}");
    let (status, code, _) =
        post(routes::TASKS, br#"{"node":"n","task_type":"diag.ping","params":{"hold_ms":-1}}"#.to_vec()).await;
    assert_eq!((status, code.as_str()), (422, "params_invalid"));
}
