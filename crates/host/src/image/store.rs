//! The folder of images: its content, its users, and the eviction when it is full.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::time::Timestamp;
use tokio::sync::Semaphore;

use super::flight::Flight;
use super::{IO, Settings};
use crate::guests::Layout;
use crate::{HostError, private_file};

/// The largest image.
pub(super) const MAX_IMAGE_BYTES: u64 = 1 << 40;
/// How long the part of an abandoned download is kept.
const KEEP_PARTS: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Maximum number of concurrent imports; the others wait.
const FETCHES_AT_ONCE: usize = 2;
/// Most space that is left to others on the file system; less on a small one. A host with a full disk cannot even report it.
const MAX_SPARE_BYTES: u64 = 1 << 30;

/// The folder and its index. One per agent.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) folder: PathBuf,
    pub(super) image_folders: Vec<PathBuf>,
    pub(super) settings: Settings,
    /// Permits for imports.
    pub(super) turns: Semaphore,
    budget: u64,
    index: Mutex<StoreIndex>,
}

/// The current users.
#[derive(Debug, Default)]
pub(super) struct StoreIndex {
    /// Running imports.
    pub(super) flights: HashMap<Digest, Flight>,
    /// The number of guards of each image.
    held: HashMap<Digest, usize>,
    /// Reserved space of running imports.
    claims: HashMap<Digest, Claim>,
}

/// Reserved space of one image.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Its size, as far as known.
    total: u64,
    /// Its written bytes.
    written: u64,
}

/// The kind of an entry in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    /// A complete image.
    Whole,
    /// A part of an image.
    Part,
    /// The source document of a part.
    Source,
    /// A file that is being removed.
    Gone,
}

const KINDS: [(EntryKind, &str); 4] =
    [(EntryKind::Part, ".part"), (EntryKind::Source, ".source"), (EntryKind::Gone, ".gone"), (EntryKind::Whole, "")];

/// An entry of the folder.
#[derive(Clone, Debug)]
struct Entry {
    sha256: Digest,
    kind: EntryKind,
    path: PathBuf,
    bytes: u64,
    used_at: Timestamp,
}

/// An image, as the eviction sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    pub(super) used_at: Timestamp,
    pub(super) in_use: bool,
}

/// The required and the available space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Size limit of all images.
    pub(super) budget: u64,
    /// Size of the new images.
    pub(super) claimed: u64,
    /// Bytes of them that are not written yet.
    pub(super) missing: u64,
    /// Free space on the file system, without what is left to others.
    pub(super) free: u64,
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// The limit of the store.
    Budget,
    /// The file system.
    Disk,
}

impl Store {
    pub(super) fn new(layout: &Layout, settings: Settings) -> Self {
        Self {
            folder: layout.images.clone(),
            image_folders: layout.image_folders.clone(),
            settings,
            turns: Semaphore::new(FETCHES_AT_ONCE),
            budget: layout.image_cache_bytes,
            index: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, StoreIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of a complete image.
    pub(super) fn whole(&self, sha256: &Digest) -> PathBuf {
        self.entry(sha256, EntryKind::Whole)
    }

    /// Returns the path of its part.
    pub(super) fn part(&self, sha256: &Digest) -> PathBuf {
        self.entry(sha256, EntryKind::Part)
    }

    /// Returns the path of the part's source document.
    pub(super) fn source(&self, sha256: &Digest) -> PathBuf {
        self.entry(sha256, EntryKind::Source)
    }

    fn entry(&self, sha256: &Digest, kind: EntryKind) -> PathBuf {
        let suffix = KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, suffix)| *suffix);
        self.folder.join(format!("{}{suffix}", sha256.as_str().replace(':', "-")))
    }

    /// Creates the folder if it does not exist. Blocks.
    pub(super) fn prepare(&self) -> Result<(), HostError> {
        let bad = |what: &str, error: &(dyn std::error::Error + 'static)| {
            HostError::because(IO, &format!("cannot {what} the folder of images {}", self.folder.display()), error)
        };
        private_file::make_folder(&self.folder).map_err(|error| bad("make", &error))?;
        let meta = std::fs::metadata(&self.folder).map_err(|error| bad("look at", &error))?;
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me {
            let message = format!(
                "the folder of images {path} belongs to user {}; run: chown {me} {path}",
                meta.uid(),
                path = self.folder.display()
            );
            return Err(HostError::new(IO, message));
        }
        // A user who can write here could replace an image between the check of its digest and its use.
        if meta.mode() & 0o077 != 0 {
            let private = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(&self.folder, private).map_err(|error| bad("close", &error))?;
        }
        Ok(())
    }

