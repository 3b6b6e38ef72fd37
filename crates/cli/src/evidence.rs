//! Verifies that the control plane ordered a task and that the node carried it out. Works offline: the evidence contains everything.
//!
//! Trust starts at the root key. It signs the verifier set, a key in that set signs each envelope, and the node's receipt key
//! signs the receipt, which names the digest of the envelope that it answers.

use std::collections::BTreeSet;

use base64::Engine as _;
use gpuaas_api::dto::{EnvelopeEvidence, TaskEvidence};
use gpuaas_contract::dsse::{self, KeyLookup, OpenError};
use gpuaas_contract::envelope::{self, CLOCK_SKEW};
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::key::{KeyId, VerifyingKey};
use gpuaas_contract::receipt;
use gpuaas_contract::state::TaskState;
use gpuaas_contract::task::TaskType;
use gpuaas_contract::verifier_set::{KeyState, VerifierSet};
use gpuaas_contract::{Digest, time::Timestamp};

/// Payload type of the signed record of a node's keys.
const NODE_RECORD_TYPE: &str = "application/vnd.gpuaas.node-record.v1+json";
/// Largest such record, in bytes.
const NODE_RECORD_MAX_BYTES: usize = 8 * 1024;

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The check passed.
    Passed,
    /// The check failed.
    Failed,
    /// The check passed, with a caveat that the reader should know.
    Note,
}

impl Verdict {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Note => "note",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Check {
    /// Name of the check.
    pub(crate) check: &'static str,
    pub(crate) result: Verdict,
    /// What was found, in one line.
    pub(crate) detail: String,
}

/// The checks of one task.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Report {
    pub(crate) task_id: String,
    /// Whether no check failed.
    pub(crate) verified: bool,
    /// The id of the root key that all signatures lead to.
    pub(crate) root_key: String,
    /// Whether the user named the root key, instead of trusting the one in the evidence.
    pub(crate) root_key_pinned: bool,
    /// The checks, in the order in which they were made.
    pub(crate) checks: Vec<Check>,
}

/// A root key as the user names it: by its id, or as the key itself in base64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustRoot {
    /// The key's id.
    Id(KeyId),
    /// The key itself.
    Key(VerifyingKey),
}

impl TrustRoot {
    /// Parses a key or a key id.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(hex) = text.strip_prefix("key_") {
            let well_formed = hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            return if well_formed {
                Ok(Self::Id(KeyId::from(text.to_owned())))
            } else {
                Err("a key id is `key_` and 32 lower-case hex digits".to_owned())
            };
        }
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok();
        let key = bytes.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
        key.map(Self::Key)
            .ok_or_else(|| "give a key id (`key_…`) or a public key in base64; see `gpuaas cluster info`".to_owned())
    }

    fn is(&self, key: &VerifyingKey) -> bool {
        match self {
            Self::Id(id) => key.id() == *id,
            Self::Key(pinned) => pinned == key,
        }
    }
}

#[derive(Default)]
struct Checks(Vec<Check>);

impl Checks {
    fn add(&mut self, check: &'static str, result: Verdict, detail: impl Into<String>) {
        self.0.push(Check { check, result, detail: detail.into() });
    }

    fn settle(&mut self, check: &'static str, result: Result<String, String>) -> bool {
        let (verdict, detail) = match result {
            Ok(detail) => (Verdict::Passed, detail),
            Err(detail) => (Verdict::Failed, detail),
        };
        self.add(check, verdict, detail);
        verdict == Verdict::Passed
    }
}

/// Runs every check.
pub(crate) fn verify(evidence: &TaskEvidence, trust: Option<&TrustRoot>) -> Report {
    let mut checks = Checks::default();
    check_root(evidence, trust, &mut checks);
    let set = check_set(evidence, &mut checks);
    let mut envelopes = Vec::new();
    if let Some(set) = &set {
        for signed in &evidence.envelopes {
            envelopes.extend(check_envelope(evidence, signed, set, &mut checks));
        }
    }
    check_record(evidence, &mut checks);
    check_receipt(evidence, &envelopes, &mut checks);
    Report {
        task_id: evidence.task.id.to_string(),
        verified: checks.0.iter().all(|check| check.result != Verdict::Failed),
        root_key: evidence.root_key.id().to_string(),
        root_key_pinned: trust.is_some(),
        checks: checks.0,
    }
}

fn check_root(evidence: &TaskEvidence, trust: Option<&TrustRoot>, checks: &mut Checks) {
    let id = evidence.root_key.id();
    match trust {
        Some(trust) if trust.is(&evidence.root_key) => {
            checks.add("root key", Verdict::Passed, format!("{id} is the one you trust"))
        }
        Some(_) => checks.add("root key", Verdict::Failed, format!("{id} is not the one you trust")),
        None => checks.add("root key", Verdict::Note, format!("{id}, taken from the evidence itself; pin it with --trust-root")),
    }
}

