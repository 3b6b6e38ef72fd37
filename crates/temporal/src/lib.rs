//! The workflow driver that keeps runs in a Temporal server: one workflow per allocation, an activity per step.
//!
//! Temporal keeps the timers and the retries and shows every run in its UI. The store stays the source of truth: an activity is
//! one call of [`gpuaas_control::workflow::advance`], so a step that Temporal repeats, or that two workers run at once, takes
//! effect once. If Temporal loses its data, the server starts the runs again from the store. If a site stops using Temporal, the
//! embedded driver continues them.

mod driver;
mod run;
mod steps;

pub use driver::{Temporal, TemporalConfig, TemporalError};
pub use run::{AllocationRun, Begin};
pub use url::Url;
