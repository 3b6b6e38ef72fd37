//! What operators and owners set up: the catalog, capacity, keys, members, drain previews.

use axum::routing::{delete, get, post};
use axum::{Json, Router};
use gpuaas_api::dto::{Limits, MaintenanceCreate, MemberAdd, Page, SkuCreate};
use gpuaas_api::routes;
use gpuaas_contract::id::{AllocationId, ApiTokenId, MaintenanceId, MembershipId, NodeId, ProjectId, ServiceAccountId, SkuId};
use gpuaas_contract::time::Timestamp;
use serde_json::{Value, json};

use crate::allocations::{project, projects};
use crate::program::{Ran, gpuaas_with};
use crate::server::{TOKEN, nodes, serve};

async fn run(router: Router, args: &[&str]) -> Ran {
    let url = serve(router.merge(projects(vec![project(1, "acme", "training")]))).await;
    gpuaas_with(args, &[("GPUAAS_URL", &url), ("GPUAAS_TOKEN", TOKEN)]).await
}

fn page(items: Vec<Value>) -> Json<Page<Value>> {
    Json(Page::whole(items))
}

#[tokio::test]
async fn the_catalog_shows_prices_in_plain_decimals() {
    let item = json!({
        "id": SkuId::from_bytes([1; 16]), "name": "h100-8x", "description": "", "product": { "kind": "slice", "slots": 8 },
        "gpu_model": "NVIDIA H100", "min_vcpus": 0, "min_memory_mib": 0, "price_per_hour": { "amount": "19.20", "currency": "USD" }, "available": 2,
    });
    let shown = run(Router::new().route(routes::CATALOG, get(|| async { page(vec![item]) })), &["catalog"]).await;
    assert!(shown.stdout.contains("19.20 USD/h") && shown.stdout.contains("8 slots"), "{shown:?}");
    let empty = run(Router::new().route(routes::CATALOG, get(|| async { page(Vec::new()) })), &["catalog"]).await;
    assert!(empty.code == 0 && empty.stdout.is_empty() && empty.stderr.contains("gpuaas sku create"), "{empty:?}");
}

#[tokio::test]
async fn a_product_is_created_with_its_price() {
    let create = |Json(create): Json<SkuCreate>| async move {
        Json(json!({
            "id": SkuId::from_bytes([1; 16]), "name": create.name, "description": "", "price_per_hour": create.price_per_hour,
            "product": { "kind": "slice", "slots": create.slots }, "gpu_model": create.gpu_model, "min_vcpus": 0,
            "min_memory_mib": 0, "state": "active", "created_at": Timestamp(1).rfc3339(),
        }))
    };
    let args = ["sku", "create", "h100-1x", "--slots", "1", "--gpu", "10de:2330", "--price", "2.5", "-o", "json"];
    let made = run(Router::new().route(routes::SKUS, post(create)), &args).await;
    assert_eq!(made.json()["price_per_hour"]["amount"], "2.50", "{made:?}");
    let wrong = run(Router::new(), &["sku", "create", "a", "--slots", "1", "--price", "2,5"]).await;
    assert_eq!(wrong.code, 2, "{wrong:?}");
}

#[tokio::test]
async fn a_key_of_a_service_account_shows_its_secret_once() {
    let account = json!({
        "id": ServiceAccountId::from_bytes([5; 16]), "project_id": ProjectId::from_bytes([1; 16]), "name": "ci",
        "description": "", "created_at": Timestamp(1).rfc3339(),
    });
    let key = json!({
        "id": ApiTokenId::from_bytes([6; 16]), "service_account_id": ServiceAccountId::from_bytes([5; 16]),
        "project_id": ProjectId::from_bytes([1; 16]), "name": "ci", "scopes": ["*.read"], "state": "active",
        "created_at": Timestamp(1).rfc3339(),
    });
    let (listed, created) = (key.clone(), json!({ "key": key.clone(), "secret": "gpt_secret" }));
    let router = || {
        let (account, listed, created, revoked) = (account.clone(), listed.clone(), created.clone(), key.clone());
        Router::new()
            .route(routes::SERVICE_ACCOUNTS, get(|| async { page(vec![account]) }))
            .route(routes::API_KEYS, get(|| async { page(vec![listed]) }).post(|| async { Json(created) }))
            .route(routes::API_KEY, delete(|| async { Json(revoked) }))
    };
    let made = run(router(), &["key", "create", "ci", "--scope", "*.read"]).await;
    assert!(made.stdout.contains("gpt_secret") && made.stderr.contains("not shown again"), "{made:?}");
    let list = run(router(), &["key", "ls"]).await;
    assert!(list.stdout.contains("*.read") && !list.stdout.contains("gpt_secret"), "{list:?}");
    assert_eq!(run(router(), &["key", "revoke", "ci", "ci", "--yes"]).await.code, 0);
    assert_eq!(run(router(), &["key", "revoke", "other", "ci", "--yes"]).await.code, 3);
}

