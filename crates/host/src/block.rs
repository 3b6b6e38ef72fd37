//! Block devices from sysfs: whole disks without loop, RAM and device-mapper devices, and NVMe namespaces with their users.
//!
//! In labs, a loop device may replace a drive if the host's owner names it.

use std::path::Path;

use gpuaas_contract::telemetry::DiskFact;
use sha2::{Digest as _, Sha256};

use crate::guests::MachinePaths;
use crate::{pci, sysfs};

/// Kernel names of devices that are not hardware.
const NOT_HARDWARE: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "nbd", "sr"];

/// Returns the disks under `sys` (normally `/sys`), by kernel name.
pub fn disks(sys: &Path) -> Vec<DiskFact> {
    sysfs::entries(sys.join("block"))
        .iter()
        .filter(|device| is_disk(&sysfs::name(device)))
        .map(|device| DiskFact {
            name: sysfs::name(device),
            model: sysfs::text(device.join("device/model")),
            serial: serial(device),
            // The kernel counts in 512-byte sectors, whatever the device uses.
            size_bytes: sysfs::number::<u64>(device.join("size")).unwrap_or(0).saturating_mul(512),
        })
        .filter(|disk| disk.size_bytes > 0)
        .collect()
}

/// Returns whether a kernel name is that of a disk and not of something built on one.
pub(crate) fn is_disk(name: &str) -> bool {
    !NOT_HARDWARE.iter().any(|prefix| name.starts_with(prefix))
}

fn serial(device: &Path) -> String {
    ["device/serial", "serial"].iter().map(|file| sysfs::text(device.join(file))).find(|s| !s.is_empty()).unwrap_or_default()
}

/// Returns the identity of a drive, given its folder in sysfs: its serial number, or for a loop device the file behind it. Empty
/// if it has neither.
pub(crate) fn identity(device: &Path) -> String {
    let serial = serial(device);
    if serial.is_empty() { loop_identity(device).unwrap_or_default() } else { serial }
}

