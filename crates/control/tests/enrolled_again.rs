//! A host with the fingerprint of an existing node: who gets that node, and what happens to its slots.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::answers::{proof, succeeded};
use common::lifecycle::{Shop, until};
use common::looking::{Looking, refused};
use common::node::Host;
use common::{PATIENCE, TestServer};
use gpuaas_api::dto::{EnrollmentApprove, JoinTokenCreate, NodeChange};
use gpuaas_contract::id::NodeId;
use gpuaas_contract::link::{self, EnrollPending, EnrollRequest, EnrollStatus, Heartbeat, from_node, route};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_testkit::eventually_async;

async fn code(response: reqwest::Response) -> String {
    response.json::<serde_json::Value>().await.unwrap()["code"].as_str().unwrap_or("none").to_owned()
}

async fn asks(host: &Host) -> EnrollPending {
    let body = EnrollRequest { email: "ops@example.org".to_owned(), applicant: host.applicant() };
    host.anonymous().post(host.url(route::ENROLL_REQUEST)).json(&body).send().await.unwrap().json().await.unwrap()
}

async fn polls(host: &Host, pending: &EnrollPending) -> reqwest::Response {
    let url = host.url(&route::ENROLL_POLL.replace("{enrollment}", &pending.enrollment_id.to_string()));
    host.anonymous().get(url).header(link::ENROLL_SECRET_HEADER, &pending.poll_secret).send().await.unwrap()
}

/// Creates another installation, with other keys, that has the fingerprint of `known`.
fn imitating(server: &TestServer, known: &Host) -> Host {
    Host { fingerprint: known.fingerprint.clone(), ..Host::new(server) }
}

async fn token(server: &TestServer, replace_node: Option<NodeId>) -> String {
    let wanted = JoinTokenCreate { replace_node, ..JoinTokenCreate::default() };
    server.client().join_token_create(&wanted, None).await.unwrap().token
}

