//! What the kernel says about itself: boot, modules, IOMMU, KVM, uptime.

use std::path::Path;

use crate::sysfs;

/// Changes with every reboot.
pub fn boot_id(proc_root: &Path) -> String {
    sysfs::text(proc_root.join("sys/kernel/random/boot_id"))
}

/// Kernel release.
pub fn release(proc_root: &Path) -> String {
    sysfs::text(proc_root.join("sys/kernel/osrelease"))
}

/// Seconds since boot.
pub fn uptime_seconds(proc_root: &Path) -> u64 {
    let text = sysfs::text(proc_root.join("uptime"));
    text.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// Loaded modules whose name starts with `vfio`, sorted. Modules built into the kernel appear as folders too.
pub fn vfio_modules(sys: &Path) -> Vec<String> {
    sysfs::entries(sys.join("module")).iter().map(|path| sysfs::name(path)).filter(|name| name.starts_with("vfio")).collect()
}

/// Number of IOMMU groups; 0 means that nothing can be passed through.
pub fn iommu_groups(sys: &Path) -> u32 {
    u32::try_from(sysfs::entries(sys.join("kernel/iommu_groups")).len()).unwrap_or(u32::MAX)
}

/// `/dev/kvm` exists.
pub fn kvm() -> bool {
    Path::new("/dev/kvm").exists()
}

/// The distribution asks for a reboot.
pub fn reboot_required() -> bool {
    ["/run/reboot-required", "/var/run/reboot-required"].iter().any(|marker| Path::new(marker).exists())
}

/// One-minute load average times 100.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_read_in_hundredths() {
        for (text, percent) in [("0.52 0.58 0.59 1/467 1", 52), ("12.5", 1250), ("3", 300), ("", 0)] {
            assert_eq!(parse_load(text), percent, "{text}");
        }
    }

    #[test]
    fn this_machine_has_a_boot_and_an_uptime() {
        let proc_root = Path::new("/proc");
        assert_eq!(boot_id(proc_root).len(), 36);
        assert!(uptime_seconds(proc_root) > 0);
        assert!(!release(proc_root).is_empty());
    }
}
