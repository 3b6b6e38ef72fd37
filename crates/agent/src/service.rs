//! The agent as a systemd service: its files and its confinement.
//!
//! With a root folder other than `/` only the files are written, for packages and tests; systemd is then not used.

use std::path::{Path, PathBuf};

use gpuaas_host::private_file::{self, PrivateFileError};
use gpuaas_host::systemd::{self, SystemdError};

/// Name of the unit.
pub const UNIT: &str = "gpuaas-agent.service";
const BINARY: &str = "opt/gpuaas-agent/gpuaas-agent";
const SYMLINK: &str = "usr/local/bin/gpuaas-agent";
const CONFIG: &str = "etc/gpuaas-agent/config.toml";
const POLICY: &str = "etc/gpuaas-agent/policy.toml";
const UNIT_FILE: &str = "etc/systemd/system/gpuaas-agent.service";
const STATE: &str = "var/lib/gpuaas/agent";

/// The unit. It runs as root, because the tasks need it, but without anything else that they do not need.
pub const UNIT_TEXT: &str = "\
[Unit]
Description=gpuaas host agent
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=/opt/gpuaas-agent/gpuaas-agent run
Restart=always
RestartSec=2
WatchdogSec=30
TimeoutStopSec=60
KillMode=mixed
UMask=0077
StateDirectory=gpuaas/agent
StateDirectoryMode=0700
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectProc=default
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@clock @cpu-emulation @debug @module @mount @obsolete @raw-io @reboot @swap
SystemCallErrorNumber=EPERM
ReadWritePaths=/var/lib/gpuaas
LimitNOFILE=65536
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
";

const CONFIG_TEXT: &str = "\
# Configuration of the gpuaas host agent. `gpuaas-agent config show` lists every key, its value and where it comes from.
# server = [\"control.example.com:7443\"]
# heartbeat_interval = \"15s\"
# metrics_interval = \"15s\"
# transport = \"auto\"
# max_tasks = 4
# log_level = \"info\"
";

/// Why the service could not be installed or controlled.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// A file could not be copied, linked or removed.
    #[error("cannot {what} {path}; is this run as root?", path = .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// systemd failed.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ServiceError {
    let path = path.to_owned();
    move |source| ServiceError::Io { what, path, source }
}

/// A completed step, for display.
pub type Step = String;

/// Copies the binary, and writes the unit, and config and policy if they do not exist. Starts the service if `root` is `/` and
/// the host is enrolled.
pub async fn install(root: &Path, binary: &Path) -> Result<Vec<Step>, ServiceError> {
    let mut steps = install_files(root, binary)?;
    if root != Path::new("/") {
        return Ok(steps);
    }
    if !systemd::is_running() {
        steps.push("systemd is not running here: start the agent with `gpuaas-agent run`".to_owned());
        return Ok(steps);
    }
    systemd::daemon_reload().await?;
    if crate::is_enrolled(&root.join(STATE)) {
        systemd::enable_now(UNIT).await?;
        steps.push(format!("enabled and started {UNIT}"));
    } else {
        steps.push("not started: enroll this host with `gpuaas-agent enroll`, then run `gpuaas-agent start`".to_owned());
    }
    Ok(steps)
}

fn install_files(root: &Path, binary: &Path) -> Result<Vec<Step>, ServiceError> {
    let mut steps = Vec::new();
    let target = root.join(BINARY);
    let folder = |path: &Path| {
        let parent = path.parent().unwrap_or(root);
        std::fs::create_dir_all(parent).map_err(io("create", parent))
    };
    folder(&target)?;
    let bytes = std::fs::read(binary).map_err(io("read", binary))?;
    private_file::write_with_mode(&target, &bytes, 0o755)?;
    steps.push(format!("installed {}", target.display()));

    let link = root.join(SYMLINK);
    folder(&link)?;
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link).map_err(io("replace", &link))?;
    }
    let points_at = Path::new("/").join(BINARY);
    std::os::unix::fs::symlink(&points_at, &link).map_err(io("link", &link))?;
    steps.push(format!("linked {}", link.display()));

    // What the host's owner wrote is never touched.
    let policy = crate::policy::example();
    for (path, text) in [(root.join(CONFIG), CONFIG_TEXT), (root.join(POLICY), policy.as_str())] {
        folder(&path)?;
        if path.exists() {
            steps.push(format!("kept {}", path.display()));
        } else {
            private_file::write_with_mode(&path, text.as_bytes(), 0o644)?;
            steps.push(format!("wrote {}", path.display()));
        }
    }
    let unit = root.join(UNIT_FILE);
    folder(&unit)?;
    private_file::write_with_mode(&unit, UNIT_TEXT.as_bytes(), 0o644)?;
    steps.push(format!("wrote {}", unit.display()));
    private_file::make_folder(&root.join(STATE))?;
    Ok(steps)
}

