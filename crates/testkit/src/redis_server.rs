//! A Redis of one test alone, which may kill it.

use crate::{Launch, PATIENCE, Program, TempDir, free_port, program, skip};

/// The variable with the URL of a Redis that tests share. `cargo xtask test` sets it.
pub const REDIS_URL_VARIABLE: &str = "GPUAAS_TEST_REDIS_URL";
/// The variable with the path of `redis-server`. `cargo xtask test` sets it.
pub const REDIS_SERVER_VARIABLE: &str = "GPUAAS_REDIS_SERVER";

/// The URL of the Redis that all tests share, or a loud line that there is none. Use names from [`crate::unique_name`] on it.
pub fn redis_url() -> Option<String> {
    program::from_environment(REDIS_URL_VARIABLE, "a test on Redis", "Redis")
}

/// A Redis that keeps nothing on disk, on its own port. Killed with this value.
#[derive(Debug)]
pub struct RedisServer {
    launch: Launch,
    port: u16,
    program: Program,
    // After the program, so that it is dropped after it.
    folder: TempDir,
}

impl RedisServer {
    /// Starts one; `None` (with a loud line) where it cannot be had.
    pub fn start() -> Option<Self> {
        let Some(path) = program::find(REDIS_SERVER_VARIABLE, "redis-server", "redis") else {
            skip("a test that kills Redis", "redis-server is not installed; run `cargo xtask test`, which installs it");
            return None;
        };
        let folder = TempDir::new();
        let port = free_port();
        let launch = Launch::at(path).args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let program = Self::run(&launch, &folder);
        Some(Self { launch, port, program, folder })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it, with everything it knew.
    pub fn kill(&mut self) {
        self.program.sigkill();
    }

    /// Freezes it: its connections stay open and nobody answers.
    pub fn pause(&mut self) {
        self.program.pause();
    }

    /// Lets it go on after [`RedisServer::pause`].
    pub fn resume(&mut self) {
        self.program.resume();
    }

    /// Starts it again, empty; returns when it takes connections. It must have been killed.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(!self.program.is_running(), "Redis was not killed");
        self.program = Self::run(&self.launch, &self.folder);
    }

    fn run(launch: &Launch, folder: &TempDir) -> Program {
        let mut program = launch.start(folder.path());
        program.wait_for_line("Ready to accept connections", PATIENCE);
        program
    }
}
