//! What of a host could become slots: an inventory that is read from the machine (or made up by the simulated one), and the
//! conclusions from it, which are pure.

mod blockers;
mod candidates;

use std::path::Path;

use gpuaas_contract::slice::{InterfaceName, PciAddress};
use gpuaas_contract::task::slice_topology_discover::{
    CpuVirtualization, FabricDevice, GpuDevice, Ipoib, MAX_DEVICES, NvmeDevice, Output, Params, Prerequisites, RequiredCommand,
    SliceNetwork, Summary,
};
use procfs::Current as _;

use crate::block::{self, Namespace};
use crate::exec::first_installed;
use crate::pci::{self, PciFunction};
use crate::{kernel, nft, ovs, sysfs};

/// Programs that the slice tasks run, and where distributions put them.
const COMMANDS: [(&str, &[&str]); 7] = [
    ("cloud-localds", &["/usr/bin/cloud-localds"]),
    ("dnsmasq", &["/usr/sbin/dnsmasq"]),
    ("nft", &["/usr/sbin/nft", "/sbin/nft"]),
    ("ovs-vsctl", &["/usr/bin/ovs-vsctl"]),
    ("qemu-img", &["/usr/bin/qemu-img"]),
    ("ssh", &["/usr/bin/ssh"]),
    ("virsh", &["/usr/bin/virsh"]),
];
/// Modules that guests with devices of their own need.
const MODULES: [&str; 5] = ["kvm", "kvm_amd", "kvm_intel", "openvswitch", "tun"];
/// What the kernel can be told about the IOMMU.
const IOMMU_ARGS: [&str; 3] = ["amd_iommu=on", "intel_iommu=on", "iommu=pt"];
/// `type` of an InfiniBand interface in sysfs.
const ARPHRD_INFINIBAND: &str = "32";

/// What a host has, before any conclusion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// It is made up.
    pub simulated: bool,
    /// The machine's fingerprint: hardware addresses of guests are made from it.
    pub machine: String,
    /// Everything on the PCI bus.
    pub functions: Vec<PciFunction>,
    /// Every NVMe namespace.
    pub namespaces: Vec<Namespace>,
    /// Drives that the host's owner wants as slots without a GPU.
    pub drives_without_gpu: Vec<Namespace>,
    /// The host's owner allows guests without the processor's help.
    pub emulation: bool,
    /// Everything but the network of the guests.
    pub prerequisites: Prerequisites,
}

/// Reads this machine. Blocks for milliseconds.
pub(crate) fn read(machine: String) -> Inventory {
    let (sys, proc_root, dev) = (Path::new("/sys"), Path::new("/proc"), Path::new("/dev"));
    let cpu = procfs::CpuInfo::current().ok();
    let flags: Vec<String> =
        cpu.as_ref().and_then(|cpu| cpu.flags(0)).unwrap_or_default().into_iter().map(str::to_owned).collect();
    let has = |flag: &str| flags.iter().any(|known| known == flag);
    let memory = procfs::Meminfo::current().map_or(0, |memory| memory.mem_total);
    let mut loaded_modules = kernel::vfio_modules(sys);
    loaded_modules
        .extend(MODULES.iter().filter(|module| sys.join("module").join(module).is_dir()).map(|&module| module.to_owned()));
    loaded_modules.sort();
    Inventory {
        simulated: false,
        machine,
        functions: pci::functions(sys),
        namespaces: block::namespaces(sys, proc_root, dev),
        drives_without_gpu: Vec::new(),
        emulation: false,
        prerequisites: Prerequisites {
            kvm_available: kernel::kvm(),
            iommu_group_count: kernel::iommu_groups(sys),
            iommu_kernel_args: iommu_args(&sysfs::text(proc_root.join("cmdline"))),
            cpu_virtualization: CpuVirtualization { vmx: has("vmx"), svm: has("svm") },
            loaded_modules,
            required_commands: COMMANDS.iter().map(|(name, places)| command(name, places)).collect(),
            slice_network: SliceNetwork::default(),
            reboot_required: kernel::reboot_required(),
            memory_mib: memory / (1024 * 1024),
            cpu_threads: cpu.map_or(0, |cpu| u32::try_from(cpu.num_cores()).unwrap_or(u32::MAX)),
        },
    }
}

fn command(name: &str, places: &[&str]) -> RequiredCommand {
    RequiredCommand { name: name.to_owned(), path: first_installed(places).map(|path| path.to_string_lossy().into_owned()) }
}

/// Names of the programs that must be there.
pub(crate) fn command_names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, _)| *name)
}

/// The arguments about the IOMMU in a kernel command line.
fn iommu_args(cmdline: &str) -> Vec<String> {
    IOMMU_ARGS.iter().filter(|known| cmdline.split_whitespace().any(|arg| arg == **known)).map(|&arg| arg.to_owned()).collect()
}

/// Reads the guests' network of this machine. What does not answer counts as absent: the reason is in the log.
pub(crate) async fn read_network(bridge: &InterfaceName) -> SliceNetwork {
    let (bridge_exists, nat) = tokio::join!(ovs::bridge_exists(bridge), nft::has_source_nat());
    SliceNetwork {
        ovs_bridge: bridge.to_string(),
        bridge_exists: bridge_exists.unwrap_or_else(|error| not_known(&error)),
        nat: nat.unwrap_or_else(|error| not_known(&error)),
        ip_forwarding: sysfs::text("/proc/sys/net/ipv4/ip_forward") == "1",
        ipoib: ipoib(Path::new("/sys"), Path::new("/etc/netplan")),
    }
}

