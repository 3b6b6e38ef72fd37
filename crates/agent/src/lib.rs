//! The host agent: link → verify → journal → dispatch → handler → host → receipt.
//!
//! [`run`] is the whole agent in one future, [`enroll`] gives a host its identity. Nothing here is global to the process, so that
//! several agents can run in one (as `gpuaas dev` and the tests do).
//!
//! # Promises
//!
//! - A task runs at most once, even if it is delivered twice, reordered, replayed or restarted: accepted, started and finished
//!   are durable in the journal before the next step (`journal`, `pipeline`). Without its journal, or with an older one, the
//!   agent does not start.
//! - Nothing extends the agent's authority at run time: effect = compiled handler ∩ host policy ∩ signed task. Every parameter of
//!   a task has a key of the policy or a documented reason to have none (`policy/parameters.rs`).
//! - A broken link, a cancelled request or a restart never cancels work on the host. A receipt is kept until the control plane
//!   has confirmed it.
//! - A full disk leads to a refusal, never to a false success.
//! - The cleanup of a task reads from the leases what may have been touched, so it is the same after an error and after a crash.

// A new variant of our own enums must be considered everywhere.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod config;
pub mod device;
pub mod doctor;
mod enroll;
pub mod error_chain;
mod guests;
mod handler;
mod identity;
mod journal;
mod link;
mod pipeline;
pub mod policy;
mod renewal;
mod run;
pub mod service;
pub mod setup;
mod spool;
mod state;
pub mod status;
mod telemetry;
mod tenant;
mod trust;

pub use enroll::{Door, EnrollError, EnrollOptions, EnrollProgress, Enrolled, enroll};
pub use identity::IdentityError;
pub use journal::JournalError;
#[cfg(feature = "fuzz-support")]
pub use journal::fuzz_support as journal_fuzz_support;
pub use link::LinkTimings;
pub use link::dial::{DialError, TlsSetupError};
pub use link::http::HttpError;
pub use renewal::RenewalError;
pub use run::{RunError, RunEvent, RunOptions, accept_journal_loss, run};
pub use spool::SpoolError;
pub use state::StateError;

/// Version of the agent, as it appears in hellos and facts.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the configured host: this machine, or a simulated one in the state folder.
pub(crate) fn open_host(
    config: &config::Config,
    simulated_hostname: Option<&str>,
) -> Result<gpuaas_host::Host, gpuaas_host::SimError> {
    let folder = config.state_dir.join("host");
    match config.simulate {
        None => {
            gpuaas_host::private_file::make_folder(&folder)?;
            Ok(gpuaas_host::Host::Real(gpuaas_host::RealHost::new(&folder, config.guest_layout())))
        }
        Some(profile) => {
            let hostname = simulated_hostname.map_or_else(|| format!("sim-{profile}"), str::to_owned);
            Ok(gpuaas_host::Host::Sim(gpuaas_host::SimHost::open(&folder, profile, &hostname)?))
        }
    }
}

/// Returns whether the state folder has an identity: then [`run`] can be called without [`enroll`].
pub fn is_enrolled(state_dir: &std::path::Path) -> bool {
    identity::is_enrolled(state_dir)
}
