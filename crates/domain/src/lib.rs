//! Pure decisions of the control plane.
//!
//! `decide`-style functions take the state as loaded, what is asked, and the clock, and return a [`Decision`] (what to
//! write, in one transaction) or a [`Refusal`]. Nothing here waits, reads a clock or does I/O, so everything here can
//! be tested by calling it.

pub mod access;
pub mod audit_chain;
pub mod decision;
pub mod enrolment;
pub mod node;
pub mod refusal;
pub mod slice;
pub mod slot;
pub mod task;

pub use access::{Actor, Role};
pub use decision::{AuditEntry, Change, Decision, Event, Hint};
pub use refusal::{Refusal, RefusalKind};
