//! Extra methods of a simulated host for tests and demos, beside its operations.

use gpuaas_contract::Digest;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::PciAddress;

use super::SimHost;
use super::machine::{Content, Drive, Machine};
use crate::{HostError, lease};

/// What is left of guests and tenants. Empty when the host is as clean as a fresh one; functions may stay on `vfio-pci`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Leases, or why they cannot be read.
    pub leases: Vec<String>,
    /// Guests in the hypervisor.
    pub domains: Vec<String>,
    /// Reserved addresses.
    pub reservations: Vec<String>,
    /// Folders of guests, and other entries beside them.
    pub instances: Vec<String>,
    /// Functions that were not reset after a guest had them.
    pub functions: Vec<String>,
    /// Drives that are not empty.
    pub drives: Vec<String>,
    /// Tenants' users and their files.
    pub users: Vec<String>,
}

impl Leftovers {
    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn drive<'a>(machine: &'a mut Machine, serial: &str) -> Result<&'a mut Drive, HostError> {
    machine.drives.get_mut(serial).ok_or_else(|| HostError::new("drive_missing", format!("there is no drive {serial}")))
}

impl SimHost {
    /// Returns the violations of rules that must always hold: devices shared, touched outside a lease, or reused without
    /// cleaning.
    pub fn violations(&self) -> Vec<String> {
        self.operations().look(|machine| machine.violations.clone())
    }

    /// Returns what is left of guests. Reads the folders of leases and guests.
    pub fn leftovers(&self) -> Leftovers {
        let mut leases = match lease::list(&self.layout().leases) {
            Ok(leases) => leases.iter().map(|lease| format!("{} of {}", lease.slot_id, lease.allocation_id)).collect(),
            Err(error) => vec![error.to_string()],
        };
        match lease::machine::find(&self.layout().leases) {
            Ok(lease) => leases.extend(lease.map(|lease| format!("the machine of {}", lease.allocation_id))),
            Err(error) => leases.push(error.to_string()),
        }
        let entries = std::fs::read_dir(&self.layout().instances).into_iter().flatten().flatten();
        let instances = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        self.operations().look(|machine| {
            let functions = machine
                .functions
                .iter()
                .filter_map(|(address, function)| function.tainted_by.map(|guest| format!("{address} after {guest}")));
            let drives = machine.drives.iter().filter(|(_, drive)| !drive.contents.is_empty());
            Leftovers {
                leases,
                domains: machine.domains.keys().map(ToString::to_string).collect(),
                reservations: machine.reservations.keys().map(ToString::to_string).collect(),
                instances,
                functions: functions.collect(),
                drives: drives.map(|(serial, drive)| format!("{serial}: {:?}", drive.contents)).collect(),
                users: machine.users.tenants(),
            }
        })
    }

    /// Returns the content of a drive; empty if there is no such drive.
    pub fn drive_contents(&self, serial: &str) -> Vec<Content> {
        self.operations().look(|machine| machine.drives.get(serial).map(|drive| drive.contents.clone()).unwrap_or_default())
    }

    /// Returns how often a function was reset.
    pub fn resets(&self, address: &PciAddress) -> u64 {
        self.operations().look(|machine| machine.functions.get(address).map_or(0, |function| function.resets))
    }

    /// Returns how often a guest was started.
    pub fn boots(&self, allocation_id: AllocationId) -> u64 {
        self.operations().look(|machine| machine.domains.get(&allocation_id).map_or(0, |domain| domain.boots))
    }

    /// Mounts or unmounts a drive.
    pub fn set_mounted(&self, serial: &str, path: Option<&str>) -> Result<(), HostError> {
        self.operations().change(|machine| {
            drive(machine, serial)?.mounted_at = path.map(str::to_owned);
            Ok(())
        })
    }

    /// Makes wipes of this drive fail.
    pub fn fail_drive(&self, serial: &str) -> Result<(), HostError> {
        self.operations().change(|machine| {
            drive(machine, serial)?.failing = true;
            Ok(())
        })
    }

    /// Repairs a drive.
    pub fn repair_drive(&self, serial: &str) -> Result<(), HostError> {
        self.operations().change(|machine| {
            drive(machine, serial)?.failing = false;
            Ok(())
        })
    }

    /// Makes resets of this function fail.
    pub fn fail_reset(&self, address: &PciAddress) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.function(address)?.reset_fails = true;
            Ok(())
        })
    }

    /// Makes resets of this function work again.
    pub fn repair_reset(&self, address: &PciAddress) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.function(address)?.reset_fails = false;
            Ok(())
        })
    }

    /// Removes a function from `vfio-pci`, like an external program.
    pub fn unbind_outside(&self, address: &PciAddress) -> Result<(), HostError> {
        self.operations().change(|machine| {
            let function = machine.function(address)?;
            function.driver_override = None;
            function.driver.clone_from(&function.own_driver);
            Ok(())
        })
    }

    /// Makes a guest ignore shutdown requests.
    pub fn stubborn(&self, allocation_id: AllocationId) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.stubborn.insert(allocation_id);
            Ok(())
        })
    }

    /// Makes guests answer only after this many queries after a start.
    pub fn slow_boot(&self, asks: u32) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.silent_asks = asks;
            Ok(())
        })
    }

    /// Makes the stored image with this digest have another content.
    pub fn spoil_image(&self, sha256: &Digest) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.wrong_images.insert(sha256.clone());
            Ok(())
        })
    }

    /// Removes a program until its package is installed.
    pub fn remove_command(&self, name: &str) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.missing_commands.insert(name.to_owned());
            Ok(())
        })
    }

    /// Sets whether the VFIO modules are loaded at every boot (default: no).
    pub fn vfio_at_boot(&self, yes: bool) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.vfio_at_boot = yes;
            Ok(())
        })
    }
}
