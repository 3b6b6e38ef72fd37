//! The PCI bus from sysfs: its functions, their drivers, their IOMMU groups, and their distances.

use std::path::Path;

use gpuaas_contract::slice::PciAddress;
use gpuaas_contract::telemetry::GpuFact;

use crate::sysfs;

/// NVIDIA and AMD.
const GPU_VENDORS: [&str; 2] = ["10de", "1002"];
/// Mellanox, now NVIDIA networking.
const FABRIC_VENDOR: &str = "15b3";

/// One PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// Its address.
    pub address: PciAddress,
    /// Four hex digits.
    pub vendor_id: String,
    /// Four hex digits.
    pub device_id: String,
    /// Six hex digits: class, subclass, interface.
    pub class: String,
    /// Its current driver, or empty.
    pub driver: String,
    /// IOMMU group, if there is one.
    pub iommu_group: Option<u32>,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// The adapter of this virtual function.
    pub physical_function: Option<PciAddress>,
    /// The number of its virtual functions.
    pub virtual_functions: u32,
    /// The names of the bridges from the root of its bus to itself.
    pub path: Vec<String>,
}

impl PciFunction {
    /// Returns whether it is a display controller or processing accelerator of NVIDIA or AMD.
    pub fn is_gpu(&self) -> bool {
        // 03xxxx is a display controller, 12xxxx a processing accelerator.
        GPU_VENDORS.contains(&self.vendor_id.as_str()) && (self.class.starts_with("03") || self.class.starts_with("12"))
    }

    /// Returns whether it is a network controller of the fabric.
    pub fn is_fabric(&self) -> bool {
        self.vendor_id == FABRIC_VENDOR && self.class.starts_with("02")
    }

    /// Returns whether it is the controller of an NVMe drive.
    pub fn is_drive(&self) -> bool {
        self.class == "010802"
    }

    /// Returns whether it is a bridge. A bridge may be in any group, because it does nothing by itself.
    pub fn is_bridge(&self) -> bool {
        self.class.starts_with("0604")
    }

    /// Returns the number of bridges between two functions, or `None` if they have different roots.
    pub fn distance(&self, other: &[String]) -> Option<usize> {
        let common = self.path.iter().zip(other).take_while(|(a, b)| a == b).count();
        (common > 0).then(|| self.path.len() + other.len() - 2 * common)
    }
}

/// Returns the functions under `sys` (normally `/sys`), by address.
pub fn functions(sys: &Path) -> Vec<PciFunction> {
    sysfs::entries(sys.join("bus/pci/devices")).iter().filter_map(|device| function(device)).collect()
}

fn function(device: &Path) -> Option<PciFunction> {
    let hex = |attribute: &str| sysfs::text(device.join(attribute)).trim_start_matches("0x").to_ascii_lowercase();
    let address: PciAddress = sysfs::name(device).parse().ok()?;
    let path = path_of(&sysfs::real_path(device));
    Some(PciFunction {
        vendor_id: hex("vendor"),
        device_id: hex("device"),
        class: hex("class"),
        driver: sysfs::link_name(device.join("driver")),
        iommu_group: sysfs::link_name(device.join("iommu_group")).parse().ok(),
        numa_node: sysfs::number(device.join("numa_node")).unwrap_or(-1),
        physical_function: sysfs::link_name(device.join("physfn")).parse().ok(),
        virtual_functions: sysfs::number(device.join("sriov_numvfs")).unwrap_or(0),
        path: if path.is_empty() { vec![address.to_string()] } else { path },
        address,
    })
}

/// Returns the PCI part of a real path under `/sys/devices`: the root (`pci0000:16`), the bridges and the function.
pub(crate) fn path_of(real: &Path) -> Vec<String> {
    let names = real.components().filter_map(|part| part.as_os_str().to_str());
    names.filter(|name| name.starts_with("pci0") || name.parse::<PciAddress>().is_ok()).map(str::to_owned).collect()
}

/// Returns the GPUs under `sys` (normally `/sys`), by address.
pub fn gpus(sys: &Path) -> Vec<GpuFact> {
    functions(sys).iter().filter(|function| function.is_gpu()).map(|function| gpu(sys, function)).collect()
}

