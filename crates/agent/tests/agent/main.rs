//! The agent against a small link server with real TLS, real signatures and real files.

mod enrolment;
mod forgery;
mod harness;
mod link;
mod server;
mod single_execution;
