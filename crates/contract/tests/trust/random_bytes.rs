//! No input makes a verifier panic: neither noise, nor a damaged document, nor noise under a valid signature.

use gpuaas_contract::verifier_set::{KeyState, VerifierSet};
use gpuaas_contract::{dsse, envelope, receipt, verifier_set};
use proptest::prelude::{Strategy, any, prop_assert, proptest};

use crate::fixture::{Holder, verifier_set_document};
use crate::verifier_set_cases::CLUSTER_OF_THE_NODE;
use crate::{envelope_cases, receipt_cases};

/// A damaged copy of `original`: a part of it is replaced by noise.
fn damaged(original: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = original.len();
    (0..length, 0..64_usize, proptest::collection::vec(any::<u8>(), 0..64)).prop_map(move |(start, removed, noise)| {
        let mut bytes = original.clone();
        bytes.splice(start..(start + removed).min(length), noise);
        bytes
    })
}

fn noise() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..2048)
}

fn judge_envelope(document: &[u8]) -> bool {
    envelope_cases::judge(document, envelope_cases::node_state(), &envelope_cases::trusted_keys()).is_ok()
}

fn open_set(document: &[u8]) -> bool {
    VerifierSet::open(document, &Holder::Root.key().verifying_key(), CLUSTER_OF_THE_NODE).is_ok()
}

fn believe_receipt(document: &[u8]) -> bool {
    receipt_cases::judge(document, &receipt_cases::record()).is_ok()
}

fn control() -> Holder {
    Holder::Control(KeyState::Active)
}

proptest! {
    #[test]
    fn noise_is_never_accepted_and_never_panics(bytes in noise()) {
        prop_assert!(!judge_envelope(&bytes));
        prop_assert!(!believe_receipt(&bytes));
        prop_assert!(!open_set(&bytes));
    }

    #[test]
    fn noise_under_a_good_signature_is_never_accepted_and_never_panics(bytes in noise()) {
        prop_assert!(!judge_envelope(&dsse::seal(envelope::PAYLOAD_TYPE, bytes.clone(), &control().key())));
        prop_assert!(!believe_receipt(&dsse::seal(receipt::PAYLOAD_TYPE, bytes.clone(), &Holder::Node.key())));
        prop_assert!(!open_set(&dsse::seal(verifier_set::PAYLOAD_TYPE, bytes, &Holder::Root.key())));
    }

    #[test]
    fn a_damaged_envelope_never_changes_what_is_run(bytes in damaged(envelope_cases::ping().sign(&control().key()).envelope)) {
        // The noise can equal the bytes it replaces, so acceptance is wrong only if the document differs.
        let original = envelope_cases::ping().sign(&control().key()).envelope;
        prop_assert!(bytes == original || !judge_envelope(&bytes));
    }

    #[test]
    fn a_damaged_receipt_is_never_believed(bytes in damaged(receipt_cases::success().sign(&Holder::Node.key()).receipt)) {
        let original = receipt_cases::success().sign(&Holder::Node.key()).receipt;
        prop_assert!(bytes == original || !believe_receipt(&bytes));
    }

    #[test]
    fn a_damaged_verifier_set_is_never_taken(bytes in damaged(verifier_set_document().sign(&Holder::Root.key()))) {
        let original = verifier_set_document().sign(&Holder::Root.key());
        prop_assert!(bytes == original || !open_set(&bytes));
    }

    #[test]
    fn a_damaged_payload_under_a_good_signature_never_panics(
        task in damaged(serde_json::to_vec(&envelope_cases::ping()).expect("a payload is JSON")),
        result in damaged(serde_json::to_vec(&receipt_cases::success()).expect("a payload is JSON")),
        set in damaged(serde_json::to_vec(&verifier_set_document()).expect("a set is JSON")),
    ) {
        // Whether a signed variant is accepted is up to the signer; what must hold is that the digest is that of the signed bytes.
        let document = dsse::seal(envelope::PAYLOAD_TYPE, task.clone(), &control().key());
        if let Ok(verified) = envelope_cases::judge(&document, envelope_cases::node_state(), &envelope_cases::trusted_keys()) {
            prop_assert!(*verified.digest() == gpuaas_contract::Digest::of(&task));
        }
        let document = dsse::seal(receipt::PAYLOAD_TYPE, result.clone(), &Holder::Node.key());
        if let Ok(verified) = receipt_cases::judge(&document, &receipt_cases::record()) {
            prop_assert!(*verified.digest() == gpuaas_contract::Digest::of(&result));
        }
        open_set(&dsse::seal(verifier_set::PAYLOAD_TYPE, set, &Holder::Root.key()));
    }
}