/// Stops the service and removes what `install` wrote. Config, policy and identity stay unless `purge`.
pub async fn uninstall(root: &Path, purge: bool) -> Result<Vec<Step>, ServiceError> {
    let mut steps = Vec::new();
    let live = root == Path::new("/") && systemd::is_running();
    if live && root.join(UNIT_FILE).exists() {
        systemd::disable_now(UNIT).await?;
        steps.push(format!("stopped and disabled {UNIT}"));
    }
    for file in [UNIT_FILE, SYMLINK, BINARY] {
        let path = root.join(file);
        match std::fs::remove_file(&path) {
            Ok(()) => steps.push(format!("removed {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io("remove", &path)(error)),
        }
    }
    // Only if empty: it may contain other files.
    let _ = std::fs::remove_dir(root.join("opt/gpuaas-agent"));
    if live {
        systemd::daemon_reload().await?;
    }
    for folder in ["etc/gpuaas-agent", STATE] {
        let path = root.join(folder);
        if !path.exists() {
            continue;
        }
        if purge {
            std::fs::remove_dir_all(&path).map_err(io("remove", &path))?;
            steps.push(format!("removed {}", path.display()));
        } else {
            steps.push(format!("kept {} (remove it with --purge)", path.display()));
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("there").permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn install_writes_everything_and_uninstall_takes_it_back() {
        let root = tempfile::tempdir().expect("folder");
        let binary = root.path().join("built");
        std::fs::write(&binary, b"#!").expect("written");
        install(root.path(), &binary).await.expect("installed");
        assert_eq!(mode(&root.path().join(BINARY)), 0o755);
        assert_eq!(mode(&root.path().join(POLICY)), 0o644);
        assert_eq!(mode(&root.path().join(STATE)), 0o700);
        assert_eq!(std::fs::read_link(root.path().join(SYMLINK)).expect("link"), Path::new("/opt/gpuaas-agent/gpuaas-agent"));
        crate::policy::Policy::load(&root.path().join(POLICY)).expect("the example policy is trusted");
        let loaded = crate::config::Config::load(&root.path().join(CONFIG), true, std::iter::empty()).expect("loads");
        assert_eq!(loaded.config, crate::config::Config::default());

        std::fs::write(root.path().join(POLICY), "allowed_tasks = []\n").expect("owner's edit");
        install(root.path(), &binary).await.expect("an update");
        assert_eq!(std::fs::read_to_string(root.path().join(POLICY)).expect("read"), "allowed_tasks = []\n");

        uninstall(root.path(), false).await.expect("uninstalled");
        assert!(!root.path().join(BINARY).exists() && !root.path().join(UNIT_FILE).exists());
        assert!(root.path().join(POLICY).exists() && root.path().join(STATE).exists());
        uninstall(root.path(), true).await.expect("purged");
        assert!(!root.path().join(POLICY).exists() && !root.path().join(STATE).exists());
    }

    #[tokio::test]
    async fn systemd_finds_nothing_wrong_with_the_unit() {
        let root = tempfile::tempdir().expect("folder");
        let unit = root.path().join("gpuaas-agent.service");
        // The binary is not installed here, and systemd would complain about that.
        let text = UNIT_TEXT.replace("/opt/gpuaas-agent/gpuaas-agent run", "/bin/true");
        std::fs::write(&unit, text).expect("written");
        if let Some(complaints) = systemd::verify_unit(&unit).await.expect("runs") {
            let ours: Vec<_> = complaints.lines().filter(|line| line.contains("gpuaas-agent")).collect();
            assert!(ours.is_empty(), "{ours:?}");
        }
    }

    #[test]
    fn the_unit_is_confined_and_watched() {
        for line in [
            "Type=notify",
            "WatchdogSec=30",
            "Restart=always",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ReadWritePaths=/var/lib/gpuaas",
        ] {
            assert!(UNIT_TEXT.lines().any(|l| l == line), "{line}");
        }
    }
}
