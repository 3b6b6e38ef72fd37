//! The server is killed at every step of an allocation's run, before and after the step is written. After a restart the run
//! always finishes, with exactly one guest, and nothing is left behind.

use std::collections::BTreeMap;

use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{
    Allocation, AllocationCreate, AllocationSearchQuery, ImageCreate, Limits, OrganizationCreate, ProductKind, ProjectCreate,
    Reason, SkuCreate, SlotListQuery, TaskListQuery,
};
use gpuaas_api::{Client, ClientOptions};
use gpuaas_contract::Digest;
use gpuaas_contract::money::{Currency, Money};
use gpuaas_testkit::{PATIENCE, eventually};

use crate::cluster::{AgentHost, Beside, Carrier, Cluster, Store};

/// Every step that writes something, before and after the write.
const STEPS: [&str; 12] = [
    "run.place.decided",
    "run.place.committed",
    "run.await_provision.decided",
    "run.await_provision.committed",
    "run.serve.decided",
    "run.serve.committed",
    "run.await_power.decided",
    "run.await_power.committed",
    "run.release.decided",
    "run.release.committed",
    "run.await_release.decided",
    "run.await_release.committed",
];

struct Tenant<'a> {
    cluster: &'a Cluster,
    runtime: tokio::runtime::Runtime,
    project: String,
}

impl<'a> Tenant<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = client(cluster);
        let project = runtime.block_on(async {
            let wanted = OrganizationCreate {
                name: "lab".to_owned(),
                description: String::new(),
                limits: Limits::default(),
                owner_email: None,
            };
            let organization = client.organization_create(&wanted, None).await.unwrap().id.to_string();
            let wanted = ProjectCreate {
                name: "vision".to_owned(),
                description: String::new(),
                limits: Limits { slots: Some(4), ..Limits::default() },
                owner_email: None,
            };
            let project = client.project_create(&organization, &wanted, None).await.unwrap().id.to_string();
            let sku = SkuCreate {
                name: "two".to_owned(),
                description: String::new(),
                kind: ProductKind::Slice,
                slots: Some(2),
                gpu_model: None,
                allow_unknown_gpu: false,
                min_vcpus: 0,
                min_memory_mib: 0,
                price_per_hour: Money::of_millionths(1, Currency::USD),
            };
            client.sku_create(&sku, None).await.unwrap();
            let image = ImageCreate {
                name: "ubuntu".to_owned(),
                description: String::new(),
                url: Some("https://images.example/ubuntu.img".to_owned()),
                path: None,
                sha256: Digest::of(b""),
                format: Default::default(),
                driver_strategy: Default::default(),
                default_username: None,
            };
            client.image_create(&image, None).await.unwrap();
            project
        });
        Self { cluster, runtime, project }
    }

    /// Sends a request. Returns `None` if the server is dead.
    fn ask<T>(&self, question: impl AsyncFn(&Client) -> Result<T, gpuaas_api::ClientError>) -> Option<T> {
        let client = client(self.cluster);
        self.runtime.block_on(async { question(&client).await.ok() })
    }

    /// Sends a request until the server answers.
    fn insist<T>(&self, question: impl AsyncFn(&Client) -> Result<T, gpuaas_api::ClientError>) -> T {
        eventually(PATIENCE, "the server answers", || self.ask(&question))
    }

    fn wants(&self, key: &str) -> Option<Allocation> {
        let wanted = AllocationCreate {
            name: "guest".parse().unwrap(),
            sku: "two".to_owned(),
            image: Some("ubuntu".to_owned()),
            ssh_keys: Vec::new(),
            ssh_public_keys: vec![
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHKEEv6ijKqyQ2vQ6nA1WbKOL3vVv1YxmgG1bbbLW2uV".parse().unwrap(),
            ],
            username: None,
            tags: BTreeMap::new(),
            lease_seconds: None,
            wait_seconds: Some(600),
            spread: false,
            sudo: false,
            graceful_timeout_seconds: None,
            dry_run: false,
        };
        self.ask(async |client| client.allocation_create(&self.project, &wanted, Some(key)).await)
    }

    fn until(&self, id: &str, what: &str, good: impl Fn(&Allocation) -> bool) {
        eventually(PATIENCE, &format!("{id}: {what}"), || {
            self.ask(async |client| client.allocation(id).await).filter(|now| good(now))
        });
    }
}

