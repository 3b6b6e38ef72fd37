//! A loop device that stands in for an NVMe drive.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cleanup::Cleanup;
use super::program::run;

/// Enough for the guest. The file is sparse, so it takes no space until it is written to.
const SIZE: u64 = 4 * 1024 * 1024 * 1024;
const BY_ID: &str = "/dev/disk/by-id";
/// In the form in which udev combines a model and a serial number.
const NAME: &str = "nvme-gpuaas-lab_LAB0";

/// The drive of a guest.
pub(super) struct Drive {
    /// The device node, such as `/dev/loop3`.
    pub(super) device: PathBuf,
    /// The stable path under `/dev/disk/by-id`.
    pub(super) stable: PathBuf,
}

/// Creates the drive, backed by a file in `folder`. The machine may have no udev, so the stable link is created here.
pub(super) fn make(folder: &Path, cleanup: &mut Cleanup) -> Result<Drive, String> {
    let path = folder.join("drive.raw");
    let file = std::fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.set_len(SIZE).map_err(|error| format!("{}: {error}", path.display()))?;
    let device = PathBuf::from(run(Command::new("losetup").args(["--find", "--show"]).arg(&path))?.trim());
    cleanup.call("losetup", [Path::new("--detach"), &device])?;
    cleanup.make_folder(Path::new(BY_ID))?;
    let stable = Path::new(BY_ID).join(NAME);
    // A lab that was killed may have left a dangling link.
    let _ = std::fs::remove_file(&stable);
    cleanup.remove(&stable)?;
    std::os::unix::fs::symlink(&device, &stable).map_err(|error| format!("{}: {error}", stable.display()))?;
    Ok(Drive { device, stable })
}
