//! What the end-to-end tests share. Dev-dependency only; a tidy test keeps it so.
//!
//! Helpers panic with a sentence when something is wrong, because in a test that is the report. Where a test cannot run on this machine
//! (no PostgreSQL, not root), the helper says so on standard error and returns `None`; the test then returns.

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

/// A long time: what must happen within it always does on a machine that works, even a slow and busy one.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A port that nobody listens on, on any address.
///
/// From 10000 to 31999, below the range that outgoing connections take theirs from, and never the same one twice in a process.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs run at the same time: each starts to look at another place.
    let first = u16::try_from(std::process::id() % 220).unwrap_or(0) * 100;
    for _ in 0..22_000 {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 22_000;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no port between 10000 and 31999 is free");
}

/// Says why a test does not run here, so loudly that nobody takes it for a pass.
pub fn skip(what: &str, why: &str) {
    use std::io::Write as _;
    // Not `eprintln!`: the test harness keeps what a passing test prints that way.
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {what}: {why} ***\n");
}
