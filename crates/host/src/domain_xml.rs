//! The libvirt domain of a guest. It contains only what is listed here: no USB, no balloon, no sound, no input, no shared folder,
//! and a screen only on request.

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::{PciAddress, SlotSpec};

use crate::guests::{DomainSpec, InstanceFile, Layout};
use crate::xml::Xml;

/// The prefix of our guests' names.
pub(crate) const NAME_PREFIX: &str = "gpuaas-";
/// Longest serial number of a virtio disk.
const SERIAL: usize = 20;
/// The target name of the seed, after the drives of the largest number of slots.
const SEED_TARGET: &str = "vdz";

/// Returns the guest's name in libvirt.
pub(crate) fn name(id: AllocationId) -> String {
    format!("{NAME_PREFIX}{id}")
}

/// Returns the guest's UUID, which is the allocation's, so that it can never be confused with another.
pub(crate) fn uuid(id: AllocationId) -> String {
    let hex = gpuaas_contract::hex(id.as_bytes());
    let parts = [hex.get(..8), hex.get(8..12), hex.get(12..16), hex.get(16..20), hex.get(20..)];
    parts.map(Option::unwrap_or_default).join("-")
}

/// Returns the NUMA node of all slots, if they share one.
pub(crate) fn shared_node(slots: &[SlotSpec]) -> Option<u32> {
    let first = slots.first()?.numa_node;
    if slots.iter().all(|slot| slot.numa_node == first) { u32::try_from(first).ok() } else { None }
}

/// Returns the whole document. `cpuset` has the allowed processors, in the kernel's list format.
pub(crate) fn domain_xml(domain: &DomainSpec, layout: &Layout, cpuset: Option<&str>) -> String {
    let mut xml = Xml::default();
    let kind = if domain.kvm { "kvm" } else { "qemu" };
    xml.element("domain", &[("type", kind)], |xml| {
        xml.text("name", &[], &name(domain.allocation_id));
        xml.text("uuid", &[], &uuid(domain.allocation_id));
        xml.text("title", &[], domain.vm_name.as_str());
        let (allocation, epoch) = (domain.allocation_id.to_string(), domain.lease_epoch.to_string());
        xml.element("metadata", &[], |xml| {
            let attributes = [("xmlns:gpuaas", "urn:gpuaas:instance"), ("allocation", &allocation), ("lease_epoch", &epoch)];
            xml.empty("gpuaas:instance", &attributes);
        });
        size(xml, domain, layout, cpuset);
        xml.element("os", &[], |xml| {
            xml.text("type", &[("arch", "x86_64"), ("machine", "q35")], "hvm");
            xml.empty("boot", &[("dev", "hd")]);
        });
        xml.element("features", &[], |xml| {
            xml.empty("acpi", &[]);
            xml.empty("apic", &[]);
        });
        if domain.kvm {
            // It holds the host's devices and never migrates, so it may see the real processor.
            xml.empty("cpu", &[("mode", "host-passthrough"), ("check", "none"), ("migratable", "off")]);
        }
        xml.empty("clock", &[("offset", "utc")]);
        xml.text("on_poweroff", &[], "destroy");
        xml.text("on_reboot", &[], "restart");
        xml.text("on_crash", &[], "destroy");
        xml.element("devices", &[], |xml| devices(xml, domain, layout));
    });
    xml.finish()
}

fn size(xml: &mut Xml, domain: &DomainSpec, layout: &Layout, cpuset: Option<&str>) {
    xml.text("memory", &[("unit", "MiB")], &domain.memory_mib().to_string());
    xml.element("memoryBacking", &[], |xml| {
        if layout.huge_pages {
            xml.empty("hugepages", &[]);
        }
        // Pages of different tenants are never merged.
        xml.empty("nosharepages", &[]);
        if domain.slots.iter().any(|slot| slot.functions().next().is_some()) {
            xml.empty("locked", &[]);
        }
    });
    let vcpus = domain.vcpus().to_string();
    let mut attributes = vec![("placement", "static")];
    attributes.extend(cpuset.map(|cpuset| ("cpuset", cpuset)));
    xml.text("vcpu", &attributes, &vcpus);
    if let Some(node) = shared_node(&domain.slots) {
        xml.element("numatune", &[], |xml| xml.empty("memory", &[("mode", "strict"), ("nodeset", &node.to_string())]));
    }
}

