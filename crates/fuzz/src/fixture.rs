//! The cluster, the node and the keys that all targets use. They are those of the golden vectors, so that the vectors make good seeds.

use std::sync::LazyLock;

use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState, VerifierSet};

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes(id(0x01));
pub(crate) const NODE: NodeId = NodeId::from_bytes(id(0x11));
pub(crate) const TASK: TaskId = TaskId::from_bytes(id(0x21));
pub(crate) const INSTANCE: AgentInstanceId = AgentInstanceId::from_bytes(id(0x31));
pub(crate) const EPOCH: u64 = 3;
pub(crate) const NOW: Timestamp = Timestamp(1_767_225_600_000_000);
/// The latest authenticated time that the node has seen, one minute before [`NOW`].
pub(crate) const HIGHEST_SEEN: Timestamp = Timestamp(1_767_225_540_000_000);

const fn id(last: u8) -> [u8; 16] {
    [0x01, 0x9b, 0x76, 0xda, 0xa8, 0x00, 0x70, 0x00, 0x80, 0, 0, 0, 0, 0, 0, last]
}

/// The signing keys, by holder.
pub(crate) struct Keys {
    pub(crate) root: SigningKey,
    pub(crate) staged: SigningKey,
    pub(crate) active: SigningKey,
    pub(crate) grace: SigningKey,
    pub(crate) retired: SigningKey,
    pub(crate) revoked: SigningKey,
    pub(crate) node: SigningKey,
    pub(crate) stranger: SigningKey,
}

pub(crate) static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let key = |byte: u8| SigningKey::from_seed(&[byte; 32]);
    Keys {
        root: key(0x99),
        staged: key(0x11),
        active: key(0x12),
        grace: key(0x13),
        retired: key(0x14),
        revoked: key(0x15),
        node: key(0x21),
        stranger: key(0x77),
    }
});

/// The verifier set in force, with one key in each state.
pub(crate) static SET: LazyLock<VerifierSet> = LazyLock::new(|| {
    let entry = |key: &SigningKey, state| {
        let public_key = key.verifying_key();
        Entry { key_id: public_key.id(), public_key, state }
    };
    let keys = vec![
        entry(&KEYS.staged, KeyState::Staged),
        entry(&KEYS.active, KeyState::Active),
        entry(&KEYS.grace, KeyState::Grace),
        entry(&KEYS.retired, KeyState::Retired),
        entry(&KEYS.revoked, KeyState::Revoked),
    ];
    let document = Document { cluster_id: CLUSTER, version: 7, issued_at: NOW, keys };
    VerifierSet::open(&document.sign(&KEYS.root), &KEYS.root.verifying_key(), CLUSTER).expect("our own set opens")
});
