//! Allocations, from the command line to what a person reads.

use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{
    Allocation, AllocationChange, AllocationCreate, AllocationListQuery, AllocationPlan, AllocationSearchQuery, EventRow,
    NodeReasons, Page, Product, Project,
};
use gpuaas_api::routes;
use gpuaas_contract::id::{AllocationId, EventId, NodeId, OrgId, ProjectId, SkuId, TaskId};
use gpuaas_contract::money::{Currency, Money};
use gpuaas_contract::names::Open;
use gpuaas_contract::time::Timestamp;
use serde_json::{Value, json};

use crate::program::{Ran, gpuaas_with};
use crate::server::{TOKEN, open, problem, serve, task, tasks};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";

pub(crate) fn project(byte: u8, organization: &str, name: &str) -> Project {
    Project {
        id: ProjectId::from_bytes([byte; 16]),
        organization_id: OrgId::from_bytes([byte; 16]),
        organization_name: organization.to_owned(),
        name: name.to_owned(),
        description: String::new(),
        state: open("active"),
        created_at: Timestamp(1),
        deleted_at: None,
        etag: "\"1\"".to_owned(),
    }
}

/// The projects that the caller can see.
pub(crate) fn projects(all: Vec<Project>) -> Router {
    let by_id = all.clone();
    Router::new()
        .route(
            routes::PROJECTS,
            get(|Query(query): Query<gpuaas_api::dto::ProjectListQuery>| async move {
                let wanted = |project: &Project| {
                    query.name.as_ref().is_none_or(|name| project.name.contains(name))
                        && query.organization.as_ref().is_none_or(|name| project.organization_name == *name)
                };
                Json(Page::whole(all.into_iter().filter(wanted).collect()))
            }),
        )
        .route(
            routes::PROJECT,
            get(|Path(id): Path<String>| async move {
                match by_id.into_iter().find(|project| project.id.to_string() == id) {
                    Some(project) => Json(project).into_response(),
                    None => problem(404, "project_unknown", "there is no such project"),
                }
            }),
        )
}

fn one_project() -> Router {
    projects(vec![project(1, "acme", "training")])
}

fn allocation(byte: u8, state: &str) -> Allocation {
    let active = state == "active";
    Allocation {
        id: AllocationId::from_bytes([byte; 16]),
        organization_id: OrgId::from_bytes([1; 16]),
        project_id: ProjectId::from_bytes([1; 16]),
        name: "trainer".to_owned(),
        tags: [("team".to_owned(), "ml".to_owned())].into(),
        state: open(state),
        step: open("serve"),
        sku_id: SkuId::from_bytes([3; 16]),
        sku: "h100-1x".to_owned(),
        product: Product { kind: open("slice"), slots: 1 },
        gpu_model: Some("10de:2330".to_owned()),
        gpu: None,
        price_per_hour: Money::of_millionths(2_500_000, Currency::USD),
        image_id: None,
        image: Some("ubuntu".to_owned()),
        username: "ubuntu".to_owned(),
        node_id: None,
        node_name: None,
        slots: 1,
        private_ip: active.then(|| std::net::Ipv4Addr::new(10, 77, 0, 2)),
        ssh_host: None,
        ssh_public_keys: Vec::new(),
        ssh_port: None,
        pending_power_action: None,
        guest: None,
        release_requested: false,
        attempts: 1,
        code: (state == "failed").then(|| "no_capacity".to_owned()),
        reason: (state == "failed").then(|| "nothing is free".to_owned()),
        detail: None,
        task: Some(TaskId::from_bytes([9; 16])),
        phase: None,
        requested_by: "user:ada".to_owned(),
        created_at: Timestamp(1),
        place_until: None,
        active_at: None,
        expires_at: None,
        ended_at: None,
        maintenance: Vec::new(),
        etag: "\"7\"".to_owned(),
    }
}

fn events(documents: &[Allocation]) -> String {
    let event = |document| format!("event: allocation\ndata: {}\n\n", serde_json::to_string(document).expect("JSON"));
    documents.iter().map(event).collect()
}

/// A project whose only allocation goes through these states while it is watched.
fn watched(states: Vec<Allocation>) -> Router {
    let (last, stream) = (states.last().cloned().expect("at least one"), events(&states));
    Router::new()
        .route(routes::ALLOCATION_WATCH, get(|| async { stream }))
        .route(routes::ALLOCATION, get(|| async { Json(last) }))
        .merge(one_project())
}

