//! Shared helpers for the end-to-end tests. This crate is a dev-dependency only; a tidy test checks that.
//!
//! Helpers panic with a message when something is wrong. If a test cannot run on this machine (no PostgreSQL, not root), the
//! helper prints the reason on standard error and returns `None`; the test then returns.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start real programs and wait for them")]

mod database;
mod disk;
mod failpoints;
mod folder;
mod namespace;
mod nats_server;
mod postgres;
mod program;
mod proof;
mod redis_server;
mod step_ca_server;
mod tcp_proxy;
mod wait;

pub use database::{PG_URL_VARIABLE, PgDatabase, pg_database};
pub use disk::{Ballast, SmallDisk};
pub use failpoints::Failpoints;
pub use folder::TempDir;
pub use namespace::NetNs;
pub use nats_server::{NATS_SERVER_VARIABLE, NATS_URL_VARIABLE, NatsServer, nats_url, unique_name};
pub use postgres::PrivatePostgres;
pub use program::{Launch, Program};
pub use proof::{PROVE_COUNT_VARIABLE, PROVE_VARIABLE, proof_count};
pub use redis_server::{REDIS_SERVER_VARIABLE, REDIS_URL_VARIABLE, RedisServer, redis_url};
pub use step_ca_server::{CertificateFiles, STEP_CA_OTHER_PROVISIONER, STEP_CA_PROVISIONER, STEP_CA_VARIABLE, StepCaServer};
pub use tcp_proxy::TcpProxy;
pub use wait::{eventually, eventually_async};

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A long time limit. A working machine, even a slow and busy one, never reaches it.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns a port that is free on every address.
///
/// The port is between 10000 and 31999, below the range for outgoing connections, and never the same twice in a process.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs run concurrently, so each starts its search at a different port.
    let first = u16::try_from(std::process::id() % 220).unwrap_or(0) * 100;
    for _ in 0..22_000 {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 22_000;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no port between 10000 and 31999 is free");
}

/// Prints prominently why a test is skipped.
pub fn skip(what: &str, why: &str) {
    use std::io::Write as _;
    // Not `eprintln!`: the test harness captures that for passing tests.
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {what}: {why} ***\n");
}
