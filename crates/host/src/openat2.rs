//! Files of a folder that is held by descriptor. No name leads out of it: not by a link, not by `..`, not by an entry that is
//! replaced between two calls.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

/// Maximum number of entries of one of our folders; more were added by someone else.
pub(crate) const MOST_ENTRIES: usize = 4096;
/// Deepest tree that is removed.
const MOST_DEPTH: usize = 16;
/// Maximum number of entries that one removal deletes, including those that reappear.
const MOST_REMOVED: usize = 100_000;
/// Maximum number of attempts of a call that the kernel could not finish because of concurrent renames.
const MOST_TRIES: usize = 64;

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeneathError {
    /// A system error.
    #[error("cannot {what} {path}", path = .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// It leads elsewhere.
    #[error("{path} is a link, or not the kind of file that belongs there; nothing was done with it", path = .path.display())]
    Escapes {
        /// The file.
        path: PathBuf,
    },
    /// It is larger than any valid file.
    #[error("{path} has more than {limit} {unit}", path = .path.display())]
    TooLarge {
        /// The file or folder.
        path: PathBuf,
        /// The limit.
        limit: u64,
        /// The unit.
        unit: &'static str,
    },
}

type Result<T> = std::result::Result<T, BeneathError>;

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// The path for messages.
    path: PathBuf,
}

