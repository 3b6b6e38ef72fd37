//! The health probe: the state of the host, and warnings for operators.

use std::path::Path;

use gpuaas_contract::task::diag_health_probe::{Output, Warning};

use crate::{block, fabric, facts, kernel, metrics, nvml, proc};

/// Below this percentage of free space on the root file system there is a warning.
const LOW_SPACE_PERCENT: u64 = 5;
/// Below this percentage of available memory there is a warning.
const LOW_MEMORY_PERCENT: u64 = 3;

/// Probes this machine.
pub(crate) fn probe(nvml: &nvml::Library) -> Output {
    let (proc_root, sys) = (Path::new("/proc"), Path::new("/sys"));
    let memory = proc::memory();
    let mut output = Output {
        healthy: false,
        simulated: false,
        kernel: kernel::release(proc_root),
        uptime_seconds: kernel::uptime_seconds(proc_root),
        load_percent: kernel::load_percent(proc_root),
        memory_bytes: memory.total_bytes,
        memory_available_bytes: memory.available_bytes,
        kvm: kernel::kvm(),
        vfio_modules: kernel::vfio_modules(sys),
        iommu_groups: kernel::iommu_groups(sys),
        reboot_required: kernel::reboot_required(),
        gpus: facts::gpus(nvml),
        fabric: fabric::links(sys),
        disks: block::disks(sys),
        drift: Vec::new(),
        warnings: Vec::new(),
    };
    output.warnings = warnings(&output, metrics::space(Path::new("/")).ok());
    output.healthy = output.warnings.is_empty();
    output
}

/// Returns the warnings. Pure, so that each can be tested.
fn warnings(probe: &Output, root: Option<metrics::Space>) -> Vec<Warning> {
    let has_gpus = !probe.gpus.is_empty();
    let low_memory = probe.memory_available_bytes < probe.memory_bytes / 100 * LOW_MEMORY_PERCENT;
    let low_space = root.is_some_and(|root| root.available_bytes < root.size_bytes / 100 * LOW_SPACE_PERCENT);
    let undriven: Vec<&str> = probe.gpus.iter().filter(|gpu| gpu.driver.is_empty()).map(|gpu| gpu.pci_address.as_str()).collect();
    let down: Vec<&str> = probe.fabric.iter().filter(|link| !link.up).map(|link| link.name.as_str()).collect();
    let checks = [
        (probe.reboot_required, "reboot_required", "the distribution asks for a reboot; drain the node and reboot it".to_owned()),
        (low_memory, "memory_low", format!("less than {LOW_MEMORY_PERCENT} % of memory is available; find what uses it")),
        (low_space, "root_space_low", format!("less than {LOW_SPACE_PERCENT} % of the root file system is free; free some")),
        (has_gpus && !probe.kvm, "kvm_missing", "/dev/kvm is missing; enable virtualization in the firmware".to_owned()),
        (
            has_gpus && probe.iommu_groups == 0,
            "iommu_off",
            "there are no IOMMU groups, so no GPU can be passed to a guest; boot with intel_iommu=on or amd_iommu=on".to_owned(),
        ),
        (
            !down.is_empty(),
            "fabric_link_down",
            format!("the fabric links {} are not up; check cables and switches", down.join(", ")),
        ),
        (!undriven.is_empty(), "gpu_without_driver", format!("no driver is bound to {}", undriven.join(", "))),
    ];
    checks
        .into_iter()
        .filter(|(applies, ..)| *applies)
        .map(|(_, code, message)| Warning { code: code.to_owned(), message })
        .collect()
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::task::diag_health_probe::FabricLink;
    use gpuaas_contract::telemetry::GpuFact;

    use super::*;

    fn codes(probe: &Output, root: Option<metrics::Space>) -> Vec<String> {
        warnings(probe, root).into_iter().map(|warning| warning.code).collect()
    }

    fn good() -> Output {
        Output {
            healthy: true,
            simulated: false,
            kernel: String::new(),
            uptime_seconds: 1,
            load_percent: 0,
            memory_bytes: 1000,
            memory_available_bytes: 900,
            kvm: true,
            vfio_modules: Vec::new(),
            iommu_groups: 3,
            reboot_required: false,
            gpus: vec![GpuFact { driver: "nvidia".to_owned(), ..GpuFact::default() }],
            fabric: Vec::new(),
            disks: Vec::new(),
            drift: Vec::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn each_problem_has_its_own_code() {
        assert_eq!(codes(&good(), None), [""; 0]);
        assert_eq!(codes(&Output { reboot_required: true, ..good() }, None), ["reboot_required"]);
        assert_eq!(codes(&Output { memory_available_bytes: 1, ..good() }, None), ["memory_low"]);
        assert_eq!(codes(&Output { kvm: false, ..good() }, None), ["kvm_missing"]);
        assert_eq!(codes(&Output { iommu_groups: 0, ..good() }, None), ["iommu_off"]);
        assert_eq!(codes(&Output { gpus: vec![GpuFact::default()], ..good() }, None), ["gpu_without_driver"]);
        let link = |up| FabricLink {
            pci_address: String::new(),
            name: "mlx5_0/1".to_owned(),
            up,
            state: String::new(),
            rate: String::new(),
        };
        assert_eq!(codes(&Output { fabric: vec![link(true)], ..good() }, None), [""; 0]);
        assert_eq!(codes(&Output { fabric: vec![link(true), link(false)], ..good() }, None), ["fabric_link_down"]);
        let full = metrics::Space { size_bytes: 1000, free_bytes: 20, available_bytes: 20 };
        assert_eq!(codes(&good(), Some(full)), ["root_space_low"]);
    }

    #[test]
    fn a_host_without_gpus_needs_no_kvm() {
        assert_eq!(codes(&Output { gpus: Vec::new(), kvm: false, iommu_groups: 0, ..good() }, None), [""; 0]);
    }

    #[test]
    fn this_machine_can_be_probed() {
        assert!(probe(&nvml::Library::load()).memory_bytes > 0);
    }
}
