//! One slot per GPU: its drive, its fabric function, and its blockers.

use std::collections::{HashMap, HashSet};

use gpuaas_contract::Digest;
use gpuaas_contract::slice::{Blocker, PciAddress};
use gpuaas_contract::task::slice_topology_discover::{CandidateSlot, MAX_DEVICES, Params};

use super::Inventory;
use crate::block::Namespace;
use crate::pci::PciFunction;

/// Memory that the host keeps for itself.
const HOST_MEMORY_MIB: u64 = 8 * 1024;
/// Hardware threads that the host keeps for itself.
const HOST_THREADS: u32 = 2;

/// Returns the host's GPUs by address, which is the order of its slots.
pub(super) fn gpus(inventory: &Inventory) -> impl Iterator<Item = &PciFunction> {
    let mut gpus: Vec<&PciFunction> = inventory.functions.iter().filter(|function| function.is_gpu()).collect();
    gpus.sort_by(|one, other| one.address.cmp(&other.address));
    gpus.into_iter().take(MAX_DEVICES)
}

/// Returns every GPU with the devices that go to a guest with it.
pub(super) fn slots(inventory: &Inventory, params: &Params) -> Vec<CandidateSlot> {
    let gpus: Vec<&PciFunction> = gpus(inventory).collect();
    let drives: Vec<&Namespace> = inventory.namespaces.iter().filter(|drive| is_free(drive)).collect();
    let functions: Vec<&PciFunction> =
        inventory.functions.iter().filter(|function| is_usable_fabric(inventory, function)).collect();
    let drive_of = nearest(&gpus, &drives, |drive| (drive.numa_node, &drive.path, &drive.serial));
    let function_of = nearest(&gpus, &functions, |function| (function.numa_node, &function.path, function.address.as_str()));
    let has_fabric = inventory.functions.iter().any(PciFunction::is_fabric);

    let memory = inventory.prerequisites.memory_mib.saturating_sub(HOST_MEMORY_MIB);
    let threads = inventory.prerequisites.cpu_threads.saturating_sub(HOST_THREADS);
    let with_gpu = gpus.iter().zip(0_u32..).map(|(gpu, slot_index)| {
        let drive = drive_of.get(&gpu.address).copied();
        let function = function_of.get(&gpu.address).copied();
        let private_ip = params.private_subnet.address(slot_index);
        let (companions, strangers) = group_of(inventory, gpu);
        let place = u64::from(slot_index) + 1;
        let checks = [
            (
                gpu.iommu_group.is_none(),
                "iommu_group_missing",
                format!("{} is in no IOMMU group and cannot be given to a guest", gpu.address),
            ),
            (
                !strangers.is_empty(),
                "iommu_group_shared",
                format!(
                    "{} shares its IOMMU group with {}; move the card to another slot of the board",
                    gpu.address,
                    strangers.join(", ")
                ),
            ),
            (drive.is_none(), "nvme_missing", why_no_drive(inventory)),
            (
                has_fabric && function.is_none(),
                "fabric_function_missing",
                "no virtual function of the fabric adapters is free; create some with sriov_numvfs".to_owned(),
            ),
            (
                place.saturating_mul(params.memory_mib) > memory,
                "memory_short",
                format!("{place} slots of {} MiB do not fit into the host's memory", params.memory_mib),
            ),
            (
                place.saturating_mul(params.vcpu_count.into()) > threads.into(),
                "cpu_short",
                format!("{place} slots of {} vCPUs are more than the host's processors", params.vcpu_count),
            ),
            (
                private_ip.is_none(),
                "address_missing",
                format!("{} has no address left for slot {slot_index}", params.private_subnet),
            ),
        ];
        CandidateSlot {
            slot_index,
            pci_address: Some(gpu.address.clone()),
            companions,
            fabric_device: function.map(|function| function.address.clone()),
            nvme_device: drive.and_then(|drive| drive.stable_path.clone()),
            nvme_serial: drive.map(|drive| drive.serial.clone()),
            numa_node: gpu.numa_node,
            vcpu_count: params.vcpu_count,
            memory_mib: params.memory_mib,
            mac_address: mac_address(&inventory.machine, gpu.address.as_str()),
            private_ip,
            schedulable: false,
            blockers: checks
                .into_iter()
                .filter(|(applies, ..)| *applies)
                .map(|(_, code, message)| Blocker::new(code, message))
                .collect(),
        }
    });
    with_gpu.chain(slots_without_gpu(inventory, params, gpus.len())).collect()
}

