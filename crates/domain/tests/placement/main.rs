//! Placement: who gets which slots, and what is said if nobody does.

#[path = "../support/mod.rs"]
mod support;

mod capacity;
mod properties;
mod rig;
mod rules;
mod words;