fn devices(xml: &mut Xml, domain: &DomainSpec, layout: &Layout) {
    let folder = layout.instances.join(domain.allocation_id.to_string());
    let path = |file: InstanceFile| folder.join(file.name()).display().to_string();
    for (slot, letter) in domain.slots.iter().zip('a'..='y') {
        drive(xml, slot, &format!("vd{letter}"));
    }
    xml.element("disk", &[("type", "file"), ("device", "disk")], |xml| {
        xml.empty("driver", &[("name", "qemu"), ("type", "raw")]);
        xml.empty("source", &[("file", &path(InstanceFile::Seed))]);
        // cloud-init finds it by its label, so it need not be a CD drive.
        xml.empty("target", &[("dev", SEED_TARGET), ("bus", "virtio")]);
        xml.empty("readonly", &[]);
    });
    xml.element("interface", &[("type", "bridge")], |xml| {
        if let Some(first) = domain.slots.first() {
            xml.empty("mac", &[("address", &first.mac_address)]);
        }
        xml.empty("source", &[("bridge", domain.ovs_bridge.as_str())]);
        xml.empty("virtualport", &[("type", "openvswitch")]);
        xml.empty("model", &[("type", "virtio")]);
    });
    for function in domain.slots.iter().flat_map(SlotSpec::functions) {
        hostdev(xml, function);
    }
    let console = path(InstanceFile::Console);
    let source = [("path", console.as_str()), ("append", "on")];
    xml.element("serial", &[("type", "file")], |xml| {
        xml.empty("source", &source);
        xml.empty("target", &[("port", "0")]);
    });
    xml.element("console", &[("type", "file")], |xml| {
        xml.empty("source", &source);
        xml.empty("target", &[("type", "serial"), ("port", "0")]);
    });
    xml.element("rng", &[("model", "virtio")], |xml| xml.text("backend", &[("model", "random")], "/dev/urandom"));
    xml.empty("controller", &[("type", "usb"), ("model", "none")]);
    xml.empty("memballoon", &[("model", "none")]);
    if domain.graphics {
        xml.element("graphics", &[("type", "vnc")], |xml| {
            // A socket in libvirt's own folder for the guest: the hypervisor's user may not write to ours.
            xml.empty("listen", &[("type", "socket")]);
        });
        xml.element("video", &[], |xml| xml.empty("model", &[("type", "virtio"), ("heads", "1")]));
    }
}

fn drive(xml: &mut Xml, slot: &SlotSpec, target: &str) {
    xml.element("disk", &[("type", "block"), ("device", "disk")], |xml| {
        let driver = [("name", "qemu"), ("type", "raw"), ("cache", "none"), ("io", "native"), ("discard", "unmap")];
        xml.empty("driver", &driver);
        xml.empty("source", &[("dev", &slot.nvme_device)]);
        xml.empty("target", &[("dev", target), ("bus", "virtio")]);
        xml.text("serial", &[], &serial(&slot.nvme_serial));
    });
}

/// Returns a serial number without characters that QEMU refuses.
fn serial(serial: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '+') { c } else { '_' };
    serial.trim().chars().map(plain).take(SERIAL).collect()
}

