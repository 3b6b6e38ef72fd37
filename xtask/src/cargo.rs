//! Calls of cargo, always the one that runs us and always in the workspace's folder.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The top folder of the repository.
pub(crate) fn workspace() -> PathBuf {
    // Cargo tells where we are now; the path from build time may be another copy of the repository.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&xtask).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// A call of cargo, not yet started.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Runs cargo to its end with our own input and output; true if it succeeded.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let status = command(arguments).status().map_err(|error| format!("cargo cannot be started: {error}"))?;
    Ok(status.success())
}

/// What the tests turn on wherever it is, as `package/feature`: places to crash at, and what a quick build leaves out.
///
/// The crash tests need it in every program, and turning it on everywhere in every step means that nothing is compiled twice.
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

/// The features of one package among those.
pub(crate) fn of_package(features: &[String], package: &str) -> Vec<String> {
    let of_it = |feature: &&String| feature.split_once('/').is_some_and(|(name, _)| name == package);
    features.iter().filter(of_it).cloned().collect()
}
