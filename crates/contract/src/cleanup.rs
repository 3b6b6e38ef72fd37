//! The cleanup proof: what a node found, device by device, after it removed everything of an allocation.
//!
//! The proof travels in the receipt. The node drops its leases only once the proof is complete, and the control plane offers a slot again
//! only once it has a proof that covers the slot's own devices. Both sides use [`CleanupProof::blockers`] to name what is missing.

use crate::id::{AllocationId, SlotId};
use crate::slice::{Blocker, LeasedSlot, PciAddress};

/// The driver a PCI function is bound to while no guest uses it.
pub const RESTING_DRIVER: &str = "vfio-pci";

/// Proof that nothing of an allocation is left on its slots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanupProof {
    /// The allocation that had the slots.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation.
    pub lease_epoch: u64,
    /// Whether the hypervisor has no guest of the allocation.
    pub domain_absent: bool,
    /// Whether no address is reserved for it.
    pub reservation_absent: bool,
    /// Whether its folder with seed, keys and console is gone.
    pub instance_absent: bool,
    /// Whether its telemetry token is no longer valid.
    pub telemetry_absent: bool,
    /// Proof for each slot.
    pub slots: Vec<SlotProof>,
}

/// Proof for one slot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlotProof {
    /// The slot.
    pub slot_id: SlotId,
    /// Proof for each of its PCI functions.
    pub functions: Vec<FunctionProof>,
    /// Proof for its drive.
    pub drive: DriveProof,
    /// Whether the host no longer has a lease for it.
    pub lease_absent: bool,
}

/// Result of the reset of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reset {
    /// The function was reset.
    Done,
    /// The function was never passed to a guest under this lease.
    NotNeeded,
    /// The function cannot be reset alone, and was reset together with the GPU that it belongs to.
    WithDevice,
    /// The function does not support a reset.
    Unsupported,
    /// The reset failed.
    Failed,
}

/// Proof for one PCI function.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionProof {
    /// PCI address of the function.
    pub address: PciAddress,
    /// Result of its reset.
    pub reset: Reset,
    /// Driver that it is bound to now; empty if none.
    pub driver: String,
    /// IOMMU group of the function.
    pub iommu_group: Option<u32>,
    /// The other functions in the group, without bridges.
    pub group_members: Vec<PciAddress>,
}

/// How a drive was wiped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WipeMethod {
    /// The drive's own sanitize command.
    Sanitize,
    /// The drive discarded its encryption key.
    CryptoErase,
    /// All blocks were discarded, and read back as zeros.
    Discard,
    /// All blocks were overwritten with zeros.
    Zero,
    /// Nothing was written to the drive under this lease.
    Untouched,
    /// The drive was not wiped.
    None,
}

/// Result of the wipe of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WipeStatus {
    /// Wiped and verified.
    Verified,
    /// The wipe failed, or the verification found old content.
    Failed,
    /// No wipe was requested.
    Skipped,
}

/// Proof for one drive.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveProof {
    /// Serial number of the drive.
    pub serial: String,
    /// How it was wiped.
    pub method: WipeMethod,
    /// Result of the wipe.
    pub status: WipeStatus,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of canary blocks that were written to it before the wipe.
    pub canaries_written: u32,
    /// Number of canary blocks that were gone after the wipe.
    pub canaries_gone: u32,
    /// Number of sampled blocks that were clean after the wipe.
    pub samples_clean: u32,
    /// Number of other blocks that were sampled.
    pub samples: u32,
}

impl DriveProof {
    /// A drive that was not written to under this lease.
    pub fn untouched(serial: &str) -> Self {
        Self { method: WipeMethod::Untouched, status: WipeStatus::Verified, ..Self::skipped(serial) }
    }

    /// A drive that was not wiped.
    pub fn skipped(serial: &str) -> Self {
        Self {
            serial: serial.to_owned(),
            method: WipeMethod::None,
            status: WipeStatus::Skipped,
            bytes: 0,
            canaries_written: 0,
            canaries_gone: 0,
            samples_clean: 0,
            samples: 0,
        }
    }

    /// Whether no tenant data is left on the drive.
    pub fn is_clean(&self) -> bool {
        let checked = self.canaries_written > 0
            && self.canaries_gone == self.canaries_written
            && self.samples > 0
            && self.samples_clean == self.samples;
        match self.method {
            WipeMethod::Untouched => self.status == WipeStatus::Verified,
            WipeMethod::Sanitize | WipeMethod::CryptoErase | WipeMethod::Discard | WipeMethod::Zero => {
                self.status == WipeStatus::Verified && checked
            }
            WipeMethod::None => false,
        }
    }
}

