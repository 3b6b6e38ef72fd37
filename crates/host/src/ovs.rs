//! Open vSwitch, through `ovs-vsctl`.

use std::time::Duration;

use gpuaas_contract::slice::InterfaceName;

use crate::exec::{Exec, ExecError, first_installed};

const OVS_VSCTL: &[&str] = &["/usr/bin/ovs-vsctl"];
/// The database answers at once or is not running.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why Open vSwitch did not answer.
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
        /// What went wrong.
        #[source]
        source: ExecError,
    },
    /// It answered with an exit code that means nothing to us.
    #[error("ovs-vsctl ended with code {code:?} when asked for the bridge {bridge}")]
    Code {
        /// The bridge.
        bridge: InterfaceName,
        /// How it ended.
        code: Option<i32>,
    },
}

/// Whether Open vSwitch has this bridge.
pub async fn bridge_exists(bridge: &InterfaceName) -> Result<bool, OvsError> {
    let program = first_installed(OVS_VSCTL).ok_or(OvsError::Missing)?;
    let exec = Exec::new(program).arg("--timeout=5").arg("br-exists").arg(bridge.as_str()).deadline(DEADLINE);
    let ended = exec.run_with_code().await.map_err(|source| OvsError::Exec { bridge: bridge.clone(), source })?;
    match ended.0 {
        Some(0) => Ok(true),
        // The manual: 2 means that there is no such bridge.
        Some(2) => Ok(false),
        code => Err(OvsError::Code { bridge: bridge.clone(), code }),
    }
}