    /// Removes abandoned parts. Blocks.
    pub(super) fn sweep(&self, now: Timestamp) -> Result<(), HostError> {
        let entries = self.list()?;
        let is_old = |entry: &Entry| now.since(entry.used_at) > KEEP_PARTS;
        for entry in &entries {
            let fresh_part =
                || entries.iter().any(|other| other.kind == EntryKind::Part && other.sha256 == entry.sha256 && !is_old(other));
            let leftover = match entry.kind {
                EntryKind::Whole => false,
                EntryKind::Part => is_old(entry),
                // It is written once, and the part may have grown since.
                EntryKind::Source => is_old(entry) && !fresh_part(),
                EntryKind::Gone => true,
            };
            if leftover {
                self.sweep_one(entry)?;
            }
        }
        Ok(())
    }

    fn sweep_one(&self, entry: &Entry) -> Result<(), HostError> {
        let gone = self.entry(&entry.sha256, EntryKind::Gone);
        if entry.kind != EntryKind::Gone {
            let index = self.index();
            if index.flights.contains_key(&entry.sha256) {
                return Ok(());
            }
            rename(&entry.path, &gone)?;
        }
        tracing::info!(file = %entry.path.display(), "removing an incomplete image");
        remove(&gone)
    }

    /// Returns the size of a stored image and marks it as used, or returns `None` if it does not exist. Blocks.
    pub(super) fn touch(&self, sha256: &Digest) -> Result<Option<u64>, HostError> {
        let path = self.whole(sha256);
        let Some(file) = open(&path)? else { return Ok(None) };
        let bad = |error: std::io::Error| HostError::because(IO, &format!("cannot use {}", path.display()), &error);
        let meta = file.metadata().map_err(bad)?;
        mark_used(&file).map_err(bad)?;
        Ok(Some(meta.len()))
    }

    /// Reserves space for `total` bytes of an image of which `written` are stored, until [`Store::unclaim`]. Unused images are
    /// evicted for it, the least recently used first. Blocks.
    pub(super) fn claim(&self, sha256: &Digest, total: u64, written: u64) -> Result<(), HostError> {
        if total > MAX_IMAGE_BYTES {
            return Err(HostError::new(
                "image_too_large",
                format!("the image has {total} bytes or more; at most {MAX_IMAGE_BYTES} are allowed"),
            ));
        }
        let gone = self.make_way(sha256, total, written)?;
        // Freeing a large file takes time, so it is not done while others wait for the index.
        for path in gone {
            remove(&path)?;
        }
        Ok(())
    }

    fn make_way(&self, sha256: &Digest, total: u64, written: u64) -> Result<Vec<PathBuf>, HostError> {
        let mut index = self.index();
        let space = crate::space(&self.folder).map_err(|error| {
            HostError::because(IO, &format!("cannot see how much room {} has", self.folder.display()), &error)
        })?;
        let spare = MAX_SPARE_BYTES.min(space.size_bytes / 20);
        let others = index.claims.iter().filter(|(other, _)| *other != sha256).map(|(_, claim)| *claim);
        let (others_total, others_missing) = others.fold((0_u64, 0_u64), |(total, missing), claim| {
            (total.saturating_add(claim.total), missing.saturating_add(claim.total.saturating_sub(claim.written)))
        });
        let wanted = Wanted {
            budget: self.budget,
            claimed: total.saturating_add(others_total),
            missing: total.saturating_sub(written).saturating_add(others_missing),
            free: space.available_bytes.saturating_sub(spare),
        };
        // Parts that are being written are already in the claims.
        let counts = |entry: &Entry| match entry.kind {
            EntryKind::Whole => true,
            EntryKind::Part => !index.flights.contains_key(&entry.sha256) && entry.sha256 != *sha256,
            EntryKind::Source | EntryKind::Gone => false,
        };
        let entries: Vec<Entry> = self.list()?.into_iter().filter(counts).collect();
        let kept: Vec<Kept> = entries
            .iter()
            .map(|entry| Kept { bytes: entry.bytes, used_at: entry.used_at, in_use: index.uses(&entry.sha256) })
            .collect();
        let victims = evict(&kept, wanted).map_err(|short| self.no_room(short, total, &kept, wanted))?;
        let mut gone = Vec::new();
        for index in victims {
            let entry = &entries[index];
            tracing::info!(image = %entry.sha256, bytes = entry.bytes, "removing the least recently used image");
            let path = self.entry(&entry.sha256, EntryKind::Gone);
            rename(&entry.path, &path)?;
            gone.push(path);
            if entry.kind == EntryKind::Part {
                gone.push(self.source(&entry.sha256));
            }
        }
        index.claims.insert(sha256.clone(), Claim { total, written });
        Ok(gone)
    }

