//! An image that is not complete yet: a file that grows at its end, with the digest of what is in it.

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

/// Bytes that are read at once.
pub(super) const READ_BYTES: usize = 1024 * 1024;
/// How far ahead room is made sure of when the size of an image is not known, and how often it is looked at when it is.
const CLAIM_STEP: u64 = 64 * 1024 * 1024;
/// How much waits in memory for the disk at most: the host's memory is the guests'.
const SYNC_STEP: u64 = 256 * 1024 * 1024;
/// Largest document about a source.
const MAX_SOURCE_BYTES: u64 = 16 * 1024;

/// Where the bytes of a part are from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    /// The address without what follows `?`: that may be a secret, and is another one for every request.
    pub(super) url: String,
    /// Digest of the whole address.
    pub(super) url_sha256: Digest,
    /// What the server calls this version of the file, if it does.
    pub(super) etag: Option<String>,
    /// Size of the whole file, if the server says so.
    pub(super) length: Option<u64>,
}

impl Source {
    /// An address of which nothing is known yet.
    pub(super) fn of(url: &str) -> Self {
        let plain = url.split('?').next().unwrap_or_default().to_owned();
        Self { url: plain, url_sha256: Digest::of(url.as_bytes()), etag: None, length: None }
    }

    /// Whether what this address gives can go on where the part ends. With a name for the version the server is asked to be sure.
    fn continues(&self, part: &Self) -> bool {
        self.url_sha256 == part.url_sha256 || (self.url == part.url && part.etag.is_some())
    }
}

/// The part of an image that is there. Nobody else writes to it: the file is locked as long as this lives. Every method blocks.
#[derive(Debug)]
pub(super) struct Part {
    store: Arc<Store>,
    sha256: Digest,
    path: PathBuf,
    file: File,
    hasher: sha2::Sha256,
    position: u64,
    /// Where it is from, if it can be gone on with later.
    source: Option<Source>,
    /// Size of the whole image, if somebody said so.
    total: Option<u64>,
    /// Some of it is from an earlier request.
    resumed: bool,
    /// Up to here there is room.
    claimed_to: u64,
    synced_to: u64,
    report: Report,
}

impl Part {
    /// Opens the part of an image, to go on with `source`, or from its beginning if it is from elsewhere. `None` if somebody else is
    /// writing to it.
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
                tracing::info!(image = %sha256, bytes = length, "going on with a part of an image");
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

    /// How much there is.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Where it is from, if there is any of it.
    pub(super) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Nothing is missing, as far as one knows before the digest.
    pub(super) fn is_complete(&self) -> bool {
        self.total == Some(self.position)
    }

    /// Nobody has said how much it will be: only the end of the answer tells.
    pub(super) fn total_is_missing(&self) -> bool {
        self.total.is_none()
    }

    /// Some of it is from an earlier request, so a wrong digest may mean that the file has changed in between.
    pub(super) fn was_resumed(&self) -> bool {
        self.resumed
    }

    /// What follows is the rest of what is there, and then it is so much, if the server says so.
    pub(super) fn go_on(&mut self, total: Option<u64>) -> Result<(), HostError> {
        self.total = self.total.or(total);
        self.resumed = true;
        self.claim(0)
    }

    /// What follows begins at the beginning, from here. Written down first, so that the bytes are never taken for somebody else's.
    pub(super) fn begin(&mut self, source: Source) -> Result<(), HostError> {
        if self.position > 0 {
            tracing::info!(image = %self.sha256, "beginning an image anew");
        }
        self.clear()?;
        let document = serde_json::to_vec(&source).map_err(|error| self.io("describe", &error))?;
        let path = self.store.source(&self.sha256);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(store::no_surprises());
        // If the host fails at this moment there is half a document, which nobody believes.
        options.open(&path).and_then(|mut file| file.write_all(&document)).map_err(|error| self.io("describe", &error))?;
        self.total = source.length;
        self.source = Some(source);
        self.claim(0)
    }

    /// Appends.
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

    /// Copies a file of this host. What is hashed is what is stored, whatever happens to the file meanwhile.
    pub(super) fn copy(&mut self, from: &mut File, length: u64, stop: &CancellationToken) -> Result<(), HostError> {
        self.clear()?;
        self.total = Some(length);
        self.claim(0)?;
        // The two share their blocks where the file system can do that; ours do not change when the other's do.
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

    /// Compares the digest and puts the image into the store. A wrong one is removed. Durable when it returns.
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

    /// Removes it with everything that is known of it.
    fn discard(&self) -> Result<(), HostError> {
        store::remove(&self.store.source(&self.sha256))?;
        store::remove(&self.path)
    }

    /// Back to nothing.
    pub(super) fn clear(&mut self) -> Result<(), HostError> {
        // First what it is from: a part of which that is not known is never gone on with.
        store::remove(&self.store.source(&self.sha256))?;
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|error| self.io("empty", &error))?;
        self.hasher = sha2::Sha256::new();
        (self.position, self.synced_to, self.claimed_to) = (0, 0, 0);
        (self.source, self.total, self.resumed) = (None, None, false);
        Ok(())
    }

    /// Room for `more` bytes at least.
    fn claim(&mut self, more: u64) -> Result<(), HostError> {
        let next = self.position.saturating_add(more);
        // If the size is known, there is room for all of it before the first byte.
        let total = self.total.map_or(next.saturating_add(CLAIM_STEP), |total| total.max(next));
        self.store.claim(&self.sha256, total, self.position)?;
        self.claimed_to = next.saturating_add(CLAIM_STEP);
        Ok(())
    }

    /// Reads what is in the file, for its digest, and goes on at its end.
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

/// Opens and locks the part. `None` if somebody else has it.
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
    // Whoever had the lock before may have given the file its final name: then this is not the part any more.
    let still = std::fs::symlink_metadata(path).is_ok_and(|named| named.ino() == meta.ino() && named.dev() == meta.dev());
    Ok(still.then_some(file))
}

/// Why a file has no digest.
#[derive(Debug)]
pub(super) enum HashFailed {
    /// Nobody wants to know any more.
    Stopped,
    /// The system refused.
    Io(std::io::Error),
}

/// Reads a file from where it stands to its end: the state of its digest, and how much it was. `look` sees every piece.
pub(super) fn hash(
    file: &mut File,
    stop: &CancellationToken,
    mut look: impl FnMut(&[u8]),
) -> Result<(sha2::Sha256, u64), HashFailed> {
    let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Sequential);
    let mut hasher = sha2::Sha256::new();
    let (mut buffer, mut length) = (vec![0; READ_BYTES], 0_u64);
    loop {
        // Threads cannot be ended from outside, and a large image takes minutes.
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

/// The digest, in the form in which it is compared.
pub(super) fn digest_of(hasher: sha2::Sha256) -> String {
    format!("sha256:{}", gpuaas_contract::hex(&hasher.finalize()))
}

/// The error for a wrong digest.
pub(super) fn mismatch(what: &str, wanted: &Digest, found: &str) -> HostError {
    HostError::new("image_digest_mismatch", format!("{what}: wanted {wanted}, found {found}"))
}
