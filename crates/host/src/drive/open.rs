//! Identifies a drive and opens it exclusively.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::guests::{DriveInfo, DriveRef, MachinePaths, Progress};
use crate::{HostError, block, sysfs};

/// The folder of stable drive names.
const BY_ID: &str = "/dev/disk/by-id/";
/// Time between two attempts to lock.
const RETRY: Duration = Duration::from_millis(250);
/// A holder that ends releases its lock a moment before the drive, so a single refusal is not final.
const REFUSALS: u32 = 4;

/// A drive that was identified as the right one.
struct Identified {
    /// The device node, pinned as a path descriptor: names may change from now on. It cannot be read or written.
    pin: OwnedFd,
    /// Its folder in sysfs.
    device: PathBuf,
    name: String,
    /// Its device number.
    number: u64,
}

/// The right drive, opened exclusively: it cannot be mounted, and the lock cannot be taken. Both last until the last copy of the
/// open file is closed, even in a child that outlives this process.
#[derive(Debug)]
pub(super) struct Locked {
    file: File,
    info: DriveInfo,
    number: u64,
}

/// The result of one attempt to open a drive.
#[derive(Debug)]
pub(super) enum Attempt {
    /// It is locked.
    Ours(Locked),
    /// The lock is held by an earlier agent process, or briefly by udev.
    Taken,
    /// It is used without the lock.
    Used(HostError),
}

impl Locked {
    /// Returns the open drive. It bypasses the page cache.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns what was found.
    pub(super) fn info(&self) -> &DriveInfo {
        &self.info
    }

    /// Returns a copy of the open file, with the lock.
    pub(super) fn share(&self) -> Result<File, HostError> {
        self.file.try_clone().map_err(|error| HostError::because("host_error", "cannot hand the drive on", &error))
    }

    /// Checks that the name still refers to this drive.
    pub(super) fn still(&self, machine: &MachinePaths, drive: &DriveRef) -> Result<(), HostError> {
        let now = identify(machine, drive)?;
        if now.number == self.number {
            return Ok(());
        }
        let message =
            format!("{} led to {} and now leads to {}; it was not touched further", drive.path, self.info.name, now.name);
        Err(HostError::new("drive_serial_mismatch", message))
    }
}

/// Returns an error for a failed system call.
pub(super) fn failed(drive: &DriveRef, what: &str, error: &std::io::Error) -> HostError {
    HostError::because("drive_failed", &format!("drive {}: {what}", drive.serial), error)
}

/// Locks the drive, or waits until its holder releases it.
pub(super) async fn lock(
    machine: &MachinePaths,
    drive: &DriveRef,
    patience: Duration,
    progress: Progress<'_>,
) -> Result<Locked, HostError> {
    let until = tokio::time::Instant::now() + patience;
    let mut refusals = 0;
    loop {
        let (on, of) = (machine.clone(), drive.clone());
        match super::on_thread(progress, move |_| try_lock(&on, &of)).await?? {
            Attempt::Ours(locked) => return Ok(locked),
            Attempt::Used(error) => {
                refusals += 1;
                if refusals >= REFUSALS {
                    return Err(error);
                }
            }
            Attempt::Taken => {
                refusals = 0;
                if tokio::time::Instant::now() >= until {
                    let message = format!("drive {} is locked; look for a qemu-img that still runs", drive.serial);
                    return Err(HostError::new("drive_locked", message));
                }
            }
        }
        progress(0, 0);
        // A blocking wait for the lock could not be cancelled, so this polls.
        tokio::time::sleep(RETRY).await;
    }
}

/// Tries once to open the drive with its lock.
pub(super) fn try_lock(machine: &MachinePaths, drive: &DriveRef) -> Result<Attempt, HostError> {
    let attempt = try_claim(machine, drive)?;
    let Attempt::Ours(locked) = &attempt else { return Ok(attempt) };
    // The lock of <https://systemd.io/BLOCK_DEVICE_LOCKING>: udev does not probe a drive while it is held.
    match rustix::fs::flock(&locked.file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(attempt),
        Err(Errno::WOULDBLOCK) => Ok(Attempt::Taken),
        Err(error) => Err(failed(drive, "cannot be locked", &error.into())),
    }
}

