//! The programs of the previous version, built from the history of this repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo;

/// Names the commit that counts as the previous version. Each release sets it to the commit of the release before.
const FILE: &str = "xtask/previous-version";
const PROGRAMS: [&str; 2] = ["gpuaas", "gpuaas-agent"];
/// The environment variable with the folder of the programs, for the tests.
pub(crate) const VARIABLE: &str = "GPUAAS_TEST_PREVIOUS";

/// Returns the folder with the programs. Builds them if an earlier run has not.
pub(crate) fn programs() -> Result<PathBuf, String> {
    let commit = commit()?;
    let folder = cargo::target().join("previous").join(&commit);
    let (source, target, done) = (folder.join("source"), folder.join("target"), folder.join("programs"));
    if done.is_dir() {
        return Ok(done);
    }
    println!("==> building the version before ({commit})");
    unpack(&commit, &source)?;
    let mut build = cargo::command(&["build", "--locked", "--package", "gpuaas", "--package", "gpuaas-agent", "--bins"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", &target);
    if !build.status().is_ok_and(|status| status.success()) {
        return Err(format!("the version before cannot be built; look into {}", source.display()));
    }
    // Renamed last: a folder with the final name is complete.
    let partial = folder.join("programs.partial");
    let failed = |error: std::io::Error| format!("{}: {error}", partial.display());
    std::fs::create_dir_all(&partial).map_err(failed)?;
    for program in PROGRAMS {
        std::fs::copy(target.join("debug").join(program), partial.join(program)).map_err(failed)?;
    }
    std::fs::rename(&partial, &done).map_err(failed)?;
    Ok(done)
}

fn commit() -> Result<String, String> {
    let text = std::fs::read_to_string(cargo::workspace().join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
    let commit = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default().trim();
    if commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(commit.to_owned())
    } else {
        Err(format!("{FILE} names no commit: it needs a line with its 40 hex digits"))
    }
}

/// Unpacks the files of a commit into a folder.
fn unpack(commit: &str, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let absent = format!("commit {commit} is not here; a shallow clone needs `git fetch --unshallow`");
    let mut archive = Command::new("git");
    archive.args(["archive", "--format=tar", commit]).current_dir(cargo::workspace()).stdout(Stdio::piped());
    let mut archive = archive.spawn().map_err(|error| format!("git cannot be started: {error}"))?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--directory"]).arg(folder);
    unpack.stdin(archive.stdout.take().map_or_else(Stdio::null, Stdio::from));
    let unpacked = unpack.status().is_ok_and(|status| status.success());
    let archived = archive.wait().is_ok_and(|status| status.success());
    if archived && unpacked { Ok(()) } else { Err(absent) }
}
