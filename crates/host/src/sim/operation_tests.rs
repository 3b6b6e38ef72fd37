//! What other tests rely on in the simulated host.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::{Reset, WipeMethod, WipeStatus};
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::slice::{PciAddress, SlotSpec};
use gpuaas_contract::task::slice_topology_discover::Params;
use gpuaas_contract::time::Timestamp;

use super::{Content, Fault, FaultKind, Operation, Profile, SimHost, Target, When};
use crate::guests::{
    ConsoleFrom, DomainSpec, DomainState, DriveMark, DriveRef, GuestAccess, GuestAnswer, GuestMark, ImageWanted, InstanceFile,
    Lease, Point, Power, Reservation,
};
use crate::{Host, HostError, topology};

/// A host and its folder.
struct Bench {
    folder: tempfile::TempDir,
    sim: SimHost,
    host: Host,
    specs: Vec<SlotSpec>,
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime").block_on(future)
}

impl Bench {
    fn new(profile: Profile) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let sim = SimHost::open(folder.path(), profile, "bench").expect("opens");
        let params = Params::default();
        let inventory = sim.inventory("machine".to_owned());
        let found = topology::discover(&inventory, sim.slice_network(&params.ovs_bridge), &params);
        let spec = |slot: gpuaas_contract::task::slice_topology_discover::CandidateSlot| SlotSpec {
            slot_index: slot.slot_index,
            pci_address: slot.pci_address,
            companions: slot.companions,
            fabric_device: slot.fabric_device,
            nvme_device: slot.nvme_device.expect("a drive"),
            nvme_serial: slot.nvme_serial.expect("a drive"),
            numa_node: slot.numa_node,
            vcpu_count: slot.vcpu_count,
            memory_mib: slot.memory_mib,
            mac_address: slot.mac_address,
            private_ip: slot.private_ip.expect("an address"),
        };
        let specs = found.candidate_slots.into_iter().map(spec).collect();
        Self { folder, host: Host::Sim(sim.clone()), sim, specs }
    }

    /// Drops the host like a killed process, and opens it again.
    fn reopen(self) -> Self {
        let profile = self.sim.profile();
        let sim = SimHost::open(self.folder.path(), profile, "bench").expect("opens");
        Self { host: Host::Sim(sim.clone()), sim, ..self }
    }

    fn lease(&self, slot: usize, allocation_id: AllocationId) -> Lease {
        Lease {
            slot_id: SlotId::from_bytes([u8::try_from(slot).expect("small") + 1; 16]),
            allocation_id,
            lease_epoch: 1,
            task_id: TaskId::generate(),
            spec: self.specs[slot].clone(),
            vm_name: "guest".to_owned(),
            taken_at: Timestamp::now(),
            boot_id: self.sim.boot_id(),
            drive: DriveMark::Dirty,
            guest: GuestMark::Given,
            power: Power::On,
        }
    }

    fn domain(&self, slot: usize, allocation_id: AllocationId) -> DomainSpec {
        DomainSpec {
            allocation_id,
            lease_epoch: 1,
            vm_name: "guest".parse().expect("a name"),
            slots: vec![self.specs[slot].clone()],
            ovs_bridge: "br-slices".parse().expect("a name"),
            kvm: true,
            graphics: false,
        }
    }

    fn access(&self, slot: usize, allocation_id: AllocationId) -> GuestAccess {
        GuestAccess { allocation_id, address: self.specs[slot].private_ip, user: "gpuaas".parse().expect("a name") }
    }

    /// Does everything up to a started guest, without a lease.
    async fn start_unleased(&self, slot: usize, id: AllocationId) -> Result<(), HostError> {
        let (host, spec) = (&self.host, &self.specs[slot]);
        for address in spec.functions() {
            host.function_bind(address).await?;
        }
        host.image_fetch(&wanted(Some("ubuntu.img"), None), &|_, _| ()).await?;
        host.instance_make(id).await?;
        host.instance_write(id, InstanceFile::UserData, b"#cloud-config\n".to_vec()).await?;
        host.instance_write(id, InstanceFile::MetaData, b"{}\n".to_vec()).await?;
        host.seed_build(id).await?;
        let (mac_address, private_ip) = (spec.mac_address.clone(), spec.private_ip);
        let vm_name = "guest".parse().expect("a name");
        host.reservation_add(&Reservation { allocation_id: id, mac_address, private_ip, vm_name }).await?;
        self.sim.drive_write_image(&DriveRef::of(spec), &image()).await?;
        host.domain_define(&self.domain(slot, id)).await?;
        host.domain_start(id).await
    }

    /// Does the same under a lease.
    async fn start(&self, slot: usize, id: AllocationId) -> Result<(), HostError> {
        self.host.lease_take(&self.lease(slot, id), false).await?;
        self.start_unleased(slot, id).await
    }

    /// Undoes it, and drops the lease.
    async fn release(&self, slot: usize, id: AllocationId) -> Result<(), HostError> {
        let (host, spec) = (&self.host, &self.specs[slot]);
        host.domain_destroy(id).await?;
        host.domain_undefine(id).await?;
        for address in spec.functions() {
            assert_eq!(host.function_reset(address).await?, Reset::Done);
        }
        assert!(self.sim.drive_wipe(&DriveRef::of(spec)).await?.is_clean());
        host.reservation_remove(id).await?;
        host.instance_remove(id).await?;
        let lease = self.lease(slot, id);
        host.lease_drop(lease.slot_id, lease.holder()).await
    }
}

