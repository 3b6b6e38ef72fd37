//! Slow-changing facts of the host, from quick reads of `/proc` and `/sys`. Call it from a blocking thread.

use std::path::Path;

use gpuaas_contract::telemetry::{GpuFact, HostFacts};

use crate::{block, kernel, network, nvml, pci, proc, sysfs};

/// Collects the facts of this host.
pub(crate) fn collect(nvml: &nvml::Library) -> HostFacts {
    let (proc_root, sys) = (Path::new("/proc"), Path::new("/sys"));
    HostFacts {
        simulated: false,
        hostname: sysfs::text(proc_root.join("sys/kernel/hostname")),
        os: os_name(&sysfs::text("/etc/os-release")),
        kernel: kernel::release(proc_root),
        architecture: rustix::system::uname().machine().to_string_lossy().into_owned(),
        agent_version: String::new(),
        cpu_model: proc::cpu().model,
        cpu_threads: proc::cpu_threads(),
        memory_bytes: proc::memory().total_bytes,
        gpus: gpus(nvml),
        disks: block::disks(sys),
        networks: network::interfaces(sys),
        allowed_tasks: None,
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
