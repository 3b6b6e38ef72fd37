//! All ways to forge or misdirect a task, and the code each is refused with.

use gpuaas_contract::envelope::RefusalCode;

use crate::envelope_cases::{accepted, judge, node_state, ping, refused, trusted_keys};
use crate::fixture::{Holder, one_bit_flips};
use gpuaas_contract::verifier_set::KeyState;

/// Checks that the case called `name` is refused with exactly `code`, by its declaration and by the verifier.
fn is_refused(name: &str, code: RefusalCode) {
    let cases = refused();
    let case = cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("there is no case called {name}"));
    assert_eq!(case.verdict, Err(code), "the case list says otherwise");
    let refusal = judge(&case.document(), case.node, &trusted_keys()).expect_err("an envelope that must be refused was accepted");
    assert_eq!(refusal.code, code, "{}: {}", case.why, refusal.message);
    assert!(!refusal.message.is_empty(), "a refusal without a sentence");
}

#[test]
fn what_is_in_order_is_accepted() {
    for case in accepted() {
        let verified =
            judge(&case.document(), case.node, &trusted_keys()).unwrap_or_else(|r| panic!("{}: {}", case.name, r.message));
        assert_eq!(*verified.digest(), gpuaas_contract::Digest::of(case.payload.as_bytes()), "{}", case.name);
    }
}

#[test]
fn every_refused_case_is_refused_with_its_code() {
    for case in refused() {
        let code = judge(&case.document(), case.node, &trusted_keys()).err().map(|refusal| refusal.code);
        assert_eq!(code, case.verdict.err(), "{}: {}", case.name, case.why);
    }
}

#[test]
fn every_flipped_bit_of_an_envelope_is_refused() {
    let signed = ping().sign(&Holder::Control(KeyState::Active).key());
    let keys = trusted_keys();
    assert!(judge(&signed.envelope, node_state(), &keys).is_ok(), "the unforged envelope must pass, or this test proves nothing");
    for (bit, forged) in one_bit_flips(&signed.envelope) {
        let refusal = judge(&forged, node_state(), &keys).expect_err(&format!("bit {bit} was not noticed"));
        assert!(
            matches!(
                refusal.code,
                RefusalCode::EnvelopeMalformed
                    | RefusalCode::KeyUnknown
                    | RefusalCode::KeyNotUsable
                    | RefusalCode::SignatureInvalid
            ),
            "bit {bit} got past the signature: {}",
            refusal.code
        );
        assert_eq!(refusal.answerable, None, "bit {bit}: a forged envelope must not get a signed answer");
    }
}

#[test]
fn only_authentic_tasks_for_this_node_get_a_signed_answer() {
    let answered = ["unknown_type", "unknown_params_field", "params_beyond_limit", "expired", "early", "window_too_long"];
    let unanswered = ["unknown_key", "borrowed_key_id", "wrong_payload_type", "other_cluster", "other_node", "old_epoch"];
    for case in refused() {
        let refusal = judge(&case.document(), case.node, &trusted_keys()).expect_err(case.name);
        if answered.contains(&case.name) {
            let answerable = refusal.answerable.unwrap_or_else(|| panic!("{} has nothing to answer with", case.name));
            assert_eq!(answerable.digest, gpuaas_contract::Digest::of(case.payload.as_bytes()), "{}", case.name);
        } else if unanswered.contains(&case.name) {
            assert_eq!(refusal.answerable, None, "{} must not get a signed answer", case.name);
        }
    }
}

