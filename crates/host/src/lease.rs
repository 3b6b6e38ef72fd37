//! Leases of slots: one exclusive file per slot, and a fence that outlives it. The whole machine has a lease of the same kind
//! ([`machine`]). Either the machine is leased, or slots of it are.
//!
//! Everything happens under a lock of the folder, so that two leases with the same device in different slots cannot both succeed.

pub(crate) mod machine;

use std::path::Path;

use gpuaas_contract::id::SlotId;
use gpuaas_contract::slice::Holder;

use crate::HostError;
use crate::guests::{Fence, Lease};
use crate::openat2::{BeneathError, Folder, Locked};
use crate::users::MachineLease;

/// The subfolder of the fences.
const FENCES: &str = "fences";
const SUFFIX: &str = ".json";
/// Size limit of a lease or fence.
const MOST_BYTES: u64 = 64 * 1024;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Takes a slot. See [`Host::lease_take`](crate::Host::lease_take).
pub(crate) fn take(folder: &Path, lease: &Lease, again: bool) -> Result<(), HostError> {
    let leases = LeaseFolder::make(folder)?;
    let name = file_name(lease.slot_id);
    if let Some(present) = leases.lease(&name)? {
        // Another task of the same holder is refused too: it would start again on a slot that is in use.
        let same = present.holder() == lease.holder() && present.task_id == lease.task_id && present.spec == lease.spec;
        return if same { Ok(()) } else { Err(taken(&present)) };
    }
    if let Some(machine) = leases.machine()? {
        let (slot, whose) = (lease.slot_id, machine.allocation_id);
        let message = format!("the whole machine is leased to {whose} for the user {}, so {slot} is not free", machine.username);
        return Err(HostError::new("machine_leased", message));
    }
    let fences = leases.fences()?;
    let mut over = false;
    if let Some(fence) = read::<Fence>(&fences, &name, fence_name)? {
        let (slot, seen, wanted) = (lease.slot_id, fence.lease_epoch, lease.lease_epoch);
        let same = seen == wanted && fence.allocation_id == lease.allocation_id && (again || !fence.over);
        over = same && fence.over;
        if wanted <= seen && !same {
            let whose = fence.allocation_id;
            let message = format!("{slot} has seen lease number {seen} of {whose} and refuses {wanted}, which is not higher");
            return Err(HostError::new("lease_epoch_stale", message));
        }
    }
    for other in leases.leases()? {
        if let Some(device) = shared_device(lease, &other) {
            let (slot, whose) = (other.slot_id, other.allocation_id);
            let message = format!("{device} is leased to {whose} as part of {slot}; a device belongs to one slot");
            return Err(HostError::new("device_leased", message));
        }
    }

    // The fence is written first: a crash in between loses the epoch, and never gives the slot twice.
    let fence = Fence {
        slot_id: lease.slot_id,
        lease_epoch: lease.lease_epoch,
        allocation_id: lease.allocation_id,
        functions: lease.spec.functions().cloned().collect(),
        over,
    };
    write(&fences, &name, &fence)?;
    let bytes = encode(&name, lease)?;
    if leases.folder.write_new(&name, &bytes, FILE_MODE).map_err(|error| failed(&error))? {
        return Ok(());
    }
    // A writer that ignores the lock was faster.
    Err(HostError::new("slot_leased", format!("{} was leased by another process at the same moment", lease.slot_id)))
}

/// Records a change of a held lease.
pub(crate) fn note(folder: &Path, lease: &Lease) -> Result<(), HostError> {
    let lost = |who: String| {
        HostError::new("lease_lost", format!("{} is no longer leased to {}: {who}", lease.slot_id, lease.allocation_id))
    };
    let Some(leases) = LeaseFolder::open(folder)? else { return Err(lost("there are no leases".to_owned())) };
    let name = file_name(lease.slot_id);
    match leases.lease(&name)? {
        Some(present) if present.holder() == lease.holder() => write(&leases.folder, &name, lease),
        Some(present) => Err(lost(format!("{} has it with number {}", present.allocation_id, present.lease_epoch))),
        None => Err(lost("nobody has it".to_owned())),
    }
}

/// Drops the lease of a slot.
pub(crate) fn drop_lease(folder: &Path, slot_id: SlotId, holder: Holder) -> Result<(), HostError> {
    let Some(leases) = LeaseFolder::open(folder)? else { return Ok(()) };
    let name = file_name(slot_id);
    match leases.lease(&name)? {
        Some(present) if present.holder() != holder => Err(taken(&present)),
        None => Ok(()),
        Some(_) => {
            // The fence is written first here too: a crash in between leaves a lease under which nothing can begin.
            let fences = leases.fences()?;
            if let Some(fence) = read::<Fence>(&fences, &name, fence_name)?.filter(|fence| !fence.over) {
                write(&fences, &name, &Fence { over: true, ..fence })?;
            }
            leases.folder.remove_file(&name).map_err(|error| failed(&error))
        }
    }
}