fn creating(states: Vec<Allocation>) -> Router {
    let create = |headers: HeaderMap, Json(create): Json<AllocationCreate>| async move {
        if create.dry_run {
            return Json(AllocationPlan {
                sku: create.sku,
                price_per_hour: Money::of_millionths(2_500_000, Currency::USD),
                fits: false,
                code: Some("no_capacity".to_owned()),
                reason: Some("nothing is free".to_owned()),
                same_numa: None,
                note: None,
                node_name: None,
                slots: None,
                reasons_by_node: Some(vec![NodeReasons {
                    node_id: NodeId::from_bytes([1; 16]),
                    node_name: "rack-1".to_owned(),
                    reasons: vec!["draining".to_owned(), "offline".to_owned()],
                }]),
            })
            .into_response();
        }
        assert_eq!((create.ssh_public_keys.len(), create.ssh_keys), (1, vec!["laptop".to_owned()]));
        assert_eq!((create.lease_seconds, create.wait_seconds), (Some(8 * 3600), Some(600)));
        assert_eq!(create.tags.get("team").map(String::as_str), Some("ml"));
        assert_eq!(headers.get(routes::IDEMPOTENCY_KEY_HEADER).and_then(|key| key.to_str().ok()), Some("k"));
        (StatusCode::CREATED, Json(allocation(7, "requested"))).into_response()
    };
    watched(states).route(routes::PROJECT_ALLOCATIONS, post(create))
}

async fn run(url: &str, args: &[&str]) -> Ran {
    gpuaas_with(args, &[("GPUAAS_URL", url), ("GPUAAS_TOKEN", TOKEN)]).await
}

async fn create(url: &str, more: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("id.pub");
    std::fs::write(&key, KEY).expect("writes");
    let key = key.display().to_string();
    let args = ["alloc", "create", "trainer", "--sku", "h100-1x", "--image", "ubuntu", "--ssh-key", &key, "--ssh-key", "laptop"];
    let terms = ["--lease", "8h", "--queue", "10m", "--tag", "team=ml", "--idempotency-key", "k"];
    run(url, &[&args[..], &terms, more].concat()).await
}

#[tokio::test]
async fn leasing_something_ends_with_the_way_in() {
    let states = ["requested", "placing", "provisioning", "active"].map(|state| allocation(7, state));
    let url = serve(creating(states.to_vec())).await;
    let made = create(&url, &[]).await;
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.stdout.contains("ssh ubuntu@10.77.0.2") && made.stdout.contains("2.50 USD/h"), "{made:?}");
    assert!(made.stderr.contains("placing") && made.stderr.contains("provisioning"), "phases are told: {made:?}");
    let json = create(&url, &["-o", "json"]).await.json();
    assert_eq!((json["state"].as_str(), json["price_per_hour"]["amount"].as_str()), (Some("active"), Some("2.50")));
    let asked = create(&url, &["--no-wait"]).await;
    assert!(asked.code == 0 && asked.stdout.contains("requested") && !asked.stderr.contains("provisioning"), "{asked:?}");
}

#[tokio::test]
async fn leasing_that_fails_says_why_and_what_to_do() {
    let url = serve(creating(vec![allocation(7, "requested"), allocation(7, "failed")])).await;
    let failed = create(&url, &[]).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stdout.contains("nothing is free") && failed.stderr.contains("gpuaas alloc retry trainer"), "{failed:?}");
}

#[tokio::test]
async fn a_dry_run_shows_why_each_node_was_not_taken() {
    let url = serve(creating(vec![allocation(7, "active")])).await;
    let plan = create(&url, &["--dry-run"]).await;
    assert_eq!(plan.code, 4, "{plan:?}");
    assert!(plan.stdout.contains("rack-1") && plan.stdout.contains("draining; offline"), "{plan:?}");
    assert_eq!(create(&url, &["--dry-run", "-o", "json"]).await.json()["fits"], false);
}