/// Returns the drives that the host's owner wants as slots without a GPU, numbered after those with one.
fn slots_without_gpu(inventory: &Inventory, params: &Params, first: usize) -> Vec<CandidateSlot> {
    let memory = inventory.prerequisites.memory_mib;
    let places = (u32::try_from(first).unwrap_or(u32::MAX)..).zip(inventory.drives_without_gpu.iter().take(MAX_DEVICES));
    let slot = |(slot_index, drive): (u32, &Namespace)| {
        let private_ip = params.private_subnet.address(slot_index);
        let checks = [
            (!is_free(drive), "drive_in_use", format!("drive {} is used by the host or has no name of its own", drive.name)),
            (
                params.memory_mib > memory,
                "memory_short",
                format!("a slot of {} MiB does not fit into the host's memory", params.memory_mib),
            ),
            (
                private_ip.is_none(),
                "address_missing",
                format!("{} has no address left for slot {slot_index}", params.private_subnet),
            ),
        ];
        CandidateSlot {
            slot_index,
            pci_address: None,
            companions: Vec::new(),
            fabric_device: None,
            nvme_device: drive.stable_path.clone(),
            nvme_serial: Some(drive.serial.clone()),
            numa_node: drive.numa_node,
            vcpu_count: params.vcpu_count,
            memory_mib: params.memory_mib,
            mac_address: mac_address(&inventory.machine, &drive.serial),
            private_ip,
            schedulable: false,
            blockers: checks
                .into_iter()
                .filter(|(applies, ..)| *applies)
                .map(|(_, code, message)| Blocker::new(code, message))
                .collect(),
        }
    };
    places.map(slot).collect()
}

/// Returns whether a drive is unused, and can be identified after a reboot.
fn is_free(drive: &Namespace) -> bool {
    drive.used_by.is_empty() && !drive.serial.is_empty() && drive.stable_path.is_some() && drive.size_bytes > 0
}

fn why_no_drive(inventory: &Inventory) -> String {
    let used = inventory.namespaces.iter().filter(|drive| !drive.used_by.is_empty()).count();
    let all = inventory.namespaces.len();
    format!("no NVMe drive is left for it: of {all}, {used} are used by the host itself; unmount some or add drives")
}

/// Returns whether a virtual function is alone in its IOMMU group.
fn is_usable_fabric(inventory: &Inventory, function: &PciFunction) -> bool {
    function.is_fabric()
        && function.physical_function.is_some()
        && function.iommu_group.is_some()
        && group_of(inventory, function).1.is_empty()
}

/// Returns what shares the IOMMU group of a function: other functions of the same device, which go along, and unrelated ones with
/// their description.
fn group_of(inventory: &Inventory, own: &PciFunction) -> (Vec<PciAddress>, Vec<String>) {
    let in_group = |other: &&PciFunction| {
        own.iommu_group.is_some() && other.iommu_group == own.iommu_group && other.address != own.address && !other.is_bridge()
    };
    let (same, strangers): (Vec<_>, Vec<_>) = inventory
        .functions
        .iter()
        .filter(in_group)
        // A virtual function is never the same device as its neighbor, even if their numbers suggest it.
        .partition(|other| other.address.device() == own.address.device() && own.physical_function.is_none());
    let named = |other: &PciFunction| format!("{} ({}:{})", other.address, other.vendor_id, other.device_id);
    (same.into_iter().map(|other| other.address.clone()).collect(), strangers.into_iter().map(named).collect())
}

/// Assigns the nearest device to every GPU: same NUMA node first, then fewest bridges in between, then by name; the nearest pairs
/// first. The name from `place` must be unique.
fn nearest<'a, T>(
    gpus: &[&PciFunction],
    devices: &[&'a T],
    place: impl for<'t> Fn(&'t T) -> (i32, &'t Vec<String>, &'t str),
) -> HashMap<PciAddress, &'a T>
where
    T: ?Sized,
{
    let mut pairs = Vec::with_capacity(gpus.len() * devices.len());
    for gpu in gpus {
        for device in devices {
            let (numa_node, path, name) = place(device);
            let numa = match (gpu.numa_node, numa_node) {
                (one, other) if one == other => 0,
                (-1, _) | (_, -1) => 1,
                _ => 2,
            };
            let bridges = gpu.distance(path).unwrap_or(usize::MAX);
            pairs.push(((numa, bridges, &gpu.address, name.to_owned()), *device));
        }
    }
    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
    let (mut taken, mut given) = (HashSet::new(), HashMap::new());
    for ((_, _, gpu, name), device) in pairs {
        if !given.contains_key(gpu) && taken.insert(name.clone()) {
            given.insert(gpu.clone(), device);
        }
    }
    given
}