#[test]
fn every_code_of_the_verifier_has_a_case() {
    let cases = refused();
    let has_case = |code| cases.iter().any(|case| case.verdict == Err(code));
    for code in [
        RefusalCode::EnvelopeOversized,
        RefusalCode::EnvelopeMalformed,
        RefusalCode::KeyUnknown,
        RefusalCode::KeyNotUsable,
        RefusalCode::SignatureInvalid,
        RefusalCode::PayloadTypeWrong,
        RefusalCode::TaskMalformed,
        RefusalCode::TaskUnknownField,
        RefusalCode::TaskTypeUnknown,
        RefusalCode::ParamsInvalid,
        RefusalCode::LeaseMismatch,
        RefusalCode::ClusterMismatch,
        RefusalCode::NodeMismatch,
        RefusalCode::EpochMismatch,
        RefusalCode::WindowInvalid,
        RefusalCode::TaskEarly,
        RefusalCode::TaskExpired,
        RefusalCode::PolicyDenied,
        RefusalCode::JournalFull,
    ] {
        // Exhaustive, so that the compiler rejects a new code that is not listed here.
        let given_by_the_verifier = match code {
            RefusalCode::PolicyDenied | RefusalCode::JournalFull => false,
            RefusalCode::EnvelopeOversized
            | RefusalCode::EnvelopeMalformed
            | RefusalCode::KeyUnknown
            | RefusalCode::KeyNotUsable
            | RefusalCode::SignatureInvalid
            | RefusalCode::PayloadTypeWrong
            | RefusalCode::TaskMalformed
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
        };
        assert_eq!(has_case(code), given_by_the_verifier, "add a case for {code} to envelope_cases.rs");
    }
}

macro_rules! refusals {
    ($($test:ident: $case:literal => $code:ident;)*) => {$(
        #[test]
        fn $test() {
            is_refused($case, RefusalCode::$code);
        }
    )*};
}

refusals! {
    a_task_for_another_node_is_refused: "other_node" => NodeMismatch;
    a_task_of_another_cluster_is_refused: "other_cluster" => ClusterMismatch;
    a_task_for_an_old_epoch_is_refused: "old_epoch" => EpochMismatch;
    a_task_for_a_later_epoch_is_refused: "later_epoch" => EpochMismatch;
    a_task_on_slots_without_a_lease_is_refused: "lease_missing" => LeaseMismatch;
    a_task_of_another_lease_is_refused: "lease_of_another_number" => LeaseMismatch;
    an_expired_task_is_refused: "expired" => TaskExpired;
    a_task_from_the_future_is_refused: "early" => TaskEarly;
    a_clock_set_back_does_not_revive_an_old_task: "clock_set_back" => TaskExpired;
    a_window_longer_than_fifteen_minutes_is_refused: "window_too_long" => WindowInvalid;
    a_deadline_more_than_a_day_away_is_refused: "deadline_too_far" => WindowInvalid;
    a_window_turned_round_is_refused: "window_turned_round" => WindowInvalid;
    a_deadline_before_the_latest_start_is_refused: "deadline_before_start" => WindowInvalid;
    times_at_the_end_of_the_range_are_refused: "end_of_time" => TaskEarly;
    an_unknown_task_type_is_refused: "unknown_type" => TaskTypeUnknown;
    an_unknown_field_of_the_payload_is_refused: "unknown_payload_field" => TaskUnknownField;
    an_unknown_field_of_the_params_is_refused: "unknown_params_field" => TaskUnknownField;
    params_beyond_their_limits_are_refused: "params_beyond_limit" => ParamsInvalid;
    params_of_the_wrong_type_are_refused: "params_wrong_type" => ParamsInvalid;
    a_payload_without_a_security_field_is_refused: "missing_epoch" => TaskMalformed;
    a_payload_that_names_two_nodes_is_refused: "duplicate_node" => TaskMalformed;
    an_oversized_envelope_is_refused: "oversized" => EnvelopeOversized;
    an_envelope_with_two_signatures_is_refused: "two_signatures" => EnvelopeMalformed;
    an_envelope_without_a_signature_is_refused: "no_signature" => EnvelopeMalformed;
    a_document_signed_for_another_purpose_is_refused: "wrong_payload_type" => PayloadTypeWrong;
    a_payload_type_changed_after_signing_is_refused: "payload_type_changed_after_signing" => SignatureInvalid;
    a_stranger_under_a_borrowed_key_id_is_refused: "borrowed_key_id" => SignatureInvalid;
    a_staged_key_is_refused: "staged_key" => KeyNotUsable;
    a_retired_key_is_refused: "retired_key" => KeyNotUsable;
    a_revoked_key_is_refused: "revoked_key" => KeyNotUsable;
    an_unknown_key_is_refused: "unknown_key" => KeyUnknown;
    the_root_key_cannot_sign_tasks: "root_key" => KeyUnknown;
    the_nodes_own_key_cannot_sign_tasks: "node_key" => KeyUnknown;
}
