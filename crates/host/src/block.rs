//! Block devices, from sysfs: whole disks, without loop, RAM and device-mapper devices.

use std::path::Path;

use gpuaas_contract::telemetry::DiskFact;

use crate::sysfs;

/// Kernel names of devices that are not hardware.
const NOT_HARDWARE: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "nbd", "sr"];

/// Disks under `sys` (normally `/sys`), by kernel name.
pub fn disks(sys: &Path) -> Vec<DiskFact> {
    sysfs::entries(sys.join("block"))
        .iter()
        .filter(|device| is_disk(&sysfs::name(device)))
        .map(|device| DiskFact {
            name: sysfs::name(device),
            model: sysfs::text(device.join("device/model")),
            serial: serial(device),
            // The kernel counts in 512-byte sectors whatever the device does.
            size_bytes: sysfs::number::<u64>(device.join("size")).unwrap_or(0).saturating_mul(512),
        })
        .filter(|disk| disk.size_bytes > 0)
        .collect()
}

/// Whether a kernel name is that of a disk and not of something built on one.
pub(crate) fn is_disk(name: &str) -> bool {
    !NOT_HARDWARE.iter().any(|prefix| name.starts_with(prefix))
}

fn serial(device: &Path) -> String {
    ["device/serial", "serial"].iter().map(|file| sysfs::text(device.join(file))).find(|s| !s.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_have_size_model_and_serial_and_loops_are_left_out() {
        let sys = tempfile::tempdir().expect("folder");
        for (name, sectors) in [("nvme0n1", "7501476528"), ("loop0", "8"), ("sdb", "0")] {
            let folder = sys.path().join("block").join(name);
            std::fs::create_dir_all(folder.join("device")).expect("folder");
            std::fs::write(folder.join("size"), sectors).expect("size");
            std::fs::write(folder.join("device/model"), "Model X  \n").expect("model");
            std::fs::write(folder.join("device/serial"), " S123 \n").expect("serial");
        }
        let found = disks(sys.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].size_bytes, 3_840_755_982_336);
        assert_eq!((found[0].model.as_str(), found[0].serial.as_str()), ("Model X", "S123"));
    }
}
