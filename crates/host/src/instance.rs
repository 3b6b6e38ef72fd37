//! The folder of a guest: opened by descriptor beneath its parent, never by a path that could be redirected.
//!
//! All users may enter the folders, because the hypervisor's user must, and only root may list them. Every file belongs to root
//! alone: libvirt gives the seed to the hypervisor's user when the guest starts, and virtlogd, which is root, writes the console.

use std::path::Path;

use gpuaas_contract::id::AllocationId;

use crate::HostError;
use crate::guests::InstanceFile;
use crate::openat2::{BeneathError, Folder};

const FOLDER_MODE: u32 = 0o711;
const FILE_MODE: u32 = 0o600;
/// Size limit of a file that is read as a whole; a seed disk has some hundred thousand bytes.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Creates the guest's folder.
pub(crate) fn make(instances: &Path, id: AllocationId) -> Result<(), HostError> {
    let parent = Folder::make(instances, FOLDER_MODE).map_err(failed)?;
    parent.make_inner(&id.to_string(), FOLDER_MODE).map_err(failed)?;
    Ok(())
}

/// Removes the guest's folder with its content.
pub(crate) fn remove(instances: &Path, id: AllocationId) -> Result<(), HostError> {
    match Folder::open(instances).map_err(failed)? {
        Some(parent) => parent.remove_tree(&id.to_string()).map_err(failed),
        None => Ok(()),
    }
}

/// Lists the guests with a folder.
pub(crate) fn list(instances: &Path) -> Result<Vec<AllocationId>, HostError> {
    let Some(parent) = Folder::open(instances).map_err(failed)? else { return Ok(Vec::new()) };
    let names = parent.names().map_err(failed)?;
    Ok(names.iter().filter(|name| parent.is_folder(name)).filter_map(|name| name.parse().ok()).collect())
}

/// Writes a file of the guest's folder.
pub(crate) fn write(instances: &Path, id: AllocationId, file: InstanceFile, bytes: &[u8]) -> Result<(), HostError> {
    open(instances, id)?.write(file.name(), bytes, FILE_MODE).map_err(failed)
}

/// Reads a file of the guest's folder.
pub(crate) fn read(instances: &Path, id: AllocationId, file: InstanceFile) -> Result<Option<Vec<u8>>, HostError> {
    match find(instances, id)? {
        Some(folder) => folder.read(file.name(), MOST_BYTES).map_err(failed),
        None => Ok(None),
    }
}

/// Returns the guest's folder, if it has one.
pub(crate) fn find(instances: &Path, id: AllocationId) -> Result<Option<Folder>, HostError> {
    match Folder::open(instances).map_err(failed)? {
        Some(parent) => parent.inner(&id.to_string()).map_err(failed),
        None => Ok(None),
    }
}

/// Returns the guest's folder, which must exist.
pub(crate) fn open(instances: &Path, id: AllocationId) -> Result<Folder, HostError> {
    let missing = || HostError::new("instance_missing", format!("{id} has no folder under {}", instances.display()));
    find(instances, id)?.ok_or_else(missing)
}

/// Converts an error about a guest's folder.
pub(crate) fn failed(error: BeneathError) -> HostError {
    let code = match error {
        BeneathError::Escapes { .. } => "path_escapes",
        BeneathError::Io { .. } | BeneathError::TooLarge { .. } => "instance_io",
    };
    HostError::because(code, "the folder of a guest", &error)
}

