//! The manual device commands of the host's owner: list, bind, give back, reset, and reconcile.
//!
//! These commands need no control plane and no running agent. A device of a lease is left alone, because a guest may have it.

use gpuaas_contract::cleanup::Reset;
use gpuaas_contract::slice::{BadName, PciAddress};
use gpuaas_contract::task::slice_topology_discover::{Output, Params};
use gpuaas_host::{Host, HostError, SimError, fingerprint, topology};

use crate::config::Config;
use crate::guests::Guests;
use crate::policy::{Emulation, Policy, PolicyError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The address is not valid.
    #[error(transparent)]
    Address(#[from] BadName),
    /// The host operation failed.
    #[error("{} ({})", .0.message, .0.code)]
    Host(#[from] HostError),
    /// The simulated host cannot be used.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// The machine has no identity.
    #[error(transparent)]
    Machine(#[from] fingerprint::NoIdentity),
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The host itself uses it.
    #[error("{address} is the controller of drive {drive}, which the host uses ({users}); free it first")]
    InUse {
        /// The function.
        address: PciAddress,
        /// The drive.
        drive: String,
        /// Its use.
        users: String,
    },
    /// A guest may have it.
    #[error("{address} belongs to slot {slot}, which {allocation} holds; release that first")]
    Leased {
        /// The function.
        address: PciAddress,
        /// The slot.
        slot: String,
        /// The holder.
        allocation: String,
    },
}

/// The action on a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bind it to `vfio-pci`.
    Bind,
    /// Return it to the host's own driver.
    GiveBack,
    /// Reset it.
    Reset,
}

/// Lists every GPU, fabric function and drive controller, with its driver and group, one line each.
pub fn list(config: &Config) -> Result<Vec<String>, DeviceError> {
    let inventory = crate::open_host(config, None)?.inventory()?;
    let shown = inventory.functions.iter().filter(|function| function.is_gpu() || function.is_fabric() || function.is_drive());
    let line = |function: &gpuaas_host::pci::PciFunction| {
        let kind = if function.is_gpu() {
            "gpu"
        } else if function.is_fabric() {
            "fabric"
        } else {
            "nvme"
        };
        let group = function.iommu_group.map_or("-".to_owned(), |group| group.to_string());
        let driver = if function.driver.is_empty() { "-" } else { &function.driver };
        format!(
            "{:<13} {kind:<7} {}:{} driver {driver:<12} group {group:<4} numa {}",
            function.address, function.vendor_id, function.device_id, function.numa_node
        )
    };
    Ok(shown.map(line).collect())
}

/// Discovers the possible slots of this host, as the control plane would receive them.
pub async fn topology(config: &Config) -> Result<Output, DeviceError> {
    let host = crate::open_host(config, None)?;
    let mut inventory = host.inventory()?;
    let mut params = Params::default();
    if config.policy_file.exists() {
        let rules = Policy::load(&config.policy_file)?.slices();
        inventory.drives_without_gpu = host.drives_at(&rules.drives_without_gpu);
        inventory.emulation = rules.emulation != Emulation::Never;
        if let Ok(bridge) = rules.bridge(None) {
            params.ovs_bridge = bridge;
        }
    }
    let network = host.slice_network(&params.ovs_bridge).await;
    Ok(topology::discover(&inventory, network, &params))
}

/// Runs an action on one function and returns its state afterwards.
pub async fn act(config: &Config, address: &str, action: Action) -> Result<String, DeviceError> {
    let address: PciAddress = address.parse()?;
    let host = crate::open_host(config, None)?;
    let leases = host.leases().await?;
    if let Some(lease) = leases.iter().find(|lease| lease.spec.functions().any(|function| *function == address)) {
        let (slot, allocation) = (lease.slot_id.to_string(), lease.allocation_id.to_string());
        return Err(DeviceError::Leased { address, slot, allocation });
    }
    let mine = |drive: &&gpuaas_host::block::Namespace| drive.path.last().is_some_and(|last| last == address.as_str());
    if action == Action::Bind
        && let Some(drive) = host.inventory()?.namespaces.iter().filter(mine).find(|drive| !drive.used_by.is_empty())
    {
        return Err(DeviceError::InUse { address, drive: drive.name.clone(), users: drive.used_by.join(", ") });
    }
    let done = match action {
        Action::Bind => {
            host.vfio_load().await?;
            host.function_bind(&address).await?;
            "bound to vfio-pci"
        }
        Action::GiveBack => {
            host.function_give_back(&address).await?;
            "given back"
        }
        Action::Reset => match host.function_reset(&address).await? {
            Reset::Done | Reset::NotNeeded | Reset::WithDevice => "reset",
            Reset::Unsupported => {
                return Err(HostError::new("reset_unsupported", format!("{address} has no reset of its own")).into());
            }
            Reset::Failed => {
                return Err(HostError::new("reset_failed", format!("{address} was not reset; see the kernel's log")).into());
            }
        },
    };
    let state = host.function_state(&address).await?;
    let driver = if state.driver.is_empty() { "no driver" } else { &state.driver };
    Ok(format!("{address} {done}; it is held by {driver}"))
}

/// Compares the host with its leases once and repairs what it may repair, like the running agent.
pub async fn reconcile(config: &Config) -> Result<Vec<String>, DeviceError> {
    let host: Host = crate::open_host(config, None)?;
    let boot_id = host.boot_id();
    let found = Guests::new(None).reconcile(&host, &boot_id).await;
    let line = |drift: gpuaas_contract::task::diag_health_probe::Drift| {
        format!("{:<8} {}: {}", if drift.repaired { "repaired" } else { "found" }, drift.code, drift.message)
    };
    Ok(found.into_iter().map(line).collect())
}
