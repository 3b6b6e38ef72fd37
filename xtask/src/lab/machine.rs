//! This machine, set up as a slice host for as long as the lab runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::cleanup::Cleanup;
use super::drive::Drive;
use super::network::Dhcp;
use super::{drive, libvirt, network};
use crate::requirements::is_root;
use crate::test::temporary_folder;

/// The components of a slice host. Dropping it ends the guests and daemons, and undoes every other change to the machine.
pub(super) struct Machine {
    /// The lab's folder, which also has the logs of the daemons.
    pub(super) folder: PathBuf,
    /// The parent of the guests' folders. QEMU's user can enter it.
    pub(super) instances: PathBuf,
    pub(super) dhcp: Dhcp,
    /// The boot drive of the guest.
    pub(super) drive: Drive,
    /// Also ends processes that are started later.
    pub(super) cleanup: Cleanup,
}

impl Machine {
    /// Sets up and starts every component.
    pub(super) fn start() -> Result<Self, String> {
        if !is_root() {
            return Err(
                "this lab changes the machine's network and devices; run it as root, on a machine where that is fine".to_owned()
            );
        }
        let mut cleanup = Cleanup::start()?;
        // A short path that all users may enter: QEMU opens a guest's files as a user of its own.
        let folder = temporary_folder(Path::new("/tmp"))?;
        cleanup.remove(&folder)?;
        let instances = folder.join("instances");
        std::fs::create_dir(&instances)
            .and_then(|()| std::fs::set_permissions(&instances, std::fs::Permissions::from_mode(0o711)))
            .map_err(|error| format!("{}: {error}", instances.display()))?;
        let drive = drive::make(&folder, &mut cleanup)?;
        let dhcp = network::start(&folder, &mut cleanup)?;
        libvirt::start(&folder, &mut cleanup)?;
        Ok(Self { folder, instances, dhcp, drive, cleanup })
    }
}
