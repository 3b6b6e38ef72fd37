//! Starts a server and waits for the line that it prints when it is ready.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::postgres::free_port;

/// How long a fresh server may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How to start a server.
pub(crate) struct Daemon<'a> {
    /// Name for messages, and of its log file.
    pub(crate) name: &'static str,
    /// Working folder, which also contains the log.
    pub(crate) folder: &'a Path,
    /// Text that appears in the log once the server is ready.
    pub(crate) ready: &'static str,
    /// Registers the server's process id with the guard; 0 withdraws it.
    pub(crate) watch: fn(&mut Guard, u32) -> Result<(), String>,
}

impl Daemon<'_> {
    /// Starts `command` on a free port, waits until the server is ready, and returns the port. The guard stops the server.
    pub(crate) fn start(&self, guard: &mut Guard, command: impl Fn(u16) -> Command) -> Result<u16, String> {
        std::fs::create_dir_all(self.folder).map_err(|error| format!("{}: {error}", self.folder.display()))?;
        let mut last_error = String::new();
        // Another program may take the port before the server binds it, so several ports are tried.
        for _ in 0..5 {
            let port = free_port()?;
            match self.attempt(guard, command(port)) {
                Ok(()) => return Ok(port),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    fn attempt(&self, guard: &mut Guard, mut command: Command) -> Result<(), String> {
        let Self { name, folder, ready, watch } = self;
        let path = folder.join(format!("{name}.log"));
        let unusable = |error| format!("{}: {error}", path.display());
        let log = std::fs::File::create(&path).map_err(unusable)?;
        let log_too = log.try_clone().map_err(unusable)?;
        // A process group of its own keeps Ctrl-C from reaching it, so that the guard decides the order in which things stop.
        command.process_group(0).stdin(Stdio::null()).stdout(log).stderr(log_too).current_dir(folder);
        let mut child = command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
        // Registered immediately, so that the server is stopped even if this program is killed while waiting.
        watch(guard, child.id())?;
        let started = Instant::now();
        let problem = loop {
            if let Ok(Some(status)) = child.try_wait() {
                break format!("{name} ended at once ({status})");
            }
            if std::fs::read_to_string(&path).unwrap_or_default().contains(ready) {
                return Ok(());
            }
            if started.elapsed() > START_TIMEOUT {
                break format!("{name} was not ready after {} s", START_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // Withdrawn before the process is reaped: afterwards its id may belong to another process.
        watch(guard, 0)?;
        let _ = child.kill().and_then(|()| child.wait());
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        Err(format!("{problem}: {}", log.trim().lines().last().unwrap_or_default()))
    }
}
