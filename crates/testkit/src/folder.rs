//! Temporary folders.

use std::path::{Path, PathBuf};

/// A new folder that is removed at the end of the test.
///
/// With `GPUAAS_TEST_KEEP=1` the folder of a failed test is kept, and its path is printed.
#[derive(Debug)]
pub struct TempDir {
    folder: Option<tempfile::TempDir>,
}

impl TempDir {
    /// Creates an empty folder that only its owner can access.
    #[allow(clippy::new_without_default, reason = "making a folder is not a default")]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("gpuaas-test-").tempdir().expect("a temporary folder can be made");
        Self { folder: Some(folder) }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), tempfile::TempDir::path)
    }

    /// Returns a path inside the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let keep = std::thread::panicking() && std::env::var_os("GPUAAS_TEST_KEEP").is_some_and(|value| value == "1");
        if keep && let Some(folder) = self.folder.take() {
            eprintln!("the folder of the failed test stays: {}", folder.keep().display());
        }
    }
}