fn image() -> Digest {
    Digest::of(b"an image")
}

fn wanted(path: Option<&str>, url: Option<&str>) -> ImageWanted {
    ImageWanted {
        sha256: image(),
        path: path.map(str::to_owned),
        url: url.map(str::to_owned),
        allowed_prefixes: Vec::new(),
        private_networks: Vec::new(),
    }
}

fn fault(at: Target, when: When, kind: FaultKind) -> Fault {
    Fault { at, when, kind, times: 1 }
}

fn code<T: std::fmt::Debug>(result: Result<T, HostError>) -> &'static str {
    result.expect_err("refused").code
}

#[test]
fn a_guest_comes_up_and_goes_and_leaves_a_host_like_a_fresh_one() {
    for profile in [Profile::H100, Profile::Mi300x] {
        let bench = Bench::new(profile);
        let (sim, host, spec, id) = (&bench.sim, &bench.host, &bench.specs[2], AllocationId::generate());
        assert!(sim.leftovers().is_empty(), "{:?}", sim.leftovers());
        block_on(async {
            let before = host.memory_free().await.expect("known").available_mib;
            bench.start(2, id).await.expect("starts");
            assert_eq!(host.domains().await.expect("known"), [(id, DomainState::Running)]);
            assert_eq!(host.memory_free().await.expect("known").available_mib, before - spec.memory_mib);
            assert_eq!(sim.drive_contents(&spec.nvme_serial), [Content::Image(image()), Content::Guest(id)]);
            let answer = |ssh, marker| GuestAnswer { ssh, marker };
            for expected in [answer(false, false), answer(true, false), answer(true, true), answer(true, true)] {
                assert_eq!(host.guest_ask(&bench.access(2, id)).await.expect("asked"), expected);
            }
            let measured = host.guest_measure(&bench.access(2, id)).await.expect("asked");
            assert_eq!((measured.measured, measured.cpus, measured.gpus), (true, spec.vcpu_count, 1));
            let console = host.console_read(id, ConsoleFrom::Tail(1 << 20), 1 << 20).await.expect("read");
            assert!(String::from_utf8_lossy(&console.bytes).contains("guest login: "));
            let left = sim.leftovers();
            assert_eq!((left.leases.len(), left.domains.len(), left.reservations.len(), left.instances.len()), (1, 1, 1, 1));
            assert_eq!((left.functions.len(), left.drives.len()), (2, 1));
            bench.release(2, id).await.expect("goes");
        });
        assert!(sim.leftovers().is_empty(), "{:?}", sim.leftovers());
        assert_eq!(sim.violations(), [""; 0]);
        let gpu = spec.pci_address.clone().expect("a GPU");
        assert_eq!((sim.resets(&gpu), sim.boots(id)), (1, 0));
        // A bound function stays bound, and every reader sees it.
        let seen = |address: &PciAddress| {
            let facts = sim.facts().gpus.into_iter().find(|gpu| gpu.pci_address == address.as_str()).expect("known").driver;
            let inventory = sim.inventory(String::new()).functions.into_iter().find(|f| f.address == *address).expect("known");
            (facts, inventory.driver)
        };
        assert_eq!(seen(&gpu), ("vfio-pci".to_owned(), "vfio-pci".to_owned()));
        assert_eq!(sim.metrics().gpus.len(), 7, "a GPU that was given away is not measured");
    }
}