#[tokio::test]
async fn members_are_invited_where_they_are_wanted() {
    let add = |Json(add): Json<MemberAdd>| async move {
        Json(json!({
            "id": MembershipId::from_bytes([2; 16]), "kind": "invited", "email": add.email, "name": "", "at": "platform",
            "role": add.role, "state": "invited", "invited_by": "local-admin", "created_at": Timestamp(1).rfc3339(),
        }))
    };
    let args = ["member", "add", "ada@example.com", "--role", "operator", "--platform"];
    let added = run(Router::new().route(routes::PLATFORM_MEMBERS, post(add)), &args).await;
    assert!(added.code == 0 && added.stderr.contains("first sign-in"), "{added:?}");
    let both = run(Router::new(), &["member", "ls", "--org", "acme", "--platform"]).await;
    assert_eq!(both.code, 2);
}

#[tokio::test]
async fn setting_a_quota_changes_only_what_is_named() {
    let quota = |limits: Limits| {
        Json(json!({
            "organization_id": gpuaas_contract::id::OrgId::from_bytes([1; 16]), "project_id": ProjectId::from_bytes([1; 16]),
            "limits": limits, "used": { "allocations": 1, "slots": 8, "machines": 0 }, "etag": "\"7\"",
        }))
    };
    let before = Limits { allocations: Some(3), slots: Some(4), machines: Some(1) };
    let router = || {
        let set = get(move || async move { quota(before) }).put(
            move |headers: axum::http::HeaderMap, Json(limits): Json<Limits>| async move {
                assert_eq!(headers["if-match"], "\"7\"", "nobody changed it meanwhile");
                quota(limits)
            },
        );
        Router::new().route(routes::PROJECT_QUOTA, set)
    };
    for (arguments, after) in [
        (&["--slots", "16"][..], json!({ "allocations": 3, "slots": 16, "machines": 1 })),
        (&["--slots", "none", "--machines", "0"], json!({ "allocations": 3, "slots": null, "machines": 0 })),
    ] {
        let ran = run(router(), &[&["quota", "set", "-o", "json"], arguments].concat()).await;
        let set: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!(set["limits"], after, "{ran:?}");
    }
    assert_eq!(run(router(), &["quota", "set"]).await.code, 2, "nothing to change is a mistake");
    let wrong = run(router(), &["quota", "set", "--slots", "many"]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("`none` for no limit"), "{wrong:?}");
}

#[tokio::test]
async fn a_drain_preview_names_what_is_in_the_way_and_changes_nothing() {
    let preview = json!({
        "node_id": NodeId::from_bytes([1; 16]), "node_name": "rack-1", "slots_free": 3, "note": "",
        "allocations": [{
            "id": AllocationId::from_bytes([7; 16]), "name": "trainer", "project_id": ProjectId::from_bytes([1; 16]),
            "organization": "acme", "state": "active", "expires_at": null, "why": "its lease has no end",
        }],
    });
    let router = nodes().route(routes::NODE_DRAIN_PREVIEW, get(|| async { Json(preview) }));
    let ran = run(router, &["node", "drain", "rack-1", "--preview"]).await;
    assert!(ran.code == 0 && ran.stdout.contains("its lease has no end") && ran.stdout.contains("trainer"), "{ran:?}");
}

#[tokio::test]
async fn maintenance_is_announced_for_a_time_from_now() {
    let announce = |Json(create): Json<MaintenanceCreate>| async move {
        Json(json!({
            "id": MaintenanceId::from_bytes([4; 16]), "summary": create.summary, "nodes": create.nodes, "state": "announced",
            "starts_at": create.starts_at.rfc3339(), "ends_at": create.ends_at.rfc3339(), "created_by": "x", "created_at": Timestamp(1).rfc3339(),
        }))
    };
    let router = nodes().route(routes::MAINTENANCE_WINDOWS, post(announce));
    let args = ["maintenance", "announce", "rack-1", "--from", "+24h", "--for", "2h", "--summary", "new fans", "-o", "json"];
    let window = run(router, &args).await.json();
    let at = |field: &str| window[field].as_str().and_then(Timestamp::parse_rfc3339).expect("a time");
    assert_eq!(at("ends_at").since(at("starts_at")).as_secs(), 7200, "{window}");
}

#[tokio::test]
async fn capacity_shows_models_or_nodes() {
    let row = json!({
        "model": "10de:2330", "name": "NVIDIA H100", "nodes": 1, "delivered": 8, "healthy": 7, "unhealthy": 1, "allocated": 2,
        "free": 5, "largest_free_on_one_node": 5,
    });
    let all = json!({
        "skus": [], "models": [row.clone()],
        "nodes": [{ "node_id": NodeId::from_bytes([1; 16]), "node_name": "rack-1", "rows": [row] }],
    });
    let router = || {
        let all = all.clone();
        Router::new().route(routes::CAPACITY, get(|| async { Json(all) }))
    };
    assert!(run(router(), &["capacity"]).await.stdout.contains("LARGEST FREE"));
    assert!(run(router(), &["capacity", "--nodes"]).await.stdout.contains("rack-1"));
}
