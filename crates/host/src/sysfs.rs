//! Small reads from `/proc` and `/sys`: bounded, trimmed, and empty if there is nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Maximum size of one attribute file, in bytes.
const MAX_ATTRIBUTE: u64 = 64 * 1024;

/// Returns the trimmed text of an attribute; empty if it is missing or unreadable.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_ATTRIBUTE).read_to_string(&mut text));
    if read.is_err() {
        return String::new();
    }
    text.trim().to_owned()
}

/// Returns the text of a file with a list, up to a megabyte; empty if it is missing or unreadable.
pub(crate) fn long_text(path: impl AsRef<Path>) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(16 * MAX_ATTRIBUTE).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the number in an attribute, if there is one.
pub(crate) fn number<N: std::str::FromStr>(path: impl AsRef<Path>) -> Option<N> {
    text(path).parse().ok()
}

/// Returns the paths in a folder, sorted by name; empty if it is missing. At most 4096.
pub(crate) fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let Ok(list) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = list.take(4096).filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the last component of a path as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the canonical path in the kernel's device tree; empty if it is gone.
#[allow(clippy::disallowed_methods, reason = "only to learn what a device hangs off: nothing is opened by the answer")]
pub(crate) fn real_path(path: impl AsRef<Path>) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_default()
}

/// Returns the last component of a link's target; empty if it is not a link.
pub(crate) fn link_name(path: impl AsRef<Path>) -> String {
    std::fs::read_link(path).map(|target| name(&target)).unwrap_or_default()
}
