//! A small world for decisions: a node, its keys, and a clock that stands still.
#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod slices;

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::envelope;
use gpuaas_contract::id::{AgentInstanceId, ApiTokenId, ClusterId, CorrelationId, NodeId, ServerId, SessionId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::task::{Task, diag_ping};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::PlatformRole;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{LinkTransport, LiveSession, Node, NodeService};
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, NewTask, Outgoing, ReceiptHead, TaskRecord, TaskState};
use gpuaas_domain::{Actor, Change, Decision, Refusal};

pub(crate) const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes([1; 16]);

pub(crate) fn later(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

pub(crate) fn at(now: Timestamp) -> Context {
    let actor = Actor::Token { id: ApiTokenId::from_bytes([9; 16]), role: PlatformRole::Admin };
    let correlation_id = CorrelationId::try_from("corr-1".to_owned()).expect("valid");
    Context { now, actor, correlation_id }
}

pub(crate) fn context() -> Context {
    at(NOW)
}

pub(crate) fn task_key() -> SigningKey {
    SigningKey::from_seed(&[3; 32])
}

pub(crate) fn receipt_key() -> SigningKey {
    SigningKey::from_seed(&[4; 32])
}

pub(crate) fn node() -> Node {
    Node {
        id: NodeId::from_bytes([2; 16]),
        version: 5,
        name: "rack-1".to_owned(),
        fingerprint: "f".to_owned(),
        epoch: 2,
        receipt_key: receipt_key().verifying_key(),
        tls_key_digest: Digest::of(b"tls"),
        record: b"signed".to_vec(),
        service: NodeService::InService,
        service_reason: String::new(),
        session: None,
        last_seen_at: None,
        facts: HostFacts { hostname: "rack-1".to_owned(), ..HostFacts::default() },
        rejoins: 0,
        created_at: NOW,
        enrolled_at: NOW,
    }
}

pub(crate) fn session() -> LiveSession {
    LiveSession {
        id: SessionId::generate(),
        agent_instance_id: AgentInstanceId::generate(),
        boot_id: "boot".to_owned(),
        transport: LinkTransport::Stream,
        since: NOW,
        server: ServerId::generate(),
    }
}

pub(crate) fn new_task() -> NewTask {
    NewTask {
        id: TaskId::generate(),
        task: Task::DiagPing(diag_ping::Params { message: "hello".to_owned(), ..diag_ping::Params::default() }),
        queue_time: DEFAULT_QUEUE_TIME,
        timeout: Duration::from_secs(300),
        idempotency_key: None,
    }
}

/// A task that was just created.
pub(crate) fn queued() -> TaskRecord {
    let (task, decision) = task::create(&node(), new_task(), 0, &context(), |_| "mac".to_owned()).expect("created");
    assert_eq!(decision.changes, [Change::TaskInsert(Box::new(task.clone()))]);
    task
}

/// Signs an envelope for a queued task.
pub(crate) fn outgoing(task: &TaskRecord, node: &Node, now: Timestamp) -> Result<Outgoing, Refusal> {
    let payload = task::envelope_payload(task, node, CLUSTER, now)?;
    let signed = payload.sign(&task_key());
    Ok(Outgoing { payload, signed, key_id: task_key().verifying_key().id() })
}

/// Signs an envelope for a queued task and sends it.
pub(crate) fn try_dispatch(task: &TaskRecord, node: &Node, now: Timestamp) -> Result<Decision, Refusal> {
    Ok(task::dispatch(task, node, &outgoing(task, node, now)?, &at(now))?.1)
}

pub(crate) fn dispatched() -> TaskRecord {
    task_of(&try_dispatch(&queued(), &node(), NOW).expect("sent"))
}

/// A task that the domain functions themselves have brought into this state.
pub(crate) fn in_state(state: TaskState) -> TaskRecord {
    let sent = dispatched();
    let accepted = || task_of(&task::acknowledged(&sent, false, &context()));
    let by_receipt = |outcome| task_of(&believed(&accepted(), outcome, NOW));
    match state {
        TaskState::Queued => queued(),
        TaskState::Dispatched => sent,
        TaskState::Accepted => accepted(),
        TaskState::Started => task_of(&task::acknowledged(&sent, true, &context())),
        TaskState::Succeeded => by_receipt(Outcome::Succeeded),
        TaskState::Failed => by_receipt(Outcome::Failed),
        TaskState::Cancelled => by_receipt(Outcome::Cancelled),
        TaskState::Interrupted => by_receipt(Outcome::Interrupted),
        TaskState::Refused => by_receipt(Outcome::Refused),
        TaskState::Expired => task_of(&task::tick(&queued(), &at(later(601)))),
        TaskState::Lost => task_of(&task::node_gone(&accepted(), "retired", &context())),
    }
}

/// A signed receipt of the node for the task, verified as the control plane does.
pub(crate) fn verified(task: &TaskRecord, outcome: Outcome, sequence: u64) -> (receipt::Verified, Vec<u8>) {
    let order = task::envelope_payload(task, &node(), CLUSTER, NOW).expect("payload").sign(&task_key());
    verified_for(task, &order, outcome, sequence)
}

pub(crate) fn verified_for(
    task: &TaskRecord,
    order: &envelope::Signed,
    outcome: Outcome,
    sequence: u64,
) -> (receipt::Verified, Vec<u8>) {
    let output = r#"{"message":"hello","host_time":1,"recovered":false}"#.to_owned();
    let output = (outcome == Outcome::Succeeded).then(|| serde_json::value::RawValue::from_string(output).expect("JSON"));
    let reported = Report { output, ..Report::plainly(outcome) };
    receipt_for(task, order, reported, sequence)
}

/// What a node reports about a task.
#[derive(Clone)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) started: bool,
    pub(crate) output: Option<Box<serde_json::value::RawValue>>,
    pub(crate) proof: Option<gpuaas_contract::cleanup::CleanupProof>,
    /// Stable code, unless it succeeded.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Report {
    /// A report of this outcome and nothing else.
    pub(crate) fn plainly(outcome: Outcome) -> Self {
        let message = "in words".to_owned();
        Self { outcome, started: outcome != Outcome::Refused, output: None, proof: None, code: "some_code", message }
    }
}

