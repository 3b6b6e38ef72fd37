//! `diag.health_probe`: the state of the host, read only.

use crate::telemetry::{DiskFact, GpuFact};
use crate::time::Timestamp;

/// Nothing to choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {}

/// The report.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// No warning below.
    pub healthy: bool,
    /// This host is a simulation.
    pub simulated: bool,
    /// Kernel release.
    pub kernel: String,
    /// Seconds since boot.
    pub uptime_seconds: u64,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// All memory.
    pub memory_bytes: u64,
    /// Memory that programs could get now.
    pub memory_available_bytes: u64,
    /// `/dev/kvm` exists.
    pub kvm: bool,
    /// Loaded modules of the VFIO family.
    pub vfio_modules: Vec<String>,
    /// Number of IOMMU groups; 0 means that nothing can be passed through.
    pub iommu_groups: u32,
    /// The distribution asks for a reboot.
    pub reboot_required: bool,
    /// GPUs found.
    pub gpus: Vec<GpuFact>,
    /// Links of the fabric adapters.
    pub fabric: Vec<FabricLink>,
    /// Block devices found.
    pub disks: Vec<DiskFact>,
    /// Where the host was found to differ from what its leases say, now or within the last hour.
    #[serde(default)]
    pub drift: Vec<Drift>,
    /// What an operator should look at.
    pub warnings: Vec<Warning>,
}

/// A difference between leases, hypervisor and bus.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    /// Stable code.
    pub code: String,
    /// A function, or an allocation.
    pub subject: String,
    /// What differs, and what was done.
    pub message: String,
    /// It was put right.
    pub repaired: bool,
    /// When it was found.
    pub at: Timestamp,
}

/// One link of a fabric adapter.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricLink {
    /// The adapter.
    pub pci_address: String,
    /// InfiniBand device and port, such as `mlx5_0/1`, or a network interface.
    pub name: String,
    /// It can be used.
    pub up: bool,
    /// As the kernel calls it, such as `active` or `down`.
    pub state: String,
    /// Its rate as far as it is known, such as `400 Gb/sec (4X NDR)`.
    pub rate: String,
}

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warning {
    /// Stable code.
    pub code: String,
    /// A sentence that says what to do.
    pub message: String,
}
