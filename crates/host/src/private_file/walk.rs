//! Walks from `/` to a file, step by step and by descriptor: only root and this user may be able to redirect it.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{PrivateFileError, io};

/// Maximum number of links on one path.
const MOST_LINKS: usize = 16;
/// Maximum number of steps of one path.
const MOST_STEPS: usize = 256;

/// A file's folder, held by descriptor, and the file's name in it.
#[derive(Debug)]
pub(super) struct Place {
    folder: OwnedFd,
    name: OsString,
    /// The path for messages.
    path: PathBuf,
}

/// Walks to the folder of a file. Every folder on the way belongs to root or to this user, and no other user can change its
/// content; a sticky folder (like `/tmp`) protects files of root and this user. A link on the way must belong to them too.
pub(super) fn to_file(path: &Path) -> Result<Place, PrivateFileError> {
    let (folder, last) = go(path, true)?;
    let name = last.ok_or_else(|| PrivateFileError::NotAFile { path: path.to_owned() })?;
    Ok(Place { folder, name, path: path.to_owned() })
}

/// Walks to a folder in the same way.
pub(super) fn to_folder(path: &Path) -> Result<(), PrivateFileError> {
    go(path, false).map(|_| ())
}

impl Place {
    /// Opens the file; a link is not followed.
    pub(super) fn open(&self) -> Result<File, PrivateFileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.folder, &self.name, flags, Mode::empty()) {
            Ok(fd) => Ok(File::from(fd)),
            Err(Errno::LOOP) => Err(PrivateFileError::Symlink { path: self.path.clone() }),
            Err(errno) => Err(io("open", &self.path)(errno.into())),
        }
    }

    /// Returns the status of the file, without opening it.
    pub(super) fn stat(&self) -> Result<Stat, PrivateFileError> {
        let stat = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| io("stat", &self.path)(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(PrivateFileError::Symlink { path: self.path.clone() });
        }
        Ok(stat)
    }
}

/// Walks the path. With `keep_last`, the last step is returned and not taken.
fn go(path: &Path, keep_last: bool) -> Result<(OwnedFd, Option<OsString>), PrivateFileError> {
    let absolute = std::path::absolute(path).map_err(io("find", path))?;
    let mut steps: VecDeque<OsString> = names(&absolute);
    let mut reached = PathBuf::from("/");
    let mut folder = root(&reached)?;
    let (mut links, mut taken) = (0, 0);
    while let Some(step) = steps.pop_front() {
        if keep_last && steps.is_empty() {
            return Ok((folder, Some(step)));
        }
        taken += 1;
        if taken > MOST_STEPS {
            return Err(io("follow", path)(Errno::NAMETOOLONG.into()));
        }
        let next = if step == ".." { reached.parent().unwrap_or(Path::new("/")).to_owned() } else { reached.join(&step) };
        match rustix::fs::openat(
            &folder,
            &step,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd).map_err(|errno| io("stat", &next)(errno.into()))?;
                check_folder(&next, &stat)?;
                (folder, reached) = (fd, next);
            }
            Err(Errno::NOTDIR | Errno::LOOP) => {
                links += 1;
                let target = link_target(&folder, &step, &next)?;
                if links > MOST_LINKS {
                    return Err(PrivateFileError::Symlink { path: next });
                }
                if target.is_absolute() {
                    reached = PathBuf::from("/");
                    folder = root(&reached)?;
                }
                for name in names(&target).into_iter().rev() {
                    steps.push_front(name);
                }
            }
            Err(errno) => return Err(io("enter", &next)(errno.into())),
        }
    }
    Ok((folder, None))
}

fn root(path: &Path) -> Result<OwnedFd, PrivateFileError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/", flags, Mode::empty()).map_err(|errno| io("enter", path)(errno.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io("stat", path)(errno.into()))?;
    check_folder(path, &stat)?;
    Ok(fd)
}

/// Returns the steps of a path, without `.`.
fn names(path: &Path) -> VecDeque<OsString> {
    let step = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(step).collect()
}

/// Returns the target of a link that only root or this user can have created.
fn link_target(folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<PathBuf, PrivateFileError> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| io("stat", path)(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Err(io("enter", path)(Errno::NOTDIR.into()));
    }
    check_owner(path, &stat)?;
    let target = rustix::fs::readlinkat(folder, name, Vec::new()).map_err(|errno| io("read the link", path)(errno.into()))?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

pub(super) fn check_owner(path: &Path, stat: &Stat) -> Result<(), PrivateFileError> {
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != me {
        return Err(PrivateFileError::Owner { path: path.to_owned(), owner: stat.st_uid, wanted: me });
    }
    Ok(())
}

fn check_folder(path: &Path, stat: &Stat) -> Result<(), PrivateFileError> {
    check_owner(path, stat)?;
    let mode = stat.st_mode & 0o7777;
    let (writable, sticky) = (mode & 0o022 != 0, mode & 0o1000 != 0);
    if writable && !sticky {
        return Err(PrivateFileError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}
