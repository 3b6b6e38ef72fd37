//! Target `receipt`: a task ends only with a receipt that its node signed, for exactly the envelope that was sent.

use std::sync::LazyLock;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::CleanupProof;
use gpuaas_contract::dsse;
use gpuaas_contract::id::{AllocationId, ClusterId, NodeId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::receipt::{
    Expectation, MAX_BYTES, MAX_MESSAGE, MAX_NAME, MAX_OUTPUT_BYTES, MAX_PHASES, Outcome, PAYLOAD_TYPE, Payload, PhaseTiming,
    ReceiptError, Verified, verify,
};
use gpuaas_contract::task::{Output, TaskType};
use gpuaas_contract::time::Timestamp;

use crate::document::{DocumentKind, WAYS};
use crate::fixture::{CLUSTER, EPOCH, INSTANCE, KEYS, NODE, NOW, TASK};
use crate::input::Input;

static KEY: LazyLock<VerifyingKey> = LazyLock::new(|| KEYS.node.verifying_key());

/// Digests of the golden vectors' envelope, and of one that was signed before it.
static ENVELOPES: LazyLock<[Digest; 2]> = LazyLock::new(|| {
    let golden = "sha256:0c53106eec7a3e906b7b708364bb5195b9496aedb6cedf101dcdacd5e30f1672".to_owned();
    [Digest::of(b"an earlier envelope"), Digest::try_from(golden).expect("a digest")]
});

/// Returns what the control plane knows about the task.
pub(crate) fn expectation(task_type: TaskType) -> Expectation<'static> {
    Expectation {
        key: &KEY,
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        task_id: TASK,
        task_type,
        envelope_digests: ENVELOPES.as_slice(),
    }
}

/// Returns a receipt that is accepted if its output is valid for the task type.
pub(crate) fn success(task_type: TaskType, output: Box<serde_json::value::RawValue>) -> Payload {
    Payload {
        cluster_id: CLUSTER,
        node_id: NODE,
        node_epoch: EPOCH,
        task_id: TASK,
        task_type: task_type.as_str().to_owned(),
        task_digest: ENVELOPES[0].clone(),
        agent_instance_id: INSTANCE,
        boot_id: "boot".to_owned(),
        attempt: 1,
        started_at: Some(NOW),
        finished_at: NOW,
        outcome: Outcome::Succeeded,
        code: "ok".to_owned(),
        message: String::new(),
        output: Some(output),
        phases: Vec::new(),
        cleanup_proof: (task_type == TaskType::SliceVmRelease).then(proof),
        sequence: 1,
        previous_receipt: None,
    }
}

/// Returns a cleanup proof that covers no devices.
fn proof() -> Box<serde_json::value::RawValue> {
    let proof = CleanupProof::nothing(AllocationId::from_bytes([7; 16]), 1, &[]);
    serde_json::value::to_raw_value(&proof).expect("a proof serializes")
}

/// Returns true if the receipt was accepted.
pub fn receipt(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = DocumentKind {
        payload_type: PAYLOAD_TYPE,
        limit: MAX_BYTES,
        trusted: &*KEY,
        signers: &[&KEYS.node],
        others: &[&KEYS.root, &KEYS.active, &KEYS.stranger],
    };
    let way = input.byte() % (WAYS + 1);
    let task_type = input.choose(TaskType::ALL);
    if way == WAYS {
        return structured(&mut input, task_type);
    }
    let document = kind.make(way, &mut input);
    check(&document, &expectation(task_type))
}

fn check(document: &[u8], expect: &Expectation<'_>) -> bool {
    match verify(document, expect) {
        Ok(verified) => {
            check_believed(document, expect, &verified);
            true
        }
        Err(disbelief) => {
            assert!(!disbelief.code().is_empty());
            false
        }
    }
}

fn check_believed(document: &[u8], expect: &Expectation<'_>, verified: &Verified) {
    let bytes = dsse::payload_unverified(document).expect("it was opened");
    assert_eq!(*verified.digest(), Digest::of(&bytes), "the chain would break here");
    let reported = verified.payload();
    assert_eq!((reported.cluster_id, reported.node_id, reported.node_epoch, reported.task_id), (CLUSTER, NODE, EPOCH, TASK));
    assert_eq!(reported.task_type, expect.task_type.as_str());
    assert!(ENVELOPES.contains(&reported.task_digest));
    assert_eq!(contradiction(reported), None, "believed: {reported:?}");

    // Signing the parsed payload again yields the same receipt, and from then on the same bytes.
    let again = reported.sign(&KEYS.node);
    match verify(&again.receipt, expect) {
        Ok(reread) => {
            assert_eq!(*reread.digest(), again.digest);
            assert_eq!(reread.payload().sign(&KEYS.node), again);
        }
        // Our encoding of numbers and strings may be longer than the node's.
        Err(ReceiptError::Open(dsse::OpenError::Oversized { size, limit })) => assert!(size > limit),
        Err(disbelief) => panic!("what was believed is not believed again: {disbelief}"),
    }

    // The same receipt is not valid for any other task.
    let stranger = KEYS.stranger.verifying_key();
    let other_digest = [Digest::of(b"another envelope")];
    let other_kind = TaskType::ALL.into_iter().find(|kind| *kind != expect.task_type).expect("there are several");
    let elsewhere = [
        (Expectation { key: &stranger, ..*expect }, "receipt_key_unknown"),
        (Expectation { cluster_id: ClusterId::from_bytes([9; 16]), ..*expect }, "receipt_other_cluster"),
        (Expectation { node_id: NodeId::from_bytes([9; 16]), ..*expect }, "receipt_other_node"),
        (Expectation { node_epoch: EPOCH - 1, ..*expect }, "receipt_other_epoch"),
        (Expectation { task_id: TaskId::from_bytes([9; 16]), ..*expect }, "receipt_other_task"),
        (Expectation { task_type: other_kind, ..*expect }, "receipt_other_task"),
        (Expectation { envelope_digests: &other_digest, ..*expect }, "receipt_other_envelope"),
    ];
    for (expect, code) in elsewhere {
        assert_eq!(verify(document, &expect).expect_err("believed").code(), code);
    }
}

