//! The record of the changes to this host, so that they can be undone: `setup-slices.json` in the agent's state folder.
//!
//! Every entry is written before its step. After a crash an entry may name something that did not happen; undoing that finds
//! nothing, which is fine. In the other order, something could stay forever.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use gpuaas_contract::slice::{InterfaceName, Subnet};
use gpuaas_host::ovs::Datapath;
use gpuaas_host::private_file::{self, PrivateFileError};
use rustix::fs::FlockOperation;
use sha2::Digest as _;

use super::files::Settings;
use super::{SetupError, io};
use crate::policy::SlicePermissions;

const FILE: &str = "setup-slices.json";
const LOCK: &str = "setup-slices.lock";
const VERSION: u32 = 1;
/// Size limit of a record. A full one has about four kilobytes.
const MAX_FILE: u64 = 256 * 1024;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    version: u32,
    pub(super) bridge: InterfaceName,
    pub(super) network: Subnet,
    pub(super) datapath: Datapath,
    pub(super) uplink: Option<InterfaceName>,
    pub(super) root: PathBuf,
    pub(super) dnsmasq_pid: PathBuf,
    pub(super) dhcp_leases: PathBuf,
    /// The items in the order of creation.
    pub(super) items: Vec<RecordItem>,
}

/// One created item.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "made", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum RecordItem {
    /// A folder. It is removed if it is empty.
    Folder { path: PathBuf },
    /// A folder that was made accessible for others.
    Opened { path: PathBuf, mode: u32 },
    /// A file with this content, or still with that of the previous run.
    File { path: PathBuf, sha256: String, replaced: Option<String> },
    /// A link that starts a unit at boot.
    Link { path: PathBuf, target: PathBuf },
    /// The bridge. With a boot id, it could not be created in that boot, and its unit creates it in a later one.
    Bridge { awaited_since_boot: Option<String> },
    /// The host's address on the bridge.
    Address,
    /// Our table of the packet filter.
    Table,
    /// Forwarding, which was off before.
    Forwarding,
    /// DHCP for guests.
    Dhcp,
    /// The started units.
    Units,
    /// Permissions in the host policy.
    Policy { path: PathBuf, created: bool, sha256: String, added: SlicePermissions },
}

impl RecordItem {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Folder { path }
            | Self::Opened { path, .. }
            | Self::File { path, .. }
            | Self::Link { path, .. }
            | Self::Policy { path, .. } => Some(path),
            Self::Bridge { .. } | Self::Address | Self::Table | Self::Forwarding | Self::Dhcp | Self::Units => None,
        }
    }

    /// Returns whether both are about the same object.
    fn is_about(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.path() == other.path()
    }
}

impl Record {
    /// Creates an empty record for these settings.
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            version: VERSION,
            bridge: settings.bridge.clone(),
            network: settings.network,
            datapath: settings.datapath,
            uplink: settings.uplink.clone(),
            root: settings.root.clone(),
            dnsmasq_pid: settings.dnsmasq_pid.clone(),
            dhcp_leases: settings.dhcp_leases(),
            items: Vec::new(),
        }
    }

    /// Reads the record of this host, if there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, SetupError> {
        let bytes = match private_file::read_secret(path, MAX_FILE) {
            Ok(bytes) => bytes,
            Err(PrivateFileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let bad = |why: String| SetupError::BadRecord { path: path.to_owned(), why };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if record.version != VERSION {
            return Err(bad(format!("its version is {}, and this agent supports {VERSION}", record.version)));
        }
        Ok(Some(record))
    }

    /// Adds an item that is about to be created; an earlier entry of the same object is replaced.
    pub(super) fn note(&mut self, item: RecordItem) {
        match self.items.iter_mut().find(|known| known.is_about(&item)) {
            Some(known) => *known = item,
            None => self.items.push(item),
        }
    }

    /// Writes it; an empty record is removed.
    pub(super) fn save(&self, state_dir: &Path) -> Result<(), SetupError> {
        let path = path(state_dir);
        if self.items.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", &path)(error)),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| SetupError::BadRecord { path: path.clone(), why: error.to_string() })?;
        Ok(private_file::write(&path, &bytes)?)
    }

    /// Returns whether this content of the file is the one that was written.
    pub(super) fn wrote(&self, path: &Path, content: &[u8]) -> bool {
        let digest = sha256(content);
        self.items.iter().any(|item| {
            let RecordItem::File { path: known, sha256, replaced } = item else { return false };
            known == path && (*sha256 == digest || replaced.as_ref() == Some(&digest))
        })
    }

    /// Returns whether we created the bridge.
    pub(super) fn made_bridge(&self) -> bool {
        self.items.iter().any(|item| matches!(item, RecordItem::Bridge { .. }))
    }

    /// Returns what was added to the policy before.
    pub(super) fn policy(&self, path: &Path) -> Option<(bool, &SlicePermissions)> {
        self.items.iter().find_map(|item| {
            let RecordItem::Policy { path: known, created, added, .. } = item else { return None };
            (known == path).then_some((*created, added))
        })
    }

    /// Returns the path of dnsmasq's settings.
    pub(super) fn dhcp_settings(&self) -> PathBuf {
        self.root.join("etc/gpuaas-agent/slices-dnsmasq.conf")
    }
}

