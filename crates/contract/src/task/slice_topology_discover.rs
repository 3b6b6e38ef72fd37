//! `slice.topology_discover`: reports what on this host could become slots, and what prevents it. It changes nothing and creates no slots;
//! an operator's approval does.

use std::net::Ipv4Addr;

use super::{Examples, Parameters};
use crate::slice::{Blocker, InterfaceName, MAX_MEMORY_MIB, MAX_VCPUS, PciAddress, SlotSpec, Subnet};

/// vCPUs per slot unless the parameters set a number.
pub const DEFAULT_VCPUS: u32 = 12;
/// Memory per slot unless the parameters set an amount, in MiB.
pub const DEFAULT_MEMORY_MIB: u64 = 65_536;
/// Maximum number of devices of each kind in the answer.
pub const MAX_DEVICES: usize = 256;

/// Network and size of the proposed slots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Params {
    /// The Open vSwitch bridge of the guests.
    pub ovs_bridge: InterfaceName,
    /// The guests' network on this host. Slots get the second address and the following ones.
    pub private_subnet: Subnet,
    /// vCPUs per slot.
    #[schemars(range(min = 1, max = MAX_VCPUS))]
    pub vcpu_count: u32,
    /// Memory per slot, in MiB.
    #[schemars(range(min = 512, max = MAX_MEMORY_MIB))]
    pub memory_mib: u64,
}

impl Default for Params {
    fn default() -> Self {
        let known = |result: Result<InterfaceName, _>| result.unwrap_or_else(|_| unreachable!("a good name"));
        Self {
            ovs_bridge: known("br-slices".parse()),
            private_subnet: "10.77.0.0/24".parse().unwrap_or_else(|_| unreachable!("a good network")),
            vcpu_count: DEFAULT_VCPUS,
            memory_mib: DEFAULT_MEMORY_MIB,
        }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_VCPUS).contains(&self.vcpu_count) {
            return Err(format!("vcpu_count is {}; choose 1 to {MAX_VCPUS}", self.vcpu_count));
        }
        if !(512..=MAX_MEMORY_MIB).contains(&self.memory_mib) {
            return Err(format!("memory_mib is {}; choose 512 to {MAX_MEMORY_MIB}", self.memory_mib));
        }
        Ok(())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[
        "{}",
        r#"{"ovs_bridge":"br-slices","private_subnet":"10.77.0.0/24","vcpu_count":12,"memory_mib":65536}"#,
        r#"{"vcpu_count":64}"#,
    ],
    refused_params: &[
        r#"{"ovs_bridge":"--help"}"#,
        r#"{"private_subnet":"10.77.0.1/33","vcpu_count":0}"#,
        r#"{"private_subnet":"0.0.0.0/0"}"#,
        r#"{"vcpu_count":0}"#,
        r#"{"memory_mib":-1}"#,
    ],
    outputs: &[r#"{"approval_required":true,"simulated":false,"prerequisites":{"kvm_available":true,"iommu_group_count":2,
        "iommu_kernel_args":["iommu=pt"],"cpu_virtualization":{"vmx":true,"svm":false},"loaded_modules":["vfio_pci"],
        "required_commands":[{"name":"virsh","path":null}],"slice_network":{"ovs_bridge":"br","bridge_exists":false,"nat":true,
        "ip_forwarding":true,"ipoib":[{"name":"ib0","up":true,"netplan":false}]},"reboot_required":false,"memory_mib":1,
        "cpu_threads":2},"gpu_devices":[{"pci_address":"0000:17:00.0","vendor_id":"10de","device_id":"2330","driver":"",
        "iommu_group":7,"iommu_group_members":["0000:17:00.1"],"numa_node":-1}],"fabric_devices":[],"nvme_devices":[],
        "candidate_slots":[{"slot_index":0,"pci_address":"0000:17:00.0","companions":[],"fabric_device":null,
        "nvme_device":"/dev/disk/by-id/x","nvme_serial":"s","numa_node":0,"vcpu_count":12,"memory_mib":65536,
        "mac_address":"02:00:00:00:00:00","private_ip":"10.77.0.2","schedulable":false,
        "blockers":[{"code":"cpu_short","message":"m"}]}],
        "candidate_summary":{"slots":1,"schedulable":0,"blockers":[]}}"#],
    refused_outputs: &[r#"{"approval_required":true}"#],
};

