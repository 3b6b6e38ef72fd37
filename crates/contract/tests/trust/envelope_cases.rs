//! Envelopes that must be accepted and envelopes that must be refused, each with the reason.

use gpuaas_contract::dsse;
use gpuaas_contract::envelope::{self, CLOCK_SKEW, Expectation, MAX_BYTES, MAX_START_WINDOW, PAYLOAD_TYPE, Payload, RefusalCode};
use gpuaas_contract::id::{AllocationId, CorrelationId};
use gpuaas_contract::receipt;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{KeyState, VerifierSet};
use serde_json::value::RawValue;

use crate::fixture::{
    CLUSTER, EPOCH, Holder, MICROSECOND, NODE, NOW, OTHER_CLUSTER, OTHER_NODE, SECOND, TASK, text, uuid_v7, verifier_set_document,
};

/// What the node knows when the envelope arrives.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeState {
    pub(crate) cluster_id: gpuaas_contract::id::ClusterId,
    pub(crate) node_id: gpuaas_contract::id::NodeId,
    pub(crate) node_epoch: u64,
    pub(crate) now_us: Timestamp,
    pub(crate) highest_seen_us: Timestamp,
}

/// An envelope and the expected verdict.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) payload: String,
    pub(crate) envelope: String,
    pub(crate) append_spaces: usize,
    pub(crate) node: NodeState,
    pub(crate) verdict: Result<(), RefusalCode>,
}

impl Case {
    /// The bytes as they arrive at the node.
    pub(crate) fn document(&self) -> Vec<u8> {
        document(&self.envelope, self.append_spaces)
    }
}

/// Appends spaces: JSON allows trailing white space, so the document grows without becoming malformed.
pub(crate) fn document(envelope: &str, append_spaces: usize) -> Vec<u8> {
    let mut bytes = envelope.as_bytes().to_vec();
    bytes.resize(bytes.len() + append_spaces, b' ');
    bytes
}

/// Verifies `document` as a node in state `node` does.
pub(crate) fn judge(document: &[u8], node: NodeState, keys: &VerifierSet) -> Result<envelope::Verified, envelope::Refusal> {
    let NodeState { cluster_id, node_id, node_epoch, now_us, highest_seen_us } = node;
    envelope::verify(document, &Expectation { keys, cluster_id, node_id, node_epoch, now: now_us, highest_seen: highest_seen_us })
}

/// The keys that the node trusts.
pub(crate) fn trusted_keys() -> VerifierSet {
    let root = Holder::Root.key();
    VerifierSet::open(&verifier_set_document().sign(&root), &root.verifying_key(), CLUSTER).expect("our own set opens")
}

pub(crate) fn node_state() -> NodeState {
    NodeState { cluster_id: CLUSTER, node_id: NODE, node_epoch: EPOCH, now_us: NOW, highest_seen_us: NOW.minus(60 * SECOND) }
}

