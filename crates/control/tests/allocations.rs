//! Allocations, from a tenant's request to the last trace, against a real server by scripted nodes.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::TestServer;
use common::answers::{ended, proof, succeeded};
use common::looking::{Looking, refused};
use gpuaas_api::dto::{
    Allocation, AllocationCreate, ImageCreate, Limits, OrganisationCreate, PageQuery, ProductKind, ProjectCreate, Reason,
    SkuCreate,
};
use gpuaas_contract::Digest;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::TaskType;
use gpuaas_testkit::eventually_async;

/// Runs the scenario on both stores.
macro_rules! on_both_stores {
    ($(async fn $name:ident($server:ident: TestServer) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn scenario($server: TestServer) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                scenario(TestServer::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(server) = TestServer::postgres().await {
                    scenario(server).await;
                }
            }
        }
    )*};
}

/// A project with a catalogue.
struct Shop {
    project: String,
}

impl Shop {
    async fn open(server: &TestServer) -> Self {
        let client = server.client();
        let wanted = OrganisationCreate {
            name: "lab".to_owned(),
            description: String::new(),
            limits: Limits::default(),
            owner_email: None,
        };
        let organisation = client.organisation_create(&wanted, None).await.unwrap();
        let limits = Limits { allocations: Some(3), slots: Some(4), machines: Some(1) };
        let wanted = ProjectCreate { name: "vision".to_owned(), description: String::new(), limits, owner_email: None };
        let project = client.project_create(&organisation.id.to_string(), &wanted, None).await.unwrap();
        for (name, kind, slots) in
            [("one", ProductKind::Slice, Some(1)), ("two", ProductKind::Slice, Some(2)), ("host", ProductKind::BareMetal, None)]
        {
            let sku = SkuCreate {
                name: name.to_owned(),
                description: String::new(),
                kind,
                slots,
                gpu_model: None,
                min_vcpus: 0,
                min_memory_mib: 0,
                price_per_hour: 2_500_000,
            };
            client.sku_create(&sku, None).await.unwrap();
        }
        let image = ImageCreate {
            name: "ubuntu".to_owned(),
            description: String::new(),
            url: Some("https://images.example.com/ubuntu.img".to_owned()),
            path: None,
            sha256: Digest::of(b"image"),
            format: Default::default(),
            driver_strategy: Default::default(),
            default_username: None,
        };
        client.image_create(&image, None).await.unwrap();
        Self { project: project.id.to_string() }
    }

    fn wants(&self, name: &str, sku: &str) -> AllocationCreate {
        AllocationCreate {
            name: name.parse().unwrap(),
            sku: sku.to_owned(),
            image: (sku != "host").then(|| "ubuntu".to_owned()),
            ssh_keys: Vec::new(),
            ssh_public_keys: vec![
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHKEEv6ijKqyQ2vQ6nA1WbKOL3vVv1YxmgG1bbbLW2uV".parse().unwrap(),
            ],
            username: None,
            tags: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            lease_seconds: None,
            wait_seconds: None,
            spread: false,
            sudo: false,
            ovs_bridge: None,
            graceful_timeout_seconds: None,
            dry_run: false,
        }
    }
}

async fn until(server: &TestServer, allocation: &Allocation, state: &str) -> Allocation {
    let client = server.client();
    let id = allocation.id.to_string();
    eventually_async(common::PATIENCE, state, || async {
        let now = client.allocation(&id).await.unwrap();
        (now.state == state).then_some(now)
    })
    .await
}