/// Returns the path of the record.
pub(super) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// Returns the SHA-256 in lowercase hexadecimal.
pub(super) fn sha256(content: &[u8]) -> String {
    sha2::Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Locks the setup until the result is dropped. This is not the lock of the agent, which may be running.
pub(super) fn lock(state_dir: &Path) -> Result<File, SetupError> {
    // Other users must be able to enter the parent folders, to the files of dnsmasq and QEMU.
    if let Some(above) = state_dir.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(io("create folder", above))?;
    }
    private_file::make_folder(state_dir)?;
    private_file::check_folder(state_dir)?;
    let path = state_dir.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io("open", &path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SetupError::Busy),
        Err(errno) => Err(io("lock", &path)(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::settings;
    use super::*;

    #[test]
    fn a_record_survives_a_restart_and_goes_when_it_is_empty() {
        let folder = tempfile::tempdir().expect("folder");
        let path = path(folder.path());
        assert_eq!(Record::read(&path).expect("none"), None);
        let mut record = Record::new(&settings());
        let file = |content: &[u8], replaced| RecordItem::File { path: "/etc/x".into(), sha256: sha256(content), replaced };
        let bridge = |boot: Option<&str>| RecordItem::Bridge { awaited_since_boot: boot.map(str::to_owned) };
        record.note(bridge(Some("boot")));
        record.note(file(b"old", None));
        record.note(file(b"new", Some(sha256(b"old"))));
        record.note(bridge(None));
        assert_eq!(record.items.len(), 2, "a thing is known once");
        record.save(folder.path()).expect("saved");
        let read = Record::read(&path).expect("read").expect("there");
        assert_eq!(read, record);
        assert!(read.made_bridge() && read.wrote(Path::new("/etc/x"), b"new"));
        assert!(read.wrote(Path::new("/etc/x"), b"old"), "a crash may have come between the record and the file");
        assert!(!read.wrote(Path::new("/etc/x"), b"edited") && !read.wrote(Path::new("/etc/y"), b"new"));
        record.items.clear();
        record.save(folder.path()).expect("removed");
        assert_eq!(Record::read(&path).expect("none"), None);
        record.save(folder.path()).expect("still removed");
    }

    #[test]
    fn what_is_no_record_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().expect("folder");
        let path = path(folder.path());
        let mut newer =
            serde_json::to_value(Record { items: vec![RecordItem::Table], ..Record::new(&settings()) }).expect("json");
        newer["version"] = 2.into();
        for text in ["{}".to_owned(), "x".to_owned(), newer.to_string()] {
            private_file::write(&path, text.as_bytes()).expect("written");
            let error = Record::read(&path).expect_err("refused").to_string();
            assert!(error.contains("undo by hand"), "{error}");
        }
    }

    #[test]
    fn one_setup_runs_at_a_time() {
        let folder = tempfile::tempdir().expect("folder");
        let first = lock(folder.path()).expect("free");
        assert!(matches!(lock(folder.path()), Err(SetupError::Busy)));
        drop(first);
        assert!(lock(folder.path()).is_ok());
    }
}
