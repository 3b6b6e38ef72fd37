//! Images of guests: fetched once, stored by digest, checked before any tool opens them.
//!
//! A separate task imports an image (`flight`), one per digest for any number of callers: it copies the image from a folder of
//! the host's owner (`local`) or downloads it (`download`, with one `http` request at a time). The image grows in a `part` and
//! gets its name in the `store` when its digest is right.

mod download;
mod flight;
pub mod format;
mod http;
mod local;
mod part;
mod store;
#[cfg(test)]
mod tests;
mod tls;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::guest::ImageFormat;
use tokio_util::sync::CancellationToken;

use crate::HostError;
use crate::guests::{ImageStored, ImageWanted, Layout, Progress};
use flight::Report;
use part::{HashFailed, Part, Source};
use store::Store;

/// Returns whether an image may come from this address: it is plain and below one of these, or `*` is among them.
pub fn is_below_any(url: &str, sources: &[String]) -> bool {
    url::Url::parse(url).is_ok_and(|url| url.is_allowed(sources))
}

const IO: &str = "image_io";
/// How often to check whether another process has released a part.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Settings that tests change.
#[derive(Clone, Debug)]
struct Settings {
    /// A server that is silent for this long is given up.
    stall: Duration,
    /// The first delay between two attempts.
    backoff: Duration,
    /// Files of trusted certificates; the first existing one is used.
    ca_bundles: Vec<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let ca_bundles = tls::BUNDLES.iter().map(PathBuf::from).collect();
        Self { stall: Duration::from_secs(30), backoff: Duration::from_millis(500), ca_bundles }
    }
}

/// The host's image store. Cheap to clone. When the last clone is dropped, imports stop; they continue at the next request for
/// the image.
#[derive(Clone, Debug)]
pub struct Images {
    owner: Arc<Owner>,
}

#[derive(Debug)]
struct Owner {
    store: Arc<Store>,
    ended: CancellationToken,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// While this lives, the image is not evicted.
#[derive(Debug)]
pub struct ImageGuard {
    store: Arc<Store>,
    sha256: Digest,
}

impl Drop for ImageGuard {
    fn drop(&mut self) {
        self.store.index().let_go(&self.sha256);
    }
}

impl Images {
    /// Creates the store of this layout.
    pub fn new(layout: &Layout) -> Self {
        Self::with_settings(layout, Settings::default())
    }

    fn with_settings(layout: &Layout, settings: Settings) -> Self {
        let store = Arc::new(Store::new(layout, settings));
        Self { owner: Arc::new(Owner { store, ended: CancellationToken::new() }) }
    }

    /// Returns the path of the image with this digest, whether it exists or not. A caller that opens it must hold it first
    /// ([`Images::hold`]).
    pub fn path_of(&self, sha256: &Digest) -> PathBuf {
        self.store().whole(sha256)
    }

    /// Protects the image with this digest from eviction, whether it exists or not.
    pub fn hold(&self, sha256: &Digest) -> ImageGuard {
        self.store().index().hold(sha256);
        ImageGuard { store: Arc::clone(self.store()), sha256: sha256.clone() }
    }

    /// Imports an image into the store, if it is not there. The import continues if the caller is cancelled, and the next caller
    /// finds it. The total passed to `progress` is 0 while it is unknown.
    pub async fn fetch(&self, wanted: &ImageWanted, progress: Progress<'_>) -> Result<ImageStored, HostError> {
        // Protects it between the end of the import and the return to the caller.
        let _held = self.hold(&wanted.sha256);
        loop {
            let (mut state, same) = flight::join(self.store(), wanted, &self.owner.ended);
            let outcome = loop {
                let seen = state.borrow_and_update().clone();
                if let Some(outcome) = seen.outcome {
                    break outcome;
                }
                progress(seen.done, seen.total);
                if state.changed().await.is_err() {
                    break Err(stopped());
                }
            };
            if let Ok(stored) = &outcome {
                progress(stored.bytes, stored.bytes);
            }
            // Another caller's request with another source failed. This says nothing about this caller's source.
            if outcome.is_ok() || same || self.owner.ended.is_cancelled() {
                return outcome;
            }
        }
    }

    /// Reads a stored image again and checks its digest and its declared format. Returns the size of the disk inside. An image
    /// with a wrong digest is removed, so that the next [`Images::fetch`] imports it again.
    pub async fn verify(&self, sha256: &Digest, format: ImageFormat) -> Result<u64, HostError> {
        let held = self.hold(sha256);
        blocking(move |stop| verify(&held.store, &held.sha256, format, stop)).await
    }

    fn store(&self) -> &Arc<Store> {
        &self.owner.store
    }
}

fn verify(store: &Store, sha256: &Digest, format: ImageFormat, stop: &CancellationToken) -> Result<u64, HostError> {
    let path = store.whole(sha256);
    let Some(mut file) = store::open(&path)? else {
        return Err(HostError::new("image_missing", format!("the image {sha256} is not in the store; fetch it again")));
    };
    let mut head = Vec::new();
    let keep_head = |piece: &[u8]| {
        let missing = format::HEAD_BYTES.saturating_sub(head.len());
        head.extend_from_slice(&piece[..piece.len().min(missing)]);
    };
    let (hasher, bytes) = match part::hash(&mut file, stop, keep_head) {
        Ok(hashed) => hashed,
        Err(HashFailed::Stopped) => return Err(stopped()),
        Err(HashFailed::Io(error)) => {
            let what = format!("cannot read {}; if that stays so, remove it", path.display());
            return Err(HostError::because(IO, &what, &error));
        }
    };
    let found = part::digest_of(hasher);
    if found != sha256.as_str() {
        store::remove(&path)?;
        return Err(part::mismatch("the stored image was damaged and is removed; fetch it again", sha256, &found));
    }
    store::mark_used(&file).map_err(|error| HostError::because(IO, &format!("cannot use {}", path.display()), &error))?;
    let declared = match format {
        ImageFormat::Qcow2 => format::Declared::Qcow2,
        ImageFormat::Raw => format::Declared::Raw,
    };
    match format::inspect(&head, declared) {
        Ok(format::Image::Qcow2 { virtual_bytes }) => Ok(virtual_bytes),
        Ok(format::Image::Raw) => Ok(bytes),
        Err(refused) => Err(HostError::new(refused.code(), refused.to_string())),
    }
}

/// Opens the part of an image. Another process may be writing to it, or a thread of this process that is about to end.
async fn open_part(store: &Arc<Store>, sha256: &Digest, source: Option<&Source>, report: &Report) -> Result<Part, HostError> {
    let until = tokio::time::Instant::now() + store.settings.stall;
    loop {
        let (shared, sha256, source, report) = (Arc::clone(store), sha256.clone(), source.cloned(), report.clone());
        if let Some(part) = blocking(move |stop| Part::open(&shared, &sha256, source.as_ref(), &report, stop)).await? {
            return Ok(part);
        }
        if tokio::time::Instant::now() >= until {
            return Err(HostError::new(IO, "another process is bringing in this image; is the agent running twice?"));
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Runs a blocking call on its own thread. The call is cancelled when its caller is.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce(&CancellationToken) -> Result<T, HostError> + Send + 'static,
) -> Result<T, HostError> {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    match tokio::task::spawn_blocking(move || call(&stop)).await {
        Ok(result) => result,
        Err(error) => Err(HostError::because(IO, "a thread of the agent ended", &error)),
    }
}

fn stopped() -> HostError {
    HostError::new(IO, "the agent stopped while the image was being brought in; what is there is kept")
}
