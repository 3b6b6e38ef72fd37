//! `diag.health_probe`: the state of the host, read only.

use crate::telemetry::{DiskFact, GpuFact};

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
    /// Block devices found.
    pub disks: Vec<DiskFact>,
    /// What an operator should look at.
    pub warnings: Vec<Warning>,
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