fn check_set(evidence: &TaskEvidence, checks: &mut Checks) -> Option<VerifierSet> {
    match VerifierSet::open(&evidence.verifier_set, &evidence.root_key, evidence.cluster_id) {
        Ok(set) => {
            let detail = format!("version {} for {}, signed by the root key", set.version(), evidence.cluster_id);
            checks.add("verifier set", Verdict::Passed, detail);
            Some(set)
        }
        Err(error) => {
            checks.add("verifier set", Verdict::Failed, chain(&error));
            None
        }
    }
}

/// Looks up keys as they were, as far as can be told, when an envelope was signed: a key that was retired regularly was valid then.
struct History<'a>(&'a VerifierSet);

impl KeyLookup for History<'_> {
    fn find(&self, id: &KeyId) -> Result<&VerifyingKey, OpenError> {
        let entry = self.0.document().keys.iter().find(|entry| entry.key_id == *id);
        let entry = entry.ok_or_else(|| OpenError::UnknownKey(id.clone()))?;
        match entry.state {
            KeyState::Active | KeyState::Grace | KeyState::Retired => Ok(&entry.public_key),
            KeyState::Staged | KeyState::Revoked => Err(OpenError::KeyNotUsable { key: id.clone(), state: entry.state.as_str() }),
        }
    }
}

fn check_envelope(
    evidence: &TaskEvidence,
    signed: &EnvelopeEvidence,
    set: &VerifierSet,
    checks: &mut Checks,
) -> Option<envelope::Verified> {
    let result = open_envelope(evidence, signed, set);
    match result {
        Ok(verified) => {
            let state = set.document().keys.iter().find(|entry| entry.key_id == signed.key_id).map(|entry| entry.state);
            let retired = state == Some(KeyState::Retired);
            let detail = format!("{} signed by {}", verified.digest(), signed.key_id);
            if retired {
                checks.add("envelope", Verdict::Note, format!("{detail}, which has been retired since"));
            } else {
                checks.add("envelope", Verdict::Passed, detail);
            }
            Some(verified)
        }
        Err(detail) => {
            checks.add("envelope", Verdict::Failed, detail);
            None
        }
    }
}

fn open_envelope(evidence: &TaskEvidence, signed: &EnvelopeEvidence, set: &VerifierSet) -> Result<envelope::Verified, String> {
    let task = &evidence.task;
    // Verified as of the time at which it claims to have been signed. The signature covers that time.
    let claimed = dsse::payload_unverified(&signed.envelope).map_err(|error| chain(&error))?;
    let issued_at = serde_json::from_slice::<envelope::Payload>(&claimed).map_or(Timestamp(0), |payload| payload.issued_at);
    let keys = History(set);
    let expect = envelope::Expectation {
        keys: &keys,
        cluster_id: evidence.cluster_id,
        node_id: task.node_id,
        node_epoch: task.node_epoch,
        now: issued_at,
        highest_seen: issued_at,
    };
    let verified = envelope::verify(&signed.envelope, &expect).map_err(|refusal| format!("{}: {refusal}", refusal.code))?;
    if *verified.digest() != signed.digest {
        return Err(format!("its digest is {}, not {} as told", verified.digest(), signed.digest));
    }
    let payload = verified.payload();
    if payload.task_id != task.id {
        return Err(format!("it is for task {}, not {}", payload.task_id, task.id));
    }
    if payload.task_type != task.task_type {
        return Err(format!("it is for {}, not {} as told", payload.task_type, task.task_type));
    }
    let params: serde_json::Value = serde_json::from_str(payload.params.get()).map_err(|error| error.to_string())?;
    if params != task.params {
        return Err("its params are not the ones told".to_owned());
    }
    Ok(verified)
}

/// The signed record of the receipt key that the node presented when it enrolled.
#[derive(serde::Deserialize)]
struct NodeRecord {
    cluster_id: ClusterId,
    node_id: NodeId,
    node_epoch: u64,
    receipt_key: VerifyingKey,
}

