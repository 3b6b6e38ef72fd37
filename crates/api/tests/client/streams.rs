//! Watches and exports over connections that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures::StreamExt as _;
use gpuaas_api::client::{ErrorKind, WatchEvent};
use gpuaas_api::dto::{Problem, TaskProgress};
use gpuaas_api::routes;
use gpuaas_contract::time::Timestamp;

use crate::server::{client_of, task};

fn event(name: &str, document: &impl serde::Serialize) -> String {
    format!("event: {name}\ndata: {}\n\n", serde_json::to_string(document).expect("json"))
}

/// A body that sends this text and then breaks off before the response is complete.
fn broken_after(text: String) -> Body {
    let whole = futures::stream::iter([Ok(text)]);
    // The server flushes its buffer when the body is pending, so the text arrives before the cut.
    let cut = futures::stream::once(async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    });
    Body::from_stream(whole.chain(cut))
}

#[tokio::test]
async fn a_watch_goes_on_after_the_connection_broke_and_says_nothing_twice() {
    let visits = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&visits);
    let handler = move || {
        let visit = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            let started = event("task", &task("started", false));
            match visit {
                0 => broken_after(event("task", &task("queued", false)) + &started).into_response(),
                1 => axum::http::StatusCode::SERVICE_UNAVAILABLE.into_response(),
                2 => {
                    let progress = TaskProgress { phase: "effect".into(), message: String::new(), at: Timestamp(5) };
                    format!(": hello\n\n{started}event: novelty\ndata: ?\n\n{}", event("progress", &progress)).into_response()
                }
                _ => event("task", &task("succeeded", true)).into_response(),
            }
        }
    };
    let client = client_of(Router::new().route(routes::TASK_WATCH, get(handler))).await;
    let events: Vec<_> = client.task_watch("task_x").map(|event| event.expect("no error")).collect().await;
    let told: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            WatchEvent::Task(task) => Some(task.state.as_str()),
            WatchEvent::Progress(progress) => Some(progress.phase.as_str()),
            WatchEvent::Reconnecting => None,
        })
        .collect();
    assert_eq!(told, ["queued", "started", "effect", "succeeded"]);
    assert!(events.contains(&WatchEvent::Reconnecting));
    assert_eq!(visits.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_refusal_ends_the_watch() {
    let handler = || async {
        let problem = Problem::new(404, "Not Found", "task_not_found", "there is no such task");
        (axum::http::StatusCode::NOT_FOUND, axum::Json(problem))
    };
    let client = client_of(Router::new().route(routes::TASK_WATCH, get(handler))).await;
    let events: Vec<_> = client.task_watch("task_x").collect().await;
    match events.as_slice() {
        [Err(error)] => assert_eq!(error.kind(), ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_export_gives_every_line() {
    let handler = || async { Body::from("{\"seq\":1}\n\n{\"seq\":2}\n{\"seq\":3}") };
    let client = client_of(Router::new().route(routes::AUDIT_EXPORT, get(handler))).await;
    let mut export = client.audit_export().await.expect("starts");
    let mut lines = Vec::new();
    while let Some(line) = export.next_line().await.expect("a line") {
        lines.push(String::from_utf8(line).expect("text"));
    }
    assert_eq!(lines, ["{\"seq\":1}", "{\"seq\":2}", "{\"seq\":3}"]);
}

#[tokio::test]
async fn an_export_that_breaks_off_is_an_error_and_not_a_short_chain() {
    let handler = || async { broken_after("{\"seq\":1}\n".to_owned()) };
    let client = client_of(Router::new().route(routes::AUDIT_EXPORT, get(handler))).await;
    let mut export = client.audit_export().await.expect("starts");
    assert!(export.next_line().await.expect("the first line").is_some());
    assert_eq!(export.next_line().await.expect_err("cut").kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_line_without_end_is_refused() {
    let handler = || async {
        let chunk = vec![b'x'; 64 * 1024];
        Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone())))
    };
    let client = client_of(Router::new().route(routes::AUDIT_EXPORT, get(handler))).await;
    let mut export = client.audit_export().await.expect("starts");
    assert_eq!(export.next_line().await.expect_err("too long").kind(), ErrorKind::Internal);
}
