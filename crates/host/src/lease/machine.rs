//! The lease of the whole machine: one file beside those of the slots, and a fence that outlives it.

use std::path::Path;

use gpuaas_contract::slice::Holder;

use super::{FENCES, FILE_MODE, LeaseFolder, encode, failed, read, write};
use crate::HostError;
use crate::users::{MachineFence, MachineLease};

/// The file, in the folder of the leases and in that of the fences.
pub(crate) const FILE: &str = "machine.json";

/// Takes the machine. See [`Host::machine_lease_take`](crate::Host::machine_lease_take).
pub(crate) fn take(folder: &Path, lease: &MachineLease, again: bool) -> Result<(), HostError> {
    let leases = LeaseFolder::make(folder)?;
    if let Some(present) = leases.machine()? {
        // Another task of the same allocation may return to its user: everything it does is idempotent.
        let same = present.holder() == lease.holder() && present.username == lease.username && (again || !present.leaving);
        return if same { Ok(()) } else { Err(leased(&present)) };
    }
    let fences = leases.fences()?;
    let before = read::<MachineFence>(&fences, FILE, own_name)?;
    if let Some(fence) = &before {
        let (seen, wanted) = (fence.lease_epoch, lease.lease_epoch);
        let same = seen == wanted && fence.allocation_id == lease.allocation_id && (again || !fence.over);
        if wanted <= seen && !same {
            let whose = fence.allocation_id;
            let message =
                format!("the machine has seen lease number {seen} of {whose} and refuses {wanted}, which is not higher");
            return Err(HostError::new("lease_epoch_stale", message));
        }
    }
    if let Some(slot) = leases.leases()?.first() {
        let (slot, whose) = (slot.slot_id, slot.allocation_id);
        let message = format!("{slot} is leased to {whose}; the whole machine can be leased only when no slot of it is");
        return Err(HostError::new("slots_leased", message));
    }
    // The fence is written first: a crash in between loses the epoch, and never gives the machine twice.
    write(&fences, FILE, &MachineFence::of(lease, before.as_ref()))?;
    if leases.folder.write_new(FILE, &encode(FILE, lease)?, FILE_MODE).map_err(|error| failed(&error))? {
        return Ok(());
    }
    // A writer that ignores the lock was faster.
    Err(HostError::new("machine_leased", "the machine was leased by another process at the same moment"))
}

/// Takes the machine from an earlier holder, with the data about that holder's user.
pub(crate) fn take_over(folder: &Path, lease: &MachineLease) -> Result<MachineLease, HostError> {
    let leases = LeaseFolder::make(folder)?;
    let Some(present) = leases.machine()? else { return Err(lost(lease, "nobody has it")) };
    let taken = if present.holder() == lease.holder() {
        present
    } else if present.lease_epoch < lease.lease_epoch {
        let MachineLease { allocation_id, lease_epoch, task_id, taken_at, .. } = *lease;
        // The machine stays leased all the time, so the lease is written first here: its holder is the one that may clean it.
        let taken = MachineLease { allocation_id, lease_epoch, task_id, taken_at, leaving: true, ..present };
        write(&leases.folder, FILE, &taken)?;
        taken
    } else {
        return Err(leased(&present));
    };
    remember(&leases, &taken, false)?;
    Ok(taken)
}

/// Records a change of the lease.
pub(crate) fn note(folder: &Path, lease: &MachineLease) -> Result<(), HostError> {
    let Some(leases) = LeaseFolder::open(folder)? else { return Err(lost(lease, "there are no leases")) };
    match leases.machine()? {
        Some(present) if present.holder() == lease.holder() => {
            // The fence remembers the number longer than the lease: what belongs to it must be found even when the lease is gone.
            remember(&leases, lease, false)?;
            write(&leases.folder, FILE, lease)
        }
        Some(present) => Err(lost(lease, &format!("{} has it with number {}", present.allocation_id, present.lease_epoch))),
        None => Err(lost(lease, "nobody has it")),
    }
}