#[tokio::test]
async fn an_operator_sees_that_a_request_is_a_live_node_and_must_name_that_node() {
    let server = TestServer::sqlite().await;
    let (owner, other) = (Host::enrolled(&server).await, Host::enrolled(&server).await);
    let mut link = owner.connect(&[]).await;
    let thief = imitating(&server, &owner);
    let pending = asks(&thief).await;
    let (client, id) = (server.client(), pending.enrollment_id.to_string());
    let shown = client.enrollment(&id).await.unwrap();
    let existing = shown.existing_node.clone().expect("the match is shown");
    assert_eq!((existing.id, existing.service.as_str()), (owner.node_id(), "in_service"));
    assert!(existing.online && existing.keys_differ && existing.needs_replace && existing.name == "test-host");
    assert_eq!(client.enrollments(&Default::default()).await.unwrap().items, [shown]);

    assert_eq!(refused(client.enrollment_approve(&id, &EnrollmentApprove::default()).await), "replaces_node");
    let named = |node| EnrollmentApprove { replace_node: Some(node), ..EnrollmentApprove::default() };
    assert_eq!(refused(client.enrollment_approve(&id, &named(other.node_id())).await), "replace_node_mismatch");
    assert!(matches!(polls(&thief, &pending).await.json().await.unwrap(), EnrollStatus::Pending));
    assert!(client.node(&owner.node_id().to_string()).await.unwrap().online, "nothing happened to the node");

    // It is that machine after all, reinstalled.
    let approved = client.enrollment_approve(&id, &named(owner.node_id())).await.unwrap();
    assert_eq!(approved.replace_node, Some(owner.node_id()));
    let status: EnrollStatus = polls(&thief, &pending).await.json().await.unwrap();
    let EnrollStatus::Approved { grant } = status else { panic!("not approved: {status:?}") };
    assert_eq!((grant.node_id, grant.node_epoch), (owner.node_id(), 2));
    let reported = link.goodbye().await;
    assert!(["epoch_retired", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
}

#[tokio::test]
async fn what_an_operator_approved_as_new_does_not_take_over_a_node_that_came_in_meanwhile() {
    let server = TestServer::sqlite().await;
    let mut owner = Host::new(&server);
    let thief = imitating(&server, &owner);
    let pending = asks(&thief).await;
    server.client().enrollment_approve(&pending.enrollment_id.to_string(), &EnrollmentApprove::default()).await.unwrap();
    let open = token(&server, None).await;
    owner.grant = Some(owner.enroll(&open).await.json().await.unwrap());
    let answer = polls(&thief, &pending).await;
    assert_eq!(answer.status(), 409);
    assert_eq!(code(answer).await, "replaces_node");
    assert_eq!(server.client().node(&owner.node_id().to_string()).await.unwrap().epoch, 1);
}

#[tokio::test]
async fn a_join_token_takes_over_a_node_only_if_it_was_made_for_that() {
    let server = TestServer::sqlite().await;
    let (owner, other) = (Host::enrolled(&server).await, Host::enrolled(&server).await);
    let again = imitating(&server, &owner);
    let plain = token(&server, None).await;
    assert_eq!(code(again.enroll(&plain).await).await, "replaces_node");
    assert_eq!(Host::new(&server).enroll(&plain).await.status(), 200, "the refusal did not use the token up");
    let of_other = token(&server, Some(other.node_id())).await;
    assert_eq!(code(again.enroll(&of_other).await).await, "replace_node_mismatch");
    assert_eq!(code(Host::new(&server).enroll(&of_other).await).await, "replace_node_mismatch", "nor does it make a new node");
    let unknown = JoinTokenCreate { replace_node: Some(NodeId::generate()), ..JoinTokenCreate::default() };
    assert_eq!(refused(server.client().join_token_create(&unknown, None).await), "node_unknown");
    let of_owner = token(&server, Some(owner.node_id())).await;
    let grant: link::Grant = again.enroll(&of_owner).await.json().await.unwrap();
    assert_eq!((grant.node_id, grant.node_epoch), (owner.node_id(), 2));
    // The same machine with the same keys needs no permission: its answer may have been lost.
    let plain = token(&server, None).await;
    let grant: link::Grant = other.enroll(&plain).await.json().await.unwrap();
    assert_eq!(grant.node_id, other.node_id());
}

common::on_both_stores! {
    async fn the_slots_of_a_replaced_node_are_used_again_only_when_it_has_proved_them(server: TestServer) {
        let (mut node, slots) = Looking::with_slots(&server, 2).await;
        let shop = Shop::open(&server).await;
        let client = server.client();
        let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "active").await;

        let mut again = imitating(&server, &node.host);
        let of_node = token(&server, Some(node.host.node_id())).await;
        again.grant = Some(again.enroll(&of_node).await.json().await.unwrap());
        // The tenant gets an event, and the new installation must prove that nothing of theirs is left.
        until(&server, &made, "releasing").await;
        let state = async |id: &str| client.slot(id).await.unwrap().state;
        for slot in &slots {
            let now = state(&slot.id.to_string()).await;
            assert!(["withdrawn", "cleanup_blocked", "releasing"].contains(&now.as_str()), "{now}");
        }
        assert_eq!(refused(client.allocation_create(&shop.project, &shop.wants("b", "one"), None).await), "no_capacity");
        let link = again.connect(&[]).await;
        let mut node = Looking::of(again, link);
        let task = node.next().await;
        let clean = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
        let over = until(&server, &made, "failed").await;
        assert_eq!(over.code.as_deref(), Some("taken_away"));
        assert!(over.reason.is_some(), "in words that are the tenant's to read");
        // The leased one is proved clean; the other is discovered and approved again.
        let mut states = [state(&slots[0].id.to_string()).await, state(&slots[1].id.to_string()).await];
        states.sort();
        assert_eq!(states.map(|state| state.to_string()), ["available", "withdrawn"]);
    }
}

#[tokio::test]
async fn a_node_is_named_by_its_enrollment_and_by_operators_and_not_by_itself() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    let id = host.node_id().to_string();
    let mut hello = host.hello(&[]);
    let facts = |hostname: &str| {
        let facts = HostFacts { hostname: hostname.to_owned(), kernel: "6.1".to_owned(), ..HostFacts::default() };
        serde_json::to_string(&facts).unwrap()
    };
    hello.facts_json = facts("gpu-01");
    let mut link = host.try_connect(hello).await.unwrap();
    assert!(matches!(link.next().await, Some(link::to_node::Message::Welcome(_))));
    let client = server.client();
    assert_eq!(client.node(&id).await.unwrap().name, "test-host");
    let loud = format!("\u{1b}[2J\u{7}{}", "x".repeat(60_000));
    let beat = Heartbeat { facts_json: facts(&loud), ..Heartbeat::default() };
    link.say.send(from_node::Message::Heartbeat(beat).into()).await.unwrap();
    let node = eventually_async(PATIENCE, "the facts arrive", || async {
        let node = client.node(&id).await.unwrap();
        node.facts.hostname.starts_with("[2Jxxx").then_some(node)
    })
    .await;
    assert_eq!((node.name.as_str(), node.facts.hostname.len()), ("test-host", 253));
    let renamed = client.node_change("test-host", &NodeChange { name: "gpu-07".to_owned() }).await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.id.to_string()), ("gpu-07", id));
    let bad = NodeChange { name: "a\u{7}b".to_owned() };
    assert_eq!(refused(client.node_change("gpu-07", &bad).await), "name_invalid");
}
