//! The cleanup of a guest: the same for a release, a failed provision and a crashed one.
//!
//! It does not depend on what was done before. It reads the leases, which record what may have been touched, removes everything
//! that could exist, and records what it could prove. Leases are dropped last, and only if everything is proven. Failed steps are
//! retried once; what is still wrong then stays, with its lease, for an operator.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuaas_contract::cleanup::{CleanupProof, DriveProof, FunctionProof, NOT_WIPED, RESTING_DRIVER, Reset};
use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::slice::{Blocker, Holder, LeasedSlot, PciAddress};
use gpuaas_host::guests::{DomainState, DriveMark, DriveRef, GuestMark, Lease};
use gpuaas_host::{Host, HostError};

use super::Guests;
use crate::handler::Phases;

/// Attempts to remove a domain before this counts as a failure.
const TRIES: u32 = 5;
/// Attempts of the whole cleanup.
const PASSES: u32 = 2;

/// The parameters of a cleanup.
pub(crate) struct Cleanup<'a> {
    pub(crate) host: &'a Host,
    pub(crate) phases: &'a Phases,
    pub(crate) guests: &'a Guests,
    pub(crate) holder: Holder,
    pub(crate) slots: &'a [LeasedSlot],
    /// Whether to wipe drives that may have been written.
    pub(crate) wipe: bool,
    /// Whether to also clean up after an earlier holder of these slots.
    pub(crate) take_over: bool,
    /// Only what this task took: other tasks of the same allocation are not touched.
    pub(crate) only_of: Option<TaskId>,
}

impl Cleanup<'_> {
    /// Cleans up and returns the proof.
    pub(crate) async fn run(&self) -> (CleanupProof, Vec<HostError>) {
        let mut last = (self.nothing(), Vec::new());
        for pass in 1..=PASSES {
            let (proof, errors) = self.pass().await;
            if errors.is_empty() {
                return (proof, errors);
            }
            for error in &errors {
                tracing::warn!(pass, code = error.code, message = error.message, "cleanup step failed");
            }
            last = (proof, errors);
        }
        last
    }

    fn nothing(&self) -> CleanupProof {
        CleanupProof::nothing(self.holder.allocation_id, self.holder.lease_epoch, self.slots)
    }

    async fn pass(&self) -> (CleanupProof, Vec<HostError>) {
        let (mut proof, mut errors) = (self.nothing(), Vec::new());
        let leases = match self.host.leases().await {
            Ok(leases) => leases,
            Err(error) => return (proof, vec![error]),
        };
        let anothers = |lease: &&Lease| {
            lease.allocation_id == self.holder.allocation_id && self.only_of.is_some_and(|task| task != lease.task_id)
        };
        if let Some(lease) = leases.iter().find(anothers) {
            let message =
                format!("{} is held for the same allocation by {}; that one is left alone", lease.slot_id, lease.task_id);
            return (proof, vec![HostError::new("slot_leased", message)]);
        }
        let leases: Vec<Lease> = leases.into_iter().filter(|lease| self.is_ours(lease)).collect();
        let mut allocations: BTreeSet<AllocationId> = leases.iter().map(|lease| lease.allocation_id).collect();
        allocations.insert(self.holder.allocation_id);

        self.say("the guest", "ending what is left of the guest");
        match self.end_domains(&allocations).await {
            Ok(()) => proof.domain_absent = true,
            Err(error) => {
                // Its devices may be in use: they must not be touched.
                errors.push(error);
                return (proof, errors);
            }
        }
        for (slot, proven) in self.slots.iter().zip(&mut proof.slots) {
            let lease = leases.iter().find(|lease| lease.slot_id == slot.slot_id);
            let had_guest = lease.is_some_and(|lease| lease.guest == GuestMark::Given);
            for (address, reset) in resets(slot) {
                match self.rest_function(address, reset, had_guest).await {
                    Ok(function) => proven.functions.push(function),
                    Err(error) => errors.push(error),
                }
            }
            match self.clean_drive(slot, lease).await {
                Ok(drive) => proven.drive = drive,
                Err(error) => errors.push(error),
            }
        }
        self.say("the rest", "removing seed, keys and reservation");
        let (mut reservations, mut instances) = (true, true);
        for allocation in &allocations {
            for (gone, result) in [
                (&mut reservations, self.host.reservation_remove(*allocation).await),
                (&mut instances, self.host.instance_remove(*allocation).await),
            ] {
                if let Err(error) = result {
                    *gone = false;
                    errors.push(error);
                }
            }
        }
        // The token is only in the guest's folder and in our memory.
        for allocation in &allocations {
            self.guests.forget(*allocation);
        }
        (proof.reservation_absent, proof.instance_absent, proof.telemetry_absent) = (reservations, instances, instances);
        self.drop_leases(&leases, &mut proof, &mut errors).await;
        (proof, errors)
    }

    /// Returns why the leases cannot be dropped.
    fn obstacles(&self, proof: &CleanupProof) -> Vec<Blocker> {
        let mut blockers = proof.blockers(self.slots, false);
        blockers.retain(|blocker| self.wipe || blocker.code != NOT_WIPED);
        blockers
    }

    async fn drop_leases(&self, leases: &[Lease], proof: &mut CleanupProof, errors: &mut Vec<HostError>) {
        if !errors.is_empty() || !self.obstacles(proof).is_empty() {
            return;
        }
        for lease in leases {
            let dropped = self.host.lease_drop(lease.slot_id, lease.holder()).await;
            // A late task of the earlier holder must be refused.
            let fenced = match dropped {
                Ok(()) if lease.holder() != self.holder => self.fence(lease).await,
                other => other,
            };
            if let Err(error) = fenced {
                errors.push(error);
                return;
            }
        }
        // Another holder may have a lease on a slot that was never ours.
        match self.host.leases().await {
            Ok(left) => {
                for slot in &mut proof.slots {
                    slot.lease_absent = left.iter().all(|lease| lease.slot_id != slot.slot_id);
                }
            }
            Err(error) => errors.push(error),
        }
    }

    async fn fence(&self, old: &Lease) -> Result<(), HostError> {
        let Holder { allocation_id, lease_epoch } = self.holder;
        let clean = Lease { allocation_id, lease_epoch, drive: DriveMark::Clean, guest: GuestMark::Never, ..old.clone() };
        self.host.lease_take(&clean, true).await?;
        self.host.lease_drop(old.slot_id, self.holder).await
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        let wanted = self.slots.iter().any(|slot| slot.slot_id == lease.slot_id);
        let earlier = self.take_over && lease.lease_epoch < self.holder.lease_epoch;
        wanted && (lease.holder() == self.holder || earlier)
    }

    /// Removes the domains. The hypervisor may still be busy with a start from before a crash, so a single "no such guest" is not
    /// enough.
    async fn end_domains(&self, allocations: &BTreeSet<AllocationId>) -> Result<(), HostError> {
        for allocation in allocations {
            ensure_absent(self.host, *allocation).await?;
        }
        Ok(())
    }

    async fn rest_function(&self, address: &PciAddress, wanted: Reset, had_guest: bool) -> Result<FunctionProof, HostError> {
        let mut reset = Reset::NotNeeded;
        if had_guest {
            self.say("devices", &format!("resetting {address}"));
            bind(self.host, address).await?;
            reset = match wanted {
                Reset::WithDevice => Reset::WithDevice,
                Reset::Done | Reset::NotNeeded | Reset::Unsupported | Reset::Failed => self.host.function_reset(address).await?,
            };
        }
        let state = self.host.function_state(address).await?;
        if had_guest && state.driver != RESTING_DRIVER {
            return Err(HostError::new(
                "function_not_bound",
                format!("{address} is held by {} and not by vfio-pci", state.driver),
            ));
        }
        Ok(FunctionProof {
            address: address.clone(),
            reset,
            driver: state.driver,
            iommu_group: state.iommu_group,
            group_members: state.group_members,
        })
    }

    async fn clean_drive(&self, slot: &LeasedSlot, lease: Option<&Lease>) -> Result<DriveProof, HostError> {
        let serial = &slot.spec.nvme_serial;
        match lease.map(|lease| lease.drive) {
            // Not ours: it was never touched under this lease, and an existing lease has its own record.
            None | Some(DriveMark::Clean) => Ok(DriveProof::untouched(serial)),
            Some(DriveMark::Dirty) if !self.wipe => Ok(DriveProof::skipped(serial)),
            Some(DriveMark::Dirty) => {
                self.say("drives", &format!("wiping drive {serial}"));
                let phases = self.phases;
                let teller = Teller::new(phases, "cleanup", format!("wiping drive {serial}"));
                self.host.drive_wipe(&DriveRef::of(&slot.spec), &|done, all| teller.tell(done, all)).await
            }
        }
    }

    fn say(&self, step: &str, message: &str) {
        tracing::info!(step, message, "cleanup");
        self.phases.tell("cleanup", message.to_owned());
    }
}

