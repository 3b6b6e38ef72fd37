//! What must hold for any bytes: the bodies of the fuzz targets.
//!
//! Each function takes one input, panics if a promise is broken, and says whether the input got past the checks, so that a
//! test can tell a corpus that reaches the code behind them from one that does not. `fuzz/` holds the shims for libFuzzer;
//! the corpora in it are replayed by an ordinary test of this crate. `cargo xtask fuzz` runs the real thing.

mod agent_config;
mod agent_journal;
mod agent_policy;
pub mod corpus;
mod document;
mod envelope;
mod fixture;
mod input;
mod link_messages;
mod poll_bodies;
mod receipt;
mod seeds;
mod task;
mod verifier_set;

pub use agent_config::agent_config;
pub use agent_journal::agent_journal;
pub use agent_policy::agent_policy;
pub use envelope::envelope;
pub use link_messages::link_messages;
pub use poll_bodies::poll_bodies;
pub use receipt::receipt;
pub use seeds::seeds;
pub use task::{task_output, task_params};
pub use verifier_set::verifier_set;

/// A body and its name, which is that of its shim and of its folders.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// Every target there is.
pub const TARGETS: [Target; 10] = [
    ("agent_config", agent_config),
    ("agent_journal", agent_journal),
    ("agent_policy", agent_policy),
    ("envelope", envelope),
    ("link_messages", link_messages),
    ("poll_bodies", poll_bodies),
    ("receipt", receipt),
    ("task_output", task_output),
    ("task_params", task_params),
    ("verifier_set", verifier_set),
];
