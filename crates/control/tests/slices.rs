//! Guests on slots, from the first task to the proof that nothing is left, against a real server with a scripted node.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::answers::{ended, proof, succeeded};
use common::looking::{Looking, refused, write_to_database};
use common::{PATIENCE, TestServer};
use gpuaas_api::dto::{
    NodeRetire, Reason, SliceConsole, SliceCreate, SliceListQuery, SliceOrder, SlicePower, SliceRelease, Slot, SlotName, Task,
    TaskCreate,
};
use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::DriveProof;
use gpuaas_contract::guest::{GuestSpec, ImageSource};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::task::{self, TaskType};
use gpuaas_testkit::eventually_async;
use serde_json::json;

fn create(node: &Looking, slots: &[u32]) -> SliceCreate {
    SliceCreate {
        node: node.node(),
        slots: slots.iter().map(|index| SlotName::Index(*index)).collect(),
        guest: GuestSpec {
            vm_name: "guest-1".parse().unwrap(),
            image: ImageSource {
                path: Some("ubuntu.qcow2".to_owned()),
                url: None,
                sha256: Digest::of(b"image"),
                format: Default::default(),
                trusted: false,
            },
            default_username: "ubuntu".parse().unwrap(),
            ssh_public_keys: Vec::new(),
            driver_strategy: Default::default(),
            ovs_bridge: None,
            graphics: false,
            graceful_timeout_seconds: None,
        },
    }
}

const WIPED: SliceRelease = SliceRelease { wipe: true, graceful_timeout_seconds: None };

/// Returns a guest that runs on these slots.
async fn running(server: &TestServer, node: &mut Looking, slots: &[u32]) -> SliceOrder {
    let order = server.client().slice_create(&create(node, slots), None).await.unwrap();
    let task = node.next().await;
    assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
    order
}

async fn state(server: &TestServer, slot: &Slot) -> String {
    server.client().slot(&slot.id.to_string()).await.unwrap().state.to_string()
}

