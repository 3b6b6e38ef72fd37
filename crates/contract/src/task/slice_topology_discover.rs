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

/// What the slots shall have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Params {
    /// The Open vSwitch bridge of the guests.
    pub ovs_bridge: InterfaceName,
    /// The guests' network on this host. Slots get the second address and those that follow.
    pub private_subnet: Subnet,
    /// vCPUs per slot.
    #[schemars(range(min = 1, max = MAX_VCPUS))]
    pub vcpu_count: u32,
    /// Memory per slot.
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

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Always: only an operator makes slots.
    pub approval_required: bool,
    /// This host is a simulation.
    pub simulated: bool,
    /// What the host needs before it can have guests.
    pub prerequisites: Prerequisites,
    /// GPUs, by address.
    pub gpu_devices: Vec<GpuDevice>,
    /// Fabric adapters and their virtual functions, by address.
    pub fabric_devices: Vec<FabricDevice>,
    /// NVMe namespaces, by kernel name.
    pub nvme_devices: Vec<NvmeDevice>,
    /// One slot per GPU, whether it can be used or not.
    pub candidate_slots: Vec<CandidateSlot>,
    /// In short.
    pub candidate_summary: Summary,
}

/// What the host needs before it can have guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prerequisites {
    /// `/dev/kvm` exists.
    pub kvm_available: bool,
    /// Number of IOMMU groups; 0 means that nothing can be passed through.
    pub iommu_group_count: u32,
    /// Which of `intel_iommu=on`, `amd_iommu=on`, `iommu=pt` the kernel was started with.
    pub iommu_kernel_args: Vec<String>,
    /// What the processor can do.
    pub cpu_virtualization: CpuVirtualization,
    /// Loaded modules that guests need.
    pub loaded_modules: Vec<String>,
    /// Programs that the slice tasks run, and where they are.
    pub required_commands: Vec<RequiredCommand>,
    /// The guests' network.
    pub slice_network: SliceNetwork,
    /// The distribution asks for a reboot.
    pub reboot_required: bool,
    /// All memory, in MiB.
    pub memory_mib: u64,
    /// Hardware threads.
    pub cpu_threads: u32,
}

/// Flags of the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CpuVirtualization {
    /// Intel.
    pub vmx: bool,
    /// AMD.
    pub svm: bool,
}

/// A program that must be there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequiredCommand {
    /// Its name.
    pub name: String,
    /// Where it is; absent if it is not installed.
    pub path: Option<String>,
}

/// The guests' network as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceNetwork {
    /// The bridge that was asked about.
    pub ovs_bridge: String,
    /// Open vSwitch knows it.
    pub bridge_exists: bool,
    /// The packet filter hides guests behind the host's address.
    pub nat: bool,
    /// The kernel forwards IPv4.
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
    /// Its link is up.
    pub up: bool,
    /// A netplan file mentions it, so that it comes up again after a reboot.
    pub netplan: bool,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuDevice {
    /// Where it is.
    pub pci_address: PciAddress,
    /// `10de` or `1002`.
    pub vendor_id: String,
    /// Device id.
    pub device_id: String,
    /// Driver now bound, or empty.
    pub driver: String,
    /// Its IOMMU group, if there is an IOMMU.
    pub iommu_group: Option<u32>,
    /// Everything else in that group.
    pub iommu_group_members: Vec<PciAddress>,
    /// NUMA node, or -1.
    pub numa_node: i32,
}

/// A fabric adapter (Mellanox, NVIDIA networking) or one of its virtual functions.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FabricDevice {
    /// Where it is.
    pub pci_address: PciAddress,
    /// Device id.
    pub device_id: String,
    /// Driver now bound, or empty.
    pub driver: String,
    /// Its IOMMU group, if there is an IOMMU.
    pub iommu_group: Option<u32>,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// The adapter it is a virtual function of; absent for the adapter itself.
    pub physical_function: Option<PciAddress>,
    /// How many virtual functions it has now; 0 for a virtual function.
    pub virtual_functions: u32,
}

/// An NVMe namespace.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeDevice {
    /// Kernel name, which may change with every boot.
    pub name: String,
    /// The path under `/dev/disk/by-id` that does not.
    pub stable_path: Option<String>,
    /// Serial number of the drive.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Size.
    pub size_bytes: u64,
    /// The controller's address, if there is exactly one.
    pub pci_address: Option<PciAddress>,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// What the host itself uses it for: mount points, swap, or the names of devices built on it.
    pub used_by: Vec<String>,
}

/// A GPU with what would go to a guest with it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CandidateSlot {
    /// Its place among this host's GPUs, by address.
    pub slot_index: u32,
    /// The GPU.
    pub pci_address: Option<PciAddress>,
    /// Everything else of the GPU's IOMMU group that goes along: its own other functions.
    pub companions: Vec<PciAddress>,
    /// The fabric function, if this host has any.
    pub fabric_device: Option<PciAddress>,
    /// Stable path of the NVMe namespace.
    pub nvme_device: Option<String>,
    /// Serial number of that drive.
    pub nvme_serial: Option<String>,
    /// NUMA node of the GPU, or -1.
    pub numa_node: i32,
    /// vCPUs.
    pub vcpu_count: u32,
    /// Memory.
    pub memory_mib: u64,
    /// The guest's hardware address: the same for this GPU of this machine whenever it is asked.
    pub mac_address: String,
    /// The guest's address, if the network has room for it.
    pub private_ip: Option<Ipv4Addr>,
    /// Nothing stands in its way, on the host or here.
    pub schedulable: bool,
    /// What does here.
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

/// The candidates in short.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// How many there are.
    pub slots: u32,
    /// How many could be used now.
    pub schedulable: u32,
    /// What stands in the way of all of them.
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
