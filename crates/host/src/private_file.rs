//! Files that no other user may read or change, written so that a crash leaves the old or the new content.

mod walk;

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

/// Why a private file was not written or not trusted. The message names the file and the command that fixes it.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
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
    /// It is a symbolic link, which could be changed after the check.
    #[error("{path} is a symbolic link; put the file itself there", path = .path.display())]
    Symlink {
        /// The file.
        path: PathBuf,
    },
    /// It is not a regular file.
    #[error("{path} is not a regular file", path = .path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Its owner could change it.
    #[error("{path} is owned by user {owner}; run: chown {wanted} {path}", path = .path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The required owner.
        wanted: u32,
    },
    /// Others could change it.
    #[error("{path} can be changed by its group or by everybody (mode {mode:04o}); run: chmod go-w {path}", path = .path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Others could read the secret.
    #[error("{path} can be read by others (mode {mode:04o}); run: chmod 600 {path}", path = .path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is larger than any valid file.
    #[error("{path} has more than {limit} bytes", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> PrivateFileError {
    let path = path.to_owned();
    move |source| PrivateFileError::Io { what, path, source }
}

/// Writes `bytes` with mode 0600: temporary file, fsync, rename, fsync of the folder.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), PrivateFileError> {
    write_with_mode(path, bytes, 0o600)
}

/// Like [`write`], with another mode for files that others may read.
pub fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PrivateFileError> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let result = write_temporary(&temporary, bytes, mode)
        .and_then(|()| std::fs::rename(&temporary, path).map_err(io("rename onto", path)))
        .and_then(|()| sync_folder(folder));
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

/// Replaces the content of a trusted file; it keeps its mode and its group.
pub fn rewrite_trusted(path: &Path, bytes: &[u8]) -> Result<(), PrivateFileError> {
    let stat = walk::to_file(path)?.stat()?;
    check_file(path, &stat)?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
    let group = Some(rustix::fs::Gid::from_raw(stat.st_gid));
    // The group before the mode: changing the group clears bits of the mode.
    let result = write_temporary(&temporary, bytes, 0o600)
        .and_then(|()| rustix::fs::chown(&temporary, None, group).map_err(|errno| io("chgrp", &temporary)(errno.into())))
        .and_then(|()| {
            let mode = rustix::fs::Mode::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::chmod(&temporary, mode).map_err(|errno| io("chmod", &temporary)(errno.into()))
        })
        .and_then(|()| std::fs::rename(&temporary, path).map_err(io("rename onto", path)))
        .and_then(|()| sync_folder(folder));
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    result
}

fn write_temporary(temporary: &Path, bytes: &[u8], mode: u32) -> Result<(), PrivateFileError> {
    // A leftover of a crashed process with the same id would make create_new fail forever.
    let _ = std::fs::remove_file(temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary).map_err(io("create", temporary))?;
    file.write_all(bytes).map_err(io("write", temporary))?;
    // The umask may have removed bits that the file needs.
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(mode)).map_err(|e| io("chmod", temporary)(e.into()))?;
    file.sync_all().map_err(io("fsync", temporary))
}

/// Makes a rename or a new file in `folder` durable.
pub fn sync_folder(folder: &Path) -> Result<(), PrivateFileError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(io("fsync", folder))
}

/// Creates a folder with mode 0700 (and its parents), if it does not exist.
pub fn make_folder(path: &Path) -> Result<(), PrivateFileError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create folder", path))
}

/// Checks a folder with security-relevant files: it and all its parents belong to root or to this user, and no other user can
/// change their content.
pub fn check_folder(path: &Path) -> Result<(), PrivateFileError> {
    walk::to_folder(path)
}

/// Reads a secret. Refuses one that other users could read, change or replace.
pub fn read_secret(path: &Path, limit: u64) -> Result<Vec<u8>, PrivateFileError> {
    let mut file = walk::to_file(path)?.open()?;
    let stat = stat_of(path, &file)?;
    check_file(path, &stat)?;
    if stat.st_mode & 0o077 != 0 {
        return Err(PrivateFileError::Readable { path: path.to_owned(), mode: stat.st_mode & 0o7777 });
    }
    read_limited(path, &mut file, limit)
}