/// Runs work on a guest's files on its own thread.
pub(crate) async fn on_thread<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, HostError> + Send + 'static,
) -> Result<T, HostError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => Err(HostError::because("host_error", "a thread of the agent ended", &error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.symlink_metadata().expect("meta").mode() & 0o7777
    }

    #[test]
    fn a_folder_lives_from_make_to_remove_and_both_can_be_repeated() {
        let root = tempfile::tempdir().expect("folder");
        let instances = root.path().join("a/instances");
        let (id, file) = (AllocationId::generate(), InstanceFile::TerminalKey);
        assert_eq!(list(&instances).expect("nothing"), []);
        assert_eq!(read(&instances, id, file).expect("nothing"), None);
        assert_eq!(write(&instances, id, file, b"x").expect_err("no folder").code, "instance_missing");
        for _ in 0..2 {
            make(&instances, id).expect("made");
        }
        assert_eq!((mode(&instances), mode(&instances.join(id.to_string()))), (0o711, 0o711));
        for content in [b"one".as_slice(), b"two"] {
            write(&instances, id, file, content).expect("written");
            assert_eq!(read(&instances, id, file).expect("read").expect("there"), content);
        }
        assert_eq!(mode(&instances.join(id.to_string()).join(file.name())), 0o600);
        std::fs::write(instances.join("note.txt"), b"").expect("written");
        assert_eq!(list(&instances).expect("listed"), [id]);
        std::fs::create_dir_all(instances.join(id.to_string()).join("deep/er")).expect("made");
        for _ in 0..2 {
            remove(&instances, id).expect("removed");
        }
        assert_eq!(list(&instances).expect("listed"), []);
        assert!(instances.join("note.txt").exists());
    }

    #[test]
    fn links_pipes_and_second_names_are_refused_and_removed_as_what_they_are() {
        let root = tempfile::tempdir().expect("folder");
        let (instances, outside) = (root.path().join("instances"), root.path().join("outside"));
        std::fs::create_dir(&outside).expect("made");
        std::fs::write(outside.join("known_hosts"), b"canary").expect("written");
        let (id, file) = (AllocationId::generate(), InstanceFile::KnownHosts);
        let folder = instances.join(id.to_string());
        make(&instances, id).expect("made");
        let entry = folder.join(file.name());
        symlink(outside.join("known_hosts"), &entry).expect("link");
        assert_eq!(read(&instances, id, file).expect_err("a link").code, "path_escapes");
        std::fs::remove_file(&entry).expect("removed");
        std::fs::hard_link(outside.join("known_hosts"), &entry).expect("link");
        assert_eq!(read(&instances, id, file).expect_err("a second name").code, "path_escapes");
        std::fs::remove_file(&entry).expect("removed");
        rustix::fs::mknodat(CWD, &entry, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a pipe");
        assert_eq!(read(&instances, id, file).expect_err("a pipe").code, "path_escapes");
        std::fs::remove_file(&entry).expect("removed");
        symlink(outside.join("known_hosts"), &entry).expect("link");
        write(&instances, id, file, b"mine").expect("takes the place of the link");
        assert_eq!(read(&instances, id, file).expect("read").expect("there"), b"mine");
        symlink(&outside, folder.join("sub")).expect("link");
        remove(&instances, id).expect("removed");
        symlink(&outside, &folder).expect("link");
        assert_eq!(list(&instances).expect("listed"), [], "a link to a folder is none");
        for result in [write(&instances, id, file, b"x"), read(&instances, id, file).map(|_| ()), make(&instances, id)] {
            assert_eq!(result.expect_err("a link").code, "path_escapes");
        }
        remove(&instances, id).expect("the link");
        assert!(!folder.exists());
        assert_eq!(std::fs::read(outside.join("known_hosts")).expect("there"), b"canary");

        let elsewhere = root.path().join("elsewhere");
        symlink(&outside, &elsewhere).expect("link");
        assert_eq!(remove(&elsewhere, id).expect_err("a link").code, "path_escapes");
    }

    #[test]
    fn a_tree_that_is_too_deep_stays_and_says_so() {
        let root = tempfile::tempdir().expect("folder");
        let id = AllocationId::generate();
        make(root.path(), id).expect("made");
        let deep: PathBuf = std::iter::repeat_n("d", 40).collect();
        std::fs::create_dir_all(root.path().join(id.to_string()).join(deep)).expect("made");
        assert_eq!(remove(root.path(), id).expect_err("too deep").code, "instance_io");
    }

    #[test]
    fn names_that_are_no_text_go_as_well() {
        use std::os::unix::ffi::OsStrExt as _;
        let root = tempfile::tempdir().expect("folder");
        let id = AllocationId::generate();
        make(root.path(), id).expect("made");
        std::fs::write(root.path().join(id.to_string()).join(std::ffi::OsStr::from_bytes(b"\xff")), b"x").expect("written");
        remove(root.path(), id).expect("removed");
        assert_eq!(list(root.path()).expect("listed"), []);
    }

    /// An attacker replaces a file, a folder in the guest's folder and the guest's folder itself with links to another folder, as
    /// fast as the kernel allows, while we write, read and remove. The targets of the links are never read or changed.
    #[test]
    fn links_that_come_and_go_lead_nowhere() {
        const EXCHANGES: u64 = 100_000;
        let root = tempfile::tempdir().expect("folder");
        let (instances, outside, traps) = (root.path().join("instances"), root.path().join("outside"), root.path().join("traps"));
        let file = InstanceFile::UserData;
        for folder in [&instances, &outside, &traps, &outside.join("sub")] {
            std::fs::create_dir_all(folder).expect("made");
        }
        for canary in [file.name(), "console.log", "sub/deep"] {
            std::fs::write(outside.join(canary), b"canary").expect("written");
        }
        let id = AllocationId::generate();
        let folder = instances.join(id.to_string());
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        // A trap that was removed instead of its original is created again.
        let lay = |name: &str, target: &Path| {
            let trap = traps.join(name);
            // Repeated, because a process with the replaced folder open may add something while it is removed.
            while !trap.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
                let _ = std::fs::remove_file(&trap);
                let _ = std::fs::remove_dir_all(&trap);
                let _ = symlink(target, &trap);
            }
            trap
        };

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                while done.load(Ordering::Relaxed) < EXCHANGES {
                    // By descriptor, or the attacker would follow its own links.
                    if let Ok(inside) = rustix::fs::open(&folder, flags, Mode::empty()) {
                        for (entry, target) in [(file.name(), outside.join(file.name())), ("sub", outside.join("sub"))] {
                            let trap = lay(entry, &target);
                            for _ in 0..4 {
                                // An exchange needs both names; failures because one was just removed do not count.
                                if renameat_with(&inside, entry, CWD, &trap, RenameFlags::EXCHANGE).is_ok() {
                                    done.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                    }
                    let trap = lay("whole", &outside);
                    for _ in 0..4 {
                        if renameat_with(CWD, &folder, CWD, &trap, RenameFlags::EXCHANGE).is_ok() {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let mut codes = std::collections::BTreeMap::<&str, u64>::new();
            let mut count = |result: Result<(), HostError>| {
                *codes.entry(result.map_or_else(|error| error.code, |()| "ok")).or_default() += 1;
            };
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                count(make(&instances, id));
                count(write(&instances, id, file, b"mine"));
                if let Ok(Some(bytes)) = read(&instances, id, file) {
                    assert_eq!(bytes, b"mine", "nothing outside is read");
                }
                if let Ok(Some(inner)) = find(&instances, id) {
                    let _ = inner.make_inner("sub", 0o711).and_then(|sub| sub.write("deep", b"mine", 0o600));
                }
                // Most of the time there is something to exchange.
                if round.is_multiple_of(16) {
                    count(remove(&instances, id));
                }
            }
            assert!(codes.get("ok").is_some_and(|ok| *ok > 0), "{codes:?}");
            assert!(
                codes.keys().all(|code| matches!(*code, "ok" | "path_escapes" | "instance_io" | "instance_missing")),
                "{codes:?}"
            );
        });

        assert!(done.load(Ordering::Relaxed) >= EXCHANGES, "{}", done.load(Ordering::Relaxed));
        for canary in [file.name(), "console.log", "sub/deep"] {
            assert_eq!(std::fs::read(outside.join(canary)).expect("still there"), b"canary", "{canary}");
        }
        assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 3, "nothing was put outside");
        assert_eq!(std::fs::read_dir(outside.join("sub")).expect("list").count(), 1);
    }
}