/// Returns all leases, by slot.
pub(crate) fn list(folder: &Path) -> Result<Vec<Lease>, HostError> {
    LeaseFolder::open(folder)?.map_or_else(|| Ok(Vec::new()), |leases| leases.leases())
}

/// Returns all fences, by slot.
pub(crate) fn fences(folder: &Path) -> Result<Vec<Fence>, HostError> {
    let Some(leases) = LeaseFolder::open(folder)? else { return Ok(Vec::new()) };
    match leases.folder.inner(FENCES).map_err(|error| failed(&error))? {
        Some(fences) => read_all(&fences, fence_name),
        None => Ok(Vec::new()),
    }
}

/// The folder, locked.
struct LeaseFolder {
    folder: Folder,
    _lock: Locked,
}

impl LeaseFolder {
    fn make(path: &Path) -> Result<Self, HostError> {
        let leases = Self::locked(Folder::make(path, FOLDER_MODE).map_err(|error| failed(&error))?)?;
        leases.folder.forget_temporaries().map_err(|error| failed(&error))?;
        Ok(leases)
    }

    fn open(path: &Path) -> Result<Option<Self>, HostError> {
        Folder::open(path).map_err(|error| failed(&error))?.map(Self::locked).transpose()
    }

    fn locked(folder: Folder) -> Result<Self, HostError> {
        let lock = folder.lock().map_err(|error| failed(&error))?;
        Ok(Self { folder, _lock: lock })
    }

    fn fences(&self) -> Result<Folder, HostError> {
        let fences = self.folder.make_inner(FENCES, FOLDER_MODE).map_err(|error| failed(&error))?;
        fences.forget_temporaries().map_err(|error| failed(&error))?;
        Ok(fences)
    }

    fn lease(&self, name: &str) -> Result<Option<Lease>, HostError> {
        read(&self.folder, name, lease_name)
    }

    fn leases(&self) -> Result<Vec<Lease>, HostError> {
        read_all(&self.folder, lease_name)
    }

    fn machine(&self) -> Result<Option<MachineLease>, HostError> {
        read(&self.folder, machine::FILE, |_| machine::FILE.to_owned())
    }
}

fn file_name(slot_id: SlotId) -> String {
    format!("{slot_id}{SUFFIX}")
}

fn lease_name(lease: &Lease) -> String {
    file_name(lease.slot_id)
}

fn fence_name(fence: &Fence) -> String {
    file_name(fence.slot_id)
}

fn taken(present: &Lease) -> HostError {
    let Lease { slot_id, allocation_id, lease_epoch, task_id, .. } = present;
    HostError::new("slot_leased", format!("{slot_id} is leased to {allocation_id} with number {lease_epoch}, by {task_id}"))
}

/// Returns a device that two leases share.
fn shared_device(lease: &Lease, other: &Lease) -> Option<String> {
    if lease.slot_id == other.slot_id {
        return None;
    }
    let function = lease.spec.functions().find(|function| other.spec.functions().any(|theirs| theirs == *function));
    let drive = (lease.spec.nvme_serial == other.spec.nvme_serial).then(|| format!("the drive {}", lease.spec.nvme_serial));
    function.map(ToString::to_string).or(drive)
}

fn failed(error: &BeneathError) -> HostError {
    HostError::because("lease_io", "the leases of this host cannot be kept", error)
}

fn encode<T: serde::Serialize>(name: &str, value: &T) -> Result<Vec<u8>, HostError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|error| HostError::because("lease_io", name, &error))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn write<T: serde::Serialize>(folder: &Folder, name: &str, value: &T) -> Result<(), HostError> {
    folder.write(name, &encode(name, value)?, FILE_MODE).map_err(|error| failed(&error))
}

fn read<T: serde::de::DeserializeOwned>(
    folder: &Folder,
    name: &str,
    own_name: impl Fn(&T) -> String,
) -> Result<Option<T>, HostError> {
    let path = folder.path().join(name);
    let damaged = |why: String| {
        let message =
            format!("{} cannot be read, so its holder is unknown: {why}; check it before you remove it", path.display());
        HostError::new("lease_damaged", message)
    };
    let bytes = match folder.read(name, MOST_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error @ BeneathError::Io { .. }) => return Err(failed(&error)),
        Err(error) => return Err(damaged(error.to_string())),
    };
    let value: T = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    let reported = own_name(&value);
    // A copy under another name would count for the wrong slot.
    if reported == name { Ok(Some(value)) } else { Err(damaged(format!("it names {reported}"))) }
}

