//! GPUs on the PCI bus, from sysfs: display controllers and processing accelerators of NVIDIA and AMD.

use std::path::Path;

use gpuaas_contract::telemetry::GpuFact;

use crate::sysfs;

/// NVIDIA and AMD.
const VENDORS: [&str; 2] = ["10de", "1002"];

/// GPUs under `sys` (normally `/sys`), by address.
pub fn gpus(sys: &Path) -> Vec<GpuFact> {
    sysfs::entries(sys.join("bus/pci/devices")).iter().filter_map(|device| gpu(device)).collect()
}

fn gpu(device: &Path) -> Option<GpuFact> {
    let hex = |attribute: &str| sysfs::text(device.join(attribute)).trim_start_matches("0x").to_ascii_lowercase();
    let (vendor_id, class) = (hex("vendor"), hex("class"));
    // 03xxxx is a display controller, 12xxxx a processing accelerator.
    if !VENDORS.contains(&vendor_id.as_str()) || !(class.starts_with("03") || class.starts_with("12")) {
        return None;
    }
    Some(GpuFact {
        pci_address: sysfs::name(device),
        vendor_id,
        device_id: hex("device"),
        name: String::new(),
        memory_bytes: sysfs::number(device.join("mem_info_vram_total")).unwrap_or(0),
        driver: sysfs::link_name(device.join("driver")),
        numa_node: sysfs::number(device.join("numa_node")).unwrap_or(-1),
        source: "sysfs".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(sys: &Path, address: &str, attributes: &[(&str, &str)]) {
        let folder = sys.join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).expect("folder");
        for (name, value) in attributes {
            std::fs::write(folder.join(name), format!("{value}\n")).expect("attribute");
        }
    }

    #[test]
    fn gpus_are_found_by_vendor_and_class_and_nothing_else_is() {
        let sys = tempfile::tempdir().expect("folder");
        device(
            sys.path(),
            "0000:17:00.0",
            &[("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330"), ("numa_node", "1")],
        );
        device(sys.path(), "0000:45:00.0", &[("vendor", "0x1002"), ("class", "0x120000"), ("device", "0x74a1")]);
        device(sys.path(), "0000:18:00.0", &[("vendor", "0x10de"), ("class", "0x068000"), ("device", "0x22a3")]); // a switch
        device(sys.path(), "0000:00:02.0", &[("vendor", "0x8086"), ("class", "0x030000"), ("device", "0x1234")]);
        let found = gpus(sys.path());
        let addresses: Vec<_> = found.iter().map(|gpu| gpu.pci_address.as_str()).collect();
        assert_eq!(addresses, ["0000:17:00.0", "0000:45:00.0"]);
        assert_eq!((found[0].device_id.as_str(), found[0].numa_node, found[1].numa_node), ("2330", 1, -1));
    }

    #[test]
    fn a_host_without_pci_has_no_gpus() {
        assert!(gpus(Path::new("/nowhere")).is_empty());
    }
}
