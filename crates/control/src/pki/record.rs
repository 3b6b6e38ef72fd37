//! The node record: the keys that the control plane saw at enrollment, signed, so that nobody can replace them in the database.

use gpuaas_contract::Digest;
use gpuaas_contract::dsse::{self, OpenError};
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::key::{SigningKey, VerifyingKey};
use gpuaas_domain::node::Node;

const PAYLOAD_TYPE: &str = "application/vnd.gpuaas.node-record.v1+json";
const MAX_BYTES: usize = 8 * 1024;

/// What is signed at enrollment.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    cluster_id: ClusterId,
    node_id: NodeId,
    node_epoch: u64,
    receipt_key: VerifyingKey,
    tls_key_digest: Digest,
}

impl NodeRecord {
    fn of(node: &Node, cluster_id: ClusterId) -> Self {
        Self {
            cluster_id,
            node_id: node.id,
            node_epoch: node.epoch,
            receipt_key: node.receipt_key.clone(),
            tls_key_digest: node.tls_key_digest.clone(),
        }
    }

    /// Signs the record of a node that was just admitted.
    pub fn seal(node: &Node, cluster_id: ClusterId, key: &SigningKey) -> Vec<u8> {
        dsse::seal(PAYLOAD_TYPE, serde_json::to_vec(&Self::of(node, cluster_id)).unwrap_or_default(), key)
    }

    /// Checks that the node's row still matches the signed record.
    pub fn matches(node: &Node, cluster_id: ClusterId, key: &VerifyingKey) -> Result<bool, OpenError> {
        let payload = dsse::open(&node.record, MAX_BYTES, PAYLOAD_TYPE, key)?;
        Ok(serde_json::from_slice::<Self>(&payload).is_ok_and(|record| record == Self::of(node, cluster_id)))
    }
}