#[test]
fn a_killed_host_keeps_what_it_was_and_never_answers_again() {
    let bench = Bench::new(Profile::H100);
    let id = AllocationId::generate();
    let bench = block_on(async {
        bench.start(0, id).await.expect("starts");
        bench.sim.stubborn(id).expect("set");
        bench.sim.arm(fault(Target::Operation(Operation::DomainDestroy), When::After, FaultKind::Kill));
        let hangs = tokio::time::timeout(Duration::from_millis(20), bench.host.domain_destroy(id)).await;
        assert!(hangs.is_err(), "the caller never hears");
        bench.sim.killed().await;
        let later = tokio::time::timeout(Duration::from_millis(20), bench.host.domain_undefine(id)).await;
        assert!(later.is_err() && bench.sim.slow_boot(9).is_err());
        assert_eq!(bench.sim.fired().len(), 1);
        let again = bench.reopen();
        assert_eq!(again.host.domain_state(id).await.expect("known"), DomainState::Off, "the effect had happened");
        assert_eq!(again.host.reservations().await.expect("known"), [id]);
        again.host.domain_start(id).await.expect("starts");
        again.host.domain_shutdown(id).await.expect("asked");
        assert_eq!(again.host.domain_state(id).await.expect("known"), DomainState::Running, "it is still stubborn");
        assert_eq!(again.sim.boots(id), 2);
        again
    });
    assert_eq!(bench.sim.violations(), [""; 0]);
}

#[test]
fn a_fault_before_leaves_everything_and_a_fault_after_leaves_the_effect() {
    let bench = Bench::new(Profile::H100);
    let (sim, host, gpu) = (&bench.sim, &bench.host, bench.specs[0].pci_address.clone().expect("a GPU"));
    block_on(async {
        let bind = Target::Operation(Operation::FunctionBind);
        for (when, kind, expected, driver) in [
            (When::Before, FaultKind::IoError, "io_error", "nvidia"),
            (When::Before, FaultKind::DiskFull, "disk_full", "nvidia"),
            (When::After, FaultKind::IoError, "io_error", "vfio-pci"),
        ] {
            sim.arm(fault(bind, when, kind));
            assert_eq!(code(host.function_bind(&gpu).await), expected);
            assert_eq!(host.function_state(&gpu).await.expect("known").driver, driver);
        }
        assert_eq!(sim.fired().len(), 3);
        host.function_bind(&gpu).await.expect("the fault is over");

        sim.arm(Fault { times: 2, ..fault(Target::Number(2), When::Before, FaultKind::IoError) });
        host.vfio_load().await.expect("the first one");
        assert_eq!(code(host.vfio_load().await), "io_error");
        assert_eq!(code(host.memory_free().await), "io_error");
        host.vfio_load().await.expect("it struck twice");

        sim.arm(fault(Target::Checkpoint { phase: "readiness", point: Point::Done }, When::Before, FaultKind::DiskFull));
        host.checkpoint("readiness", Point::Begin).await.expect("another point");
        host.vfio_load().await.expect("works");
        assert_eq!(code(host.checkpoint("readiness", Point::Done).await), "disk_full");
        let calls = sim.calls();
        let last: Vec<_> =
            calls[calls.len() - 3..].iter().map(|call| (call.phase, call.operation, call.subject.as_str())).collect();
        assert_eq!(
            last,
            [
                ("readiness", Operation::Checkpoint, "readiness begin"),
                ("readiness", Operation::VfioLoad, ""),
                ("readiness", Operation::Checkpoint, "readiness done"),
            ]
        );
        assert!(calls.iter().zip(1..).all(|(call, number)| call.number == number));

        sim.arm(fault(Target::Operation(Operation::VfioLoad), When::Before, FaultKind::Kill));
        sim.disarm();
        host.vfio_load().await.expect("disarmed");
    });
}

