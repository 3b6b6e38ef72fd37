//! The host operations for guests: one method per operation, the same on this machine and on the simulated one.
//!
//! The agent's slice tasks use only these methods. Every operation is idempotent, and every one that removes something succeeds
//! if it is already gone.

mod types;

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::{DriveProof, Reset};
use gpuaas_contract::guest::ImageFormat;
use gpuaas_contract::id::{AllocationId, SlotId};
use gpuaas_contract::slice::{Holder, PciAddress};
use gpuaas_contract::task::slice_vm_provision::Performance;
use tokio_util::sync::CancellationToken;

pub use types::*;

use crate::image::ImageGuard;
use crate::sim::Operation;
use crate::{
    Host, HostError, RealHost, cloud_init, console, dnsmasq, drive, instance, kernel, lease, libvirt, packages, ssh, vfio,
};

/// Receives the progress of a long operation: done and total.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Runs a blocking call on its own thread.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, HostError> + Send + 'static,
) -> Result<T, HostError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => Err(HostError::because("host_error", "a thread of the agent ended", &error)),
    }
}

impl Host {
    /// Returns the paths and limits for guests.
    pub fn layout(&self) -> &Layout {
        match self {
            Self::Real(real) => real.layout(),
            Self::Sim(sim) => sim.layout(),
        }
    }

    /// Marks a point between two steps of a task. It does nothing, except that a simulated host can be told to fail here.
    pub async fn checkpoint(&self, phase: &'static str, point: Point) -> Result<(), HostError> {
        match self {
            Self::Real(_) => Ok(()),
            Self::Sim(sim) => sim.checkpoint(phase, point).await,
        }
    }

    /// Takes a lease of a slot: exclusive, durable, and never with a lower epoch than the slot has seen. Taking it again for the
    /// same task changes nothing. With `again`, it also accepts, for cleaning up, an epoch that its holder has given back.
    pub async fn lease_take(&self, lease: &Lease, again: bool) -> Result<(), HostError> {
        let (folder, lease) = (self.layout().leases.clone(), lease.clone());
        let subject = lease.slot_id.to_string();
        let call = move || lease::take(&folder, &lease, again);
        self.files(Operation::LeaseTake, subject, call).await
    }

    /// Records a change of a held lease.
    pub async fn lease_note(&self, lease: &Lease) -> Result<(), HostError> {
        let (folder, lease) = (self.layout().leases.clone(), lease.clone());
        let subject = lease.slot_id.to_string();
        self.files(Operation::LeaseNote, subject, move || lease::note(&folder, &lease)).await
    }

    /// Drops the lease of a slot. A lease of another holder is never touched.
    pub async fn lease_drop(&self, slot_id: SlotId, holder: Holder) -> Result<(), HostError> {
        let folder = self.layout().leases.clone();
        self.files(Operation::LeaseDrop, slot_id.to_string(), move || lease::drop_lease(&folder, slot_id, holder)).await
    }

    /// Returns all leases. A lease that cannot be read is an error, because its holder is unknown.
    pub async fn leases(&self) -> Result<Vec<Lease>, HostError> {
        let folder = self.layout().leases.clone();
        self.files(Operation::Leases, String::new(), move || lease::list(&folder)).await
    }

    /// Returns the highest epoch that each slot has seen, with its functions: the devices that the agent manages.
    pub async fn fences(&self) -> Result<Vec<Fence>, HostError> {
        let folder = self.layout().leases.clone();
        self.files(Operation::Fences, String::new(), move || lease::fences(&folder)).await
    }

