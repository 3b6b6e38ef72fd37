//! The agent's state folder: one agent at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gpuaas_host::private_file::{self, PrivateFileError};
use rustix::fs::FlockOperation;

/// Locks the folder until dropped, also against another agent in the same process.
#[derive(Debug)]
pub(crate) struct StateLock {
    file: File,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be created.
    #[error("the state folder cannot be used")]
    Folder(#[from] PrivateFileError),
    /// The lock file cannot be used.
    #[error("{path} cannot be opened; check that the agent runs as the owner of the folder", path = .path.display())]
    LockFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Another agent uses it.
    #[error("another agent uses {path}; stop it first, or choose another state_dir", path = .path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

impl StateLock {
    /// Creates the folder if needed and locks it.
    pub(crate) fn take(state_dir: &Path) -> Result<Self, StateError> {
        private_file::make_folder(state_dir)?;
        // A user who could replace it, or an entry of it, could give the agent another identity, journal or set of leases.
        private_file::check_folder(state_dir)?;
        for inner in ["identity", "leases"] {
            match private_file::check_folder(&state_dir.join(inner)) {
                Err(PrivateFileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                checked => checked?,
            }
        }
        let path = state_dir.join("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|source| StateError::LockFile { path: path.clone(), source })?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::InUse { path: state_dir.to_owned() }),
            Err(error) => Err(StateError::LockFile { path, source: error.into() }),
        }
    }
}

impl Drop for StateLock {
    /// Unlocks. Closing the file is not enough while a program is being started: until it runs, it has a copy of the descriptor.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_agent_at_a_time() {
        let folder = tempfile::tempdir().expect("folder");
        let first = StateLock::take(folder.path()).expect("free");
        let error = StateLock::take(folder.path()).expect_err("taken").to_string();
        assert!(error.contains("stop it first"), "{error}");
        // As a program has it that is being started.
        let _copy = first.file.try_clone().expect("copied");
        drop(first);
        assert!(StateLock::take(folder.path()).is_ok());
    }
}
