//! The verifier set: the keys that may sign tasks, as a document signed by the cluster's root key.
//!
//! A key is *staged* (published, but its signatures do not count yet), *active* (signs, and its signatures count), in *grace* (its
//! signatures still count, but it signs no more), *retired* or *revoked* (its signatures never count again). Nodes accept only newer
//! versions of the document.

use crate::dsse::{self, KeyLookup, OpenError};
use crate::id::ClusterId;
use crate::key::{KeyId, SigningKey, VerifyingKey};
use crate::names::named;
use crate::time::Timestamp;

/// DSSE payload type of a verifier set.
pub const PAYLOAD_TYPE: &str = "application/vnd.gpuaas.verifier-set.v1+json";
/// Maximum size of a document.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum number of keys in a document.
pub const MAX_KEYS: usize = 64;

named! {
    /// State of a signing key.
    pub enum KeyState {
        /// Published ahead of use. Its signatures are not accepted yet.
        Staged = "staged",
        /// Signs. Its signatures are accepted.
        Active = "active",
        /// Signs nothing new. Its signatures are still accepted.
        Grace = "grace",
        /// Retired after a regular rotation. Its signatures are no longer accepted.
        Retired = "retired",
        /// Revoked because it may be compromised. Its signatures are no longer accepted.
        Revoked = "revoked",
    }
}

impl KeyState {
    /// Whether signatures by a key in this state count.
    pub const fn believed(self) -> bool {
        matches!(self, Self::Active | Self::Grace)
    }
}

/// One key of the set.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The key's id; must match `public_key`.
    pub key_id: KeyId,
    /// Public half of the key.
    pub public_key: VerifyingKey,
    /// Decides whether signatures by the key count.
    pub state: KeyState,
}

/// The signed content of a verifier set.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The cluster whose nodes trust these keys.
    pub cluster_id: ClusterId,
    /// Increases by one with every change.
    pub version: u64,
    /// When the document was signed.
    pub issued_at: Timestamp,
    /// The keys, in any state.
    pub keys: Vec<Entry>,
}

/// A verified document in which keys can be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifierSet {
    document: Document,
}

/// Why a document was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Not signed by the root key, too large, or malformed.
    #[error("verifier set not opened")]
    Open(#[from] OpenError),
    /// The signature is valid, but the payload is not a verifier set.
    #[error("verifier set is malformed: {0}")]
    Malformed(String),
    /// Signed for another cluster.
    #[error("verifier set belongs to cluster {0}, not to this one")]
    OtherCluster(ClusterId),
    /// Older than the current set: an old document was replayed.
    #[error("verifier set version {offered} is older than version {held} in hand")]
    Rollback {
        /// Version of the current set.
        held: u64,
        /// Version of the offered set.
        offered: u64,
    },
    /// Same version with different content: the root key signed two versions of the truth.
    #[error("verifier set version {0} differs from the one in hand; the root key may be in wrong hands")]
    Equivocation(u64),
}

impl SetError {
    /// Stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Open(_) => "verifier_set_not_authentic",
            Self::Malformed(_) => "verifier_set_malformed",
            Self::OtherCluster(_) => "verifier_set_other_cluster",
            Self::Rollback { .. } => "verifier_set_rollback",
            Self::Equivocation(_) => "verifier_set_equivocation",
        }
    }
}

impl Document {
    /// Signs the document with the root key.
    pub fn sign(&self, root: &SigningKey) -> Vec<u8> {
        dsse::seal(PAYLOAD_TYPE, serde_json::to_vec(self).unwrap_or_default(), root)
    }
}

impl VerifierSet {
    /// Verifies a document against the pinned root key.
    pub fn open(document: &[u8], root: &VerifyingKey, cluster: ClusterId) -> Result<Self, SetError> {
        let payload = dsse::open(document, MAX_BYTES, PAYLOAD_TYPE, root)?;
        let document: Document = serde_json::from_slice(&payload).map_err(|e| SetError::Malformed(e.to_string()))?;
        if document.cluster_id != cluster {
            return Err(SetError::OtherCluster(document.cluster_id));
        }
        if document.keys.len() > MAX_KEYS {
            return Err(SetError::Malformed(format!("{} keys; at most {MAX_KEYS}", document.keys.len())));
        }
        for (index, entry) in document.keys.iter().enumerate() {
            if entry.public_key.id() != entry.key_id {
                return Err(SetError::Malformed(format!("{} is not the id of its key", entry.key_id)));
            }
            if document.keys[..index].iter().any(|other| other.key_id == entry.key_id) {
                return Err(SetError::Malformed(format!("{} is listed twice", entry.key_id)));
            }
        }
        Ok(Self { document })
    }