impl CleanupProof {
    /// Maximum size of a proof in a receipt.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// A proof in which nothing is proven yet.
    pub fn nothing(allocation_id: AllocationId, lease_epoch: u64, slots: &[LeasedSlot]) -> Self {
        let slot = |slot: &LeasedSlot| SlotProof {
            slot_id: slot.slot_id,
            functions: Vec::new(),
            drive: DriveProof { status: WipeStatus::Failed, ..DriveProof::skipped(&slot.spec.nvme_serial) },
            lease_absent: false,
        };
        Self {
            allocation_id,
            lease_epoch,
            domain_absent: false,
            reservation_absent: false,
            instance_absent: false,
            telemetry_absent: false,
            slots: slots.iter().map(slot).collect(),
        }
    }

    /// What is not proven to be gone, of the parts that belong to the allocation as a whole.
    pub fn common_blockers(&self) -> Vec<Blocker> {
        let checks = [
            (self.domain_absent, "domain_present", "a guest of the allocation may still be there"),
            (self.reservation_absent, "reservation_present", "an address is still reserved"),
            (self.instance_absent, "instance_present", "the guest's folder is still there"),
            (self.telemetry_absent, "telemetry_present", "the guest's telemetry token is still good"),
        ];
        checks.into_iter().filter(|(gone, ..)| !gone).map(|(_, code, message)| Blocker::new(code, message)).collect()
    }

    /// What is not proven to be clean about one slot. `leases` says whether the host's lease must be gone as well.
    pub fn slot_blockers(&self, slot: &LeasedSlot, leases: bool) -> Vec<Blocker> {
        let Some(proof) = self.slots.iter().find(|proof| proof.slot_id == slot.slot_id) else {
            return vec![Blocker::new("slot_not_proven", format!("the proof does not speak of {}", slot.slot_id))];
        };
        let mut blockers = Vec::new();
        for address in slot.spec.functions() {
            let Some(function) = proof.functions.iter().find(|function| function.address == *address) else {
                blockers.push(Blocker::new("function_not_proven", format!("the proof does not speak of {address}")));
                continue;
            };
            let is_companion = slot.spec.companions.contains(address);
            let reset = match function.reset {
                Reset::Done | Reset::NotNeeded => true,
                Reset::WithDevice => is_companion,
                Reset::Unsupported | Reset::Failed => false,
            };
            if !reset {
                blockers
                    .push(Blocker::new("function_not_reset", format!("{address} could not be reset; power the host off and on")));
            }
            // A function that no guest used may still be bound to its previous driver.
            if function.reset == Reset::NotNeeded {
                continue;
            }
            if function.driver != RESTING_DRIVER {
                let driver = if function.driver.is_empty() { "no driver" } else { &function.driver };
                blockers.push(Blocker::new("function_not_resting", format!("{address} is held by {driver}")));
            }
            if let Some(stranger) = function.group_members.iter().find(|member| !slot.spec.functions().any(|own| own == *member))
            {
                blockers.push(Blocker::new("iommu_group_shared", format!("{address} shares its IOMMU group with {stranger}")));
            }
        }
        if proof.drive.serial != slot.spec.nvme_serial {
            blockers.push(Blocker::new("drive_not_proven", format!("the proof does not speak of {}", slot.spec.nvme_serial)));
        } else if proof.drive.status == WipeStatus::Skipped {
            blockers.push(Blocker::new(NOT_WIPED, format!("drive {} was not wiped", slot.spec.nvme_serial)));
        } else if !proof.drive.is_clean() {
            blockers.push(Blocker::new("drive_not_clean", format!("drive {} is not proven to be clean", slot.spec.nvme_serial)));
        }
        if leases && !proof.lease_absent {
            blockers.push(Blocker::new("lease_present", format!("the host still holds a lease on {}", slot.slot_id)));
        }
        blockers
    }

    /// Everything that is not proven, for the allocation and for each of `slots`.
    pub fn blockers(&self, slots: &[LeasedSlot], leases: bool) -> Vec<Blocker> {
        let of_slots = slots.iter().flat_map(|slot| self.slot_blockers(slot, leases));
        self.common_blockers().into_iter().chain(of_slots).collect()
    }
}

