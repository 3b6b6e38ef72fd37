//! Facts from the kernel: boot, modules, IOMMU, KVM, uptime.

use std::path::Path;
use std::time::Duration;

use crate::exec::{Exec, first_installed};
use crate::guests::FreeMemory;
use crate::{HostError, sysfs};

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const MODPROBE: &[&str] = &["/sbin/modprobe", "/usr/sbin/modprobe"];

/// Returns the boot id, which changes with every reboot.
pub fn boot_id(proc_root: &Path) -> String {
    sysfs::text(proc_root.join("sys/kernel/random/boot_id"))
}

/// Returns the kernel release.
pub fn release(proc_root: &Path) -> String {
    sysfs::text(proc_root.join("sys/kernel/osrelease"))
}

/// Returns the seconds since boot.
pub fn uptime_seconds(proc_root: &Path) -> u64 {
    let text = sysfs::text(proc_root.join("uptime"));
    text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// Returns the loaded modules whose name starts with `vfio`, sorted. Built-in modules appear as folders too.
pub fn vfio_modules(sys: &Path) -> Vec<String> {
    sysfs::entries(sys.join("module")).iter().map(|path| sysfs::name(path)).filter(|name| name.starts_with("vfio")).collect()
}

/// Returns the number of IOMMU groups; with 0, passthrough is not possible.
pub fn iommu_groups(sys: &Path) -> u32 {
    u32::try_from(sysfs::entries(sys.join("kernel/iommu_groups")).len()).unwrap_or(u32::MAX)
}

/// Returns whether `/dev/kvm` exists.
pub fn kvm() -> bool {
    Path::new("/dev/kvm").exists()
}

/// Returns whether the distribution requests a reboot.
pub fn reboot_required() -> bool {
    ["/run/reboot-required", "/var/run/reboot-required"].iter().any(|marker| Path::new(marker).exists())
}

/// Returns the one-minute load average times 100.
pub fn load_percent(proc_root: &Path) -> u64 {
    parse_load(&sysfs::text(proc_root.join("loadavg")))
}

fn parse_load(text: &str) -> u64 {
    let first = text.split_whitespace().next().unwrap_or_default();
    let (whole, fraction) = first.split_once('.').unwrap_or((first, "0"));
    let whole: u64 = whole.parse().unwrap_or(0);
    let hundredths: u64 = format!("{fraction:0<2}")[..2].parse().unwrap_or(0);
    whole.saturating_mul(100).saturating_add(hundredths)
}

/// Loads the VFIO modules, if they are not loaded.
pub(crate) async fn load_vfio() -> Result<(), HostError> {
    load_vfio_with(Path::new("/sys"), MODPROBE).await
}

async fn load_vfio_with(sys: &Path, modprobe: &[&str]) -> Result<(), HostError> {
    const MISSING: &str = "vfio_missing";
    let module = sys.join("module/vfio_pci");
    if module.exists() {
        return Ok(());
    }
    let Some(program) = first_installed(modprobe) else {
        return Err(HostError::new(MISSING, "vfio-pci is not loaded and there is no modprobe; install kmod"));
    };
    let loaded = Exec::new(program).arg("vfio-pci").deadline(Duration::from_secs(60)).run().await;
    loaded.map_err(|error| HostError::because(MISSING, "vfio-pci cannot be loaded; check the kernel and its modules", &error))?;
    if !module.exists() {
        return Err(HostError::new(MISSING, "modprobe reports that vfio-pci is loaded, but the kernel does not have it"));
    }
    Ok(())
}

/// Loads a kernel module, unless it is loaded or built in.
pub async fn load_module(name: &str) -> Result<(), HostError> {
    const MISSING: &str = "module_missing";
    // In sysfs, names have underscores only.
    if Path::new("/sys/module").join(name.replace('-', "_")).exists() {
        return Ok(());
    }
    let Some(program) = first_installed(MODPROBE) else {
        return Err(HostError::new(MISSING, format!("{name} is not loaded and there is no modprobe; install kmod")));
    };
    let loaded = Exec::new(program).arg("--").arg(name).deadline(Duration::from_secs(60)).run().await;
    let what = format!("{name} cannot be loaded; check the kernel and its modules");
    loaded.map(drop).map_err(|error| HostError::because(MISSING, &what, &error))
}

/// Returns whether a module is loaded or built in, by its name in sysfs.
pub fn has_module(sys: &Path, name: &str) -> bool {
    sys.join("module").join(name).is_dir()
}

/// Returns whether the kernel forwards IPv4 packets, in this network namespace.
pub fn forwards_ipv4() -> bool {
    sysfs::text(IP_FORWARD) == "1"
}

/// Turns the forwarding of IPv4 packets on or off until the next boot, in this network namespace.
pub fn set_ipv4_forwarding(on: bool) -> Result<(), HostError> {
    let written = std::fs::write(IP_FORWARD, if on { "1\n" } else { "0\n" });
    let what = format!("cannot write {IP_FORWARD}; run this as root");
    written.map_err(|error| HostError::because("ip_forward_unchanged", &what, &error))
}

/// Returns the memory that is free for guests. Blocks briefly.
pub(crate) fn memory_free() -> Result<FreeMemory, HostError> {
    let text = sysfs::text("/proc/meminfo");
    parse_meminfo(&text).ok_or_else(|| HostError::new("memory_unknown", "the kernel does not report the free memory"))
}

/// Parses meminfo. Reserved huge pages count as free there until they are used, so they are subtracted.
fn parse_meminfo(text: &str) -> Option<FreeMemory> {
    let field = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_whitespace().next()?.parse().ok()
    };
    let (free, promised) = (field("HugePages_Free").unwrap_or(0), field("HugePages_Rsvd").unwrap_or(0));
    let page_kib = field("Hugepagesize").unwrap_or(0);
    Some(FreeMemory {
        available_mib: field("MemAvailable")? / 1024,
        huge_pages_mib: free.saturating_sub(promised).saturating_mul(page_kib) / 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_read_in_hundredths() {
        for (text, percent) in [("0.52 0.58 0.59 1/467 1", 52), ("12.5", 1250), ("3", 300), ("", 0)] {
            assert_eq!(parse_load(text), percent, "{text}");
        }
    }

    #[tokio::test]
    async fn vfio_is_loaded_once_and_its_absence_is_told() {
        let sys = tempfile::tempdir().expect("folder");
        for (modprobe, says) in [("/nowhere", "install kmod"), ("/bin/false", "ended with"), ("/bin/true", "does not have it")] {
            let error = load_vfio_with(sys.path(), &[modprobe]).await.expect_err("missing");
            assert!(error.code == "vfio_missing" && error.message.contains(says), "{error}");
        }
        std::fs::create_dir_all(sys.path().join("module/vfio_pci")).expect("folder");
        assert_eq!(load_vfio_with(sys.path(), &["/nowhere"]).await, Ok(()), "nothing is run if it is there");
    }

    #[test]
    fn free_memory_is_what_nobody_was_promised() {
        let free = parse_meminfo(include_str!("../testdata/meminfo-huge-pages")).expect("parses");
        assert_eq!(free, FreeMemory { available_mib: 21_978, huge_pages_mib: (1024 - 24) * 2 });
        assert_eq!(parse_meminfo("MemAvailable: 2048 kB\n"), Some(FreeMemory { available_mib: 2, huge_pages_mib: 0 }));
        assert_eq!(parse_meminfo("MemTotal: 2048 kB\n"), None);
        assert!(memory_free().expect("this machine says").available_mib > 0);
    }

    #[test]
    fn this_machine_has_a_boot_and_an_uptime() {
        let proc_root = Path::new("/proc");
        assert_eq!(boot_id(proc_root).len(), 36);
        assert!(uptime_seconds(proc_root) > 0);
        assert!(!release(proc_root).is_empty());
    }
}
