//! The life of allocations, from a tenant's request to the last trace, against a real server with scripted nodes. It is the same
//! for every workflow driver.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_api::dto::{
    Allocation, AllocationCreate, ImageCreate, Limits, NodeRetire, OrganizationCreate, PageQuery, ProductKind, ProjectCreate,
    Reason, SkuCreate, SliceRelease, TaskListQuery,
};
use gpuaas_api::dto::{MachineOffer, StateFilter};
use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::DriveProof;
use gpuaas_contract::event::EventKind;
use gpuaas_contract::money::{Currency, Money};
use gpuaas_contract::receipt::{Outcome, Payload};
use gpuaas_contract::state::{AllocationState, GuestState};
use gpuaas_contract::task::TaskType;
use gpuaas_testkit::eventually_async;
use serde_json::json;

use super::TestServer;
use super::answers::{ended, proof, succeeded};
use super::looking::{Looking, refused};

/// A project with a catalog.
pub struct Shop {
    pub project: String,
}

impl Shop {
    pub async fn open(server: &TestServer) -> Self {
        let client = server.client();
        let wanted = OrganizationCreate {
            name: "lab".to_owned(),
            description: String::new(),
            limits: Limits::default(),
            owner_email: None,
        };
        let organization = client.organization_create(&wanted, None).await.unwrap();
        let limits = Limits { allocations: Some(3), slots: Some(4), machines: Some(1) };
        let wanted = ProjectCreate { name: "vision".to_owned(), description: String::new(), limits, owner_email: None };
        let project = client.project_create(&organization.id.to_string(), &wanted, None).await.unwrap();
        for (name, kind, slots) in
            [("one", ProductKind::Slice, Some(1)), ("two", ProductKind::Slice, Some(2)), ("host", ProductKind::BareMetal, None)]
        {
            let sku = SkuCreate {
                name: name.to_owned(),
                description: String::new(),
                kind,
                slots,
                gpu_model: None,
                allow_unknown_gpu: false,
                min_vcpus: 0,
                min_memory_mib: 0,
                price_per_hour: Money::of_millionths(2_500_000, Currency::USD),
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

    pub fn wants(&self, name: &str, sku: &str) -> AllocationCreate {
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
            graceful_timeout_seconds: None,
            dry_run: false,
        }
    }
}

pub async fn until(server: &TestServer, allocation: &Allocation, state: &str) -> Allocation {
    let client = server.client();
    let id = allocation.id.to_string();
    eventually_async(super::PATIENCE, state, || async {
        let now = client.allocation(&id).await.unwrap();
        (now.state.as_str() == state).then_some(now)
    })
    .await
}

pub async fn a_slice_is_asked_for_made_and_given_back(server: TestServer) {
    let (mut node, _) = Looking::with_slots(&server, 2).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let plan = client.allocation_plan(&shop.project, &shop.wants("a", "two")).await.unwrap();
    assert!(plan.fits && plan.price_per_hour.to_string() == "2.50 USD" && plan.slots.unwrap().len() == 2);

    let made = client.allocation_create(&shop.project, &shop.wants("a", "two"), Some("k")).await.unwrap();
    let again = client.allocation_create(&shop.project, &shop.wants("a", "two"), Some("k")).await.unwrap();
    assert_eq!(made.id, again.id, "asked twice, made once");
    assert_eq!(
        refused(client.allocation_create(&shop.project, &shop.wants("b", "two"), Some("k")).await),
        "idempotency_key_reused"
    );
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

pub async fn a_whole_host_is_leased_and_given_back(server: TestServer) {
    let mut node = Looking::new(&server).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    assert_eq!(refused(client.allocation_create(&shop.project, &shop.wants("a", "host"), None).await), "no_capacity");
    let offer = MachineOffer { ssh_address: Some("gpu7.example.com:2222".parse().unwrap()) };
    client.node_machine_offer(&node.node(), &offer).await.unwrap();
    let made = client.allocation_create(&shop.project, &shop.wants("a", "host"), None).await.unwrap();
    let task = node.next().await;
    assert_eq!(task.task().task_type(), TaskType::AllocationProvisionUser);
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    let now = until(&server, &made, "active").await;
    assert_eq!((now.ssh_host.as_deref(), now.ssh_port), (Some("gpu7.example.com"), Some(2222)));
    let console = client.allocation_console(&made.id.to_string(), &Default::default(), None).await;
    assert_eq!(refused(console), "console_not_supported");
    client.allocation_release(&made.id.to_string(), &Reason::default()).await.unwrap();
    let task = node.next().await;
    assert_eq!(task.task().task_type(), TaskType::AllocationDeprovisionUser);
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    until(&server, &made, "released").await;
    let again = client.allocation_create(&shop.project, &shop.wants("b", "host"), None).await.unwrap();
    assert_ne!(again.id, made.id, "the machine serves the next one");
}

pub async fn a_host_that_fails_cleanly_is_followed_by_another(server: TestServer) {
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

pub async fn a_server_that_was_restarted_goes_on_with_every_run(server: TestServer) {
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

/// How a task may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It failed, and nothing of it is left.
    Clean,
    /// It failed, and its remains are unknown.
    Dirty,
    /// The host refused it.
    Refused,
    /// The host was interrupted.
    Interrupted,
}

/// Answers the tasks of the host, with a failure for the first task of the kind `bad_at`, until the allocation is in the expected
/// state.
pub async fn serves(
    node: &mut Looking,
    server: &TestServer,
    allocation: &Allocation,
    bad_at: Option<(TaskType, Bad)>,
    done: impl Fn(&Allocation) -> bool,
) -> Allocation {
    let (client, id) = (server.client(), allocation.id.to_string());
    let mut bad_at = bad_at;
    let wait = eventually_async(super::PATIENCE * 2, "it is as wanted", || async {
        let now = client.allocation(&id).await.unwrap();
        done(&now).then_some(now)
    });
    let mut wait = std::pin::pin!(wait);
    loop {
        let task = tokio::select! {
            now = &mut wait => return now,
            task = node.next() => task,
        };
        let kind = task.task().task_type();
        let clean = (kind == TaskType::SliceVmRelease || bad_at == Some((kind, Bad::Clean))).then(|| proof(&task));
        let reported = match bad_at.filter(|(bad, _)| *bad == kind) {
            None => node.answers(&task, |payload| succeeded(payload, &task, clean.as_ref())).await,
            Some((_, how)) => {
                bad_at = None;
                let (outcome, clean) = match how {
                    Bad::Clean => (Outcome::Failed, clean.as_ref()),
                    Bad::Dirty => (Outcome::Failed, None),
                    Bad::Refused => (Outcome::Refused, None),
                    Bad::Interrupted => (Outcome::Interrupted, None),
                };
                node.answers(&task, |payload| ended(payload, outcome, clean)).await
            }
        };
        assert_eq!(reported, "", "{kind:?} {bad_at:?}");
    }
}

/// Each step of a run fails once, in every way a host can fail: the end is always defined, with a reason, and nothing is left.
pub async fn a_step_that_fails_leads_to_a_defined_end(server: TestServer) {
    let (mut node, slots) = Looking::with_slots(&server, 2).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let steps = [TaskType::SliceVmProvision, TaskType::SliceVmPower, TaskType::SliceVmRelease];
    for kind in steps {
        for how in [Bad::Clean, Bad::Dirty, Bad::Refused, Bad::Interrupted] {
            // A power action leaves nothing behind that needs a proof. A failed release is retried after ten seconds: one is
            // enough here.
            let told_already = kind == TaskType::SliceVmPower && how == Bad::Clean;
            if told_already || (kind == TaskType::SliceVmRelease && how != Bad::Interrupted) {
                continue;
            }
            let what = format!("{kind:?} {how:?}");
            let made = client.allocation_create(&shop.project, &shop.wants("a", "two"), None).await.unwrap();
            let id = made.id.to_string();
            let bad = Some((kind, how));
            let over =
                |now: &Allocation| ["active", "stopped", "failed", "released", "release_blocked"].contains(&now.state.as_str());
            let now = serves(&mut node, &server, &made, bad, over).await;
            if now.state.as_str() == "active" {
                client.allocation_stop(&id).await.unwrap();
                let now = serves(&mut node, &server, &made, bad, |now| now.pending_power_action.is_none()).await;
                assert_eq!(now.state == AllocationState::Stopped, kind != TaskType::SliceVmPower, "{what}: {now:?}");
                client.allocation_release(&id, &Reason::default()).await.unwrap();
                let now = serves(&mut node, &server, &made, bad, |now| {
                    over(now) && !now.state.known().is_some_and(AllocationState::is_held)
                })
                .await;
                assert_eq!(now.state.as_str(), "released", "{what}: {now:?}");
            } else {
                assert!(now.state.as_str() == "failed" && now.reason.is_some() && now.code.is_some(), "{what}: {now:?}");
            }
            for slot in &slots {
                let slot = client.slot(&slot.id.to_string()).await.unwrap();
                assert_eq!((slot.state.as_str(), slot.allocation_id), ("available", None), "{what}");
            }
            assert_eq!(client.project_quota(&shop.project).await.unwrap().used, Default::default(), "{what}");
            let open = TaskListQuery { state: Some(StateFilter::Open), ..TaskListQuery::default() };
            assert!(client.tasks(&open).await.unwrap().items.is_empty(), "{what}: a task is left");
        }
    }
}

/// All requests are placed at the same time, and there is one slot for each: none is refused, and no slot is used twice.
pub async fn who_ask_at_the_same_time_find_different_places(server: TestServer) {
    let (mut node, slots) = Looking::with_slots(&server, 3).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let wanted = ["a", "b", "c"].map(|name| shop.wants(name, "one"));
    let made = futures::future::try_join_all(wanted.iter().map(|wanted| client.allocation_create(&shop.project, wanted, None)));
    let made = made.await.unwrap();
    let tasks = [node.next().await, node.next().await, node.next().await];
    for task in &tasks {
        assert_eq!(task.task().task_type(), TaskType::SliceVmProvision);
        assert_eq!(node.answers(task, |payload| succeeded(payload, task, None)).await, "");
    }
    for one in &made {
        let active = until(&server, one, "active").await;
        assert_eq!((active.attempts, active.slots), (1, 1));
    }
    let mut holders = BTreeSet::new();
    for slot in &slots {
        holders.extend(client.slot(&slot.id.to_string()).await.unwrap().allocation_id);
    }
    assert_eq!(holders, made.iter().map(|one| one.id).collect(), "each has one slot");
    assert_eq!(client.project_quota(&shop.project).await.unwrap().used.slots, 3);
    // They end at the same time too: all of them change the same counters.
    futures::future::try_join_all(
        made.iter().map(|one| async { client.allocation_release(&one.id.to_string(), &Reason::default()).await }),
    )
    .await
    .unwrap();
    let tasks = [node.next().await, node.next().await, node.next().await];
    for task in &tasks {
        let clean = proof(task);
        assert_eq!(node.answers(task, |payload| succeeded(payload, task, Some(&clean))).await, "");
    }
    for one in &made {
        until(&server, one, "released").await;
    }
    assert_eq!(client.project_quota(&shop.project).await.unwrap().used, Default::default());
}

pub async fn a_release_over_the_budget_waits_where_everybody_sees_it(mut server: TestServer) {
    // Half of it is for the organization: one.
    server.with_budget(2).await;
    let (mut node, _) = Looking::with_slots(&server, 2).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let mut made = Vec::new();
    for name in ["a", "b"] {
        let allocation = client.allocation_create(&shop.project, &shop.wants(name, "one"), None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        made.push(until(&server, &allocation, "active").await);
    }
    client.allocation_release(&made[0].id.to_string(), &Reason::default()).await.unwrap();
    let task = node.next().await;
    let clean = proof(&task);
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
    until(&server, &made[0], "released").await;

    let second = made[1].id.to_string();
    client.allocation_release(&second, &Reason::default()).await.unwrap();
    let waiting = eventually_async(super::PATIENCE, "the release waits", || async {
        client.allocation(&second).await.unwrap().code.filter(|code| code == "destructive_budget_exhausted")
    });
    waiting.await;
    assert_eq!(client.allocation(&second).await.unwrap().state.as_str(), "releasing");
    let history = client.allocation_events(&second, &PageQuery::default()).await.unwrap().items;
    let waits = history.iter().filter(|event| event.kind == EventKind::AllocationReleaseWaiting).count();
    assert_eq!(waits, 1, "told once");

    // An operator lifts the budget, and it continues by itself.
    let lift = gpuaas_api::dto::BudgetLift { count: 1, reason: "the rack moves out".to_owned() };
    server.local_client().budget_lift(&lift).await.unwrap();
    let task = node.next().await;
    assert_eq!(task.payload().allocation_id, Some(made[1].id));
    let clean = proof(&task);
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
    until(&server, &made[1], "released").await;
}

pub async fn a_node_with_a_tenant_is_retired_only_by_force_and_the_tenant_is_told(server: TestServer) {
    let (mut node, _) = Looking::with_slots(&server, 1).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
    let task = node.next().await;
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    until(&server, &made, "active").await;
    let retire = NodeRetire { reason: "the rack moves out".to_owned(), force: false };
    assert_eq!(refused(client.node_retire(&node.node(), &retire).await), "node_in_use");
    assert_eq!(client.allocation(&made.id.to_string()).await.unwrap().state.as_str(), "active");

    let name = client.node_retire(&node.node(), &NodeRetire { force: true, ..retire }).await.unwrap().name;
    let told = until(&server, &made, "release_blocked").await;
    assert!(told.reason.is_some_and(|reason| reason.contains("no longer yours")), "{:?}", told.code);
    let history = client.allocation_events(&made.id.to_string(), &PageQuery::default()).await.unwrap().items;
    assert!(history.iter().any(|event| event.kind == EventKind::AllocationReleaseBlocked), "{history:?}");
    let acted = history.iter().find(|event| event.kind == EventKind::AllocationOperatorActed);
    assert_eq!(acted.map(|event| &event.data["action"]), Some(&"retire".into()), "{history:?}");
    assert_eq!(client.node(&name).await.unwrap().service.as_str(), "retired", "it can still be looked at by its name");
}

pub async fn a_guest_that_is_started_says_whether_it_answers(server: TestServer) {
    let (mut node, _) = Looking::with_slots(&server, 1).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
    let id = made.id.to_string();
    let task = node.next().await;
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    assert_eq!(until(&server, &made, "active").await.guest, Some(GuestState::Answering.into()));
    client.allocation_stop(&id).await.unwrap();
    let task = node.next().await;
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    assert_eq!(until(&server, &made, "stopped").await.guest, Some(GuestState::Off.into()));
    for (answers, guest, code) in
        [(false, GuestState::NotAnswering, Some("guest_not_answering")), (true, GuestState::Answering, None)]
    {
        if answers { client.allocation_reboot(&id).await } else { client.allocation_start(&id).await }.unwrap();
        let task = node.next().await;
        assert_eq!(client.allocation(&id).await.unwrap().guest, Some(GuestState::Booting.into()));
        let answer = |payload: &mut Payload| {
            let output = json!({
                "allocation_id": made.id, "running": true, "unchanged": false, "hard_stopped": false, "answers": answers,
            });
            payload.output = Some(serde_json::value::to_raw_value(&output).unwrap());
        };
        assert_eq!(node.answers(&task, answer).await, "");
        let now = eventually_async(super::PATIENCE, "the run has seen it", || async {
            let now = client.allocation(&id).await.unwrap();
            now.pending_power_action.is_none().then_some(now)
        })
        .await;
        assert_eq!((now.state.as_str(), now.guest, now.code.as_deref()), ("active", Some(guest.into()), code));
    }
    let history = client.allocation_events(&id, &PageQuery::default()).await.unwrap().items;
    let told = |kind: EventKind| history.iter().find(|event| event.kind == kind).unwrap().data["guest"].clone();
    assert_eq!(told(EventKind::AllocationStarted), "not_answering");
    assert_eq!(told(EventKind::AllocationRebooted), "answering");
}

pub async fn what_an_operator_releases_without_a_wipe_is_wiped_by_nobody_else(server: TestServer) {
    let (mut node, slots) = Looking::with_slots(&server, 1).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
    let id = made.id.to_string();
    let task = node.next().await;
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    until(&server, &made, "active").await;
    let release = SliceRelease { wipe: false, graceful_timeout_seconds: None };
    client.slice_release(&id, &release, None).await.unwrap();
    let task = node.next().await;
    let mut skipped = proof(&task);
    skipped.slots[0].drive = DriveProof::skipped("S0");
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&skipped))).await, "");
    assert_eq!(until(&server, &made, "release_blocked").await.code.as_deref(), Some("content_kept"));
    client.allocation_release(&id, &Reason::default()).await.unwrap();
    let open = TaskListQuery { state: Some(StateFilter::Open), ..TaskListQuery::default() };
    assert!(client.tasks(&open).await.unwrap().items.is_empty(), "nobody ordered a wipe");
    let slot = client.slot(&slots[0].id.to_string()).await.unwrap();
    assert!(slot.state.as_str() == "needs_wipe" && slot.reason.contains("without a wipe"), "{slot:?}");

    client.slot_force_cleanup(&slot.id.to_string(), &Reason::default(), None).await.unwrap();
    let task = node.next().await;
    let clean = proof(&task);
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&clean))).await, "");
    until(&server, &made, "released").await;
}

/// Creates tests of every scenario with another macro.
macro_rules! lifecycle {
    ($tests:ident) => {
        $tests! {
            a_slice_is_asked_for_made_and_given_back,
            a_whole_host_is_leased_and_given_back,
            a_host_that_fails_cleanly_is_followed_by_another,
            a_server_that_was_restarted_goes_on_with_every_run,
            a_step_that_fails_leads_to_a_defined_end,
            who_ask_at_the_same_time_find_different_places,
            a_release_over_the_budget_waits_where_everybody_sees_it,
            a_node_with_a_tenant_is_retired_only_by_force_and_the_tenant_is_told,
            a_guest_that_is_started_says_whether_it_answers,
            what_an_operator_releases_without_a_wipe_is_wiped_by_nobody_else
        }
    };
}

pub(crate) use lifecycle;
