//! What a host reports about itself. It is displayed, used for warnings, and used to exclude a host from placement; it never grants
//! anything.

use crate::id::AllocationId;
use crate::task::TaskType;
use crate::task::slice_vm_provision::TelemetrySource;
use crate::time::Timestamp;

/// Maximum size of a telemetry document on the link.
pub const MAX_BYTES: usize = 64 * 1024;

/// Maximum length of a host name.
pub const MAX_HOSTNAME: usize = 253;
/// Maximum length of any other text in the facts.
pub const MAX_FACT_TEXT: usize = 256;
/// Maximum number of devices of each kind.
pub const MAX_DEVICES: usize = 256;
/// Maximum number of task kinds: more than exist now, because a newer agent may have more.
pub const MAX_TASK_KINDS: usize = 128;

/// Slow-changing facts, sent in the hello and again when they change.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct HostFacts {
    /// The host is a simulation.
    pub simulated: bool,
    /// Host name.
    pub hostname: String,
    /// Distribution, as its os-release calls itself.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine architecture.
    pub architecture: String,
    /// Version of the agent.
    pub agent_version: String,
    /// CPU model.
    pub cpu_model: String,
    /// Hardware threads.
    pub cpu_threads: u32,
    /// All memory.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: Vec<GpuFact>,
    /// Block devices.
    pub disks: Vec<DiskFact>,
    /// Network interfaces.
    pub networks: Vec<NetworkFact>,
    /// The kinds of tasks that the host's policy allows; null if the agent does not say. It allows nothing by itself: the agent asks the
    /// policy about every task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tasks: Option<Vec<String>>,
}

/// The text is not a facts document.
#[derive(Debug, thiserror::Error)]
pub enum BadFacts {
    /// Larger than [`MAX_BYTES`].
    #[error("facts of {0} bytes; at most {MAX_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or not a facts document.
    #[error("facts: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl HostFacts {
    /// Reads a node's facts and bounds them.
    pub fn parse(json: &str) -> Result<Self, BadFacts> {
        if json.len() > MAX_BYTES {
            return Err(BadFacts::TooLarge(json.len()));
        }
        Ok(serde_json::from_str::<Self>(json)?.bounded())
    }

    /// The kinds among `kinds` that the host policy does not allow. Empty if the agent does not report what it allows.
    pub fn denied_tasks(&self, kinds: &[TaskType]) -> Vec<TaskType> {
        let Some(allowed) = &self.allowed_tasks else { return Vec::new() };
        kinds.iter().copied().filter(|kind| !allowed.iter().any(|name| name == kind.as_str())).collect()
    }

    /// Truncates lists and texts to their limits and removes unprintable characters, because operators see the facts on their terminals.
    pub fn bounded(mut self) -> Self {
        let Self { simulated: _, hostname, os, kernel, architecture, agent_version, cpu_model, .. } = &mut self;
        bound(hostname, MAX_HOSTNAME);
        for text in [os, kernel, architecture, agent_version, cpu_model] {
            bound(text, MAX_FACT_TEXT);
        }
        let Self { cpu_threads: _, memory_bytes: _, gpus, disks, networks, allowed_tasks, .. } = &mut self;
        if let Some(tasks) = allowed_tasks {
            tasks.truncate(MAX_TASK_KINDS);
            for task in tasks {
                bound(task, MAX_FACT_TEXT);
            }
        }
        gpus.truncate(MAX_DEVICES);
        disks.truncate(MAX_DEVICES);
        networks.truncate(MAX_DEVICES);
        for GpuFact { pci_address, vendor_id, device_id, name, memory_bytes: _, driver, numa_node: _, source } in gpus {
            for text in [pci_address, vendor_id, device_id, name, driver, source] {
                bound(text, MAX_FACT_TEXT);
            }
        }
        for DiskFact { name, model, serial, size_bytes: _ } in disks {
            for text in [name, model, serial] {
                bound(text, MAX_FACT_TEXT);
            }
        }
        for NetworkFact { name, mac, up: _, speed_mbit: _ } in networks {
            for text in [name, mac] {
                bound(text, MAX_FACT_TEXT);
            }
        }
        self
    }
}