pub(crate) fn receipt_for(
    task: &TaskRecord,
    order: &envelope::Signed,
    reported: Report,
    sequence: u64,
) -> (receipt::Verified, Vec<u8>) {
    let Report { outcome, started, output, proof, code, message } = reported;
    let payload = receipt::Payload {
        cluster_id: CLUSTER,
        node_id: task.node_id,
        node_epoch: task.node_epoch,
        task_id: task.id,
        task_type: task.task_type.as_str().to_owned(),
        task_digest: order.digest.clone(),
        agent_instance_id: AgentInstanceId::from_bytes([5; 16]),
        boot_id: "boot".to_owned(),
        attempt: 1,
        started_at: started.then(|| later(1)),
        finished_at: later(2),
        outcome,
        code: if outcome == Outcome::Succeeded { "ok" } else { code }.to_owned(),
        message,
        output,
        phases: Vec::new(),
        cleanup_proof: proof.map(|proof| serde_json::value::to_raw_value(&proof).expect("JSON")),
        sequence,
        previous_receipt: (sequence > 1).then(|| gpuaas_contract::Digest::of(b"the receipt before")),
    };
    let signed = payload.sign(&receipt_key());
    let expect = receipt::Expectation {
        key: &receipt_key().verifying_key(),
        cluster_id: CLUSTER,
        node_id: task.node_id,
        node_epoch: task.node_epoch,
        task_id: task.id,
        task_type: task.task_type,
        envelope_digests: std::slice::from_ref(&order.digest),
    };
    (receipt::verify(&signed.receipt, &expect).expect("believed"), signed.receipt)
}

/// The decision on such a receipt.
pub(crate) fn believed(task: &TaskRecord, outcome: Outcome, now: Timestamp) -> Decision {
    let (verified, raw) = verified(task, outcome, 1);
    let decision = task::receipt(task, &ReceiptHead::default(), &verified, &raw, &at(now));
    decision.expect("taken").expect("news")
}

/// The task that a decision writes.
pub(crate) fn task_of(decision: &Decision) -> TaskRecord {
    let mut written = decision.changes.iter().filter_map(|change| match change {
        Change::TaskUpdate(task) => Some((**task).clone()),
        _ => None,
    });
    let task = written.next().expect("the decision writes a task");
    assert!(written.next().is_none(), "the decision writes one task");
    task
}

/// The node that a decision writes.
pub(crate) fn node_of(decision: &Decision) -> Node {
    let node = decision.changes.iter().find_map(|change| match change {
        Change::NodeUpdate(node) => Some((**node).clone()),
        _ => None,
    });
    node.expect("the decision writes a node")
}

/// Checks that a state change has exactly one event and one audit entry about the same id.
pub(crate) fn assert_recorded(decision: &Decision, kind: &str, action: &str) {
    assert_eq!(decision.events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), [kind]);
    assert_eq!(decision.audit.iter().map(|entry| entry.action).collect::<Vec<_>>(), [action]);
    let (event, entry) = (&decision.events[0], &decision.audit[0]);
    assert_eq!((&event.subject, &event.data, event.at), (&entry.target, &entry.detail, entry.at));
    assert_eq!(event.correlation_id, entry.correlation_id);
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Refusal>) -> &'static str {
    result.expect_err("refused").code
}
