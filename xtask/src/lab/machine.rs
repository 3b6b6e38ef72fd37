//! This machine, made a slice host until the lab is over.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::cleanup::Cleanup;
use super::drive::Drive;
use super::network::Dhcp;
use super::{drive, libvirt, network};
use crate::requirements::is_root;
use crate::test::temporary_folder;

/// What a slice host has. Dropping it ends the guests and daemons, and undoes everything else.
pub(super) struct Machine {
    /// Everything of the lab, logs of the daemons included.
    pub(super) folder: PathBuf,
    /// A folder for the folders of guests, which QEMU's user can look through.
    pub(super) instances: PathBuf,
    /// Who gives the guests their addresses.
    pub(super) dhcp: Dhcp,
    /// What a guest boots from.
    pub(super) drive: Drive,
    /// Ends what is started on the machine later.
    pub(super) cleanup: Cleanup,
}

impl Machine {
    /// Starts everything.
    pub(super) fn start() -> Result<Self, String> {
        if !is_root() {
            return Err(
                "this lab changes the machine's network and devices; run it as root, on a machine where that is fine".to_owned()
            );
        }
        let mut cleanup = Cleanup::start()?;
        // Under a short path and open to be passed through: QEMU opens the files of a guest as a user of its own.
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
