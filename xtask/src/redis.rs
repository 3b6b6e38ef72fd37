//! A private Redis server that keeps its data in memory, on a port of its own. It is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::Daemon;
use crate::guard::Guard;
use crate::requirements::in_path;

/// The environment variable with the path of the program, read by this program and by the tests.
pub(crate) const PROGRAM_VARIABLE: &str = "GPUAAS_REDIS_SERVER";

/// Finds the server: from the variable, or in `PATH`.
pub(crate) fn program() -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|path| path.is_file());
    given.or_else(|| in_path("redis-server"))
}

/// Starts a server under `folder` and returns its URL. The guard stops it.
pub(crate) fn start(folder: &Path, guard: &mut Guard) -> Result<String, String> {
    let program = program().ok_or("redis-server is not installed")?;
    let daemon = Daemon { name: "redis-server", folder, ready: "Ready to accept connections", watch: Guard::redis };
    let port = daemon.start(guard, |port| {
        let mut command = Command::new(&program);
        command.args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        command
    })?;
    Ok(format!("redis://127.0.0.1:{port}"))
}