#[tokio::test]
async fn without_a_key_of_ones_own_those_of_the_project_are_taken() {
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().display().to_string();
    for (stored, code, told) in [(vec![], 2, "--ssh-key"), (vec!["dev", "laptop"], 0, "may sign in: dev, laptop")] {
        let keys: Vec<Value> = stored.iter().map(|name| json!({
            "id": gpuaas_contract::id::SshKeyId::from_bytes([3; 16]), "project_id": ProjectId::from_bytes([1; 16]), "name": name,
            "public_key": KEY, "created_by": "x", "created_at": Timestamp(1).rfc3339(),
        })).collect();
        let create = move |Json(create): Json<AllocationCreate>| async move {
            assert_eq!(create.ssh_keys, ["dev", "laptop"]);
            Json(allocation(7, "active"))
        };
        let router = projects(vec![project(1, "acme", "training")])
            .route(routes::SSH_KEYS, get(|| async { Json(Page::whole(keys)) }))
            .route(routes::PROJECT_ALLOCATIONS, post(create));
        let url = serve(router).await;
        let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN), ("HOME", &path)];
        let ran = gpuaas_with(&["alloc", "create", "a", "--sku", "s", "--no-wait"], &env).await;
        assert!(ran.code == code && ran.stderr.contains(told), "{ran:?}");
    }
    let env = [("GPUAAS_URL", "http://127.0.0.1:1"), ("GPUAAS_TOKEN", TOKEN), ("HOME", &path)];
    std::fs::create_dir(home.path().join(".ssh")).expect("made");
    std::fs::write(home.path().join(".ssh/id_rsa.pub"), KEY).expect("written");
    let ran = gpuaas_with(&["alloc", "create", "a", "--sku", "s"], &env).await;
    assert!(ran.code == 6 && ran.stderr.contains("id_rsa.pub to sign in"), "{ran:?}");
}

fn listed() -> Router {
    let of_project = |Query(query): Query<AllocationListQuery>| async move {
        assert!(query.tags.is_none_or(|tags| tags == "a=b,team=ml"));
        let open = query.state == Some(StateFilter::Open);
        let all = [
            Allocation { expires_at: Some(Timestamp::now().plus(std::time::Duration::from_secs(90))), ..allocation(7, "active") },
            allocation(8, "released"),
            allocation(9, "failed"),
        ];
        let wanted = |allocation: &Allocation| {
            (!open || !allocation.is_terminal()) && query.name.as_ref().is_none_or(|name| *name == allocation.name)
        };
        Json(Page::whole(all.into_iter().filter(wanted).collect::<Vec<_>>()))
    };
    let of_all = |Query(query): Query<AllocationSearchQuery>| async move {
        assert_eq!(query.project, None);
        Json(Page::whole(vec![Allocation { node_name: Some("rack-1".to_owned()), ..allocation(7, "active") }]))
    };
    let show = |Path(id): Path<String>| async move {
        assert_eq!(id, AllocationId::from_bytes([7; 16]).to_string());
        Json(allocation(7, "active"))
    };
    let change = |headers: HeaderMap, Json(change): Json<AllocationChange>| async move {
        assert!(change.tags.is_none() || headers.get(routes::IF_MATCH_HEADER).is_some_and(|etag| etag == "\"7\""));
        let now = allocation(7, "active");
        let name = change.name.map_or(now.name.clone(), |name| name.to_string());
        Json(Allocation { name, tags: change.tags.unwrap_or_default(), ..now })
    };
    Router::new()
        .route(routes::PROJECT_ALLOCATIONS, get(of_project))
        .route(routes::ALLOCATIONS, get(of_all))
        .route(routes::ALLOCATION, get(show).patch(change))
        .merge(one_project())
}

#[tokio::test]
async fn lists_have_prices_and_ends_and_leave_out_what_is_over() {
    let url = serve(listed()).await;
    let list = run(&url, &["alloc", "ls", "--tag", "team=ml", "--tag", "a=b"]).await;
    assert_eq!(list.stdout.lines().count(), 2, "{list:?}");
    assert!(list.stdout.contains("2.50 USD/h") && list.stdout.contains("in "), "{list:?}");
    assert_eq!(run(&url, &["alloc", "ls", "--all", "-o", "json"]).await.json().as_array().map(Vec::len), Some(3));
    let wide = run(&url, &["alloc", "ls", "--all-projects"]).await;
    assert!(wide.stdout.contains("NODE") && wide.stdout.contains("rack-1"), "{wide:?}");
    let none = run(&url, &["alloc", "ls", "--name", "other"]).await;
    assert!(none.stdout.is_empty() && none.stderr.contains("no allocation matches"), "{none:?}");
}

