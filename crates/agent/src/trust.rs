//! The current verifier set: which keys may sign tasks for this node.

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
    /// Loads the stored set.
    pub(crate) fn new(path: &Path, document: &[u8], root_key: VerifyingKey, cluster_id: ClusterId) -> Result<Self, SetError> {
        let set = VerifierSet::open(document, &root_key, cluster_id)?;
        Ok(Self { path: path.to_owned(), root_key, cluster_id, set: RwLock::new(Arc::new(set)) })
    }

    /// Returns the current set.
    pub(crate) fn current(&self) -> Arc<VerifierSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Verifies, saves and uses a newer document. Blocks while it saves.
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
            // A revocation must take effect even if it cannot be saved; after a restart the control plane sends it again.
            tracing::error!(error = crate::error_chain::chain(&error), "the verifier set could not be saved; it is used anyway");
        }
        *set = Arc::new(next);
        tracing::info!(before, version, "verifier set was updated");
        Ok(version)
    }
}
