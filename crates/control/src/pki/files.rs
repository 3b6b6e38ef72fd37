//! Secret files: only their owner can read them, and a crash never leaves an incomplete one.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Size limit of a key file.
const MAX_KEY_FILE: u64 = 64 * 1024;

/// Why a key file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// A system error.
    #[error("cannot {action} {path}; check the folder's owner and free space")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Others could read it.
    #[error(
        "{path} can be read by others (mode {mode:o}); run `chmod 600 {path}` and, if others have an account here, rotate the key"
    )]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not a valid key.
    #[error("{path} is damaged: {detail}; restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

/// Creates the folder with mode 0700 if it does not exist.
pub(super) fn ensure_dir(path: &Path) -> Result<(), KeyFileError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| KeyFileError::Io { action: "create", path: path.to_owned(), source })
}

/// Writes a file that only its owner can read: temporary file, fsync, rename, fsync of the folder.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    let io = |action| move |source| KeyFileError::Io { action, path: path.to_owned(), source };
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".tmp-{}", std::process::id()));
    let temporary = dir.join(name);
    let _ = std::fs::remove_file(&temporary);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(io("create"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&temporary, path).map_err(io("rename"))?;
    std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the folder of"))
}

/// Locks the key folder against other server processes, until dropped.
pub(super) struct FolderLock {
    _file: std::fs::File,
}

impl FolderLock {
    /// Waits until no other process creates or changes keys.
    pub(super) fn take(dir: &Path) -> Result<Self, KeyFileError> {
        ensure_dir(dir)?;
        let path = dir.join(".lock");
        let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|source| KeyFileError::Io { action: "open", path: path.clone(), source })?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|error| KeyFileError::Io {
            action: "lock",
            path,
            source: error.into(),
        })?;
        Ok(Self { _file: file })
    }
}

/// Reads a secret file, or returns `None` if it does not exist. A file that others can read is refused.
pub(crate) fn read_private(path: &Path) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, KeyFileError> {
    use std::io::Read as _;
    let io = |source| KeyFileError::Io { action: "read", path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let metadata = file.metadata().map_err(io)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyFileError::TooOpen { path: path.to_owned(), mode: metadata.mode() & 0o777 });
    }
    let mut bytes = zeroize::Zeroizing::new(Vec::new());
    file.take(MAX_KEY_FILE).read_to_end(&mut bytes).map_err(io)?;
    Ok(Some(bytes))
}
