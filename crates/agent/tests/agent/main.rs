//! The agent against a small link server with real TLS, real signatures and real files.

mod enrollment;
mod forgery;
mod full_disk;
mod harness;
mod link;
mod program;
mod server;
mod setup;
mod single_execution;