fn gpu(sys: &Path, function: &PciFunction) -> GpuFact {
    let device = sys.join("bus/pci/devices").join(function.address.as_str());
    GpuFact {
        pci_address: function.address.to_string(),
        vendor_id: function.vendor_id.clone(),
        device_id: function.device_id.clone(),
        name: String::new(),
        memory_bytes: sysfs::number(device.join("mem_info_vram_total")).unwrap_or(0),
        driver: function.driver.clone(),
        numa_node: function.numa_node,
        source: "sysfs".to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Adds a function to a fake sysfs, behind the given bridges.
    pub(crate) fn device(sys: &Path, behind: &str, address: &str, attributes: &[(&str, &str)]) {
        let real = sys.join("devices").join(behind).join(address);
        std::fs::create_dir_all(&real).expect("folder");
        for (name, value) in attributes {
            match *name {
                "driver" | "iommu_group" | "physfn" => {
                    let target = sys.join("targets").join(name).join(value);
                    std::fs::create_dir_all(&target).expect("target");
                    symlink(&target, real.join(name)).expect("link");
                }
                _ => std::fs::write(real.join(name), format!("{value}\n")).expect("attribute"),
            }
        }
        let bus = sys.join("bus/pci/devices");
        std::fs::create_dir_all(&bus).expect("folder");
        symlink(&real, bus.join(address)).expect("link");
    }

    #[test]
    fn gpus_are_found_by_vendor_and_class_and_nothing_else_is() {
        let sys = tempfile::tempdir().expect("folder");
        let at = |address, attributes: &[(&str, &str)]| device(sys.path(), "pci0000:00", address, attributes);
        at("0000:17:00.0", &[("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330"), ("numa_node", "1")]);
        at("0000:45:00.0", &[("vendor", "0x1002"), ("class", "0x120000"), ("device", "0x74a1")]);
        at("0000:18:00.0", &[("vendor", "0x10de"), ("class", "0x068000"), ("device", "0x22a3")]); // a switch
        at("0000:00:02.0", &[("vendor", "0x8086"), ("class", "0x030000"), ("device", "0x1234")]);
        let found = gpus(sys.path());
        let addresses: Vec<_> = found.iter().map(|gpu| gpu.pci_address.as_str()).collect();
        assert_eq!(addresses, ["0000:17:00.0", "0000:45:00.0"]);
        assert_eq!((found[0].device_id.as_str(), found[0].numa_node, found[1].numa_node), ("2330", 1, -1));
    }

    #[test]
    fn drivers_groups_virtual_functions_and_distances_are_read() {
        let sys = tempfile::tempdir().expect("folder");
        let gpu = [("vendor", "0x10de"), ("class", "0x030200"), ("driver", "vfio-pci"), ("iommu_group", "17")];
        device(sys.path(), "pci0000:16/0000:16:01.0/0000:17:00.0", "0000:18:00.0", &gpu);
        let pf = [("vendor", "0x15b3"), ("class", "0x020700"), ("sriov_numvfs", "2"), ("driver", "mlx5_core")];
        device(sys.path(), "pci0000:16/0000:16:01.0/0000:17:01.0", "0000:19:00.0", &pf);
        let vf = [("vendor", "0x15b3"), ("class", "0x020700"), ("physfn", "0000:19:00.0")];
        device(sys.path(), "pci0000:16/0000:16:01.0/0000:17:01.0", "0000:19:00.1", &vf);
        device(sys.path(), "pci0000:96", "0000:96:01.0", &[("vendor", "0x8086"), ("class", "0x060400")]);
        let found = functions(sys.path());
        let [gpu, pf, vf, bridge] = found.as_slice() else { panic!("{found:?}") };
        assert!(gpu.is_gpu() && pf.is_fabric() && vf.is_fabric() && bridge.is_bridge());
        assert_eq!((gpu.driver.as_str(), gpu.iommu_group, pf.iommu_group), ("vfio-pci", Some(17), None));
        assert_eq!((pf.virtual_functions, vf.physical_function.as_ref()), (2, Some(&pf.address)));
        assert_eq!(gpu.path, ["pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:00.0"]);
        assert_eq!(gpu.distance(&vf.path), Some(4));
        assert_eq!(pf.distance(&vf.path), Some(2));
        assert_eq!(gpu.distance(&bridge.path), None, "another root");
    }

    #[test]
    fn a_host_without_pci_has_no_gpus() {
        assert!(gpus(Path::new("/nowhere")).is_empty());
    }
}