fn client(cluster: &Cluster) -> Client {
    let mut options = ClientOptions::new(cluster.url());
    options.token = Some(std::fs::read_to_string(cluster.admin_token_file()).unwrap());
    Client::new(options).unwrap()
}

/// Waits until the server is frozen at the step, then kills and restarts it.
fn restarted_at(cluster: &mut Cluster, step: &str) {
    cluster.failpoints.wait_hit(step);
    cluster.kill_server();
    cluster.start_server();
}

fn killed_at_every_step(store: Store, beside: &[Beside]) {
    let Some(mut cluster) = Cluster::start_beside(store, beside) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    let node = host.node_id();
    host.start();
    cluster.wait_online(&node, true);
    cluster.json(&["node", "topology", "discover", &node]);
    cluster.json(&["node", "topology", "approve", &node]);
    let project = Tenant::new(&cluster).project;
    for step in STEPS {
        cluster.failpoints.arm(step);
        let key = format!("crash-{step}");
        let phase = step.split('.').nth(1).unwrap();
        // The caller may not get the response, so it repeats the request with the same idempotency key, as a client should.
        with(&cluster, &project, |tenant| drop(tenant.wants(&key)));
        if matches!(phase, "place" | "await_provision") {
            restarted_at(&mut cluster, step);
        }
        let id = with(&cluster, &project, |tenant| eventually(PATIENCE, "it is asked for", || tenant.wants(&key)).id.to_string());
        with(&cluster, &project, |tenant| tenant.until(&id, "active", |now| now.state.as_str() == "active"));
        with(&cluster, &project, |tenant| drop(tenant.ask(async |client| client.allocation_stop(&id).await)));
        if matches!(phase, "serve" | "await_power") {
            restarted_at(&mut cluster, step);
        }
        with(&cluster, &project, |tenant| {
            tenant.until(&id, "stopped", |now| now.state.as_str() == "stopped" && now.pending_power_action.is_none())
        });
        with(&cluster, &project, |tenant| {
            drop(tenant.ask(async |client| client.allocation_release(&id, &Reason::default()).await));
        });
        if matches!(phase, "release" | "await_release") {
            restarted_at(&mut cluster, step);
        }
        with(&cluster, &project, |tenant| {
            tenant.until(&id, "released", |now| now.state.as_str() == "released");
            nothing_is_left(tenant, step);
        });
    }
    cluster.verify_audit();
}

fn with<T>(cluster: &Cluster, project: &str, work: impl FnOnce(&Tenant<'_>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    work(&Tenant { cluster, runtime, project: project.to_owned() })
}

/// Checks that no slot is held, no task is open, and nothing counts against the quota.
fn nothing_is_left(tenant: &Tenant<'_>, step: &str) {
    let slots = tenant.insist(async |client| client.slots(&SlotListQuery::default()).await).items;
    assert!(slots.iter().all(|slot| slot.state.as_str() == "available"), "{step}: {slots:?}");
    let open = TaskListQuery { state: Some(StateFilter::Open), ..TaskListQuery::default() };
    assert!(tenant.insist(async |client| client.tasks(&open).await).items.is_empty(), "{step}: a task is left");
    let used = tenant.insist(async |client| client.project_quota(&tenant.project).await).used;
    assert_eq!((used.allocations, used.slots), (0, 0), "{step}");
    let live = AllocationSearchQuery { state: Some(StateFilter::Open), ..AllocationSearchQuery::default() };
    assert!(tenant.insist(async |client| client.allocations(&live).await).items.is_empty(), "{step}");
}

#[test]
fn the_server_is_killed_at_every_step_of_a_run_on_sqlite() {
    killed_at_every_step(Store::Sqlite, &[]);
}

#[test]
fn the_server_is_killed_at_every_step_of_a_run_on_postgres() {
    killed_at_every_step(Store::Postgres, &[]);
}

/// The Temporal worker dies with the server: Temporal must notice that, and run every interrupted step again.
#[test]
#[cfg(feature = "temporal")]
fn the_worker_is_killed_at_every_step_of_a_run_on_temporal() {
    killed_at_every_step(Store::Postgres, &[Beside::Temporal]);
}
