//! Pure decisions of the control plane.
//!
//! `decide`-style functions take the state as loaded, what is asked, and the clock, and return a [`Decision`] (what to
//! write, in one transaction) or a [`Refusal`]. Nothing here waits, reads a clock or does I/O, so everything here can
//! be tested by calling it.
//!
//! # Promises
//!
//! - A task is complete only with a receipt from that node's key over that task's digest. The control plane says that a task did not
//!   run only where it can prove that no node ever will: it was never sent, or the node has said since that it does not have it. What
//!   was sent to a node that fell silent ends as `lost`: it may have run ([`task`]).
//! - Discovery never creates slots. An operator's approval does ([`slot::approve()`]).
//! - A slot serves one allocation at a time, and another one only after a complete proof of cleanup in a receipt, or where nothing ever
//!   ran on it ([`slice::settle()`]). Every end of a task that decides about slots settles them in its own commit: the store takes no other.
//! - One allocation has one place; a machine is sliced or leased as a whole, never both ([`machine`]).
//! - What is created with a key, another key or a role, is never more than the key and does not outlive it (`access/mint.rs`).
//! - Every change of state has an event and an audit entry in the same [`Decision`].
//!
//! `docs/state-machines.md` draws the states of nodes, slots, tasks and allocations; `tests/state_machines` compares it with this code.

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
