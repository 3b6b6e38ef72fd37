//! Pure decisions of the control plane.
//!
//! The functions take the state as it was loaded, the request, and the current time, and return a [`Decision`] (what to write, in one
//! transaction) or a [`Refusal`]. Nothing here waits, reads a clock or does I/O, so all of it can be tested by calling it.
//!
//! # Promises
//!
//! - A task is complete only with a receipt that is signed with that node's key and names the task's digest. The control plane states that
//!   a task did not run only where it can prove that no node ever will: the task was never sent, or the node has reported since that it
//!   does not have it. A task that was sent to a node that fell silent ends as `lost`: it may have run ([`task`]).
//! - Discovery never creates slots. An operator's approval does ([`slot::approve()`]).
//! - A slot serves one allocation at a time. It serves another one only after a complete cleanup proof in a receipt, or if nothing ever ran
//!   on it ([`slice::settle()`]). The end of a task that decides about slots settles them in the same commit: the store accepts no other.
//! - An allocation has one place; a machine is sliced or leased as a whole, never both ([`machine`]).
//! - A key or a role that is granted with an API key never permits more than that key and does not outlive it (`access/mint.rs`).
//! - Every state change has an event and an audit entry in the same [`Decision`].
//!
//! `docs/state-machines.md` shows the states of nodes, slots, tasks and allocations; `tests/state_machines` compares it with this code.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

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
pub use decision::{AuditEntry, Change, Decision, OutboxEvent, Wakeup};
pub use refusal::{Refusal, RefusalKind};