/// Tries once to open the drive, without the lock: a short probe by udev is not an obstacle.
pub(super) fn try_claim(machine: &MachinePaths, drive: &DriveRef) -> Result<Attempt, HostError> {
    let found = identify(machine, drive)?;
    let used =
        |why: &str| Attempt::Used(HostError::new("drive_in_use", format!("drive {} ({}) {why}", drive.serial, found.name)));
    let users = block::used_by(&machine.proc_root, &found.device);
    if !users.is_empty() {
        return Ok(used(&format!("is in use: {}", users.join(", "))));
    }
    // For devices, exclusive means that no file system, swap, RAID or other exclusive user has it, or gets it.
    let mut file = match reopen(&found.pin, OFlags::RDWR | OFlags::EXCL | OFlags::DIRECT) {
        Ok(file) => file,
        Err(Errno::BUSY) => {
            let plain = reopen(&found.pin, OFlags::RDONLY).map_err(|error| failed(drive, "cannot be opened", &error.into()))?;
            return Ok(match rustix::fs::flock(&plain, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => Attempt::Taken,
                _ => used("is in use by the kernel or another program"),
            });
        }
        Err(error) => return Err(failed(drive, "cannot be opened", &error.into())),
    };
    if guest_has(&file) {
        return Ok(used("is open in a guest or another QEMU program"));
    }
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed(drive, "has no size", &error))?;
    if size_bytes == 0 {
        return Err(HostError::new("drive_missing", format!("drive {} ({}) is empty: it has no size", drive.serial, found.name)));
    }
    let info = DriveInfo { name: found.name, size_bytes };
    Ok(Attempt::Ours(Locked { file, info, number: found.number }))
}

/// Returns whether a guest has the drive open. QEMU opens drives without claiming them, but it holds locks on some bytes of its
/// open files. A lock on all bytes conflicts with those.
fn guest_has(file: &File) -> bool {
    let clash = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
    // Released at once: the program that writes the image needs these bytes.
    let _ = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingUnlock);
    matches!(clash, Err(Errno::AGAIN | Errno::ACCESS))
}

/// Follows the one link from the stable name, and checks by the device number that this is the drive.
fn identify(machine: &MachinePaths, drive: &DriveRef) -> Result<Identified, HostError> {
    let missing = |why: &str| HostError::new("drive_missing", format!("{}: {why}", drive.path));
    let node = node_of(machine, &drive.path).map_err(&missing)?;
    // Opened only as a path: opening a node that is not a drive could have side effects.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let pin = rustix::fs::open(&node, flags, Mode::empty()).map_err(|error| missing(&format!("{}: {error}", node.display())))?;
    let stat = rustix::fs::fstat(&pin).map_err(|error| missing(&error.to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(missing("is not a block device"));
    }
    let number = format!("{}:{}", rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let by_number = machine.sys.join("dev/block").join(&number);
    let name = sysfs::link_name(&by_number);
    if name.is_empty() {
        return Err(missing("the kernel has no such device"));
    }
    if by_number.join("partition").exists() {
        return Err(missing(&format!("{name} is a partition, not a drive")));
    }
    let device = machine.sys.join("block").join(&name);
    if sysfs::text(device.join("dev")) != number {
        return Err(missing(&format!("{name} is not a drive")));
    }
    let serial = block::identity(&device);
    if serial.is_empty() || serial != drive.serial {
        let found = if serial.is_empty() { "has no serial number" } else { &serial };
        let message = format!("{} is {name} ({found}) and not drive {}; nothing was touched", drive.path, drive.serial);
        return Err(HostError::new("drive_serial_mismatch", message));
    }
    Ok(Identified { pin, device, name, number: stat.st_rdev })
}

/// Returns the node in `/dev` of a stable name.
fn node_of(machine: &MachinePaths, path: &str) -> Result<PathBuf, &'static str> {
    const ELSEWHERE: &str = "does not lead to a device in /dev";
    let plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    let name = path.strip_prefix(BY_ID).filter(|name| plain(name)).ok_or("is not a path of the kind /dev/disk/by-id/NAME")?;
    let link = machine.dev.join("disk/by-id").join(name);
    let target = std::fs::read_link(link).map_err(|_| "does not exist; the drive may have failed or been removed")?;
    let target = target.to_str().ok_or(ELSEWHERE)?;
    let node =
        target.strip_prefix("../../").or_else(|| target.strip_prefix("/dev/")).filter(|node| plain(node)).ok_or(ELSEWHERE)?;
    Ok(machine.dev.join(node))
}

/// Opens a pinned node for use: the same one, whatever its name refers to now.
fn reopen(pin: &OwnedFd, flags: OFlags) -> Result<File, Errno> {
    let path = format!("/proc/self/fd/{}", pin.as_raw_fd());
    Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?))
}
