//! A private Redis server for one test, which may kill it.

use crate::{Launch, PATIENCE, Program, TempDir, free_port, program, skip};

/// The variable with the URL of a Redis server that tests share. `cargo xtask test` sets it.
pub const REDIS_URL_VARIABLE: &str = "GPUAAS_TEST_REDIS_URL";
/// The variable with the path of `redis-server`. `cargo xtask test` sets it.
pub const REDIS_SERVER_VARIABLE: &str = "GPUAAS_REDIS_SERVER";

/// Returns the URL of the shared Redis server. Returns `None` and prints a line if there is none. Use names from
/// [`crate::unique_name`] on it.
pub fn redis_url() -> Option<String> {
    program::from_environment(REDIS_URL_VARIABLE, "a test on Redis", "Redis")
}

/// A Redis server without persistence, on its own port. Killed on drop.
#[derive(Debug)]
pub struct RedisServer {
    launch: Launch,
    port: u16,
    program: Program,
    // Declared after the program, so that it is dropped after it.
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server. Returns `None` and prints a line if `redis-server` is not installed.
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

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port of the server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server. All its data is lost.
    pub fn kill(&mut self) {
        self.program.sigkill();
    }

    /// Freezes the server, so that its connections stay open but get no answers.
    pub fn pause(&mut self) {
        self.program.pause();
    }

    /// Resumes the server after [`RedisServer::pause`].
    pub fn resume(&mut self) {
        self.program.resume();
    }

    /// Starts a killed server again, empty. Returns when it accepts connections.
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
