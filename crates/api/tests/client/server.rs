//! A real HTTP server on a free port, for one test.

use axum::Router;
use gpuaas_api::{Client, ClientOptions};
use gpuaas_contract::id::{CorrelationId, NodeId, TaskId};
use gpuaas_contract::time::Timestamp;

/// Starts a server and returns a client for it. The server ends with the test's runtime.
pub(crate) async fn client_of(router: Router) -> Client {
    let url = serve(router).await;
    client(&url)
}

pub(crate) fn client(url: &str) -> Client {
    let mut options = ClientOptions::new(url);
    options.token = Some("gpa_secret".to_owned());
    options.correlation_id = Some(CorrelationId::try_from("ticket-4711".to_owned()).expect("plain"));
    Client::new(options).expect("a client")
}

pub(crate) async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

/// A task as a server would send it.
pub(crate) fn task(state: &str, ended: bool) -> gpuaas_api::dto::Task {
    gpuaas_api::dto::Task {
        id: TaskId::from_bytes([1; 16]),
        node_id: NodeId::from_bytes([2; 16]),
        node_name: "rack-1".to_owned(),
        node_epoch: 1,
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({}),
        state: serde_json::from_value(state.into()).expect("any name"),
        requested_by: "token:x".to_owned(),
        correlation_id: CorrelationId::try_from("c".to_owned()).expect("plain"),
        idempotency_key: None,
        created_at: Timestamp(1),
        queue_until: Timestamp(2),
        timeout_seconds: 300,
        dispatches: 1,
        lease_until: None,
        cancel_requested_at: None,
        accepted_at: None,
        started_at: None,
        ended_at: ended.then_some(Timestamp(9)),
        code: String::new(),
        message: String::new(),
        receipt_digest: None,
        progress: None,
        output: None,
        phases: Vec::new(),
    }
}
