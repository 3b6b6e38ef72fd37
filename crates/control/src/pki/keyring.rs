//! The task-signing keys and the root key that signs their verifier set.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, NodeId, SessionId};
use gpuaas_contract::key::{KeyId, SigningKey, VerifyingKey};
use gpuaas_contract::resume::ResumeSecret;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState, MAX_KEYS, SetError, VerifierSet};
use gpuaas_domain::Refusal;
use gpuaas_domain::node::Node;
use gpuaas_domain::task::{self, Outgoing, TaskRecord};
use gpuaas_runtime::secret::Locked;
use hmac::{KeyInit as _, Mac as _};

use super::files::{self, KeyFileError};

/// All secret keys of the control plane except the CA's.
pub struct KeyRing {
    dir: PathBuf,
    cluster_id: ClusterId,
    root: Locked<SigningKey>,
    intent: Locked<zeroize::Zeroizing<[u8; 32]>>,
    current: RwLock<Arc<Current>>,
}

/// The current keys.
struct Current {
    active: Locked<SigningKey>,
    set: VerifierSet,
    document: Vec<u8>,
}

/// Why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyRingError {
    /// A file cannot be used.
    #[error("the key files cannot be used")]
    File(#[from] KeyFileError),
    /// The set on disk is not valid.
    #[error("the verifier set on disk is not valid; restore `verifier_set.json` from a backup")]
    Set(#[from] SetError),
    /// An active key of the set is not on disk.
    #[error("the active signing key {0} is missing; restore its file from a backup or revoke it")]
    ActiveKeyMissing(KeyId),
    /// The key does not exist.
    #[error("there is no signing key {0}")]
    Unknown(KeyId),
}

/// The file of the root key.
const ROOT_KEY: &str = "root.key";

impl KeyRing {
    /// Whether this folder has the keys of a cluster.
    pub fn exists(dir: &Path) -> bool {
        dir.join(ROOT_KEY).exists()
    }

    /// Loads the keys of this folder, or creates them at the first start.
    pub fn open(dir: &Path, cluster_id: ClusterId, now: Timestamp) -> Result<Self, KeyRingError> {
        let _lock = files::FolderLock::take(dir)?;
        files::ensure_dir(&dir.join("signing"))?;
        let root = load_or_make(&dir.join(ROOT_KEY))?;
        let intent = Locked::new(load_or_make(&dir.join("intent.key"))?.seed());
        let current = match load_current(dir, cluster_id, &root)? {
            Some(current) => current,
            None => {
                let active = new_signing_key(dir)?;
                let entry =
                    Entry { key_id: active.verifying_key().id(), public_key: active.verifying_key(), state: KeyState::Active };
                publish(dir, &root, Document { cluster_id, version: 1, issued_at: now, keys: vec![entry] }, active)?
            }
        };
        let current = RwLock::new(Arc::new(current));
        Ok(Self { dir: dir.to_owned(), cluster_id, root, intent, current })
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Returns the root's public half, which nodes pin at enrollment.
    pub fn root_key(&self) -> VerifyingKey {
        self.root.verifying_key()
    }

    /// Returns the root key. Besides verifier sets it signs the record of a node's keys at enrollment, so that anyone who pinned
    /// the root can check a receipt offline.
    pub(crate) fn root(&self) -> &SigningKey {
        &self.root
    }

    /// Returns the current set.
    pub fn verifier_set(&self) -> VerifierSet {
        self.current().set.clone()
    }

    /// Returns the version of the current set.
    pub fn set_version(&self) -> u64 {
        self.current().set.version()
    }

    /// Returns the current set's version and DSSE bytes.
    pub fn set_document(&self) -> (u64, Vec<u8>) {
        let current = self.current();
        (current.set.version(), current.document.clone())
    }

    /// Signs the envelope of a task for its node with the active key.
    pub fn outgoing(&self, task: &TaskRecord, node: &Node, now: Timestamp) -> Result<Outgoing, Refusal> {
        let payload = task::envelope_payload(task, node, self.cluster_id, now)?;
        let (signed, key_id) = self.sign(&payload);
        Ok(Outgoing { payload, signed, key_id })
    }

    /// Signs an envelope with the active key.
    pub fn sign(&self, payload: &gpuaas_contract::envelope::Payload) -> (gpuaas_contract::envelope::Signed, KeyId) {
        let current = self.current();
        (payload.sign(&current.active), current.active.id())
    }

    /// Returns the MAC over the text of a task's intent.
    pub fn intent_mac(&self, text: &str) -> String {
        STANDARD.encode(self.mac(text.as_bytes()).finalize().into_bytes())
    }

    /// Returns whether a MAC is ours, in constant time.
    pub fn intent_matches(&self, text: &str, mac: &str) -> bool {
        STANDARD.decode(mac).is_ok_and(|mac| self.mac(text.as_bytes()).verify_slice(&mac).is_ok())
    }

    /// Returns the secret of a node's link. It is derived from the link's id, so every server process that shares the keys can
    /// check a proof.
    pub fn resume_secret(&self, node_id: NodeId, node_epoch: u64, session: SessionId) -> ResumeSecret {
        let text = format!("gpuaas-link-resume-secret-v1\n{node_id}\n{node_epoch}\n{session}");
        ResumeSecret::new(self.mac(text.as_bytes()).finalize().into_bytes().into())
    }

    fn mac(&self, bytes: &[u8]) -> hmac::Hmac<sha2::Sha256> {
        let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(self.intent.as_slice())
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        mac.update(bytes);
        mac
    }

    /// Publishes a key ahead of its use. If one is already staged, nothing changes.
    pub fn stage(&self, now: Timestamp) -> Result<KeyId, KeyRingError> {
        let staged =
            |set: &VerifierSet| set.document().keys.iter().find(|e| e.state == KeyState::Staged).map(|e| e.key_id.clone());
        if let Some(id) = staged(&self.current().set) {
            return Ok(id);
        }
        let key = new_signing_key(&self.dir)?;
        let entry = Entry { key_id: key.verifying_key().id(), public_key: key.verifying_key(), state: KeyState::Staged };
        let id = entry.key_id.clone();
        self.change(now, |keys| {
            keys.push(entry);
            Ok(())
        })?;
        Ok(id)
    }

    /// Activates the staged key, or else a new one. The previous key stays valid (grace), and the one before that is retired.
    pub fn rotate(&self, now: Timestamp) -> Result<KeyId, KeyRingError> {
        self.change(now, |keys| {
            for entry in keys {
                entry.state = match entry.state {
                    KeyState::Active => KeyState::Grace,
                    KeyState::Grace => KeyState::Retired,
                    other @ (KeyState::Staged | KeyState::Retired | KeyState::Revoked) => other,
                };
            }
            Ok(())
        })
    }

    /// Revokes a compromised key for good. If it was the active one, a new one replaces it.
    pub fn revoke(&self, key: &KeyId, now: Timestamp) -> Result<KeyId, KeyRingError> {
        self.change(now, |keys| {
            let entry = keys.iter_mut().find(|e| e.key_id == *key).ok_or_else(|| KeyRingError::Unknown(key.clone()))?;
            entry.state = KeyState::Revoked;
            Ok(())
        })
    }

    fn change(
        &self,
        now: Timestamp,
        edit: impl FnOnce(&mut Vec<Entry>) -> Result<(), KeyRingError>,
    ) -> Result<KeyId, KeyRingError> {
        // Another process may have changed the set in the meantime: there must not be two sets with one version.
        let _lock = files::FolderLock::take(&self.dir)?;
        self.reload()?;
        let mut guard = self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut document = guard.set.document().clone();
        edit(&mut document.keys)?;
        document.version += 1;
        document.issued_at = now;
        let still_active = document.keys.iter().find(|e| e.state == KeyState::Active).map(|e| e.key_id.clone());
        let active = match still_active {
            Some(id) => load_signing_key(&self.dir, &id)?.ok_or(KeyRingError::ActiveKeyMissing(id))?,
            None => match document.keys.iter_mut().find(|e| e.state == KeyState::Staged) {
                Some(entry) => {
                    entry.state = KeyState::Active;
                    load_signing_key(&self.dir, &entry.key_id)?
                        .ok_or_else(|| KeyRingError::ActiveKeyMissing(entry.key_id.clone()))?
                }
                None => {
                    let key = new_signing_key(&self.dir)?;
                    let public_key = key.verifying_key();
                    document.keys.push(Entry { key_id: public_key.id(), public_key, state: KeyState::Active });
                    key
                }
            },
        };
        // Keys that ended long ago need not be sent to nodes forever; an unknown key is refused too.
        while document.keys.len() > MAX_KEYS / 2 {
            let Some(oldest) = document.keys.iter().position(|e| e.state == KeyState::Retired) else { break };
            document.keys.remove(oldest);
        }
        let id = active.verifying_key().id();
        *guard = Arc::new(publish(&self.dir, &self.root, document, active)?);
        Ok(id)
    }

    /// Loads a newer set that another server process wrote to the same folder. Returns true if there was one.
    pub fn reload(&self) -> Result<bool, KeyRingError> {
        let Some(found) = load_current(&self.dir, self.cluster_id, &self.root)? else { return Ok(false) };
        let mut guard = self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let newer = found.set.version() > guard.set.version();
        if newer {
            *guard = Arc::new(found);
        }
        Ok(newer)
    }

    /// Returns the digest of the root key, for people to compare.
    pub fn root_fingerprint(&self) -> Digest {
        Digest::of(self.root.verifying_key().as_bytes())
    }
}

fn publish(dir: &Path, root: &SigningKey, document: Document, active: Locked<SigningKey>) -> Result<Current, KeyRingError> {
    let bytes = document.sign(root);
    let set = VerifierSet::open(&bytes, &root.verifying_key(), document.cluster_id)?;
    files::write_private(&dir.join("verifier_set.json"), &bytes)?;
    Ok(Current { active, set, document: bytes })
}

fn load_current(dir: &Path, cluster_id: ClusterId, root: &SigningKey) -> Result<Option<Current>, KeyRingError> {
    let Some(bytes) = files::read_private(&dir.join("verifier_set.json"))? else { return Ok(None) };
    let set = VerifierSet::open(&bytes, &root.verifying_key(), cluster_id)?;
    let Some(active) = set.document().keys.iter().find(|e| e.state == KeyState::Active).map(|e| e.key_id.clone()) else {
        return Ok(None);
    };
    let key = load_signing_key(dir, &active)?.ok_or(KeyRingError::ActiveKeyMissing(active))?;
    Ok(Some(Current { active: key, set, document: bytes.to_vec() }))
}

fn signing_path(dir: &Path, id: &KeyId) -> PathBuf {
    dir.join("signing").join(format!("{id}.key"))
}

fn new_signing_key(dir: &Path) -> Result<Locked<SigningKey>, KeyRingError> {
    let key = random_key();
    write(&signing_path(dir, &key.verifying_key().id()), &key)?;
    Ok(key)
}

fn random_key() -> Locked<SigningKey> {
    Locked::new(SigningKey::from_seed(&zeroize::Zeroizing::new(super::random::<32>())))
}

fn write(path: &Path, key: &SigningKey) -> Result<(), KeyFileError> {
    files::write_private(path, zeroize::Zeroizing::new(STANDARD.encode(key.seed())).as_bytes())
}

fn load_signing_key(dir: &Path, id: &KeyId) -> Result<Option<Locked<SigningKey>>, KeyFileError> {
    load(&signing_path(dir, id))
}

fn load_or_make(path: &Path) -> Result<Locked<SigningKey>, KeyFileError> {
    if let Some(key) = load(path)? {
        return Ok(key);
    }
    let key = random_key();
    write(path, &key)?;
    Ok(key)
}

fn load(path: &Path) -> Result<Option<Locked<SigningKey>>, KeyFileError> {
    let Some(text) = files::read_private(path)? else { return Ok(None) };
    // Decoded into memory that is wiped: the decoder's own vector would leave the seed behind. It has the size that the decoder
    // expects.
    let mut decoded = zeroize::Zeroizing::new([0; 48]);
    let length = STANDARD.decode_slice(text.trim_ascii(), decoded.as_mut_slice());
    match (length, decoded.first_chunk::<32>()) {
        (Ok(32), Some(seed)) => Ok(Some(Locked::new(SigningKey::from_seed(seed)))),
        (Ok(_) | Err(_), _) => {
            Err(KeyFileError::Damaged { path: path.to_owned(), detail: "expected 32 bytes in base64".to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuaas_contract::dsse::KeyLookup as _;

    #[test]
    fn rotation_keeps_the_previous_key_believed_once_and_survives_a_restart() {
        let dir = gpuaas_testkit::TempDir::new();
        let cluster = ClusterId::generate();
        let ring = KeyRing::open(dir.path(), cluster, Timestamp(1)).expect("made");
        let active = |ring: &KeyRing| ring.current().active.verifying_key().id();
        let first = active(&ring);
        let second = ring.rotate(Timestamp(2)).expect("rotates");
        assert!(ring.verifier_set().find(&first).is_ok() && ring.verifier_set().find(&second).is_ok());
        ring.rotate(Timestamp(3)).expect("rotates");
        assert!(ring.verifier_set().find(&first).is_err() && ring.verifier_set().find(&second).is_ok());
        let again = KeyRing::open(dir.path(), cluster, Timestamp(4)).expect("found");
        assert_eq!((again.set_version(), active(&again)), (3, active(&ring)));
    }

    #[test]
    fn a_staged_key_is_published_unbelieved_and_takes_over_at_the_next_rotation() {
        let dir = gpuaas_testkit::TempDir::new();
        let ring = KeyRing::open(dir.path(), ClusterId::generate(), Timestamp(1)).expect("made");
        let staged = ring.stage(Timestamp(2)).expect("stages");
        assert_eq!(ring.stage(Timestamp(3)).expect("is staged already"), staged);
        assert!(ring.verifier_set().find(&staged).is_err());
        assert_eq!(ring.rotate(Timestamp(4)).expect("rotates"), staged);
        assert!(ring.verifier_set().find(&staged).is_ok());
        assert_eq!(ring.verifier_set().document().keys.len(), 2);
    }

    #[test]
    fn revoking_the_active_key_puts_a_new_one_in_its_place() {
        let dir = gpuaas_testkit::TempDir::new();
        let ring = KeyRing::open(dir.path(), ClusterId::generate(), Timestamp(1)).expect("made");
        let first = ring.current().active.verifying_key().id();
        let second = ring.revoke(&first, Timestamp(2)).expect("revokes");
        assert_ne!(first, second);
        assert!(ring.verifier_set().find(&first).is_err());
        assert!(matches!(ring.revoke(&KeyId::from("key_nope".to_owned()), Timestamp(3)), Err(KeyRingError::Unknown(_))));
    }

    #[test]
    fn a_second_server_on_the_same_folder_hears_of_a_rotation() {
        let dir = gpuaas_testkit::TempDir::new();
        let cluster = ClusterId::generate();
        let one = KeyRing::open(dir.path(), cluster, Timestamp(1)).expect("made");
        let two = KeyRing::open(dir.path(), cluster, Timestamp(1)).expect("found");
        assert!(!two.reload().expect("reads"));
        one.rotate(Timestamp(2)).expect("rotates");
        assert!(two.reload().expect("reads"));
        assert_eq!(two.set_document(), one.set_document());
    }

    #[test]
    fn an_intent_of_another_key_or_text_does_not_match() {
        let (a, b) = (gpuaas_testkit::TempDir::new(), gpuaas_testkit::TempDir::new());
        let ours = KeyRing::open(a.path(), ClusterId::generate(), Timestamp(1)).expect("made");
        let theirs = KeyRing::open(b.path(), ClusterId::generate(), Timestamp(1)).expect("made");
        let mac = ours.intent_mac("text");
        assert!(ours.intent_matches("text", &mac));
        assert!(!ours.intent_matches("text2", &mac) && !theirs.intent_matches("text", &mac) && !ours.intent_matches("text", "?"));
    }
}
