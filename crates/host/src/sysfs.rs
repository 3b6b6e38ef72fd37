//! Small reads from `/proc` and `/sys`: bounded, trimmed, and empty where the kernel says nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Most bytes of one attribute file.
const MAX_ATTRIBUTE: u64 = 64 * 1024;

/// The trimmed text of an attribute; empty if it is missing or unreadable.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_ATTRIBUTE).read_to_string(&mut text));
    if read.is_err() {
        return String::new();
    }
    text.trim().to_owned()
}

/// The text of a file that lists things, up to a megabyte; empty if it is missing or unreadable.
pub(crate) fn long_text(path: impl AsRef<Path>) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(16 * MAX_ATTRIBUTE).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The number in an attribute, if there is one.
pub(crate) fn number<N: std::str::FromStr>(path: impl AsRef<Path>) -> Option<N> {
    text(path).parse().ok()
}

/// The paths in a folder, sorted by name; empty if it is missing. At most 4096.
pub(crate) fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = list.take(4096).filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The last part of a path as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where something really is in the kernel's tree of devices; empty if it is gone.
#[allow(clippy::disallowed_methods, reason = "only to learn what a device hangs off: nothing is opened by the answer")]
pub(crate) fn real_path(path: impl AsRef<Path>) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_default()
}

/// The last part of what a link points at; empty if it is no link.
pub(crate) fn link_name(path: impl AsRef<Path>) -> String {
    std::fs::read_link(path).map(|target| name(&target)).unwrap_or_default()
}
