//! Pure decisions of the control plane.
//!
//! `decide`-style functions take the state as loaded, what is asked, and the clock, and return a [`Decision`] (what to
//! write, in one transaction) or a [`Refusal`]. Nothing here waits, reads a clock or does I/O, so everything here can
//! be tested by calling it.

pub mod access;
pub mod allocation;
pub mod audit_chain;
pub mod budget;
pub mod caps;
pub mod catalog;
pub mod decision;
pub mod enrollment;
pub mod idempotency;
pub mod machine;
pub mod maintenance;
pub mod names;
pub mod node;
pub mod placement;
pub mod quota;
pub mod refusal;
pub mod resource;
pub mod slice;
pub mod slot;
pub mod task;
pub mod tenancy;
pub mod webhook;

pub use access::Actor;
pub use decision::{AuditEntry, Change, Decision, Event, Wakeup};
pub use refusal::{Refusal, RefusalKind};