    fn no_room(&self, short: NoRoom, total: u64, kept: &[Kept], wanted: Wanted) -> HostError {
        let used: u64 = kept.iter().filter(|image| image.in_use).map(|image| image.bytes).sum();
        match short {
            NoRoom::Budget => HostError::new(
                "image_cache_full",
                format!(
                    "no room for an image of {total} bytes: the store of images may have {} and guests are being made from {used} of \
                     them now; raise image_cache_bytes in the agent's configuration or try again later",
                    wanted.budget
                ),
            ),
            NoRoom::Disk => HostError::new(
                "disk_full",
                format!(
                    "no room for an image of {total} bytes: {} bytes are missing and the file system of {} has {} to give; free some",
                    wanted.missing,
                    self.folder.display(),
                    wanted.free
                ),
            ),
        }
    }

    /// Releases the space that was reserved for an image.
    pub(super) fn unclaim(&self, sha256: &Digest) {
        self.index().claims.remove(sha256);
    }

    /// Lists our entries in the folder. Other files are ignored.
    fn list(&self) -> Result<Vec<Entry>, HostError> {
        let bad = |error: std::io::Error| HostError::because(IO, &format!("cannot list {}", self.folder.display()), &error);
        let mut entries = Vec::new();
        for found in std::fs::read_dir(&self.folder).map_err(bad)? {
            let found = found.map_err(bad)?;
            let Some((sha256, kind)) = found.file_name().to_str().and_then(entry_of) else { continue };
            let meta = match found.metadata() {
                Ok(meta) if meta.is_file() => meta,
                Ok(_) => continue,
                // Another thread has removed it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(bad(error)),
            };
            let used_at = Timestamp(meta.mtime().saturating_mul(1_000_000).saturating_add(meta.mtime_nsec() / 1000));
            entries.push(Entry { sha256, kind, path: found.path(), bytes: meta.len(), used_at });
        }
        // Images that were used at the same moment need a stable order.
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }
}

impl StoreIndex {
    /// Protects this image from eviction.
    pub(super) fn hold(&mut self, sha256: &Digest) {
        *self.held.entry(sha256.clone()).or_default() += 1;
    }

    /// Ends one [`StoreIndex::hold`].
    pub(super) fn let_go(&mut self, sha256: &Digest) {
        if let Some(count) = self.held.get_mut(sha256) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(sha256);
            }
        }
    }

    fn uses(&self, sha256: &Digest) -> bool {
        self.held.contains_key(sha256) || self.flights.contains_key(sha256)
    }
}

/// Returns the images to evict, as indices into `kept`. Evicts none if that would not help.
pub(super) fn evict(kept: &[Kept], wanted: Wanted) -> Result<Vec<usize>, NoRoom> {
    let mut stored: u64 = kept.iter().map(|image| image.bytes).fold(0, u64::saturating_add);
    let mut free = wanted.free;
    let mut idle: Vec<usize> = (0..kept.len()).filter(|index| !kept[*index].in_use).collect();
    idle.sort_by_key(|index| kept[*index].used_at);
    let mut idle = idle.into_iter();
    let mut victims = Vec::new();
    loop {
        let in_budget = stored.saturating_add(wanted.claimed) <= wanted.budget;
        if in_budget && wanted.missing <= free {
            return Ok(victims);
        }
        let Some(index) = idle.next() else {
            return Err(if in_budget { NoRoom::Disk } else { NoRoom::Budget });
        };
        stored -= kept[index].bytes;
        free = free.saturating_add(kept[index].bytes);
        victims.push(index);
    }
}

fn entry_of(name: &str) -> Option<(Digest, EntryKind)> {
    let rest = name.strip_prefix("sha256-")?;
    let (hex, suffix) = rest.split_at_checked(64)?;
    let (kind, _) = KINDS.iter().find(|(_, known)| *known == suffix)?;
    Some((Digest::try_from(format!("sha256:{hex}")).ok()?, *kind))
}