    /// Installs Debian packages, if the host's owner allows it.
    pub async fn packages_install(&self, names: &[&'static str]) -> Result<(), HostError> {
        match self {
            Self::Real(_) => packages::install(names).await,
            Self::Sim(sim) => sim.packages_install(names).await,
        }
    }

    /// Loads the VFIO modules, if they are not loaded.
    pub async fn vfio_load(&self) -> Result<(), HostError> {
        match self {
            Self::Real(_) => kernel::load_vfio().await,
            Self::Sim(sim) => sim.vfio_load().await,
        }
    }

    /// Returns the memory that is free for guests.
    pub async fn memory_free(&self) -> Result<FreeMemory, HostError> {
        match self {
            Self::Real(_) => blocking(kernel::memory_free).await,
            Self::Sim(sim) => sim.memory_free().await,
        }
    }

    /// Returns the state of a function and its driver.
    pub async fn function_state(&self, address: &PciAddress) -> Result<FunctionState, HostError> {
        match self {
            Self::Real(real) => {
                let (sys, address) = (real.sys(), address.clone());
                blocking(move || vfio::state(&sys, &address)).await
            }
            Self::Sim(sim) => sim.function_state(address).await,
        }
    }

    /// Binds a function to `vfio-pci`, whatever driver had it before.
    pub async fn function_bind(&self, address: &PciAddress) -> Result<(), HostError> {
        match self {
            Self::Real(real) => {
                let (sys, address) = (real.sys(), address.clone());
                blocking(move || vfio::bind(&sys, &address)).await
            }
            Self::Sim(sim) => sim.function_bind(address).await,
        }
    }

    /// Returns a function to the host's default driver.
    pub async fn function_give_back(&self, address: &PciAddress) -> Result<(), HostError> {
        match self {
            Self::Real(real) => {
                let (sys, address) = (real.sys(), address.clone());
                blocking(move || vfio::give_back(&sys, &address)).await
            }
            Self::Sim(sim) => sim.function_give_back(address).await,
        }
    }

    /// Resets a function, so that nothing of a guest stays in it.
    pub async fn function_reset(&self, address: &PciAddress) -> Result<Reset, HostError> {
        match self {
            Self::Real(real) => {
                let (sys, address) = (real.sys(), address.clone());
                blocking(move || vfio::reset(&sys, &address)).await
            }
            Self::Sim(sim) => sim.function_reset(address).await,
        }
    }

    /// Brings an image into the host's image store, by digest. It continues if the caller is cancelled, and the next caller finds
    /// it.
    pub async fn image_fetch(&self, wanted: &ImageWanted, progress: Progress<'_>) -> Result<ImageStored, HostError> {
        match self {
            Self::Real(real) => real.images().fetch(wanted, progress).await,
            Self::Sim(sim) => sim.image_fetch(wanted).await,
        }
    }

    /// Protects a stored image from eviction while the guard lives.
    pub fn image_hold(&self, sha256: &Digest) -> Option<ImageGuard> {
        match self {
            Self::Real(real) => Some(real.images().hold(sha256)),
            Self::Sim(_) => None,
        }
    }

    /// Reads the whole stored image again and checks its digest, its declared format, and that it does not refer to other files.
    /// Returns the size of the disk inside.
    pub async fn image_verify(&self, sha256: &Digest, format: ImageFormat) -> Result<u64, HostError> {
        match self {
            Self::Real(real) => real.images().verify(sha256, format).await,
            Self::Sim(sim) => sim.image_verify(sha256, format).await,
        }
    }

    /// Creates the guest's folder.
    pub async fn instance_make(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        let folder = self.layout().instances.clone();
        self.files(Operation::InstanceMake, allocation_id.to_string(), move || instance::make(&folder, allocation_id)).await
    }

    /// Removes the guest's folder with its content, and nothing else, even if links are created there at the same time.
    pub async fn instance_remove(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        let folder = self.layout().instances.clone();
        self.files(Operation::InstanceRemove, allocation_id.to_string(), move || instance::remove(&folder, allocation_id)).await
    }

    /// Lists the guests with a folder.
    pub async fn instances(&self) -> Result<Vec<AllocationId>, HostError> {
        let folder = self.layout().instances.clone();
        self.files(Operation::Instances, String::new(), move || instance::list(&folder)).await
    }

    /// Writes a file of the guest's folder atomically.
    pub async fn instance_write(&self, allocation_id: AllocationId, file: InstanceFile, bytes: Vec<u8>) -> Result<(), HostError> {
        let folder = self.layout().instances.clone();
        let subject = format!("{allocation_id}/{}", file.name());
        self.files(Operation::InstanceWrite, subject, move || instance::write(&folder, allocation_id, file, &bytes)).await
    }

    /// Reads a file of the guest's folder, or returns `None` if it does not exist.
    pub async fn instance_read(&self, allocation_id: AllocationId, file: InstanceFile) -> Result<Option<Vec<u8>>, HostError> {
        let folder = self.layout().instances.clone();
        let subject = format!("{allocation_id}/{}", file.name());
        self.files(Operation::InstanceRead, subject, move || instance::read(&folder, allocation_id, file)).await
    }

    /// Creates the seed disk from the seed files in the guest's folder.
    pub async fn seed_build(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(real) => cloud_init::build_seed(&real.layout().instances, allocation_id).await,
            Self::Sim(sim) => sim.seed_build(allocation_id).await,
        }
    }

