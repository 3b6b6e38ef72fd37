//! Receipts that must be accepted and receipts that must be rejected, each with the reason.

use gpuaas_contract::receipt::{
    Expectation, MAX_BYTES, Outcome, PAYLOAD_TYPE, Payload, PhaseTiming, ReceiptError, Verified, verify,
};
use gpuaas_contract::task::TaskType;
use gpuaas_contract::{Digest, envelope, id};

use crate::envelope_cases::{document, ping, raw, signed_text};
use crate::fixture::{CLUSTER, EPOCH, Holder, INSTANCE, NODE, NOW, OTHER_CLUSTER, OTHER_NODE, OTHER_TASK, SECOND, TASK};

/// What the control plane has on record about the task.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) cluster_id: id::ClusterId,
    pub(crate) node_id: id::NodeId,
    pub(crate) node_epoch: u64,
    pub(crate) task_id: id::TaskId,
    pub(crate) task_type: TaskType,
    pub(crate) envelope_digests: Vec<Digest>,
}

/// A receipt and the expected verdict.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) payload: String,
    pub(crate) receipt: String,
    pub(crate) append_spaces: usize,
    /// The stable code of the rejection; `None` if the receipt is accepted.
    pub(crate) disbelief: Option<&'static str>,
}

impl Case {
    pub(crate) fn document(&self) -> Vec<u8> {
        document(&self.receipt, self.append_spaces)
    }
}

/// The record in all cases: the ping was signed for this node in this epoch.
pub(crate) fn record() -> Record {
    Record {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        task_id: TASK,
        task_type: TaskType::DiagPing,
        envelope_digests: vec![task_digest()],
    }
}

fn task_digest() -> Digest {
    Digest::of(&serde_json::to_vec(&ping()).expect("a payload is JSON"))
}

/// Verifies `document` as a control plane with this record does.
pub(crate) fn judge(document: &[u8], record: &Record) -> Result<Verified, ReceiptError> {
    let key = Holder::Node.key().verifying_key();
    verify(
        document,
        &Expectation {
            key: &key,
            cluster_id: record.cluster_id,
            node_id: record.node_id,
            node_epoch: record.node_epoch,
            task_id: record.task_id,
            task_type: record.task_type,
            envelope_digests: &record.envelope_digests,
        },
    )
}

