//! A small server with a few fixed documents, served on the real routes in the real format.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gpuaas_api::dto::{
    Node, NodeListQuery, Page, Problem, Task, TaskCreate, TaskListQuery, TaskLogLine, TaskLogs, TaskLogsQuery, TaskProgress,
};
use gpuaas_api::routes;
use gpuaas_contract::id::{CorrelationId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::telemetry::{GpuFact, HostFacts};
use gpuaas_contract::time::Timestamp;

pub(crate) const TOKEN: &str = "gpt_test";

/// Starts a server with these routes, which require the token. Returns its URL.
pub(crate) async fn serve(router: Router) -> String {
    let guard =
        axum::middleware::from_fn(async |headers: HeaderMap, request: axum::extract::Request, next: axum::middleware::Next| {
            let given = headers.get("authorization").and_then(|value| value.to_str().ok());
            if given != Some(&format!("Bearer {TOKEN}")) {
                return problem(401, "token_required", "this needs a token");
            }
            next.run(request).await
        });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let router = router.fallback(|| async { problem(404, "not_found", "there is no such path") }).layer(guard);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

pub(crate) fn problem(status: u16, code: &str, detail: &str) -> Response {
    let mut problem = Problem::new(status, "t", code, detail);
    problem.correlation_id = Some("corr_test".to_owned());
    (StatusCode::from_u16(status).expect("a status"), Json(problem)).into_response()
}

pub(crate) fn node(byte: u8, name: &str) -> Node {
    let gpu = GpuFact { name: "H100".to_owned(), pci_address: "0000:17:00.0".to_owned(), ..GpuFact::default() };
    Node {
        id: NodeId::from_bytes([byte; 16]),
        name: name.to_owned(),
        epoch: 1,
        fingerprint: "f".to_owned(),
        receipt_key: SigningKey::from_seed(&[byte; 32]).verifying_key(),
        service: open("in_service"),
        service_reason: String::new(),
        online: false,
        session: None,
        last_seen_at: None,
        facts: HostFacts { simulated: true, gpus: vec![gpu.clone(), gpu], ..HostFacts::default() },
        metrics: None,
        simulated: true,
        certificate_not_after: None,
        rejoins: 0,
        enrolled_at: Timestamp(1),
        created_at: Timestamp(1),
        tasks_open: 0,
    }
}

/// Returns a value with this name, whether or not this version knows it.
pub(crate) fn open<T: gpuaas_contract::names::Named>(name: &str) -> gpuaas_contract::names::Open<T> {
    serde_json::from_value(name.into()).expect("any name")
}

pub(crate) fn task(state: &str) -> Task {
    let ended = !["queued", "dispatched", "accepted", "started"].contains(&state);
    Task {
        id: TaskId::from_bytes([9; 16]),
        node_id: NodeId::from_bytes([1; 16]),
        node_name: "rack-1".to_owned(),
        node_epoch: 1,
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({}),
        state: open(state),
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
        code: if ended { "the_code".to_owned() } else { String::new() },
        message: String::new(),
        receipt_digest: None,
        progress: None,
        output: None,
        phases: Vec::new(),
    }
}

/// Nodes `rack-1`, `rack-2` and two named `twin`, one per page.
pub(crate) fn nodes() -> Router {
    let all = [node(1, "rack-1"), node(2, "rack-2"), node(0x31, "twin"), node(0x32, "twin")];
    let by_id = all.clone();
    Router::new()
        .route(
            routes::NODES,
            get(|Query(query): Query<NodeListQuery>| async move {
                let start: usize = query.after.map_or(0, |after| after.parse().expect("our cursor"));
                let next = (start + 1 < all.len()).then(|| (start + 1).to_string());
                Json(Page { items: vec![all[start].clone()], next })
            }),
        )
        .route(
            routes::NODE,
            get(|Path(id): Path<String>| async move {
                match by_id.into_iter().find(|node| node.id.to_string() == id) {
                    Some(node) => Json(node).into_response(),
                    None => problem(404, "node_unknown", "there is no such node; `gpuaas node ls` lists them"),
                }
            }),
        )
}

/// Accepts one task, which ends in this state. The task's message echoes its parameters and headers.
pub(crate) fn tasks(end: &'static str) -> Router {
    let polls = Arc::new(AtomicUsize::new(0));
    let logs = move |Query(query): Query<TaskLogsQuery>| {
        let polls = Arc::clone(&polls);
        async move {
            let after = query.after.unwrap_or(0);
            let line = |sequence| TaskLogLine {
                sequence,
                at: Timestamp(5),
                stream: "stdout".into(),
                text: format!("line {sequence}\u{1b}[2J"),
                dropped: 0,
            };
            let complete = after >= 2;
            let lines = if after < 2 { vec![line(after + 1)] } else { Vec::new() };
            polls.fetch_add(1, Ordering::SeqCst);
            let next_after = lines.last().map_or(after, |line| line.sequence);
            Json(TaskLogs { lines, next_after, at_end: complete, complete })
        }
    };
    let create = |headers: HeaderMap, Json(create): Json<TaskCreate>| async move {
        let idempotency = headers.get(routes::IDEMPOTENCY_KEY_HEADER).map(|v| v.to_str().expect("text").to_owned());
        let correlation = headers.get(routes::CORRELATION_ID_HEADER).map(|v| v.to_str().expect("text").to_owned());
        let message = format!("{} {:?} {:?} {correlation:?}", create.node, create.queue_seconds, create.timeout_seconds);
        (StatusCode::CREATED, Json(Task { params: create.params, idempotency_key: idempotency, message, ..task("queued") }))
    };
    let list = |Query(query): Query<TaskListQuery>| async move {
        let prefix = query.id_prefix.unwrap_or_default();
        let items: Vec<Task> = [task("succeeded")].into_iter().filter(|task| task.id.to_string().starts_with(&prefix)).collect();
        Json(Page::whole(items))
    };
    let watch = move || async move {
        let progress = TaskProgress { phase: "effect".to_owned(), message: "leaving a mark".to_owned(), at: Timestamp(4) };
        let event = |name: &str, document: String| format!("event: {name}\ndata: {document}\n\n");
        let json = |task: &Task| serde_json::to_string(task).expect("json");
        [
            event("task", json(&task("queued"))),
            event("task", json(&task("started"))),
            event("progress", serde_json::to_string(&progress).expect("json")),
            event("task", json(&task(end))),
        ]
        .concat()
    };
    Router::new()
        .route(routes::TASKS, get(list).post(create))
        .route(routes::TASK, get(move || async move { Json(task(end)) }))
        .route(routes::TASK_CANCEL, post(|| async { problem(409, "task_ended", "the task has ended already") }))
        .route(routes::TASK_WATCH, get(watch))
        .route(routes::TASK_LOGS, get(logs))
}