impl Folder {
    /// Opens the folder at this path, or returns `None` if it does not exist. Its last component must not be a link.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: path.to_owned() })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR) => Err(BeneathError::Escapes { path: path.to_owned() }),
            Err(errno) => Err(failed("open", path, errno)),
        }
    }

    /// Opens the folder at this path. Creates it and its parents with this mode if it does not exist.
    pub(crate) fn make(path: &Path, mode: u32) -> Result<Self> {
        let io = |source| BeneathError::Io { what: "make the folder", path: path.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(io)?;
        let folder = Self::open(path)?.ok_or_else(|| failed("open", path, Errno::NOENT))?;
        folder.allow(mode)?;
        Ok(folder)
    }

    /// Opens a folder in this one, or returns `None` if it does not exist.
    pub(crate) fn inner(&self, name: &str) -> Result<Option<Self>> {
        match self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: self.path.join(name) })),
            Err(Errno::NOENT) => Ok(None),
            // The kernel's error for a link where a folder is expected.
            Err(Errno::NOTDIR) => Err(BeneathError::Escapes { path: self.path.join(name) }),
            Err(errno) => Err(failed("open", &self.path.join(name), errno)),
        }
    }

    /// Opens a folder in this one. Creates it with this mode if it does not exist.
    pub(crate) fn make_inner(&self, name: &str, mode: u32) -> Result<Self> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make the folder", &self.path.join(name), errno)),
        }
        let inner = self.inner(name)?.ok_or_else(|| failed("open", &self.path.join(name), Errno::NOENT))?;
        // The umask may have removed bits that the folder needs.
        inner.allow(mode)?;
        self.sync()?;
        Ok(inner)
    }

    /// Like [`Self::make_inner`], and sets its owner, whatever it was before.
    pub(crate) fn make_inner_of(&self, name: &str, mode: u32, owner: Owner) -> Result<Self> {
        let inner = self.make_inner(name, mode)?;
        rustix::fs::fchown(&inner.fd, Some(owner.user()), Some(owner.group()))
            .map_err(|errno| failed("chown", &inner.path, errno))?;
        Ok(inner)
    }

    fn allow(&self, mode: u32) -> Result<()> {
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode)).map_err(|errno| failed("chmod", &self.path, errno))
    }

    /// Returns its path, for messages and for programs that take only paths.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the folder. The lock ends with the returned value, or with the process.
    pub(crate) fn lock(&self) -> Result<Locked> {
        // A separate description: locks of one description do not exclude each other.
        let fd = self.open_at(".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(|errno| failed("open", &self.path, errno))?;
        loop {
            match rustix::fs::flock(&fd, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Locked { _fd: fd }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed("lock", &self.path, errno)),
            }
        }
    }

    /// Opens an existing regular file with one link, or returns `None` if it does not exist.
    pub(crate) fn file(&self, name: &str, access: Access) -> Result<Option<File>> {
        // A pipe must not block the caller.
        let flags = OFlags::NONBLOCK
            | match access {
                Access::Read => OFlags::RDONLY,
                Access::Change => OFlags::RDWR,
            };
        let file = match self.open_at(name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("open", &self.path.join(name), errno)),
        };
        let meta = file.metadata().map_err(|source| self.io("stat", name, source))?;
        if meta.is_file() && meta.nlink() <= 1 {
            Ok(Some(file))
        } else {
            Err(BeneathError::Escapes { path: self.path.join(name) })
        }
    }

    /// Reads a file, or returns `None` if it does not exist.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name, Access::Read)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|source| self.io("read", name, source))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
            return Err(BeneathError::TooLarge { path: self.path.join(name), limit, unit: "bytes" });
        }
        Ok(Some(bytes))
    }

    /// Writes a file atomically and durably.
    pub(crate) fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let temporary = self.write_temporary(name, bytes, mode, None)?;
        self.publish(&temporary, name)
    }

    /// Writes a file atomically and durably, and sets its owner.
    pub(crate) fn write_of(&self, name: &str, bytes: &[u8], mode: u32, owner: Owner) -> Result<()> {
        let temporary = self.write_temporary(name, bytes, mode, Some(owner))?;
        self.publish(&temporary, name)
    }

    /// Writes a file under a temporary name, to be checked before it is [published](Self::publish).
    pub(crate) fn stage(&self, name: &str, bytes: &[u8], mode: u32) -> Result<String> {
        self.write_temporary(name, bytes, mode, None)
    }

    /// Renames a staged file to its final name. If that fails, the file is removed.
    pub(crate) fn publish(&self, temporary: &str, name: &str) -> Result<()> {
        let renamed = rustix::fs::renameat(&self.fd, temporary, &self.fd, name);
        if let Err(errno) = renamed {
            self.forget(temporary);
            return Err(failed("rename onto", &self.path.join(name), errno));
        }
        self.sync()
    }

    /// Writes a new file. Returns false if it already exists: of several concurrent callers, one writes.
    pub(crate) fn write_new(&self, name: &str, bytes: &[u8], mode: u32) -> Result<bool> {
        let temporary = self.write_temporary(name, bytes, mode, None)?;
        // Not by a hard link: a crash between linking and unlinking would leave a file with two names.
        let published = rustix::fs::renameat_with(&self.fd, &temporary, &self.fd, name, RenameFlags::NOREPLACE);
        let Err(errno) = published else { return self.sync().map(|()| true) };
        self.forget(&temporary);
        if errno == Errno::EXIST { Ok(false) } else { Err(failed("create", &self.path.join(name), errno)) }
    }

    /// Writes a file whose name starts with a dot, which readers of folders (such as dnsmasq) ignore.
    fn write_temporary(&self, name: &str, bytes: &[u8], mode: u32, owner: Option<Owner>) -> Result<String> {
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| self.io("choose a name for", name, std::io::Error::other(error)))?;
        let temporary = format!(".{name}.{}.tmp", gpuaas_contract::hex(&random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = self.open_at(&temporary, flags, Mode::from_raw_mode(mode));
        let mut file = File::from(fd.map_err(|errno| failed("create", &self.path.join(&temporary), errno))?);
        let written = file
            .write_all(bytes)
            .and_then(|()| Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?))
            .and_then(|()| match owner {
                Some(owner) => Ok(rustix::fs::fchown(&file, Some(owner.user()), Some(owner.group()))?),
                None => Ok(()),
            })
            .and_then(|()| file.sync_all());
        if let Err(source) = written {
            self.forget(&temporary);
            return Err(self.io("write", &temporary, source));
        }
        Ok(temporary)
    }

    /// Removes a temporary file, if possible.
    pub(crate) fn forget(&self, temporary: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, temporary, AtFlags::empty());
    }

    /// Removes unfinished writes after a crash. Call it only under a lock that every writer holds.
    pub(crate) fn forget_temporaries(&self) -> Result<()> {
        for name in self.names()?.iter().filter(|name| name.starts_with('.') && name.ends_with(".tmp")) {
            self.forget(name);
        }
        Ok(())
    }

    /// Moves a file of an inner folder here, and replaces an existing one.
    pub(crate) fn take_from(&self, inner: &Self, name: &str, new_name: &str) -> Result<()> {
        rustix::fs::renameat(&inner.fd, name, &self.fd, new_name)
            .map_err(|errno| failed("rename onto", &self.path.join(new_name), errno))?;
        self.sync()
    }

    /// Removes a file or a link. It may already be gone.
    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            // A removal just before a crash may not be durable yet.
            Ok(()) | Err(Errno::NOENT) => self.sync(),
            Err(errno) => Err(failed("remove", &self.path.join(name), errno)),
        }
    }

    /// Removes an entry with its content. Links are removed, never followed; other file systems are never entered.
    pub(crate) fn remove_tree(&self, name: &str) -> Result<()> {
        let mut left = MOST_REMOVED;
        let entry = CString::new(name).map_err(|_| BeneathError::Escapes { path: self.path.clone() })?;
        self.remove_entry(&entry, MOST_DEPTH, &mut left)?;
        self.sync()
    }

    fn remove_entry(&self, name: &CStr, depth: usize, left: &mut usize) -> Result<()> {
        let path = || self.path.join(OsStr::from_bytes(name.to_bytes()));
        for _ in 0..MOST_TRIES {
            *left = left.checked_sub(1).ok_or_else(|| BeneathError::TooLarge {
                path: path(),
                limit: u64::try_from(MOST_REMOVED).unwrap_or(u64::MAX),
                unit: "entries",
            })?;
            match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // The error for a folder on Linux, and in POSIX.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(errno) => return Err(failed("remove", &path(), errno)),
            }
            let inner = match self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
                Ok(fd) => Self { fd, path: path() },
                Err(Errno::NOENT) => return Ok(()),
                // Replaced with a link or a file in the meantime: the next round removes that by its name.
                Err(Errno::LOOP | Errno::NOTDIR) => continue,
                Err(errno) => return Err(failed("open", &path(), errno)),
            };
            let depth = depth.checked_sub(1).ok_or_else(|| BeneathError::TooLarge {
                path: path(),
                limit: u64::try_from(MOST_DEPTH).unwrap_or(u64::MAX),
                unit: "folders below each other",
            })?;
            for entry in inner.entries()? {
                inner.remove_entry(&entry, depth, left)?;
            }
            match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // Something was added, or it was replaced: try again.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                Err(errno) => return Err(failed("remove", &path(), errno)),
            }
        }
        Err(failed("remove", &path(), Errno::BUSY))
    }

    /// Returns the names of its entries, sorted. Names that are not valid text are not ours and are left out.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.entries()?.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn entries(&self) -> Result<Vec<CString>> {
        let io = |errno| failed("list", &self.path, errno);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(io)? {
            let entry = entry.map_err(io)?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            if entries.len() == MOST_ENTRIES {
                let limit = u64::try_from(MOST_ENTRIES).unwrap_or(u64::MAX);
                return Err(BeneathError::TooLarge { path: self.path.clone(), limit, unit: "entries" });
            }
            entries.push(entry.file_name().to_owned());
        }
        Ok(entries)
    }

    /// Returns whether an entry is a folder itself, not a link to one.
    pub(crate) fn is_folder(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Returns whether there is an entry with this name, of any kind.
    pub(crate) fn has(&self, name: &str) -> Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("stat", &self.path.join(name), errno)),
        }
    }

    /// Returns the folder itself.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes creations, renames and removals in it durable.
    pub(crate) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|errno| failed("fsync", &self.path, errno))
    }

    fn open_at(&self, name: impl rustix::path::Arg + Copy, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        for _ in 0..MOST_TRIES {
            match rustix::fs::openat2(self.fd.as_fd(), name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode, resolve) {
                // The kernel saw a concurrent rename and cannot guarantee that nothing escaped.
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    fn io(&self, what: &'static str, name: &str, source: std::io::Error) -> BeneathError {
        BeneathError::Io { what, path: self.path.join(name), source }
    }
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The user.
    pub(crate) uid: u32,
    /// The group.
    pub(crate) gid: u32,
}

impl Owner {
    fn user(self) -> rustix::fs::Uid {
        rustix::fs::Uid::from_raw(self.uid)
    }

    fn group(self) -> rustix::fs::Gid {
        rustix::fs::Gid::from_raw(self.gid)
    }
}

/// A held lock.
#[derive(Debug)]
pub(crate) struct Locked {
    _fd: OwnedFd,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    Change,
}

fn failed(what: &'static str, path: &Path, errno: Errno) -> BeneathError {
    match errno {
        // A link, a way out, another file system.
        Errno::LOOP | Errno::XDEV => BeneathError::Escapes { path: path.to_owned() },
        errno => BeneathError::Io { what, path: path.to_owned(), source: errno.into() },
    }
}