/// Returns the functions of a slot and how each is reset: the GPU's other functions go with the GPU.
fn resets(slot: &LeasedSlot) -> impl Iterator<Item = (&PciAddress, Reset)> {
    slot.spec.functions().map(|address| {
        let with_device = slot.spec.companions.contains(address);
        (address, if with_device { Reset::WithDevice } else { Reset::Done })
    })
}

/// Binds a function to `vfio-pci`, which may not be loaded after a reboot of the host.
pub(crate) async fn bind(host: &Host, address: &PciAddress) -> Result<(), HostError> {
    host.vfio_load().await?;
    host.function_bind(address).await
}

/// Removes a guest from the hypervisor, running or not, and proves it.
pub(crate) async fn ensure_absent(host: &Host, allocation_id: AllocationId) -> Result<(), HostError> {
    let mut absent = 0;
    for attempt in 0..TRIES {
        match host.domain_state(allocation_id).await? {
            DomainState::Absent => {
                absent += 1;
                if absent == 2 {
                    return Ok(());
                }
                continue;
            }
            DomainState::Running => {
                absent = 0;
                host.domain_destroy(allocation_id).await?;
                host.domain_undefine(allocation_id).await?;
            }
            DomainState::Off => {
                absent = 0;
                host.domain_undefine(allocation_id).await?;
            }
        }
        if attempt > 1 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    Err(HostError::new(
        "domain_present",
        format!("the hypervisor does not release the guest of {allocation_id}; check it with virsh"),
    ))
}

/// Reports progress at most once a second.
pub(crate) struct Teller<'a> {
    phases: &'a Phases,
    phase: &'static str,
    what: String,
    last: std::sync::Mutex<Option<std::time::Instant>>,
}

impl<'a> Teller<'a> {
    pub(crate) fn new(phases: &'a Phases, phase: &'static str, what: String) -> Self {
        Self { phases, phase, what, last: std::sync::Mutex::new(None) }
    }

    /// Reports the progress.
    pub(crate) fn tell(&self, done: u64, all: u64) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return;
        }
        *last = Some(std::time::Instant::now());
        let what = &self.what;
        let message = match all {
            0 => format!("{what}: {} MiB", done >> 20),
            all => format!("{what}: {}% of {} MiB", u128::from(done) * 100 / u128::from(all), all >> 20),
        };
        self.phases.tell(self.phase, message);
    }
}
