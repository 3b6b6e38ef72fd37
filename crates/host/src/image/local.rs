//! Images in a folder of the host's owner.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use gpuaas_contract::Digest;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::flight::Report;
use super::store::Store;
use super::{IO, blocking, open_part};
use crate::HostError;

/// Opens a file below one of the folders, or returns `None` if none of them has it. The path comes from a task: it cannot lead
/// outside, and links are not followed. Blocks.
pub(super) fn open(folders: &[PathBuf], path: &str) -> Result<Option<File>, HostError> {
    let refused = |why: String| HostError::new("image_missing", format!("the image {path} is not taken: {why}"));
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for folder in folders {
        let place = folder.display();
        let failed = |error: rustix::io::Errno| HostError::because(IO, &format!("cannot open {path} below {place}"), &error);
        let above = match rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(above) => above,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(failed(error)),
        };
        // A pipe would block, and a terminal would become our controlling terminal.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match rustix::fs::openat2(&above, path, flags, Mode::empty(), beneath) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => continue,
            Err(rustix::io::Errno::LOOP) => {
                return Err(refused(format!("a part of it is a symbolic link below {place}; put the file itself there")));
            }
            Err(rustix::io::Errno::XDEV) => return Err(refused(format!("it leads out of {place}"))),
            // The error of a socket, or of a device without a driver.
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NODEV) => {
                return Err(refused("it is not a regular file".to_owned()));
            }
            Err(error) => return Err(failed(error)),
        };
        let meta =
            file.metadata().map_err(|error| HostError::because(IO, &format!("cannot read the status of {path}"), &error))?;
        if !meta.is_file() {
            return Err(refused("it is not a regular file".to_owned()));
        }
        return Ok(Some(file));
    }
    Ok(None)
}

/// Copies the file into the store. Returns its size.
pub(super) async fn copy(store: &Arc<Store>, sha256: &Digest, mut file: File, report: &Report) -> Result<u64, HostError> {
    let mut part = open_part(store, sha256, None, report).await?;
    blocking(move |stop| {
        let length = file.metadata().map_err(|error| HostError::because(IO, "cannot read the image", &error))?.len();
        part.copy(&mut file, length, stop)?;
        part.finish()
    })
    .await
}