/// An independent implementation of the consistency rules of a receipt.
fn contradiction(reported: &Payload) -> Option<&'static str> {
    let succeeded = reported.outcome == Outcome::Succeeded;
    let output_fits = match (&reported.output, TaskType::parse(&reported.task_type)) {
        (Some(output), Some(kind)) => Output::parse(kind, output.get()).is_ok() && output.get().len() <= MAX_OUTPUT_BYTES,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let kind = TaskType::parse(&reported.task_type);
    // A null counts as an absent value.
    let proof_fits = match reported.cleanup_proof.as_ref().filter(|proof| proof.get() != "null") {
        Some(proof) => {
            kind.is_some_and(TaskType::may_prove_cleanup)
                && proof.get().len() <= CleanupProof::MAX_BYTES
                && serde_json::from_str::<CleanupProof>(proof.get()).is_ok()
        }
        None => kind != Some(TaskType::SliceVmRelease) || !succeeded,
    };
    let rules = [
        (proof_fits, "who cleans up proves it, and nobody else"),
        (succeeded == reported.output.is_some(), "a success has an output and nothing else does"),
        (output_fits, "the output is one of its kind"),
        (succeeded == (reported.code == "ok"), "exactly a success is ok"),
        (!succeeded || reported.started_at.is_some(), "what succeeded was started"),
        (reported.outcome != Outcome::Refused || reported.started_at.is_none(), "what was refused never started"),
        (reported.started_at.is_none_or(|started| started <= reported.finished_at), "first the start, then the end"),
        (reported.attempt > 0 && reported.sequence > 0, "counted from one"),
        ((reported.sequence == 1) == reported.previous_receipt.is_none(), "the first receipt and no other has none before it"),
        ((1..=MAX_NAME).contains(&reported.code.len()) && reported.boot_id.len() <= MAX_NAME, "names are short"),
        (reported.message.len() <= MAX_MESSAGE, "messages are short"),
        (reported.phases.len() <= MAX_PHASES, "phases are few"),
        (reported.phases.iter().all(|phase| phase.phase.len() <= MAX_NAME), "names of phases are short"),
    ];
    rules.into_iter().find(|(holds, _)| !holds).map(|(_, rule)| rule)
}

/// Builds a receipt from chosen fields, so that the expected result is known.
fn structured(input: &mut Input<'_>, task_type: TaskType) -> bool {
    let names = ["", "ok", "failed", "boot", "a name of exactly sixty-four bytes, which is the longest there is"];
    let long = "x".repeat(MAX_NAME + 1);
    let name = |input: &mut Input<'_>| {
        let name = input.choose([names[0], names[1], names[2], names[3], names[4], long.as_str()]);
        name.to_owned()
    };
    let outcomes = [Outcome::Succeeded, Outcome::Failed, Outcome::Cancelled, Outcome::Interrupted, Outcome::Refused];
    let outcome = input.choose(outcomes);
    let code = if input.byte().is_multiple_of(4) {
        name(input)
    } else {
        if outcome == Outcome::Succeeded { "ok" } else { "why" }.to_owned()
    };
    let boot_id = name(input);
    let flags = input.byte();
    let set = |bit: u8| flags & (1 << bit) != 0;
    let finished_at = Timestamp(NOW.0.saturating_add(i64::from(input.i32()) << (input.byte() % 32)));
    let phase = PhaseTiming { phase: name(input), milliseconds: input.u64() };
    let phases = input.choose([0, 1, 2, MAX_PHASES, MAX_PHASES + 1]);
    let message = input.choose([0, 1, MAX_MESSAGE, MAX_MESSAGE + 1]);
    let (attempt, sequence) = (u32::from(input.byte() % 3), u64::from(input.byte() % 3));
    let text = input.rest();
    let Ok(output) = serde_json::from_slice::<Box<serde_json::value::RawValue>>(text) else { return false };
    let payload = Payload {
        boot_id,
        attempt,
        started_at: set(0).then_some(NOW),
        finished_at,
        outcome,
        code,
        message: "x".repeat(message),
        output: set(1).then_some(output),
        phases: vec![phase; phases],
        cleanup_proof: set(2).then(proof),
        sequence,
        previous_receipt: set(3).then(|| Digest::of(b"the one before")),
        ..success(task_type, serde_json::value::RawValue::NULL.to_owned())
    };
    let signed = payload.sign(&KEYS.node);
    let believed = check(&signed.receipt, &expectation(task_type));
    if signed.receipt.len() <= MAX_BYTES {
        assert_eq!(believed, contradiction(&payload).is_none(), "{payload:?}");
    }
    believed
}
