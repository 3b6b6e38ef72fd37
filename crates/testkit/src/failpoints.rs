//! Arming failpoints in programs under test.

use std::path::{Path, PathBuf};

use crate::{PATIENCE, eventually};

/// The folder through which a test and a program built with the `failpoints` feature talk.
#[derive(Clone, Debug)]
pub struct Failpoints {
    folder: PathBuf,
}

impl Failpoints {
    /// Uses this folder, and makes it if it is not there.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        std::fs::create_dir_all(&folder).expect("the folder for failpoints can be made");
        Self { folder }
    }

    /// The folder, for the program's environment.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The next time a program reaches the step `name`, it stops there. Forgets that it was reached before.
    pub fn arm(&self, name: &str) {
        let _ = std::fs::remove_file(self.file(name, "hit"));
        std::fs::write(self.file(name, "armed"), b"").expect("the failpoint can be armed");
    }

    /// Takes the order back; true if nobody had reached the step.
    pub fn disarm(&self, name: &str) -> bool {
        std::fs::remove_file(self.file(name, "armed")).is_ok()
    }

    /// Whether a program has stopped at the step.
    pub fn is_hit(&self, name: &str) -> bool {
        self.file(name, "hit").exists()
    }

    /// Waits until a program has stopped at the step. A step that was never armed, or that no program reaches, fails the test.
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