/// A console read under lease 2, in an envelope that names the given lease, or none.
fn console(lease_epoch: Option<u64>) -> impl FnOnce(&mut Payload) {
    move |payload| {
        let allocation = AllocationId::from_bytes(uuid_v7(0x41));
        payload.task_type = "slice.console_read".to_owned();
        payload.params = raw(&format!(r#"{{"allocation_id":"{allocation}","lease_epoch":2}}"#));
        (payload.allocation_id, payload.lease_epoch) = (lease_epoch.map(|_| allocation), lease_epoch);
    }
}

/// A ping for this node that was signed one second ago and may start within five minutes.
pub(crate) fn ping() -> Payload {
    let issued_at = NOW.minus(SECOND);
    Payload {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        task_id: TASK,
        task_type: "diag.ping".to_owned(),
        params: raw(r#"{"message":"hello","hold_ms":0,"log_lines":0}"#),
        allocation_id: None,
        lease_epoch: None,
        issued_at,
        start_by: issued_at.plus(300 * SECOND),
        deadline: issued_at.plus(900 * SECOND),
        correlation_id: CorrelationId::try_from("corr-golden-1".to_owned()).expect("a correlation id"),
    }
}

pub(crate) fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).expect("JSON")
}

/// Signs any text as an envelope, even one that no honest control plane would sign.
pub(crate) fn signed_text(payload: &str, payload_type: &str, holder: Holder) -> String {
    text(dsse::seal(payload_type, payload.as_bytes().to_vec(), &holder.key()))
}

const ACTIVE: Holder = Holder::Control(KeyState::Active);

fn ping_text() -> String {
    serde_json::to_string(&ping()).expect("a payload is JSON")
}

/// The ping with one change, signed as usual.
fn changed(name: &'static str, why: &'static str, verdict: Result<(), RefusalCode>, change: impl FnOnce(&mut Payload)) -> Case {
    let mut payload = ping();
    change(&mut payload);
    let payload = serde_json::to_string(&payload).expect("a payload is JSON");
    let envelope = signed_text(&payload, PAYLOAD_TYPE, ACTIVE);
    Case { name, why, payload, envelope, append_spaces: 0, node: node_state(), verdict }
}

/// A custom payload text, signed as usual.
fn spelled(name: &'static str, why: &'static str, verdict: Result<(), RefusalCode>, payload: String) -> Case {
    let envelope = signed_text(&payload, PAYLOAD_TYPE, ACTIVE);
    Case { name, why, payload, envelope, append_spaces: 0, node: node_state(), verdict }
}

/// The plain ping, signed by a given holder or as another payload type.
fn sealed(name: &'static str, why: &'static str, verdict: Result<(), RefusalCode>, payload_type: &str, holder: Holder) -> Case {
    let payload = ping_text();
    let envelope = signed_text(&payload, payload_type, holder);
    Case { name, why, payload, envelope, append_spaces: 0, node: node_state(), verdict }
}

/// The plain ping, received by a node in another state.
fn arriving(
    name: &'static str,
    why: &'static str,
    verdict: Result<(), RefusalCode>,
    change: impl FnOnce(&mut NodeState),
) -> Case {
    let mut case = changed(name, why, verdict, |_| ());
    change(&mut case.node);
    case
}

/// The plain ping, with the text of the envelope changed after signing.
fn tampered(name: &'static str, why: &'static str, code: RefusalCode, change: impl FnOnce(String) -> String) -> Case {
    let mut case = changed(name, why, Err(code), |_| ());
    case.envelope = change(case.envelope);
    case
}

pub(crate) fn accepted() -> Vec<Case> {
    let ok = Ok(());
    vec![
        changed("ping", "the plain case", ok, |_| ()),
        changed("health_probe", "params without fields", ok, |p| {
            p.task_type = "diag.health_probe".to_owned();
            p.params = raw("{}");
        }),
        changed("package_list_defaults", "params may leave out fields that have a default", ok, |p| {
            p.task_type = "package.list".to_owned();
            p.params = raw(r#"{"name_contains":"nvidia"}"#);
        }),
        changed("with_allocation", "both optional fields are present", ok, |p| {
            p.allocation_id = Some(AllocationId::from_bytes(uuid_v7(0x41)));
            p.lease_epoch = Some(2);
        }),
        spelled(
            "unusual_spelling",
            "white space, escapes and field order are the signer's business: the exact bytes are signed, nothing is canonicalized",
            ok,
            format!(
                "{{\n  \"correlation_id\" : \"corr-golden-1\", \"task_type\":\"diag\\u002eping\",\n {}",
                ping_text()
                    .trim_start_matches('{')
                    .replace("\"task_type\":\"diag.ping\",", "")
                    .replace(",\"correlation_id\":\"corr-golden-1\"", "")
            ),
        ),
        sealed("grace_key", "a key in grace is still believed", ok, PAYLOAD_TYPE, Holder::Control(KeyState::Grace)),
        changed("longest_window", "a start window of exactly 15 minutes", ok, |p| {
            p.start_by = p.issued_at.plus(MAX_START_WINDOW);
        }),
        arriving("latest_moment", "exactly 60 s after start_by, the last moment that counts", ok, |n| {
            n.now_us = ping().start_by.plus(CLOCK_SKEW);
        }),
        arriving("earliest_moment", "exactly 60 s before issued_at, the first moment that counts", ok, |n| {
            n.now_us = ping().issued_at.minus(CLOCK_SKEW);
            n.highest_seen_us = n.now_us;
        }),
        arriving("slow_clock", "the clock is a day slow but a later time was already authenticated: that one counts", ok, |n| {
            n.now_us = NOW.minus(86_400 * SECOND);
            n.highest_seen_us = NOW;
        }),
        {
            let mut case = changed("largest", "exactly 64 KiB", ok, |_| ());
            case.append_spaces = MAX_BYTES - case.envelope.len();
            case
        },
    ]
}

pub(crate) fn refused() -> Vec<Case> {
    [refused_before_the_signature(), refused_by_the_parser(), refused_for_audience_or_time()].into_iter().flatten().collect()
}

fn refused_before_the_signature() -> Vec<Case> {
    use RefusalCode::{EnvelopeMalformed, EnvelopeOversized, KeyNotUsable, KeyUnknown, PayloadTypeWrong, SignatureInvalid};
    let signature_of = |envelope: &str| {
        let start = envelope.find("[{").expect("signatures") + 1;
        envelope[start..envelope.len() - 2].to_owned()
    };
    vec![
        {
            let mut case = changed("oversized", "one byte more than 64 KiB", Err(EnvelopeOversized), |_| ());
            case.append_spaces = MAX_BYTES + 1 - case.envelope.len();
            case
        },
        tampered("not_json", "cut off in the middle", EnvelopeMalformed, |e| e[..e.len() / 2].to_owned()),
        tampered("trailing_bytes", "something after the document", EnvelopeMalformed, |e| format!("{e}{{}}")),
        tampered("no_signature", "an empty list of signatures", EnvelopeMalformed, |e| {
            let signature = signature_of(&e);
            e.replace(&signature, "")
        }),
        tampered("two_signatures", "the same good signature twice", EnvelopeMalformed, |e| {
            let signature = signature_of(&e);
            e.replace(&signature, &format!("{signature},{signature}"))
        }),
        tampered("unknown_envelope_field", "a field beside the three of DSSE", EnvelopeMalformed, |e| {
            e.replacen('{', r#"{"comment":"x","#, 1)
        }),
        tampered("unpadded_base64", "the padding of the signature is missing", EnvelopeMalformed, |e| {
            e.replace("==\"}]", "\"}]")
        }),
        tampered("duplicate_payload", "the payload is given twice", EnvelopeMalformed, |e| {
            e.replacen('{', r#"{"payload":"e30=","#, 1)
        }),
        sealed("unknown_key", "signed by a key that is not in the set", Err(KeyUnknown), PAYLOAD_TYPE, Holder::Stranger),
        sealed("node_key", "signed with the node's own receipt key", Err(KeyUnknown), PAYLOAD_TYPE, Holder::Node),
        sealed("root_key", "the root key signs verifier sets, not tasks", Err(KeyUnknown), PAYLOAD_TYPE, Holder::Root),
        sealed("staged_key", "the key is not yet believed", Err(KeyNotUsable), PAYLOAD_TYPE, Holder::Control(KeyState::Staged)),
        sealed(
            "retired_key",
            "the key is no longer believed",
            Err(KeyNotUsable),
            PAYLOAD_TYPE,
            Holder::Control(KeyState::Retired),
        ),
        sealed(
            "revoked_key",
            "the key may be in wrong hands",
            Err(KeyNotUsable),
            PAYLOAD_TYPE,
            Holder::Control(KeyState::Revoked),
        ),
        tampered("borrowed_key_id", "a stranger's signature under the name of the active key", SignatureInvalid, |_| {
            let stranger = Holder::Stranger.key().verifying_key().id();
            let active = ACTIVE.key().verifying_key().id();
            signed_text(&ping_text(), PAYLOAD_TYPE, Holder::Stranger).replace(stranger.as_str(), active.as_str())
        }),
        tampered("signature_of_another_task", "the signature was made for other bytes", SignatureInvalid, |e| {
            let other = signed_text("{}", PAYLOAD_TYPE, ACTIVE);
            e.replace(&signature_of(&e), &signature_of(&other))
        }),
        tampered("payload_type_changed_after_signing", "the type is part of what is signed", SignatureInvalid, |_| {
            signed_text(&ping_text(), receipt::PAYLOAD_TYPE, ACTIVE).replace(receipt::PAYLOAD_TYPE, PAYLOAD_TYPE)
        }),
        sealed(
            "wrong_payload_type",
            "a good signature for another purpose",
            Err(PayloadTypeWrong),
            receipt::PAYLOAD_TYPE,
            ACTIVE,
        ),
    ]
}

fn refused_by_the_parser() -> Vec<Case> {
    use RefusalCode::{LeaseMismatch, ParamsInvalid, TaskMalformed, TaskTypeUnknown, TaskUnknownField};
    let with = |from: &str, to: &str| {
        let changed = ping_text().replacen(from, to, 1);
        assert_ne!(changed, ping_text(), "`{from}` is not in the payload");
        changed
    };
    let params = |json: &'static str| move |p: &mut Payload| p.params = raw(json);
    vec![
        spelled("payload_not_json", "signed, but no JSON", Err(TaskMalformed), "ping".to_owned()),
        spelled("payload_trailing_bytes", "something after the payload", Err(TaskMalformed), format!("{} {{}}", ping_text())),
        spelled("missing_epoch", "no security field has a default", Err(TaskMalformed), with("\"node_epoch\":3,", "")),
        spelled(
            "epoch_as_text",
            "a number written as text",
            Err(TaskMalformed),
            with("\"node_epoch\":3", "\"node_epoch\":\"3\""),
        ),
        spelled("negative_epoch", "an epoch below zero", Err(TaskMalformed), with("\"node_epoch\":3", "\"node_epoch\":-3")),
        spelled(
            "duplicate_node",
            "the node is given twice: readers may disagree about which one counts",
            Err(TaskMalformed),
            with("\"node_epoch\":3", &format!("\"node_epoch\":3,\"node_id\":\"{OTHER_NODE}\"")),
        ),
        spelled("upper_case_id", "only the canonical text of an id is taken", Err(TaskMalformed), {
            let id = NODE.to_string();
            with(&id, &format!("node_{}", id.trim_start_matches("node_").to_uppercase()))
        }),
        spelled(
            "line_break_in_correlation_id",
            "it is written into log lines",
            Err(TaskMalformed),
            with("corr-golden-1", "corr\\nfake log line"),
        ),
        spelled(
            "unknown_payload_field",
            "a field that this version does not know",
            Err(TaskUnknownField),
            with("\"node_epoch\":3", "\"node_epoch\":3,\"as_root\":true"),
        ),
        changed(
            "unknown_params_field",
            "a parameter that the task does not have",
            Err(TaskUnknownField),
            params(r#"{"shell":"id"}"#),
        ),
        changed("lease_missing", "a task on slots whose envelope names no lease", Err(LeaseMismatch), console(None)),
        changed(
            "lease_of_another_number",
            "the envelope names a later lease than the params",
            Err(LeaseMismatch),
            console(Some(3)),
        ),
        changed("unknown_type", "a task that is not in the catalog", Err(TaskTypeUnknown), |p| {
            p.task_type = "shell.exec".to_owned();
        }),
        changed("type_in_other_case", "names are exact", Err(TaskTypeUnknown), |p| p.task_type = "Diag.Ping".to_owned()),
        changed("params_null", "params are an object", Err(ParamsInvalid), params("null")),
        changed("params_wrong_type", "a text where a number belongs", Err(ParamsInvalid), params(r#"{"hold_ms":"0"}"#)),
        changed("params_negative", "a number below its range", Err(ParamsInvalid), params(r#"{"hold_ms":-1}"#)),
        changed("params_beyond_limit", "hold_ms above 600000", Err(ParamsInvalid), params(r#"{"hold_ms":600001}"#)),
        changed("params_too_many_log_lines", "log_lines above 100000", Err(ParamsInvalid), params(r#"{"log_lines":100001}"#)),
        changed("params_message_too_long", "message above 256 bytes", Err(ParamsInvalid), |p| {
            p.params = raw(&format!(r#"{{"message":"{}"}}"#, "x".repeat(257)));
        }),
        changed(
            "params_control_character",
            "message with an escape sequence",
            Err(ParamsInvalid),
            params(r#"{"message":"\u001b[2J"}"#),
        ),
    ]
}

fn refused_for_audience_or_time() -> Vec<Case> {
    use RefusalCode::{ClusterMismatch, EpochMismatch, NodeMismatch, TaskEarly, TaskExpired, WindowInvalid};
    vec![
        changed("other_cluster", "meant for another cluster", Err(ClusterMismatch), |p| p.cluster_id = OTHER_CLUSTER),
        changed("other_node", "meant for another node", Err(NodeMismatch), |p| p.node_id = OTHER_NODE),
        changed("old_epoch", "meant for an earlier enrollment of this machine", Err(EpochMismatch), |p| p.node_epoch = EPOCH - 1),
        changed("later_epoch", "meant for an enrollment that this node does not know of", Err(EpochMismatch), |p| {
            p.node_epoch = EPOCH + 1;
        }),
        changed("window_too_long", "15 minutes and a microsecond", Err(WindowInvalid), |p| {
            p.start_by = p.issued_at.plus(MAX_START_WINDOW + MICROSECOND);
            p.deadline = p.start_by;
        }),
        changed("deadline_too_far", "24 hours and a microsecond after the latest start", Err(WindowInvalid), |p| {
            p.deadline = p.start_by.plus(gpuaas_contract::envelope::MAX_RUN + std::time::Duration::from_micros(1));
        }),
        changed("window_turned_round", "start_by before issued_at", Err(WindowInvalid), |p| {
            p.start_by = p.issued_at.minus(MICROSECOND);
        }),
        changed("deadline_before_start", "over before it may start", Err(WindowInvalid), |p| {
            p.deadline = p.start_by.minus(MICROSECOND);
        }),
        changed("end_of_time", "times at the end of the range must not overflow into validity", Err(TaskEarly), |p| {
            p.issued_at = Timestamp(i64::MAX);
            p.start_by = Timestamp(i64::MAX);
            p.deadline = Timestamp(i64::MAX);
        }),
        arriving("early", "60 s and a microsecond before issued_at", Err(TaskEarly), |n| {
            n.now_us = ping().issued_at.minus(CLOCK_SKEW + MICROSECOND);
            n.highest_seen_us = n.now_us;
        }),
        arriving("expired", "60 s and a microsecond after start_by", Err(TaskExpired), |n| {
            n.now_us = ping().start_by.plus(CLOCK_SKEW + MICROSECOND);
        }),
        arriving(
            "clock_set_back",
            "the clock fits, but a time after the window was already authenticated",
            Err(TaskExpired),
            |n| {
                n.highest_seen_us = ping().start_by.plus(CLOCK_SKEW + MICROSECOND);
            },
        ),
    ]
}