/// The identity of a trusted file when it was read, to notice a later change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default()),
        }
    }
}

/// Reads a security-relevant file: owned by root (or by this user when not root), not writable by others, not a link, and in
/// folders where no other user can replace it.
pub fn read_trusted(path: &Path, limit: u64) -> Result<(Vec<u8>, Stamp), PrivateFileError> {
    let mut file = walk::to_file(path)?.open()?;
    let stat = stat_of(path, &file)?;
    check_file(path, &stat)?;
    Ok((read_limited(path, &mut file, limit)?, Stamp::of(&stat)))
}

/// Does the checks of [`read_trusted`] without reading: cheap enough for every task.
pub fn stamp_trusted(path: &Path) -> Result<Stamp, PrivateFileError> {
    let stat = walk::to_file(path)?.stat()?;
    check_file(path, &stat)?;
    Ok(Stamp::of(&stat))
}

fn stat_of(path: &Path, file: &File) -> Result<Stat, PrivateFileError> {
    rustix::fs::fstat(file).map_err(|errno| io("stat", path)(errno.into()))
}

fn check_file(path: &Path, stat: &Stat) -> Result<(), PrivateFileError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(PrivateFileError::NotAFile { path: path.to_owned() });
    }
    walk::check_owner(path, stat)?;
    if stat.st_mode & 0o022 != 0 {
        return Err(PrivateFileError::Writable { path: path.to_owned(), mode: stat.st_mode & 0o7777 });
    }
    Ok(())
}

