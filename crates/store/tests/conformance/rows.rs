//! Every field of every row is read as it was written.

use gpuaas_contract::id::{AllocationId, CorrelationId, NodeId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::key::KeyId;
use gpuaas_contract::slice::SlotSpec;
use gpuaas_domain::Change;
use gpuaas_domain::access::{ApiToken, KeyScopes, PrincipalId};
use gpuaas_domain::audit_chain::{self, Head};
use gpuaas_domain::decision::TaskLogLine;
use gpuaas_domain::enrollment::{Enrollment, EnrollmentState, JoinToken};
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_domain::slice::{Ending, TaskEnd};
use gpuaas_domain::slot::{Slot, SlotState};
use gpuaas_domain::task::{ReceiptHead, TaskRecord, TaskState};
use gpuaas_store::{ApiTokenFilter, CommitError, SlotFilter};

use crate::support::{
    Database, NOW, api_token, certificate, changes, console_read, digest, enrollment, join_token, later, node, recorded, slot,
    stored_node, stored_task, task,
};
use crate::{line, whole_audit};

crate::on_both_engines! {
    every_field_of_a_node_comes_back
    every_field_of_an_enrollment_comes_back
    every_field_of_a_join_token_comes_back
    every_field_of_an_api_token_comes_back
    api_tokens_are_listed_by_service_account_and_project
    api_tokens_are_listed_by_who_made_them
    every_field_of_a_task_comes_back
    every_field_of_a_slot_comes_back
    slots_and_tasks_are_found_by_their_allocation
    a_decision_that_forgets_the_slots_of_a_task_is_not_written
    envelopes_and_receipts_come_back_as_they_were
    certificates_are_revoked_up_to_an_epoch
    log_lines_come_back_once_and_are_capped
    texts_with_nul_bytes_are_kept_without_them
    numbers_beyond_the_databases_are_kept_as_the_largest
}

async fn every_field_of_a_node_comes_back(database: &Database) {
    let store = database.open().await;
    let full = stored_node(&store).await;
    assert_eq!(store.node_get(full.id).await.expect("reads").as_ref(), Some(&full));
    assert_eq!(store.node_by_fingerprint(&full.fingerprint).await.expect("reads").as_ref(), Some(&full));
    for service in NodeService::ALL {
        let bare = Node { service, session: None, last_seen_at: None, record: Vec::new(), ..node() };
        store.commit(changes([Change::NodeInsert(Box::new(bare.clone()))])).await.expect("commits");
        assert_eq!(store.node_get(bare.id).await.expect("reads"), Some(bare));
    }
    // Changes every mutable field at once, so that a column missing from UPDATE is detected.
    let other = node();
    let changed =
        Node { id: full.id, version: 0, service: NodeService::Draining, epoch: 9, rejoins: 1, name: "x".to_owned(), ..other };
    let changed = Node { service_reason: "y".to_owned(), created_at: later(9), ..changed };
    store.commit(changes([Change::NodeUpdate(Box::new(changed.clone()))])).await.expect("commits");
    assert_eq!(store.node_get(full.id).await.expect("reads"), Some(Node { version: 1, ..changed }));
    assert_eq!(store.node_get(NodeId::generate()).await.expect("reads"), None);
}

async fn every_field_of_an_enrollment_comes_back(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let request = enrollment();
    store.commit(changes([Change::EnrollmentInsert(Box::new(request.clone()))])).await.expect("commits");
    assert_eq!(store.enrollment_get(request.id).await.expect("reads").as_ref(), Some(&request));
    let claimed = Enrollment {
        state: EnrollmentState::Enrolled,
        node_id: Some(node.id),
        reason: "other".to_owned(),
        email: "other@example.org".to_owned(),
        csr_pem: "other".to_owned(),
        expires_at: later(1),
        replace_node: Some(node.id),
        ..request.clone()
    };
    store.commit(changes([Change::EnrollmentUpdate(Box::new(claimed.clone()))])).await.expect("commits");
    assert_eq!(store.enrollment_get(request.id).await.expect("reads"), Some(Enrollment { version: 1, ..claimed }));

    let waiting = enrollment();
    let lapsed = Enrollment { expires_at: later(5), ..enrollment() };
    let approved = Enrollment { state: EnrollmentState::Approved, ..enrollment() };
    for request in [&waiting, &lapsed, &approved] {
        store.commit(changes([Change::EnrollmentInsert(Box::new(request.clone()))])).await.expect("commits");
    }
    assert_eq!(store.enrollment_waiting(later(6)).await.expect("counts"), 1);
    assert_eq!(store.enrollment_waiting(later(5)).await.expect("counts"), 2);
    for (of, at, found) in [
        (&waiting, later(6), true),
        (&approved, later(6), true),
        (&lapsed, later(5), true),
        (&lapsed, later(6), false),
        (&request, later(0), false),
    ] {
        let open = store.enrollment_open_by_fingerprint(&of.fingerprint, at).await.expect("reads");
        assert_eq!(open.map(|open| open.id), found.then_some(of.id));
    }
    let pending = store.enrollment_list(Some(EnrollmentState::Pending), None, 10).await.expect("lists");
    assert_eq!(pending.iter().map(|request| request.id).collect::<Vec<_>>(), [waiting.id, lapsed.id]);
    let after = store.enrollment_list(Some(EnrollmentState::Pending), Some(waiting.id), 10).await.expect("lists");
    assert_eq!(after.iter().map(|request| request.id).collect::<Vec<_>>(), [lapsed.id]);
}

async fn every_field_of_a_join_token_comes_back(database: &Database) {
    let store = database.open().await;
    let (node, other) = (stored_node(&store).await, stored_node(&store).await);
    let token = join_token();
    store.commit(changes([Change::JoinTokenInsert(token.clone())])).await.expect("commits");
    assert_eq!(store.join_token_get(token.id).await.expect("reads").as_ref(), Some(&token));
    assert_eq!(store.join_token_by_secret(&token.secret_digest).await.expect("reads").as_ref(), Some(&token));
    assert_eq!(store.join_token_by_secret(&digest("other")).await.expect("reads"), None);
    let used = JoinToken {
        used: vec![(later(5), node.id), (later(6), other.id)],
        revoked_at: Some(later(6)),
        note: "n".to_owned(),
        replace_node: Some(node.id),
        ..token.clone()
    };
    store.commit(changes([Change::JoinTokenUpdate(used.clone())])).await.expect("commits");
    assert_eq!(store.join_token_get(token.id).await.expect("reads"), Some(JoinToken { version: 1, ..used }));
    let second = join_token();
    store.commit(changes([Change::JoinTokenInsert(second.clone())])).await.expect("commits");
    let ids = |tokens: Vec<JoinToken>| tokens.iter().map(|token| token.id).collect::<Vec<_>>();
    assert_eq!(ids(store.join_token_list(None, 10).await.expect("lists")), [token.id, second.id]);
    assert_eq!(ids(store.join_token_list(Some(token.id), 10).await.expect("lists")), [second.id]);
}

async fn every_field_of_a_slot_comes_back(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let task = stored_task(&store, &node).await;
    let slot = slot(&node, &task, 3);
    store.commit(changes([Change::SlotInsert(Box::new(slot.clone()))])).await.expect("commits");
    assert_eq!(store.slot_get(slot.id).await.expect("reads").as_ref(), Some(&slot));
    let other_task = stored_task(&store, &node).await;
    let changed = Slot {
        state: SlotState::Withdrawn,
        reason: "gone".to_owned(),
        spec: SlotSpec { slot_index: 5, fabric_device: None, nvme_serial: "x".to_owned(), ..slot.spec.clone() },
        proposed_by: other_task.id,
        approved_by: "other".to_owned(),
        approved_at: later(7),
        created_at: later(8),
        seal: "other".to_owned(),
        quarantine: None,
        allocation_id: Some(AllocationId::generate()),
        lease_epoch: 8,
        lease_task: Some(other_task.id),
        drive_used: false,
        devices_used: true,
        ..slot.clone()
    };
    store.commit(changes([Change::SlotUpdate(Box::new(changed.clone()))])).await.expect("commits");
    assert_eq!(store.slot_get(slot.id).await.expect("reads"), Some(Slot { version: 1, ..changed }));
    let stale = store.commit(changes([Change::SlotUpdate(Box::new(slot.clone()))])).await;
    assert!(matches!(stale, Err(CommitError::Conflict)), "{stale:?}");

    let (second, third) = (self::slot(&node, &task, 0), self::slot(&node, &task, 3));
    for slot in [&second, &third] {
        store.commit(changes([Change::SlotInsert(Box::new(slot.clone()))])).await.expect("commits");
    }
    let twice = store.commit(changes([Change::SlotInsert(Box::new(self::slot(&node, &task, 0)))])).await;
    assert!(matches!(twice, Err(CommitError::Conflict)), "a node has one slot of an index: {twice:?}");
    let ids = |slots: Vec<Slot>| slots.iter().map(|slot| slot.id).collect::<Vec<_>>();
    assert_eq!(ids(store.slot_of_node(node.id).await.expect("lists")), [second.id, third.id, slot.id], "by index");
    assert_eq!(ids(store.slot_of_node(NodeId::generate()).await.expect("lists")), []);
    let available = SlotFilter { node: Some(node.id), state: Some(SlotState::Available) };
    assert_eq!(ids(store.slot_list(&available, None, 10).await.expect("lists")), [second.id, third.id]);
    assert_eq!(ids(store.slot_list(&available, Some(second.id), 10).await.expect("lists")), [third.id]);
    assert_eq!(ids(store.slot_list(&SlotFilter::default(), None, 1).await.expect("lists")), [slot.id]);
}

async fn slots_and_tasks_are_found_by_their_allocation(database: &Database) {
    let store = database.open().await;
    let (node, other) = (stored_node(&store).await, stored_node(&store).await);
    let proposal = stored_task(&store, &node).await;
    let (first, second) = (AllocationId::generate(), AllocationId::generate());
    let order = console_read(&node, first);
    let later_order = console_read(&node, first);
    for task in [&order, &later_order, &console_read(&node, second)] {
        store.commit(changes([Change::TaskInsert(Box::new(task.clone()))])).await.expect("commits");
    }
    let of = |node: &Node, index, state, allocation_id, lease_task| Slot {
        state,
        allocation_id,
        lease_task,
        ..slot(node, &proposal, index)
    };
    let a = of(&node, 4, SlotState::Leased, Some(first), Some(order.id));
    let b = of(&node, 2, SlotState::CleanupBlocked, Some(first), Some(order.id));
    let c = of(&other, 0, SlotState::Leased, Some(second), None);
    let d = of(&node, 1, SlotState::Available, None, Some(order.id));
    for slot in [&a, &b, &c, &d] {
        store.commit(changes([Change::SlotInsert(Box::new(slot.clone()))])).await.expect("commits");
    }
    assert_eq!(store.slot_of_allocation(first).await.expect("lists"), [b.clone(), a.clone()], "by index");
    assert_eq!(store.slot_of_allocation(AllocationId::generate()).await.expect("lists"), []);
    assert_eq!(store.slot_of_task(order.id).await.expect("lists"), [d, b, a]);
    assert_eq!(store.slot_of_task(later_order.id).await.expect("lists"), []);

    let list =
        async |node, state, after, limit| store.allocation_list(&SlotFilter { node, state }, after, limit).await.expect("lists");
    assert_eq!(list(None, None, None, 10).await, [first, second], "each once, in their order");
    assert_eq!(list(None, None, Some(first), 10).await, [second]);
    assert_eq!(list(None, None, None, 1).await, [first]);
    assert_eq!(list(Some(other.id), None, None, 10).await, [second]);
    assert_eq!(list(None, Some(SlotState::CleanupBlocked), None, 10).await, [first]);
    assert_eq!(list(None, Some(SlotState::NeedsWipe), None, 10).await, []);

    let ids = |tasks: Vec<TaskRecord>| tasks.iter().map(|task| task.id).collect::<Vec<_>>();
    assert_eq!(ids(store.task_of_allocation(first, 10).await.expect("lists")), [later_order.id, order.id], "newest first");
    assert_eq!(ids(store.task_of_allocation(first, 1).await.expect("lists")), [later_order.id]);
    assert_eq!(store.task_first_of_allocation(first).await.expect("reads").map(|task| task.id), Some(order.id));
    assert_eq!(store.task_first_of_allocation(AllocationId::generate()).await.expect("reads"), None);
}

/// A decision that ends such a task must also decide about its slots.
async fn a_decision_that_forgets_the_slots_of_a_task_is_not_written(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let task = stored_task(&store, &node).await;
    let ending = Ending { task: task.clone(), end: TaskEnd::MayHaveRun };
    let mut decision = changes([Change::TaskUpdate(Box::new(TaskRecord { code: "x".to_owned(), ..task.clone() }))]);
    decision.endings.push(ending);
    let refused = store.commit(decision.clone()).await;
    assert!(matches!(refused, Err(CommitError::Store(_))), "{refused:?}");
    assert_eq!(store.task_get(task.id).await.expect("reads").as_ref(), Some(&task));
    decision.endings.clear();
    store.commit(decision).await.expect("commits");
}

async fn every_field_of_an_api_token_comes_back(database: &Database) {
    let store = database.open().await;
    let token = api_token();
    store.commit(changes([Change::ApiTokenInsert(token.clone())])).await.expect("commits");
    assert_eq!(store.api_token_get(token.id).await.expect("reads").as_ref(), Some(&token));
    assert_eq!(store.api_token_by_secret(&token.secret_digest).await.expect("reads").as_ref(), Some(&token));
    let scopes = KeyScopes::parse(["allocation.*", "*.read"]).expect("scopes");
    let revoked = ApiToken {
        revoked_at: Some(later(1)),
        expires_at: Some(later(2)),
        role: None,
        service_account: Some(ServiceAccountId::generate()),
        project: Some(ProjectId::generate()),
        scopes: Some(scopes),
        name: "renamed".to_owned(),
        ..token.clone()
    };
    store.commit(changes([Change::ApiTokenUpdate(revoked.clone())])).await.expect("commits");
    let all = ApiTokenFilter::default();
    assert_eq!(store.api_token_list(&all, None, 10).await.expect("lists"), [ApiToken { version: 1, ..revoked }]);
    assert!(store.api_token_list(&all, Some(token.id), 10).await.expect("lists").is_empty());
}

async fn api_tokens_are_listed_by_who_made_them(database: &Database) {
    let store = database.open().await;
    let maker = PrincipalId::User(UserId::generate());
    let (theirs, other) = (ApiToken { created_by: Some(maker), ..api_token() }, ApiToken { created_by: None, ..api_token() });
    let tokens = [theirs.clone(), other.clone(), api_token()].map(Change::ApiTokenInsert);
    store.commit(changes(tokens)).await.expect("commits");
    let filter = ApiTokenFilter { created_by: Some(maker), ..ApiTokenFilter::default() };
    assert_eq!(store.api_token_list(&filter, None, 10).await.expect("lists"), [theirs]);
    assert_eq!(store.api_token_get(other.id).await.expect("reads"), Some(other));
}

async fn api_tokens_are_listed_by_service_account_and_project(database: &Database) {
    let store = database.open().await;
    let (one, other) = (ServiceAccountId::generate(), ServiceAccountId::generate());
    let project = ProjectId::generate();
    let key = |account, project| ApiToken { role: None, service_account: Some(account), project: Some(project), ..api_token() };
    let (a, b, c) = (key(one, project), key(other, project), key(one, project));
    let elsewhere = key(ServiceAccountId::generate(), ProjectId::generate());
    let tokens = [&a, &b, &c, &elsewhere, &api_token()].map(|token| Change::ApiTokenInsert(token.clone()));
    store.commit(changes(tokens)).await.expect("commits");
    let list = async |service_account, project, after, limit| {
        let filter = ApiTokenFilter { service_account, project, created_by: None };
        let found = store.api_token_list(&filter, after, limit).await.expect("lists");
        found.iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(list(Some(one), None, None, 10).await, [a.id, c.id]);
    assert_eq!(list(Some(one), None, Some(a.id), 10).await, [c.id]);
    assert_eq!(list(None, Some(project), None, 10).await, [a.id, b.id, c.id]);
    assert_eq!(list(None, Some(project), None, 2).await, [a.id, b.id]);
    assert_eq!(list(Some(other), Some(project), None, 10).await, [b.id]);
    assert_eq!(list(Some(other), elsewhere.project, None, 10).await, []);
    assert_eq!(list(None, None, None, 10).await.len(), 5);
}

async fn every_field_of_a_task_comes_back(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    for state in TaskState::ALL {
        let written = TaskRecord { state, idempotency_key: Some(format!("key of {}", state.as_str())), ..task(&node) };
        store.commit(changes([Change::TaskInsert(Box::new(written.clone()))])).await.expect("commits");
        assert_eq!(store.task_get(written.id).await.expect("reads").as_ref(), Some(&written));
        let full = TaskRecord {
            node_epoch: 8,
            params: "{}".to_owned(),
            requested_by: "node:x".to_owned(),
            correlation_id: CorrelationId::generate(),
            intent: "other".to_owned(),
            created_at: later(1),
            queue_until: later(2),
            timeout: std::time::Duration::from_secs(86_400),
            dispatches: 7,
            lease_until: Some(later(3)),
            envelope_start_by: Some(later(4)),
            cancel_requested_at: Some(later(5)),
            accepted_at: Some(later(6)),
            started_at: Some(later(7)),
            ended_at: Some(later(8)),
            code: "ok".to_owned(),
            message: "done".to_owned(),
            receipt_digest: Some(digest("receipt")),
            task_type: gpuaas_contract::task::TaskType::PackageList,
            idempotency_key: None,
            ..written
        };
        store.commit(changes([Change::TaskUpdate(Box::new(full.clone()))])).await.expect("commits");
        assert_eq!(store.task_get(full.id).await.expect("reads"), Some(TaskRecord { version: 1, ..full }));
    }
}

async fn envelopes_and_receipts_come_back_as_they_were(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let (first, second) = (stored_task(&store, &node).await, stored_task(&store, &node).await);
    let envelope = |at: u64, bytes: &[u8]| Change::EnvelopeInsert {
        task_id: first.id,
        digest: digest(&format!("envelope {at}")),
        envelope: bytes.to_vec(),
        key_id: KeyId::from("key_1".to_owned()),
        signed_at: later(at),
    };
    store.commit(changes([envelope(2, &[0, 255]), envelope(1, b"{}")])).await.expect("commits");
    let read = store.envelope_list(first.id).await.expect("reads");
    let reported = read.iter().map(|row| (row.digest.clone(), row.envelope.clone(), row.key_id.to_string(), row.signed_at));
    let expected = [
        (digest("envelope 1"), b"{}".to_vec(), "key_1".to_owned(), later(1)),
        (digest("envelope 2"), vec![0, 255], "key_1".to_owned(), later(2)),
    ];
    assert_eq!(reported.collect::<Vec<_>>(), expected);
    assert!(store.envelope_list(second.id).await.expect("reads").is_empty());

    assert_eq!(store.receipt_head(node.id, node.epoch).await.expect("reads"), ReceiptHead::default());
    let receipt = |task: &TaskRecord, sequence, previous| Change::ReceiptInsert {
        task_id: task.id,
        node_id: node.id,
        node_epoch: node.epoch,
        sequence,
        digest: digest(&format!("receipt {sequence}")),
        previous,
        receipt: vec![0, 1, 2, 255],
        received_at: later(sequence),
    };
    store.commit(changes([receipt(&first, 1, None)])).await.expect("commits");
    store.commit(changes([receipt(&second, 2, Some(digest("receipt 1")))])).await.expect("commits");
    let head = store.receipt_head(node.id, node.epoch).await.expect("reads");
    assert_eq!(head, ReceiptHead { sequence: 2, digest: Some(digest("receipt 2")) });
    assert_eq!(store.receipt_head(node.id, node.epoch + 1).await.expect("reads"), ReceiptHead::default());
    let read = store.receipt_get(second.id).await.expect("reads").expect("is there");
    assert_eq!((read.task_id, read.node_id, read.node_epoch, read.sequence), (second.id, node.id, node.epoch, 2));
    assert_eq!((read.digest.clone(), read.previous.clone()), (digest("receipt 2"), Some(digest("receipt 1"))));
    assert_eq!((read.receipt.clone(), read.received_at), (vec![0, 1, 2, 255], later(2)));
    assert_eq!(store.receipt_list(node.id, node.epoch, 1, 10).await.expect("lists"), [read]);

    let twice = store.commit(changes([receipt(&first, 3, None)])).await;
    assert!(matches!(twice, Err(CommitError::Conflict)), "a task has one receipt: {twice:?}");
}

async fn certificates_are_revoked_up_to_an_epoch(database: &Database) {
    let store = database.open().await;
    let (node, other) = (stored_node(&store).await, stored_node(&store).await);
    let newer = gpuaas_domain::node::Certificate { node_epoch: node.epoch + 1, ..certificate(&node, "03") };
    let short = gpuaas_domain::node::Certificate { not_after: later(10), ..certificate(&node, "02") };
    let list = [certificate(&node, "01"), short.clone(), newer.clone(), certificate(&other, "04")];
    store.commit(changes(list.clone().map(Change::CertificateInsert))).await.expect("commits");
    for written in &list {
        assert_eq!(store.certificate_get(&written.serial).await.expect("reads").as_ref(), Some(written));
    }
    assert!(store.certificates_revoked(NOW).await.expect("reads").is_empty());
    let revoke = |at| Change::CertificatesRevoke { node_id: node.id, up_to_epoch: node.epoch, at };
    store.commit(changes([revoke(later(5))])).await.expect("commits");
    assert_eq!(store.certificates_revoked(later(10)).await.expect("reads"), ["02", "01"]);
    assert_eq!(store.certificates_revoked(later(11)).await.expect("reads"), ["01"], "02 has expired anyway");
    // A second revocation does not change the time.
    store.commit(changes([revoke(later(50))])).await.expect("commits");
    assert_eq!(store.certificate_get("01").await.expect("reads").and_then(|read| read.revoked_at), Some(later(5)));
    assert_eq!(store.certificate_get("03").await.expect("reads"), Some(newer));
    // A certificate that is issued and revoked by the same decision is revoked.
    let both = changes([revoke(later(60)), Change::CertificateInsert(certificate(&node, "05"))]);
    store.commit(both).await.expect("commits");
    assert_eq!(store.certificate_get("05").await.expect("reads").and_then(|read| read.revoked_at), Some(later(60)));
}

async fn log_lines_come_back_once_and_are_capped(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let task = stored_task(&store, &node).await;
    let lines: Vec<TaskLogLine> = (1..=100).map(|n| line(task.id, n, &format!("line {n} ü"))).collect();
    store.commit(changes([Change::LogAppend(lines[..60].to_vec())])).await.expect("commits");
    // The same lines again, changed: the stored ones stay.
    let mut again = lines[30..].to_vec();
    again[0].text = "forged".to_owned();
    store.commit(changes([Change::LogAppend(again)])).await.expect("commits");
    assert_eq!(store.log_list(task.id, 0, 1000).await.expect("reads"), lines);
    assert_eq!(store.log_list(task.id, 90, 3).await.expect("reads"), &lines[90..93]);

    let cap = gpuaas_store::MAX_LINES_PER_TASK;
    let last = line(task.id, cap, &"ä".repeat(gpuaas_store::MAX_LINE_BYTES));
    store.commit(changes([Change::LogAppend(vec![last, line(task.id, cap + 1, "too many")])])).await.expect("commits");
    let tail = store.log_list(task.id, 100, 10).await.expect("reads");
    assert_eq!(tail.iter().map(|line| line.sequence).collect::<Vec<_>>(), [cap]);
    assert_eq!(tail[0].text, "ä".repeat(gpuaas_store::MAX_LINE_BYTES / 2));
}

async fn texts_with_nul_bytes_are_kept_without_them(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let odd = TaskRecord { message: "a\0b".to_owned(), ..task(&node) };
    let log = Change::LogAppend(vec![line(odd.id, 1, "\0")]);
    store.commit(recorded("target\0", [Change::TaskInsert(Box::new(odd.clone())), log])).await.expect("commits");
    assert_eq!(store.task_get(odd.id).await.expect("reads").expect("is there").message, "a\u{fffd}b");
    assert_eq!(store.log_list(odd.id, 0, 10).await.expect("reads")[0].text, "\u{fffd}");
    audit_chain::verify(&Head::genesis(), &whole_audit(&store).await).expect("columns and text agree");
}

async fn numbers_beyond_the_databases_are_kept_as_the_largest(database: &Database) {
    let store = database.open().await;
    let node = stored_node(&store).await;
    let task = stored_task(&store, &node).await;
    let receipt = Change::ReceiptInsert {
        task_id: task.id,
        node_id: node.id,
        node_epoch: node.epoch,
        sequence: u64::MAX,
        digest: digest("r"),
        previous: None,
        receipt: Vec::new(),
        received_at: NOW,
    };
    store.commit(changes([receipt])).await.expect("a node's odd number does not block its receipt");
    let head = store.receipt_head(node.id, node.epoch).await.expect("reads");
    assert_eq!(head.sequence, u64::try_from(i64::MAX).expect("fits"));
}
