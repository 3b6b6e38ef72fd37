//! Runs cargo: always the one that runs this program, and always in the top folder of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the top folder of the repository.
pub(crate) fn workspace() -> PathBuf {
    // Cargo sets this to the current location; the path compiled in at build time may be another copy of the repository.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Returns a cargo command, not yet started.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Runs cargo with inherited standard streams and waits for it. Returns true if it succeeded.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let status = command(arguments).status().map_err(|error| format!("cargo cannot be started: {error}"))?;
    Ok(status.success())
}

/// Returns the features that the tests enable wherever they exist, as `package/feature`: failpoints, and whatever a default build
/// leaves out to be quick.
///
/// The crash tests need failpoints in every program. Enabling the same features in every step avoids compiling anything twice.
pub(crate) fn test_features() -> Result<Vec<String>, String> {
    let output = command(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let of_package = |package: &serde_json::Value| {
        let name = package["name"].as_str().unwrap_or_default().to_owned();
        let has = ["failpoints", "temporal"].into_iter().filter(|feature| package["features"].get(feature).is_some());
        has.map(|feature| format!("{name}/{feature}")).collect::<Vec<_>>()
    };
    Ok(packages.iter().flat_map(of_package).collect())
}

/// Builds everything with these arguments for features, as `cargo xtask test` does. Without the tests' own dependencies, many crates
/// would have other features, and would be compiled a second time.
pub(crate) fn build_all(features: &[&str]) -> Result<(), String> {
    if run(&[&["build", "--quiet", "--workspace", "--all-targets"], features].concat())? {
        return Ok(());
    }
    Err("the programs cannot be built".to_owned())
}

/// Returns the folder with everything that cargo builds.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace().join(target)
}

/// Returns those of `features` that belong to `package`.
pub(crate) fn of_package(features: &[String], package: &str) -> Vec<String> {
    let of_it = |feature: &&String| feature.split_once('/').is_some_and(|(name, _)| name == package);
    features.iter().filter(of_it).cloned().collect()
}
