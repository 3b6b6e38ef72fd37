//! The actors of all cases: fixed keys, ids and times, so that the vectors are the same bytes on every machine.

use std::time::Duration;

use gpuaas_contract::hex;
use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState};

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes(uuid_v7(0x01));
pub(crate) const OTHER_CLUSTER: ClusterId = ClusterId::from_bytes(uuid_v7(0x02));
pub(crate) const NODE: NodeId = NodeId::from_bytes(uuid_v7(0x11));
pub(crate) const OTHER_NODE: NodeId = NodeId::from_bytes(uuid_v7(0x12));
pub(crate) const TASK: TaskId = TaskId::from_bytes(uuid_v7(0x21));
pub(crate) const OTHER_TASK: TaskId = TaskId::from_bytes(uuid_v7(0x22));
pub(crate) const INSTANCE: AgentInstanceId = AgentInstanceId::from_bytes(uuid_v7(0x31));
pub(crate) const EPOCH: u64 = 3;

/// 2026-01-01T00:00:00Z, the host's clock in every case that does not say otherwise.
pub(crate) const NOW: Timestamp = Timestamp(1_767_225_600_000_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MICROSECOND: Duration = Duration::from_micros(1);

pub(crate) const fn uuid_v7(last: u8) -> [u8; 16] {
    [0x01, 0x9b, 0x76, 0xda, 0xa8, 0x00, 0x70, 0x00, 0x80, 0, 0, 0, 0, 0, 0, last]
}

/// Owner of a key. Each key's seed is a single byte, repeated 32 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Signs verifier sets.
    Root,
    /// Signs tasks, one key per state.
    Control(KeyState),
    /// Signs this node's receipts.
    Node,
    /// Signs another node's receipts.
    OtherNode,
    /// Not trusted by anyone.
    Stranger,
}

impl Holder {
    pub(crate) const ALL: [Self; 9] = [
        Self::Root,
        Self::Control(KeyState::Staged),
        Self::Control(KeyState::Active),
        Self::Control(KeyState::Grace),
        Self::Control(KeyState::Retired),
        Self::Control(KeyState::Revoked),
        Self::Node,
        Self::OtherNode,
        Self::Stranger,
    ];

    fn name_and_seed_byte(self) -> (&'static str, u8) {
        match self {
            Self::Root => ("root", 0x99),
            Self::Control(KeyState::Staged) => ("control_staged", 0x11),
            Self::Control(KeyState::Active) => ("control_active", 0x12),
            Self::Control(KeyState::Grace) => ("control_grace", 0x13),
            Self::Control(KeyState::Retired) => ("control_retired", 0x14),
            Self::Control(KeyState::Revoked) => ("control_revoked", 0x15),
            Self::Node => ("node", 0x21),
            Self::OtherNode => ("other_node", 0x22),
            Self::Stranger => ("stranger", 0x77),
        }
    }

    pub(crate) fn key(self) -> SigningKey {
        SigningKey::from_seed(&[self.name_and_seed_byte().1; 32])
    }
}

/// A key as it appears in the vector files.
#[derive(serde::Serialize)]
pub(crate) struct KeyVector {
    name: &'static str,
    seed_hex: String,
    public_key_hex: String,
    key_id: String,
}

pub(crate) fn key_vectors(holders: &[Holder]) -> Vec<KeyVector> {
    let describe = |holder: &Holder| {
        let (name, seed_byte) = holder.name_and_seed_byte();
        let public = holder.key().verifying_key();
        KeyVector {
            name,
            seed_hex: hex(&[seed_byte; 32]),
            public_key_hex: hex(public.as_bytes()),
            key_id: public.id().to_string(),
        }
    };
    holders.iter().map(describe).collect()
}

/// The verifier set that the node in these cases has: one key in each state.
pub(crate) fn verifier_set_document() -> Document {
    let states = [KeyState::Staged, KeyState::Active, KeyState::Grace, KeyState::Retired, KeyState::Revoked];
    let entry = |state| {
        let public_key = Holder::Control(state).key().verifying_key();
        Entry { key_id: public_key.id(), public_key, state }
    };
    Document { cluster_id: CLUSTER, version: 7, issued_at: NOW, keys: states.map(entry).into() }
}

/// A DSSE document as text; all documents made here are JSON.
pub(crate) fn text(document: Vec<u8>) -> String {
    String::from_utf8(document).expect("a DSSE document is JSON text")
}

/// Every document that differs from `document` in exactly one bit.
pub(crate) fn one_bit_flips(document: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..document.len() * 8).map(|bit| {
        let mut forged = document.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        (bit, forged)
    })
}