/// Reads all files about slots in a folder.
fn read_all<T: serde::de::DeserializeOwned>(
    folder: &Folder,
    own_name: impl Fn(&T) -> String + Copy,
) -> Result<Vec<T>, HostError> {
    let mut all = Vec::new();
    for name in folder.names().map_err(|error| failed(&error))? {
        // Unfinished files begin with a dot.
        if name.ends_with(SUFFIX) && !name.starts_with('.') && name != machine::FILE {
            all.extend(read(folder, &name, own_name)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::Barrier;

    use gpuaas_contract::id::{AllocationId, TaskId};
    use gpuaas_contract::slice::SlotSpec;
    use gpuaas_contract::time::Timestamp;

    use super::*;
    use crate::guests::{DriveMark, GuestMark, Power};

    fn spec(number: u32) -> SlotSpec {
        SlotSpec {
            slot_index: number,
            pci_address: Some(format!("0000:{:02x}:00.0", 0x10 + number).parse().expect("an address")),
            companions: vec![format!("0000:{:02x}:00.1", 0x10 + number).parse().expect("an address")],
            fabric_device: None,
            nvme_device: format!("/dev/disk/by-id/nvme-{number}"),
            nvme_serial: format!("SERIAL{number}"),
            numa_node: 0,
            vcpu_count: 2,
            memory_mib: 1024,
            mac_address: format!("02:00:5e:10:00:{number:02x}"),
            private_ip: std::net::Ipv4Addr::new(10, 77, 0, u8::try_from(number).expect("small") + 2),
        }
    }

    fn lease(slot_id: SlotId, allocation_id: AllocationId, lease_epoch: u64, number: u32) -> Lease {
        Lease {
            slot_id,
            allocation_id,
            lease_epoch,
            task_id: TaskId::generate(),
            spec: spec(number),
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

    struct Home {
        _root: tempfile::TempDir,
        folder: std::path::PathBuf,
    }

    fn home() -> Home {
        let root = tempfile::tempdir().expect("folder");
        Home { folder: root.path().join("leases"), _root: root }
    }

    #[test]
    fn a_slot_is_taken_once_and_its_marks_stay_when_it_is_taken_again() {
        let home = home();
        let mine = lease(SlotId::generate(), AllocationId::generate(), 1, 0);
        take(&home.folder, &mine, false).expect("free");
        let marked = Lease { drive: DriveMark::Dirty, guest: GuestMark::Given, ..mine.clone() };
        note(&home.folder, &marked).expect("mine");
        take(&home.folder, &mine, false).expect("mine already");
        assert_eq!(list(&home.folder).expect("readable"), [marked]);

        let other = Lease { allocation_id: AllocationId::generate(), lease_epoch: 2, ..mine.clone() };
        let error = take(&home.folder, &other, false).expect_err("taken");
        assert_eq!(error.code, "slot_leased");
        assert!(error.message.contains(&mine.allocation_id.to_string()), "{error}");
        assert_eq!(code(drop_lease(&home.folder, mine.slot_id, other.holder())), "slot_leased");
        assert_eq!(code(note(&home.folder, &other)), "lease_lost");
        drop_lease(&home.folder, mine.slot_id, mine.holder()).expect("mine");
        drop_lease(&home.folder, mine.slot_id, mine.holder()).expect("gone already");
        assert_eq!(code(note(&home.folder, &mine)), "lease_lost");
        assert!(list(&home.folder).expect("readable").is_empty());
    }

    #[test]
    fn a_number_that_was_given_back_is_taken_again_only_by_its_own_and_an_older_one_never() {
        let home = home();
        let first = lease(SlotId::generate(), AllocationId::generate(), 5, 0);
        take(&home.folder, &first, false).expect("free");
        drop_lease(&home.folder, first.slot_id, first.holder()).expect("mine");
        assert_eq!(code(take(&home.folder, &first, false)), "lease_epoch_stale");
        let older = Lease { lease_epoch: 4, ..first.clone() };
        assert_eq!(code(take(&home.folder, &older, true)), "lease_epoch_stale");
        let other = Lease { allocation_id: AllocationId::generate(), ..first.clone() };
        assert_eq!(code(take(&home.folder, &other, true)), "lease_epoch_stale");
        take(&home.folder, &first, true).expect("its own number again");
        drop_lease(&home.folder, first.slot_id, first.holder()).expect("mine");
        take(&home.folder, &Lease { lease_epoch: 6, ..other }, false).expect("a higher number");
        let fence = fences(&home.folder).expect("readable").pop().expect("one");
        assert_eq!((fence.lease_epoch, fence.functions.len()), (6, 2));
    }

    #[test]
    fn a_device_belongs_to_one_lease_whatever_slot_it_is_said_to_be_in() {
        let home = home();
        let mine = lease(SlotId::generate(), AllocationId::generate(), 1, 0);
        take(&home.folder, &mine, false).expect("free");
        let mut function = lease(SlotId::generate(), mine.allocation_id, 1, 1);
        function.spec.fabric_device = mine.spec.pci_address.clone();
        assert_eq!(code(take(&home.folder, &function, false)), "device_leased");
        let mut drive = lease(SlotId::generate(), AllocationId::generate(), 1, 2);
        drive.spec.nvme_serial = mine.spec.nvme_serial.clone();
        assert_eq!(code(take(&home.folder, &drive, false)), "device_leased");
        assert_eq!(fences(&home.folder).expect("readable").len(), 1, "a refusal leaves no number behind");
        take(&home.folder, &lease(SlotId::generate(), AllocationId::generate(), 1, 3), false).expect("nothing shared");
    }

    #[test]
    fn of_32_who_want_a_slot_one_gets_it() {
        let home = home();
        let slot_id = SlotId::generate();
        let wanted: Vec<Lease> = (1..=32).map(|epoch| lease(slot_id, AllocationId::generate(), epoch, 0)).collect();
        let barrier = Barrier::new(wanted.len());
        let results: Vec<Result<(), HostError>> = std::thread::scope(|scope| {
            let (barrier, folder) = (&barrier, &home.folder);
            let start = |lease| {
                scope.spawn(move || {
                    barrier.wait();
                    take(folder, lease, false)
                })
            };
            let threads: Vec<_> = wanted.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let winners: Vec<_> = wanted.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(lease, _)| lease).collect();
        assert_eq!(winners.len(), 1);
        assert!(results.iter().filter_map(|result| result.as_ref().err()).all(|error| error.code == "slot_leased"));
        assert_eq!(list(&home.folder).expect("readable"), [winners[0].clone()]);
        let names: Vec<_> = std::fs::read_dir(&home.folder).expect("list").collect();
        assert_eq!(names.len(), 2, "the lease and the fences, and no temporary file");
    }

    #[test]
    fn of_two_who_want_a_device_through_different_slots_one_gets_it() {
        for _ in 0..50 {
            let home = home();
            let wanted = [0, 1].map(|_| lease(SlotId::generate(), AllocationId::generate(), 1, 0));
            let folder = &home.folder;
            let won = std::thread::scope(|scope| {
                let threads = wanted.each_ref().map(|lease| scope.spawn(move || take(folder, lease, false).is_ok()));
                threads.into_iter().map(|thread| thread.join().expect("no panic")).filter(|won| *won).count()
            });
            assert_eq!(won, 1);
        }
    }

    #[test]
    fn a_damaged_lease_is_an_error_that_names_it_and_unfinished_writes_are_nothing() {
        let home = home();
        let mine = lease(SlotId::generate(), AllocationId::generate(), 1, 0);
        take(&home.folder, &mine, false).expect("free");
        std::fs::write(home.folder.join(".slot_x.json.0.tmp"), b"{").expect("written");
        assert_eq!(list(&home.folder).expect("readable").len(), 1);
        let copy = home.folder.join(file_name(SlotId::generate()));
        std::fs::copy(home.folder.join(file_name(mine.slot_id)), &copy).expect("copied");
        assert_eq!(code(list(&home.folder)), "lease_damaged");
        for bytes in [b"".as_slice(), b"{}", &[b' '; 70_000]] {
            std::fs::write(&copy, bytes).expect("written");
            let error = list(&home.folder).expect_err("damaged");
            assert_eq!(error.code, "lease_damaged");
            assert!(error.message.contains(copy.to_str().expect("text")), "{error}");
        }
        let next = lease(SlotId::generate(), AllocationId::generate(), 1, 1);
        assert_eq!(code(take(&home.folder, &next, false)), "lease_damaged", "its devices may be the ones wanted");
        std::fs::remove_file(&copy).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &copy).expect("link");
        assert_eq!(code(list(&home.folder)), "lease_damaged");
        std::fs::remove_file(&copy).expect("removed");
        take(&home.folder, &next, false).expect("free");
        assert!(!home.folder.join(".slot_x.json.0.tmp").exists(), "a taker clears up");
    }

    #[test]
    fn nobody_else_can_read_leases() {
        let home = home();
        let mine = lease(SlotId::generate(), AllocationId::generate(), 1, 0);
        take(&home.folder, &mine, false).expect("free");
        let mode = |path: &Path| path.metadata().expect("meta").mode() & 0o7777;
        let name = file_name(mine.slot_id);
        assert_eq!((mode(&home.folder), mode(&home.folder.join(FENCES))), (0o700, 0o700));
        assert_eq!((mode(&home.folder.join(&name)), mode(&home.folder.join(FENCES).join(&name))), (0o600, 0o600));
    }
}
