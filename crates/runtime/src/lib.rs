//! Everything outside the process: the network, randomness, threads, the clock of TLS.
//!
//! In ordinary builds every name here is the standard implementation: tokio's sockets, the kernel's random numbers, a thread.
//! With the `simulation` feature, code that runs on a simulated host gets that host's network, clock and randomness instead; all
//! other code still gets the standard one. The agent, the store and the control plane are the same code in both cases.

mod answer;
pub mod file_limit;
pub mod net;
pub mod places;
pub mod process;
pub mod secret;
#[cfg(feature = "simulation")]
pub mod simulation;

use std::sync::Arc;
use std::time::Duration;

pub use answer::{answer, blocking, recorded, spawn_thread};
use gpuaas_contract::time::Timestamp;

/// Fills `bytes` with random numbers. Returns `false` if there is no randomness.
pub fn random(bytes: &mut [u8]) -> bool {
    #[cfg(feature = "simulation")]
    if let Some(place) = simulation::here() {
        place.host.random(bytes);
        return true;
    }
    getrandom::fill(bytes).is_ok()
}

/// Returns whether the calling code runs on a simulated host.
#[cfg_attr(not(feature = "simulation"), inline(always))]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    if simulation::here().is_some() {
        return true;
    }
    false
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Number of copies. Always one outside a simulation.
    pub copies: usize,
    /// Whether it overtakes waiting messages. Always false outside a simulation.
    pub overtakes: bool,
}

/// Returns how the next message is sent. A simulation may send it twice or let it overtake others.
#[cfg_attr(not(feature = "simulation"), inline(always))]
pub fn delivery() -> Delivery {
    #[cfg(feature = "simulation")]
    if let Some(place) = simulation::here() {
        return place.host.delivery();
    }
    Delivery { copies: 1, overtakes: false }
}

/// Returns whether a simulation breaks this promise on purpose, to test that it notices. Always `false` elsewhere.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub fn broken(_promise: &str) -> bool {
    false
}

/// Returns whether a simulation breaks this promise on purpose, to test that it notices. Always `false` elsewhere.
#[cfg(feature = "simulation")]
pub fn broken(promise: &str) -> bool {
    simulation::here().is_some_and(|place| place.host.breaks(promise))
}

/// The clock for the validity of certificates: the same one as everywhere else.
#[derive(Debug)]
struct CertificateClock;

impl rustls::time_provider::TimeProvider for CertificateClock {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let since = Timestamp::now().since(Timestamp(0));
        Some(rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(since.as_secs())))
    }
}

/// Returns the clock for TLS.
pub fn certificate_clock() -> Arc<dyn rustls::time_provider::TimeProvider> {
    Arc::new(CertificateClock)
}
