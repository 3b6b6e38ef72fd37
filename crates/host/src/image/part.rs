//! An incomplete image: a file that grows at its end, with the digest of its content.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use gpuaas_contract::Digest;
use sha2::Digest as _;
use tokio_util::sync::CancellationToken;

use super::flight::Report;
use super::store::{self, Store};
use super::{IO, stopped};
use crate::{HostError, private_file};

/// Size of one read.
pub(super) const READ_BYTES: usize = 1024 * 1024;
/// How far ahead space is reserved when the size of an image is unknown, and how often it is checked when it is known.
const CLAIM_STEP: u64 = 64 * 1024 * 1024;
/// Most unsynced data: the host's memory is for guests.
const SYNC_STEP: u64 = 256 * 1024 * 1024;
/// Size limit of the source document.
const MAX_SOURCE_BYTES: u64 = 16 * 1024;

/// The source of a part.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    /// The URL without its query: that may be a secret, and may differ for every request.
    pub(super) url: String,
    /// Digest of the whole URL.
    pub(super) url_sha256: Digest,
    /// The server's ETag, if there is one.
    pub(super) etag: Option<String>,
    /// Size of the whole file, if the server sends it.
    pub(super) length: Option<u64>,
}

impl Source {
    /// Creates a source without details.
    pub(super) fn of(url: &str) -> Self {
        let plain = url.split('?').next().unwrap_or_default().to_owned();
        Self { url: plain, url_sha256: Digest::of(url.as_bytes()), etag: None, length: None }
    }

    /// Returns whether the source can continue the part. With an ETag, the server checks it.
    fn continues(&self, part: &Self) -> bool {
        self.url_sha256 == part.url_sha256 || (self.url == part.url && part.etag.is_some())
    }
}

/// The stored part of an image. The file is locked as long as this lives, so there is no other writer. Every method blocks.
#[derive(Debug)]
pub(super) struct Part {
    store: Arc<Store>,
    sha256: Digest,
    path: PathBuf,
    file: File,
    hasher: sha2::Sha256,
    position: u64,
    /// Its source, if it can be resumed later.
    source: Option<Source>,
    /// Size of the whole image, if known.
    total: Option<u64>,
    /// Whether some of it is from an earlier request.
    resumed: bool,
    /// The end of the reserved space.
    claimed_to: u64,
    synced_to: u64,
    report: Report,
}

