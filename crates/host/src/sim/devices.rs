//! Functions and drives of the simulated host.

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::{DriveProof, RESTING_DRIVER, Reset, WipeMethod, WipeStatus};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::PciAddress;

use super::machine::{Content, Function, Machine};
use super::{Operation, SimHost};
use crate::block::Namespace;
use crate::guests::{DriveInfo, DriveRef, FunctionState};
use crate::pci::PciFunction;
use crate::{HostError, lease};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Canaries of a wipe.
const CANARIES: u32 = 64;
/// Further blocks that a wipe checks.
const SAMPLES: u32 = 256;

fn missing_function(address: &PciAddress) -> HostError {
    HostError::new("function_missing", format!("there is no function {address} on this host"))
}

fn in_use(code: &'static str, address: &PciAddress, user: AllocationId) -> HostError {
    HostError::new(code, format!("{address} belongs to the running guest {user}"))
}

/// Returns the size of the BARs, by kind of device.
fn bar_bytes(function: &PciFunction) -> u64 {
    match (function.vendor_id.as_str(), function.class.as_str()) {
        ("10de", "030200") => 128 * GIB + 48 * MIB,
        ("1002", _) => 256 * GIB + 3 * MIB,
        ("144d", _) => MIB / 64,
        _ => 32 * MIB,
    }
}

impl Machine {
    pub(super) fn function(&mut self, address: &PciAddress) -> Result<&mut Function, HostError> {
        self.functions.get_mut(address).ok_or_else(|| missing_function(address))
    }
}

impl SimHost {
    /// Records a violation if a device is touched outside a lease. If the leases cannot be read, nothing is concluded.
    fn check_function_leased(&self, machine: &mut Machine, address: &PciAddress, what: &str) {
        let Ok(leases) = lease::list(&self.layout().leases) else { return };
        if !leases.iter().any(|lease| lease.spec.functions().any(|own| own == address)) {
            machine.violation(format!("{what} of {address} outside a lease"));
        }
    }

    /// Checks that a function belongs to a slot that was leased before: the agent manages these.
    fn check_function_ours(&self, machine: &mut Machine, address: &PciAddress, what: &str) {
        let Ok(fences) = lease::fences(&self.layout().leases) else { return };
        if !fences.iter().any(|fence| fence.functions.contains(address)) {
            self.check_function_leased(machine, address, what);
        }
    }

    fn check_drive_leased(&self, machine: &mut Machine, serial: &str, what: &str) {
        let Ok(leases) = lease::list(&self.layout().leases) else { return };
        if !leases.iter().any(|lease| lease.spec.nvme_serial == serial) {
            machine.violation(format!("{what} of drive {serial} outside a lease"));
        }
    }

    pub(crate) async fn function_state(&self, address: &PciAddress) -> Result<FunctionState, HostError> {
        let effect = |machine: &mut Machine| {
            let driver = machine.function(address)?.driver.clone();
            let functions = &self.hardware().functions;
            let found =
                functions.iter().find(|function| function.address == *address).ok_or_else(|| missing_function(address))?;
            let others = functions.iter().filter(|other| other.iommu_group == found.iommu_group && other.address != *address);
            Ok(FunctionState {
                address: address.clone(),
                driver,
                iommu_group: found.iommu_group,
                group_members: others.map(|other| other.address.clone()).collect(),
                bar_bytes: bar_bytes(found),
                bars_assigned: true,
                can_reset: true,
            })
        };
        self.operate(Operation::FunctionState, address.to_string(), effect).await
    }

