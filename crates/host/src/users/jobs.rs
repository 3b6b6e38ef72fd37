//! Jobs that would start for a user, and kernel objects that outlive its processes.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use gpuaas_contract::slice::UserName;

use super::account::installed;
use super::{Traces, files, mounts};
use crate::HostError;
use crate::exec::Exec;
use crate::guests::blocking;
use crate::openat2::{BeneathError, Folder};

const IPCRM: &[&str] = &["/usr/bin/ipcrm", "/bin/ipcrm"];
const NSENTER: &[&str] = &["/usr/bin/nsenter", "/bin/nsenter"];
/// Folders where a file with the user's name belongs to the user: crontabs, lingering services, mail.
const BY_NAME: [&str; 5] = ["var/spool/cron/crontabs", "var/spool/cron", "var/lib/systemd/linger", "var/mail", "var/spool/mail"];
/// Folders where the owner of a file is the owner of the job: those of at.
const BY_OWNER: [&str; 2] = ["var/spool/cron/atjobs", "var/spool/at"];
/// Kinds of shared kernel objects: the table, the column with the number, and the option of `ipcrm`.
const SHARED: [(&str, &str, &str); 3] = [("shm", "shmid", "-m"), ("sem", "semid", "-s"), ("msg", "msqid", "-q")];
/// Size limit of one of these tables.
const TABLE_CAP: u64 = 16 * 1024 * 1024;
const SHORT: Duration = Duration::from_secs(10);

/// Removes all of them.
pub(super) async fn end(root: &Path, traces: &Traces) -> Result<(), HostError> {
    let (folder, name, uid) = (root.to_owned(), traces.name.clone(), traces.uid);
    let removed = blocking(move || {
        for path in BY_NAME {
            remove_named(&folder.join(path), &name)?;
        }
        for path in BY_OWNER {
            if let Some(uid) = uid {
                files::remove_owned(&folder.join(path), uid)?;
            }
        }
        Ok(())
    });
    removed.await?;
    let Some(uid) = traces.uid else { return Ok(()) };
    super::check_number(uid)?;
    for (option, id) in blocking(move || shared(uid)).await? {
        // It may disappear at the same time; the final check shows whether it is gone.
        let _ = Exec::new(installed(IPCRM)?).arg(option).arg(id.to_string()).deadline(SHORT).run().await;
    }
    for mount in blocking(mounts::read).await?.into_iter().filter(|mount| mount.is_of(uid)) {
        let exec = Exec::new(installed(NSENTER)?).arg("--target").arg("1").arg("--mount").arg("--");
        let exec = exec.arg("/bin/umount").arg("--lazy").arg("--no-canonicalize").arg("--").arg(&mount.at);
        if let Err(error) = exec.deadline(SHORT).run().await {
            tracing::warn!(%error, at = %mount.at.display(), "a file system that a tenant mounted cannot be unmounted");
        }
    }
    Ok(())
}

/// Describes what is left.
pub(super) fn left(root: &Path, traces: &Traces) -> Result<Vec<String>, HostError> {
    let mut left = Vec::new();
    for path in BY_NAME {
        let Some(folder) = spool(&root.join(path))? else { continue };
        if folder.has(traces.name.as_str()).map_err(failed)? && !folder.is_folder(traces.name.as_str()) {
            left.push(format!("/{path}/{}", traces.name));
        }
    }
    if let Some(uid) = traces.uid {
        left.extend(shared(uid)?.into_iter().map(|(option, id)| format!("shared by the kernel: ipcrm {option} {id}")));
        let mounted = mounts::read()?.into_iter().filter(|mount| mount.is_of(uid));
        left.extend(mounted.map(|mount| format!("mounted at {}", mount.at.display())));
    }
    Ok(left)
}

fn remove_named(path: &Path, name: &UserName) -> Result<(), HostError> {
    match spool(path)? {
        Some(folder) if !folder.is_folder(name.as_str()) => folder.remove_file(name.as_str()).map_err(failed),
        Some(_) | None => Ok(()),
    }
}

fn spool(path: &Path) -> Result<Option<Folder>, HostError> {
    match Folder::open(path) {
        Ok(folder) => Ok(folder),
        // `/var/mail` and `/var/spool/mail` are often the same folder, through a link.
        Err(BeneathError::Escapes { .. }) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Returns the kernel objects of a user number: the option of `ipcrm`, and their ids.
fn shared(uid: u32) -> Result<Vec<(&'static str, u64)>, HostError> {
    let mut found = Vec::new();
    for (table, column, option) in SHARED {
        let path = Path::new("/proc/sysvipc").join(table);
        let mut text = String::new();
        match std::fs::File::open(&path).and_then(|file| file.take(TABLE_CAP).read_to_string(&mut text)) {
            Ok(_) => found.extend(parse_shared(&text, column, uid).into_iter().map(|id| (option, id))),
            // A kernel without this feature has no such objects.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(HostError::because("user_traces", &path.display().to_string(), &error)),
        }
    }
    Ok(found)
}

/// Returns the ids of the lines whose owner or creator is this user.
fn parse_shared(table: &str, column: &str, uid: u32) -> Vec<u64> {
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let place = |name: &str| header.iter().position(|word| *word == name);
    let Some((id, (owner, maker))) = place(column).zip(place("uid").zip(place("cuid"))) else { return Vec::new() };
    let of_line = |line: &str| {
        let words: Vec<u64> = line.split_ascii_whitespace().map(|word| word.parse().unwrap_or(u64::MAX)).collect();
        let theirs = [owner, maker].iter().any(|place| words.get(*place) == Some(&u64::from(uid)));
        words.get(id).copied().filter(|_| theirs)
    };
    lines.filter_map(of_line).collect()
}

fn failed(error: BeneathError) -> HostError {
    HostError::because("user_traces", "what was kept for a user", &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_found_by_owner_and_by_maker() {
        let table = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime\n\
                     \x20        0          5  1600                524288  1234  1235      2 20000 20000 20000 20000 0\n\
                     \x20        0          6   600                  4096     1     1      0     0     0 20000 20000 0\n\
                     \x20        0          7   600                  4096     1     1      0     0     0     0     0 0\n";
        assert_eq!(parse_shared(table, "shmid", 20_000), [5, 6]);
        assert_eq!(parse_shared(table, "shmid", 2000), [0; 0]);
        assert_eq!(parse_shared("", "shmid", 20_000), [0; 0]);
    }

    #[test]
    fn tables_and_marks_of_the_name_go_and_those_of_others_stay() {
        let root = tempfile::tempdir().expect("folder");
        for folder in BY_NAME {
            std::fs::create_dir_all(root.path().join(folder)).expect("made");
            for name in ["tenant-1", "tenant-10"] {
                std::fs::write(root.path().join(folder).join(name), b"x").expect("written");
            }
        }
        let traces = Traces { name: "tenant-1".parse().expect("a name"), uid: None };
        assert_eq!(left(root.path(), &traces).expect("looked").len(), BY_NAME.len());
        for folder in BY_NAME {
            remove_named(&root.path().join(folder), &traces.name).expect("removed");
            remove_named(&root.path().join(folder), &traces.name).expect("gone already");
            assert!(root.path().join(folder).join("tenant-10").exists());
        }
        assert_eq!(left(root.path(), &traces).expect("looked"), [""; 0]);
        let folder: UserName = "crontabs".parse().expect("a name");
        remove_named(&root.path().join("var/spool/cron"), &folder).expect("a folder is nobody's table");
        assert!(root.path().join("var/spool/cron/crontabs/tenant-10").exists());
    }
}
