//! All ways to forge or misattribute a result, and the code each is rejected with.

use gpuaas_contract::Digest;
use gpuaas_contract::receipt::ReceiptError;

use crate::fixture::{Holder, OTHER_NODE, OTHER_TASK, one_bit_flips};
use crate::receipt_cases::{believed, disbelieved, judge, record, success};

/// Checks that the case called `name` is rejected with exactly `code`, by its declaration and by the verifier.
fn is_disbelieved(name: &str, code: &str) {
    let cases = disbelieved();
    let case = cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case called {name}"));
    assert_eq!(case.disbelief, Some(code), "the case list says otherwise");
    let disbelief = judge(&case.document(), &record()).expect_err("a receipt that must not be believed was");
    assert_eq!(disbelief.code(), code, "{}: {disbelief}", case.why);
}

#[test]
fn what_is_in_order_is_believed() {
    for case in believed() {
        let verified = judge(&case.document(), &record()).unwrap_or_else(|disbelief| panic!("{}: {disbelief}", case.name));
        assert_eq!(*verified.digest(), Digest::of(case.payload.as_bytes()), "{}", case.name);
    }
}

#[test]
fn every_disbelieved_case_is_disbelieved_with_its_code() {
    for case in disbelieved() {
        let code = judge(&case.document(), &record()).err().map(|disbelief| disbelief.code());
        assert_eq!(code, case.disbelief, "{}: {}", case.name, case.why);
    }
}

#[test]
fn every_flipped_bit_of_a_receipt_is_disbelieved() {
    let signed = success().sign(&Holder::Node.key());
    assert!(judge(&signed.receipt, &record()).is_ok(), "the unforged receipt must pass, or this test proves nothing");
    for (bit, forged) in one_bit_flips(&signed.receipt) {
        let disbelief = judge(&forged, &record()).expect_err(&format!("bit {bit} was not noticed"));
        assert!(matches!(disbelief, ReceiptError::Open(_)), "bit {bit} got past the signature: {disbelief:?}");
    }
}

#[test]
fn a_good_receipt_cannot_be_used_for_another_task_node_or_order() {
    let good = success().sign(&Holder::Node.key()).receipt;
    let for_other_task = crate::receipt_cases::Record { task_id: OTHER_TASK, ..record() };
    let for_other_node = crate::receipt_cases::Record { node_id: OTHER_NODE, ..record() };
    let for_other_order = crate::receipt_cases::Record { envelope_digests: vec![Digest::of(b"a later order")], ..record() };
    let for_no_order = crate::receipt_cases::Record { envelope_digests: vec![], ..record() };
    for (record, code) in [
        (for_other_task, "receipt_other_task"),
        (for_other_node, "receipt_other_node"),
        (for_other_order, "receipt_other_envelope"),
        (for_no_order, "receipt_other_envelope"),
    ] {
        assert_eq!(judge(&good, &record).err().map(|disbelief| disbelief.code()), Some(code));
    }
}

#[test]
fn a_receipt_for_any_of_the_signed_envelopes_is_believed() {
    // A task that was offered twice has two envelopes; the node may answer either.
    let mut twice = record();
    twice.envelope_digests.insert(0, Digest::of(b"the first order"));
    assert!(judge(&success().sign(&Holder::Node.key()).receipt, &twice).is_ok());
}

macro_rules! disbeliefs {
    ($($test:ident: $case:literal => $code:literal;)*) => {$(
        #[test]
        fn $test() {
            is_disbelieved($case, $code);
        }
    )*};
}

disbeliefs! {
    a_receipt_of_another_node_is_disbelieved: "other_node" => "receipt_other_node";
    a_receipt_of_another_cluster_is_disbelieved: "other_cluster" => "receipt_other_cluster";
    a_receipt_of_an_old_epoch_is_disbelieved: "old_epoch" => "receipt_other_epoch";
    a_receipt_of_another_task_is_disbelieved: "other_task" => "receipt_other_task";
    a_receipt_under_another_task_type_is_disbelieved: "other_task_type" => "receipt_other_task";
    a_receipt_for_an_order_never_signed_is_disbelieved: "other_envelope" => "receipt_other_envelope";
    an_output_that_does_not_fit_is_disbelieved: "output_of_another_type" => "receipt_output_invalid";
    an_output_with_an_unknown_field_is_disbelieved: "output_with_unknown_field" => "receipt_output_invalid";
    an_output_without_success_is_disbelieved: "output_without_success" => "receipt_output_invalid";
    a_proof_from_a_task_that_owes_none_is_disbelieved: "proof_from_a_ping" => "receipt_proof_invalid";
    a_success_without_output_is_disbelieved: "success_without_output" => "receipt_output_invalid";
    a_receipt_without_an_attempt_is_disbelieved: "no_attempt" => "receipt_inconsistent";
    a_receipt_without_a_number_is_disbelieved: "no_sequence" => "receipt_inconsistent";
    a_second_receipt_without_its_first_is_disbelieved: "chain_without_link" => "receipt_inconsistent";
    a_first_receipt_with_a_predecessor_is_disbelieved: "first_with_link" => "receipt_inconsistent";
    a_receipt_that_ends_before_it_starts_is_disbelieved: "ends_before_start" => "receipt_inconsistent";
    a_refusal_that_started_is_disbelieved: "refused_but_started" => "receipt_inconsistent";
    a_success_that_never_started_is_disbelieved: "success_without_start" => "receipt_inconsistent";
    a_failure_called_ok_is_disbelieved: "failure_called_ok" => "receipt_inconsistent";
    a_receipt_with_an_endless_message_is_disbelieved: "long_message" => "receipt_inconsistent";
    an_unknown_field_of_a_receipt_is_disbelieved: "unknown_field" => "receipt_unknown_field";
    an_oversized_receipt_is_disbelieved: "oversized" => "receipt_oversized";
    a_receipt_that_is_not_json_is_disbelieved: "not_json" => "receipt_malformed";
    a_receipt_without_an_outcome_is_disbelieved: "missing_outcome" => "receipt_malformed";
    a_receipt_with_two_signatures_is_disbelieved: "two_signatures" => "receipt_malformed";
    a_receipt_signed_by_another_node_is_disbelieved: "other_nodes_key" => "receipt_key_unknown";
    a_receipt_signed_by_the_root_key_is_disbelieved: "root_key" => "receipt_key_unknown";
    a_receipt_under_a_borrowed_key_id_is_disbelieved: "borrowed_key_id" => "receipt_signature_invalid";
    a_document_signed_for_another_purpose_is_disbelieved: "wrong_payload_type" => "receipt_payload_type_wrong";
}
