//! Why a host cannot run guests: a code each, and a message that says what to do.

use gpuaas_contract::slice::Blocker;
use gpuaas_contract::task::slice_topology_discover::{Params, Prerequisites};

use super::Inventory;
use crate::pci::PciFunction;

/// Modules that passthrough needs.
const VFIO: [&str; 2] = ["vfio_pci", "vfio_iommu_type1"];

/// What the slots of this host need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// Hardware virtualization.
    kvm: bool,
    /// Device passthrough.
    passthrough: bool,
}

impl Needs {
    /// Derives the needs: slots without a GPU need no IOMMU, and if the owner allows emulation they need no KVM.
    pub(super) fn of(inventory: &Inventory) -> Self {
        let only_drives = !inventory.drives_without_gpu.is_empty() && !inventory.functions.iter().any(PciFunction::is_gpu);
        Self { kvm: !inventory.emulation, passthrough: !only_drives }
    }
}

/// Returns the blockers that affect every slot of the host.
pub(super) fn of_host(host: &Prerequisites, params: &Params, needs: Needs) -> Vec<Blocker> {
    let network = &host.slice_network;
    let missing_modules: Vec<&str> =
        VFIO.into_iter().filter(|module| !host.loaded_modules.iter().any(|loaded| loaded == module)).collect();
    let missing_commands: Vec<&str> =
        host.required_commands.iter().filter(|command| command.path.is_none()).map(|command| command.name.as_str()).collect();
    let down: Vec<&str> = network.ipoib.iter().filter(|one| !one.up).map(|one| one.name.as_str()).collect();
    let unplanned: Vec<&str> = network.ipoib.iter().filter(|one| !one.netplan).map(|one| one.name.as_str()).collect();
    let cpu = host.cpu_virtualization;
    let bridge = &params.ovs_bridge;
    let checks = [
        (
            needs.kvm && !cpu.vmx && !cpu.svm,
            "cpu_virtualization_off",
            "the processor offers neither vmx nor svm; enable virtualization in the firmware".to_owned(),
        ),
        (needs.kvm && !host.kvm_available, "kvm_missing", "/dev/kvm is missing; load kvm_intel or kvm_amd".to_owned()),
        (
            needs.passthrough && host.iommu_group_count == 0,
            "iommu_off",
            "there are no IOMMU groups; enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on or amd_iommu=on"
                .to_owned(),
        ),
        (
            needs.passthrough && !missing_modules.is_empty(),
            "vfio_modules_missing",
            format!("load the modules {} and list them in /etc/modules", missing_modules.join(", ")),
        ),
        (!missing_commands.is_empty(), "commands_missing", format!("install the programs {}", missing_commands.join(", "))),
        (
            !network.bridge_exists,
            "bridge_missing",
            format!("Open vSwitch has no bridge {bridge}; add it with `ovs-vsctl add-br {bridge}`"),
        ),
        (
            !network.ip_forwarding,
            "ip_forwarding_off",
            "the kernel does not forward packets; set net.ipv4.ip_forward=1".to_owned(),
        ),
        (
            !network.nat,
            "nat_missing",
            format!("no rule hides guests behind the host's address; masquerade {}", params.private_subnet),
        ),
        (
            !down.is_empty(),
            "ipoib_down",
            format!("the InfiniBand interfaces {} are down; check cables and subnet manager", down.join(", ")),
        ),
        (
            !unplanned.is_empty(),
            "ipoib_not_configured",
            format!("no netplan file mentions {}: they will not come up after a reboot", unplanned.join(", ")),
        ),
        (host.reboot_required, "reboot_required", "the distribution asks for a reboot; do it before there are guests".to_owned()),
    ];
    checks.into_iter().filter(|(applies, ..)| *applies).map(|(_, code, message)| Blocker::new(code, message)).collect()
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::task::slice_topology_discover::{CpuVirtualization, Ipoib, RequiredCommand, SliceNetwork};

    use super::*;

    fn good() -> Prerequisites {
        Prerequisites {
            kvm_available: true,
            iommu_group_count: 200,
            iommu_kernel_args: vec!["intel_iommu=on".to_owned()],
            cpu_virtualization: CpuVirtualization { vmx: true, svm: false },
            loaded_modules: VFIO.map(str::to_owned).into(),
            required_commands: vec![RequiredCommand { name: "virsh".to_owned(), path: Some("/usr/bin/virsh".to_owned()) }],
            slice_network: SliceNetwork { bridge_exists: true, nat: true, ip_forwarding: true, ..SliceNetwork::default() },
            reboot_required: false,
            memory_mib: 1 << 20,
            cpu_threads: 128,
        }
    }

    fn codes(host: &Prerequisites) -> Vec<String> {
        codes_with(host, Needs { kvm: true, passthrough: true })
    }

    fn codes_with(host: &Prerequisites, needs: Needs) -> Vec<String> {
        of_host(host, &Params::default(), needs).into_iter().map(|blocker| blocker.code).collect()
    }

    #[test]
    fn each_reason_has_its_own_code_and_a_good_host_has_none() {
        assert_eq!(codes(&good()), [""; 0]);
        let network = |change: fn(&mut SliceNetwork)| {
            let mut host = good();
            change(&mut host.slice_network);
            host
        };
        let ipoib = |up, netplan| vec![Ipoib { name: "ib0".to_owned(), up, netplan }];
        for (host, code) in [
            (Prerequisites { cpu_virtualization: CpuVirtualization::default(), ..good() }, "cpu_virtualization_off"),
            (Prerequisites { kvm_available: false, ..good() }, "kvm_missing"),
            (Prerequisites { iommu_group_count: 0, ..good() }, "iommu_off"),
            (Prerequisites { loaded_modules: vec!["vfio_pci".to_owned()], ..good() }, "vfio_modules_missing"),
            (
                Prerequisites { required_commands: vec![RequiredCommand { name: "virsh".to_owned(), path: None }], ..good() },
                "commands_missing",
            ),
            (network(|network| network.bridge_exists = false), "bridge_missing"),
            (network(|network| network.ip_forwarding = false), "ip_forwarding_off"),
            (network(|network| network.nat = false), "nat_missing"),
            (
                Prerequisites { slice_network: SliceNetwork { ipoib: ipoib(false, true), ..good().slice_network }, ..good() },
                "ipoib_down",
            ),
            (
                Prerequisites { slice_network: SliceNetwork { ipoib: ipoib(true, false), ..good().slice_network }, ..good() },
                "ipoib_not_configured",
            ),
            (Prerequisites { reboot_required: true, ..good() }, "reboot_required"),
        ] {
            assert_eq!(codes(&host), [code]);
        }
    }

    #[test]
    fn slots_without_a_gpu_need_no_iommu_and_emulated_ones_no_kvm() {
        let bare = Prerequisites {
            cpu_virtualization: CpuVirtualization::default(),
            kvm_available: false,
            iommu_group_count: 0,
            loaded_modules: Vec::new(),
            ..good()
        };
        let codes = |kvm, passthrough| codes_with(&bare, Needs { kvm, passthrough });
        assert_eq!(codes(false, false), [""; 0]);
        assert_eq!(codes(true, false), ["cpu_virtualization_off", "kvm_missing"]);
        assert_eq!(codes(false, true), ["iommu_off", "vfio_modules_missing"]);
    }
}