/// Returns the identity of a loop device. It has no serial number, and its own number changes; the file behind it does not.
fn loop_identity(device: &Path) -> Option<String> {
    let backing = sysfs::text(device.join("loop/backing_file"));
    if backing.is_empty() {
        return None;
    }
    let digest = Sha256::digest(backing.as_bytes());
    Some(digest.iter().take(8).fold("loop-".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Returns a drive that the host's owner names by its stable path although it is not an NVMe namespace, or `None` if there is no
/// such drive.
pub fn extra_drive(machine: &MachinePaths, stable_path: &str) -> Option<Namespace> {
    let link = stable_path.strip_prefix("/dev/disk/by-id/").filter(|name| !name.contains('/'))?;
    let name = sysfs::link_name(machine.dev.join("disk/by-id").join(link));
    // Partitions are not in this folder, so a partition is never accepted as a drive.
    let device = machine.sys.join("block").join(&name);
    if name.is_empty() || !device.exists() {
        return None;
    }
    Some(Namespace {
        stable_path: Some(stable_path.to_owned()),
        serial: identity(&device),
        model: sysfs::text(device.join("device/model")),
        size_bytes: sysfs::number::<u64>(device.join("size")).unwrap_or(0).saturating_mul(512),
        path: Vec::new(),
        numa_node: -1,
        used_by: used_by(&machine.proc_root, &device),
        name,
    })
}

/// Returns what the host itself uses a drive for, given its folder in sysfs.
pub(crate) fn used_by(proc_root: &Path, device: &Path) -> Vec<String> {
    let mounts = sysfs::long_text(proc_root.join("self/mountinfo"));
    let swaps = sysfs::long_text(proc_root.join("swaps"));
    users(device, &sysfs::name(device), &mounts, &swaps)
}

/// An NVMe namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Kernel name, which may change with every boot.
    pub name: String,
    /// Its stable path under `/dev/disk/by-id`.
    pub stable_path: Option<String>,
    /// Serial number of the drive.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Size.
    pub size_bytes: u64,
    /// The path on the bus from its root to the controller. Empty if there are several controllers, or none on this bus.
    pub path: Vec<String>,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// What the host itself uses it for.
    pub used_by: Vec<String>,
}

/// Returns the NVMe namespaces of the machine with this `/sys`, `/proc` and `/dev`, by kernel name.
pub fn namespaces(sys: &Path, proc_root: &Path, dev: &Path) -> Vec<Namespace> {
    let mounts = sysfs::long_text(proc_root.join("self/mountinfo"));
    let swaps = sysfs::long_text(proc_root.join("swaps"));
    let links = sysfs::entries(dev.join("disk/by-id"));
    let namespaces = sysfs::entries(sys.join("block"));
    let namespace = |device: &std::path::PathBuf| {
        let name = sysfs::name(device);
        let serial = serial(device);
        let controller = controller_path(device);
        Namespace {
            stable_path: stable_path(&links, &name, &serial),
            model: sysfs::text(device.join("device/model")),
            size_bytes: sysfs::number::<u64>(device.join("size")).unwrap_or(0).saturating_mul(512),
            numa_node: controller
                .last()
                .map_or(-1, |address| sysfs::number(sys.join("bus/pci/devices").join(address).join("numa_node")).unwrap_or(-1)),
            path: controller,
            used_by: users(device, &name, &mounts, &swaps),
            serial,
            name,
        }
    };
    namespaces.iter().filter(|device| is_namespace(&sysfs::name(device))).map(namespace).collect()
}

/// Accepts `nvme0n1`, and not `nvme0c0n1`, which is one path to a namespace with several.
pub(crate) fn is_namespace(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name.strip_prefix("nvme")
        .and_then(|rest| rest.split_once('n'))
        .is_some_and(|(controller, namespace)| digits(controller) && digits(namespace))
}

/// Returns the bus path of the namespace's only controller.
fn controller_path(device: &Path) -> Vec<String> {
    let real = sysfs::real_path(device);
    let direct = pci::path_of(&real);
    if !direct.is_empty() {
        return direct;
    }
    // With multipathing the namespace belongs to a subsystem, which links to its controllers.
    let subsystem = real.parent().map(sysfs::entries).unwrap_or_default();
    let controllers: Vec<_> =
        subsystem.iter().filter(|entry| entry.is_symlink() && sysfs::name(entry).starts_with("nvme")).collect();
    match controllers.as_slice() {
        [only] => pci::path_of(&sysfs::real_path(only)),
        _ => Vec::new(),
    }
}

/// Returns the shortest link to this device that contains its serial number, or else a link by a number of the namespace.
fn stable_path(links: &[std::path::PathBuf], name: &str, serial: &str) -> Option<String> {
    let mut mine: Vec<String> = links
        .iter()
        .filter(|link| sysfs::link_name(link) == name)
        .map(|link| sysfs::name(link))
        .filter(|link| link.starts_with("nvme-"))
        .collect();
    mine.sort_by_key(|link| (serial.is_empty() || !link.contains(serial), link.len(), link.clone()));
    mine.first().map(|link| format!("/dev/disk/by-id/{link}"))
}

/// Returns mount points, swap and devices that are built on a disk or one of its partitions.
fn users(device: &Path, name: &str, mounts: &str, swaps: &str) -> Vec<String> {
    let parts = sysfs::entries(device)
        .into_iter()
        .filter(|entry| sysfs::name(entry).starts_with(name) && entry.join("partition").exists());
    let mut users = Vec::new();
    for part in std::iter::once(device.to_owned()).chain(parts) {
        let (part_name, number) = (sysfs::name(&part), sysfs::text(part.join("dev")));
        users.extend(mounted(mounts, &part_name, &number).map(|at| format!("mounted at {at}")));
        if swaps.lines().any(|line| line.split_whitespace().next() == Some(&format!("/dev/{part_name}"))) {
            users.push("swap".to_owned());
        }
        users.extend(sysfs::entries(part.join("holders")).iter().map(|holder| format!("part of {}", sysfs::name(holder))));
    }
    users.truncate(16);
    users
}

/// Returns where a device is mounted according to a mountinfo text: by its number, or by its name for file systems with their own
/// numbers.
fn mounted<'a>(mountinfo: &'a str, name: &str, number: &str) -> impl Iterator<Item = &'a str> {
    let (path, number) = (format!("/dev/{name}"), number.to_owned());
    mountinfo.lines().filter_map(move |line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let (found, at) = (fields.next()?, fields.nth(1)?);
        let source = after.split(' ').nth(1)?;
        ((!number.is_empty() && found == number) || source == path).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a machine with a drive for the system, two drives of a guest and one in a RAID.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        let at = |path: &str| root.path().join(path);
        let write = |path: String, text: &str| {
            let path = at(&path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("written");
        };
        for (number, bus) in [(0, "5e"), (1, "5f"), (2, "60")] {
            let controller = format!("sys/devices/pci0000:5d/0000:5d:02.0/0000:{bus}:00.0");
            write(format!("{controller}/numa_node"), "0\n");
            let namespace = format!("{controller}/nvme/nvme{number}/nvme{number}n1");
            write(format!("{namespace}/size"), "7501476528\n");
            write(format!("{namespace}/dev"), &format!("259:{}\n", number * 4));
            write(format!("{namespace}/device/model"), "SAMSUNG MZQL23T8\n");
            write(format!("{namespace}/device/serial"), &format!("S64H{number}\n"));
            std::fs::create_dir_all(at("sys/block")).expect("folder");
            symlink(at(&namespace), at(&format!("sys/block/nvme{number}n1"))).expect("link");
            std::fs::create_dir_all(at("sys/bus/pci/devices")).expect("folder");
            symlink(at(&controller), at(&format!("sys/bus/pci/devices/0000:{bus}:00.0"))).expect("link");
            std::fs::create_dir_all(at("dev/disk/by-id")).expect("folder");
            for link in [
                format!("nvme-eui.00000000000{number}"),
                format!("nvme-SAMSUNG_S64H{number}"),
                format!("nvme-SAMSUNG_S64H{number}_1"),
            ] {
                symlink(format!("../../nvme{number}n1"), at(&format!("dev/disk/by-id/{link}"))).expect("link");
            }
        }
        let first = "sys/devices/pci0000:5d/0000:5d:02.0/0000:5e:00.0/nvme/nvme0/nvme0n1/nvme0n1p2";
        write(format!("{first}/partition"), "2\n");
        write(format!("{first}/dev"), "259:2\n");
        write("sys/devices/pci0000:5d/0000:5d:02.0/0000:60:00.0/nvme/nvme2/nvme2n1/holders/md0/x".to_owned(), "");
        write("sys/block/nvme2c0n1/size".to_owned(), "8");
        write("proc/self/mountinfo".to_owned(), include_str!("../testdata/mountinfo-nvme-root"));
        write("proc/swaps".to_owned(), "Filename\tType\tSize\tUsed\tPriority\n/dev/nvme0n1p2 partition 8 0 -2\n");
        root
    }

    #[test]
    fn namespaces_have_a_stable_path_a_place_on_the_bus_and_their_users() {
        let root = machine();
        let found = namespaces(&root.path().join("sys"), &root.path().join("proc"), &root.path().join("dev"));
        let [system, free, raid] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(free.stable_path.as_deref(), Some("/dev/disk/by-id/nvme-SAMSUNG_S64H1"));
        assert_eq!((free.serial.as_str(), free.size_bytes, free.numa_node), ("S64H1", 3_840_755_982_336, 0));
        assert_eq!(free.path, ["pci0000:5d", "0000:5d:02.0", "0000:5f:00.0"]);
        assert_eq!(free.used_by, [""; 0]);
        assert_eq!(system.used_by, ["mounted at /", "swap"]);
        assert_eq!(raid.used_by, ["part of md0"]);
    }

    #[test]
    fn a_named_loop_device_is_a_drive_known_by_its_file() {
        let root = machine();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("sys/block/loop3/loop")).expect("folder");
        std::fs::create_dir_all(at("sys/block/loop3/loop3p1")).expect("folder");
        for (file, text) in [("loop/backing_file", "/srv/lab/drive.raw"), ("size", "8388608"), ("dev", "7:3")] {
            std::fs::write(at("sys/block/loop3").join(file), format!("{text}\n")).expect("written");
        }
        for (link, target) in [("loop-lab", "../../loop3"), ("loop-part", "../../loop3p1"), ("loop-gone", "../../loop9")] {
            symlink(target, at("dev/disk/by-id").join(link)).expect("link");
        }
        let paths = MachinePaths { sys: at("sys"), proc_root: at("proc"), dev: at("dev") };
        let drive = extra_drive(&paths, "/dev/disk/by-id/loop-lab").expect("found");
        // The first 16 digits of `printf %s /srv/lab/drive.raw | sha256sum`.
        assert_eq!((drive.name.as_str(), drive.serial.as_str()), ("loop3", "loop-903923d6e1e2ff3a"));
        assert_eq!((drive.size_bytes, drive.numa_node), (4 << 30, -1));
        assert!(drive.path.is_empty() && drive.used_by.is_empty());
        for not in ["loop-part", "loop-gone", "missing", "", "../../loop3"] {
            assert_eq!(extra_drive(&paths, &format!("/dev/disk/by-id/{not}")), None, "{not}");
        }
        assert_eq!(extra_drive(&paths, "/dev/loop3"), None, "not a stable path");
        let nvme = extra_drive(&paths, "/dev/disk/by-id/nvme-SAMSUNG_S64H2").expect("found");
        assert_eq!((nvme.serial.as_str(), nvme.used_by.as_slice()), ("S64H2", ["part of md0".to_owned()].as_slice()));
    }

    #[test]
    fn a_mount_is_found_by_number_or_by_name_and_never_by_a_part_of_it() {
        let text = include_str!("../testdata/mountinfo-nvme-root");
        let at = |name: &str, number: &str| mounted(text, name, number).collect::<Vec<_>>();
        assert_eq!(at("nvme0n1p2", "259:2"), ["/"]);
        assert_eq!(at("nvme3n1", "0:99"), ["/data"], "btrfs has a number of its own");
        assert_eq!(at("nvme0n1p", "259:22"), [""; 0]);
        assert_eq!(at("nvme0n1p1", ""), [""; 0]);
    }

    #[test]
    fn only_namespaces_are_namespaces() {
        for (name, is) in
            [("nvme0n1", true), ("nvme12n34", true), ("nvme0c0n1", false), ("nvme0n1p1", false), ("nvme0", false), ("sda", false)]
        {
            assert_eq!(is_namespace(name), is, "{name}");
        }
    }

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
