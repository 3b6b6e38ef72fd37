//! The disk image of the lab's guest: a small Debian with cloud-init and an SSH server that boots from a BIOS.
//!
//! Building it mounts nothing: the file system is created from a folder, and the boot loader is assembled and written into the
//! gap in front of the partition.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cleanup::Cleanup;
use super::program::{read, run, run_with_input, text, write};

const SUITE: &str = "bookworm";
/// The kernel is the one for virtual machines. It has drivers for virtio and NVMe only, so it does not see a CD drive.
const PACKAGES: &str = "linux-image-cloud-amd64,systemd-sysv,udev,dbus,iproute2,openssh-server,cloud-init";
/// What the packages do not need is free space for the guest.
const SIZE_MIB: u64 = 1200;
/// Where sfdisk puts the first partition. The boot loader is in front of it.
const PARTITION_KIB: u64 = 1024;
const SECTOR: usize = 512;
/// Size of the code in the boot sector; the partition table follows it.
const BOOT_CODE: usize = 440;
const GRUB: &str = "/usr/lib/grub/i386-pc/boot.img";
const GRUB_MODULES: [&str; 4] = ["biosdisk", "part_msdos", "ext2", "linux"];

/// Turns checksum offloading off in the guest. The user-space datapath of Open vSwitch forwards packets unchanged, so a packet
/// whose checksum was left to a (nonexistent) network card would be dropped. The kernel datapath handles this, so real hosts need nothing.
const GRUB_CONFIGURATION: &str = "\
set root=(hd0,msdos1)
linux /boot/vmlinuz root=LABEL=guest ro console=ttyS0 virtio_net.csum=0 virtio_net.gso=0
initrd /boot/initrd.img
boot
";

/// Prepares the Debian in `$1` to boot quickly: under emulation, every program that starts costs a second.
///
/// It removes the SSH host keys, so that a client can tell that the injected ones are in use.
const CUSTOMIZE: &str = r#"#!/bin/sh
set -e
cat > "$1/etc/cloud/cloud.cfg.d/90_lab.cfg" <<'END'
datasource_list: [NoCloud]
system_info: {network: {renderers: [networkd]}}
cloud_init_modules: [seed_random, write-files, set_hostname, update_hostname, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [write-files-deferred, scripts-user, final-message]
END
echo 'LABEL=guest / ext4 defaults,noatime 0 1' > "$1/etc/fstab"
chroot "$1" systemctl --quiet enable systemd-networkd.service
chroot "$1" systemctl --quiet disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    e2scrub_reap.service systemd-pstore.service
chroot "$1" systemctl --quiet mask systemd-networkd-wait-online.service getty@tty1.service serial-getty@ttyS0.service
rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname"
: > "$1/etc/machine-id"
cd "$1/boot"
ln -sf vmlinuz-* vmlinuz
ln -sf initrd.img-* initrd.img
"#;

/// Returns the image. Builds it, which takes about two minutes, if it is not in `cache`.
pub(super) fn ensure(cache: &Path) -> Result<PathBuf, String> {
    let image = cache.join(format!("guest-{:016x}.qcow2", recipe()));
    if image.is_file() {
        return Ok(image);
    }
    println!("==> making the guest's image (about two minutes; it is kept in {})", cache.display());
    for old in std::fs::read_dir(cache).map_err(|error| format!("{}: {error}", cache.display()))?.flatten() {
        let name = old.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("guest-") && name.ends_with(".qcow2")) {
            std::fs::remove_file(old.path()).map_err(|error| format!("{}: {error}", old.path().display()))?;
        }
    }
    let mut cleanup = Cleanup::start()?;
    let folder = cache.join(format!("guest-{}.new", std::process::id()));
    cleanup.make_folder(&folder)?;
    let made = make(&folder)?;
    // Renamed last: a file with the right name is complete.
    std::fs::rename(&made, &image).map_err(|error| format!("{}: {error}", image.display()))?;
    Ok(image)
}