fn hostdev(xml: &mut Xml, function: &PciAddress) {
    let text = function.as_str();
    let part = |range| format!("0x{}", text.get(range).unwrap_or_default());
    let (domain, bus, slot, function) = (part(0..4), part(5..7), part(8..10), part(11..12));
    // Not managed by libvirt: the agent decides who has a function, and proves it afterwards.
    xml.element("hostdev", &[("mode", "subsystem"), ("type", "pci"), ("managed", "no")], |xml| {
        xml.empty("driver", &[("name", "vfio")]);
        xml.element("source", &[], |xml| {
            xml.empty("address", &[("domain", &domain), ("bus", &bus), ("slot", &slot), ("function", &function)]);
        });
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::exec::{Exec, first_installed};

    pub(crate) fn layout(instances: &str) -> Layout {
        Layout {
            leases: "/var/lib/gpuaas/leases".into(),
            instances: instances.into(),
            images: "/var/lib/gpuaas/images".into(),
            image_folders: Vec::new(),
            image_cache_bytes: 0,
            dhcp_hosts: "/var/lib/gpuaas/dhcp-hosts".into(),
            dnsmasq_pid: "/run/gpuaas/dnsmasq.pid".into(),
            console_bytes: 0,
            huge_pages: true,
        }
    }

    pub(crate) fn domain() -> DomainSpec {
        let slot = |number: u8| SlotSpec {
            slot_index: u32::from(number),
            pci_address: Some(format!("0000:1{number}:00.0").parse().expect("an address")),
            companions: vec![format!("0000:1{number}:00.1").parse().expect("an address")],
            fabric_device: Some(format!("0000:9f:0a.{number}").parse().expect("an address")),
            nvme_device: format!("/dev/disk/by-id/nvme-SAMSUNG_{number}"),
            nvme_serial: format!("S6ES/NE0R 70000{number}-and-much-longer"),
            numa_node: 1,
            vcpu_count: 12,
            memory_mib: 98_304,
            mac_address: format!("02:00:5e:10:00:0{number}"),
            private_ip: Ipv4Addr::new(10, 77, 0, number + 2),
        };
        DomainSpec {
            allocation_id: AllocationId::from_bytes([
                0x01, 0x90, 0xaa, 0xaa, 0x00, 0x00, 0x70, 0x00, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01,
            ]),
            lease_epoch: 7,
            vm_name: "trainer".parse().expect("a name"),
            slots: vec![slot(0), slot(1)],
            ovs_bridge: "br-slices".parse().expect("a bridge"),
            kvm: true,
            graphics: false,
        }
    }

    fn plain() -> DomainSpec {
        let mut domain = domain();
        domain.slots.truncate(1);
        domain.slots[0].pci_address = None;
        domain.slots[0].companions.clear();
        domain.slots[0].fabric_device = None;
        domain.slots[0].numa_node = -1;
        DomainSpec { kvm: false, graphics: true, ..domain }
    }

    #[test]
    fn a_guest_is_written_as_it_was_agreed() {
        let layout = layout("/var/lib/gpuaas/instances");
        assert_eq!(domain_xml(&domain(), &layout, Some("16-31,48-63")), include_str!("../testdata/domain-two-slots.xml"));
        let small = Layout { huge_pages: false, ..layout };
        assert_eq!(domain_xml(&plain(), &small, None), include_str!("../testdata/domain-emulated.xml"));
    }

    #[test]
    fn the_number_is_that_of_the_allocation() {
        assert_eq!(uuid(domain().allocation_id), "0190aaaa-0000-7000-8000-000000000001");
        assert_eq!(name(domain().allocation_id), "gpuaas-alloc_0190aaaa000070008000000000000001");
    }

    #[test]
    fn slots_of_different_nodes_are_not_tied_to_one() {
        let mut domain = domain();
        assert_eq!(shared_node(&domain.slots), Some(1));
        domain.slots[1].numa_node = 0;
        assert_eq!(shared_node(&domain.slots), None);
        assert!(!domain_xml(&domain, &layout("/i"), None).contains("numatune"));
        assert_eq!((shared_node(&plain().slots), shared_node(&[])), (None, None));
    }

    #[test]
    fn nothing_that_is_given_becomes_markup() {
        let mut domain = plain();
        let evil = "x'/><disk type=\"block\"><source dev='/dev/sda'/></disk>&";
        domain.slots[0].nvme_device = evil.to_owned();
        domain.slots[0].nvme_serial = evil.to_owned();
        domain.slots[0].mac_address = evil.to_owned();
        let written = domain_xml(&domain, &layout(evil), Some(evil));
        let count = |what: &str| written.matches(what).count();
        assert_eq!((count("<disk"), count("</disk>"), count("/dev/sda")), (2, 2, 6), "{written}");
        assert_eq!(count("dev=&apos;/dev/sda"), 6, "every one is data: {written}");
    }

    /// Validates against libvirt's own schema, where it is installed.
    #[tokio::test]
    async fn libvirts_schema_takes_it() {
        let (Some(program), Some(_)) = (first_installed(&["/usr/bin/virt-xml-validate"]), first_installed(&["/usr/bin/xmllint"]))
        else {
            return crate::skip::skipped("virt-xml-validate is not installed (Debian packages libvirt-clients, libxml2-utils)");
        };
        let folder = tempfile::tempdir().expect("folder");
        let layout = layout("/var/lib/gpuaas/instances");
        for (place, (domain, cpuset)) in [(domain(), Some("16-31,48-63")), (plain(), None)].into_iter().enumerate() {
            let path = folder.path().join(format!("{place}.xml"));
            std::fs::write(&path, domain_xml(&domain, &layout, cpuset)).expect("written");
            Exec::new(&program).arg(&path).arg("domain").run().await.expect("valid");
        }
    }
}
