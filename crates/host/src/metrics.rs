//! Fast-changing numbers of the host. CPU use is the share since the previous sample.

use std::path::Path;
use std::sync::Mutex;

use gpuaas_contract::telemetry::HostMetrics;
use gpuaas_contract::time::Timestamp;
use procfs::{Current as _, CurrentSI as _};

use crate::{block, kernel, nvml};

/// Takes samples and remembers the last CPU counters.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    last: Mutex<Option<CpuTicks>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTicks {
    busy: u64,
    all: u64,
}

impl Sampler {
    /// Takes one sample with quick reads. Call it from a blocking thread.
    pub(crate) fn sample(&self, nvml: &nvml::Library) -> HostMetrics {
        let memory = procfs::Meminfo::current().ok();
        let (network_received_bytes, network_sent_bytes) = network_totals();
        let (disk_read_bytes, disk_written_bytes) = disk_totals();
        let (root_used_bytes, root_size_bytes) = root_space();
        HostMetrics {
            at: Timestamp::now(),
            cpu_percent: self.cpu_percent(),
            load_percent: kernel::load_percent(Path::new("/proc")),
            memory_used_bytes: memory.map_or(0, |m| m.mem_total.saturating_sub(m.mem_available.unwrap_or(m.mem_free))),
            network_received_bytes,
            network_sent_bytes,
            disk_read_bytes,
            disk_written_bytes,
            root_used_bytes,
            root_size_bytes,
            agent_rss_bytes: own_rss(),
            gpus: nvml.metrics(),
            guests: Vec::new(),
        }
    }

    fn cpu_percent(&self) -> u32 {
        let Some(now) = cpu_ticks() else { return 0 };
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = last.replace(now);
        before.map_or(0, |before| busy_percent(before, now))
    }
}

fn cpu_ticks() -> Option<CpuTicks> {
    let total = procfs::KernelStats::current().ok()?.total;
    let idle = total.idle + total.iowait.unwrap_or(0);
    let busy =
        total.user + total.nice + total.system + total.irq.unwrap_or(0) + total.softirq.unwrap_or(0) + total.steal.unwrap_or(0);
    Some(CpuTicks { busy, all: busy + idle })
}

fn busy_percent(before: CpuTicks, now: CpuTicks) -> u32 {
    let all = now.all.saturating_sub(before.all);
    let busy = now.busy.saturating_sub(before.busy).min(all);
    (busy * 100).checked_div(all).map_or(0, |percent| u32::try_from(percent).unwrap_or(100))
}

fn network_totals() -> (u64, u64) {
    let devices = procfs::net::dev_status().unwrap_or_default();
    let counted = devices.values().filter(|device| device.name != "lo");
    counted.fold((0, 0), |(received, sent), device| (received + device.recv_bytes, sent + device.sent_bytes))
}

fn disk_totals() -> (u64, u64) {
    let disks = procfs::diskstats().unwrap_or_default();
    let whole = disks.iter().filter(|disk| block::is_disk(&disk.name) && Path::new("/sys/block").join(&disk.name).exists());
    whole.fold((0, 0), |(read, written), disk| (read + disk.sectors_read * 512, written + disk.sectors_written * 512))
}

fn root_space() -> (u64, u64) {
    space(Path::new("/")).map_or((0, 0), |space| (space.size_bytes - space.free_bytes.min(space.size_bytes), space.size_bytes))
}

/// Space on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Total size.
    pub size_bytes: u64,
    /// Free space.
    pub free_bytes: u64,
    /// Space that this user may still write.
    pub available_bytes: u64,
}

/// Returns the space on the file system of `path`.
pub fn space(path: &Path) -> std::io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Space {
        size_bytes: stat.f_blocks * stat.f_frsize,
        free_bytes: stat.f_bfree * stat.f_frsize,
        available_bytes: stat.f_bavail * stat.f_frsize,
    })
}

fn own_rss() -> u64 {
    let stat = procfs::process::Process::myself().and_then(|me| me.stat());
    stat.map_or(0, |stat| stat.rss * procfs::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_use_is_the_share_since_the_last_sample() {
        let ticks = |busy, all| CpuTicks { busy, all };
        assert_eq!(busy_percent(ticks(10, 100), ticks(60, 200)), 50);
        assert_eq!(busy_percent(ticks(10, 100), ticks(10, 100)), 0);
        assert_eq!(busy_percent(ticks(50, 100), ticks(10, 200)), 0, "counters that went back are no use");
    }

    #[test]
    fn this_machine_can_be_sampled() {
        let sample = Sampler::default().sample(&nvml::Library::load());
        assert!(sample.memory_used_bytes > 0 && sample.root_size_bytes > 0 && sample.agent_rss_bytes > 0);
    }
}
