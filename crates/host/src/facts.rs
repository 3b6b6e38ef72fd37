//! Slow-changing facts of the host, from quick reads of `/proc` and `/sys`. Call it from a blocking thread.

use std::path::Path;

use gpuaas_contract::telemetry::{GpuFact, HostFacts};
use procfs::Current as _;

use crate::{block, kernel, network, nvml, pci, sysfs};

/// Collects the facts of this host.
pub(crate) fn collect(nvml: &nvml::Library) -> HostFacts {
    let (proc_root, sys) = (Path::new("/proc"), Path::new("/sys"));
    let cpu = procfs::CpuInfo::current().ok();
    HostFacts {
        simulated: false,
        hostname: sysfs::text(proc_root.join("sys/kernel/hostname")),
        os: os_name(&sysfs::text("/etc/os-release")),
        kernel: kernel::release(proc_root),
        architecture: rustix::system::uname().machine().to_string_lossy().into_owned(),
        agent_version: String::new(),
        cpu_model: cpu.as_ref().and_then(|cpu| cpu.model_name(0)).unwrap_or_default().to_owned(),
        cpu_threads: cpu.map_or(0, |cpu| u32::try_from(cpu.num_cores()).unwrap_or(u32::MAX)),
        memory_bytes: procfs::Meminfo::current().map(|memory| memory.mem_total).unwrap_or(0),
        gpus: gpus(nvml),
        disks: block::disks(sys),
        networks: network::interfaces(sys),
    }
}

/// Returns the GPUs from sysfs and, if available, NVML.
pub(crate) fn gpus(nvml: &nvml::Library) -> Vec<GpuFact> {
    let mut gpus = pci::gpus(Path::new("/sys"));
    nvml.enrich(&mut gpus);
    gpus
}

/// Returns `PRETTY_NAME` of an os-release file, or `Linux`.
fn os_name(os_release: &str) -> String {
    os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|value| value.trim_matches(['"', '\'']).to_owned())
        .unwrap_or_else(|| "Linux".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_is_called_as_it_calls_itself() {
        assert_eq!(os_name(include_str!("../testdata/os-release-debian-12")), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(os_name("ID=x\n"), "Linux");
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = collect(&nvml::Library::load());
        assert!(!facts.simulated && facts.cpu_threads > 0 && facts.memory_bytes > 0 && !facts.kernel.is_empty());
    }
}