#[tokio::test]
async fn a_name_means_the_one_that_is_not_over() {
    let url = serve(listed()).await;
    let shown = run(&url, &["alloc", "show", "trainer", "-o", "json"]).await;
    assert_eq!(shown.json()["state"], "active", "{shown:?}");
    let by_beginning = run(&url, &["alloc", "show", "alloc_0707", "-o", "json"]).await;
    assert_eq!(by_beginning.json()["name"], "trainer");
    let unknown = run(&url, &["alloc", "show", "nothing"]).await;
    assert!(unknown.code == 3 && unknown.stderr.contains("gpuaas alloc ls"), "{unknown:?}");
    let renamed = run(&url, &["alloc", "rename", "trainer", "other", "-o", "json"]).await;
    assert_eq!(renamed.json()["name"], "other");
    let tagged = run(&url, &["alloc", "tag", "trainer", "a=b", "--remove", "team", "-o", "json"]).await;
    assert_eq!(tagged.json()["tags"], json!({ "a": "b" }));
    assert_eq!(run(&url, &["alloc", "tag", "trainer", "--remove", "none"]).await.code, 3);
}

#[tokio::test]
async fn who_sees_several_projects_is_told_how_to_choose() {
    let all = vec![project(1, "acme", "training"), project(2, "other", "training"), project(3, "acme", "web")];
    let empty = || async { Json(Page::<Allocation>::whole(Vec::new())) };
    let url = serve(projects(all).route(routes::PROJECT_ALLOCATIONS, get(empty))).await;
    let unsaid = run(&url, &["alloc", "ls"]).await;
    assert_eq!(unsaid.code, 2, "{unsaid:?}");
    assert!(unsaid.stderr.contains("acme/training, other/training") && unsaid.stderr.contains("GPUAAS_PROJECT"), "{unsaid:?}");
    let ambiguous = run(&url, &["alloc", "ls", "--project", "training"]).await;
    assert!(ambiguous.code == 2 && ambiguous.stderr.contains("other/training"), "{ambiguous:?}");
    for chosen in ["web", "other/training"] {
        let ran = run(&url, &["alloc", "ls", "--project", chosen]).await;
        assert!(ran.code == 0 && ran.stderr.contains("gpuaas catalog"), "{chosen}: {ran:?}");
    }
    let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN), ("GPUAAS_PROJECT", "acme/web")];
    assert_eq!(gpuaas_with(&["project", "show", "-o", "json"], &env).await.json()["name"], "web");
    let none = run(&serve(projects(Vec::new())).await, &["alloc", "ls"]).await;
    assert_eq!(none.code, 3, "{none:?}");
}

#[tokio::test]
async fn stopping_waits_for_the_host_and_a_failure_is_one() {
    let id = allocation(7, "active").id.to_string();
    let asked = Allocation { pending_power_action: Some(open("stop")), ..allocation(7, "active") };
    let working = Allocation { step: open("await_power"), ..asked.clone() };
    let router = |end: Allocation| {
        let asked = asked.clone();
        watched(vec![asked.clone(), working.clone(), end]).route(routes::ALLOCATION_STOP, post(|| async { Json(asked) }))
    };
    let stopped = allocation(7, "stopped");
    let ran = run(&serve(router(stopped)).await, &["alloc", "stop", &id]).await;
    assert!(ran.code == 0 && ran.stdout.contains("stopped") && ran.stderr.contains("stop requested"), "{ran:?}");
    let broken = Allocation { code: Some("guest_stuck".to_owned()), ..allocation(7, "active") };
    assert_eq!(run(&serve(router(broken)).await, &["alloc", "stop", &id]).await.code, 1);
}