/// Opens a file of the store for reading, or returns `None` if it does not exist.
pub(super) fn open(path: &Path) -> Result<Option<File>, HostError> {
    let bad = |error: &std::io::Error| HostError::because(IO, &format!("cannot open {}", path.display()), error);
    match std::fs::OpenOptions::new().read(true).custom_flags(no_surprises()).open(path) {
        Ok(file) if file.metadata().is_ok_and(|meta| meta.is_file()) => Ok(Some(file)),
        Ok(_) => Err(HostError::new(IO, format!("{} is not a regular file; remove it", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(bad(&error)),
    }
}

/// Returns flags for opening a plain file: follow no link, never block.
pub(super) fn no_surprises() -> i32 {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    i32::try_from(flags.bits()).unwrap_or(0)
}

/// Marks a file as used. The modification time serves as the time of the last use: a stored image never changes, and not every
/// file system records the last read.
pub(super) fn mark_used(file: &File) -> std::io::Result<()> {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Ok(rustix::fs::futimens(file, &rustix::fs::Timestamps { last_access: now, last_modification: now })?)
}

/// Renames a file that will be removed. It may already be gone.
fn rename(path: &Path, gone: &Path) -> Result<(), HostError> {
    match std::fs::rename(path, gone) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HostError::because(IO, &format!("cannot remove {}", path.display()), &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a file. It may already be gone.
pub(super) fn remove(path: &Path) -> Result<(), HostError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HostError::because(IO, &format!("cannot remove {}", path.display()), &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(bytes: u64, used_at: i64, in_use: bool) -> Kept {
        Kept { bytes, used_at: Timestamp(used_at), in_use }
    }

    fn wanted(budget: u64, bytes: u64, free: u64) -> Wanted {
        Wanted { budget, claimed: bytes, missing: bytes, free }
    }

    #[test]
    fn the_one_that_was_not_used_for_the_longest_time_goes_first() {
        let images = [kept(10, 3, false), kept(10, 1, true), kept(10, 2, false), kept(10, 4, false)];
        assert_eq!(evict(&images, wanted(50, 10, 1000)), Ok(vec![]));
        assert_eq!(evict(&images, wanted(40, 10, 1000)), Ok(vec![2]));
        assert_eq!(evict(&images, wanted(40, 15, 1000)), Ok(vec![2, 0]));
        assert_eq!(evict(&images, wanted(40, 10, 0)), Ok(vec![2]), "the file system's room counts like the budget");
        assert_eq!(evict(&images, wanted(1000, 20, 5)), Ok(vec![2, 0]));
    }

    #[test]
    fn what_would_not_help_is_not_done() {
        let images = [kept(10, 1, true), kept(10, 2, false)];
        assert_eq!(evict(&images, wanted(30, 25, 1000)), Err(NoRoom::Budget));
        assert_eq!(evict(&images, wanted(100, 25, 10)), Err(NoRoom::Disk));
        assert_eq!(evict(&[], wanted(u64::MAX, u64::MAX, 0)), Err(NoRoom::Disk));
    }

    proptest! {
        #[test]
        fn nothing_in_use_goes_and_nothing_goes_in_vain(
            images in prop::collection::vec((0_u64..100, 0_i64..10, any::<bool>()), 0..12),
            budget in 0_u64..500, bytes in 0_u64..200, free in 0_u64..300,
        ) {
            let images: Vec<Kept> = images.into_iter().map(|(bytes, at, in_use)| kept(bytes, at, in_use)).collect();
            let Ok(victims) = evict(&images, wanted(budget, bytes, free)) else { return Ok(()) };
            let all: u64 = images.iter().map(|image| image.bytes).sum();
            let freed: u64 = victims.iter().map(|index| images[*index].bytes).sum();
            prop_assert!(victims.iter().all(|index| !images[*index].in_use));
            prop_assert!(all - freed + bytes <= budget && bytes <= free + freed);
            if let Some((last, _)) = victims.split_last() {
                let without = freed - images[*last].bytes;
                prop_assert!(all - without + bytes > budget || bytes > free + without, "the last one had to go, too");
            }
        }
    }

    #[test]
    fn names_of_others_are_none_of_our_business() {
        let hex = "ab".repeat(32);
        for (name, kind) in
            [("", EntryKind::Whole), (".part", EntryKind::Part), (".source", EntryKind::Source), (".gone", EntryKind::Gone)]
        {
            let (sha256, found) = entry_of(&format!("sha256-{hex}{name}")).expect("ours");
            assert_eq!((sha256.as_str(), found), (format!("sha256:{hex}").as_str(), kind));
        }
        for name in ["sha256-ab", "lost+found", &format!("sha256-{hex}.partial"), &format!("sha256-{}é", "a".repeat(63))] {
            assert!(entry_of(name).is_none(), "{name}");
        }
    }
}
