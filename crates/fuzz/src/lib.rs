//! The bodies of the fuzz targets: the properties that must hold for arbitrary bytes.
//!
//! Each function takes one input, panics if a property is violated, and returns whether the code under test accepted the input. A
//! test uses the result to tell whether a corpus reaches the code behind the first checks. `fuzz/` has the shims for libFuzzer,
//! and an ordinary test of this crate replays the corpora in it. `cargo xtask fuzz` runs the fuzzer.

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

/// A target: its name, which its shim and its folders share, and its body.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// All targets, by name.
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
