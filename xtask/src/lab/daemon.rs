//! Daemons that the lab runs in the foreground and stops itself.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::cleanup::Cleanup;
use super::program::wait_until;

/// How long a daemon may take to start. libvirtd first queries QEMU for its capabilities.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running daemon. The cleanup ends it.
pub(super) struct Daemon {
    name: &'static str,
    process: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts the daemon, with its log in `folder`.
    pub(super) fn start(name: &'static str, command: &mut Command, folder: &Path, cleanup: &mut Cleanup) -> Result<Self, String> {
        let log = folder.join(format!("{name}.log"));
        let output = std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        // A process group of its own keeps Ctrl-C from reaching it, so that the cleanup decides the order in which things stop.
        command.process_group(0).stdin(Stdio::null()).stdout(output).stderr(errors);
        let process = command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
        cleanup.end(&process)?;
        Ok(Self { name, process, log })
    }

    /// Waits until `answers` returns true. Fails if the daemon ends first.
    pub(super) fn wait_until(&mut self, mut answers: impl FnMut() -> bool) -> Result<(), String> {
        let mut ended = None;
        let waited = wait_until("it does not answer", START_TIMEOUT, || {
            ended = self.process.try_wait().ok().flatten();
            ended.is_some() || answers()
        });
        let reason = match (ended, waited) {
            (Some(status), _) => format!("it ended with {status}"),
            (None, Err(reason)) => reason,
            (None, Ok(())) => return Ok(()),
        };
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(10).collect();
        Err(format!("{}: {reason}\n{}", self.name, last.into_iter().rev().collect::<Vec<_>>().join("\n")))
    }

    /// Kills the daemon with SIGKILL.
    pub(super) fn kill(mut self) -> Result<(), String> {
        self.process.kill().and_then(|()| self.process.wait()).map(|_| ()).map_err(|error| format!("{}: {error}", self.name))
    }
}
