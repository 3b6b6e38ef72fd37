//! Slices, from the command line to what a person reads.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use gpuaas_api::dto::{Page, Slice, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SliceRelease, Slot, Task};
use gpuaas_api::routes;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_contract::slice::SlotSpec;
use gpuaas_contract::time::Timestamp;
use serde_json::json;

use crate::program::{Ran, gpuaas_with};
use crate::server::{TOKEN, node, nodes, open, problem, serve, task, tasks};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";

fn slot(index: u32, state: &str) -> Slot {
    Slot {
        id: SlotId::from_bytes([u8::try_from(index).expect("few") + 0x50; 16]),
        node_id: NodeId::from_bytes([1; 16]),
        node_name: "rack-1".to_owned(),
        gpu: None,
        spec: SlotSpec {
            slot_index: index,
            pci_address: None,
            companions: Vec::new(),
            fabric_device: None,
            nvme_device: "/dev/disk/by-id/x".to_owned(),
            nvme_serial: format!("S{index}"),
            numa_node: 0,
            vcpu_count: 1,
            memory_mib: 512,
            mac_address: "02:00:00:00:00:00".to_owned(),
            private_ip: std::net::Ipv4Addr::new(10, 77, 0, 2),
        },
        state: open(state),
        reason: if state == "cleanup_blocked" { "0000:17:00.0 could not be reset".to_owned() } else { String::new() },
        quarantine: Some("loud".to_owned()),
        allocation_id: Some(allocation()),
        lease_epoch: 1,
        lease_task: Some(TaskId::from_bytes([9; 16])),
        proposed_by: TaskId::from_bytes([8; 16]),
        approved_by: "somebody".to_owned(),
        approved_at: Timestamp(1),
        created_at: Timestamp(1),
    }
}

fn allocation() -> AllocationId {
    AllocationId::from_bytes([0x77; 16])
}

fn slice(state: &str) -> Slice {
    Slice {
        allocation_id: allocation(),
        node_id: NodeId::from_bytes([1; 16]),
        node_name: "rack-1".to_owned(),
        state: open(state),
        vm_name: "trainer".to_owned(),
        default_username: "ubuntu".to_owned(),
        private_ip: Some(std::net::Ipv4Addr::new(10, 77, 0, 2)),
        created_at: Some(Timestamp(1)),
        slots: if state == "released" { Vec::new() } else { vec![slot(0, state), slot(1, state)] },
        tasks: vec![task("succeeded")],
    }
}

fn order(task: Task, state: &str) -> (StatusCode, Json<SliceOrder>) {
    let slots = slice(state).slots;
    (StatusCode::CREATED, Json(SliceOrder { allocation_id: allocation(), task, slots }))
}

/// A slice whose tasks end in the state `end`, after which the slice is in the state `then`.
fn slices(end: &'static str, then: &'static str) -> Router {
    let output = json!({ "private_ip": "10.77.0.2", "default_user": "ubuntu", "vm_name": "trainer" });
    let ended = Task { output: (end == "succeeded").then_some(output), ..task(end) };
    let listed = |Query(query): Query<SliceListQuery>| async move {
        Json(Page::whole(if query.state.is_some() { Vec::new() } else { vec![slice("leased")] }))
    };
    let create = |Json(create): Json<SliceCreate>| async move {
        assert_eq!(create.guest.ssh_public_keys.len(), 1);
        let params = serde_json::to_value(&create).expect("JSON");
        order(Task { params, ..task("queued") }, "leased")
    };
    let release = |Json(release): Json<SliceRelease>| async move {
        order(Task { params: json!({ "wipe": release.wipe }), ..task("queued") }, "releasing")
    };
    let console = |Json(console): Json<SliceConsole>| async move {
        assert_eq!((console.tail_bytes, console.follow_seconds), (Some(100), Some(0)));
        order(task("queued"), "leased")
    };
    let event = format!("event: task\ndata: {}\n\n", serde_json::to_string(&ended).expect("JSON"));
    let show = move |Path(id): Path<String>| async move {
        if id == allocation().to_string() {
            Ok(Json(slice(then)))
        } else {
            Err(problem(404, "slice_unknown", "there is no such slice; `gpuaas slice ls` lists them"))
        }
    };
    let watched = Router::new()
        .route(routes::TASK, get(move || async move { Json(ended) }))
        .route(routes::TASK_WATCH, get(move || async move { event }));
    Router::new()
        .route(routes::NODES, get(|| async { Json(Page::whole(vec![node(1, "rack-1")])) }))
        .route(routes::SLICES, get(listed).post(create))
        .route(routes::SLICE, get(show))
        .route(routes::SLICE_RELEASE, post(release))
        .route(routes::SLICE_POWER, post(|| async { problem(409, "slice_not_running", "there is no guest to stop") }))
        .route(routes::SLICE_CONSOLE, post(console))
        .route(routes::SLOT_FORCE_CLEANUP, post(|| async { order(task("queued"), "releasing") }))
        .merge(watched)
}

async fn run(url: &str, args: &[&str]) -> Ran {
    gpuaas_with(args, &[("GPUAAS_URL", url), ("GPUAAS_TOKEN", TOKEN)]).await
}

fn create_args(key: &str) -> Vec<&str> {
    let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let image = ["--image-path", "u.img", "--image-sha256", digest];
    [&["slice", "create", "rack-1", "--slot", "0", "--slot", "1", "--name", "trainer", "--ssh-key", key][..], &image].concat()
}