fn read_limited(path: &Path, file: &mut File, limit: u64) -> Result<Vec<u8>, PrivateFileError> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io("read", path))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(PrivateFileError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn what_is_written_can_be_read_back_and_only_by_its_owner() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        write(&path, b"secret").expect("written");
        assert_eq!(path.metadata().expect("meta").mode() & 0o7777, 0o600);
        assert_eq!(read_secret(&path, 100).expect("read"), b"secret");
        write(&path, b"other").expect("written again");
        assert_eq!(read_secret(&path, 100).expect("read"), b"other");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_the_command_to_run() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        write(&path, b"secret").expect("written");
        chmod(&path, 0o640);
        let error = read_secret(&path, 100).expect_err("refused").to_string();
        assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
    }

    #[test]
    fn a_trusted_file_must_not_be_writable_linked_or_in_an_open_folder() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy");
        write(&path, b"x").expect("written");
        assert!(read_trusted(&path, 10).is_ok());
        for mode in [0o620, 0o602, 0o666] {
            chmod(&path, mode);
            assert!(matches!(read_trusted(&path, 10), Err(PrivateFileError::Writable { .. })), "{mode:o}");
            assert!(matches!(stamp_trusted(&path), Err(PrivateFileError::Writable { .. })), "{mode:o}");
        }
        chmod(&path, 0o644);
        chmod(folder.path(), 0o777);
        assert!(matches!(read_trusted(&path, 10), Err(PrivateFileError::Writable { .. })));
        chmod(folder.path(), 0o700);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(matches!(read_trusted(&link, 10), Err(PrivateFileError::Symlink { .. })));
        assert!(matches!(stamp_trusted(&link), Err(PrivateFileError::Symlink { .. })));
        assert!(matches!(read_trusted(folder.path(), 10), Err(PrivateFileError::NotAFile { .. })));
        assert!(matches!(read_trusted(&path, 0), Err(PrivateFileError::TooLarge { .. })));
    }

    #[test]
    fn a_link_on_the_way_counts_only_where_nobody_else_could_have_made_it() {
        let folder = tempfile::tempdir().expect("folder");
        let (real, open) = (folder.path().join("real"), folder.path().join("open"));
        for made in [&real, &open] {
            std::fs::create_dir(made).expect("made");
            chmod(made, 0o755);
        }
        write(&real.join("policy"), b"x").expect("written");
        let absolute = folder.path().join("absolute");
        std::os::unix::fs::symlink(&real, &absolute).expect("link");
        let relative = open.join("relative");
        std::os::unix::fs::symlink("../real", &relative).expect("link");
        for way in [&absolute, &relative] {
            assert_eq!(read_trusted(&way.join("policy"), 10).expect("a link of ours").0, b"x");
        }
        // A user who can write the folder of a link can change the link, and a user who can write a folder behind it can replace
        // the file.
        chmod(&open, 0o777);
        assert!(matches!(stamp_trusted(&relative.join("policy")), Err(PrivateFileError::Writable { path, .. }) if path == open));
        chmod(&open, 0o755);
        chmod(&real, 0o775);
        for way in [&absolute, &relative] {
            assert!(matches!(read_trusted(&way.join("policy"), 10), Err(PrivateFileError::Writable { .. })));
            assert!(matches!(stamp_trusted(&way.join("policy")), Err(PrivateFileError::Writable { .. })));
        }
        chmod(&real, 0o755);
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).expect("link");
        assert!(matches!(read_trusted(&circle.join("policy"), 10), Err(PrivateFileError::Symlink { .. })));
    }

    #[test]
    fn a_folder_or_link_that_belongs_to_somebody_else_leads_nowhere() {
        if !rustix::process::geteuid().is_root() {
            // Only root can create files of others.
            return;
        }
        let stranger = Some(rustix::fs::Uid::from_raw(12_345));
        let own = |path: &Path| {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(rustix::fs::CWD, path, stranger, None, flags).expect("chown");
        };
        let folder = tempfile::tempdir().expect("folder");
        let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
        for made in [&theirs, &ours] {
            std::fs::create_dir(made).expect("made");
            write(&made.join("policy"), b"x").expect("written");
        }
        own(&theirs);
        let is_theirs =
            |result: Result<Stamp, PrivateFileError>| matches!(result, Err(PrivateFileError::Owner { owner: 12_345, .. }));
        assert!(is_theirs(stamp_trusted(&theirs.join("policy"))), "a folder of theirs");
        assert!(is_theirs(read_trusted(&theirs.join("policy"), 10).map(|(_, stamp)| stamp)));
        assert!(matches!(read_secret(&theirs.join("policy"), 10), Err(PrivateFileError::Owner { .. })));
        assert!(matches!(check_folder(&theirs), Err(PrivateFileError::Owner { .. })));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&ours, &link).expect("link");
        assert!(stamp_trusted(&link.join("policy")).is_ok());
        own(&link);
        assert!(is_theirs(stamp_trusted(&link.join("policy"))), "a link of theirs");
        own(&ours.join("policy"));
        assert!(is_theirs(stamp_trusted(&ours.join("policy"))), "a file of theirs");
    }

    #[test]
    fn a_rewritten_file_keeps_its_mode_and_group_and_is_still_trusted() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy");
        write_with_mode(&path, b"x", 0o640).expect("written");
        if rustix::process::geteuid().is_root() {
            rustix::fs::chown(&path, None, Some(rustix::fs::Gid::from_raw(12_345))).expect("chgrp");
        }
        let before = path.metadata().expect("meta");
        rewrite_trusted(&path, b"y").expect("written again");
        let after = path.metadata().expect("meta");
        assert_eq!((after.mode(), after.gid()), (before.mode(), before.gid()));
        assert_eq!(read_trusted(&path, 10).expect("read").0, b"y");
        chmod(&path, 0o666);
        assert!(matches!(rewrite_trusted(&path, b"z"), Err(PrivateFileError::Writable { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_changed_file_has_another_stamp() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy");
        write(&path, b"x").expect("written");
        let (_, before) = read_trusted(&path, 10).expect("read");
        assert_eq!(stamp_trusted(&path).expect("stamp"), before);
        write(&path, b"y").expect("written");
        assert_ne!(stamp_trusted(&path).expect("stamp"), before);
    }
}
