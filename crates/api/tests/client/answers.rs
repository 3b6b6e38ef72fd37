//! Requests as the server sees them, and good and bad responses.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{any, get, post};
use gpuaas_api::client::ErrorKind;
use gpuaas_api::dto::{Page, Problem, Reason, TaskCreate, TaskListQuery};
use gpuaas_api::{ClientError, routes};

use crate::server::{client, client_of, serve, task};

/// Answers every request with a problem document that describes the request.
fn echo() -> Router {
    Router::new().fallback(any(|request: Request| async move {
        let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
        let told = format!(
            "{} {} auth={} corr={} idem={}",
            request.method(),
            request.uri(),
            header("authorization"),
            header(routes::CORRELATION_ID_HEADER),
            header(routes::IDEMPOTENCY_KEY_HEADER)
        );
        let problem = Problem::new(409, "Conflict", "echo", told);
        (StatusCode::CONFLICT, axum::Json(problem)).into_response()
    }))
}

#[tokio::test]
async fn a_request_carries_token_correlation_id_idempotency_key_and_an_encoded_path() {
    let client = client_of(echo()).await;
    let error = client.node_drain("rack 1/7", &Reason::default()).await.expect_err("a problem");
    assert_eq!(error.to_string(), "POST /api/v1/nodes/rack%201%2F7/drain auth=Bearer gpa_secret corr=ticket-4711 idem=-");
    assert_eq!(error.kind(), ErrorKind::Conflict);

    let create = TaskCreate {
        node: "n".to_owned(),
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({}),
        queue_seconds: None,
        timeout_seconds: None,
    };
    let error = client.task_create(&create, Some("once")).await.expect_err("a problem");
    assert!(error.to_string().ends_with("idem=once"), "{error}");

    let query = TaskListQuery { node: Some("a&b".to_owned()), limit: Some(5), ..TaskListQuery::default() };
    let error = client.tasks(&query).await.expect_err("a problem");
    assert!(
        error.to_string().starts_with("GET /api/v1/tasks?limit=5&node=a%26b auth")
            || error.to_string().starts_with("GET /api/v1/tasks?node=a%26b&limit=5 auth"),
        "{error}"
    );
}

#[tokio::test]
async fn a_base_path_is_kept_in_front_of_the_routes() {
    let url = serve(echo()).await;
    let error = client(&format!("{url}/gpu/")).node("x").await.expect_err("a problem");
    assert!(error.to_string().starts_with("GET /gpu/api/v1/nodes/x "), "{error}");
}

#[tokio::test]
async fn a_name_that_is_no_path_segment_is_refused_before_anything_is_sent() {
    let client = client("http://127.0.0.1:9");
    assert!(matches!(client.node("..").await, Err(ClientError::BadName { .. })));
}

#[tokio::test]
async fn nobody_listening_is_said_with_what_to_do() {
    // A port that was free a moment ago, so nobody listens on it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let error = client(&url).cluster().await.expect_err("nobody there");
    assert_eq!(error.to_string(), format!("cannot reach {url}: is `gpuaas server` or `gpuaas dev` running there?"));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_that_never_answers_is_a_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut options = gpuaas_api::ClientOptions::new(format!("http://{}", listener.local_addr().expect("bound")));
    options.timeout = std::time::Duration::from_millis(100);
    let error = gpuaas_api::Client::new(options).expect("a client").cluster().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn statuses_become_kinds() {
    for (status, kind) in [
        (400, ErrorKind::Usage),
        (401, ErrorKind::Unauthorized),
        (403, ErrorKind::Unauthorized),
        (404, ErrorKind::NotFound),
        (409, ErrorKind::Conflict),
        (422, ErrorKind::Usage),
        (500, ErrorKind::Internal),
        (503, ErrorKind::Unreachable),
    ] {
        let router = Router::new().fallback(any(move || async move {
            let problem = Problem::new(status, "t", "some_code", "do this");
            (StatusCode::from_u16(status).expect("a status"), axum::Json(problem))
        }));
        let error = client_of(router).await.cluster().await.expect_err("a problem");
        assert_eq!((error.kind(), error.problem().map(|p| p.code.as_str())), (kind, Some("some_code")), "{status}");
    }
}

#[tokio::test]
async fn something_else_that_speaks_http_is_not_believed() {
    let router = Router::new().fallback(any(|| async { (StatusCode::BAD_GATEWAY, "<html>\u{7}oops") }));
    match client_of(router).await.cluster().await {
        Err(ClientError::Unexpected { status: 502, excerpt, .. }) => assert_eq!(excerpt, "<html>oops"),
        other => panic!("{other:?}"),
    }
    let router = Router::new().fallback(any(|| async { "hello" }));
    assert!(matches!(client_of(router).await.cluster().await, Err(ClientError::Malformed { .. })));
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_token() {
    let target = serve(echo()).await;
    let router = Router::new().fallback(any(move || {
        let location = format!("{target}/elsewhere");
        async move { Response::builder().status(307).header("location", location).body(Body::empty()).expect("valid") }
    }));
    assert!(matches!(client_of(router).await.cluster().await, Err(ClientError::Unexpected { status: 307, .. })));
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let router = Router::new().fallback(any(|| async {
        let chunk = vec![b' '; 1024 * 1024];
        Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone())))
    }));
    assert!(matches!(client_of(router).await.cluster().await, Err(ClientError::TooLarge { .. })));
}

#[tokio::test]
async fn documents_arrive_as_they_were_sent() {
    let router = Router::new()
        .route(routes::TASKS, get(|| async { axum::Json(Page { items: vec![task("queued", false)], next: Some("n".into()) }) }))
        .route(
            routes::TASK_CANCEL,
            post(|axum::Json(reason): axum::Json<Reason>| async move {
                axum::Json(gpuaas_api::dto::Task { message: reason.reason, ..task("cancelled", true) })
            }),
        );
    let client = client_of(router).await;
    let page = client.tasks(&TaskListQuery::default()).await.expect("a page");
    assert_eq!((page.items, page.next.as_deref()), (vec![task("queued", false)], Some("n")));
    let cancelled = client.task_cancel("task_x", &Reason { reason: "why not".to_owned() }).await.expect("a task");
    assert_eq!(cancelled.message, "why not");
}

#[tokio::test]
async fn an_older_client_reads_what_a_newer_server_adds() {
    let mut newer = serde_json::to_value(task("paused", false)).expect("json");
    newer["color"] = "green".into();
    let router = Router::new().fallback(any(move || async move { axum::Json(newer) }));
    assert_eq!(client_of(router).await.task("task_x").await.expect("a task").state.as_str(), "paused");
}

#[tokio::test]
async fn addresses_that_are_none_are_refused() {
    for url in ["", "localhost:8080", "ftp://x", "http://user:pw@x", "http://x/?a=1", "http://"] {
        let result = gpuaas_api::Client::new(gpuaas_api::ClientOptions::new(url));
        assert!(matches!(result, Err(ClientError::BadUrl { .. })), "{url}");
    }
}
