//! End-to-end tests with real processes: `gpuaas server`, `gpuaas-agent` and the CLI, on both stores and both transports.

#![allow(clippy::unwrap_used, reason = "tests")]

mod allocation_crash;
mod allocations;
mod attack;
mod cluster;
mod connections;
mod crash;
mod databases;
mod dev;
mod disk;
mod doubled_agent;
mod hostile;
mod link_double;
mod load;
mod namespaces;
mod pages;
mod rotten_journal;
mod single_execution;
mod step_ca;
mod support;
mod tour;
mod versions;