/// Drops the lease of the machine.
pub(crate) fn drop_lease(folder: &Path, holder: Holder) -> Result<(), HostError> {
    let Some(leases) = LeaseFolder::open(folder)? else { return Ok(()) };
    match leases.machine()? {
        Some(present) if present.holder() != holder => Err(leased(&present)),
        None => Ok(()),
        Some(present) => {
            // The fence is written first here too: a crash in between leaves a lease under which nothing can begin.
            remember(&leases, &present, true)?;
            leases.folder.remove_file(FILE).map_err(|error| failed(&error))
        }
    }
}

/// Returns the lease, if there is one.
pub(crate) fn find(folder: &Path) -> Result<Option<MachineLease>, HostError> {
    LeaseFolder::open(folder)?.map_or(Ok(None), |leases| leases.machine())
}

/// Returns the fence of the last lease.
pub(crate) fn fence(folder: &Path) -> Result<Option<MachineFence>, HostError> {
    let Some(leases) = LeaseFolder::open(folder)? else { return Ok(None) };
    match leases.folder.inner(FENCES).map_err(|error| failed(&error))? {
        Some(fences) => read(&fences, FILE, own_name),
        None => Ok(None),
    }
}

/// Writes the fence of a lease.
fn remember(leases: &LeaseFolder, lease: &MachineLease, over: bool) -> Result<(), HostError> {
    let fences = leases.fences()?;
    let before = read::<MachineFence>(&fences, FILE, own_name)?;
    let fence = MachineFence::of(lease, before.as_ref());
    write(&fences, FILE, &MachineFence { over: over || fence.over, ..fence })
}

fn own_name(_: &MachineFence) -> String {
    FILE.to_owned()
}

fn leased(present: &MachineLease) -> HostError {
    let MachineLease { allocation_id, lease_epoch, username, .. } = present;
    let leaving = if present.leaving { ", and is being given back" } else { "" };
    let message =
        format!("the whole machine is leased to {allocation_id} with number {lease_epoch}, for the user {username}{leaving}");
    HostError::new("machine_leased", message)
}