/// Returns the SHA-256 of an image in hexadecimal, as task parameters need it.
pub(super) fn sha256(image: &Path) -> Result<String, String> {
    let printed = run(Command::new("sha256sum").arg(image))?;
    let digest = printed.split_whitespace().next().filter(|digest| digest.len() == 64);
    digest.map(str::to_owned).ok_or_else(|| format!("sha256sum printed no digest: {printed}"))
}

/// Returns a hash of everything that determines the image's content.
fn recipe() -> u64 {
    let mut hasher = DefaultHasher::new();
    (SUITE, PACKAGES, SIZE_MIB, PARTITION_KIB, GRUB_MODULES, GRUB_CONFIGURATION, CUSTOMIZE).hash(&mut hasher);
    hasher.finish()
}

/// Builds the image in an empty folder, and returns its path.
fn make(folder: &Path) -> Result<PathBuf, String> {
    let root = folder.join("root");
    let customize = folder.join("customize");
    write(&customize, CUSTOMIZE)?;
    std::fs::set_permissions(&customize, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", customize.display()))?;
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--mode=root", "--variant=minbase"])
        .arg(format!("--include={PACKAGES}"))
        .args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"])
        .arg("--dpkgopt=path-exclude=/usr/share/locale/*")
        .arg(format!("--customize-hook={}", text(&customize)?))
        .arg(SUITE)
        .arg(&root))?;

    let raw = folder.join("disk.raw");
    let file = std::fs::File::create(&raw).map_err(|error| format!("{}: {error}", raw.display()))?;
    file.set_len(SIZE_MIB * 1024 * 1024).map_err(|error| format!("{}: {error}", raw.display()))?;
    // A single bootable Linux partition.
    run_with_input(Command::new("sfdisk").arg("--quiet").arg(&raw), &format!("{}KiB,,83,*\n", PARTITION_KIB))?;
    // Some versions of GRUB support neither metadata checksums nor 64-bit block numbers.
    run(Command::new("mkfs.ext4")
        .args(["-q", "-L", "guest", "-m", "0", "-O", "^metadata_csum,^64bit"])
        .args(["-E", &format!("offset={},root_owner=0:0", PARTITION_KIB * 1024), "-d"])
        .args([&root, &raw])
        .arg(format!("{}k", SIZE_MIB * 1024 - PARTITION_KIB)))?;
    write_boot_loader(&raw, folder)?;

    let image = folder.join("disk.qcow2");
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2", "-c"]).args([&raw, &image]))?;
    Ok(image)
}

/// Writes GRUB into the boot sector and the gap behind it. Its configuration is embedded, so it needs no files.
fn write_boot_loader(raw: &Path, folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::FileExt as _;

    let configuration = folder.join("grub.cfg");
    let core = folder.join("core.img");
    write(&configuration, GRUB_CONFIGURATION)?;
    run(Command::new("grub-mkimage")
        .args(["--format=i386-pc", "--prefix=(hd0,msdos1)/boot/grub", "--config"])
        .arg(&configuration)
        .arg("--output")
        .arg(&core)
        .args(GRUB_MODULES))?;
    let (boot, core) = (read(Path::new(GRUB))?, read(&core)?);
    let code = boot.get(..BOOT_CODE).ok_or_else(|| format!("{GRUB} is too short for a boot sector"))?;
    let gap = usize::try_from(PARTITION_KIB * 1024).unwrap_or(usize::MAX) - SECTOR;
    if core.len() > gap {
        return Err(format!("GRUB has {} bytes, and there are {gap} before the partition", core.len()));
    }
    // By default, the boot sector loads the rest from the second sector, and the rest expects to start right there.
    let disk = std::fs::OpenOptions::new().write(true).open(raw).map_err(|error| format!("{}: {error}", raw.display()))?;
    let written = disk.write_all_at(code, 0).and_then(|()| disk.write_all_at(&core, SECTOR as u64));
    written.map_err(|error| format!("{}: {error}", raw.display()))
}
