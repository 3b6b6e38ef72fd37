//! Files of a user, anywhere on the host's own file systems.
//!
//! Each file system is searched by descriptor, folder by folder: links are not followed, nothing is kept in memory, and the
//! number of open folders is the depth of the tree. What cannot be read is reported, because then nothing is proven.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Looking, Removed, Traces, mounts, tree};
use crate::HostError;
use crate::exec::printable;
use crate::openat2::Folder;

/// Deepest tree that is searched.
const MOST_DEPTH: usize = 256;
/// Maximum number of reported paths and errors; the rest is counted.
const MOST_TOLD: usize = 16;

/// Returns the first of these user numbers that owns nothing on the host's own file systems.
pub(super) fn unused(root: &Path, candidates: &[u32], looking: Looking) -> Result<u32, HostError> {
    let mut walk = Walk::new(candidates.iter().copied().collect(), WalkAction::Find, looking);
    walk.everywhere(root)?;
    if let Some(note_error) = walk.errors.first() {
        return Err(HostError::new("files_unknown", format!("not all files of this host can be read: {note_error}")));
    }
    let free = candidates.iter().copied().find(|uid| !walk.owners.contains(uid));
    free.ok_or_else(|| {
        let message = format!("files of this host belong to every number that could be a tenant's, such as {}", walk.told());
        HostError::new("uids_taken", message)
    })
}

/// Removes the home and all files of the user's number. What cannot be removed is found by the next search.
pub(super) fn remove(root: &Path, traces: &Traces, looking: Looking) -> Result<Removed, HostError> {
    let mut removed = Removed::default();
    let homes = Folder::open(&root.join("home"))
        .map_err(|error| HostError::because("files_not_removed", "the folder of homes", &error))?;
    if let Some(homes) = homes {
        let name = CString::new(traces.name.as_str()).unwrap_or_default();
        // A half-created home belongs to root. A home of another user stays, and is reported.
        let owner = rustix::fs::statat(homes.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_uid);
        if owner.is_ok_and(|owner| owner == 0 || Some(owner) == traces.uid) {
            removed.files = tree::remove(homes.as_fd(), &name, &looking)?;
            removed.home = removed.files > 0;
        }
    }
    if let Some(uid) = traces.uid {
        let mut walk = Walk::new(BTreeSet::from([uid]), WalkAction::Remove, looking);
        walk.everywhere(root)?;
        for note_error in &walk.errors {
            tracing::warn!(uid, note_error, "a file of a tenant may be left");
        }
        removed.files += walk.found;
    }
    Ok(removed)
}

/// Removes what a user number owns in one folder.
pub(super) fn remove_owned(path: &Path, uid: u32) -> Result<(), HostError> {
    let looking = Looking { seen: std::sync::Arc::default(), stop: tokio_util::sync::CancellationToken::new() };
    Walk::new(BTreeSet::from([uid]), WalkAction::Remove, looking).place(path)
}

/// Describes what a user number owns, and what could not be read.
pub(super) fn owned(root: &Path, uid: u32, looking: Looking) -> Result<Vec<String>, HostError> {
    let mut walk = Walk::new(BTreeSet::from([uid]), WalkAction::Find, looking);
    walk.everywhere(root)?;
    let mut left = Vec::new();
    if walk.found > 0 {
        left.push(format!("{} files of number {uid}: {}", walk.found, walk.told()));
    }
    left.extend(walk.errors);
    Ok(left)
}

/// The action for each found entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkAction {
    /// Count it.
    Find,
    /// Remove it.
    Remove,
}

/// A search through the host's files.
struct Walk {
    /// The user numbers to find.
    wanted: BTreeSet<u32>,
    action: WalkAction,
    looking: Looking,
    /// The current path.
    path: PathBuf,
    /// The number of found or removed entries.
    found: u64,
    /// Some of their paths.
    paths: Vec<String>,
    /// The user numbers that were found.
    owners: BTreeSet<u32>,
    /// What could not be read or removed.
    errors: Vec<String>,
}

/// A folder that is being searched.
struct Level {
    dir: Dir,
    /// Its name in its parent; `None` at the top.
    name: Option<CString>,
    theirs: bool,
}

impl Level {
    fn fd(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.dir.fd()
    }
}

impl Walk {
    fn new(wanted: BTreeSet<u32>, action: WalkAction, looking: Looking) -> Self {
        let (paths, owners, errors) = (Vec::new(), BTreeSet::new(), Vec::new());
        Self { wanted, action, looking, path: PathBuf::new(), found: 0, paths, owners, errors }
    }

    fn told(&self) -> String {
        self.paths.join(", ")
    }

    fn everywhere(&mut self, root: &Path) -> Result<(), HostError> {
        for place in mounts::own(&mounts::read()?) {
            self.place(&root.join(place.strip_prefix("/").unwrap_or(&place)))?;
        }
        Ok(())
    }

