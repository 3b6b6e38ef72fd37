//! The simulated side: the simulated host of the calling code, and its clock and randomness.
//!
//! Every simulated host has its own tokio runtime, and a new one after every crash. [`Host::settle`] assigns the current runtime
//! to the host. Code on any other runtime is not simulated.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use gpuaas_contract::simulation::{Hooks, install};
use gpuaas_contract::time::Timestamp;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use crate::Delivery;

/// The start of every simulation's clock.
pub const EPOCH: Timestamp = Timestamp(1_800_000_000_000_000);

static PLACES: OnceLock<RwLock<HashMap<Id, Place>>> = OnceLock::new();

fn places() -> &'static RwLock<HashMap<Id, Place>> {
    PLACES.get_or_init(|| {
        // At the first simulated host of the process, ids and time start to use these hooks.
        install(Hooks {
            now: || here().map(|place| place.now()),
            random: |bytes| here().map(|place| place.host.random(bytes)).is_some(),
        });
        RwLock::default()
    })
}

/// A simulated host. It survives its crashes.
#[derive(Debug)]
pub struct Host {
    chance: Mutex<u64>,
    clock_offset: AtomicI64,
    slowest_disk: AtomicU64,
    duplicates_percent: AtomicU64,
    activity: AtomicU64,
    broken: BTreeSet<String>,
    armed: AtomicBool,
}

impl Host {
    /// Creates a host whose randomness derives from `seed`, and that breaks these promises once it is armed.
    pub fn new(seed: u64, broken: impl IntoIterator<Item = String>) -> Arc<Self> {
        Arc::new(Self {
            chance: Mutex::new(seed),
            clock_offset: AtomicI64::new(0),
            slowest_disk: AtomicU64::new(0),
            duplicates_percent: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            broken: broken.into_iter().collect(),
            armed: AtomicBool::new(false),
        })
    }

    /// Assigns the current runtime to this host until the returned value is dropped.
    pub fn settle(self: &Arc<Self>) -> Settled {
        let id = Handle::current().id();
        let place = Place { host: Arc::clone(self), began: Instant::now(), elapsed: turmoil::sim_elapsed().unwrap_or_default() };
        places().write().unwrap_or_else(PoisonError::into_inner).insert(id, place);
        Settled(id)
    }

    /// Sets the difference between the host's clock and the true time, in microseconds.
    pub fn set_clock_offset(&self, micros: i64) {
        self.clock_offset.store(micros, Ordering::Relaxed);
    }

    /// Returns the difference between the host's clock and the true time, in microseconds.
    pub fn clock_offset(&self) -> i64 {
        self.clock_offset.load(Ordering::Relaxed)
    }

    /// Sets the longest time that databases and journals take to answer.
    pub fn set_slowest_disk(&self, slowest: Duration) {
        self.slowest_disk.store(u64::try_from(slowest.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the percentage of messages that are sent twice. The same percentage overtakes others.
    pub fn set_duplicates(&self, percent: u64) {
        self.duplicates_percent.store(percent, Ordering::Relaxed);
    }

    /// Starts to break the chosen promises.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
    }

    /// Returns a counter that grows whenever something durable may have changed.
    pub fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    pub(crate) fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn breaks(&self, promise: &str) -> bool {
        self.armed.load(Ordering::Relaxed) && self.broken.contains(promise)
    }

    fn next(&self) -> u64 {
        let mut state = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        next_random(&mut state)
    }

    pub(crate) fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    pub(crate) fn delivery(&self) -> Delivery {
        let percent = self.duplicates_percent.load(Ordering::Relaxed);
        if percent == 0 {
            return Delivery { copies: 1, overtakes: false };
        }
        let one_of = || self.next() % 100 < percent;
        Delivery { copies: if one_of() { 2 } else { 1 }, overtakes: one_of() }
    }

    pub(crate) async fn disk_delay(&self) {
        let slowest = self.slowest_disk.load(Ordering::Relaxed);
        if slowest > 0 {
            tokio::time::sleep(Duration::from_micros(self.next() % slowest)).await;
        }
    }
}

/// Returns the next number of SplitMix64. A simulation needs numbers that derive from a seed, not secrets.
pub fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Assigns a runtime to a host while it lives.
#[derive(Debug)]
pub struct Settled(Id);

impl Drop for Settled {
    fn drop(&mut self) {
        places().write().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// A host on one of its runtimes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) host: Arc<Host>,
    began: Instant,
    elapsed: Duration,
}

impl Place {
    fn now(&self) -> Timestamp {
        let true_time = EPOCH.plus(self.elapsed + self.began.elapsed());
        Timestamp(true_time.0.saturating_add(self.host.clock_offset()))
    }
}

/// Returns the host and runtime of the calling code, or `None` outside every simulation.
pub(crate) fn here() -> Option<Place> {
    let id = Handle::try_current().ok()?.id();
    PLACES.get()?.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the calling thread, and with it the simulated time, until the future is ready.
pub fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
