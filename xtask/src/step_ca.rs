//! The step-ca program for the tests, built from Debian's source package and kept next to the build.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::requirements::{in_path, install_debian, wheel_folder};

/// The Debian package with the sources of step-ca and its dependencies.
pub(crate) const DEBIAN_PACKAGE: &str = "golang-github-smallstep-certificates-dev";
/// The environment variable with the path of the program, read by this program and by the tests.
pub(crate) const PROGRAM_VARIABLE: &str = "GPUAAS_STEP_CA_PROGRAM";
/// Our `main` function of the program.
const SOURCE: &str = "xtask/src/step_ca/main.go";
/// The GOPATH of Debian's Go source packages.
const GO_PATH: &str = "/usr/share/gocode";

fn folder() -> PathBuf {
    wheel_folder("step-ca")
}

fn built() -> PathBuf {
    folder().join("bin/step-ca")
}

/// Finds the program: from the variable, or built from the current source. One in `PATH` is not used, because its name and options differ.
pub(crate) fn program() -> Option<PathBuf> {
    let given = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from).filter(|path| path.is_file());
    let source = std::fs::read(crate::cargo::workspace().join(SOURCE)).ok();
    let kept = || Some(built()).filter(|path| path.is_file() && source == std::fs::read(folder().join("main.go")).ok());
    given.or_else(kept)
}

/// Installs the build requirements and builds the program. Takes about a minute, once.
pub(crate) fn build(package: &str, root: bool) -> Result<(), String> {
    let sources = PathBuf::from(GO_PATH).join("src/github.com/smallstep/certificates/ca");
    let reason = |reason| format!("step-ca is not built: {reason}");
    if in_path("go").is_none() {
        install_debian("go", "golang-go", root).map_err(reason)?;
    }
    if !sources.is_dir() {
        install_debian("the source of step-ca", package, root).map_err(reason)?;
    }
    println!("building step-ca (Debian package {package})");
    let folder = folder();
    let unusable = |error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(unusable)?;
    let source = crate::cargo::workspace().join(SOURCE);
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(built()).arg(&source).current_dir(&folder).stdin(Stdio::null());
    // Take packages from Debian's folder, never from the network.
    go.env("GO111MODULE", "off").env("GOPATH", GO_PATH).env("GOFLAGS", "").env("GOCACHE", folder.join("cache"));
    let output = go.output().map_err(|error| format!("go cannot be started: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("step-ca could not be built: {}", text.trim().lines().last().unwrap_or("go gave no reason")));
    }
    // The build cache is large, and no longer needed.
    let _ = std::fs::remove_dir_all(folder.join("cache"));
    // Copied last: its presence means that the program was built from this source.
    std::fs::copy(&source, folder.join("main.go")).map(|_| ()).map_err(unusable)
}