    pub(crate) async fn function_bind(&self, address: &PciAddress) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            machine.function(address)?;
            self.check_function_ours(machine, address, "binding");
            if machine.is_resting(address) {
                return Ok(());
            }
            if let Some(user) = machine.user_of_function(address) {
                return Err(in_use("function_not_bound", address, user));
            }
            let loaded = machine.modules.contains("vfio_pci");
            let function = machine.function(address)?;
            if !loaded {
                // The old driver has released it before the kernel finds that there is no new one.
                function.driver.clear();
                return Err(HostError::new("function_not_bound", format!("{address} did not go to vfio-pci: it is not loaded")));
            }
            function.driver_override = Some(RESTING_DRIVER.to_owned());
            RESTING_DRIVER.clone_into(&mut function.driver);
            Ok(())
        };
        self.operate(Operation::FunctionBind, address.to_string(), effect).await
    }

    pub(crate) async fn function_give_back(&self, address: &PciAddress) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            machine.function(address)?;
            self.check_function_ours(machine, address, "giving back");
            if let Some(user) = machine.user_of_function(address) {
                return Err(in_use("function_not_given_back", address, user));
            }
            let function = machine.function(address)?;
            function.driver_override = None;
            function.driver.clone_from(&function.own_driver);
            Ok(())
        };
        self.operate(Operation::FunctionGiveBack, address.to_string(), effect).await
    }

    pub(crate) async fn function_reset(&self, address: &PciAddress) -> Result<Reset, HostError> {
        let effect = |machine: &mut Machine| {
            machine.function(address)?;
            self.check_function_leased(machine, address, "reset");
            if let Some(user) = machine.user_of_function(address) {
                machine.violation(format!("reset of {address} under the running guest {user}"));
                return Err(in_use("function_in_use", address, user));
            }
            let function = machine.function(address)?;
            if function.reset_fails {
                return Ok(Reset::Failed);
            }
            function.resets += 1;
            function.tainted_by = None;
            Ok(Reset::Done)
        };
        self.operate(Operation::FunctionReset, address.to_string(), effect).await
    }

    /// Returns the drive at a path, if it is the right one.
    pub(super) fn drive_at(&self, drive: &DriveRef) -> Result<&Namespace, HostError> {
        let there = |namespace: &&Namespace| namespace.stable_path.as_deref() == Some(&drive.path);
        let Some(found) = self.hardware().namespaces.iter().find(there) else {
            return Err(HostError::new("drive_missing", format!("there is no drive at {}", drive.path)));
        };
        if found.serial != drive.serial {
            let (path, wanted, serial) = (&drive.path, &drive.serial, &found.serial);
            return Err(HostError::new("drive_serial_mismatch", format!("the drive at {path} is {serial} and not {wanted}")));
        }
        Ok(found)
    }

    /// Checks that a drive is the right one and free. Callers must check this before they write: a refusal here is the last line
    /// of defense, and a violation.
    fn free_drive(&self, machine: &mut Machine, drive: &DriveRef, writing: Option<&str>) -> Result<&Namespace, HostError> {
        let found = self.drive_at(drive)?;
        let serial = &found.serial;
        if let Some(what) = writing {
            self.check_drive_leased(machine, serial, what);
        }
        let user = machine.user_of_drive(serial).map(|user| format!("the running guest {user} has it"));
        let mount = machine.drives.get(serial).and_then(|known| known.mounted_at.as_ref());
        if let Some(why) = user.or_else(|| mount.map(|path| format!("it is mounted at {path}"))) {
            if let Some(what) = writing {
                machine.violation(format!("{what} of drive {serial} while {why}"));
            }
            return Err(HostError::new("drive_in_use", format!("drive {serial} is not free: {why}")));
        }
        Ok(found)
    }

    pub(crate) async fn drive_check(&self, drive: &DriveRef) -> Result<DriveInfo, HostError> {
        let effect = |machine: &mut Machine| {
            let found = self.free_drive(machine, drive, None)?;
            Ok(DriveInfo { name: found.name.clone(), size_bytes: found.size_bytes })
        };
        self.operate(Operation::DriveCheck, drive.serial.clone(), effect).await
    }

    pub(crate) async fn drive_write_image(&self, drive: &DriveRef, sha256: &Digest) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            let found = self.free_drive(machine, drive, Some("writing"))?;
            if !machine.images.contains(sha256) {
                return Err(HostError::new("image_missing", format!("the host does not have the image {sha256}")));
            }
            let known = machine.drives.entry(found.serial.clone()).or_default();
            known.contents.retain(|content| !matches!(content, Content::Image(_)));
            known.contents.push(Content::Image(sha256.clone()));
            Ok(())
        };
        self.operate(Operation::DriveWriteImage, drive.serial.clone(), effect).await
    }

    pub(crate) async fn drive_wipe(&self, drive: &DriveRef) -> Result<DriveProof, HostError> {
        let effect = |machine: &mut Machine| {
            let found = self.free_drive(machine, drive, Some("wiping"))?;
            let known = machine.drives.entry(found.serial.clone()).or_default();
            let good = !known.failing;
            if good {
                known.contents.clear();
            }
            Ok(DriveProof {
                serial: found.serial.clone(),
                method: WipeMethod::Discard,
                status: if good { WipeStatus::Verified } else { WipeStatus::Failed },
                bytes: found.size_bytes,
                canaries_written: CANARIES,
                canaries_gone: if good { CANARIES } else { 0 },
                samples_clean: if good { SAMPLES } else { 0 },
                samples: SAMPLES,
            })
        };
        self.operate(Operation::DriveWipe, drive.serial.clone(), effect).await
    }
}
