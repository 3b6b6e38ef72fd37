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

/// The last part of what a link points at; empty if it is no link.
pub(crate) fn link_name(path: impl AsRef<Path>) -> String {
    std::fs::read_link(path).map(|target| name(&target)).unwrap_or_default()
}
