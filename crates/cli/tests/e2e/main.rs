//! The whole house with real processes: `gpuaas server`, `gpuaas-agent` and the CLI, on both stores and both transports.

#![allow(clippy::unwrap_used, reason = "tests")]

mod cluster;
mod crash;
mod dev;
mod hostile;
mod link_double;
mod namespaces;
mod single_execution;
mod tour;
