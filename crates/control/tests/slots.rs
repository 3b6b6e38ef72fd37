//! From a node's discovery to slots, against a real server with a scripted node.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use common::looking::{Looking, candidate, refused, write_to_database};
use gpuaas_api::dto::{Reason, Slot, SlotListQuery, TopologyApprove};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::slice::Blocker;
use gpuaas_contract::task::slice_topology_discover::CandidateSlot;

async fn the_life_of_slots(server: TestServer) {
    let client = server.client();
    let mut looking = Looking::new(&server).await;
    let node = looking.node();
    let empty = client.node_topology(&node).await.unwrap();
    assert!(empty.proposal.is_none() && empty.slots.is_empty());

    let blocked =
        CandidateSlot { schedulable: false, blockers: vec![Blocker::new("nvme_missing", "add drives")], ..candidate(2) };
    let first = looking.finds(&server, vec![candidate(0), candidate(1), blocked]).await;
    let seen = client.node_topology(&node).await.unwrap();
    assert_eq!(seen.proposal.as_ref().map(|proposal| proposal.task_id), Some(first));
    assert!(seen.slots.is_empty(), "looking makes no slots");
    assert!(client.slots(&SlotListQuery::default()).await.unwrap().items.is_empty());

    let approve = |task_id, slots| TopologyApprove { task_id, slots };
    assert_eq!(refused(client.node_topology_approve(&node, &approve(first, Some(vec![2]))).await), "slot_not_schedulable");
    let made = client.node_topology_approve(&node, &approve(first, None)).await.unwrap().items;
    assert_eq!(
        made.iter().map(|slot| (slot.spec.slot_index, slot.state.as_str())).collect::<Vec<_>>(),
        [(0, "available"), (1, "available")]
    );
    let again = client.node_topology_approve(&node, &approve(first, None)).await.unwrap().items;
    assert_eq!(again, made, "approving twice is approving once");

    // The node runs another discovery: the operator's earlier view is no longer valid.
    let second = looking.finds(&server, vec![candidate(0), candidate(1), candidate(2)]).await;
    assert_eq!(refused(client.node_topology_approve(&node, &approve(first, None)).await), "proposal_outdated");
    let all = client.node_topology_approve(&node, &approve(second, None)).await.unwrap().items;
    assert_eq!(all.len(), 3);

    let id = all[1].id.to_string();
    let reason = Reason { reason: "fan is loud".to_owned() };
    let held = client.slot_quarantine(&id, &reason).await.unwrap();
    assert_eq!((held.state.as_str(), held.reason.as_str()), ("quarantined", "fan is loud"));
    let listed =
        |state: &str| SlotListQuery { node: Some(node.clone()), state: Some(state.parse().unwrap()), ..SlotListQuery::default() };
    let ids = |slots: Vec<Slot>| slots.into_iter().map(|slot| slot.id).collect::<Vec<_>>();
    assert_eq!(ids(client.slots(&listed("quarantined")).await.unwrap().items), [all[1].id]);
    assert_eq!(ids(client.slots(&listed("available")).await.unwrap().items), [all[0].id, all[2].id]);
    assert_eq!(client.slot_unquarantine(&id, &Reason::default()).await.unwrap().state.as_str(), "available");
    assert_eq!(client.slot_withdraw(&id, &reason).await.unwrap().state.as_str(), "withdrawn");
    assert_eq!(refused(client.slot_quarantine(&id, &reason).await), "slot_withdrawn");
    assert_eq!(client.slot(&id).await.unwrap().node_name, "test-host");
    assert_eq!(refused(client.slot("slot_0123").await), "id_invalid");
    assert_eq!(refused(client.slot(&gpuaas_contract::id::SlotId::generate().to_string()).await), "slot_unknown");

    let actions: Vec<String> = audit_of(&server, &id).await;
    assert_eq!(actions, ["slot.approve", "slot.quarantine", "slot.unquarantine", "slot.withdraw"]);
}

/// An attacker with the database's password gives a slot another drive.
async fn a_forged_slot_is_not_touched(server: TestServer) {
    let client = server.client();
    let mut looking = Looking::new(&server).await;
    let task_id = looking.finds(&server, vec![candidate(0)]).await;
    let approve = TopologyApprove { task_id, slots: None };
    let slot = client.node_topology_approve(&looking.node(), &approve).await.unwrap().items.remove(0);
    write_to_database(&server, "UPDATE slots SET spec = REPLACE(spec, 'S0', 'S9') WHERE id = $1", &slot.id.to_string()).await;
    assert_eq!(refused(client.slot_quarantine(&slot.id.to_string(), &Reason::default()).await), "slot_forged");
    assert_eq!(refused(client.node_topology_approve(&looking.node(), &approve).await), "slot_forged");

    // The same with the node's discovery: its signature must be valid.
    let forged = String::from_utf8(receipt_of(&server, task_id).await).unwrap();
    let other = |c: char| if c == 'A' { 'B' } else { 'A' };
    let at = forged.find("\"payload\":\"").unwrap() + 100;
    let swapped: String = forged.chars().enumerate().map(|(n, c)| if n == at { other(c) } else { c }).collect();
    let query = "UPDATE receipts SET receipt = $1 WHERE task_id = $2";
    match &server.pg {
        None => {
            let path = format!("sqlite:{}", server.dir.join("test.db").display());
            let pool = sqlx::SqlitePool::connect(&path).await.unwrap();
            let done = sqlx::query(query).bind(swapped.into_bytes()).bind(task_id.to_string()).execute(&pool).await.unwrap();
            assert_eq!(done.rows_affected(), 1);
            pool.close().await;
        }
        Some(pg) => {
            let pool = sqlx::PgPool::connect(pg.url()).await.unwrap();
            let done = sqlx::query(query).bind(swapped.into_bytes()).bind(task_id.to_string()).execute(&pool).await.unwrap();
            assert_eq!(done.rows_affected(), 1);
            pool.close().await;
        }
    }
    assert_eq!(refused(client.node_topology_approve(&looking.node(), &approve).await), "receipt_forged");
    assert_eq!(refused(client.node_topology(&looking.node()).await), "receipt_forged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_wrote_into_the_database_is_not_touched_on_sqlite() {
    a_forged_slot_is_not_touched(TestServer::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_somebody_wrote_into_the_database_is_not_touched_on_postgres() {
    if let Some(server) = TestServer::postgres().await {
        a_forged_slot_is_not_touched(server).await;
    }
}

async fn receipt_of(server: &TestServer, task: TaskId) -> Vec<u8> {
    server.client().task_evidence(&task.to_string()).await.unwrap().receipt.unwrap()
}

async fn audit_of(server: &TestServer, target: &str) -> Vec<String> {
    let query = gpuaas_api::dto::AuditQuery { target: Some(target.to_owned()), ..Default::default() };
    server.client().audit(&query).await.unwrap().items.into_iter().map(|row| row.action).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_proposes_and_an_operator_makes_slots_on_sqlite() {
    the_life_of_slots(TestServer::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_proposes_and_an_operator_makes_slots_on_postgres() {
    if let Some(server) = TestServer::postgres().await {
        the_life_of_slots(server).await;
    }
}
