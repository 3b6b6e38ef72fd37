//! Disks that are full or that fail.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::skip;

/// A small file system, unmounted on drop. Declare it before the programs that use it, so that it is dropped after them.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts a file system of this size. Returns `None` and prints a line if that is not allowed.
    pub fn mount(at: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder to mount on can be made");
        let options = std::ffi::CString::new(format!("size={bytes},mode=0700")).expect("no NUL in a number");
        match mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str())) {
            Ok(()) => Some(Self { at: at.to_owned() }),
            Err(error) => {
                skip("a test with a full disk", &format!("mounting a file system failed ({error}); it needs root"));
                None
            }
        }
    }

    /// Changes the size of the file system.
    pub fn resize(&self, bytes: u64) {
        mount_remount(&self.at, MountFlags::empty(), format!("size={bytes}")).expect("the file system can be resized");
    }

    /// Fills the file system until the ballast is dropped.
    pub fn fill(&self) -> Ballast {
        let path = self.at.join("ballast");
        let mut file = std::fs::File::create(&path).expect("the ballast can be made");
        let mut written = 0;
        for chunk in [1 << 16, 4096, 1] {
            while file.write_all(&vec![1; chunk]).is_ok() {
                written += chunk;
            }
        }
        assert!(written > 0, "{} was full already", self.at.display());
        Ballast { path }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.at, UnmountFlags::DETACH) {
            eprintln!("{} was not unmounted: {error}", self.at.display());
        }
    }
}

/// A file that fills a disk. It is removed on drop.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
