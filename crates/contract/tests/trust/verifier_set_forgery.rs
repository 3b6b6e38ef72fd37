//! All ways to smuggle a key into the verifier set, and the code each is refused with.

use gpuaas_contract::verifier_set::{SetError, VerifierSet};

use crate::fixture::{Holder, one_bit_flips, verifier_set_document};
use crate::verifier_set_cases::{CLUSTER_OF_THE_NODE, refused, successions, taken};

fn open(document: &[u8]) -> Result<VerifierSet, SetError> {
    VerifierSet::open(document, &Holder::Root.key().verifying_key(), CLUSTER_OF_THE_NODE)
}

#[test]
fn what_is_in_order_is_taken() {
    for case in taken() {
        open(&case.bytes()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn every_refused_set_is_refused_with_its_code() {
    for case in refused() {
        let code = open(&case.bytes()).err().map(|error| error.code());
        assert_eq!(code, case.refusal, "{}: {}", case.name, case.why);
    }
}

#[test]
fn every_flipped_bit_of_a_verifier_set_is_refused() {
    let signed = verifier_set_document().sign(&Holder::Root.key());
    assert!(open(&signed).is_ok(), "the unforged set must pass, or this test proves nothing");
    for (bit, forged) in one_bit_flips(&signed) {
        let error = open(&forged).expect_err(&format!("bit {bit} was not noticed"));
        assert!(matches!(error, SetError::Open(_)), "bit {bit} got past the signature: {error:?}");
    }
}

#[test]
fn only_a_newer_or_the_same_set_follows_the_one_in_hand() {
    for case in successions() {
        let root = Holder::Root.key();
        let held = open(&case.held.sign(&root)).expect("the set in hand opens");
        let offered = open(&case.offered.sign(&root)).expect("the offered set opens");
        assert_eq!(held.succeed(offered).err().map(|error| error.code()), case.refusal, "{}: {}", case.name, case.why);
    }
}
