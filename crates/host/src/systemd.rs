//! `systemctl`, for the agent's own service.

use std::path::Path;
use std::time::Duration;

use crate::exec::{Exec, ExecError, Finished, first_installed};

const SYSTEMCTL: &[&str] = &["/usr/bin/systemctl", "/bin/systemctl"];
const SYSTEMD_ANALYZE: &[&str] = &["/usr/bin/systemd-analyze", "/bin/systemd-analyze"];

/// Why systemd failed.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// This host was not booted with systemd.
    #[error("systemd is not running on this host; start the agent with `gpuaas-agent run` under the supervisor you use")]
    NotRunning,
    /// systemctl is not installed.
    #[error("systemctl is not installed; install the systemd package")]
    NotInstalled,
    /// systemctl failed.
    #[error("systemctl failed; see `journalctl -u gpuaas-agent` for the messages of the service")]
    Exec(#[from] ExecError),
}

/// The state of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitStatus {
    /// `active`, `inactive`, `failed`, `activating`, …
    pub active: String,
    /// `enabled`, `disabled`, …; empty if there is no such unit.
    pub enabled: String,
}

/// Returns whether systemd is the running init.
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Reloads the unit files.
pub async fn daemon_reload() -> Result<(), SystemdError> {
    systemctl(&["daemon-reload"]).await.map(drop)
}

/// Starts a unit now and at every boot.
pub async fn enable_now(unit: &str) -> Result<(), SystemdError> {
    systemctl(&["enable", "--now", "--", unit]).await.map(drop)
}

/// Stops a unit and prevents its start at boot.
pub async fn disable_now(unit: &str) -> Result<(), SystemdError> {
    systemctl(&["disable", "--now", "--", unit]).await.map(drop)
}

/// Starts a unit.
pub async fn start(unit: &str) -> Result<(), SystemdError> {
    systemctl(&["start", "--", unit]).await.map(drop)
}

/// Stops a unit.
pub async fn stop(unit: &str) -> Result<(), SystemdError> {
    systemctl(&["stop", "--", unit]).await.map(drop)
}

/// Restarts a unit.
pub async fn restart(unit: &str) -> Result<(), SystemdError> {
    systemctl(&["restart", "--", unit]).await.map(drop)
}

/// Returns the state of a unit.
pub async fn status(unit: &str) -> Result<UnitStatus, SystemdError> {
    let shown = systemctl(&["show", "--property=ActiveState,UnitFileState", "--", unit]).await?;
    Ok(parse_show(&String::from_utf8_lossy(&shown.stdout)))
}

fn parse_show(shown: &str) -> UnitStatus {
    let value = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    UnitStatus { active: value("ActiveState"), enabled: value("UnitFileState") }
}

async fn systemctl(args: &[&str]) -> Result<Finished, SystemdError> {
    if !is_running() {
        return Err(SystemdError::NotRunning);
    }
    let program = first_installed(SYSTEMCTL).ok_or(SystemdError::NotInstalled)?;
    let exec = args.iter().fold(Exec::new(program).deadline(Duration::from_secs(90)), |exec, arg| exec.arg(arg));
    Ok(exec.run().await?)
}

/// Returns the output of `systemd-analyze verify` for a unit file: an empty text means that it is valid, `None` that the tool is
/// not installed.
pub async fn verify_unit(unit_file: &Path) -> Result<Option<String>, SystemdError> {
    let Some(program) = first_installed(SYSTEMD_ANALYZE) else { return Ok(None) };
    let exec = Exec::new(program).arg("verify").arg("--man=no").arg(unit_file);
    let (_, finished) = exec.run_with_code().await?;
    Ok(Some(String::from_utf8_lossy(&finished.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_from_properties() {
        let status = parse_show("ActiveState=active\nUnitFileState=enabled\n");
        assert_eq!(status, UnitStatus { active: "active".to_owned(), enabled: "enabled".to_owned() });
        assert_eq!(parse_show("ActiveState=inactive\nUnitFileState=\n").enabled, "");
    }

    #[tokio::test]
    async fn without_systemd_the_answer_says_what_to_do_instead() {
        if is_running() {
            return;
        }
        let error = start("gpuaas-agent.service").await.expect_err("refused").to_string();
        assert!(error.contains("gpuaas-agent run"), "{error}");
    }
}
