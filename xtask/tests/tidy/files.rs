//! The files of the repository.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub(crate) struct TextFile {
    /// Path from the top folder of the repository, with `/` as the separator.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl TextFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns whether the file is under a `tests` folder, which is compiled only for tests.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/")
    }

    /// Returns the lines, numbered from one.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// A crate's manifest.
pub(crate) struct Manifest {
    path: String,
    text: String,
}

impl Manifest {
    pub(crate) fn name(&self) -> &str {
        &self.path
    }

    pub(crate) fn toml(&self) -> toml::Table {
        self.text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

/// All text files, without those that git ignores and without captured or generated data.
pub(crate) static FILES: LazyLock<Vec<TextFile>> = LazyLock::new(|| {
    let mut files = vec![];
    walk(&root(), &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 20, "the files of the repository were not found");
    files
});

/// Returns the top folder of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo sets this to the current location; the path compiled in at build time may be another copy of the repository.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").expect("run this test with cargo");
    Path::new(&xtask).parent().expect("xtask lives in the top folder").to_owned()
}

/// Returns whether a file or folder exists, by its path from the top folder.
pub(crate) fn exists(path: &str) -> bool {
    root().join(path).exists()
}

/// Returns the manifests of all crates in the workspace.
pub(crate) fn crate_manifests() -> impl Iterator<Item = Manifest> {
    // The fuzzer's shims are a workspace of their own, because they need another compiler.
    let manifests = FILES.iter().filter(|file| file.path.ends_with("/Cargo.toml") && file.path != "fuzz/Cargo.toml");
    manifests.map(|file| Manifest { path: file.path.clone(), text: file.text.clone() })
}

/// Returns `deny.toml`, whose lists the tests reuse.
pub(crate) fn deny() -> toml::Table {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    text.parse().expect("deny.toml is TOML")
}

fn walk(folder: &Path, files: &mut Vec<TextFile>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("the type of an entry");
        if kind.is_dir() {
            let ours = !name.starts_with('.') || name == ".ci" || name == ".cargo";
            // Data written by programs: build output, test vectors, inputs of the fuzzer.
            let data = ["target", "testdata", "corpus", "regressions", "artifacts", "coverage"].contains(&name.as_str());
            if ours && !data {
                walk(&path, files);
            }
        } else if kind.is_file() && name != "Cargo.lock" && name != ".git" {
            // Files that are not text are skipped.
            if let (Ok(relative), Ok(text)) = (path.strip_prefix(root()), std::fs::read_to_string(&path)) {
                files.push(TextFile { path: relative.to_string_lossy().into_owned(), text });
            }
        }
    }
}
