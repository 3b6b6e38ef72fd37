//! Open vSwitch, through `ovs-vsctl`.

use std::time::Duration;

use gpuaas_contract::slice::InterfaceName;

use crate::exec::{Exec, ExecError, first_installed};

const OVS_VSCTL: &[&str] = &["/usr/bin/ovs-vsctl"];
/// The database answers at once, or is not running.
const DEADLINE: Duration = Duration::from_secs(10);
/// The switch takes a moment to follow the database.
const CHANGE_DEADLINE: Duration = Duration::from_secs(30);

/// The datapath of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Datapath {
    /// In the kernel, by its module `openvswitch`.
    #[default]
    System,
    /// In user space: slower, but without a module.
    Netdev,
}

impl Datapath {
    /// Returns its name in Open vSwitch.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Netdev => "netdev",
        }
    }
}

/// Why Open vSwitch failed.
#[derive(Debug, thiserror::Error)]
pub enum OvsError {
    /// It is not installed.
    #[error("ovs-vsctl is not installed; install openvswitch-switch")]
    Missing,
    /// It failed.
    #[error("Open vSwitch did not answer about the bridge {bridge}; is ovsdb-server running?")]
    Exec {
        /// The bridge.
        bridge: InterfaceName,
        /// The cause.
        #[source]
        source: ExecError,
    },
    /// It did not create or remove the bridge.
    #[error("Open vSwitch did not {what} the bridge {bridge}; see its log, /var/log/openvswitch/ovs-vswitchd.log")]
    Change {
        /// The requested operation.
        what: &'static str,
        /// The bridge.
        bridge: InterfaceName,
        /// The cause.
        #[source]
        source: ExecError,
    },
    /// The exit code is unknown.
    #[error("ovs-vsctl ended with code {code:?} when asked for the bridge {bridge}")]
    Code {
        /// The bridge.
        bridge: InterfaceName,
        /// The exit code.
        code: Option<i32>,
    },
}

/// Returns whether Open vSwitch has this bridge.
pub async fn bridge_exists(bridge: &InterfaceName) -> Result<bool, OvsError> {
    let program = first_installed(OVS_VSCTL).ok_or(OvsError::Missing)?;
    let exec = Exec::new(program).arg("--timeout=5").arg("br-exists").arg(bridge.as_str()).deadline(DEADLINE);
    let ended = exec.run_with_code().await.map_err(|source| OvsError::Exec { bridge: bridge.clone(), source })?;
    match ended.0 {
        Some(0) => Ok(true),
        // According to the manual, 2 means that there is no such bridge.
        Some(2) => Ok(false),
        code => Err(OvsError::Code { bridge: bridge.clone(), code }),
    }
}

/// Lists the interfaces of a bridge, without its own.
pub async fn connected(bridge: &InterfaceName) -> Result<Vec<String>, OvsError> {
    let program = first_installed(OVS_VSCTL).ok_or(OvsError::Missing)?;
    let exec = Exec::new(program).arg("--timeout=5").arg("list-ifaces").arg(bridge.as_str()).deadline(DEADLINE);
    let finished = exec.run().await.map_err(|source| OvsError::Exec { bridge: bridge.clone(), source })?;
    let printed = String::from_utf8_lossy(&finished.stdout);
    Ok(printed.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Creates a bridge. Nothing changes if it exists.
pub async fn add_bridge(bridge: &InterfaceName, datapath: Datapath) -> Result<(), OvsError> {
    let program = first_installed(OVS_VSCTL).ok_or(OvsError::Missing)?;
    let exec = add_bridge_arguments(bridge, datapath).iter().fold(Exec::new(program), |exec, arg| exec.arg(arg));
    let ended = exec.deadline(CHANGE_DEADLINE).run().await;
    ended.map(drop).map_err(|source| OvsError::Change { what: "make", bridge: bridge.clone(), source })
}

/// Returns the arguments of `ovs-vsctl` that create a bridge; a unit also runs them at boot.
pub fn add_bridge_arguments(bridge: &InterfaceName, datapath: Datapath) -> Vec<String> {
    let mut arguments = vec!["--timeout=20", "--may-exist", "add-br", bridge.as_str()];
    let kind = format!("datapath_type={}", datapath.as_str());
    match datapath {
        Datapath::System => {}
        Datapath::Netdev => arguments.extend(["--", "set", "bridge", bridge.as_str(), &kind]),
    }
    arguments.into_iter().map(str::to_owned).collect()
}

/// Removes a bridge with its interfaces. Nothing changes if it does not exist.
pub async fn remove_bridge(bridge: &InterfaceName) -> Result<(), OvsError> {
    let program = first_installed(OVS_VSCTL).ok_or(OvsError::Missing)?;
    let exec = Exec::new(program).arg("--timeout=20").arg("--if-exists").arg("del-br").arg(bridge.as_str());
    let ended = exec.deadline(CHANGE_DEADLINE).run().await;
    ended.map(drop).map_err(|source| OvsError::Change { what: "remove", bridge: bridge.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_in_user_space_is_told_so_in_the_same_transaction() {
        let bridge: InterfaceName = "br-slices".parse().expect("a name");
        assert_eq!(add_bridge_arguments(&bridge, Datapath::System), ["--timeout=20", "--may-exist", "add-br", "br-slices"]);
        let netdev = add_bridge_arguments(&bridge, Datapath::Netdev).join(" ");
        assert!(netdev.ends_with("add-br br-slices -- set bridge br-slices datapath_type=netdev"), "{netdev}");
    }
}