/// Returns a locally administered MAC address (the second bit of the first byte), always the same for this device of this
/// machine.
fn mac_address(machine: &str, device: &str) -> String {
    let digest = Digest::of(format!("gpuaas-slot-mac-v1\n{machine}\n{device}").as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    let mut mac = "02".to_owned();
    for byte in hex.as_bytes().chunks(2).take(5) {
        mac.push(':');
        mac.extend(byte.iter().map(|digit| char::from(*digit)));
    }
    mac
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::task::slice_topology_discover::Prerequisites;
    use proptest::prelude::*;

    use super::*;

    fn function(address: &str, vendor: &str, class: &str, group: Option<u32>, numa_node: i32, behind: &[&str]) -> PciFunction {
        let path = behind.iter().copied().chain([address]).map(str::to_owned).collect();
        PciFunction {
            address: address.parse().expect("an address"),
            vendor_id: vendor.to_owned(),
            device_id: "2330".to_owned(),
            class: class.to_owned(),
            driver: String::new(),
            iommu_group: group,
            numa_node,
            physical_function: None,
            virtual_functions: 0,
            path,
        }
    }

    fn gpu(address: &str, group: u32, numa_node: i32, behind: &[&str]) -> PciFunction {
        function(address, "10de", "030200", Some(group), numa_node, behind)
    }

    fn drive(number: u32, numa_node: i32, behind: &[&str]) -> Namespace {
        Namespace {
            name: format!("nvme{number}n1"),
            stable_path: Some(format!("/dev/disk/by-id/nvme-S{number}")),
            serial: format!("S{number}"),
            model: String::new(),
            size_bytes: 1 << 40,
            path: behind.iter().map(|part| (*part).to_owned()).collect(),
            numa_node,
            used_by: Vec::new(),
        }
    }

    fn host(functions: Vec<PciFunction>, namespaces: Vec<Namespace>) -> Inventory {
        let prerequisites = Prerequisites { memory_mib: 1 << 20, cpu_threads: 256, ..Prerequisites::default() };
        Inventory { machine: "m".to_owned(), functions, namespaces, prerequisites, ..Inventory::default() }
    }

    fn codes(slot: &CandidateSlot) -> Vec<&str> {
        slot.blockers.iter().map(|blocker| blocker.code.as_str()).collect()
    }

    #[test]
    fn drives_and_functions_go_to_the_gpu_behind_the_same_switch() {
        let near = ["pci0000:16", "0000:16:01.0"];
        let far = ["pci0000:96", "0000:96:01.0"];
        let vf = |address: &str, group, numa, behind: &[&str]| PciFunction {
            physical_function: Some("0000:aa:00.0".parse().expect("an address")),
            ..function(address, "15b3", "020700", Some(group), numa, behind)
        };
        let inventory = host(
            vec![
                gpu("0000:18:00.0", 1, 0, &near),
                gpu("0000:98:00.0", 2, 1, &far),
                vf("0000:19:00.1", 3, 1, &far),
                vf("0000:1a:00.1", 4, 0, &near),
            ],
            vec![drive(1, 1, &far), drive(2, 0, &["pci0000:40"]), drive(3, 0, &near)],
        );
        let slots = slots(&inventory, &Params::default());
        let chosen: Vec<_> =
            slots.iter().map(|slot| (slot.nvme_serial.as_deref(), slot.fabric_device.as_ref().map(PciAddress::as_str))).collect();
        assert_eq!(chosen, [(Some("S3"), Some("0000:1a:00.1")), (Some("S1"), Some("0000:19:00.1"))]);
        assert!(slots.iter().all(|slot| slot.blockers.is_empty()));
        assert_ne!(slots[0].mac_address, slots[1].mac_address);
        assert!(slots[0].mac_address.starts_with("02:") && slots[0].mac_address.len() == 17, "{}", slots[0].mac_address);
        assert_eq!(slots[1].private_ip.map(|ip| ip.to_string()).as_deref(), Some("10.77.0.3"));
    }

    #[test]
    fn a_group_with_a_stranger_is_named_and_functions_of_the_card_go_along() {
        let audio = function("0000:18:00.1", "10de", "040300", Some(1), 0, &[]);
        let bridge = function("0000:17:00.0", "8086", "060400", Some(1), 0, &[]);
        let inventory = host(vec![bridge, gpu("0000:18:00.0", 1, 0, &[]), audio], vec![drive(1, 0, &[])]);
        let slots = slots(&inventory, &Params::default());
        assert_eq!(slots[0].companions.iter().map(PciAddress::as_str).collect::<Vec<_>>(), ["0000:18:00.1"]);
        assert_eq!(codes(&slots[0]), [""; 0]);

        let stranger = function("0000:19:00.0", "8086", "020000", Some(1), 0, &[]);
        let inventory = host(vec![gpu("0000:18:00.0", 1, 0, &[]), stranger], vec![drive(1, 0, &[])]);
        let slots = super::slots(&inventory, &Params::default());
        assert_eq!(codes(&slots[0]), ["iommu_group_shared"]);
        assert!(slots[0].blockers[0].message.contains("0000:19:00.0"), "{:?}", slots[0].blockers);
    }

    #[test]
    fn each_reason_of_a_slot_has_its_own_code() {
        let one = |change: &dyn Fn(&mut Inventory, &mut Params)| {
            let mut inventory = host(vec![gpu("0000:18:00.0", 1, 0, &[])], vec![drive(1, 0, &[])]);
            let mut params = Params::default();
            change(&mut inventory, &mut params);
            slots(&inventory, &params)
                .first()
                .map(|slot| slot.blockers.iter().map(|b| b.code.clone()).collect::<Vec<_>>())
                .unwrap_or_default()
        };
        assert_eq!(one(&|_, _| ()), [""; 0]);
        assert_eq!(one(&|host, _| host.functions[0].iommu_group = None), ["iommu_group_missing"]);
        assert_eq!(one(&|host, _| host.namespaces[0].used_by.push("mounted at /".to_owned())), ["nvme_missing"]);
        assert_eq!(one(&|host, _| host.namespaces[0].serial.clear()), ["nvme_missing"]);
        assert_eq!(one(&|host, _| host.namespaces[0].stable_path = None), ["nvme_missing"]);
        assert_eq!(
            one(&|host, _| host.functions.push(function("0000:19:00.0", "15b3", "020700", Some(9), 0, &[]))),
            ["fabric_function_missing"]
        );
        assert_eq!(one(&|host, _| host.prerequisites.memory_mib = 70_000), ["memory_short"]);
        assert_eq!(one(&|host, _| host.prerequisites.cpu_threads = 13), ["cpu_short"]);
        let many: Vec<PciFunction> = (0..14).map(|bus| gpu(&format!("0000:{bus:02x}:00.0"), bus, 0, &[])).collect();
        let params = Params { private_subnet: "10.77.0.0/28".parse().expect("a network"), ..Params::default() };
        let all = slots(&host(many, (0..14).map(|number| drive(number, 0, &[])).collect()), &params);
        assert_eq!(codes(&all[12]), [""; 0]);
        assert_eq!(codes(&all[13]), ["address_missing"]);
    }

    proptest! {
        /// Whatever the order in which the kernel lists devices, the slots are the same, and no device is in two of them.
        #[test]
        fn the_same_host_gives_the_same_slots_and_shares_nothing(
            numas in prop::collection::vec(-1_i32..2, 0..9),
            drives in prop::collection::vec((-1_i32..2, any::<bool>()), 0..12),
            seed in any::<u64>(),
        ) {
            let gpus = numas.iter().zip(0_u32..).map(|(numa, bus)| gpu(&format!("0000:{bus:02x}:00.0"), bus, *numa, &[]));
            let drives = drives.iter().zip(0_u32..).map(|((numa, used), number)| Namespace {
                used_by: if *used { vec!["swap".to_owned()] } else { Vec::new() },
                ..drive(number, *numa, &[])
            });
            let inventory = host(gpus.collect(), drives.collect());
            let expected = slots(&inventory, &Params::default());
            let mut shuffled = inventory.clone();
            let turn = |len: usize| if len == 0 { 0 } else { usize::try_from(seed % 97).unwrap_or(0) % len };
            let (by, of) = (turn(shuffled.functions.len()), turn(shuffled.namespaces.len()));
            shuffled.functions.rotate_left(by);
            shuffled.namespaces.rotate_left(of);
            shuffled.namespaces.reverse();
            prop_assert_eq!(&slots(&shuffled, &Params::default()), &expected);
            let mut serials: Vec<_> = expected.iter().filter_map(|slot| slot.nvme_serial.clone()).collect();
            let given = serials.len();
            serials.sort();
            serials.dedup();
            prop_assert_eq!(serials.len(), given);
            let free = inventory.namespaces.iter().filter(|drive| is_free(drive)).count();
            prop_assert_eq!(given, free.min(expected.len()), "a free drive is given as long as a GPU wants one");
        }
    }

    #[test]
    fn a_drive_that_the_owner_wants_is_a_slot_without_a_gpu_behind_those_with_one() {
        let mut inventory = host(Vec::new(), Vec::new());
        inventory.drives_without_gpu = vec![drive(0, -1, &[]), drive(1, -1, &[])];
        inventory.drives_without_gpu[1].used_by = vec!["mounted at /".to_owned()];
        let found = slots(&inventory, &Params { memory_mib: 1024, ..Params::default() });
        let [free, used] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((free.slot_index, &free.pci_address, free.nvme_serial.as_deref()), (0, &None, Some("S0")));
        assert!(free.blockers.is_empty() && free.spec().is_some(), "{free:?}");
        assert_eq!(used.blockers[0].code, "drive_in_use");
        assert_ne!(free.mac_address, used.mac_address);
    }
}
