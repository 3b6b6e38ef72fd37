//! The verifier set in use: which keys may sign tasks for this node.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use gpuaas_contract::id::ClusterId;
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::verifier_set::{SetError, VerifierSet};
use gpuaas_host::private_file;

/// The set and the root key that signs its successors.
#[derive(Debug)]
pub(crate) struct Trust {
    path: PathBuf,
    root_key: VerifyingKey,
    cluster_id: ClusterId,
    set: RwLock<Arc<VerifierSet>>,
}

impl Trust {
    /// The set as stored.
    pub(crate) fn new(path: &Path, document: &[u8], root_key: VerifyingKey, cluster_id: ClusterId) -> Result<Self, SetError> {
        let set = VerifierSet::open(document, &root_key, cluster_id)?;
        Ok(Self { path: path.to_owned(), root_key, cluster_id, set: RwLock::new(Arc::new(set)) })
    }

    /// The set in use.
    pub(crate) fn current(&self) -> Arc<VerifierSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a newer document: verified, saved, then used. Blocks for the time of saving.
    pub(crate) fn offer(&self, document: &[u8]) -> Result<u64, SetError> {
        let offered = VerifierSet::open(document, &self.root_key, self.cluster_id)?;
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        let before = set.version();
        let next = VerifierSet::clone(&set).succeed(offered)?;
        let version = next.version();
        if version == before {
            return Ok(version);
        }
        if let Err(error) = private_file::write(&self.path, document) {
            // A revocation must count although it cannot be saved; after a restart the control plane sends it again.
            tracing::error!(
                error = crate::error_chain::chain(&error),
                "verifier set could not be saved; it is used all the same"
            );
        }
        *set = Arc::new(next);
        tracing::info!(before, version, "verifier set was updated");
        Ok(version)
    }
}