    /// The set to use after `offered` arrived while `self` is in use. The version never goes back, and no version has two contents.
    pub fn succeed(self, offered: Self) -> Result<Self, SetError> {
        let (held, new) = (self.document.version, offered.document.version);
        if new < held {
            Err(SetError::Rollback { held, offered: new })
        } else if new == held && self.document != offered.document {
            Err(SetError::Equivocation(held))
        } else {
            Ok(offered)
        }
    }

    /// The signed content.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The version of the document.
    pub fn version(&self) -> u64 {
        self.document.version
    }
}

impl KeyLookup for VerifierSet {
    fn find(&self, id: &KeyId) -> Result<&VerifyingKey, OpenError> {
        let entry = self.document.keys.iter().find(|e| e.key_id == *id).ok_or_else(|| OpenError::UnknownKey(id.clone()))?;
        if entry.state.believed() {
            Ok(&entry.public_key)
        } else {
            Err(OpenError::KeyNotUsable { key: id.clone(), state: entry.state.as_str() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId::from_bytes([1; 16]);

    fn root() -> SigningKey {
        SigningKey::from_seed(&[9; 32])
    }

    fn document(version: u64, state: KeyState) -> Document {
        let public_key = SigningKey::from_seed(&[3; 32]).verifying_key();
        let keys = vec![Entry { key_id: public_key.id(), public_key, state }];
        Document { cluster_id: CLUSTER, version, issued_at: Timestamp(1), keys }
    }

    fn open(document: &Document) -> Result<VerifierSet, SetError> {
        VerifierSet::open(&document.sign(&root()), &root().verifying_key(), CLUSTER)
    }

    #[test]
    fn only_active_and_grace_keys_are_believed() {
        let key = SigningKey::from_seed(&[3; 32]).verifying_key().id();
        for (state, believed) in [
            (KeyState::Staged, false),
            (KeyState::Active, true),
            (KeyState::Grace, true),
            (KeyState::Retired, false),
            (KeyState::Revoked, false),
        ] {
            assert_eq!(open(&document(1, state)).expect("opens").find(&key).is_ok(), believed, "{state:?}");
        }
    }

    #[test]
    fn a_set_never_goes_back_and_never_splits() {
        let two = open(&document(2, KeyState::Active)).expect("opens");
        let one = open(&document(1, KeyState::Active)).expect("opens");
        let other_two = open(&document(2, KeyState::Revoked)).expect("opens");
        assert_eq!(two.clone().succeed(one), Err(SetError::Rollback { held: 2, offered: 1 }));
        assert_eq!(two.clone().succeed(other_two), Err(SetError::Equivocation(2)));
        assert!(two.clone().succeed(two.clone()).is_ok());
        assert_eq!(two.succeed(open(&document(3, KeyState::Grace)).expect("opens")).expect("newer").version(), 3);
    }

    #[test]
    fn a_set_of_another_cluster_or_root_is_refused() {
        let mut foreign = document(1, KeyState::Active);
        foreign.cluster_id = ClusterId::from_bytes([2; 16]);
        assert!(matches!(open(&foreign), Err(SetError::OtherCluster(_))));
        let forged = document(1, KeyState::Active).sign(&SigningKey::from_seed(&[8; 32]));
        assert!(matches!(VerifierSet::open(&forged, &root().verifying_key(), CLUSTER), Err(SetError::Open(_))));
    }

    #[test]
    fn a_key_under_a_false_name_is_refused() {
        let mut lying = document(1, KeyState::Active);
        lying.keys[0].key_id = KeyId::from("key_00".to_owned());
        assert!(matches!(open(&lying), Err(SetError::Malformed(_))));
    }
}
