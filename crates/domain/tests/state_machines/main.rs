//! Checks that `docs/state-machines.md` shows what the code decides: drives the decision functions through all reachable states and
//! compares the observed transitions with the diagrams.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/hosts.rs"]
mod hosts;
#[path = "../support/ledger.rs"]
mod ledger;
#[path = "../support/site.rs"]
mod site;

mod allocations;
mod diagram;
mod nodes;
mod observed;
mod slots;
mod tasks;
