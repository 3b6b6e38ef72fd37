//! What the tests need beside Rust, and how to get it.

use std::path::PathBuf;
use std::process::Command;

/// Something that some tests need.
pub(crate) struct Requirement {
    /// Its name for people.
    pub(crate) name: &'static str,
    /// The Debian package that has it.
    pub(crate) package: &'static str,
    /// Finds it.
    pub(crate) find: fn() -> Option<PathBuf>,
    /// What is not tested without it.
    pub(crate) needed_for: &'static str,
}

/// Everything that `cargo xtask test` may install.
pub(crate) const ALL: [Requirement; 3] = [
    Requirement {
        name: "PostgreSQL",
        package: "postgresql",
        find: crate::postgres::programs,
        needed_for: "every test of the store and of the server on PostgreSQL",
    },
    Requirement {
        name: "ip (iproute2)",
        package: "iproute2",
        find: || in_path("ip"),
        needed_for: "tests with an agent in another network namespace",
    },
    Requirement {
        name: "strace",
        package: "strace",
        find: || in_path("strace"),
        needed_for: "tests with an agent whose disk fails",
    },
];

impl Requirement {
    /// Makes sure that it is there; otherwise says why it is not.
    pub(crate) fn ensure(&self, root: bool) -> Result<(), String> {
        if (self.find)().is_some() {
            return Ok(());
        }
        let by_hand = format!("install the Debian package `{}` or its like", self.package);
        if !root {
            return Err(format!("{} is not installed and only root may install it; {by_hand}", self.name));
        }
        if in_path("apt-get").is_none() {
            return Err(format!("{} is not installed and there is no apt-get here; {by_hand}", self.name));
        }
        println!("installing {} (Debian package {})", self.name, self.package);
        let installed = apt_get(&["install", "--yes", "--no-install-recommends", self.package])
            || (apt_get(&["update"]) && apt_get(&["install", "--yes", "--no-install-recommends", self.package]));
        match (installed, (self.find)()) {
            (true, Some(_)) => Ok(()),
            (true, None) => Err(format!("apt-get installed `{}` but {} is still not found", self.package, self.name)),
            (false, _) => Err(format!("apt-get could not install `{}` (is there a network?); {by_hand}", self.package)),
        }
    }
}

/// Calls `apt-get`, whose questions nobody is there to answer; true if it succeeded.
pub(crate) fn apt_get(arguments: &[&str]) -> bool {
    let status = Command::new("apt-get").args(["-q"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    status.is_ok_and(|status| status.success())
}

/// Whether we are root, as the owner of our own process says.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// A program in the search path, or in the two folders that users often lack there.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
