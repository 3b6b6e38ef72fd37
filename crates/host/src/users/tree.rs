//! Removes a tree of any depth and width with three open folders and no list: deeper folders are moved up until nothing is deep.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::Looking;
use crate::HostError;

/// Maximum number of attempts of a call that the kernel could not finish because of concurrent renames.
const MOST_TRIES: usize = 64;

/// Opens a folder in another one: not a link, and not on another mount.
pub(super) fn open_folder(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..MOST_TRIES {
        match rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Removes an entry with its content, whatever its owner. Returns the number of removed entries. Links are removed and never
/// followed, and other file systems are never entered.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &CStr, looking: &Looking) -> Result<u64, HostError> {
    let mut removed = 0;
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => return Ok(1),
        Err(Errno::NOENT) => return Ok(0),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(failed("remove", name, errno)),
    }
    let top = open_folder(parent, name).map_err(|errno| failed("open", name, errno))?;
    loop {
        looking.check()?;
        let before = removed;
        if level(top.as_fd(), looking, &mut removed)? {
            break;
        }
        if removed == before {
            return Err(failed("empty", name, Errno::NOTEMPTY));
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(removed + 1),
        Err(Errno::NOENT) => Ok(removed),
        Err(errno) => Err(failed("remove", name, errno)),
    }
}

/// Goes through a folder once. Returns true if it was empty.
fn level(top: BorrowedFd<'_>, looking: &Looking, removed: &mut u64) -> Result<bool, HostError> {
    let mut empty = true;
    for name in names(top)? {
        let name = name?;
        empty = false;
        if unlink(top, &name, removed)? {
            continue;
        }
        looking.check()?;
        let inner = match open_folder(top, &name) {
            Ok(inner) => inner,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(failed("open", &name, errno)),
        };
        for deep in names(inner.as_fd())? {
            let deep = deep?;
            if unlink(inner.as_fd(), &deep, removed)? {
                continue;
            }
            match rustix::fs::unlinkat(&inner, &deep, AtFlags::REMOVEDIR) {
                Ok(()) => *removed += 1,
                Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    let higher = random_name()?;
                    rustix::fs::renameat_with(&inner, &deep, top, &higher, RenameFlags::NOREPLACE)
                        .map_err(|errno| failed("move", &deep, errno))?;
                }
                Err(errno) => return Err(failed("remove", &deep, errno)),
            }
        }
        match rustix::fs::unlinkat(top, &name, AtFlags::REMOVEDIR) {
            Ok(()) => *removed += 1,
            Err(Errno::NOENT) => {}
            // Not everything in it was seen: the next round continues.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(failed("remove", &name, errno)),
        }
    }
    Ok(empty)
}

/// Removes an entry that is not a folder. Returns false if it is one.
fn unlink(folder: BorrowedFd<'_>, name: &CStr, removed: &mut u64) -> Result<bool, HostError> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => *removed += 1,
        Err(Errno::NOENT) => {}
        Err(Errno::ISDIR) => return Ok(false),
        Err(errno) => return Err(failed("remove", name, errno)),
    }
    Ok(true)
}

/// Iterates over the names in a folder.
fn names(folder: BorrowedFd<'_>) -> Result<impl Iterator<Item = Result<CString, HostError>>, HostError> {
    let list = |errno| failed("list", c".", errno);
    let dir = Dir::read_from(folder).map_err(list)?;
    let named = move |entry: rustix::io::Result<rustix::fs::DirEntry>| match entry {
        Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => None,
        Ok(entry) => Some(Ok(entry.file_name().to_owned())),
        Err(errno) => Some(Err(list(errno))),
    };
    Ok(dir.filter_map(named))
}

fn random_name() -> Result<String, HostError> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|error| HostError::new("files_not_removed", format!("no random numbers: {error}")))?;
    Ok(format!(".gpuaas-{}", gpuaas_contract::hex(&random)))
}

pub(super) fn failed(what: &str, name: &CStr, errno: Errno) -> HostError {
    let name = crate::exec::printable(name.to_bytes());
    HostError::because("files_not_removed", &format!("cannot {what} {name}"), &std::io::Error::from(errno))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio_util::sync::CancellationToken;

    use super::*;

    fn looking() -> Looking {
        Looking { seen: std::sync::Arc::default(), stop: CancellationToken::new() }
    }

    #[test]
    fn a_tree_goes_however_deep_and_wide_it_is_and_links_lead_nowhere() {
        let root = tempfile::tempdir().expect("folder");
        let outside = root.path().join("outside");
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("canary"), b"x").expect("written");
        std::fs::create_dir(root.path().join("tree")).expect("made");
        // Deeper than the longest path: by descriptor, one folder at a time.
        let mut folder = open(&root.path().join("tree"));
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&folder, "d", Mode::RWXU).expect("made");
            rustix::fs::openat(&folder, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("a file");
            folder = rustix::fs::openat(&folder, "d", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("opened");
        }
        for number in 0..3_000 {
            std::fs::create_dir_all(root.path().join(format!("tree/wide/{number}/inner"))).expect("made");
        }
        symlink(&outside, root.path().join("tree/link")).expect("link");
        symlink(&outside, root.path().join("tree/wide/link")).expect("link");
        let parent = open(root.path());
        let removed = remove(parent.as_fd(), c"tree", &looking()).expect("removed");
        assert_eq!(removed, 10_000 + 6_000 + 4);
        assert!(!root.path().join("tree").exists());
        assert!(outside.join("canary").exists());
        assert_eq!(remove(parent.as_fd(), c"tree", &looking()).expect("gone already"), 0);
        symlink(&outside, root.path().join("tree")).expect("link");
        assert_eq!(remove(parent.as_fd(), c"tree", &looking()).expect("the link"), 1);
        assert!(outside.join("canary").exists());
    }

    #[test]
    fn a_removal_that_nobody_waits_for_stops() {
        let root = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(root.path().join("tree/inner")).expect("made");
        let looking = looking();
        looking.stop.cancel();
        let error = remove(open(root.path()).as_fd(), c"tree", &looking).expect_err("stopped");
        assert_eq!(error.code, "cancelled");
        assert!(root.path().join("tree/inner").exists());
    }

    fn open(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("opened")
    }
}
