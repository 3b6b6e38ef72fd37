//! One server per SQLite file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use crate::error::StoreError;

/// A lock that is held while the database is open. The kernel releases it when the process ends, for whatever reason.
pub(crate) struct FileLock {
    file: File,
}

impl FileLock {
    /// Locks a database file. Creates the file if it is missing, readable by its owner only; SQLite gives its side files (`-wal`,
    /// `-shm`) the same permissions.
    pub(crate) fn take(database: &Path) -> Result<Self, StoreError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let file = open_private(&PathBuf::from(path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse { path: database.to_owned() }),
            Err(errno) => return Err(StoreError::File { path: database.to_owned(), source: Arc::new(errno.into()) }),
        }
        open_private(database)?;
        Ok(Self { file })
    }
}

impl Drop for FileLock {
    /// Unlocks. Closing the file is not enough while a program is being started: until it runs, it has a copy of the descriptor.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn open_private(path: &Path) -> Result<File, StoreError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|source| StoreError::File { path: path.to_owned(), source: Arc::new(source) })
}
