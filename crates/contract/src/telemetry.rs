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

/// Facts about a host that change rarely. A node sends them when it connects and when they change.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct HostFacts {
    /// Whether the host is simulated.
    pub simulated: bool,
    /// Host name.
    pub hostname: String,
    /// Distribution, as named in os-release.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine architecture.
    pub architecture: String,
    /// Version of the agent.
    pub agent_version: String,
    /// CPU model.
    pub cpu_model: String,
    /// Number of hardware threads.
    pub cpu_threads: u32,
    /// Total memory.
    pub memory_bytes: u64,
    /// GPUs of the host.
    pub gpus: Vec<GpuFact>,
    /// Block devices of the host.
    pub disks: Vec<DiskFact>,
    /// Network interfaces of the host.
    pub networks: Vec<NetworkFact>,
    /// Types of tasks that the host's policy allows; null if the agent does not report them. For information only: the agent checks every
    /// task against the policy.
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

/// Control characters, invisible characters, and characters that change the direction of the text after them.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GpuFact {
    /// PCI address, such as `0000:17:00.0`.
    pub pci_address: String,
    /// PCI vendor id: `10de` or `1002`.
    pub vendor_id: String,
    /// PCI device id.
    pub device_id: String,
    /// Model name; empty if unknown.
    pub name: String,
    /// Memory; 0 if unknown.
    pub memory_bytes: u64,
    /// Kernel driver that it is bound to; empty if none.
    pub driver: String,
    /// NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// Source of this information: `nvml`, `sysfs` or `simulated`.
    pub source: String,
}

/// One block device.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct DiskFact {
    /// Kernel name.
    pub name: String,
    /// Model; empty if unknown.
    pub model: String,
    /// Serial number; empty if unknown.
    pub serial: String,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct NetworkFact {
    /// Kernel name.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// Whether the link is up.
    pub up: bool,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbit: u64,
}

/// A sample of the metrics of a host.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct HostMetrics {
    /// When the sample was taken, by the clock of the host.
    pub at: Timestamp,
    /// CPU usage since the last sample, in percent of all CPUs.
    pub cpu_percent: u32,
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Bytes received on all interfaces but loopback since boot.
    pub network_received_bytes: u64,
    /// Bytes sent on all interfaces but loopback since boot.
    pub network_sent_bytes: u64,
    /// Bytes read from all disks since boot.
    pub disk_read_bytes: u64,
    /// Bytes written to all disks since boot.
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
    /// The allocation that owns the guest.
    pub allocation_id: Option<AllocationId>,
    /// Whether the guest runs, as the hypervisor reports.
    pub running: bool,
    /// Source of the report.
    pub source: TelemetrySource,
    /// Why the guest does not report; empty if it does.
    pub reason: String,
    /// When the report arrived.
    pub at: Timestamp,
    /// Report of the guest; zeros if it sends none.
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

/// Report of a guest about itself. Tenants control its content: it is shown, but no decision depends on it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct GuestReport {
    /// One-minute load average times 100.
    pub load_percent: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Total memory.
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
    /// GPU usage in the last sample period, in percent.
    // Guests and agents of version 0.1.0 spell it with an s.
    #[serde(alias = "utilisation_percent")]
    pub utilization_percent: u32,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Core temperature.
    pub temperature_celsius: u32,
    /// Power draw.
    pub power_milliwatts: u32,
}
