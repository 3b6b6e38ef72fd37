//! Arms failpoints in programs under test.

use std::path::{Path, PathBuf};

use crate::{PATIENCE, eventually};

/// The folder that a test shares with a program built with the `failpoints` feature.
#[derive(Clone, Debug)]
pub struct Failpoints {
    folder: PathBuf,
}

impl Failpoints {
    /// Uses this folder. Creates it if it is missing.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).expect("the folder for failpoints can be made");
        Self { folder }
    }

    /// Returns the folder, for the program's environment.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops the next program that reaches the step `name`. Earlier hits are forgotten.
    pub fn arm(&self, name: &str) {
        let _ = std::fs::remove_file(self.file(name, "hit"));
        std::fs::write(self.file(name, "armed"), b"").expect("the failpoint can be armed");
    }

    /// Disarms the step. Returns true if no program has reached it.
    pub fn disarm(&self, name: &str) -> bool {
        std::fs::remove_file(self.file(name, "armed")).is_ok()
    }

    /// Returns whether a program has stopped at the step.
    pub fn is_hit(&self, name: &str) -> bool {
        self.file(name, "hit").exists()
    }

    /// Waits until a program has stopped at the step. Fails the test if none does.
    #[track_caller]
    pub fn wait_hit(&self, name: &str) {
        let armed_or_hit = self.file(name, "armed").exists() || self.is_hit(name);
        assert!(armed_or_hit, "failpoint {name} was never armed");
        let what = format!(
            "a program reaches failpoint {name} (is it built with the `failpoints` feature? `cargo xtask test` does that)"
        );
        eventually(PATIENCE, &what, || self.is_hit(name).then_some(()));
    }

    fn file(&self, name: &str, state: &str) -> PathBuf {
        self.folder.join(format!("{name}.{state}"))
    }
}