fn check_record(evidence: &TaskEvidence, checks: &mut Checks) {
    const CHECK: &str = "receipt key";
    let id = evidence.receipt_key.id();
    let on_trust = |why: &str| format!("{id} is the node's key by the server's word: {why}");
    let Some(record) = &evidence.node_record else {
        return checks.add(CHECK, Verdict::Note, on_trust("the evidence holds no signed record of it"));
    };
    let payload = match dsse::open(record, NODE_RECORD_MAX_BYTES, NODE_RECORD_TYPE, &evidence.root_key) {
        Ok(payload) => payload,
        Err(OpenError::UnknownKey(key)) => {
            return checks.add(CHECK, Verdict::Note, on_trust(&format!("its record is signed by {key}, not by the root key")));
        }
        Err(error) => return checks.add(CHECK, Verdict::Failed, format!("the node's record: {}", chain(&error))),
    };
    let same = serde_json::from_slice::<NodeRecord>(&payload).is_ok_and(|record| {
        record.cluster_id == evidence.cluster_id
            && record.node_id == evidence.task.node_id
            && record.node_epoch == evidence.task.node_epoch
            && record.receipt_key == evidence.receipt_key
    });
    let result = if same {
        Ok(format!("{id} was recorded for this node and epoch under the root key"))
    } else {
        Err(format!("the node's signed record does not name {id} for this node and epoch"))
    };
    checks.settle(CHECK, result);
}

fn check_receipt(evidence: &TaskEvidence, envelopes: &[envelope::Verified], checks: &mut Checks) {
    let task = &evidence.task;
    let Some(bytes) = &evidence.receipt else {
        let why = if task.ended() { "the control plane ended it without one" } else { "the task has not ended" };
        return checks.add("receipt", Verdict::Failed, format!("there is none, so nothing proves what the node did: {why}"));
    };
    let Some(task_type) = TaskType::parse(&task.task_type) else {
        let detail = format!("this program does not know the task type `{}`; use a newer one", task.task_type);
        return checks.add("receipt", Verdict::Failed, detail);
    };
    let digests: Vec<Digest> = envelopes.iter().map(|verified| verified.digest().clone()).collect();
    let expect = receipt::Expectation {
        key: &evidence.receipt_key,
        cluster_id: evidence.cluster_id,
        node_id: task.node_id,
        node_epoch: task.node_epoch,
        task_id: task.id,
        task_type,
        envelope_digests: &digests,
    };
    let verified = match receipt::verify(bytes, &expect) {
        Ok(verified) => verified,
        Err(error) => return checks.add("receipt", Verdict::Failed, format!("{}: {}", error.code(), chain(&error))),
    };
    let detail =
        format!("{} signed by {}, answers {}", verified.digest(), evidence.receipt_key.id(), verified.payload().task_digest);
    checks.add("receipt", Verdict::Passed, detail);
    checks.settle("outcome", outcome_agrees(evidence, &verified));
    checks.settle("time", time_agrees(&verified, envelopes));
}

/// Checks that the control plane reports the same outcome that the node signed.
fn outcome_agrees(evidence: &TaskEvidence, verified: &receipt::Verified) -> Result<String, String> {
    let (task, signed) = (&evidence.task, verified.payload());
    let output: Option<serde_json::Value> = match &signed.output {
        Some(output) => Some(serde_json::from_str(output.get()).map_err(|error| error.to_string())?),
        None => None,
    };
    let differs: BTreeSet<&str> = [
        ("state", task.state != TaskState::from(signed.outcome)),
        ("code", task.code != signed.code),
        ("message", task.message != signed.message),
        ("output", task.output != output),
        ("phases", task.phases != signed.phases),
        ("receipt digest", task.receipt_digest.as_ref() != Some(verified.digest())),
    ]
    .into_iter()
    .filter_map(|(field, differs)| differs.then_some(field))
    .collect();
    if differs.is_empty() {
        Ok(format!("{} ({}), as the node signed it", signed.outcome.as_str(), signed.code))
    } else {
        let fields: Vec<&str> = differs.into_iter().collect();
        Err(format!("the control plane tells another {} than the node signed", fields.join(", ")))
    }
}

/// Checks that the node started the task within the window of the envelope that it answers.
fn time_agrees(verified: &receipt::Verified, envelopes: &[envelope::Verified]) -> Result<String, String> {
    let signed = verified.payload();
    let answered = envelopes.iter().find(|envelope| *envelope.digest() == signed.task_digest);
    let window = answered.ok_or("the receipt answers none of the envelopes")?.payload();
    let Some(started) = signed.started_at else {
        return if signed.outcome == receipt::Outcome::Succeeded {
            Err("it succeeded without ever having started".to_owned())
        } else {
            Ok("it never started".to_owned())
        };
    };
    if signed.finished_at < started {
        return Err(format!("it finished at {}, before it started at {started}", signed.finished_at));
    }
    if started < window.issued_at.minus(CLOCK_SKEW) || started > window.start_by.plus(CLOCK_SKEW) {
        return Err(format!("it started at {started}, outside its window from {} to {}", window.issued_at, window.start_by));
    }
    Ok(format!("started {started}, within its window"))
}

/// Returns an error with all its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