common::on_both_stores! {
    async fn a_guest_is_made_used_and_released_and_its_slots_serve_the_next_one(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 3).await;
        assert!(client.slices(&SliceListQuery::default()).await.unwrap().items.is_empty());
        let order = client.slice_create(&create(&node, &[1, 0]), Some("order-1")).await.unwrap();
        let again = client.slice_create(&create(&node, &[1, 0]), Some("order-1")).await.unwrap();
        assert_eq!((again.allocation_id, again.task.id), (order.allocation_id, order.task.id), "asked twice, made once");
        assert_eq!(refused(client.slice_create(&create(&node, &[2]), Some("order-1")).await), "idempotency_key_reused");
        assert_eq!(order.slots.iter().map(|slot| slot.state.as_str()).collect::<Vec<_>>(), ["leased"; 2]);
        assert_eq!(order.task.timeout_seconds, 7200);
        assert_eq!(refused(client.slice_create(&create(&node, &[1]), None).await), "slot_not_available");
        let id = order.allocation_id.to_string();
        assert_eq!(refused(client.slice_release(&id, &WIPED, None).await), "slice_busy");

        // The agent accepts it: the envelope names the lease of its params.
        let task = node.next().await;
        assert_eq!(task.payload().allocation_id, Some(order.allocation_id));
        assert_eq!(task.payload().lease_epoch, Some(1));
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        let slice = client.slice(&id).await.unwrap();
        assert_eq!((slice.state.as_str(), slice.vm_name.as_str(), slice.slots.len()), ("leased", "guest-1", 2));
        assert_eq!(slice.private_ip.unwrap().to_string(), "10.77.0.2");
        assert_eq!(slice.tasks[0].state.as_str(), "succeeded");
        let listed = |state: &str| SliceListQuery { state: Some(state.parse().unwrap()), ..SliceListQuery::default() };
        assert_eq!(client.slices(&listed("leased")).await.unwrap().items.len(), 1);
        assert!(client.slices(&listed("needs_wipe")).await.unwrap().items.is_empty());
        assert_eq!(refused(client.slices(&listed("available")).await), "state_invalid");

        let power = SlicePower { action: PowerAction::Reboot, graceful_timeout_seconds: None };
        client.slice_power(&id, &power, None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        let console = client.slice_console(&id, &SliceConsole { tail_bytes: Some(1000), follow_seconds: Some(5) }, None).await.unwrap();
        assert_eq!((console.task.task_type.as_str(), console.task.timeout_seconds), ("slice.console_read", 125));
        let too_much = SliceConsole { tail_bytes: Some(u32::MAX), follow_seconds: None };
        assert_eq!(refused(client.slice_console(&id, &too_much, None).await), "params_invalid");
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");

        let release = client.slice_release(&id, &WIPED, Some("bye")).await.unwrap();
        assert_eq!(release.slots.iter().map(|slot| slot.state.as_str()).collect::<Vec<_>>(), ["releasing"; 2]);
        let task = node.next().await;
        let proof = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&proof))).await, "");
        for slot in &slots {
            assert_eq!(state(&server, slot).await, "available");
        }
        let again = client.slice_release(&id, &WIPED, Some("bye")).await.unwrap();
        assert_eq!((again.task.id, again.slots.len()), (release.task.id, 0), "the same question has the same answer");
        let slice = client.slice(&id).await.unwrap();
        assert_eq!((slice.state.as_str(), slice.slots.len(), slice.tasks.len()), ("released", 0, 4));
        assert_eq!(refused(client.slice_release(&id, &WIPED, None).await), "slice_released");
        assert!(client.slices(&SliceListQuery::default()).await.unwrap().items.is_empty());
        assert_eq!(refused(client.slice(&AllocationId::generate().to_string()).await), "slice_unknown");
        assert_eq!(refused(client.slice_release(&AllocationId::generate().to_string(), &WIPED, None).await), "slice_unknown");

        let next = client.slice_create(&create(&node, &[0, 2]), None).await.unwrap();
        assert_eq!(node.next().await.payload().lease_epoch, Some(2), "a number that none of them ever had");
        assert_eq!(next.slots[0].lease_epoch, 2);
        let audit = gpuaas_api::dto::AuditQuery { target: Some(slots[0].id.to_string()), ..Default::default() };
        let actions: Vec<String> = client.audit(&audit).await.unwrap().items.into_iter().map(|row| row.action).collect();
        assert_eq!(actions, ["slot.approve", "slot.lease", "slot.use", "slot.release", "slot.free", "slot.lease"]);
        server.server.unwrap().stop().await;
    }

    async fn without_a_complete_proof_nobody_gets_a_slot(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 2).await;
        let order = running(&server, &mut node, &[0, 1]).await;
        let id = order.allocation_id.to_string();
        client.slice_release(&id, &WIPED, None).await.unwrap();
        let task = node.next().await;
        // A successful release must have a proof.
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "receipt_proof_invalid");
        assert_eq!(state(&server, &slots[0]).await, "releasing");
        // One slot is proven to be clean; for the other one, the drive of a third is wiped.
        let mut partial = proof(&task);
        partial.slots[1].drive.serial = "S7".to_owned();
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&partial))).await, "");
        assert_eq!(state(&server, &slots[0]).await, "available");
        let blocked = client.slot(&slots[1].id.to_string()).await.unwrap();
        assert_eq!((blocked.state.as_str(), blocked.allocation_id), ("cleanup_blocked", Some(order.allocation_id)));
        assert!(blocked.reason.contains("S1"), "{}", blocked.reason);
        assert_eq!(refused(client.slice_create(&create(&node, &[1]), None).await), "slot_not_available");
        assert_eq!(refused(client.slot_withdraw(&blocked.id.to_string(), &Reason::default()).await), "slot_in_use");
        client.slot_quarantine(&blocked.id.to_string(), &Reason::default()).await.unwrap();
        assert_eq!(client.slot_unquarantine(&blocked.id.to_string(), &Reason::default()).await.unwrap().state.as_str(), "cleanup_blocked");
        assert_eq!(client.slice(&id).await.unwrap().state.as_str(), "cleanup_blocked");

        // An operator's cleanup takes it over with a new epoch, and frees nothing by itself.
        let reason = Reason { reason: "the drive was swapped by mistake".to_owned() };
        let forced = client.slot_force_cleanup(&blocked.id.to_string(), &reason, None).await.unwrap();
        assert_eq!((forced.allocation_id, forced.slots[0].lease_epoch), (order.allocation_id, 2));
        assert_eq!(forced.slots[0].state.as_str(), "releasing");
        let task = node.next().await;
        let task::Task::SliceVmRelease(params) = task.task() else { panic!("{:?}", task.task()) };
        assert!(params.take_over && params.wipe && params.lease_epoch == 2 && params.slots.len() == 1);
        let mut stale = proof(&task);
        stale.lease_epoch = 1;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&stale))).await, "");
        assert_eq!(state(&server, &slots[1]).await, "cleanup_blocked");
        client.slot_force_cleanup(&blocked.id.to_string(), &reason, None).await.unwrap();
        let task = node.next().await;
        let complete = proof(&task);
        assert_eq!(node.answers(&task, |payload| ended(payload, Outcome::Failed, Some(&complete))).await, "");
        assert_eq!(state(&server, &slots[1]).await, "available", "what counts is the proof");
        assert_eq!(refused(client.slot_force_cleanup(&blocked.id.to_string(), &reason, None).await), "slot_clean");
        server.server.unwrap().stop().await;
    }

    async fn a_release_without_a_wipe_leaves_a_slot_that_waits_for_one(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 1).await;
        let id = running(&server, &mut node, &[0]).await.allocation_id.to_string();
        client.slot_quarantine(&slots[0].id.to_string(), &Reason { reason: "loud".to_owned() }).await.unwrap();
        assert_eq!(state(&server, &slots[0]).await, "leased", "it stays with its tenant");
        let unwiped = SliceRelease { wipe: false, ..WIPED };
        client.slice_release(&id, &unwiped, None).await.unwrap();
        let task = node.next().await;
        let mut skipped = proof(&task);
        skipped.slots[0].drive = DriveProof::skipped("S0");
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&skipped))).await, "");
        assert_eq!(state(&server, &slots[0]).await, "needs_wipe");
        client.slice_release(&id, &WIPED, None).await.unwrap();
        let task = node.next().await;
        let mut forgetful = proof(&task);
        forgetful.slots[0].drive = DriveProof::untouched("S0");
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&forgetful))).await, "");
        assert_eq!(state(&server, &slots[0]).await, "cleanup_blocked", "it was written, whatever the node says");
        client.slice_release(&id, &WIPED, None).await.unwrap();
        let task = node.next().await;
        let complete = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&complete))).await, "");
        let slot = client.slot(&slots[0].id.to_string()).await.unwrap();
        assert_eq!((slot.state.as_str(), slot.reason.as_str(), slot.allocation_id), ("quarantined", "loud", None));
        server.server.unwrap().stop().await;
    }

    async fn every_end_of_a_provision_settles_its_slots(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 1).await;
        // Refused by the host: nothing ever ran.
        client.slice_create(&create(&node, &[0]), None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| ended(payload, Outcome::Refused, None)).await, "");
        assert_eq!(state(&server, &slots[0]).await, "available");
        // Failed and undone.
        client.slice_create(&create(&node, &[0]), None).await.unwrap();
        let task = node.next().await;
        let complete = proof(&task);
        assert_eq!(node.answers(&task, |payload| ended(payload, Outcome::Failed, Some(&complete))).await, "");
        assert_eq!(state(&server, &slots[0]).await, "available");
        // Not even created.
        client.node_drain(&node.node(), &Reason::default()).await.unwrap();
        assert_eq!(refused(client.slice_create(&create(&node, &[0]), None).await), "node_takes_no_work");
        client.node_undrain(&node.node(), &Reason::default()).await.unwrap();
        assert_eq!(state(&server, &slots[0]).await, "available", "a refused order leases nothing");
        // Sent, and its node reports after a reconnect that it does not have it.
        let order = client.slice_create(&create(&node, &[0]), None).await.unwrap();
        node.next().await;
        client.task_cancel(&order.task.id.to_string(), &Reason::default()).await.unwrap();
        assert_eq!(state(&server, &slots[0]).await, "leased");
        node.reconnects(&[]).await;
        eventually_async(PATIENCE, "the slot is free", || async {
            (state(&server, &slots[0]).await == "available").then_some(())
        })
        .await;
        // Sent to a node that is retired: it may have run.
        let order = client.slice_create(&create(&node, &[0]), None).await.unwrap();
        node.next().await;
        let retire = NodeRetire::default();
        assert_eq!(refused(client.node_retire(&node.node(), &retire).await), "node_in_use");
        assert_eq!(client.node(&node.node()).await.unwrap().service.as_str(), "in_service");
        client.node_retire(&node.node(), &NodeRetire { force: true, ..retire }).await.unwrap();
        assert_eq!(client.task(&order.task.id.to_string()).await.unwrap().state.as_str(), "lost");
        let slot = client.slot(&slots[0].id.to_string()).await.unwrap();
        assert_eq!((slot.state.as_str(), slot.allocation_id), ("cleanup_blocked", Some(order.allocation_id)));
        assert!(slot.reason.contains("retired"), "{}", slot.reason);
        server.server.unwrap().stop().await;
    }

    async fn an_order_that_waits_for_its_node_holds_its_slots_until_it_is_cancelled(server: TestServer) {
        let client = server.client();
        let (node, slots) = Looking::with_slots(&server, 1).await;
        let wanted = create(&node, &[0]);
        let Looking { host, link, .. } = node;
        drop(link);
        eventually_async(PATIENCE, "the node is offline", || async {
            client.node(&host.node_id().to_string()).await.unwrap().session.is_none().then_some(())
        })
        .await;
        let order = client.slice_create(&wanted, None).await.unwrap();
        assert_eq!((order.task.state.as_str(), state(&server, &slots[0]).await.as_str()), ("queued", "leased"));
        client.task_cancel(&order.task.id.to_string(), &Reason::default()).await.unwrap();
        assert_eq!(state(&server, &slots[0]).await, "available");

        // An attacker with the database's password turns a waiting release into a provision that never ran.
        let mut link = host.connect(&[]).await;
        let order = client.slice_create(&wanted, None).await.unwrap();
        let task = host.verify(&link.offer().await.envelope);
        let mut payload = host.receipt_payload(&task, 2, Some(Digest::of(b"the one before")));
        succeeded(&mut payload, &task, None);
        assert_eq!(link.receipt(order.task.id, payload.sign(&host.receipt_key).receipt).await, "");
        drop(link);
        eventually_async(PATIENCE, "the node is offline", || async {
            client.node(&host.node_id().to_string()).await.unwrap().session.is_none().then_some(())
        })
        .await;
        let release = client.slice_release(&order.allocation_id.to_string(), &WIPED, None).await.unwrap();
        let id = release.task.id.to_string();
        write_to_database(&server, "UPDATE tasks SET task_type = 'slice.vm_provision' WHERE id = $1", &id).await;
        assert_eq!(client.task_cancel(&id, &Reason::default()).await.unwrap().state.as_str(), "cancelled");
        assert_eq!(state(&server, &slots[0]).await, "cleanup_blocked", "of a changed row nothing is believed");
        server.server.unwrap().stop().await;
    }

    async fn whoever_writes_to_the_database_gets_no_slot(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 3).await;
        let order = running(&server, &mut node, &[0]).await;
        let forged = "UPDATE slots SET state = 'available', allocation_id = NULL, reason = '' WHERE id = $1";
        write_to_database(&server, forged, &slots[0].id.to_string()).await;
        assert_eq!(refused(client.slice_create(&create(&node, &[0]), None).await), "slot_forged");
        write_to_database(&server, "UPDATE slots SET lease_epoch = 7 WHERE id = $1", &slots[1].id.to_string()).await;
        assert_eq!(refused(client.slice_create(&create(&node, &[1]), None).await), "slot_forged");
        assert_eq!(refused(client.slot_force_cleanup(&slots[1].id.to_string(), &Reason::default(), None).await), "slot_forged");

        // A row that is manipulated while its task runs stays as it is, and the receipt still counts.
        let id = running(&server, &mut node, &[2]).await.allocation_id.to_string();
        client.slice_release(&id, &WIPED, None).await.unwrap();
        let task = node.next().await;
        write_to_database(&server, "UPDATE slots SET drive_used = 0 WHERE id = $1", &slots[2].id.to_string()).await;
        let complete = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&complete))).await, "");
        let slot = client.slot(&slots[2].id.to_string()).await.unwrap();
        assert_eq!(slot.state.as_str(), "releasing");
        assert_eq!(client.task(&task.payload().task_id.to_string()).await.unwrap().state.as_str(), "succeeded");
        assert_eq!(refused(client.slice_release(&id, &WIPED, None).await), "slot_forged");
        assert!(client.slice(&order.allocation_id.to_string()).await.is_ok(), "looking at it does no harm");
        server.server.unwrap().stop().await;
    }

    async fn tasks_on_slots_come_out_of_the_books_only(server: TestServer) {
        let client = server.client();
        let (mut node, slots) = Looking::with_slots(&server, 2).await;
        for kind in TaskType::ALL.into_iter().filter(|kind| kind.needs_lease()) {
            let by_hand = TaskCreate {
                node: node.node(),
                task_type: kind.as_str().to_owned(),
                params: json!({}),
                queue_seconds: None,
                timeout_seconds: None,
            };
            assert_eq!(refused(client.task_create(&by_hand, None).await), "task_needs_lease");
        }
        let wrong = |change: fn(&mut SliceCreate)| {
            let mut wanted = create(&node, &[0]);
            change(&mut wanted);
            wanted
        };
        for (code, wanted) in [
            ("slots_invalid", wrong(|create| create.slots.clear())),
            ("slots_invalid", wrong(|create| create.slots.push(SlotName::Index(0)))),
            ("slot_unknown", wrong(|create| create.slots = vec![SlotName::Index(9)])),
            ("params_invalid", wrong(|create| create.guest.image.path = Some("../../etc/shadow".to_owned()))),
            ("params_invalid", wrong(|create| create.guest.image.path = None)),
            ("node_unknown", wrong(|create| create.node = "nowhere".to_owned())),
        ] {
            assert_eq!(refused(client.slice_create(&wanted, None).await), code);
        }
        let by_id = SliceCreate { slots: vec![SlotName::Id(slots[1].id)], ..create(&node, &[]) };
        let order = client.slice_create(&by_id, None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");

        // A node in maintenance accepts nothing new, and releases what it has.
        client.node_drain(&node.node(), &Reason::default()).await.unwrap();
        assert_eq!(refused(client.slice_create(&create(&node, &[0]), None).await), "node_takes_no_work");
        node.reconnects(&[]).await;
        client.slice_release(&order.allocation_id.to_string(), &WIPED, None).await.unwrap();
        let task = node.next().await;
        let complete = proof(&task);
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, Some(&complete))).await, "");
        let free: Vec<Task> = client.slice(&order.allocation_id.to_string()).await.unwrap().tasks;
        assert_eq!((free.len(), state(&server, &slots[1]).await.as_str()), (2, "available"));
        server.server.unwrap().stop().await;
    }
}