#[test]
fn work_on_files_fails_like_everything_else() {
    let bench = Bench::new(Profile::H100);
    let id = AllocationId::generate();
    block_on(async {
        bench.sim.arm(fault(Target::Operation(Operation::InstanceMake), When::After, FaultKind::DiskFull));
        assert_eq!(code(bench.host.instance_make(id).await), "disk_full");
        assert_eq!(bench.sim.leftovers().instances, [id.to_string()]);
        assert_eq!(code(bench.host.seed_build(id).await), "seed_failed", "there is no user-data");
    });
}

#[test]
fn what_belongs_to_a_running_guest_is_not_touched_and_trying_is_noticed() {
    let bench = Bench::new(Profile::H100);
    let (sim, host, spec, id) = (&bench.sim, &bench.host, &bench.specs[0], AllocationId::generate());
    let (gpu, drive) = (spec.pci_address.clone().expect("a GPU"), DriveRef::of(spec));
    block_on(async {
        bench.start(0, id).await.expect("starts");
        host.function_bind(&gpu).await.expect("already there");
        assert_eq!(code(host.function_give_back(&gpu).await), "function_not_given_back");
        assert_eq!(code(host.drive_check(&drive).await), "drive_in_use");
        assert_eq!(code(host.domain_undefine(id).await), "domain_undefine_failed");
        assert_eq!(sim.violations(), [""; 0], "asking is no crime");

        assert_eq!(code(sim.drive_write_image(&drive, &image()).await), "drive_in_use");
        assert_eq!(code(sim.drive_wipe(&drive).await), "drive_in_use");
        assert_eq!(code(host.function_reset(&gpu).await), "function_in_use");
        assert_eq!(sim.violations().len(), 3, "{:?}", sim.violations());

        let thief = AllocationId::generate();
        assert_eq!(code(host.domain_define(&bench.domain(0, thief)).await), "instance_missing");
        host.instance_make(thief).await.expect("made");
        host.domain_define(&bench.domain(0, thief)).await.expect("only said");
        assert_eq!(code(host.domain_start(thief).await), "device_busy");
        let violations = sim.violations();
        assert!(violations.iter().any(|violation| violation.contains("which the running guest")), "{violations:?}");
    });
    let violations = sim.violations();
    assert_eq!(bench.reopen().sim.violations(), violations, "they are never forgotten");
}

#[test]
fn what_no_lease_names_is_touched_in_vain_or_noticed() {
    let bench = Bench::new(Profile::H100);
    let id = AllocationId::generate();
    block_on(bench.start_unleased(1, id)).expect("starts all the same");
    let violations = bench.sim.violations();
    for what in ["binding of", "writing of drive", "starts with slot 1 that is not leased to it"] {
        assert!(violations.iter().any(|violation| violation.contains(what)), "{what}: {violations:?}");
    }
    // The functions of a slot that was leased before may be managed, but not used.
    let bench = Bench::new(Profile::H100);
    let gpu = bench.specs[1].pci_address.clone().expect("a GPU");
    block_on(async {
        bench.start(1, id).await.expect("starts");
        bench.release(1, id).await.expect("goes");
        bench.sim.unbind_outside(&gpu).expect("known");
        assert_eq!(bench.host.function_state(&gpu).await.expect("known").driver, "nvidia");
        bench.host.function_bind(&gpu).await.expect("bound");
        assert_eq!(bench.sim.violations(), [""; 0]);
        bench.host.function_reset(&gpu).await.expect("reset");
        assert_eq!(bench.sim.violations().len(), 1);
    });
}