fn bound(text: &mut String, longest: usize) {
    if text.len() > longest || text.chars().any(is_unprintable) {
        text.retain(|c| !is_unprintable(c));
        text.truncate(text.floor_char_boundary(longest));
    }
}

/// Control characters, and characters that change the direction of the text after them.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GpuFact {
    /// PCI address, `0000:17:00.0`.
    pub pci_address: String,
    /// Vendor id, `10de` or `1002`.
    pub vendor_id: String,
    /// Device id.
    pub device_id: String,
    /// Marketing name where known.
    pub name: String,
    /// Memory where known, else 0.
    pub memory_bytes: u64,
    /// Kernel driver now bound, or empty.
    pub driver: String,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// Where this comes from: `nvml`, `sysfs` or `simulated`.
    pub source: String,
}

/// One block device.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct DiskFact {
    /// Kernel name.
    pub name: String,
    /// Model where known.
    pub model: String,
    /// Serial where known.
    pub serial: String,
    /// Size.
    pub size_bytes: u64,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct NetworkFact {
    /// Kernel name.
    pub name: String,
    /// Hardware address.
    pub mac: String,
    /// Link is up.
    pub up: bool,
    /// Speed in Mbit/s where known, else 0.
    pub speed_mbit: u64,
}

/// A sample of fast-changing numbers.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct HostMetrics {
    /// When it was taken, by the host's clock.
    pub at: Timestamp,
    /// Busy share of all CPUs since the last sample, times 100.
    pub cpu_percent: u32,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Bytes received on all interfaces but loopback since boot.
    pub network_received_bytes: u64,
    /// Bytes sent likewise.
    pub network_sent_bytes: u64,
    /// Bytes read from all disks since boot.
    pub disk_read_bytes: u64,
    /// Bytes written likewise.
    pub disk_written_bytes: u64,
    /// Space used on the root file system.
    pub root_used_bytes: u64,
    /// Size of the root file system.
    pub root_size_bytes: u64,
    /// Resident memory of the agent itself.
    pub agent_rss_bytes: u64,
    /// One entry per GPU that answers.
    pub gpus: Vec<GpuMetrics>,
    /// One entry per guest.
    pub guests: Vec<GuestMetrics>,
}

/// A sample of one guest.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GuestMetrics {
    /// Whose it is.
    pub allocation_id: Option<AllocationId>,
    /// The hypervisor says that it runs.
    pub running: bool,
    /// Where the rest comes from.
    pub source: TelemetrySource,
    /// Why not from the guest; empty if it does.
    pub reason: String,
    /// When it came.
    pub at: Timestamp,
    /// What the guest says of itself; zeros if it does not.
    pub report: GuestReport,
}

impl Default for GuestMetrics {
    fn default() -> Self {
        Self {
            allocation_id: None,
            running: false,
            source: TelemetrySource::Unavailable,
            reason: String::new(),
            at: Timestamp::default(),
            report: GuestReport::default(),
        }
    }
}

/// What a guest says of itself. A tenant wrote it: it is shown, and nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GuestReport {
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// All memory.
    pub memory_bytes: u64,
    /// Space used on its root file system.
    pub disk_used_bytes: u64,
    /// Size of its root file system.
    pub disk_size_bytes: u64,
    /// Its GPUs.
    pub gpus: Vec<GpuMetrics>,
}

impl GuestReport {
    /// Maximum number of GPUs in a report.
    const MAX_GPUS: usize = 16;
    /// Maximum length of a PCI address in a report.
    const MAX_ADDRESS: usize = 32;

    /// Parses a report; `None` if it is malformed or exceeds its limits.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let report: Self = serde_json::from_slice(bytes).ok()?;
        let plain = |gpu: &GpuMetrics| {
            gpu.pci_address.len() <= Self::MAX_ADDRESS
                && gpu.pci_address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.')
        };
        (report.gpus.len() <= Self::MAX_GPUS && report.gpus.iter().all(plain)).then_some(report)
    }
}

/// A sample of one GPU.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GpuMetrics {
    /// PCI address.
    pub pci_address: String,
    /// Busy share of the last sample period.
    pub utilisation_percent: u32,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Core temperature.
    pub temperature_celsius: u32,
    /// Power draw.
    pub power_milliwatts: u32,
}