    /// Searches everything below a path on one mount.
    fn place(&mut self, path: &Path) -> Result<(), HostError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        path.clone_into(&mut self.path);
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            // A file can be a mount point too, and mounts change.
            Err(Errno::NOTDIR | Errno::NOENT) => return Ok(()),
            Err(errno) => {
                self.note_error("open", errno);
                return Ok(());
            }
        };
        let Some(stat) = self.asked("look at", rustix::fs::fstat(&fd)) else { return Ok(()) };
        let mut levels: Vec<Level> = self.level(fd, None, stat.st_uid).into_iter().collect();
        while let Some(level) = levels.last_mut() {
            let entry = match level.dir.read() {
                None => {
                    if let Some(level) = levels.pop() {
                        self.leave(&level, levels.last());
                    }
                    continue;
                }
                Some(Ok(entry)) => entry,
                Some(Err(errno)) => {
                    self.note_error("list", errno);
                    // It would fail again forever.
                    levels.pop();
                    self.path.pop();
                    continue;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let seen = self.looking.seen.fetch_add(1, Ordering::Relaxed);
            if seen.is_multiple_of(256) {
                self.looking.check()?;
            }
            let depth = levels.len();
            let Some(Ok(folder)) = levels.last().map(Level::fd) else { break };
            if let Some(deeper) = self.entry(folder, name, depth)? {
                levels.push(deeper);
            }
        }
        Ok(())
    }

    /// Handles an entry and returns a folder to search next.
    fn entry(&mut self, folder: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Option<Level>, HostError> {
        self.path.push(OsStr::from_bytes(name.to_bytes()));
        let level = self.entry_at(folder, name, depth);
        if !matches!(level, Ok(Some(_))) {
            self.path.pop();
        }
        level
    }

    fn entry_at(&mut self, folder: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Option<Level>, HostError> {
        let Some(stat) = self.asked("look at", rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)) else {
            return Ok(None);
        };
        let theirs = self.wanted.contains(&stat.st_uid);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            if theirs {
                self.meet(&stat);
                self.remove(folder, name, &stat);
            }
            return Ok(None);
        }
        if depth >= MOST_DEPTH {
            self.too_deep(folder, name, theirs, &stat)?;
            return Ok(None);
        }
        match tree::open_folder(folder, name) {
            Ok(fd) => Ok(self.level(fd, Some(name.to_owned()), stat.st_uid)),
            // Another mount, which is searched separately if it is the host's own; or it was just removed or replaced.
            Err(Errno::XDEV | Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => Ok(None),
            Err(errno) => {
                self.note_error("open", errno);
                Ok(None)
            }
        }
    }

    /// Handles a tree that is too deep, which can only be meant to hide something.
    fn too_deep(&mut self, folder: BorrowedFd<'_>, name: &CStr, theirs: bool, stat: &Stat) -> Result<(), HostError> {
        match (theirs, self.action) {
            (true, WalkAction::Remove) => match tree::remove(folder, name, &self.looking) {
                Ok(count) => self.found += count,
                Err(error) if error.code == "cancelled" => return Err(error),
                Err(error) => self.told_trouble(error.message),
            },
            (true, WalkAction::Find) => self.meet(stat),
            (false, _) => self.told_trouble(format!("{} has more than {MOST_DEPTH} folders below each other", self.shown())),
        }
        Ok(())
    }

    fn level(&mut self, fd: OwnedFd, name: Option<CString>, uid: u32) -> Option<Level> {
        let theirs = self.wanted.contains(&uid);
        if theirs {
            self.owners.insert(uid);
        }
        let dir = self.asked("list", Dir::new(fd))?;
        Some(Level { dir, name, theirs })
    }

    /// Leaves a folder after its search: removes it, if that is the action and it belongs to the user.
    fn leave(&mut self, level: &Level, above: Option<&Level>) {
        if level.theirs {
            self.count();
            if self.action == WalkAction::Remove {
                self.remove_folder(level, above);
            }
        }
        self.path.pop();
    }

    fn remove_folder(&mut self, level: &Level, above: Option<&Level>) {
        if let Some((name, above)) = level.name.as_ref().zip(above) {
            match above.fd().and_then(|above| rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)) {
                Ok(()) | Err(Errno::NOENT) => return,
                // It contains files or a mount of others: it stays, with another owner.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => {}
                Err(errno) => return self.note_error("remove", errno),
            }
        }
        let given = level.fd().and_then(|folder| {
            rustix::fs::fchown(folder, Some(Uid::ROOT), Some(Gid::ROOT))?;
            rustix::fs::fchmod(folder, Mode::RWXU)
        });
        if let Err(errno) = given {
            self.note_error("give to root", errno);
        }
    }

    /// Removes an entry that is not a folder. A device stays, with another owner: others may need it.
    fn remove(&mut self, folder: BorrowedFd<'_>, name: &CStr, stat: &Stat) {
        if self.action == WalkAction::Find {
            return;
        }
        let is_device = matches!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice | FileType::BlockDevice);
        let result = if is_device {
            rustix::fs::chownat(folder, name, Some(Uid::ROOT), Some(Gid::ROOT), AtFlags::SYMLINK_NOFOLLOW)
        } else {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())
        };
        match result {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => self.note_error("remove", errno),
        }
    }

    fn meet(&mut self, stat: &Stat) {
        self.owners.insert(stat.st_uid);
        self.count();
    }

    fn count(&mut self) {
        self.found += 1;
        if self.paths.len() < MOST_TOLD {
            let shown = self.shown();
            self.paths.push(shown);
        }
    }

    fn shown(&self) -> String {
        let path = self.path.strip_prefix(super::HOST_ROOT).unwrap_or(&self.path);
        let path = Path::new("/").join(path);
        printable(path.as_os_str().as_bytes())
    }

    /// Returns a result, and records an error unless the entry has just disappeared.
    fn asked<T>(&mut self, what: &str, answer: rustix::io::Result<T>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                self.note_error(what, errno);
                None
            }
        }
    }

    fn note_error(&mut self, what: &str, errno: Errno) {
        let text = format!("cannot {what} {}: {}", self.shown(), std::io::Error::from(errno));
        self.told_trouble(text);
    }

    fn told_trouble(&mut self, text: String) {
        if self.errors.len() < MOST_TOLD {
            self.errors.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, lchown, symlink};

    use tokio_util::sync::CancellationToken;

    use super::*;

    const TENANT: u32 = 20_123;

    fn walk(action: WalkAction) -> Walk {
        let looking = Looking { seen: std::sync::Arc::default(), stop: CancellationToken::new() };
        Walk::new(BTreeSet::from([TENANT]), action, looking)
    }

    fn deep_tree(root: &Path, name: &str, owner: u32) {
        let mut folder = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("opened");
        for level in 0..MOST_DEPTH + 50 {
            let name = if level == 0 { name } else { "d" };
            rustix::fs::mkdirat(&folder, name, Mode::RWXU).expect("made");
            rustix::fs::chownat(&folder, name, Some(Uid::from_raw(owner)), None, AtFlags::empty()).expect("given");
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            folder = rustix::fs::openat(folder.as_fd(), name, flags, Mode::empty()).expect("opened");
        }
    }

    #[test]
    fn what_is_theirs_goes_and_what_is_not_stays() {
        if !rustix::process::geteuid().is_root() {
            return crate::skip::skipped("only root can give a file to somebody else");
        }
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        let give = |name: &str| lchown(path(name), Some(TENANT), Some(TENANT)).expect("given");
        for name in ["theirs/inner", "mixed", "mine"] {
            std::fs::create_dir_all(path(name)).expect("made");
        }
        for name in ["theirs/inner/file", "mixed/theirs", "mixed/mine", "mine/theirs", "mine/mine"] {
            std::fs::write(path(name), b"x").expect("written");
        }
        symlink(path("mine/mine"), path("link")).expect("link");
        for name in ["theirs", "theirs/inner", "theirs/inner/file", "mixed", "mixed/theirs", "mine/theirs", "link"] {
            give(name);
        }
        deep_tree(folder.path(), "deep", TENANT);

        let mut found = walk(WalkAction::Find);
        found.place(folder.path()).expect("looked");
        // The folder at the limit is seen and not entered.
        let deep = MOST_DEPTH as u64;
        assert_eq!((found.found, found.errors.len()), (7 + deep, 0), "{:?}", found.errors);
        assert_eq!(found.owners, BTreeSet::from([TENANT]));
        let mut removed = walk(WalkAction::Remove);
        removed.place(folder.path()).expect("looked");
        assert_eq!(removed.errors, [""; 0]);
        let mut left: Vec<_> = std::fs::read_dir(folder.path()).expect("list").map(|e| e.expect("entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["mine", "mixed"]);
        assert!(path("mine/mine").exists() && path("mixed/mine").exists());
        assert!(!path("mine/theirs").exists() && !path("mixed/theirs").exists());
        assert_eq!(path("mixed").metadata().expect("there").uid(), 0);
        let mut again = walk(WalkAction::Find);
        again.place(folder.path()).expect("looked");
        assert_eq!((again.found, again.owners.len()), (0, 0));
    }

    #[test]
    fn what_cannot_be_looked_at_is_said_and_a_stopped_search_says_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        deep_tree(folder.path(), "deep", rustix::process::geteuid().as_raw());
        let mut found = walk(WalkAction::Find);
        found.place(folder.path()).expect("looked");
        assert!(found.errors.len() == 1 && found.errors[0].contains("below each other"), "{:?}", found.errors);
        let mut stopped = walk(WalkAction::Find);
        stopped.looking.stop.cancel();
        assert_eq!(stopped.place(folder.path()).expect_err("stopped").code, "cancelled");
        let parent = rustix::fs::open(folder.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("opened");
        tree::remove(parent.as_fd(), c"deep", &walk(WalkAction::Find).looking).expect("removed");
    }
}