#[test]
fn the_next_tenant_finds_nothing_of_the_last_one_or_it_is_noticed() {
    let bench = Bench::new(Profile::Mi300x);
    let (host, first, second) = (&bench.host, AllocationId::generate(), AllocationId::generate());
    block_on(async {
        bench.start(0, first).await.expect("starts");
        host.domain_destroy(first).await.expect("off");
        host.domain_undefine(first).await.expect("gone");
        host.reservation_remove(first).await.expect("gone");
        let lease = bench.lease(0, first);
        host.lease_drop(lease.slot_id, lease.holder()).await.expect("dropped without a wipe");
        let lease = Lease { lease_epoch: 2, ..bench.lease(0, second) };
        host.lease_take(&lease, false).await.expect("taken");
        bench.start_unleased(0, second).await.expect("starts");
    });
    let violations = bench.sim.violations();
    assert_eq!(violations.len(), 3, "GPU, fabric and drive: {violations:?}");
    assert!(violations.iter().all(|violation| violation.contains(&first.to_string())));
}

#[test]
fn a_drive_is_the_one_that_is_meant_and_free() {
    let bench = Bench::new(Profile::H100);
    let (sim, spec) = (&bench.sim, &bench.specs[0]);
    let drive = DriveRef::of(spec);
    block_on(async {
        let info = sim.drive_check(&drive).await.expect("good");
        assert_eq!((info.name.as_str(), info.size_bytes), ("nvme0n1", 3_840_755_982_336));
        let other = DriveRef { serial: bench.specs[1].nvme_serial.clone(), ..drive.clone() };
        assert_eq!(code(sim.drive_check(&other).await), "drive_serial_mismatch");
        let nowhere = DriveRef { path: "/dev/disk/by-id/nvme-none".to_owned(), ..drive.clone() };
        assert_eq!(code(sim.drive_check(&nowhere).await), "drive_missing");

        bench.host.lease_take(&bench.lease(0, AllocationId::generate()), false).await.expect("taken");
        assert_eq!(code(sim.drive_write_image(&drive, &image()).await), "image_missing");
        sim.set_mounted(&drive.serial, Some("/srv")).expect("known");
        assert_eq!(sim.inventory(String::new()).namespaces[0].used_by, ["mounted at /srv"]);
        assert_eq!(code(sim.drive_check(&drive).await), "drive_in_use");
        assert_eq!(sim.violations(), [""; 0]);
        assert_eq!(code(sim.drive_wipe(&drive).await), "drive_in_use");
        assert_eq!(sim.violations().len(), 1);
        sim.set_mounted(&drive.serial, None).expect("known");

        let proof = sim.drive_wipe(&drive).await.expect("wiped");
        assert!(proof.is_clean() && proof.method == WipeMethod::Discard && proof.bytes == info.size_bytes);
        assert_eq!((proof.canaries_written, proof.canaries_gone, proof.samples, proof.samples_clean), (64, 64, 256, 256));
        sim.fail_drive(&drive.serial).expect("known");
        let proof = sim.drive_wipe(&drive).await.expect("tried");
        assert!(proof.status == WipeStatus::Failed && !proof.is_clean());
        sim.repair_drive(&drive.serial).expect("known");
        assert!(sim.drive_wipe(&drive).await.expect("wiped").is_clean());
    });
}

#[test]
fn a_reboot_stops_guests_and_gives_functions_back_to_the_host() {
    let bench = Bench::new(Profile::H100);
    let (id, gpu) = (AllocationId::generate(), bench.specs[0].pci_address.clone().expect("a GPU"));
    block_on(bench.start(0, id)).expect("starts");
    SimHost::reboot(bench.folder.path()).expect("reboots");
    let bench = bench.reopen();
    let (sim, host) = (&bench.sim, &bench.host);
    block_on(async {
        assert_eq!(host.domains().await.expect("known"), [(id, DomainState::Off)]);
        assert_eq!(host.function_state(&gpu).await.expect("known").driver, "nvidia");
        assert_eq!(sim.leftovers().functions.len(), 2, "what the guest left may still be there");
        assert_eq!(code(host.domain_start(id).await), "domain_start_failed");
        assert_eq!(sim.health().vfio_modules, [""; 0]);
        assert_eq!(code(host.function_bind(&gpu).await), "function_not_bound");
        host.vfio_load().await.expect("loaded");
        assert_eq!(sim.health().vfio_modules.len(), 4);
        for address in bench.specs[0].functions() {
            host.function_bind(address).await.expect("bound");
        }
        host.domain_start(id).await.expect("starts");
        assert_eq!(sim.boots(id), 2);
        sim.vfio_at_boot(true).expect("set");
    });
    SimHost::reboot(bench.folder.path()).expect("reboots");
    assert_eq!(bench.reopen().sim.health().vfio_modules.len(), 4);
}