/// The first receipt of the epoch: the ping succeeded.
pub(crate) fn success() -> Payload {
    Payload {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        task_id: TASK,
        task_type: "diag.ping".to_owned(),
        task_digest: task_digest(),
        agent_instance_id: INSTANCE,
        boot_id: "1f0c2a52-6b1e-4d0a-9a3c-5d6f7a8b9c0d".to_owned(),
        attempt: 1,
        started_at: Some(NOW),
        finished_at: NOW.plus(SECOND),
        outcome: Outcome::Succeeded,
        code: "ok".to_owned(),
        message: String::new(),
        output: Some(raw(&format!(r#"{{"message":"hello","host_time":{},"recovered":false}}"#, NOW.0))),
        phases: vec![PhaseTiming { phase: "mark".to_owned(), milliseconds: 12 }],
        cleanup_proof: None,
        sequence: 1,
        previous_receipt: None,
    }
}

fn success_text() -> String {
    serde_json::to_string(&success()).expect("a payload is JSON")
}

fn changed(name: &'static str, why: &'static str, disbelief: Option<&'static str>, change: impl FnOnce(&mut Payload)) -> Case {
    let mut payload = success();
    change(&mut payload);
    spelled(name, why, disbelief, serde_json::to_string(&payload).expect("a payload is JSON"))
}

fn spelled(name: &'static str, why: &'static str, disbelief: Option<&'static str>, payload: String) -> Case {
    let receipt = signed_text(&payload, PAYLOAD_TYPE, Holder::Node);
    Case { name, why, payload, receipt, append_spaces: 0, disbelief }
}

fn sealed(name: &'static str, why: &'static str, code: &'static str, payload_type: &str, holder: Holder) -> Case {
    let payload = success_text();
    let receipt = signed_text(&payload, payload_type, holder);
    Case { name, why, payload, receipt, append_spaces: 0, disbelief: Some(code) }
}

fn tampered(name: &'static str, why: &'static str, code: &'static str, change: impl FnOnce(String) -> String) -> Case {
    let mut case = changed(name, why, Some(code), |_| ());
    case.receipt = change(case.receipt);
    case
}

/// Turns the receipt into one for a task that did not succeed, which has no output.
fn ended(payload: &mut Payload, outcome: Outcome, code: &str, message: &str) {
    payload.outcome = outcome;
    payload.code = code.to_owned();
    payload.message = message.to_owned();
    payload.output = None;
}

pub(crate) fn believed() -> Vec<Case> {
    vec![
        changed("succeeded", "the plain case, first receipt of the epoch", None, |_| ()),
        changed("second_of_the_chain", "names the receipt before it", None, |p| {
            p.sequence = 2;
            p.previous_receipt = Some(Digest::of(success_text().as_bytes()));
        }),
        changed("failed", "tried and failed: no output, a code and a sentence", None, |p| {
            ended(p, Outcome::Failed, "ping_log_unwritable", "the ping log cannot be written: free some disk space");
        }),
        changed("cancelled", "stopped on request", None, |p| {
            ended(p, Outcome::Cancelled, "cancelled", "cancelled by an operator")
        }),
        changed("interrupted", "recovered after a restart, second attempt", None, |p| {
            ended(p, Outcome::Interrupted, "agent_restarted", "the agent was restarted while the task ran");
            p.attempt = 2;
        }),
        changed("refused", "never started, so there is no started_at", None, |p| {
            ended(p, Outcome::Refused, "policy_denied", "the host policy does not allow diag.ping");
            p.started_at = None;
            p.phases = vec![];
        }),
        {
            let mut case = changed("largest", "exactly 1 MiB", None, |_| ());
            case.append_spaces = MAX_BYTES - case.receipt.len();
            case
        },
    ]
}

pub(crate) fn disbelieved() -> Vec<Case> {
    let with = |from: &str, to: &str| {
        let changed = success_text().replacen(from, to, 1);
        assert_ne!(changed, success_text(), "`{from}` is not in the payload");
        changed
    };
    let malformed = "receipt_malformed";
    let output = Some("receipt_output_invalid");
    let inconsistent = Some("receipt_inconsistent");
    vec![
        {
            let mut case = changed("oversized", "one byte more than 1 MiB", Some("receipt_oversized"), |_| ());
            case.append_spaces = MAX_BYTES + 1 - case.receipt.len();
            case
        },
        tampered("not_json", "cut off in the middle", malformed, |r| r[..r.len() / 2].to_owned()),
        tampered("unknown_envelope_field", "a field beside the three of DSSE", malformed, |r| {
            r.replacen('{', r#"{"comment":"x","#, 1)
        }),
        tampered("two_signatures", "the same good signature twice", malformed, |r| {
            let start = r.find("[{").expect("signatures") + 1;
            let signature = r[start..r.len() - 2].to_owned();
            r.replace(&signature, &format!("{signature},{signature}"))
        }),
        sealed("other_nodes_key", "signed by another node", "receipt_key_unknown", PAYLOAD_TYPE, Holder::OtherNode),
        sealed("root_key", "the root key signs verifier sets, not receipts", "receipt_key_unknown", PAYLOAD_TYPE, Holder::Root),
        tampered("borrowed_key_id", "another node's signature under this node's key id", "receipt_signature_invalid", |_| {
            let (other, own) = (Holder::OtherNode.key().verifying_key().id(), Holder::Node.key().verifying_key().id());
            signed_text(&success_text(), PAYLOAD_TYPE, Holder::OtherNode).replace(other.as_str(), own.as_str())
        }),
        sealed(
            "wrong_payload_type",
            "a good signature for another purpose",
            "receipt_payload_type_wrong",
            envelope::PAYLOAD_TYPE,
            Holder::Node,
        ),
        spelled("payload_not_json", "signed, but no JSON", Some(malformed), "done".to_owned()),
        spelled("missing_outcome", "no field has a default", Some(malformed), with("\"outcome\":\"succeeded\",", "")),
        spelled("unknown_outcome", "an outcome that does not exist", Some(malformed), with("succeeded", "probably_fine")),
        spelled("upper_case_digest", "only the canonical text of a digest is taken", Some(malformed), with("sha256:", "SHA256:")),
        spelled(
            "unknown_field",
            "a field that this version does not know",
            Some("receipt_unknown_field"),
            with("\"attempt\":1", "\"attempt\":1,\"trust_me\":true"),
        ),
        changed("other_cluster", "speaks for another cluster", Some("receipt_other_cluster"), |p| p.cluster_id = OTHER_CLUSTER),
        changed("other_node", "speaks for another node", Some("receipt_other_node"), |p| p.node_id = OTHER_NODE),
        changed("old_epoch", "speaks for an earlier enrollment", Some("receipt_other_epoch"), |p| p.node_epoch = EPOCH - 1),
        changed("other_task", "speaks of another task", Some("receipt_other_task"), |p| p.task_id = OTHER_TASK),
        changed("other_task_type", "the right task under another type", Some("receipt_other_task"), |p| {
            p.task_type = "package.list".to_owned();
        }),
        changed("other_envelope", "answers an order that was never signed for this task", Some("receipt_other_envelope"), |p| {
            p.task_digest = Digest::of(b"another order");
        }),
        changed("success_without_output", "a success owes its output", output, |p| p.output = None),
        changed("proof_from_a_ping", "only tasks that clean up prove cleanup", Some("receipt_proof_invalid"), |p| {
            p.cleanup_proof = Some(raw("{}"));
        }),
        changed("output_without_success", "only a success has output", output, |p| {
            p.outcome = Outcome::Failed;
            p.code = "ping_log_unwritable".to_owned();
        }),
        changed("output_of_another_type", "the output of package.list", output, |p| {
            p.output = Some(raw(r#"{"manager":"dpkg","packages":[],"matched":0,"truncated":false}"#));
        }),
        changed("output_with_unknown_field", "the output has one field too many", output, |p| {
            p.output = Some(raw(r#"{"message":"hello","host_time":0,"recovered":false,"extra":1}"#));
        }),
        changed("output_with_missing_field", "the output lacks a field", output, |p| {
            p.output = Some(raw(r#"{"message":"hello"}"#))
        }),
        changed("no_attempt", "attempts count from 1", inconsistent, |p| p.attempt = 0),
        changed("no_sequence", "receipts count from 1", inconsistent, |p| p.sequence = 0),
        changed("chain_without_link", "the second receipt names the first", inconsistent, |p| p.sequence = 2),
        changed("first_with_link", "nothing comes before the first receipt", inconsistent, |p| {
            p.previous_receipt = Some(Digest::of(b"an earlier receipt"));
        }),
        changed("ends_before_start", "time runs backwards", inconsistent, |p| p.finished_at = NOW.minus(SECOND)),
        changed("refused_but_started", "a refused task never starts", inconsistent, |p| {
            ended(p, Outcome::Refused, "policy_denied", "the host policy does not allow diag.ping");
        }),
        changed("success_without_start", "a task that succeeded was started", inconsistent, |p| p.started_at = None),
        changed("success_with_a_reason", "a success has the code ok", inconsistent, |p| p.code = "mostly_ok".to_owned()),
        changed("failure_called_ok", "only a success has the code ok", inconsistent, |p| ended(p, Outcome::Failed, "ok", "")),
        changed("long_boot_id", "65 bytes", inconsistent, |p| p.boot_id = "b".repeat(65)),
        changed("long_message", "4097 bytes", inconsistent, |p| p.message = "m".repeat(4097)),
        changed("many_phases", "257 phases", inconsistent, |p| p.phases = vec![p.phases[0].clone(); 257]),
    ]
}
