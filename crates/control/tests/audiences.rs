//! What tenants see, and how much they can create.

#![allow(clippy::unwrap_used, reason = "tests")]

mod browser;
mod common;

use std::sync::{Arc, Mutex};

use browser::{EMAIL, ada, text, tokens};
use common::answers::{proof, succeeded};
use common::lifecycle::{Shop, until};
use common::looking::{Looking, refused};
use common::{PATIENCE, TestServer, plain_http};
use gpuaas_api::dto::{
    ApiKeyCreate, ApiTokenCreate, MemberAdd, PageQuery, Reason, ServiceAccountCreate, SliceConsole, SlicePower, SliceRelease,
    TaskLogsQuery, WebhookCreate,
};
use gpuaas_contract::access::{MemberRole, PlatformRole, ProjectRole};
use gpuaas_contract::event::EventKind;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_domain::caps;
use gpuaas_testkit::eventually_async;

/// Creates a key of a service account of the project.
async fn key(server: &TestServer, project: &str, name: &str, role: &str) -> String {
    let client = server.client();
    let wanted = ServiceAccountCreate { name: name.to_owned(), description: String::new(), role: Some(role.parse().unwrap()) };
    let account = client.service_account_create(project, &wanted, None).await.unwrap().id.to_string();
    let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
    client.api_key_create(project, &account, &wanted, None).await.unwrap().secret
}

/// Starts a receiver of webhooks, and returns everything it was sent.
async fn receiver() -> (String, Arc<Mutex<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let told = Arc::new(Mutex::new(String::new()));
    let all = Arc::clone(&told);
    let router = axum::Router::new().fallback(move |body: String| async move { all.lock().unwrap().push_str(&body) });
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, told)
}

