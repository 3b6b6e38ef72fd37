//! The server to check: `gpuaas dev`, which has hosts, products and an image, so that requests can succeed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::Daemon;
use crate::guard::Guard;

/// The tenant's project, in the organization that `gpuaas dev` creates.
const PROJECT: &str = "demo/checked";
/// Service accounts of the tenant with a key each. A caller may send 600 changes per minute, and the check needs more.
const ACCOUNTS: usize = 16;

/// A server that runs until the guard stops it.
pub(super) struct Subject {
    /// Its URL.
    pub(super) url: String,
    /// The token of its administrator.
    pub(super) token: String,
    /// The folder for all files of the check. Removed by the guard.
    pub(super) folder: PathBuf,
    program: PathBuf,
}

impl Subject {
    /// Starts a server that keeps everything under `folder`.
    pub(super) fn start(folder: &Path, guard: &mut Guard) -> Result<Self, String> {
        // The cargo that built this program built it into the same folder.
        let ourselves = std::env::current_exe().map_err(|error| format!("our own path is not known: {error}"))?;
        let program = ourselves.with_file_name("gpuaas");
        let daemon = Daemon { name: "gpuaas", folder, ready: "Ctrl-C stops it.", watch: Guard::gpuaas };
        let port = daemon.start(guard, |port| {
            let mut command = alone(&program, folder);
            command.args(["dev", "--ephemeral", "--link-port", "0", "--api-port", &port.to_string()]);
            command
        })?;
        let path = folder.join("gpuaas.log");
        let log = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let token = log.lines().find_map(|line| line.trim().strip_prefix("Token ")).ok_or("gpuaas dev has named no token")?;
        let url = format!("http://127.0.0.1:{port}");
        Ok(Self { url, token: token.trim().to_owned(), folder: folder.to_owned(), program })
    }

    /// Creates a project with service accounts that own it, and returns a key of each.
    pub(super) fn tenant(&self) -> Result<Vec<String>, String> {
        self.call(&["project", "create", PROJECT])?;
        let mut keys = Vec::new();
        for number in 1..=ACCOUNTS {
            let name = format!("checker-{number}");
            self.call(&["service-account", "create", &name, "--role", "owner"])?;
            let key = self.call(&["key", "create", &name])?;
            let secret = key["secret"].as_str().ok_or("a new key has no secret")?;
            keys.push(secret.to_owned());
        }
        Ok(keys)
    }

    /// Creates another administrator token and returns its secret.
    pub(super) fn another_administrator(&self) -> Result<String, String> {
        let made = self.call(&["token", "create", "checker", "--role", "admin"])?;
        Ok(made["token"].as_str().ok_or("a new token has no secret")?.to_owned())
    }

    /// Runs the command as the administrator and returns the printed document.
    fn call(&self, arguments: &[&str]) -> Result<serde_json::Value, String> {
        let mut command = alone(&self.program, &self.folder);
        command.args(["--output", "json", "--url", &self.url, "--project", PROJECT]).args(arguments);
        command.env("GPUAAS_TOKEN", &self.token).stdin(Stdio::null());
        let shown = format!("gpuaas {}", arguments.join(" "));
        let output = command.output().map_err(|error| format!("{shown} cannot be started: {error}"))?;
        if !output.status.success() {
            return Err(format!("{shown} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{shown} has printed no JSON: {error}"))
    }
}

/// Returns a command that ignores the developer's own settings and writes only into `folder`.
fn alone(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", folder).env("TMPDIR", folder);
    command
}