impl Part {
    /// Opens the part of an image, to continue with `source`, or from its start if it has another source. Returns `None` if there
    /// is another writer.
    pub(super) fn open(
        store: &Arc<Store>,
        sha256: &Digest,
        source: Option<&Source>,
        report: &Report,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, HostError> {
        let path = store.part(sha256);
        let Some(file) = lock(&path)? else { return Ok(None) };
        let mut part = Self {
            store: Arc::clone(store),
            sha256: sha256.clone(),
            path,
            file,
            hasher: sha2::Sha256::new(),
            position: 0,
            source: None,
            total: None,
            resumed: false,
            claimed_to: 0,
            synced_to: 0,
            report: report.clone(),
        };
        let length = part.file.metadata().map_err(|error| part.io("look at", &error))?.len();
        match part.read_source().filter(|known| source.is_some_and(|source| source.continues(known))) {
            Some(known) if length > 0 && known.length.is_none_or(|total| length <= total) => {
                tracing::info!(image = %sha256, bytes = length, "resuming a partial image");
                part.rehash(stop)?;
                part.total = known.length;
                part.source = Some(known);
                part.resumed = true;
            }
            _ => part.clear()?,
        }
        part.report.now(part.position, part.total);
        Ok(Some(part))
    }

    /// Returns its size.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns its source, if it is not empty.
    pub(super) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Returns whether it is complete, before the check of the digest.
    pub(super) fn is_complete(&self) -> bool {
        self.total == Some(self.position)
    }

    /// Returns whether the total is unknown, so that only the end of the answer shows it.
    pub(super) fn total_is_missing(&self) -> bool {
        self.total.is_none()
    }

    /// Returns whether some of it is from an earlier request. A wrong digest may then mean that the file has changed in between.
    pub(super) fn was_resumed(&self) -> bool {
        self.resumed
    }

    /// Prepares to append the rest, with the total size if the server sends it.
    pub(super) fn go_on(&mut self, total: Option<u64>) -> Result<(), HostError> {
        self.total = self.total.or(total);
        self.resumed = true;
        self.claim(0)
    }

    /// Prepares to start from the beginning with this source. The source is saved first, so that the bytes are never attributed
    /// to another one.
    pub(super) fn begin(&mut self, source: Source) -> Result<(), HostError> {
        if self.position > 0 {
            tracing::info!(image = %self.sha256, "downloading an image from the start");
        }
        self.clear()?;
        let document = serde_json::to_vec(&source).map_err(|error| self.io("describe", &error))?;
        let path = self.store.source(&self.sha256);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(store::no_surprises());
        // After a crash at this moment the document is incomplete, and is not accepted.
        options.open(&path).and_then(|mut file| file.write_all(&document)).map_err(|error| self.io("describe", &error))?;
        self.total = source.length;
        self.source = Some(source);
        self.claim(0)
    }

    /// Appends bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let length = bytes.len() as u64;
        if self.position.saturating_add(length) > self.claimed_to {
            self.claim(length)?;
        }
        self.file.write_all(bytes).map_err(|error| self.io("write", &error))?;
        self.hasher.update(bytes);
        self.position += length;
        if self.position - self.synced_to >= SYNC_STEP {
            self.file.sync_data().map_err(|error| self.io("write", &error))?;
            self.synced_to = self.position;
        }
        self.report.soon(self.position, self.total);
        Ok(())
    }

