//! Guests of the simulated host: defined, running, queried.

use std::path::PathBuf;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::slice_vm_provision::Performance;

use super::machine::{Content, Domain, Machine};
use super::{Operation, SimHost, console};
use crate::guests::{DomainSpec, DomainState, DriveRef, GuestAccess, GuestAnswer, InstanceFile};
use crate::{HostError, lease};

fn state_of(domain: Option<&Domain>) -> DomainState {
    match domain {
        None => DomainState::Absent,
        Some(domain) if domain.running => DomainState::Running,
        Some(_) => DomainState::Off,
    }
}

impl Machine {
    /// Checks that a starting guest finds clean devices. Whatever the control plane assumed, this is where a leak between tenants
    /// would happen.
    fn check_clean(&mut self, id: AllocationId, domain: &Domain) {
        for address in domain.functions() {
            let before = self.functions.get(address).and_then(|function| function.tainted_by);
            if let Some(before) = before.filter(|before| *before != id) {
                self.violation(format!("{id} gets {address}, which was not reset after {before}"));
            }
        }
        for slot in &domain.slots {
            let contents = self.drives.get(&slot.nvme_serial).map(|drive| drive.contents.clone()).unwrap_or_default();
            for content in contents {
                if let Content::Guest(before) = content
                    && before != id
                {
                    self.violation(format!("{id} gets drive {} with data of {before}", slot.nvme_serial));
                }
            }
        }
    }

    /// Marks the devices of a running guest as used.
    fn taint(&mut self, id: AllocationId, domain: &Domain) {
        for address in domain.functions() {
            if let Some(function) = self.functions.get_mut(address) {
                function.tainted_by = Some(id);
            }
        }
        for slot in &domain.slots {
            let drive = self.drives.entry(slot.nvme_serial.clone()).or_default();
            if !drive.contents.contains(&Content::Guest(id)) {
                drive.contents.push(Content::Guest(id));
            }
        }
    }
}

impl SimHost {
    fn instance(&self, id: AllocationId) -> PathBuf {
        self.layout().instances.join(id.to_string())
    }

    fn has_seed(&self, id: AllocationId) -> bool {
        self.instance(id).join(InstanceFile::Seed.name()).is_file()
    }

    /// Checks that a guest has only what is leased to it.
    fn check_domain_leased(&self, machine: &mut Machine, id: AllocationId, domain: &Domain) {
        let Ok(leases) = lease::list(&self.layout().leases) else { return };
        for slot in &domain.slots {
            if !leases.iter().any(|lease| lease.allocation_id == id && lease.spec == *slot) {
                machine.violation(format!("{id} starts with slot {} that is not leased to it", slot.slot_index));
            }
        }
    }

    /// Checks that the devices of a guest exist and are bound to `vfio-pci`.
    fn check_devices(&self, machine: &Machine, domain: &Domain) -> Result<(), HostError> {
        if let Some(address) = domain.functions().find(|address| !machine.is_resting(address)) {
            let driver = machine.driver(address.as_str());
            let driver = if driver.is_empty() { "no driver" } else { driver };
            return Err(HostError::new("domain_start_failed", format!("{address} is held by {driver} and not by vfio-pci")));
        }
        for slot in &domain.slots {
            self.drive_at(&DriveRef::of(slot)).map_err(|error| HostError { code: "domain_start_failed", ..error })?;
        }
        Ok(())
    }

