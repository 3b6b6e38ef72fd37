//! `diag.health_probe`: reads the state of the host.

use super::{Examples, Parameters};
use crate::telemetry::{DiskFact, GpuFact};
use crate::time::Timestamp;

/// There are no parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &["{}"],
    refused_params: &["null", r#""all""#, "[1]"],
    outputs: &[r#"{"healthy":true,"simulated":true,"kernel":"6.1.0","uptime_seconds":1,"load_percent":150,"memory_bytes":1,
        "memory_available_bytes":1,"kvm":true,"vfio_modules":["vfio_pci"],"iommu_groups":4,"reboot_required":false,
        "gpus":[{"pci_address":"0000:17:00.0","vendor_id":"10de","device_id":"2330","name":"H100","memory_bytes":85899345920,
        "driver":"vfio-pci","numa_node":-1,"source":"sysfs"}],"fabric":[{"pci_address":"0000:1a:00.0","name":"mlx5_0/1","up":true,
        "state":"active","rate":"400 Gb/sec (4X NDR)"}],"disks":[{"name":"nvme0n1","model":"m","serial":"s",
        "size_bytes":18446744073709551615}],"warnings":[{"code":"iommu_off","message":"turn it on"}]}"#],
    refused_outputs: &[r#"{"healthy":false}"#],
};

/// Health report of the host.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Whether there are no warnings.
    pub healthy: bool,
    /// Whether the host is simulated.
    pub simulated: bool,
    /// Kernel release.
    pub kernel: String,
    /// Seconds since boot.
    pub uptime_seconds: u64,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Total memory.
    pub memory_bytes: u64,
    /// Memory that is available to programs.
    pub memory_available_bytes: u64,
    /// Whether `/dev/kvm` exists.
    pub kvm: bool,
    /// Loaded modules of the VFIO family.
    pub vfio_modules: Vec<String>,
    /// Number of IOMMU groups; with 0, no device can be passed through to a guest.
    pub iommu_groups: u32,
    /// Whether the distribution requests a reboot.
    pub reboot_required: bool,
    /// GPUs of the host.
    pub gpus: Vec<GpuFact>,
    /// Links of the fabric adapters of the host.
    pub fabric: Vec<FabricLink>,
    /// Block devices of the host.
    pub disks: Vec<DiskFact>,
    /// Differences between the host and its leases, found now or within the last hour.
    #[serde(default)]
    pub drift: Vec<Drift>,
    /// Problems that an operator should check.
    pub warnings: Vec<Warning>,
}

/// A difference between the leases, the hypervisor and the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// Stable code.
    pub code: String,
    /// The PCI function or the allocation that differs.
    pub subject: String,
    /// What differs, and what was done about it.
    pub message: String,
    /// Whether the agent repaired it.
    pub repaired: bool,
    /// When it was found.
    pub at: Timestamp,
}

/// One link of a fabric adapter.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricLink {
    /// PCI address of the adapter.
    pub pci_address: String,
    /// InfiniBand device and port, such as `mlx5_0/1`, or a network interface.
    pub name: String,
    /// Whether the link can be used.
    pub up: bool,
    /// State as the kernel names it, such as `active` or `down`.
    pub state: String,
    /// Rate of the link, if it is known, such as `400 Gb/sec (4X NDR)`.
    pub rate: String,
}

/// A problem that an operator should check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warning {
    /// Stable code.
    pub code: String,
    /// Message that says what to do.
    pub message: String,
}
