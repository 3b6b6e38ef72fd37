//! Target `envelope`: only what the control plane signed for this node and for this time becomes a task.

use gpuaas_contract::Digest;
use gpuaas_contract::dsse;
use gpuaas_contract::envelope::{
    CLOCK_SKEW, Expectation, MAX_BYTES, MAX_RUN, MAX_START_WINDOW, PAYLOAD_TYPE, Payload, Refusal, RefusalCode, Verified, verify,
};
use gpuaas_contract::id::{AllocationId, ClusterId, CorrelationId, NodeId};
use gpuaas_contract::slice::Holder;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::VerifierSet;

use crate::document::{DocumentKind, WAYS};
use crate::fixture::{CLUSTER, EPOCH, HIGHEST_SEEN, KEYS, NODE, NOW, SET, TASK};
use crate::input::Input;

/// Returns true if the envelope was accepted.
pub fn envelope(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = DocumentKind {
        payload_type: PAYLOAD_TYPE,
        limit: MAX_BYTES,
        trusted: &*SET,
        signers: &[&KEYS.active, &KEYS.grace],
        others: &[&KEYS.staged, &KEYS.retired, &KEYS.revoked, &KEYS.root, &KEYS.node, &KEYS.stranger],
    };
    let way = input.byte() % (WAYS + 1);
    if way == WAYS {
        return structured(&mut input);
    }
    let document = kind.make(way, &mut input);
    check(&document, &expectation(HIGHEST_SEEN))
}

fn expectation(highest_seen: Timestamp) -> Expectation<'static, VerifierSet> {
    Expectation { keys: &*SET, cluster_id: CLUSTER, node_id: NODE, node_epoch: EPOCH, now: NOW, highest_seen }
}

/// Verifies an envelope, and checks the outcome whether it is accepted or refused.
fn check(document: &[u8], expect: &Expectation<'_, VerifierSet>) -> bool {
    match verify(document, expect) {
        Ok(verified) => {
            check_taken(document, expect, &verified);
            true
        }
        Err(refusal) => {
            check_refused(document, &refusal);
            false
        }
    }
}

fn check_taken(document: &[u8], expect: &Expectation<'_, VerifierSet>, verified: &Verified) {
    let bytes = dsse::payload_unverified(document).expect("it was opened");
    assert_eq!(*verified.digest(), Digest::of(&bytes), "the receipt would name another order");
    let payload = verified.payload();
    assert_eq!((payload.cluster_id, payload.node_id, payload.node_epoch), (CLUSTER, NODE, EPOCH));
    assert_eq!(payload.task_type, verified.task().task_type().as_str());
    assert_eq!(time_refusal(payload, expect.now, expect.highest_seen), None, "taken at the wrong time");
    assert_eq!(Task::parse(verified.task().task_type(), verified.task().params_json().get()).as_ref(), Ok(verified.task()));

    // Signing the parsed payload again yields the same task, and from then on the same bytes.
    let again = payload.sign(&KEYS.active);
    let reread = verify(&again.envelope, expect).expect("what was taken is taken again");
    assert_eq!((reread.task(), reread.digest()), (verified.task(), &again.digest));
    assert_eq!(reread.payload().sign(&KEYS.active), again);

    // The same envelope is refused on any other node or cluster, and at a later time.
    let refusals = [
        (Expectation { cluster_id: ClusterId::from_bytes([9; 16]), ..*expect }, RefusalCode::ClusterMismatch),
        (Expectation { node_id: NodeId::from_bytes([9; 16]), ..*expect }, RefusalCode::NodeMismatch),
        (Expectation { node_epoch: EPOCH + 1, ..*expect }, RefusalCode::EpochMismatch),
        (Expectation { highest_seen: Timestamp(payload.start_by.plus(CLOCK_SKEW).0 + 1), ..*expect }, RefusalCode::TaskExpired),
    ];
    for (elsewhere, code) in refusals {
        assert_eq!(verify(document, &elsewhere).expect_err("taken").code, code);
    }
}

