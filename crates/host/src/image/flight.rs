//! One import of an image, and all callers that wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::store::Store;
use super::{blocking, download, local};
use crate::HostError;
use crate::guests::{ImageStored, ImageWanted};

/// Waiting callers are notified at most this often, or after this many bytes.
const REPORT_EVERY: Duration = Duration::from_millis(250);
const REPORT_BYTES: u64 = 16 * 1024 * 1024;

/// An image that is being imported.
#[derive(Debug)]
pub(super) struct Flight {
    /// The first request for it.
    pub(super) wanted: ImageWanted,
    /// Its progress.
    pub(super) state: watch::Receiver<State>,
}

/// The progress of an import.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Bytes that are stored.
    pub(super) done: u64,
    /// Total bytes; 0 while unknown.
    pub(super) total: u64,
    /// The result.
    pub(super) outcome: Option<Result<ImageStored, HostError>>,
}

/// Notifies the waiting callers.
#[derive(Clone, Debug)]
pub(super) struct Report {
    state: Arc<watch::Sender<State>>,
    last: (u64, Instant),
}

impl Report {
    fn new(state: watch::Sender<State>) -> Self {
        Self { state: Arc::new(state), last: (0, Instant::now()) }
    }

    /// Notifies now.
    pub(super) fn now(&mut self, done: u64, total: Option<u64>) {
        self.last = (done, Instant::now());
        self.state.send_modify(|state| (state.done, state.total) = (done, total.unwrap_or(0)));
    }

    /// Notifies unless they were just notified: waking them for every packet would cost more than the packet.
    pub(super) fn soon(&mut self, done: u64, total: Option<u64>) {
        let (bytes, at) = self.last;
        if done.saturating_sub(bytes) >= REPORT_BYTES || at.elapsed() >= REPORT_EVERY {
            self.now(done, total);
        }
    }
}

/// Joins a running import of this image, or starts one. Returns its state, and whether it has the same request.
pub(super) fn join(store: &Arc<Store>, wanted: &ImageWanted, ended: &CancellationToken) -> (watch::Receiver<State>, bool) {
    let mut index = store.index();
    if let Some(flight) = index.flights.get(&wanted.sha256) {
        return (flight.state.clone(), flight.wanted == *wanted);
    }
    let (sender, state) = watch::channel(State::default());
    index.flights.insert(wanted.sha256.clone(), Flight { wanted: wanted.clone(), state: state.clone() });
    // A runtime that is shutting down drops the task at once, which then removes itself from the index.
    drop(index);
    let landing = Landing { store: Arc::clone(store), sha256: wanted.sha256.clone() };
    let (store, wanted, ended) = (Arc::clone(store), wanted.clone(), ended.clone());
    // Its own task: the caller may be cancelled.
    tokio::spawn(async move {
        let report = Report::new(sender);
        let outcome = tokio::select! {
            outcome = run(&store, &wanted, &report) => outcome,
            () = ended.cancelled() => Err(super::stopped()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(image = %wanted.sha256, code = error.code, error = %error, "an image could not be imported");
        }
        // Removed from the index first: later callers must not get an old failure.
        drop(landing);
        report.state.send_modify(|state| state.outcome = Some(outcome));
    });
    (state, true)
}

/// Removes the import from the index, however it ends.
struct Landing {
    store: Arc<Store>,
    sha256: Digest,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.store.index().flights.remove(&self.sha256);
        self.store.unclaim(&self.sha256);
    }
}

async fn run(store: &Arc<Store>, wanted: &ImageWanted, report: &Report) -> Result<ImageStored, HostError> {
    let (shared, sha256) = (Arc::clone(store), wanted.sha256.clone());
    let cached = blocking(move |_| {
        shared.prepare()?;
        shared.sweep(Timestamp::now())?;
        shared.touch(&sha256)
    });
    if let Some(bytes) = cached.await? {
        return Ok(ImageStored { bytes, was_cached: true });
    }
    let _turn = store.turns.acquire().await;
    let local = match &wanted.path {
        Some(path) => {
            let (shared, path) = (Arc::clone(store), path.clone());
            blocking(move |_| local::open(&shared.image_folders, &path)).await?
        }
        None => None,
    };
    let bytes = match (local, &wanted.url) {
        (Some(file), _) => local::copy(store, &wanted.sha256, file, report).await?,
        (None, Some(url)) => download::run(store, wanted, url, report).await?,
        (None, None) => {
            let looked =
                wanted.path.as_ref().map_or_else(String::new, |path| format!(", {path} is in none of the image folders"));
            let message = format!("the image {} is not in the store{looked} and no address was given for it", wanted.sha256);
            return Err(HostError::new("image_missing", message));
        }
    };
    tracing::info!(image = %wanted.sha256, bytes, "an image is in the store");
    Ok(ImageStored { bytes, was_cached: false })
}
