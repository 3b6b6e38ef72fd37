//! What lies outside the process and answers in its own time: the network, chance, threads, the clock of TLS.
//!
//! In ordinary builds every name here is the plain thing: tokio's sockets, the kernel's random numbers, a thread. With the
//! `simulation` feature, code that runs on a host of a simulation gets that host's network, clock and chance instead, and
//! everything else still gets the plain thing. The agent, the store and the control plane are the same code in both worlds.

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

/// Fills `bytes` with random numbers. `false` if there are none.
pub fn random(bytes: &mut [u8]) -> bool {
    #[cfg(feature = "simulation")]
    if let Some(place) = simulation::here() {
        place.host.random(bytes);
        return true;
    }
    getrandom::fill(bytes).is_ok()
}

/// Whether the calling code runs on a host of a simulation.
#[cfg_attr(not(feature = "simulation"), inline(always))]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    if simulation::here().is_some() {
        return true;
    }
    false
}

/// How a message is put on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// How often; once, outside of a simulation.
    pub copies: usize,
    /// Ahead of what waits already; never, outside of a simulation.
    pub overtakes: bool,
}

/// How the next message is put on its way. A simulation may send it twice or let it overtake others.
#[cfg_attr(not(feature = "simulation"), inline(always))]
pub fn delivery() -> Delivery {
    #[cfg(feature = "simulation")]
    if let Some(place) = simulation::here() {
        return place.host.delivery();
    }
    Delivery { copies: 1, overtakes: false }
}

/// Whether a simulation wants this promise to be broken, to see that it notices. Always `false` elsewhere.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub fn broken(_promise: &str) -> bool {
    false
}

/// Whether a simulation wants this promise to be broken, to see that it notices. Always `false` elsewhere.
#[cfg(feature = "simulation")]
pub fn broken(promise: &str) -> bool {
    simulation::here().is_some_and(|place| place.host.breaks(promise))
}

/// The clock by which certificates are judged: the same one as everything else goes by.
#[derive(Debug)]
struct CertificateClock;

impl rustls::time_provider::TimeProvider for CertificateClock {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let since = Timestamp::now().since(Timestamp(0));
        Some(rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(since.as_secs())))
    }
}

/// The clock for TLS.
pub fn certificate_clock() -> Arc<dyn rustls::time_provider::TimeProvider> {
    Arc::new(CertificateClock)
}
