//! What the labs require besides Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program;
use crate::requirements::Package::Debian;
use crate::requirements::{Requirement, apt_get, in_path, is_root};

const SLICE: &str = "the lab of slices";
const VFIO: &str = "the lab of VFIO";
const BOTH: &str = "every lab";

/// Requirements of a slice host and of building its guest's image.
pub(super) const FOR_SLICE: [Requirement; 13] = [
    QEMU,
    Requirement { name: "qemu-img", package: Debian("qemu-utils"), find: || in_path("qemu-img"), needed_for: SLICE },
    // The settings file shows that the package is installed, which also creates QEMU's user.
    Requirement {
        name: "libvirtd",
        package: Debian("libvirt-daemon-system"),
        find: || in_path("libvirtd").and(file("/etc/libvirt/qemu.conf")),
        needed_for: SLICE,
    },
    Requirement { name: "virsh", package: Debian("libvirt-clients"), find: || in_path("virsh"), needed_for: SLICE },
    Requirement {
        name: "Open vSwitch",
        package: Debian("openvswitch-switch"),
        find: || in_path("ovs-vswitchd"),
        needed_for: SLICE,
    },
    Requirement {
        name: "cloud-localds",
        package: Debian("cloud-image-utils"),
        find: || in_path("cloud-localds"),
        needed_for: SLICE,
    },
    Requirement { name: "dnsmasq", package: Debian("dnsmasq-base"), find: || in_path("dnsmasq"), needed_for: SLICE },
    Requirement { name: "nft", package: Debian("nftables"), find: || in_path("nft"), needed_for: SLICE },
    Requirement { name: "ip (iproute2)", package: Debian("iproute2"), find: || in_path("ip"), needed_for: SLICE },
    Requirement { name: "ssh", package: Debian("openssh-client"), find: || in_path("ssh"), needed_for: SLICE },
    Requirement { name: "mmdebstrap", package: Debian("mmdebstrap"), find: || in_path("mmdebstrap"), needed_for: SLICE },
    Requirement { name: "sfdisk", package: Debian("fdisk"), find: || in_path("sfdisk"), needed_for: SLICE },
    Requirement {
        name: "GRUB for a BIOS",
        // This package also has the program that assembles GRUB's files.
        package: Debian("grub-pc-bin"),
        find: || in_path("grub-mkimage").and(file("/usr/lib/grub/i386-pc/boot.img")),
        needed_for: SLICE,
    },
];

/// Requirements of an emulated host with an IOMMU.
pub(super) const FOR_VFIO: [Requirement; 4] = [
    QEMU,
    Requirement { name: "busybox", package: Debian("busybox-static"), find: || in_path("busybox"), needed_for: VFIO },
    Requirement { name: "depmod", package: Debian("kmod"), find: || in_path("depmod"), needed_for: VFIO },
    Requirement { name: "dpkg-deb", package: Debian("dpkg"), find: || in_path("dpkg-deb"), needed_for: VFIO },
];

const QEMU: Requirement =
    Requirement { name: "QEMU", package: Debian("qemu-system-x86"), find: || in_path("qemu-system-x86_64"), needed_for: BOTH };

/// Checks or installs all requirements. A lab that lacks a component proves nothing, so the first missing one is an error.
pub(super) fn ensure(requirements: &[Requirement]) -> Result<(), String> {
    let root = is_root();
    if root && (QEMU.find)().is_none() {
        give_way_to_qemu();
    }
    requirements.iter().try_for_each(|requirement| requirement.ensure(root))
}

fn file(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    path.is_file().then(|| path.to_owned())
}

/// Replaces a `qemu-utils` of another release, with which QEMU cannot be installed. apt downgrades a package only if told to.
///
/// Errors are ignored: they recur, with a better message, when QEMU is installed.
fn give_way_to_qemu() {
    let policy = || program::run(Command::new("apt-cache").args(["policy", "qemu-system-x86"]));
    let candidate = || policy().ok()?.lines().find_map(|line| line.trim().strip_prefix("Candidate: ").map(str::to_owned));
    let utils = || program::run(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", "qemu-utils"])).ok();
    let Some(installed) = utils().filter(|version| !version.is_empty()) else { return };
    // There is no candidate as long as apt has no package lists.
    let Some(candidate) = candidate().or_else(|| apt_get(&["update"]).then(candidate).flatten()) else { return };
    if installed != candidate {
        println!("replacing qemu-utils {installed} by {candidate}, the release that QEMU comes from");
        let package = format!("qemu-utils={candidate}");
        apt_get(&["install", "--yes", "--no-install-recommends", "--allow-downgrades", &package]);
    }
}