fn not_known(error: &(dyn std::error::Error + 'static)) -> bool {
    tracing::info!(error, "the guests' network is not known");
    false
}

fn ipoib(sys: &Path, netplan: &Path) -> Vec<Ipoib> {
    let plans: Vec<String> = sysfs::entries(netplan)
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml"))
        .take(64)
        .map(sysfs::long_text)
        .collect();
    sysfs::entries(sys.join("class/net"))
        .iter()
        .filter(|interface| sysfs::text(interface.join("type")) == ARPHRD_INFINIBAND)
        .take(64)
        .map(|interface| {
            let name = sysfs::name(interface);
            Ipoib {
                up: sysfs::text(interface.join("operstate")) == "up",
                netplan: plans.iter().any(|plan| mentions(plan, &name)),
                name,
            }
        })
        .collect()
}

/// Whether a netplan file has a key of this name.
fn mentions(plan: &str, interface: &str) -> bool {
    plan.lines().any(|line| {
        let key = line.split('#').next().unwrap_or_default().trim().strip_suffix(':');
        key.is_some_and(|key| key.trim_matches(['"', '\'']) == interface)
    })
}

/// The conclusions: the same inventory and parameters give the same answer, to the byte.
pub fn discover(inventory: &Inventory, network: SliceNetwork, params: &Params) -> Output {
    let prerequisites = Prerequisites { slice_network: network, ..inventory.prerequisites.clone() };
    let host_blockers = blockers::of_host(&prerequisites, params, blockers::Needs::of(inventory));
    let mut slots = candidates::slots(inventory, params);
    for slot in &mut slots {
        slot.schedulable = host_blockers.is_empty() && slot.blockers.is_empty();
    }
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let members = |group: Option<u32>, own: &PciAddress| -> Vec<PciAddress> {
        let of_group = |function: &&PciFunction| group.is_some() && function.iommu_group == group && function.address != *own;
        inventory.functions.iter().filter(of_group).map(|function| function.address.clone()).collect()
    };
    Output {
        approval_required: true,
        simulated: inventory.simulated,
        candidate_summary: Summary {
            slots: count(slots.len()),
            schedulable: count(slots.iter().filter(|slot| slot.schedulable).count()),
            blockers: host_blockers,
        },
        gpu_devices: candidates::gpus(inventory)
            .map(|gpu| GpuDevice {
                pci_address: gpu.address.clone(),
                vendor_id: gpu.vendor_id.clone(),
                device_id: gpu.device_id.clone(),
                driver: gpu.driver.clone(),
                iommu_group: gpu.iommu_group,
                iommu_group_members: members(gpu.iommu_group, &gpu.address),
                numa_node: gpu.numa_node,
            })
            .collect(),
        fabric_devices: inventory
            .functions
            .iter()
            .filter(|function| function.is_fabric())
            .take(MAX_DEVICES)
            .map(|function| FabricDevice {
                pci_address: function.address.clone(),
                device_id: function.device_id.clone(),
                driver: function.driver.clone(),
                iommu_group: function.iommu_group,
                numa_node: function.numa_node,
                physical_function: function.physical_function.clone(),
                virtual_functions: function.virtual_functions,
            })
            .collect(),
        nvme_devices: inventory
            .namespaces
            .iter()
            .take(MAX_DEVICES)
            .map(|namespace| NvmeDevice {
                name: namespace.name.clone(),
                stable_path: namespace.stable_path.clone(),
                serial: namespace.serial.clone(),
                model: namespace.model.clone(),
                size_bytes: namespace.size_bytes,
                pci_address: namespace.path.last().and_then(|last| last.parse().ok()),
                numa_node: namespace.numa_node,
                used_by: namespace.used_by.clone(),
            })
            .collect(),
        candidate_slots: slots,
        prerequisites,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_about_the_iommu_are_whole_words() {
        assert_eq!(
            iommu_args("BOOT_IMAGE=/vmlinuz root=/dev/sda1 intel_iommu=on iommu=pt quiet"),
            ["intel_iommu=on", "iommu=pt"]
        );
        assert_eq!(iommu_args("amd_iommu=only xiommu=pt"), [""; 0]);
    }

    #[test]
    fn a_netplan_mentions_an_interface_only_as_a_key() {
        let plan =
            "network:\n  ethernets:\n    # ib9:\n    ib0:\n      addresses: [10.0.0.1/24]\n    \"ib1\":\n      dhcp4: true\n";
        assert!(mentions(plan, "ib0") && mentions(plan, "ib1"));
        assert!(!mentions(plan, "ib9") && !mentions(plan, "ib") && !mentions(plan, "dhcp4: true"));
    }

    #[test]
    fn this_machine_can_be_read() {
        let inventory = read("test".to_owned());
        assert!(inventory.prerequisites.memory_mib > 0 && inventory.prerequisites.cpu_threads > 0);
        let output = discover(&inventory, SliceNetwork::default(), &Params::default());
        assert!(output.approval_required && !output.simulated);
        assert_eq!(output.candidate_slots.len(), output.gpu_devices.len());
    }

    #[tokio::test]
    async fn a_machine_without_open_vswitch_has_no_bridge_and_no_error() {
        let bridge: InterfaceName = "br-none-such".parse().expect("a name");
        assert!(!read_network(&bridge).await.bridge_exists);
    }
}