/// The topology of the host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Always true: a candidate becomes a slot only if an operator approves it.
    pub approval_required: bool,
    /// Whether the host is simulated.
    pub simulated: bool,
    /// What a host needs to run guests, as found on this host.
    pub prerequisites: Prerequisites,
    /// GPUs, sorted by PCI address.
    pub gpu_devices: Vec<GpuDevice>,
    /// Fabric adapters and their virtual functions, sorted by PCI address.
    pub fabric_devices: Vec<FabricDevice>,
    /// NVMe namespaces, sorted by kernel name.
    pub nvme_devices: Vec<NvmeDevice>,
    /// One candidate per GPU, whether it can be used or not.
    pub candidate_slots: Vec<CandidateSlot>,
    /// Summary of the candidates.
    pub candidate_summary: Summary,
}

/// What a host needs to run guests, as found on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prerequisites {
    /// Whether `/dev/kvm` exists.
    pub kvm_available: bool,
    /// Number of IOMMU groups; with 0, no device can be passed through to a guest.
    pub iommu_group_count: u32,
    /// Which of `intel_iommu=on`, `amd_iommu=on`, `iommu=pt` the kernel was started with.
    pub iommu_kernel_args: Vec<String>,
    /// Virtualization support of the processor.
    pub cpu_virtualization: CpuVirtualization,
    /// Loaded kernel modules that guests need.
    pub loaded_modules: Vec<String>,
    /// Programs that the slice tasks run, and their paths.
    pub required_commands: Vec<RequiredCommand>,
    /// The guests' network.
    pub slice_network: SliceNetwork,
    /// Whether the distribution requests a reboot.
    pub reboot_required: bool,
    /// Total memory, in MiB.
    pub memory_mib: u64,
    /// Number of hardware threads.
    pub cpu_threads: u32,
}

/// Virtualization support of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuVirtualization {
    /// Whether it supports Intel VT-x (`vmx`).
    pub vmx: bool,
    /// Whether it supports AMD-V (`svm`).
    pub svm: bool,
}

/// A program that the slice tasks need.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequiredCommand {
    /// Its name.
    pub name: String,
    /// Path of the program; absent if it is not installed.
    pub path: Option<String>,
}

/// Current state of the guests' network.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceNetwork {
    /// The bridge from the parameters.
    pub ovs_bridge: String,
    /// Whether the bridge exists in Open vSwitch.
    pub bridge_exists: bool,
    /// Whether the packet filter translates guest addresses to the host's address.
    pub nat: bool,
    /// Whether the kernel forwards IPv4.
    pub ip_forwarding: bool,
    /// IP over InfiniBand interfaces.
    pub ipoib: Vec<Ipoib>,
}

/// One IP over InfiniBand interface.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ipoib {
    /// Its name.
    pub name: String,
    /// Whether its link is up.
    pub up: bool,
    /// Whether a netplan file mentions it, so that it comes up again after a reboot.
    pub netplan: bool,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuDevice {
    /// PCI address.
    pub pci_address: PciAddress,
    /// PCI vendor id: `10de` or `1002`.
    pub vendor_id: String,
    /// PCI device id.
    pub device_id: String,
    /// Driver that it is bound to; empty if none.
    pub driver: String,
    /// IOMMU group; null without an IOMMU.
    pub iommu_group: Option<u32>,
    /// The other PCI functions in that group.
    pub iommu_group_members: Vec<PciAddress>,
    /// NUMA node; -1 if unknown.
    pub numa_node: i32,
}