/// The one blocker that asks for an action instead of reporting an error: the drive has yet to be wiped.
pub const NOT_WIPED: &str = "drive_not_wiped";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::SlotSpec;

    fn slot() -> LeasedSlot {
        let spec = r#"{"slot_index":0,"pci_address":"0000:17:00.0","companions":["0000:17:00.1"],"fabric_device":"0000:19:00.1",
            "nvme_device":"/dev/disk/by-id/nvme-x","nvme_serial":"S1","numa_node":0,"vcpu_count":12,"memory_mib":65536,
            "mac_address":"02:00:00:00:00:01","private_ip":"10.77.0.2"}"#;
        let spec: SlotSpec = serde_json::from_str(spec).expect("a slot");
        spec.check().expect("a good slot");
        LeasedSlot { slot_id: SlotId::from_bytes([1; 16]), spec }
    }

    fn complete() -> CleanupProof {
        let function = |address: &str, reset| FunctionProof {
            address: address.parse().expect("an address"),
            reset,
            driver: RESTING_DRIVER.to_owned(),
            iommu_group: Some(1),
            group_members: Vec::new(),
        };
        let drive = DriveProof {
            method: WipeMethod::Discard,
            status: WipeStatus::Verified,
            canaries_written: 64,
            canaries_gone: 64,
            samples: 256,
            samples_clean: 256,
            ..DriveProof::skipped("S1")
        };
        CleanupProof {
            domain_absent: true,
            reservation_absent: true,
            instance_absent: true,
            telemetry_absent: true,
            slots: vec![SlotProof {
                slot_id: slot().slot_id,
                functions: vec![
                    function("0000:17:00.0", Reset::Done),
                    function("0000:17:00.1", Reset::WithDevice),
                    function("0000:19:00.1", Reset::Done),
                ],
                drive,
                lease_absent: true,
            }],
            ..CleanupProof::nothing(AllocationId::from_bytes([2; 16]), 1, &[slot()])
        }
    }

    #[test]
    fn a_complete_proof_has_no_blocker_and_each_missing_piece_is_named() {
        assert_eq!(complete().blockers(&[slot()], true), []);
        type Change = fn(&mut CleanupProof);
        let changes: [(Change, &str); 20] = [
            (|p| p.domain_absent = false, "domain_present"),
            (|p| p.reservation_absent = false, "reservation_present"),
            (|p| p.instance_absent = false, "instance_present"),
            (|p| p.telemetry_absent = false, "telemetry_present"),
            (|p| p.slots.clear(), "slot_not_proven"),
            (|p| p.slots[0].slot_id = SlotId::from_bytes([9; 16]), "slot_not_proven"),
            (|p| p.slots[0].lease_absent = false, "lease_present"),
            (|p| drop(p.slots[0].functions.remove(2)), "function_not_proven"),
            (|p| p.slots[0].functions[0].reset = Reset::Failed, "function_not_reset"),
            (|p| p.slots[0].functions[0].reset = Reset::Unsupported, "function_not_reset"),
            (|p| p.slots[0].functions[0].reset = Reset::WithDevice, "function_not_reset"),
            (|p| p.slots[0].functions[0].driver.clear(), "function_not_resting"),
            (|p| p.slots[0].functions[2].driver = "mlx5_core".to_owned(), "function_not_resting"),
            (|p| p.slots[0].functions[0].group_members = vec!["0000:20:00.0".parse().unwrap()], "iommu_group_shared"),
            (|p| p.slots[0].drive.serial = "S2".to_owned(), "drive_not_proven"),
            (|p| p.slots[0].drive = DriveProof::skipped("S1"), NOT_WIPED),
            (|p| p.slots[0].drive.status = WipeStatus::Failed, "drive_not_clean"),
            (|p| p.slots[0].drive.canaries_gone = 63, "drive_not_clean"),
            (|p| p.slots[0].drive.canaries_written = 0, "drive_not_clean"),
            (|p| p.slots[0].drive.samples_clean = 255, "drive_not_clean"),
        ];
        for (change, code) in changes {
            let mut proof = complete();
            change(&mut proof);
            let found: Vec<String> = proof.blockers(&[slot()], true).into_iter().map(|blocker| blocker.code).collect();
            assert_eq!(found, [code]);
        }
        let nothing = CleanupProof::nothing(AllocationId::from_bytes([2; 16]), 1, &[slot()]);
        assert!(nothing.blockers(&[slot()], true).len() >= 8);
    }

    #[test]
    fn what_was_never_touched_is_clean_where_it_is() {
        let mut proof = complete();
        for function in &mut proof.slots[0].functions {
            (function.reset, function.driver) = (Reset::NotNeeded, "nvidia".to_owned());
        }
        proof.slots[0].drive = DriveProof::untouched("S1");
        assert_eq!(proof.blockers(&[slot()], true), []);
    }
}
