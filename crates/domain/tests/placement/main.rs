//! Placement: which slots a request gets, and what is reported if nothing fits.

#[path = "../support/mod.rs"]
mod support;

mod capacity;
mod properties;
mod rig;
mod rules;
mod words;