#[tokio::test]
async fn starting_says_whether_the_guest_answers() {
    let id = allocation(7, "stopped").id.to_string();
    let asked = Allocation { pending_power_action: Some(open("start")), ..allocation(7, "stopped") };
    let working = Allocation { step: open("await_power"), guest: Some(open("booting")), ..asked.clone() };
    let router = |end: Allocation| {
        let asked = asked.clone();
        watched(vec![asked.clone(), working.clone(), end]).route(routes::ALLOCATION_START, post(|| async { Json(asked) }))
    };
    let up = Allocation { guest: Some(open("answering")), ..allocation(7, "active") };
    let ran = run(&serve(router(up)).await, &["alloc", "start", &id]).await;
    assert!(ran.code == 0 && ran.stdout.contains("answers"), "{ran:?}");
    let silent = Allocation {
        guest: Some(open("not_answering")),
        code: Some("guest_not_answering".to_owned()),
        ..allocation(7, "active")
    };
    let ran = run(&serve(router(silent)).await, &["alloc", "start", &id]).await;
    assert!(ran.code == 1 && ran.stdout.contains("does not answer") && ran.stderr.contains("alloc console"), "{ran:?}");
}

#[tokio::test]
async fn releasing_ends_when_nothing_is_left_or_an_operator_has_to_look() {
    let id = allocation(7, "active").id.to_string();
    for (end, code) in [("released", 0), ("release_blocked", 1)] {
        let asked = Allocation { release_requested: true, ..allocation(7, "active") };
        let router = watched(vec![asked.clone(), allocation(7, "releasing"), allocation(7, end)])
            .route(routes::ALLOCATION_RELEASE, post(|| async { Json(asked) }));
        let ran = run(&serve(router).await, &["alloc", "release", &id, "--yes"]).await;
        assert!(ran.code == code && ran.stdout.contains(end), "{end}: {ran:?}");
    }
}

#[tokio::test]
async fn an_ssh_block_is_kept_between_its_markers_and_nothing_strange_gets_into_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let id = allocation(7, "active").id.to_string();
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().display().to_string();
    let url = serve(watched(vec![allocation(7, "active")])).await;
    let printed = run(&url, &["alloc", "ssh-config", &id]).await;
    assert!(printed.stdout.starts_with("Host trainer\n    HostName 10.77.0.2\n"), "{printed:?}");
    let env = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN", TOKEN), ("HOME", &path)];
    for _ in 0..2 {
        let ran = gpuaas_with(&["alloc", "ssh-config", &id, "--write"], &env).await;
        assert!(ran.code == 0 && ran.stderr.contains("Include gpuaas_config"), "{ran:?}");
    }
    let file = home.path().join(".ssh/gpuaas_config");
    let text = std::fs::read_to_string(&file).expect("written");
    assert_eq!(text.matches("Host trainer").count(), 1, "{text}");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    let hostile = Allocation { ssh_host: Some("h\n    ProxyCommand touch /tmp/x".to_owned()), ..allocation(7, "active") };
    let refused = run(&serve(watched(vec![hostile])).await, &["alloc", "ssh-config", &id]).await;
    assert!(refused.code == 8 && refused.stdout.is_empty(), "{refused:?}");
    let gone = run(&serve(watched(vec![allocation(7, "released")])).await, &["alloc", "ssh-config", &id]).await;
    assert_eq!(gone.code, 4, "{gone:?}");
}

#[tokio::test]
async fn the_history_and_the_console_are_read_line_by_line() {
    let id = allocation(7, "active").id.to_string();
    let row = |position: i64, kind: &str| EventRow {
        id: EventId::from_bytes([u8::try_from(position).expect("few"); 16]),
        position,
        kind: Open::read(&format!("gpuaas.allocation.{kind}.v1")),
        at: Timestamp(1),
        data: json!({ "allocation_id": "x", "code": "c\u{1b}[2J" }),
    };
    let rows = vec![row(1, "requested"), row(2, "active")];
    let router = tasks("succeeded")
        .route(routes::ALLOCATION_EVENTS, get(|| async { Json(Page::whole(rows)) }))
        .route(routes::ALLOCATION_CONSOLE, post(|| async { (StatusCode::CREATED, Json(task("queued"))) }));
    let url = serve(router).await;
    let history = run(&url, &["alloc", "events", &id]).await;
    assert!(history.stdout.contains("allocation.requested code=c") && history.stdout.lines().count() == 2, "{history:?}");
    assert!(!history.stdout.contains('\u{1b}'), "{history:?}");
    let lines = run(&url, &["alloc", "events", &id, "-o", "json"]).await;
    assert!(lines.stdout.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines:?}");
    let console = run(&url, &["alloc", "console", &id]).await;
    assert!(console.code == 0 && console.stdout.contains("line 1") && console.stdout.contains("line 2"), "{console:?}");
}
