//! The workflow driver that lets a Temporal server remember runs: one workflow per allocation, an activity per step.
//!
//! Temporal holds the times and the retries and shows every run in its interface. The truth stays in the store: an activity is one call
//! of [`gpuaas_control::workflow::advance`], so a step that Temporal repeats, or that two workers run at once, happens once. If Temporal
//! loses everything, the server starts the runs again from the store; if a site leaves Temporal, the embedded driver goes on with them.

mod driver;
mod run;
mod steps;

pub use driver::{Temporal, TemporalConfig, TemporalError};
pub use run::{AllocationRun, Begin};
pub use url::Url;
