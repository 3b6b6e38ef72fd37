//! The server to check: `gpuaas dev`, which comes with hosts, products and an image, so that requests can succeed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::Daemon;
use crate::guard::Guard;

/// The tenant's project, in the organization that `gpuaas dev` creates.
const PROJECT: &str = "demo/checked";
/// Number of the tenant's service accounts, each with a key. The check needs more than the 600 changes per minute that one caller may send.
const ACCOUNTS: usize = 16;

/// A running server. The guard stops it.
pub(super) struct Subject {
    pub(super) url: String,
    /// The administrator's token.
    pub(super) token: String,
    /// Folder for all files of the check. The guard removes it.
    pub(super) folder: PathBuf,
    program: PathBuf,
}

impl Subject {
    /// Starts a server that keeps all its files under `folder`.
    pub(super) fn start(folder: &Path, guard: &mut Guard) -> Result<Self, String> {
        // Cargo built `gpuaas` into the same folder as this program.
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

    /// Creates a project and service accounts that own it. Returns a key of each account.
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

    /// Creates another token with the role of an administrator, and returns its secret.
    pub(super) fn another_administrator(&self) -> Result<String, String> {
        let made = self.call(&["token", "create", "checker", "--role", "admin"])?;
        Ok(made["token"].as_str().ok_or("a new token has no secret")?.to_owned())
    }

    /// Runs a `gpuaas` command as the administrator, and returns the JSON that it prints.
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

/// Returns a command that ignores the developer's own settings, and writes only into `folder`.
fn alone(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", folder).env("TMPDIR", folder);
    command
}