fn lost(lease: &MachineLease, who: &str) -> HostError {
    HostError::new("lease_lost", format!("the machine is not leased to {}: {who}", lease.allocation_id))
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
    use gpuaas_contract::slice::SlotSpec;
    use gpuaas_contract::time::Timestamp;

    use super::*;
    use crate::guests::{DriveMark, GuestMark, Lease, Power};

    fn lease(allocation_id: AllocationId, lease_epoch: u64) -> MachineLease {
        MachineLease {
            allocation_id,
            lease_epoch,
            task_id: TaskId::generate(),
            username: "tenant-1".parse().expect("a name"),
            user_of: allocation_id,
            uid: None,
            adopted: false,
            leaving: false,
            taken_at: Timestamp(7),
        }
    }

    fn slot() -> Lease {
        Lease {
            slot_id: SlotId::generate(),
            allocation_id: AllocationId::generate(),
            lease_epoch: 1,
            task_id: TaskId::generate(),
            spec: SlotSpec {
                slot_index: 0,
                pci_address: None,
                companions: Vec::new(),
                fabric_device: None,
                nvme_device: "/dev/disk/by-id/nvme-0".to_owned(),
                nvme_serial: "SERIAL0".to_owned(),
                numa_node: 0,
                vcpu_count: 2,
                memory_mib: 1024,
                mac_address: "02:00:5e:10:00:01".to_owned(),
                private_ip: std::net::Ipv4Addr::new(10, 77, 0, 2),
            },
            vm_name: "vm".to_owned(),
            taken_at: Timestamp(7),
            boot_id: String::new(),
            drive: DriveMark::Clean,
            guest: GuestMark::Never,
            power: Power::Off,
        }
    }

    fn code<T: std::fmt::Debug>(result: Result<T, HostError>) -> &'static str {
        result.expect_err("refused").code
    }

    #[test]
    fn the_machine_is_taken_once_and_only_higher_numbers_come_after_it() {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("leases");
        let mine = lease(AllocationId::generate(), 5);
        take(&folder, &mine, false).expect("free");
        take(&folder, &MachineLease { task_id: TaskId::generate(), ..mine.clone() }, false).expect("mine already");
        let noted = MachineLease { uid: Some(20_001), ..mine.clone() };
        note(&folder, &noted).expect("mine");
        assert_eq!(find(&folder).expect("readable"), Some(noted));
        let other = lease(AllocationId::generate(), 6);
        assert_eq!(code(take(&folder, &other, true)), "machine_leased");
        assert_eq!(code(note(&folder, &other)), "lease_lost");
        assert_eq!(code(drop_lease(&folder, other.holder())), "machine_leased");
        let renamed = MachineLease { username: "tenant-2".parse().expect("a name"), ..mine.clone() };
        assert_eq!(code(take(&folder, &renamed, false)), "machine_leased", "one allocation, one user");
        note(&folder, &MachineLease { uid: Some(20_001), leaving: true, ..mine.clone() }).expect("mine");
        assert_eq!(code(take(&folder, &mine, false)), "machine_leased", "nothing begins on what is being given back");
        take(&folder, &mine, true).expect("it may be given back again");

        for _ in 0..2 {
            drop_lease(&folder, mine.holder()).expect("mine, or gone already");
        }
        let fence = fence(&folder).expect("readable").expect("it outlives the lease");
        assert_eq!((fence.lease_epoch, fence.uid, fence.over), (5, Some(20_001), true));
        assert_eq!(code(take(&folder, &mine, false)), "lease_epoch_stale");
        assert_eq!(code(take(&folder, &lease(mine.allocation_id, 4), true)), "lease_epoch_stale");
        assert_eq!(code(take(&folder, &lease(AllocationId::generate(), 5), true)), "lease_epoch_stale");
        take(&folder, &mine, true).expect("its own number again, to clean up");
        drop_lease(&folder, mine.holder()).expect("mine");
        take(&folder, &other, false).expect("a higher number");
        let fence = super::fence(&folder).expect("readable").expect("there");
        assert_eq!((fence.uid, fence.last_uid), (None, Some(20_001)), "the next user gets another number");
    }

    #[test]
    fn an_earlier_holder_is_followed_by_a_higher_number_with_what_is_known_of_its_user() {
        let root = tempfile::tempdir().expect("folder");
        let old = MachineLease { uid: Some(20_001), ..lease(AllocationId::generate(), 5) };
        assert_eq!(code(take_over(root.path(), &old)), "lease_lost");
        take(root.path(), &old, false).expect("free");
        assert_eq!(code(take_over(root.path(), &lease(AllocationId::generate(), 5))), "machine_leased");
        let new = lease(AllocationId::generate(), 6);
        for _ in 0..2 {
            let taken = take_over(root.path(), &new).expect("a higher number");
            assert_eq!((taken.holder(), taken.user_of, taken.uid), (new.holder(), old.allocation_id, Some(20_001)));
        }
        assert_eq!(code(drop_lease(root.path(), old.holder())), "machine_leased");
        drop_lease(root.path(), new.holder()).expect("mine");
        assert_eq!(code(take(root.path(), &old, true)), "lease_epoch_stale");
    }

    #[test]
    fn either_the_machine_is_leased_or_its_slots_are() {
        let root = tempfile::tempdir().expect("folder");
        let (slot, machine) = (slot(), lease(AllocationId::generate(), 1));
        super::super::take(root.path(), &slot, false).expect("free");
        assert_eq!(code(take(root.path(), &machine, false)), "slots_leased");
        assert_eq!(fence(root.path()).expect("readable"), None, "a refusal leaves no number behind");
        super::super::drop_lease(root.path(), slot.slot_id, slot.holder()).expect("mine");
        take(root.path(), &machine, false).expect("no slot is leased");
        for again in [false, true] {
            assert_eq!(code(super::super::take(root.path(), &Lease { lease_epoch: 2, ..slot.clone() }, again)), "machine_leased");
        }
        assert_eq!(super::super::list(root.path()).expect("readable"), [], "it is no lease of a slot");
        assert_eq!(super::super::fences(root.path()).expect("readable").len(), 1);
        std::fs::write(root.path().join(FILE), b"{").expect("written");
        assert_eq!(code(super::super::take(root.path(), &slot, true)), "lease_damaged");
        assert_eq!(code(find(root.path())), "lease_damaged");
    }
}