#[test]
fn a_function_says_what_it_is() {
    for (profile, gib) in [(Profile::H100, 128), (Profile::Mi300x, 256)] {
        let bench = Bench::new(profile);
        let mut groups = BTreeSet::new();
        block_on(async {
            for address in bench.specs.iter().flat_map(SlotSpec::functions) {
                let state = bench.host.function_state(address).await.expect("known");
                assert!(state.bars_assigned && state.can_reset && state.group_members.is_empty(), "{state:?}");
                groups.insert(state.iommu_group);
                let is_gpu = bench.specs.iter().any(|spec| spec.pci_address.as_ref() == Some(address));
                assert_eq!(is_gpu, state.bar_bytes >> 30 == gib, "{state:?}");
            }
            assert_eq!(groups.len(), 16, "a group each");
            let nobody = "0000:00:1f.7".parse().expect("an address");
            assert_eq!(code(bench.host.function_state(&nobody).await), "function_missing");
            let gpu = bench.specs[0].pci_address.clone().expect("a GPU");
            bench.sim.fail_reset(&gpu).expect("known");
            assert_eq!(bench.host.function_reset(&gpu).await.expect("tried"), Reset::Failed);
            bench.sim.repair_reset(&gpu).expect("known");
            assert_eq!(bench.host.function_reset(&gpu).await.expect("tried"), Reset::Done);
        });
    }
}

#[test]
fn a_missing_program_comes_with_its_package() {
    let bench = Bench::new(Profile::H100);
    let missing = || {
        let commands = bench.sim.inventory(String::new()).prerequisites.required_commands;
        commands.into_iter().filter(|command| command.path.is_none()).map(|command| command.name).collect::<Vec<_>>()
    };
    assert_eq!(missing(), [""; 0]);
    bench.sim.remove_command("virsh").expect("set");
    assert_eq!(missing(), ["virsh"]);
    block_on(bench.host.packages_install(&["libvirt-clients"])).expect("installed");
    assert_eq!(missing(), [""; 0]);
    let listed = bench.sim.packages(&gpuaas_contract::task::package_list::Params::default()).packages;
    assert!(listed.iter().any(|package| package.name == "libvirt-clients"));
}

#[test]
fn an_image_is_looked_at_whoever_brought_it() {
    let bench = Bench::new(Profile::H100);
    let host = &bench.host;
    block_on(async {
        let format = gpuaas_contract::guest::ImageFormat::Qcow2;
        let wanted = wanted(None, Some("https://images.example/u.img"));
        assert_eq!(code(host.image_verify(&image(), format).await), "image_missing");
        assert!(!host.image_fetch(&wanted, &|_, _| ()).await.expect("fetched").was_cached);
        assert!(host.image_fetch(&wanted, &|_, _| ()).await.expect("there").was_cached);
        assert!(host.image_verify(&image(), format).await.expect("good") > 1 << 30);
        bench.sim.spoil_image(&image()).expect("set");
        assert_eq!(code(host.image_verify(&image(), format).await), "image_digest_mismatch");
    });
}

#[test]
fn an_operation_that_changes_nothing_writes_nothing() {
    let bench = Bench::new(Profile::H100);
    let file = bench.folder.path().join("machine.json");
    block_on(async {
        bench.host.vfio_load().await.expect("loaded already");
        bench.host.domains().await.expect("known");
        assert!(!file.exists());
        let wanted = wanted(Some("ubuntu.img"), None);
        bench.host.image_fetch(&wanted, &|_, _| ()).await.expect("fetched");
        assert!(file.exists());
        std::fs::remove_file(&file).expect("removed");
        bench.host.image_fetch(&wanted, &|_, _| ()).await.expect("there");
        assert!(!file.exists());
    });
}
