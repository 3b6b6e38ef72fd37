//! The changing state of the simulated machine: one file in its folder, written whenever an operation changed it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::RESTING_DRIVER;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::{PciAddress, SlotSpec};

use super::users::Users;
use super::{SimError, topology};
use crate::guests::DomainSpec;
use crate::private_file;
use crate::topology::Inventory;

/// The file.
const FILE: &str = "machine.json";
/// Size limit of the file: about a thousand times what a machine full of guests needs.
const FILE_LIMIT: u64 = 16 * 1024 * 1024;
/// Maximum number of violations to keep; the first ones show what went wrong.
const MOST_VIOLATIONS: usize = 1_000;

/// The changing state of the machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// Functions on the bus.
    pub(super) functions: BTreeMap<PciAddress, Function>,
    /// Drives, by serial.
    pub(super) drives: BTreeMap<String, Drive>,
    /// Guests in the hypervisor.
    pub(super) domains: BTreeMap<AllocationId, Domain>,
    /// Addresses of guests.
    pub(super) reservations: BTreeMap<AllocationId, Reserved>,
    /// The image store.
    pub(super) images: BTreeSet<Digest>,
    /// Images whose content does not match their digest.
    pub(super) wrong_images: BTreeSet<Digest>,
    /// Packages that were installed later.
    pub(super) packages: BTreeSet<String>,
    /// Programs that are not installed.
    pub(super) missing_commands: BTreeSet<String>,
    /// Loaded modules.
    pub(super) modules: BTreeSet<String>,
    /// Whether the VFIO modules are loaded at every boot.
    pub(super) vfio_at_boot: bool,
    /// Guests that ignore shutdown requests.
    pub(super) stubborn: BTreeSet<AllocationId>,
    /// How many queries fail after a start.
    pub(super) silent_asks: u32,
    /// Users and their files.
    #[serde(default)]
    pub(super) users: Users,
    /// Violations of rules that must always hold.
    pub(super) violations: Vec<String>,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Function {
    /// The host's default driver.
    pub(super) own_driver: String,
    /// The current driver; empty if none.
    pub(super) driver: String,
    /// The driver override.
    pub(super) driver_override: Option<String>,
    /// How often it was reset.
    pub(super) resets: u64,
    /// The guest that had it since the last reset.
    pub(super) tainted_by: Option<AllocationId>,
    /// Whether resets fail.
    pub(super) reset_fails: bool,
}

/// One drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drive {
    /// Its content. Writing an image keeps the content after its end.
    pub(super) contents: Vec<Content>,
    /// Its mount point on the host.
    pub(super) mounted_at: Option<String>,
    /// Whether wipes fail.
    pub(super) failing: bool,
}

/// Content of a drive.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// An image.
    Image(Digest),
    /// Data of a guest.
    Guest(AllocationId),
}

/// A reserved address.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reserved {
    pub(super) mac_address: String,
    pub(super) private_ip: Ipv4Addr,
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Domain {
    pub(super) vm_name: String,
    pub(super) lease_epoch: u64,
    pub(super) slots: Vec<SlotSpec>,
    pub(super) kvm: bool,
    pub(super) running: bool,
    /// How often it was started.
    pub(super) boots: u64,
    /// The host's boot of its last start.
    pub(super) boot_id: String,
    /// How often it was queried since.
    pub(super) asks: u32,
}

impl Domain {
    pub(super) fn new(spec: &DomainSpec) -> Self {
        Self {
            vm_name: spec.vm_name.to_string(),
            lease_epoch: spec.lease_epoch,
            slots: spec.slots.clone(),
            kvm: spec.kvm,
            running: false,
            boots: 0,
            boot_id: String::new(),
            asks: 0,
        }
    }

    /// Returns whether it has the same definition.
    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.vm_name, self.lease_epoch, &self.slots, self.kvm) == (&other.vm_name, other.lease_epoch, &other.slots, other.kvm)
    }

    pub(super) fn functions(&self) -> impl Iterator<Item = &PciAddress> {
        self.slots.iter().flat_map(SlotSpec::functions)
    }

    pub(super) fn memory_mib(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory_mib).fold(0, u64::saturating_add)
    }
}

impl Machine {
    /// Returns a new machine.
    fn fresh(hardware: &Inventory) -> Self {
        let function = |driver: &str| Function {
            own_driver: driver.to_owned(),
            driver: driver.to_owned(),
            driver_override: None,
            resets: 0,
            tainted_by: None,
            reset_fails: false,
        };
        let functions = hardware.functions.iter().map(|found| (found.address.clone(), function(&found.driver)));
        Self {
            functions: functions.collect(),
            drives: hardware.namespaces.iter().map(|drive| (drive.serial.clone(), Drive::default())).collect(),
            domains: BTreeMap::new(),
            reservations: BTreeMap::new(),
            images: BTreeSet::new(),
            wrong_images: BTreeSet::new(),
            packages: BTreeSet::new(),
            missing_commands: BTreeSet::new(),
            modules: hardware.prerequisites.loaded_modules.iter().cloned().collect(),
            vfio_at_boot: false,
            stubborn: BTreeSet::new(),
            silent_asks: 1,
            users: Users::default(),
            violations: Vec::new(),
        }
    }