    pub(crate) async fn domain_define(&self, spec: &DomainSpec) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            if !self.instance(spec.allocation_id).is_dir() {
                return Err(HostError::new("instance_missing", format!("{} has no folder", spec.allocation_id)));
            }
            let new = Domain::new(spec);
            match machine.domains.get_mut(&spec.allocation_id) {
                Some(known) if known.is(&new) => {}
                Some(known) if known.running => {
                    let message = format!("{} runs and cannot become another", spec.allocation_id);
                    return Err(HostError::new("domain_define_failed", message));
                }
                known => {
                    let boots = known.map_or(0, |known| known.boots);
                    machine.domains.insert(spec.allocation_id, Domain { boots, ..new });
                }
            }
            Ok(())
        };
        self.operate(Operation::DomainDefine, spec.allocation_id.to_string(), effect).await
    }

    pub(crate) async fn domain_start(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            let Some(domain) = machine.domains.get(&id).cloned() else {
                return Err(HostError::new("domain_missing", format!("the hypervisor knows no guest {id}")));
            };
            if domain.running {
                return Ok(());
            }
            self.check_domain_leased(machine, id, &domain);
            if let Some((rival, what)) = machine.rival(id, &domain) {
                machine.violation(format!("{id} starts with {what}, which the running guest {rival} has"));
                return Err(HostError::new("device_busy", format!("{what} belongs to the running guest {rival}")));
            }
            let mounted = |serial: &String| machine.drives.get(serial).is_some_and(|drive| drive.mounted_at.is_some());
            if let Some(serial) = domain.slots.iter().map(|slot| &slot.nvme_serial).find(|serial| mounted(serial)) {
                machine.violation(format!("{id} starts with drive {serial}, which is mounted"));
                return Err(HostError::new("device_busy", format!("drive {serial} is mounted")));
            }
            self.check_devices(machine, &domain)?;
            if !self.has_seed(id) {
                return Err(HostError::new("domain_start_failed", format!("{id} has no seed disk")));
            }
            machine.check_clean(id, &domain);
            console::append(&self.instance(id), &console::boot(self.profile(), &domain))
                .map_err(|error| HostError::because("domain_start_failed", "the console cannot be written", &error))?;
            machine.taint(id, &domain);
            let started = Domain { running: true, boots: domain.boots + 1, boot_id: self.boot_id(), asks: 0, ..domain };
            machine.domains.insert(id, started);
            Ok(())
        };
        self.operate(Operation::DomainStart, id.to_string(), effect).await
    }

    pub(crate) async fn domain_shutdown(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            let listens = !machine.stubborn.contains(&id);
            if let Some(domain) = machine.domains.get_mut(&id).filter(|domain| domain.running && listens) {
                domain.running = false;
                // Its folder may be gone; the guest still ends.
                let _ = console::append(&self.instance(id), console::SHUTDOWN);
            }
            Ok(())
        };
        self.operate(Operation::DomainShutdown, id.to_string(), effect).await
    }

    pub(crate) async fn domain_destroy(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            if let Some(domain) = machine.domains.get_mut(&id) {
                domain.running = false;
            }
            Ok(())
        };
        self.operate(Operation::DomainDestroy, id.to_string(), effect).await
    }

    pub(crate) async fn domain_undefine(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            if machine.domains.get(&id).is_some_and(|domain| domain.running) {
                return Err(HostError::new("domain_undefine_failed", format!("{id} runs; stop it first")));
            }
            machine.domains.remove(&id);
            Ok(())
        };
        self.operate(Operation::DomainUndefine, id.to_string(), effect).await
    }

    pub(crate) async fn domain_state(&self, id: AllocationId) -> Result<DomainState, HostError> {
        let effect = |machine: &mut Machine| Ok(state_of(machine.domains.get(&id)));
        self.operate(Operation::DomainState, id.to_string(), effect).await
    }

    pub(crate) async fn domains(&self) -> Result<Vec<(AllocationId, DomainState)>, HostError> {
        let effect = |machine: &mut Machine| {
            let domains = machine.domains.iter().map(|(id, domain)| (*id, state_of(Some(domain))));
            Ok(domains.collect())
        };
        self.operate(Operation::Domains, String::new(), effect).await
    }

    pub(crate) async fn guest_ask(&self, guest: &GuestAccess) -> Result<GuestAnswer, HostError> {
        let effect = |machine: &mut Machine| {
            let silent = machine.silent_asks;
            let reachable = machine.is_reachable(guest) && self.has_seed(guest.allocation_id);
            let Some(domain) = machine.domains.get_mut(&guest.allocation_id).filter(|_| reachable) else {
                return Ok(GuestAnswer::default());
            };
            let answer = GuestAnswer { ssh: domain.asks >= silent, marker: domain.asks > silent };
            // Once it is ready there is nothing to count or to save.
            domain.asks += u32::from(!answer.marker);
            Ok(answer)
        };
        self.operate(Operation::GuestAsk, guest.allocation_id.to_string(), effect).await
    }

    pub(crate) async fn guest_measure(&self, guest: &GuestAccess) -> Result<Performance, HostError> {
        let effect = |machine: &mut Machine| {
            let domain = machine.domains.get(&guest.allocation_id).filter(|_| machine.is_reachable(guest));
            let Some(domain) = domain.filter(|domain| domain.asks > machine.silent_asks) else {
                return Ok(Performance { reason: "the guest does not answer".to_owned(), ..Performance::default() });
            };
            let memory = domain.memory_mib();
            // A little different from guest to guest, and always the same for one.
            let own = u64::from(guest.allocation_id.as_bytes()[15]);
            Ok(Performance {
                measured: true,
                reason: String::new(),
                cpus: domain.slots.iter().map(|slot| slot.vcpu_count).fold(0, u32::saturating_add),
                memory_mib: memory - memory / 64,
                gpus: domain.slots.iter().map(|slot| u32::from(slot.pci_address.is_some())).sum(),
                boot_ms: if domain.kvm { 17_000 + own * 8 } else { 170_000 + own * 80 },
                disk_write_mib_per_s: if domain.kvm { 2_600 + own } else { 240 + own / 8 },
            })
        };
        self.operate(Operation::GuestMeasure, guest.allocation_id.to_string(), effect).await
    }
}

impl Machine {
    /// Returns whether the guest runs and has the queried address.
    fn is_reachable(&self, guest: &GuestAccess) -> bool {
        let reserved = self.reservations.get(&guest.allocation_id);
        let running = self.domains.get(&guest.allocation_id).is_some_and(|domain| domain.running);
        running && reserved.is_some_and(|reserved| reserved.private_ip == guest.address)
    }
}