#[tokio::test]
async fn making_a_slice_ends_with_the_way_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("id.pub");
    std::fs::write(&key, format!("{KEY} me@here\n")).expect("writes");
    let key = key.display().to_string();
    let url = serve(slices("succeeded", "leased")).await;
    let made = run(&url, &create_args(&key)).await;
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.stdout.contains("ssh ubuntu@10.77.0.2") && made.stdout.contains("0 (leased), 1 (leased)"), "{made:?}");
    let json = run(&url, &[&create_args(&key)[..], &["-o", "json"]].concat()).await.json();
    assert_eq!((json["task"]["state"].as_str(), json["slots"].as_array().map(Vec::len)), (Some("succeeded"), Some(2)));
    let asked = run(&url, &[&create_args(&key)[..], &["--no-wait", "--driver", "cloud-init", "-o", "json"]].concat()).await;
    let params = &asked.json()["task"]["params"];
    assert_eq!((params["slots"].clone(), params["driver_strategy"].as_str()), (json!([0, 1]), Some("cloud-init")));
    assert_eq!((params["image"]["format"].as_str(), &params["ovs_bridge"]), (Some("qcow2"), &json!(null)));
    assert!(asked.stderr.contains("gpuaas slice show"), "{asked:?}");

    let private = folder.path().join("id");
    std::fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").expect("writes");
    let refused = run(&url, &create_args(&private.display().to_string())).await;
    assert!(refused.code == 2 && refused.stderr.contains("id.pub"), "{refused:?}");
    for missing in ["--name", "--image-path", "--image-sha256", "--slot"] {
        let mut args = create_args(&key);
        while let Some(at) = args.iter().position(|arg| *arg == missing) {
            args.drain(at..at + 2);
        }
        assert_eq!(run(&url, &args).await.code, 2, "{missing}");
    }
}

#[tokio::test]
async fn a_slice_that_is_blocked_says_what_to_do() {
    let url = serve(slices("failed", "cleanup_blocked")).await;
    let released = run(&url, &["slice", "release", "trainer", "--yes"]).await;
    assert_eq!(released.code, 1, "not a terminal, so nothing is asked: {released:?}");
    for hint in ["could not be reset", "gpuaas slot force-cleanup rack-1/0", "gpuaas slice release alloc_7777"] {
        assert!(released.stderr.contains(hint), "{hint}: {released:?}");
    }
    let shown = run(&url, &["slice", "show", "trainer"]).await;
    assert!(shown.stdout.contains("cleanup_blocked, quarantined") && shown.stderr.contains("force-cleanup"), "{shown:?}");
    let forced = run(&url, &["slot", "force-cleanup", &slot(0, "").id.to_string(), "--yes"]).await;
    assert!(forced.code == 1 && forced.stderr.contains("force-cleanup"), "{forced:?}");
    let unwiped = run(&url, &["slice", "release", "alloc_77", "--no-wipe", "--yes", "--no-wait", "-o", "json"]).await;
    assert_eq!(unwiped.json()["task"]["params"]["wipe"], false);
}

#[tokio::test]
async fn slices_are_listed_and_named_and_errors_say_what_to_do_next() {
    let url = serve(slices("succeeded", "released")).await;
    let listed = run(&url, &["slice", "ls"]).await;
    assert!(listed.stdout.contains("trainer") && listed.stdout.contains("10.77.0.2") && listed.stderr.is_empty(), "{listed:?}");
    let none = run(&url, &["slice", "ls", "--state", "needs_wipe"]).await;
    assert!(none.stdout.is_empty() && none.stderr.contains("gpuaas slice ls"), "{none:?}");
    let released = run(&url, &["slice", "release", "alloc_7777", "--yes"]).await;
    assert!(released.code == 0 && released.stdout.contains("none: they are free again"), "{released:?}");
    let stopped = run(&url, &["slice", "stop", "trainer"]).await;
    assert!(stopped.code == 4 && stopped.stderr.contains("no guest to stop"), "{stopped:?}");
    let unknown = run(&url, &["slice", "show", "nobody"]).await;
    assert!(unknown.code == 3 && unknown.stderr.contains("gpuaas slice ls"), "{unknown:?}");
    let wrong = run(&url, &["slice", "show", &NodeId::from_bytes([1; 16]).to_string()]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("is the id of a node"), "{wrong:?}");
}

#[tokio::test]
async fn the_console_is_printed_line_by_line() {
    let consoles = Router::new().route(routes::SLICES, get(|| async { Json(Page::whole(vec![slice("leased")])) })).route(
        routes::SLICE_CONSOLE,
        post(|Json(console): Json<SliceConsole>| async move {
            assert_eq!((console.tail_bytes, console.follow_seconds), (Some(100), Some(0)));
            order(task("queued"), "leased")
        }),
    );
    let url = serve(consoles.clone().merge(tasks("succeeded"))).await;
    let read = run(&url, &["slice", "console", "trainer", "--tail", "100"]).await;
    assert_eq!((read.code, read.stdout.lines().count()), (0, 2), "{read:?}");
    assert!(read.stdout.starts_with("line 1") && !read.stdout.contains('\u{1b}'), "{read:?}");
    let json = run(&url, &["slice", "console", "trainer", "--tail", "100", "-o", "json"]).await;
    assert_eq!(json.stdout.lines().filter(|line| line.starts_with('{')).count(), 2, "{json:?}");
    let url = serve(consoles.merge(tasks("failed"))).await;
    let failed = run(&url, &["slice", "console", "trainer", "--tail", "100"]).await;
    assert!(failed.code == 1 && failed.stderr.contains("the_code"), "{failed:?}");
    let url = serve(nodes()).await;
    assert_eq!(run(&url, &["slice", "console", "trainer", "--tail", "99999999"]).await.code, 2);
}
