//! Lists with `--watch`.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use gpuaas_api::dto::{Node, Page};
use gpuaas_api::routes;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::Notify;

use crate::server::{TOKEN, node, open, serve};

/// Time limit for something that should happen immediately.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two nodes, of which one starts draining at step 1 and the other is gone at step 2, and an event for each change.
fn changing(step: Arc<AtomicUsize>, changed: Arc<Notify>) -> Router {
    let list = move || {
        let step = step.load(Ordering::SeqCst);
        async move {
            let service = if step == 0 { "in_service" } else { "draining" };
            let mut items = vec![Node { service: open(service), ..node(1, "rack-1") }];
            if step < 2 {
                items.push(node(2, "rack-2"));
            }
            Json(Page::whole(items))
        }
    };
    let events = move || {
        let changed = Arc::clone(&changed);
        async move {
            let stream = futures::stream::unfold(changed, |changed| async move {
                changed.notified().await;
                let event = serde_json::json!({
                    "specversion": "1.0", "id": "evt_01010101010101010101010101010101", "source": "gpuaas", "type": "gpuaas.node.draining.v1",
                    "subject": "node", "time": "2027-01-01T00:00:00Z", "datacontenttype": "application/json", "data": {},
                });
                let event =
                    axum::response::sse::Event::default().event(routes::EVENT_CLOUD_EVENT).id("1").data(event.to_string());
                Some((Ok::<_, std::convert::Infallible>(event), changed))
            });
            axum::response::sse::Sse::new(stream)
        }
    };
    Router::new().route(routes::NODES, get(list)).route(routes::EVENTS, get(events))
}

#[expect(clippy::disallowed_types, reason = "a test of the program starts the program")]
fn start(url: &str, more: &[&str]) -> tokio::process::Child {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_gpuaas"))
        .args(["node", "ls", "--watch"])
        .args(more)
        .env_clear()
        .envs([("GPUAAS_URL", url), ("GPUAAS_TOKEN", TOKEN)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}

#[tokio::test]
async fn a_watched_list_prints_what_changes_and_ends_well_with_an_interrupt() {
    for format in [&["-o", "json"][..], &[]] {
        let (step, changed) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let url = serve(changing(Arc::clone(&step), Arc::clone(&changed))).await;
        let mut program = start(&url, format);
        let mut lines = BufReader::new(program.stdout.take().expect("piped")).lines();
        let mut next = async || {
            let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("reads");
            line.expect("a line")
        };
        if format.is_empty() {
            assert!(next().await.starts_with("ID "), "headers come once");
        }
        assert!(next().await.contains("rack-1"));
        assert!(next().await.contains("rack-2"));
        // An event triggers another fetch, and only the changed row is printed.
        step.store(1, Ordering::SeqCst);
        changed.notify_one();
        let line = next().await;
        assert!(line.contains("rack-1") && line.contains("draining"), "{line}");
        step.store(2, Ordering::SeqCst);
        changed.notify_one();
        let mut told = BufReader::new(program.stderr.take().expect("piped"));
        let mut gone = String::new();
        tokio::time::timeout(PATIENCE, told.read_line(&mut gone)).await.expect("in time").expect("reads");
        assert!(gone.contains("is no longer in the list"), "{gone}");
        let id = rustix::process::Pid::from_raw(i32::try_from(program.id().expect("runs")).expect("an id")).expect("an id");
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it is told");
        let status = tokio::time::timeout(PATIENCE, program.wait()).await.expect("in time").expect("ends");
        assert_eq!(status.code(), Some(0));
        let mut rest = String::new();
        lines.into_inner().read_to_string(&mut rest).await.expect("reads");
        assert_eq!(rest, "", "nothing else was printed");
    }
}
