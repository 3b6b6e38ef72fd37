//! Verifier sets that must be accepted, sets that must be rejected, and which set may succeed which.

use gpuaas_contract::key::KeyId;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState, MAX_BYTES, MAX_KEYS, PAYLOAD_TYPE};
use gpuaas_contract::{envelope, id::ClusterId, key::SigningKey};

use crate::envelope_cases::{document, signed_text};
use crate::fixture::{CLUSTER, Holder, OTHER_CLUSTER, verifier_set_document};

/// A document and the expected verdict.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) payload: String,
    pub(crate) document: String,
    pub(crate) append_spaces: usize,
    /// The stable code of the rejection; `None` if the set is accepted.
    pub(crate) refusal: Option<&'static str>,
}

impl Case {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        document(&self.document, self.append_spaces)
    }
}

/// The current set, a set that arrives, and the code if the second must not succeed the first.
pub(crate) struct Succession {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) held: Document,
    pub(crate) offered: Document,
    pub(crate) refusal: Option<&'static str>,
}

/// The cluster that the node belongs to.
pub(crate) const CLUSTER_OF_THE_NODE: ClusterId = CLUSTER;

fn changed(name: &'static str, why: &'static str, refusal: Option<&'static str>, change: impl FnOnce(&mut Document)) -> Case {
    let mut set = verifier_set_document();
    change(&mut set);
    spelled(name, why, refusal, serde_json::to_string(&set).expect("a set is JSON"))
}

fn spelled(name: &'static str, why: &'static str, refusal: Option<&'static str>, payload: String) -> Case {
    let document = signed_text(&payload, PAYLOAD_TYPE, Holder::Root);
    Case { name, why, payload, document, append_spaces: 0, refusal }
}

fn numbered_entry(number: u8) -> Entry {
    let public_key = SigningKey::from_seed(&[number; 32]).verifying_key();
    Entry { key_id: public_key.id(), public_key, state: KeyState::Active }
}

fn many(count: u8) -> Vec<Entry> {
    (1..=count).map(numbered_entry).collect()
}

pub(crate) fn taken() -> Vec<Case> {
    vec![
        changed("one_key_in_each_state", "the set that every envelope case uses", None, |_| ()),
        changed("no_keys", "a set may be empty: then no task is believed", None, |d| d.keys = vec![]),
        changed("most_keys", "exactly 64 keys", None, |d| d.keys = many(64)),
    ]
}

pub(crate) fn refused() -> Vec<Case> {
    assert_eq!(MAX_KEYS, 64, "the cases below are built around the limit");
    let not_authentic = Some("verifier_set_not_authentic");
    let malformed = Some("verifier_set_malformed");
    let set_text = || serde_json::to_string(&verifier_set_document()).expect("a set is JSON");
    let sealed = |name, why, payload_type: &str, holder| Case {
        name,
        why,
        payload: set_text(),
        document: signed_text(&set_text(), payload_type, holder),
        append_spaces: 0,
        refusal: not_authentic,
    };
    vec![
        {
            let mut case = changed("oversized", "one byte more than 64 KiB", not_authentic, |_| ());
            case.append_spaces = MAX_BYTES + 1 - case.document.len();
            case
        },
        sealed("stranger", "not signed by the pinned root key", PAYLOAD_TYPE, Holder::Stranger),
        sealed("own_member", "a key of the set cannot sign the set", PAYLOAD_TYPE, Holder::Control(KeyState::Active)),
        sealed("wrong_payload_type", "signed by the root key for another purpose", envelope::PAYLOAD_TYPE, Holder::Root),
        {
            let mut case = sealed("borrowed_key_id", "a stranger under the name of the root key", PAYLOAD_TYPE, Holder::Stranger);
            let (stranger, root) = (Holder::Stranger.key().verifying_key().id(), Holder::Root.key().verifying_key().id());
            case.document = case.document.replace(stranger.as_str(), root.as_str());
            case
        },
        spelled("payload_not_json", "signed, but no JSON", malformed, "keys".to_owned()),
        spelled(
            "unknown_field",
            "a field that this version does not know",
            malformed,
            set_text().replacen('{', r#"{"note":"x","#, 1),
        ),
        spelled("unknown_state", "a state that does not exist", malformed, set_text().replacen("staged", "trusted", 1)),
        spelled("missing_version", "no field has a default", malformed, set_text().replacen("\"version\":7,", "", 1)),
        changed("false_key_id", "a key under a name that does not follow from it", malformed, |d| {
            d.keys[0].key_id = KeyId::from("key_00000000000000000000000000000000".to_owned());
        }),
        changed("key_listed_twice", "the same key as staged and as active", malformed, |d| {
            let mut again = d.keys[0].clone();
            again.state = KeyState::Active;
            d.keys.push(again);
        }),
        changed("too_many_keys", "65 keys", malformed, |d| d.keys = many(65)),
        changed("other_cluster", "signed for another cluster", Some("verifier_set_other_cluster"), |d| {
            d.cluster_id = OTHER_CLUSTER;
        }),
    ]
}

pub(crate) fn successions() -> Vec<Succession> {
    let version = |version| Document { version, ..verifier_set_document() };
    let revoked = {
        let mut set = verifier_set_document();
        set.keys[1].state = KeyState::Revoked;
        set
    };
    vec![
        Succession {
            name: "newer",
            why: "a newer version replaces the one in hand",
            held: version(7),
            offered: version(8),
            refusal: None,
        },
        Succession {
            name: "skipping",
            why: "versions may be skipped by a node that was away",
            held: version(7),
            offered: version(12),
            refusal: None,
        },
        Succession {
            name: "same",
            why: "the same document again changes nothing",
            held: version(7),
            offered: version(7),
            refusal: None,
        },
        Succession {
            name: "older",
            why: "an old document is replayed, perhaps to revive a revoked key",
            held: version(7),
            offered: version(6),
            refusal: Some("verifier_set_rollback"),
        },
        Succession {
            name: "same_version_other_keys",
            why: "two truths under one version: the root key may be in wrong hands",
            held: version(7),
            offered: revoked,
            refusal: Some("verifier_set_equivocation"),
        },
    ]
}
