//! The kernel's own counters, from files under `/proc`. Each parser is a pure function over the text of its file.

use crate::sysfs;

/// Memory of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total_bytes: u64,
    pub(crate) available_bytes: u64,
}

/// Processors of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Model name of the first; empty where the kernel names none.
    pub(crate) model: String,
    /// Flags of the first.
    pub(crate) flags: Vec<String>,
}

/// Time that all processors spent since the boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    pub(crate) busy: u64,
    pub(crate) all: u64,
}

/// Bytes that went one way and the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) name: String,
    pub(crate) inward_bytes: u64,
    pub(crate) outward_bytes: u64,
}

/// Reads the memory; zero if the kernel does not say.
pub(crate) fn memory() -> Memory {
    parse_memory(&sysfs::text("/proc/meminfo"))
}

fn parse_memory(meminfo: &str) -> Memory {
    let bytes = |name| kibibytes(meminfo, name);
    let free = bytes("MemFree").unwrap_or(0);
    Memory { total_bytes: bytes("MemTotal").unwrap_or(0), available_bytes: bytes("MemAvailable").unwrap_or(free) }
}

/// Reads model and flags of the first processor.
pub(crate) fn cpu() -> Cpu {
    parse_cpu(&sysfs::long_text("/proc/cpuinfo"))
}

fn parse_cpu(cpuinfo: &str) -> Cpu {
    let first = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
    let mut cpu = Cpu::default();
    for (name, value) in first.filter_map(|line| line.split_once(':')) {
        match name.trim() {
            "model name" => value.trim().clone_into(&mut cpu.model),
            "flags" => cpu.flags = value.split_whitespace().map(str::to_owned).collect(),
            _ => {}
        }
    }
    cpu
}

/// Returns the number of hardware threads.
pub(crate) fn cpu_threads() -> u32 {
    parse_cpu_threads(&sysfs::long_text("/proc/stat"))
}

fn parse_cpu_threads(stat: &str) -> u32 {
    let is_thread = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    u32::try_from(stat.lines().filter(is_thread).count()).unwrap_or(u32::MAX)
}

/// Reads the time that processors were busy.
pub(crate) fn cpu_ticks() -> Option<CpuTicks> {
    parse_cpu_ticks(&sysfs::long_text("/proc/stat"))
}

fn parse_cpu_ticks(stat: &str) -> Option<CpuTicks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|number| number.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; what guests used is in user and nice already.
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    ticks.get(3)?;
    let idle = at(3).saturating_add(at(4));
    let busy = [0, 1, 2, 5, 6, 7].into_iter().fold(0_u64, |sum, index| sum.saturating_add(at(index)));
    Some(CpuTicks { busy, all: busy.saturating_add(idle) })
}

/// Reads what network interfaces received and sent.
pub(crate) fn networks() -> Vec<Traffic> {
    parse_networks(&sysfs::long_text("/proc/net/dev"))
}

fn parse_networks(dev: &str) -> Vec<Traffic> {
    // The two lines of the heading have no colon.
    let interfaces = dev.lines().filter_map(|line| line.split_once(':'));
    let traffic = |(name, counters): (&str, &str)| {
        let mut numbers = counters.split_whitespace().map(str::parse);
        Some(Traffic { name: name.trim().to_owned(), inward_bytes: numbers.next()?.ok()?, outward_bytes: numbers.nth(7)?.ok()? })
    };
    interfaces.filter_map(traffic).collect()
}

/// Reads what was read from and written to block devices and their parts.
pub(crate) fn disks() -> Vec<Traffic> {
    parse_disks(&sysfs::long_text("/proc/diskstats"))
}

fn parse_disks(diskstats: &str) -> Vec<Traffic> {
    /// The kernel counts in these, whatever the sectors of the device are.
    const SECTOR: u64 = 512;
    let traffic = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        let name = fields.next()?.to_owned();
        let read = fields.nth(2)?.parse::<u64>().ok()?;
        let written = fields.nth(3)?.parse::<u64>().ok()?;
        Some(Traffic { name, inward_bytes: read.saturating_mul(SECTOR), outward_bytes: written.saturating_mul(SECTOR) })
    };
    diskstats.lines().filter_map(traffic).collect()
}

/// Returns the memory that this process occupies.
pub(crate) fn own_resident_bytes() -> u64 {
    resident_bytes(&sysfs::text("/proc/self/status"))
}

fn resident_bytes(status: &str) -> u64 {
    kibibytes(status, "VmRSS").unwrap_or(0)
}

/// The value of a line such as `MemFree:  2048 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_available_is_what_the_kernel_says_or_what_is_free() {
        let text =
            "MemTotal:       24689888 kB\nMemFree:        19922944 kB\nMemAvailable:   22020096 kB\nHugePages_Total:       0\n";
        assert_eq!(parse_memory(text), Memory { total_bytes: 24_689_888 << 10, available_bytes: 22_020_096 << 10 });
        let old = "MemTotal: 4 kB\nMemFree: 3 kB\n";
        assert_eq!(parse_memory(old), Memory { total_bytes: 4096, available_bytes: 3072 });
        assert_eq!(parse_memory(""), Memory::default());
    }

    #[test]
    fn model_and_flags_are_those_of_the_first_processor() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu svm npt\n\nprocessor\t: 1\nmodel name\t: other\n";
        let flags = ["fpu", "svm", "npt"].map(str::to_owned).to_vec();
        assert_eq!(parse_cpu(text), Cpu { model: "AMD EPYC 9654".to_owned(), flags });
        assert_eq!(parse_cpu("processor\t: 0\nBogoMIPS\t: 50.00\n"), Cpu::default());
    }

    #[test]
    fn threads_and_ticks_are_counted_and_guests_are_not_counted_twice() {
        let text = "cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\nctxt 7\n";
        assert_eq!(parse_cpu_threads(text), 2);
        assert_eq!(parse_cpu_ticks(text), Some(CpuTicks { busy: 171, all: 621 }));
        assert_eq!(parse_cpu_ticks("cpu  1 2\n"), None);
    }

    #[test]
    fn traffic_is_read_from_the_right_columns() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes    packets\n    \
                    lo: 10 1 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n  eth0:293195018   14488    0    0    0     0          0         0  1015337   11905    0    0    0     0       0          0\n";
        let networks = parse_networks(text);
        let eth0 = Traffic { name: "eth0".to_owned(), inward_bytes: 293_195_018, outward_bytes: 1_015_337 };
        assert_eq!((networks.len(), networks.last()), (2, Some(&eth0)));
        let disks = parse_disks(" 259       0 nvme0n1 11 2 30 4 55 6 70 8 0 10 11\n 259 1 short\n");
        assert_eq!(disks, [Traffic { name: "nvme0n1".to_owned(), inward_bytes: 30 * 512, outward_bytes: 70 * 512 }]);
        assert_eq!((resident_bytes("VmHWM:\t    9 kB\nVmRSS:\t    3 kB\n"), resident_bytes("")), (3072, 0));
    }
}