/// A fabric adapter (Mellanox, NVIDIA networking) or one of its virtual functions.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricDevice {
    /// PCI address.
    pub pci_address: PciAddress,
    /// PCI device id.
    pub device_id: String,
    /// Driver that it is bound to; empty if none.
    pub driver: String,
    /// IOMMU group; null without an IOMMU.
    pub iommu_group: Option<u32>,
    /// NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// The adapter that it is a virtual function of; absent for the adapter itself.
    pub physical_function: Option<PciAddress>,
    /// Current number of its virtual functions; 0 for a virtual function.
    pub virtual_functions: u32,
}

/// An NVMe namespace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeDevice {
    /// Kernel name, which may change with every boot.
    pub name: String,
    /// Path under `/dev/disk/by-id`, which stays the same.
    pub stable_path: Option<String>,
    /// Serial number of the drive.
    pub serial: String,
    /// Model of the drive.
    pub model: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// PCI address of the controller, if there is exactly one.
    pub pci_address: Option<PciAddress>,
    /// NUMA node; -1 if unknown.
    pub numa_node: i32,
    /// How the host itself uses it: mount points, swap, or the names of devices built on it.
    pub used_by: Vec<String>,
}

/// A GPU, and what a guest would get with it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CandidateSlot {
    /// Index among this host's GPUs, in the order of their PCI addresses.
    pub slot_index: u32,
    /// The GPU.
    pub pci_address: Option<PciAddress>,
    /// Other functions of the GPU in its IOMMU group, which are passed through with it.
    pub companions: Vec<PciAddress>,
    /// The fabric function, if this host has one.
    pub fabric_device: Option<PciAddress>,
    /// Stable path of the NVMe namespace.
    pub nvme_device: Option<String>,
    /// Serial number of that drive.
    pub nvme_serial: Option<String>,
    /// NUMA node of the GPU; -1 if unknown.
    pub numa_node: i32,
    /// Number of vCPUs.
    pub vcpu_count: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// MAC address of the guest. It is always the same for this GPU of this host.
    pub mac_address: String,
    /// IP address of the guest, if the network has a free one.
    pub private_ip: Option<Ipv4Addr>,
    /// Whether it could be used now: nothing blocks it or the whole host.
    pub schedulable: bool,
    /// What blocks this candidate.
    pub blockers: Vec<Blocker>,
}

impl CandidateSlot {
    /// The candidate as a slot spec; `None` if something that a slot must have is missing.
    pub fn spec(&self) -> Option<SlotSpec> {
        Some(SlotSpec {
            slot_index: self.slot_index,
            pci_address: self.pci_address.clone(),
            companions: self.companions.clone(),
            fabric_device: self.fabric_device.clone(),
            nvme_device: self.nvme_device.clone()?,
            nvme_serial: self.nvme_serial.clone()?,
            numa_node: self.numa_node,
            vcpu_count: self.vcpu_count,
            memory_mib: self.memory_mib,
            mac_address: self.mac_address.clone(),
            private_ip: self.private_ip?,
        })
    }
}

/// Summary of the candidates.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Number of candidates.
    pub slots: u32,
    /// Number of candidates that could be used now.
    pub schedulable: u32,
    /// What blocks all candidates.
    pub blockers: Vec<Blocker>,
}

#[cfg(test)]
mod tests {
    use crate::task::{BadParams, Task, TaskType};

    #[test]
    fn defaults_are_good_and_nonsense_is_refused_with_its_field() {
        let parse = |text: &str| Task::parse(TaskType::SliceTopologyDiscover, text);
        assert!(parse("{}").is_ok());
        for (text, field) in [
            (r#"{"vcpu_count":0}"#, "vcpu_count"),
            (r#"{"memory_mib":1}"#, "memory_mib"),
            (r#"{"ovs_bridge":"--help"}"#, "--help"),
            (r#"{"private_subnet":"1.2.3.0/24"}"#, "1.2.3.0/24"),
        ] {
            match parse(text) {
                Err(BadParams::Invalid { detail, .. }) => assert!(detail.contains(field), "{text}: {detail}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(parse(r#"{"write":true}"#), Err(BadParams::UnknownField { .. })));
    }
}