    /// Copies a file of this host. The digest is of the stored bytes, even if the file changes at the same time.
    pub(super) fn copy(&mut self, from: &mut File, length: u64, stop: &CancellationToken) -> Result<(), HostError> {
        self.clear()?;
        self.total = Some(length);
        self.claim(0)?;
        // The two files share blocks if the file system supports it; ours do not change with the other.
        if rustix::fs::ioctl_ficlone(&self.file, &*from).is_ok() {
            return self.rehash(stop);
        }
        let _ = rustix::fs::fadvise(&*from, 0, None, rustix::fs::Advice::Sequential);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.write(&buffer[..count])?,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(HostError::because(IO, "cannot read the image", &error)),
            }
            if stop.is_cancelled() {
                return Err(stopped());
            }
        }
    }

    /// Checks the digest and moves the image into the store. An image with a wrong digest is removed. Durable when it returns.
    pub(super) fn finish(mut self) -> Result<u64, HostError> {
        let found = digest_of(std::mem::take(&mut self.hasher));
        if found != self.sha256.as_str() {
            self.discard()?;
            return Err(mismatch("the image has another digest than was asked for", &self.sha256, &found));
        }
        self.file.sync_all().map_err(|error| self.io("write", &error))?;
        store::mark_used(&self.file).map_err(|error| self.io("date", &error))?;
        std::fs::rename(&self.path, self.store.whole(&self.sha256)).map_err(|error| self.io("rename", &error))?;
        store::remove(&self.store.source(&self.sha256))?;
        private_file::sync_folder(&self.store.folder).map_err(|error| self.io("store", &error))?;
        self.report.now(self.position, Some(self.position));
        Ok(self.position)
    }

    /// Removes it with its source document.
    fn discard(&self) -> Result<(), HostError> {
        store::remove(&self.store.source(&self.sha256))?;
        store::remove(&self.path)
    }

    /// Empties it.
    pub(super) fn clear(&mut self) -> Result<(), HostError> {
        // The source first: a part without a source is never resumed.
        store::remove(&self.store.source(&self.sha256))?;
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|error| self.io("empty", &error))?;
        self.hasher = sha2::Sha256::new();
        (self.position, self.synced_to, self.claimed_to) = (0, 0, 0);
        (self.source, self.total, self.resumed) = (None, None, false);
        Ok(())
    }

    /// Reserves space for at least `more` bytes.
    fn claim(&mut self, more: u64) -> Result<(), HostError> {
        let next = self.position.saturating_add(more);
        // If the size is known, all of it is reserved before the first byte.
        let total = self.total.map_or(next.saturating_add(CLAIM_STEP), |total| total.max(next));
        self.store.claim(&self.sha256, total, self.position)?;
        self.claimed_to = next.saturating_add(CLAIM_STEP);
        Ok(())
    }

    /// Reads the content of the file for its digest, and continues at its end.
    fn rehash(&mut self, stop: &CancellationToken) -> Result<(), HostError> {
        self.file.rewind().map_err(|error| self.io("read", &error))?;
        let (hasher, length) = hash(&mut self.file, stop, |_| ()).map_err(|failure| self.read_failed(failure))?;
        (self.hasher, self.position, self.synced_to) = (hasher, length, length);
        Ok(())
    }

    fn read_source(&self) -> Option<Source> {
        let bytes = private_file::read_secret(&self.store.source(&self.sha256), MAX_SOURCE_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn read_failed(&self, failure: HashFailed) -> HostError {
        match failure {
            HashFailed::Stopped => stopped(),
            HashFailed::Io(error) => self.io("read", &error),
        }
    }

    fn io(&self, what: &str, error: &(dyn std::error::Error + 'static)) -> HostError {
        HostError::because(IO, &format!("cannot {what} {}", self.path.display()), error)
    }
}

/// Opens and locks the part. Returns `None` if it is locked.
fn lock(path: &std::path::Path) -> Result<Option<File>, HostError> {
    let bad = |what: &str, error: &(dyn std::error::Error + 'static)| {
        HostError::because(IO, &format!("cannot {what} {}", path.display()), error)
    };
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(store::no_surprises());
    let file = options.open(path).map_err(|error| bad("open", &error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
        Err(std::fs::TryLockError::Error(error)) => return Err(bad("lock", &error)),
    }
    let meta = file.metadata().map_err(|error| bad("look at", &error))?;
    if !meta.is_file() {
        return Err(HostError::new(IO, format!("{} is not a regular file; remove it", path.display())));
    }
    // The previous holder of the lock may have given the file its final name: then it is not the part any more.
    let still = std::fs::symlink_metadata(path).is_ok_and(|named| named.ino() == meta.ino() && named.dev() == meta.dev());
    Ok(still.then_some(file))
}

/// Why a file has no digest.
#[derive(Debug)]
pub(super) enum HashFailed {
    /// The caller stopped waiting.
    Stopped,
    /// A system error.
    Io(std::io::Error),
}

/// Reads a file from its current position to its end. Returns the state of its digest and the number of bytes. `look` receives
/// every chunk.
pub(super) fn hash(
    file: &mut File,
    stop: &CancellationToken,
    mut look: impl FnMut(&[u8]),
) -> Result<(sha2::Sha256, u64), HashFailed> {
    let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Sequential);
    let mut hasher = sha2::Sha256::new();
    let (mut buffer, mut length) = (vec![0; READ_BYTES], 0_u64);
    loop {
        // A thread cannot be ended from outside, and a large image takes minutes.
        if stop.is_cancelled() {
            return Err(HashFailed::Stopped);
        }
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok((hasher, length)),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(HashFailed::Io(error)),
        };
        hasher.update(&buffer[..count]);
        length += count as u64;
        look(&buffer[..count]);
    }
}

/// Returns the digest in the form for comparison.
pub(super) fn digest_of(hasher: sha2::Sha256) -> String {
    format!("sha256:{}", gpuaas_contract::hex(&hasher.finalize()))
}

/// Returns the error for a wrong digest.
pub(super) fn mismatch(what: &str, wanted: &Digest, found: &str) -> HostError {
    HostError::new("image_digest_mismatch", format!("{what}: expected {wanted}, found {found}"))
}
