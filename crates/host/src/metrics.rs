//! Fast-changing numbers of the host. CPU use is the share since the previous sample.

use std::path::Path;
use std::sync::Mutex;

use gpuaas_contract::telemetry::HostMetrics;
use gpuaas_contract::time::Timestamp;

use crate::proc::{self, CpuTicks, Traffic};
use crate::{block, kernel, nvml};

/// Takes samples and remembers the last CPU counters.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    last: Mutex<Option<CpuTicks>>,
}

impl Sampler {
    /// Takes one sample with quick reads. Call it from a blocking thread.
    pub(crate) fn sample(&self, nvml: &nvml::Library) -> HostMetrics {
        let memory = proc::memory();
        let (network_received_bytes, network_sent_bytes) = network_totals();
        let (disk_read_bytes, disk_written_bytes) = disk_totals();
        let (root_used_bytes, root_size_bytes) = root_space();
        HostMetrics {
            at: Timestamp::now(),
            cpu_percent: self.cpu_percent(),
            load_percent: kernel::load_percent(Path::new("/proc")),
            memory_used_bytes: memory.total_bytes.saturating_sub(memory.available_bytes),
            network_received_bytes,
            network_sent_bytes,
            disk_read_bytes,
            disk_written_bytes,
            root_used_bytes,
            root_size_bytes,
            agent_rss_bytes: proc::own_resident_bytes(),
            gpus: nvml.metrics(),
            guests: Vec::new(),
        }
    }

    fn cpu_percent(&self) -> u32 {
        let Some(now) = proc::cpu_ticks() else { return 0 };
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = last.replace(now);
        before.map_or(0, |before| busy_percent(before, now))
    }
}

fn busy_percent(before: CpuTicks, now: CpuTicks) -> u32 {
    let all = now.all.saturating_sub(before.all);
    let busy = now.busy.saturating_sub(before.busy).min(all);
    (busy * 100).checked_div(all).map_or(0, |percent| u32::try_from(percent).unwrap_or(100))
}

fn network_totals() -> (u64, u64) {
    sum(proc::networks().iter().filter(|network| network.name != "lo"))
}

fn disk_totals() -> (u64, u64) {
    let is_whole = |disk: &&Traffic| block::is_disk(&disk.name) && Path::new("/sys/block").join(&disk.name).exists();
    sum(proc::disks().iter().filter(is_whole))
}

fn sum<'a>(traffic: impl Iterator<Item = &'a Traffic>) -> (u64, u64) {
    traffic.fold((0, 0), |(inward, outward), one| {
        (inward.saturating_add(one.inward_bytes), outward.saturating_add(one.outward_bytes))
    })
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
