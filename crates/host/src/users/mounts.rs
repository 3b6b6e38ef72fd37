//! The host's own file systems, and those that a user mounted, from the mount table of the first process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::HostError;

const TABLE: &str = "/proc/1/mountinfo";
/// Size limit of the table: some ten thousand mounts.
const TABLE_CAP: u64 = 16 * 1024 * 1024;
/// Pseudo file systems of the kernel.
const PSEUDO: [&str; 22] = [
    "autofs",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];
/// Network file systems: they are on other machines, so they are neither searched nor cleaned.
const NETWORK: [&str; 17] = [
    "9p",
    "afs",
    "beegfs",
    "beegfs_nodev",
    "ceph",
    "cifs",
    "coda",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
    "virtiofs",
];

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    device: String,
    /// The mounted part of the file system.
    root: String,
    pub(super) at: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    /// Returns whether files of a tenant can be on it: an unknown type counts as the host's own.
    fn is_own(&self) -> bool {
        let served_by_a_program = self.kind == "fuse" || self.kind.starts_with("fuse.");
        // The layers of a container are on a file system that is searched separately.
        let layers = self.kind == "overlay" && self.at != Path::new("/");
        // A tenant cannot have written to a read-only file system.
        let read_only = self.options.split(',').next() == Some("ro");
        !served_by_a_program
            && !layers
            && !read_only
            && !PSEUDO.contains(&self.kind.as_str())
            && !NETWORK.contains(&self.kind.as_str())
    }

    /// Returns whether this user mounted it (FUSE).
    pub(super) fn is_of(&self, uid: u32) -> bool {
        let by = |option: &str| option.strip_prefix("user_id=").and_then(|text| text.parse::<u32>().ok()) == Some(uid);
        self.kind.starts_with("fuse") && self.options.split(',').any(by)
    }
}

/// Returns the mount table of the host.
pub(super) fn read() -> Result<Vec<Mount>, HostError> {
    let mut bytes = Vec::new();
    let failed = |error: std::io::Error| HostError::because("mounts_unknown", TABLE, &error);
    std::fs::File::open(TABLE).map_err(failed)?.take(TABLE_CAP + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > TABLE_CAP {
        return Err(HostError::new("mounts_unknown", format!("{TABLE} has more than {TABLE_CAP} bytes")));
    }
    parse(&bytes)
}

pub(super) fn parse(table: &[u8]) -> Result<Vec<Mount>, HostError> {
    let bad = |line: &[u8]| HostError::new("mounts_unknown", format!("not a mount: {}", crate::exec::printable(line)));
    let lines = table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse_line(line).ok_or_else(|| bad(line))).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
    let (device, root, at) = (text(words.nth(2)?)?, text(words.next()?)?, unescaped(words.next()?));
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, _source, options) = (text(rest.next()?)?, rest.next()?, text(rest.next()?)?);
    Some(Mount { device, root, at: OsString::from_vec(at).into(), kind, options })
}

/// Decodes the octal escapes of spaces and the like.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// Returns where to search so that every visible file of the host's own file systems is covered. A file system that is mounted as
/// a whole somewhere is searched only there.
pub(super) fn own(mounts: &[Mount]) -> Vec<PathBuf> {
    let mut by_device: BTreeMap<&str, Vec<&Mount>> = BTreeMap::new();
    for mount in mounts.iter().filter(|mount| mount.is_own()) {
        by_device.entry(&mount.device).or_default().push(mount);
    }
    let mut places = BTreeSet::new();
    for mounts in by_device.values() {
        match mounts.iter().find(|mount| mount.root == "/") {
            Some(whole) => drop(places.insert(whole.at.clone())),
            None => places.extend(mounts.iter().map(|mount| mount.at.clone())),
        }
    }
    places.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = br"21 1 0:19 / /proc rw,relatime shared:5 - proc proc rw
22 1 0:20 / /sys rw - sysfs sysfs rw
23 1 0:5 / /dev rw shared:2 - devtmpfs udev rw,size=1k
24 23 0:21 / /dev/shm rw shared:3 - tmpfs tmpfs rw
25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
26 1 259:2 /var/lib/x /srv/bind ro,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
27 1 0:44 /@home /home rw - btrfs /dev/sdb rw,subvol=/@home
28 1 0:44 /@data /mnt/with\040space rw - btrfs /dev/sdb rw,subvol=/@data
29 1 0:50 / /mnt/nfs rw - nfs4 server:/x rw
30 1 0:51 / /srv/tenant-1/remote rw - fuse.sshfs x@y:/ rw,user_id=20000,group_id=20000
31 1 0:52 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw,lowerdir=b
32 1 7:0 / /snap/core/1 ro - squashfs /dev/loop0 ro
33 1 0:53 / /mnt/odd rw - newfs thing rw
";

    #[test]
    fn every_file_system_of_the_host_is_looked_through_once_and_no_other() {
        let mounts = parse(MOUNTS).expect("mounts");
        let places = own(&mounts);
        let wanted = ["/", "/dev", "/dev/shm", "/home", "/mnt/odd", "/mnt/with space"].map(PathBuf::from);
        assert_eq!(places, wanted);
        let of_user: Vec<_> = mounts.iter().filter(|mount| mount.is_of(20_000)).map(|mount| mount.at.clone()).collect();
        assert_eq!(of_user, [PathBuf::from("/srv/tenant-1/remote")]);
        assert!(mounts.iter().all(|mount| !mount.is_of(2000) && !mount.is_of(0)));
    }

    #[test]
    fn the_root_is_looked_through_whatever_it_is_made_of() {
        let mounts = parse(b"1 0 0:30 / / rw - overlay overlay rw,lowerdir=a\n").expect("mounts");
        assert_eq!(own(&mounts), [PathBuf::from("/")]);
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        for bad in [b"x".as_slice(), b"1 2 0:1 / /a rw shared:1 ext4 x rw\n", b"1 2 0:1 / /a rw - ext4\n"] {
            assert_eq!(parse(bad).expect_err("refused").code, "mounts_unknown");
        }
        assert_eq!(unescaped(br"\134a\12\\040"), br"\a\12\ ".to_vec());
    }
}