common::on_both_stores! {
    async fn tenants_are_never_told_where_their_machines_are(server: TestServer) {
        let (mut node, _) = Looking::with_slots(&server, 1).await;
        let shop = Shop::open(&server).await;
        let secret = key(&server, &shop.project, "tenant", "owner").await;
        let (tenant, operator) = (server.client_with(Some(&secret)), server.client());
        let (url, told) = receiver().await;
        let hook = WebhookCreate { url, ..WebhookCreate::default() };
        tenant.webhook_create(&shop.project, &hook, None).await.unwrap();
        let path = format!("{}/api/v1/projects/{}/events?after=0", server.url(), shop.project);
        let mut events = plain_http().get(path).bearer_auth(&secret).send().await.unwrap();

        let made = tenant.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let id = made.id.to_string();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "active").await;
        let console = SliceConsole { tail_bytes: None, follow_seconds: None };
        let console = tenant.allocation_console(&id, &console, None).await.unwrap();
        let task = node.next().await;
        assert_eq!(task.payload().task_id, console.id);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");

        let mut seen = Vec::new();
        seen.push(serde_json::to_string(&console).unwrap());
        seen.push(serde_json::to_string(&tenant.task(&console.id.to_string()).await.unwrap()).unwrap());
        seen.push(serde_json::to_string(&tenant.allocation(&id).await.unwrap()).unwrap());
        seen.push(serde_json::to_string(&tenant.allocation_events(&id, &PageQuery::default()).await.unwrap()).unwrap());
        seen.push(
            eventually_async(PATIENCE, "the webhook is told", || async {
                let text = told.lock().unwrap().clone();
                text.contains("gpuaas.allocation.active.v1").then_some(text)
            })
            .await,
        );
        let mut heard = String::new();
        while !heard.contains("gpuaas.allocation.active.v1") {
            heard.push_str(std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap());
        }
        seen.push(heard);
        for text in &seen {
            for secret in [node.node().as_str(), "test-host"] {
                assert!(!text.contains(secret), "{secret} is in {text}");
            }
        }
        let history = serde_json::to_string(&operator.allocation_events(&id, &PageQuery::default()).await.unwrap()).unwrap();
        assert!(history.contains(&node.node()), "operators see where it is");
        assert_eq!(operator.task(&console.id.to_string()).await.unwrap().node_name, "test-host");
        // Whoever may not open a console does not read what was read from it either.
        for (role, expected) in [(PlatformRole::Operator, true), (PlatformRole::Support, false), (PlatformRole::Auditor, false)] {
            let wanted = ApiTokenCreate { name: role.to_string(), role, life_seconds: None };
            let with_role = server.client_with(Some(&operator.api_token_create(&wanted, None).await.unwrap().token));
            assert_eq!(with_role.task(&console.id.to_string()).await.unwrap().id, console.id, "{role}");
            let read = with_role.task_logs(&console.id.to_string(), &TaskLogsQuery::default()).await;
            assert_eq!(read.is_ok(), expected, "{role}: {read:?}");
        }
        // The existence of another tenant's task is hidden too.
        let foreign = refused(tenant.task(&operator.allocation(&id).await.unwrap().task.unwrap().to_string()).await);
        let unknown = refused(tenant.task(&gpuaas_contract::id::TaskId::generate().to_string()).await);
        assert_eq!(foreign, unknown);
        operator.allocation_release(&id, &Reason::default()).await.unwrap();
    }

    async fn what_operators_do_to_a_guest_shows_in_its_state_and_in_its_history(server: TestServer) {
        let (mut node, _) = Looking::with_slots(&server, 1).await;
        let shop = Shop::open(&server).await;
        let secret = key(&server, &shop.project, "tenant", "owner").await;
        let (tenant, operator) = (server.client_with(Some(&secret)), server.client());
        let made = tenant.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let id = made.id.to_string();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "active").await;

        for (action, state) in [(PowerAction::Stop, "stopped"), (PowerAction::Start, "active")] {
            let power = SlicePower { action, graceful_timeout_seconds: None };
            let order = operator.slice_power(&id, &power, None).await.unwrap();
            let task = node.next().await;
            assert_eq!(task.payload().task_id, order.task.id);
            assert_eq!(refused(operator.slice_power(&id, &power, None).await), "allocation_busy");
            assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
            until(&server, &made, state).await;
        }
        operator.node_drain(&node.node(), &Reason { reason: "test-host gets a new fan".to_owned() }).await.unwrap();
        assert_eq!(tenant.allocation(&id).await.unwrap().state.as_str(), "active", "it continues");
        let release = SliceRelease { wipe: true, graceful_timeout_seconds: None };
        operator.slice_release(&id, &release, None).await.unwrap();
        let task = node.next().await;
        until(&server, &made, "releasing").await;
        let clean = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
        let over = until(&server, &made, "failed").await;
        assert_eq!(over.code.as_deref(), Some("taken_away"));

        let history = tenant.allocation_events(&id, &PageQuery::default()).await.unwrap().items;
        let acts = history.iter().filter(|event| event.kind == EventKind::AllocationOperatorActed);
        let acts: Vec<&str> = acts.map(|event| event.data["action"].as_str().unwrap()).collect();
        assert_eq!(acts, ["stop", "start", "drain", "release"]);
        let kinds: Vec<&str> = history.iter().filter_map(|event| event.kind.known()).map(EventKind::short).collect();
        for kind in ["allocation.stopped", "allocation.started", "allocation.releasing"] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        let text = serde_json::to_string(&history).unwrap();
        for secret in [node.node().as_str(), "test-host", "task_"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }

    async fn an_invitation_does_not_tell_whether_an_address_has_an_account(server: TestServer) {
        ada(&server).await;
        let shop = Shop::open(&server).await;
        let owner = server.client_with(Some(&key(&server, &shop.project, "owner", "owner").await));
        let invite = |email: &str| MemberAdd { email: Some(email.to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Viewer) };
        let known = owner.project_member_add(&shop.project, &invite(EMAIL), None).await.unwrap();
        let unknown = owner.project_member_add(&shop.project, &invite("nobody@example.org"), None).await.unwrap();
        for member in [&known, &unknown] {
            assert_eq!((member.kind.as_str(), member.state.as_str(), member.name.as_str()), ("invited", "invited", ""));
            assert_eq!(member.user_id, None);
        }
        assert_eq!(refused(owner.project_member_add(&shop.project, &invite(EMAIL), None).await), "member_exists");
        // She gets the role at her first sign-in.
        let her = server.client_with(Some(&text(&tokens(&server).await, "access_token")));
        eventually_async(PATIENCE, "the role counts", || async { her.project(&shop.project).await.ok() }).await;
        let members = owner.project_members(&shop.project, &PageQuery::default()).await.unwrap().items;
        assert!(members.iter().any(|member| member.name == "Ada" && member.state.as_str() == "active"));
        assert_eq!(refused(owner.project_member_add(&shop.project, &invite(EMAIL), None).await), "member_exists");
    }

    async fn what_a_tenant_can_make_has_an_end(server: TestServer) {
        let shop = Shop::open(&server).await;
        let client = server.client();
        let account = |name: String| ServiceAccountCreate { name, description: String::new(), role: None };
        let mut last = String::new();
        for number in 0..caps::SERVICE_ACCOUNTS.most {
            let made = client.service_account_create(&shop.project, &account(format!("sa-{number}")), None).await.unwrap();
            last = made.id.to_string();
        }
        let more = client.service_account_create(&shop.project, &account("one-more".to_owned()), None).await;
        assert_eq!(refused(more), "too_many_service_accounts");
        let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
        let mut keys = Vec::new();
        for _ in 0..caps::API_KEYS.most {
            keys.push(client.api_key_create(&shop.project, &last, &wanted, None).await.unwrap().key.id.to_string());
        }
        assert_eq!(refused(client.api_key_create(&shop.project, &last, &wanted, None).await), "too_many_keys");
        client.api_key_revoke(&shop.project, &last, &keys[0]).await.unwrap();
        client.api_key_create(&shop.project, &last, &wanted, None).await.expect("one that was revoked makes room");
        for number in 0..caps::INVITATIONS.most {
            let email = Some(format!("nobody-{number}@example.org"));
            let invite = MemberAdd { email, service_account_id: None, role: MemberRole::Project(ProjectRole::Viewer) };
            client.project_member_add(&shop.project, &invite, None).await.unwrap();
        }
        let invite =
            MemberAdd { email: Some("one-more@example.org".to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Viewer) };
        assert_eq!(refused(client.project_member_add(&shop.project, &invite, None).await), "too_many_invitations");
        assert!(server.metrics().await.contains("gpuaas_refusals_total{reason=\"too_many_keys\"} 1"));
    }
}
