//! A whole cluster in a deterministic simulation.
//!
//! One run is one seed: the real control plane on SQLite and three real agents with their journals, over a simulated network,
//! simulated clocks and randomness derived from the seed. For a minute or two of simulated time links are cut or go silent,
//! programs crash, disks and links are slow, clocks are wrong, certificates expire, keys and nodes are revoked, messages arrive
//! twice and out of order, and a thief uses a copy of a node's identity. After every step the promises are compared with what the
//! hosts really did. Then all faults are repaired, and everything must finish.

mod chance;
mod cluster;
mod operator;
mod plan;
mod promises;
mod thief;

use std::fmt;

pub use cluster::run;

/// The result of a run that kept every promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed that the run derives from.
    pub seed: u64,
    /// Everything that changed, in order. Two runs of one seed have the same history.
    pub history: Vec<String>,
    /// Number of tasks that were requested.
    pub tasks: usize,
    /// Number of effects on hosts.
    pub effects: usize,
}

/// A run that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The seed. It always breaks the same promise in the same way.
    pub seed: u64,
    /// What went wrong. It begins with the name of the broken promise.
    pub what: String,
    /// The time in simulated seconds, and the history.
    pub account: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "{}", self.account)
    }
}