on_both_stores! {
    async fn a_slice_is_asked_for_made_and_given_back(server: TestServer) {
        let (mut node, _) = Looking::with_slots(&server, 2).await;
        let shop = Shop::open(&server).await;
        let client = server.client();
        let plan = client.allocation_plan(&shop.project, &shop.wants("a", "two")).await.unwrap();
        assert!(plan.fits && plan.price_per_hour == 2_500_000 && plan.slots.unwrap().len() == 2);

        let made = client.allocation_create(&shop.project, &shop.wants("a", "two"), Some("k")).await.unwrap();
        let again = client.allocation_create(&shop.project, &shop.wants("a", "two"), Some("k")).await.unwrap();
        assert_eq!(made.id, again.id, "asked twice, made once");
        assert_eq!(refused(client.allocation_create(&shop.project, &shop.wants("b", "two"), Some("k")).await), "idempotency_key_reused");
        let task = node.next().await;
        assert_eq!(task.task().task_type(), TaskType::SliceVmProvision);
        assert_eq!(task.payload().allocation_id, Some(made.id));
        assert_eq!(refused(client.allocation_create(&shop.project, &shop.wants("c", "one"), None).await), "no_capacity");
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        let active = until(&server, &made, "active").await;
        assert!(active.active_at.is_some() && active.slots == 2 && active.private_ip.is_some() && active.reason.is_none());
        assert_eq!(client.project_quota(&shop.project).await.unwrap().used.slots, 2);

        client.allocation_release(&made.id.to_string(), &Reason::default()).await.unwrap();
        let task = node.next().await;
        assert_eq!(task.task().task_type(), TaskType::SliceVmRelease);
        let clean = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
        let released = until(&server, &made, "released").await;
        assert!(released.ended_at.is_some() && released.code.is_none());
        assert_eq!(client.project_quota(&shop.project).await.unwrap().used.slots, 0);
        let history = client.allocation_events(&made.id.to_string(), &PageQuery::default()).await.unwrap().items;
        let kinds: Vec<&str> = history.iter().map(|event| event.kind.as_str()).collect();
        let steps = ["requested", "provisioning", "active", "release_requested", "releasing", "release_ordered", "released"];
        assert_eq!(kinds, steps.map(|step| format!("gpuaas.allocation.{step}.v1")));
    }

    async fn a_whole_host_is_leased_and_given_back(server: TestServer) {
        let mut node = Looking::new(&server).await;
        let shop = Shop::open(&server).await;
        let client = server.client();
        assert_eq!(refused(client.allocation_create(&shop.project, &shop.wants("a", "host"), None).await), "no_capacity");
        client.node_machine_offer(&node.node()).await.unwrap();
        let made = client.allocation_create(&shop.project, &shop.wants("a", "host"), None).await.unwrap();
        let task = node.next().await;
        assert_eq!(task.task().task_type(), TaskType::AllocationProvisionUser);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "active").await;
        client.allocation_release(&made.id.to_string(), &Reason::default()).await.unwrap();
        let task = node.next().await;
        assert_eq!(task.task().task_type(), TaskType::AllocationDeprovisionUser);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "released").await;
        let again = client.allocation_create(&shop.project, &shop.wants("b", "host"), None).await.unwrap();
        assert_ne!(again.id, made.id, "the machine serves the next one");
    }

    async fn a_host_that_fails_cleanly_is_followed_by_another(server: TestServer) {
        let (mut first, _) = Looking::with_slots(&server, 1).await;
        let (mut second, _) = Looking::with_slots(&server, 1).await;
        let shop = Shop::open(&server).await;
        let client = server.client();
        let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let provisioning = until(&server, &made, "provisioning").await;
        let on_first = provisioning.node_id == Some(first.host.node_id());
        let (one, other) = if on_first { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let task = one.next().await;
        let clean = proof(&task);
        assert_eq!(one.answers(&task, |payload| ended(payload, Outcome::Failed, Some(&clean))).await, "");
        let task = other.next().await;
        assert_eq!(other.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        let active = until(&server, &made, "active").await;
        assert_eq!((active.attempts, active.reason), (2, None));
    }

    async fn a_server_that_was_restarted_goes_on_with_every_run(server: TestServer) {
        let mut server = server;
        let (mut node, _) = Looking::with_slots(&server, 1).await;
        let shop = Shop::open(&server).await;
        let made = server.client().allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let task = node.next().await;
        server.restart().await;
        node.reconnects(&[]).await;
        let offered_again = node.next().await;
        assert_eq!(offered_again.payload().task_id, task.payload().task_id);
        let task = offered_again;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        until(&server, &made, "active").await;
    }
}
