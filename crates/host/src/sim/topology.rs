//! The bus of the simulated host: a two-socket server with eight switches, behind each a GPU, a drive and a fabric adapter with
//! one virtual function.

use gpuaas_contract::slice::{InterfaceName, PciAddress};
use gpuaas_contract::task::diag_health_probe::FabricLink;
use gpuaas_contract::task::slice_topology_discover::{CpuVirtualization, Ipoib, Prerequisites, RequiredCommand, SliceNetwork};
use gpuaas_contract::telemetry::HostFacts;

use super::Profile;
use crate::block::Namespace;
use crate::pci::PciFunction;
use crate::topology::{self, Inventory};

/// IOMMU groups of the whole server.
pub(super) const IOMMU_GROUPS: u32 = 212;
/// Loaded modules of the VFIO family.
pub(super) const VFIO_MODULES: [&str; 4] = ["vfio", "vfio_iommu_type1", "vfio_pci", "vfio_pci_core"];

/// One function of the simulated bus.
struct Place<'a> {
    address: String,
    behind: &'a [String],
    numa_node: i32,
    group: u32,
}

pub(super) fn inventory(profile: Profile, facts: &HostFacts, machine: String) -> Inventory {
    let (mut functions, mut namespaces) = (Vec::new(), Vec::new());
    let disks = facts.disks.iter().filter(|disk| disk.name.starts_with("nvme"));
    for ((gpu, disk), index) in facts.gpus.iter().zip(disks).zip(0_u32..) {
        let Some(bus) = gpu.pci_address.get(5..7).and_then(|bus| u8::from_str_radix(bus, 16).ok()) else { continue };
        let switch =
            [format!("pci0000:{:02x}", bus - 2), format!("0000:{:02x}:01.0", bus - 2), format!("0000:{:02x}:00.0", bus - 1)];
        let at = |bus: u8, function: u8, group: u32| Place {
            address: format!("0000:{bus:02x}:00.{function}"),
            behind: &switch,
            numa_node: gpu.numa_node,
            group: 40 + index * 8 + group,
        };
        let class = match profile {
            Profile::H100 => "030200",
            Profile::Mi300x => "120000",
        };
        functions.push(function(at(bus, 0, 0), [&gpu.vendor_id, &gpu.device_id, class], &gpu.driver));
        let drive = at(bus + 1, 0, 1);
        namespaces.push(Namespace {
            name: disk.name.clone(),
            stable_path: Some(format!("/dev/disk/by-id/nvme-{}_{}", disk.model.replace(' ', "_"), disk.serial)),
            serial: disk.serial.clone(),
            model: disk.model.clone(),
            size_bytes: disk.size_bytes,
            path: switch.iter().cloned().chain([drive.address.clone()]).collect(),
            numa_node: gpu.numa_node,
            used_by: Vec::new(),
        });
        functions.push(function(drive, ["144d", "a80a", "010802"], "nvme"));
        let adapter = function(at(bus + 2, 0, 2), ["15b3", "1021", "020700"], "mlx5_core");
        let virtual_function = PciFunction {
            physical_function: Some(adapter.address.clone()),
            ..function(at(bus + 2, 1, 3), ["15b3", "101e", "020700"], "mlx5_core")
        };
        functions.extend([PciFunction { virtual_functions: 1, ..adapter }, virtual_function]);
    }
    if profile == Profile::H100 {
        // The switches between the GPUs, which stay with the host.
        for (bus, group) in [(0x06_u8, 20), (0x07, 21), (0x08, 22), (0x09, 23)] {
            let behind = ["pci0000:05".to_owned()];
            let place = Place { address: format!("0000:{bus:02x}:00.0"), behind: &behind, numa_node: 0, group };
            functions.push(function(place, ["10de", "22a3", "068000"], "nvidia-nvswitch"));
        }
    }
    functions.sort_by(|one, other| one.address.cmp(&other.address));
    let intel = profile == Profile::H100;
    let modules = VFIO_MODULES.into_iter().chain(["kvm", if intel { "kvm_intel" } else { "kvm_amd" }, "openvswitch", "tun"]);
    Inventory {
        simulated: true,
        machine,
        functions,
        namespaces,
        drives_without_gpu: Vec::new(),
        emulation: false,
        prerequisites: Prerequisites {
            kvm_available: true,
            iommu_group_count: IOMMU_GROUPS,
            iommu_kernel_args: [if intel { "intel_iommu=on" } else { "amd_iommu=on" }, "iommu=pt"].map(str::to_owned).into(),
            cpu_virtualization: CpuVirtualization { vmx: intel, svm: !intel },
            loaded_modules: modules.map(str::to_owned).collect(),
            required_commands: topology::command_names()
                .map(|name| RequiredCommand { name: name.to_owned(), path: Some(format!("/usr/bin/{name}")) })
                .collect(),
            slice_network: SliceNetwork::default(),
            reboot_required: false,
            memory_mib: facts.memory_bytes / (1024 * 1024),
            cpu_threads: facts.cpu_threads,
        },
    }
}

/// Returns its network, which has any requested bridge.
pub(super) fn network(facts: &HostFacts, bridge: &InterfaceName) -> SliceNetwork {
    let ipoib = facts.networks.iter().filter(|interface| interface.name.starts_with("ib"));
    SliceNetwork {
        ovs_bridge: bridge.to_string(),
        bridge_exists: true,
        nat: true,
        ip_forwarding: true,
        ipoib: ipoib.map(|interface| Ipoib { name: interface.name.clone(), up: interface.up, netplan: true }).collect(),
    }
}

/// Returns the links: every InfiniBand interface is a link of the adapter behind its GPU's switch.
pub(super) fn links(facts: &HostFacts) -> Vec<FabricLink> {
    let interfaces = facts.networks.iter().filter(|interface| interface.name.starts_with("ib"));
    let adapter = |gpu: &str| {
        gpu.get(5..7).and_then(|bus| u8::from_str_radix(bus, 16).ok()).map(|bus| format!("0000:{:02x}:00.0", bus + 2))
    };
    facts
        .gpus
        .iter()
        .zip(interfaces)
        .zip(0..)
        .map(|((gpu, interface), index)| FabricLink {
            pci_address: adapter(&gpu.pci_address).unwrap_or_default(),
            name: format!("mlx5_{index}/1"),
            up: interface.up,
            state: if interface.up { "active" } else { "down" }.to_owned(),
            rate: "400 Gb/sec (4X NDR)".to_owned(),
        })
        .collect()
}

fn function(place: Place<'_>, [vendor_id, device_id, class]: [&str; 3], driver: &str) -> PciFunction {
    let address: PciAddress = place.address.parse().unwrap_or_else(|_| unreachable!("made of two hex digits"));
    PciFunction {
        path: place.behind.iter().cloned().chain([place.address]).collect(),
        address,
        vendor_id: vendor_id.to_owned(),
        device_id: device_id.to_owned(),
        class: class.to_owned(),
        driver: driver.to_owned(),
        iommu_group: Some(place.group),
        numa_node: place.numa_node,
        physical_function: None,
        virtual_functions: 0,
    }
}