    /// Reserves an address for a guest.
    pub async fn reservation_add(&self, reservation: &Reservation) -> Result<(), HostError> {
        match self {
            Self::Real(real) => dnsmasq::add(real.layout(), reservation).await,
            Self::Sim(sim) => sim.reservation_add(reservation).await,
        }
    }

    /// Removes a guest's reservation.
    pub async fn reservation_remove(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(real) => dnsmasq::remove(real.layout(), allocation_id).await,
            Self::Sim(sim) => sim.reservation_remove(allocation_id).await,
        }
    }

    /// Lists the guests with a reservation.
    pub async fn reservations(&self) -> Result<Vec<AllocationId>, HostError> {
        match self {
            Self::Real(real) => {
                let layout = real.layout().clone();
                blocking(move || dnsmasq::list(&layout)).await
            }
            Self::Sim(sim) => sim.reservations().await,
        }
    }

    /// Checks that a drive is the right one and not in use.
    pub async fn drive_check(&self, drive: &DriveRef) -> Result<DriveInfo, HostError> {
        match self {
            Self::Real(real) => {
                let (machine, drive) = (real.machine_paths(), drive.clone());
                blocking(move || drive::check(&machine, &drive)).await
            }
            Self::Sim(sim) => sim.drive_check(drive).await,
        }
    }

    /// Writes a stored image to a drive, after the same check.
    pub async fn drive_write_image(
        &self,
        drive: &DriveRef,
        image: (&Digest, ImageFormat),
        progress: Progress<'_>,
        stop: &CancellationToken,
    ) -> Result<(), HostError> {
        match self {
            Self::Real(real) => {
                let source = real.images().path_of(image.0);
                drive::write_image(&real.machine_paths(), drive, (&source, image.1), progress, stop).await
            }
            Self::Sim(sim) => sim.drive_write_image(drive, image.0).await,
        }
    }

    /// Writes canaries to a drive, wipes it with the best method it supports, and checks that the canaries and everything else
    /// are gone.
    pub async fn drive_wipe(&self, drive: &DriveRef, progress: Progress<'_>) -> Result<DriveProof, HostError> {
        match self {
            Self::Real(real) => drive::wipe(&real.machine_paths(), drive, progress).await,
            Self::Sim(sim) => sim.drive_wipe(drive).await,
        }
    }

    /// Defines a guest in the hypervisor.
    pub async fn domain_define(&self, domain: &DomainSpec) -> Result<(), HostError> {
        match self {
            Self::Real(real) => libvirt::define(real.layout(), domain).await,
            Self::Sim(sim) => sim.domain_define(domain).await,
        }
    }

    /// Starts a defined guest.
    pub async fn domain_start(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(_) => libvirt::start(allocation_id).await,
            Self::Sim(sim) => sim.domain_start(allocation_id).await,
        }
    }

    /// Asks a guest to shut down. It may ignore that.
    pub async fn domain_shutdown(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(_) => libvirt::shutdown(allocation_id).await,
            Self::Sim(sim) => sim.domain_shutdown(allocation_id).await,
        }
    }

    /// Waits until a guest is off, or the time is up.
    pub async fn domain_wait_off(&self, allocation_id: AllocationId, patience: Duration) -> Result<DomainState, HostError> {
        let until = tokio::time::Instant::now() + patience;
        loop {
            let state = self.domain_state(allocation_id).await?;
            if state != DomainState::Running || tokio::time::Instant::now() >= until {
                return Ok(state);
            }
            // libvirt reports changes only over an open connection; polling twice a second for a minute or two is cheaper.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Powers a guest off.
    pub async fn domain_destroy(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(_) => libvirt::destroy(allocation_id).await,
            Self::Sim(sim) => sim.domain_destroy(allocation_id).await,
        }
    }

    /// Removes a guest from the hypervisor.
    pub async fn domain_undefine(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        match self {
            Self::Real(_) => libvirt::undefine(allocation_id).await,
            Self::Sim(sim) => sim.domain_undefine(allocation_id).await,
        }
    }

    /// Returns whether the hypervisor knows a guest, and whether it runs.
    pub async fn domain_state(&self, allocation_id: AllocationId) -> Result<DomainState, HostError> {
        match self {
            Self::Real(_) => libvirt::state(allocation_id).await,
            Self::Sim(sim) => sim.domain_state(allocation_id).await,
        }
    }

    /// Lists our guests in the hypervisor.
    pub async fn domains(&self) -> Result<Vec<(AllocationId, DomainState)>, HostError> {
        match self {
            Self::Real(_) => libvirt::list().await,
            Self::Sim(sim) => sim.domains().await,
        }
    }

    /// Asks a guest once whether it is ready, for a few seconds at most. No answer is a valid result.
    pub async fn guest_ask(&self, guest: &GuestAccess) -> Result<GuestAnswer, HostError> {
        match self {
            Self::Real(real) => ssh::ask(&real.layout().instances, guest).await,
            Self::Sim(sim) => sim.guest_ask(guest).await,
        }
    }

    /// Measures what a ready guest sees and how fast its disk is.
    pub async fn guest_measure(&self, guest: &GuestAccess) -> Result<Performance, HostError> {
        match self {
            Self::Real(real) => ssh::measure(&real.layout().instances, guest).await,
            Self::Sim(sim) => sim.guest_measure(guest).await,
        }
    }

    /// Reads a guest's console from this position on, up to a limit.
    pub async fn console_read(
        &self,
        allocation_id: AllocationId,
        from: ConsoleFrom,
        most: usize,
    ) -> Result<ConsolePart, HostError> {
        let folder = self.layout().instances.clone();
        let subject = allocation_id.to_string();
        self.files(Operation::ConsoleRead, subject, move || console::read(&folder, allocation_id, from, most)).await
    }

    /// Trims a guest's console to the budget: the oldest part is removed.
    pub async fn console_trim(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        let (folder, budget) = (self.layout().instances.clone(), self.layout().console_bytes);
        let subject = allocation_id.to_string();
        self.files(Operation::ConsoleTrim, subject, move || console::trim(&folder, allocation_id, budget)).await
    }

    /// Runs work on our own files. The code is the same on both hosts, and the simulated one can be told to fail here.
    pub(crate) async fn files<T: Send + 'static>(
        &self,
        operation: Operation,
        subject: String,
        call: impl FnOnce() -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        match self {
            Self::Real(_) => blocking(call).await,
            Self::Sim(sim) => sim.operate(operation, subject, |_| call()).await,
        }
    }
}

impl RealHost {
    fn sys(&self) -> std::path::PathBuf {
        self.machine_paths().sys
    }
}