    /// Loads the machine in this folder, or creates a new one.
    pub(super) fn load(folder: &Path, hardware: &Inventory) -> Result<Self, SimError> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(Self::fresh(hardware));
        }
        let bytes = private_file::read_secret(&path, FILE_LIMIT)?;
        serde_json::from_slice(&bytes).map_err(|source| SimError::Damaged { path, source })
    }

    /// Writes the file atomically. Without fsync, because only processes die here, and an operation of the simulated host must be
    /// cheap.
    pub(super) fn save(&self, folder: &Path) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        let temporary = folder.join(format!(".{FILE}.{}.tmp", std::process::id()));
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&bytes)?;
        std::fs::rename(&temporary, folder.join(FILE))
    }

    /// Applies a reboot to the machine in this folder.
    pub(super) fn reboot(folder: &Path, hardware: &Inventory) -> Result<(), SimError> {
        let mut machine = Self::load(folder, hardware)?;
        for domain in machine.domains.values_mut() {
            domain.running = false;
        }
        machine.users.reboot();
        // Data that a guest left in a function can survive a warm reboot, so the taint stays.
        for function in machine.functions.values_mut() {
            function.driver_override = None;
            function.driver.clone_from(&function.own_driver);
        }
        if !machine.vfio_at_boot {
            machine.modules.retain(|module| !topology::VFIO_MODULES.contains(&module.as_str()));
        }
        machine.save(folder).map_err(|source| SimError::State { path: folder.join(FILE), source })
    }

    /// Loads the VFIO modules.
    pub(super) fn load_vfio(&mut self) {
        self.modules.extend(topology::VFIO_MODULES.map(str::to_owned));
    }

    /// Records a violation, once.
    pub(super) fn violation(&mut self, what: String) {
        if self.violations.len() < MOST_VIOLATIONS && !self.violations.contains(&what) {
            tracing::error!(violation = what, "the simulated host was misused");
            self.violations.push(what);
        }
    }

    fn running(&self) -> impl Iterator<Item = (&AllocationId, &Domain)> {
        self.domains.iter().filter(|(_, domain)| domain.running)
    }

    /// Returns the running guest that has a function.
    pub(super) fn user_of_function(&self, address: &PciAddress) -> Option<AllocationId> {
        self.running().find(|(_, domain)| domain.functions().any(|own| own == address)).map(|(id, _)| *id)
    }

    /// Returns the running guest that has a drive.
    pub(super) fn user_of_drive(&self, serial: &str) -> Option<AllocationId> {
        self.running().find(|(_, domain)| domain.slots.iter().any(|slot| slot.nvme_serial == serial)).map(|(id, _)| *id)
    }

    /// Returns another running guest that shares something with this one, and what it is.
    pub(super) fn rival(&self, id: AllocationId, domain: &Domain) -> Option<(AllocationId, String)> {
        let shared = |other: &Domain| {
            let pairs = domain.slots.iter().flat_map(|slot| other.slots.iter().map(move |theirs| (slot, theirs)));
            pairs.into_iter().find_map(|(slot, theirs)| slot.collides_with(theirs))
        };
        self.running().filter(|(other, _)| **other != id).find_map(|(other, theirs)| Some((*other, shared(theirs)?)))
    }

    /// Returns the memory of all running guests.
    pub(super) fn guests_memory_mib(&self) -> u64 {
        self.running().map(|(_, domain)| domain.memory_mib()).fold(0, u64::saturating_add)
    }

    /// Returns the driver of a function; empty if none.
    pub(super) fn driver(&self, address: &str) -> &str {
        let found = self.functions.iter().find(|(known, _)| known.as_str() == address);
        found.map_or("", |(_, function)| &function.driver)
    }

    /// Returns whether a function is bound to `vfio-pci`.
    pub(super) fn is_resting(&self, address: &PciAddress) -> bool {
        self.functions.get(address).is_some_and(|function| function.driver == RESTING_DRIVER)
    }

    /// Applies the changing state to the hardware inventory.
    pub(super) fn overlay(&self, hardware: &mut Inventory) {
        for function in &mut hardware.functions {
            if let Some(known) = self.functions.get(&function.address) {
                function.driver.clone_from(&known.driver);
            }
        }
        for namespace in &mut hardware.namespaces {
            let mounted = self.drives.get(&namespace.serial).and_then(|drive| drive.mounted_at.as_ref());
            namespace.used_by.extend(mounted.map(|path| format!("mounted at {path}")));
        }
        let prerequisites = &mut hardware.prerequisites;
        prerequisites.loaded_modules.retain(|module| self.modules.contains(module));
        for command in &mut prerequisites.required_commands {
            if self.missing_commands.contains(&command.name) {
                command.path = None;
            }
        }
    }
}
