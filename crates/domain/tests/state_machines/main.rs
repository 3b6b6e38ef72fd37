//! `docs/state-machines.md` draws what the code decides: the decision functions are driven through every state they can reach, and
//! the transitions that are seen are compared with the diagrams.

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
