//! Target `verifier_set`: only a set that the root key signed for this cluster takes effect, and never an older one than the current.

use gpuaas_contract::dsse::KeyLookup as _;
use gpuaas_contract::id::ClusterId;
use gpuaas_contract::key::{KeyId, SigningKey, VerifyingKey};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState, MAX_BYTES, MAX_KEYS, PAYLOAD_TYPE, SetError, VerifierSet};

use crate::document::{DocumentKind, WAYS};
use crate::fixture::{CLUSTER, KEYS, NOW, SET};
use crate::input::Input;

const STATES: [KeyState; 5] = [KeyState::Staged, KeyState::Active, KeyState::Grace, KeyState::Retired, KeyState::Revoked];

/// Returns true if the document was accepted.
pub fn verifier_set(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let root = KEYS.root.verifying_key();
    let kind = DocumentKind {
        payload_type: PAYLOAD_TYPE,
        limit: MAX_BYTES,
        trusted: &root,
        signers: &[&KEYS.root],
        others: &[&KEYS.active, &KEYS.node, &KEYS.stranger],
    };
    let way = input.byte() % (WAYS + 1);
    if way == WAYS {
        return structured(&mut input, &root);
    }
    let document = kind.make(way, &mut input);
    check(&document, &root)
}

fn check(document: &[u8], root: &VerifyingKey) -> bool {
    match VerifierSet::open(document, root, CLUSTER) {
        Ok(set) => {
            check_taken(document, root, &set);
            true
        }
        Err(refused) => {
            assert!(!matches!(refused, SetError::Rollback { .. } | SetError::Equivocation(_)), "nothing was in hand");
            assert!(!refused.code().is_empty());
            false
        }
    }
}

fn check_taken(document: &[u8], root: &VerifyingKey, set: &VerifierSet) {
    let reported = set.document();
    assert_eq!(reported.cluster_id, CLUSTER);
    assert!(reported.keys.len() <= MAX_KEYS);
    for (index, entry) in reported.keys.iter().enumerate() {
        assert_eq!(entry.key_id, entry.public_key.id());
        assert!(reported.keys[..index].iter().all(|other| other.public_key != entry.public_key), "listed twice");
        let believed = matches!(entry.state, KeyState::Active | KeyState::Grace);
        assert_eq!(set.find(&entry.key_id).ok(), believed.then_some(&entry.public_key));
    }
    assert!(set.find(&KeyId::from("key_of_nobody".to_owned())).is_err());

    // Signing the parsed payload again yields the same set, and from then on the same bytes.
    let again = reported.sign(&KEYS.root);
    assert_eq!(VerifierSet::open(&again, root, CLUSTER).as_ref(), Ok(set));
    let other = VerifierSet::open(document, root, ClusterId::from_bytes([9; 16]));
    assert_eq!(other, Err(SetError::OtherCluster(CLUSTER)));
    let stranger = KEYS.stranger.verifying_key();
    assert!(matches!(VerifierSet::open(document, &stranger, CLUSTER), Err(SetError::Open(_))));

    // Only a newer set replaces the current one.
    assert_eq!(set.clone().succeed(set.clone()).as_ref(), Ok(set));
    for (held, offered) in [(&*SET, set), (set, &*SET)] {
        let next = held.clone().succeed(offered.clone());
        match held.version().cmp(&offered.version()) {
            std::cmp::Ordering::Less => assert_eq!(next.as_ref(), Ok(offered)),
            std::cmp::Ordering::Equal => assert_eq!(next.is_ok(), held == offered),
            std::cmp::Ordering::Greater => assert!(matches!(next, Err(SetError::Rollback { .. }))),
        }
    }
}

/// Builds a set from chosen fields, so that the expected result is known.
fn structured(input: &mut Input<'_>, root: &VerifyingKey) -> bool {
    let flags = input.byte();
    let mut keys = Vec::new();
    let count = usize::from(input.byte()) % (MAX_KEYS + 2);
    for _ in 0..count {
        // There are few possible seeds, so that some keys occur twice.
        let public_key = SigningKey::from_seed(&[input.byte(); 32]).verifying_key();
        keys.push(Entry { key_id: public_key.id(), public_key, state: input.choose(STATES) });
    }
    let false_name = flags & 1 != 0 && !keys.is_empty();
    if false_name {
        let at = usize::from(input.byte()) % keys.len();
        keys[at].key_id = KeyId::from(input.short_text());
    }
    let cluster_id = if flags & 2 != 0 { ClusterId::from_bytes([9; 16]) } else { CLUSTER };
    let issued_at = Timestamp(NOW.0.wrapping_add(i64::from(input.i32()) << 32));
    let document = Document { cluster_id, version: input.u64(), issued_at, keys };
    let signed = document.sign(&KEYS.root);
    let taken = check(&signed, root);
    let distinct = |(index, entry): (usize, &Entry)| document.keys[..index].iter().all(|other| other.key_id != entry.key_id);
    let good = cluster_id == CLUSTER
        && document.keys.len() <= MAX_KEYS
        && document.keys.iter().enumerate().all(distinct)
        && document.keys.iter().all(|entry| entry.key_id == entry.public_key.id());
    if signed.len() <= MAX_BYTES {
        assert_eq!(taken, good, "{document:?}");
    }
    taken
}