fn check_refused(document: &[u8], refusal: &Refusal) {
    let authentic = match refusal.code {
        RefusalCode::EnvelopeOversized
        | RefusalCode::EnvelopeMalformed
        | RefusalCode::KeyUnknown
        | RefusalCode::KeyNotUsable
        | RefusalCode::SignatureInvalid
        | RefusalCode::PayloadTypeWrong => false,
        RefusalCode::TaskMalformed
        | RefusalCode::TaskUnknownField
        | RefusalCode::TaskTypeUnknown
        | RefusalCode::ParamsInvalid
        | RefusalCode::LeaseMismatch
        | RefusalCode::ClusterMismatch
        | RefusalCode::NodeMismatch
        | RefusalCode::EpochMismatch
        | RefusalCode::WindowInvalid
        | RefusalCode::TaskEarly
        | RefusalCode::TaskExpired => true,
        RefusalCode::PolicyDenied | RefusalCode::JournalFull => panic!("{}: not for the verifier to say", refusal.code),
    };
    let Some(answerable) = &refusal.answerable else { return };
    assert!(authentic, "{}: a receipt would answer what nobody signed", refusal.code);
    let bytes = dsse::payload_unverified(document).expect("it was opened");
    let payload: Payload = serde_json::from_slice(&bytes).expect("what is answered was understood");
    assert_eq!((payload.cluster_id, payload.node_id, payload.node_epoch), (CLUSTER, NODE, EPOCH));
    assert_eq!((answerable.task_id, &answerable.task_type), (payload.task_id, &payload.task_type));
    assert_eq!(answerable.digest, Digest::of(&bytes));
}

/// An independent implementation of the time rules, with integers that cannot overflow.
fn time_refusal(payload: &Payload, now: Timestamp, highest_seen: Timestamp) -> Option<RefusalCode> {
    let wide = |at: Timestamp| i128::from(at.0);
    let micros = |duration: std::time::Duration| i128::try_from(duration.as_micros()).expect("short");
    let now = wide(now).max(wide(highest_seen));
    let (issued, start_by, deadline) = (wide(payload.issued_at), wide(payload.start_by), wide(payload.deadline));
    // Sums saturate at the largest timestamp.
    let sum = |at: i128, by| (at + micros(by)).min(i64::MAX.into());
    if start_by < issued || start_by > sum(issued, MAX_START_WINDOW) || deadline < start_by || deadline > sum(start_by, MAX_RUN) {
        Some(RefusalCode::WindowInvalid)
    } else if issued > sum(now, CLOCK_SKEW) {
        Some(RefusalCode::TaskEarly)
    } else if now > sum(start_by, CLOCK_SKEW) {
        Some(RefusalCode::TaskExpired)
    } else {
        None
    }
}

/// Builds an envelope from chosen fields, so that the expected result is known.
fn structured(input: &mut Input<'_>) -> bool {
    let flags = input.byte();
    let wrong = |bit: u8| flags & (1 << bit) != 0;
    // Mostly near the limits, sometimes far from them.
    let mut time = |base: i64| {
        let scale = input.choose([1, 1_000, 1_000_000, 60_000_000, 1 << 32]);
        Timestamp(base.saturating_add(i64::from(input.i32()).saturating_mul(scale)))
    };
    let issued_at = time(NOW.0);
    let start_by = time(issued_at.0);
    let deadline = time(start_by.0);
    let highest_seen = time(HIGHEST_SEEN.0);
    let kind = input.choose(TaskType::ALL);
    let text = input.rest();
    let Ok(params) = serde_json::from_slice::<Box<serde_json::value::RawValue>>(text) else { return false };
    let holder = Task::parse(kind, params.get()).ok().and_then(|task| task.holder());
    let stranger = Holder { allocation_id: AllocationId::from_bytes([4; 16]), lease_epoch: u64::MAX };
    let named = if wrong(4) { Some(stranger) } else { holder };
    let payload = Payload {
        cluster_id: if wrong(0) { ClusterId::from_bytes([9; 16]) } else { CLUSTER },
        node_id: if wrong(1) { NodeId::from_bytes([9; 16]) } else { NODE },
        node_epoch: if wrong(2) { EPOCH - 1 } else { EPOCH },
        task_id: TASK,
        task_type: if wrong(3) { format!("{kind}x") } else { kind.as_str().to_owned() },
        params,
        allocation_id: named.map(|holder| holder.allocation_id),
        lease_epoch: named.map(|holder| holder.lease_epoch),
        issued_at,
        start_by,
        deadline,
        correlation_id: CorrelationId::try_from("corr-fuzz".to_owned()).expect("plain"),
    };
    let signed = payload.sign(if wrong(5) { &KEYS.grace } else { &KEYS.active });
    let expect = expectation(highest_seen);
    let taken = check(&signed.envelope, &expect);
    if signed.envelope.len() <= MAX_BYTES {
        let good_task = !wrong(3) && Task::parse(kind, payload.params.get()).is_ok() && (holder.is_none() || holder == named);
        let good = good_task && flags & 0b111 == 0 && time_refusal(&payload, NOW, highest_seen).is_none();
        assert_eq!(taken, good, "{payload:?}");
    }
    taken
}