common::on_both_stores! {
    async fn operators_destroy_no_more_than_their_share_per_hour_until_a_person_lifts_it(server: TestServer) {
        let mut server = server;
        // A quarter of it is for operators: one.
        server.with_budget(4).await;
        let (mut node, _) = Looking::with_slots(&server, 2).await;
        let (first, second) = (running(&server, &mut node, &[0]).await, running(&server, &mut node, &[1]).await);
        let client = server.client();
        client.slice_release(&first.allocation_id.to_string(), &WIPED, None).await.unwrap();
        assert_eq!(node.next().await.task().task_type(), TaskType::SliceVmRelease);
        let second = second.allocation_id.to_string();
        let code = "destructive_budget_exhausted";
        assert_eq!(refused(client.slice_release(&second, &WIPED, None).await), code);
        let retire = NodeRetire { reason: "it hangs".to_owned(), force: true };
        assert_eq!(refused(client.node_retire(&node.node(), &retire).await), code);
        // Another process, or the same one after a restart, knows the counts.
        server.with_budget(4).await;
        let client = server.client();
        assert_eq!(refused(client.slice_release(&second, &WIPED, None).await), code);
        let budget = client.budget().await.unwrap();
        assert_eq!((budget.per_hour, budget.used, budget.lifted), (4, 1, 0));
        assert_eq!((budget.scopes[0].scope.as_str(), budget.scopes[0].used, budget.scopes[0].share), ("operators", 1, 1));

        let lift = gpuaas_api::dto::BudgetLift { count: 1, reason: "rack 7 moves out".to_owned() };
        assert_eq!(refused(client.budget_lift(&lift).await), "budget_lift_needs_person", "a token that was stolen lifts nothing");
        let lifted = server.local_client().budget_lift(&lift).await.unwrap();
        assert_eq!((lifted.used, lifted.lifted, lifted.scopes[0].share), (1, 1, 2));
        eventually_async(PATIENCE, "the lift is known", || async {
            client.slice_release(&second, &WIPED, None).await.ok()
        })
        .await;
        assert_eq!(refused(client.node_retire(&node.node(), &retire).await), code, "it was one more and no other");
        let told = server.metrics().await;
        assert!(told.contains("gpuaas_destructive_commands_refused_total"), "{told}");
        let query = gpuaas_api::dto::AuditQuery::default();
        let actions: Vec<String> = client.audit(&query).await.unwrap().items.into_iter().map(|row| row.action).collect();
        assert!(actions.iter().any(|action| action == "budget.exhaust"), "{actions:?}");
        assert!(actions.iter().any(|action| action == "budget.lift"), "{actions:?}");
    }
}
