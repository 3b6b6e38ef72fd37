//! Every crate's manifest inherits what the workspace defines.

use crate::expect_none;
use crate::files::crate_manifests;

#[test]
fn every_crate_takes_lints_and_package_fields_from_the_workspace() {
    let mut broken = vec![];
    for manifest in crate_manifests() {
        let table = manifest.toml();
        let from_workspace = |value: Option<&toml::Value>| {
            value.and_then(|value| value.get("workspace")).and_then(toml::Value::as_bool) == Some(true)
        };
        let lints = table.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        if lints != Some(true) {
            broken.push(format!("{}: add `[lints]` with `workspace = true`", manifest.name()));
        }
        for field in ["version", "edition", "rust-version", "license", "publish"] {
            if !from_workspace(table.get("package").and_then(|package| package.get(field))) {
                broken.push(format!("{}: write `{field}.workspace = true`", manifest.name()));
            }
        }
    }
    expect_none(&broken, "One place decides these for all crates: the top Cargo.toml.");
}

#[test]
fn every_version_is_chosen_in_the_top_manifest() {
    let mut broken = vec![];
    for manifest in crate_manifests() {
        let table = manifest.toml();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = table.get(section).and_then(toml::Value::as_table).into_iter().flatten();
            for (name, dependency) in dependencies {
                if dependency.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    broken.push(format!("{}: [{section}] {name}", manifest.name()));
                }
            }
        }
    }
    expect_none(
        &broken,
        "Write `name.workspace = true` here and the version into [workspace.dependencies] of the top Cargo.toml.",
    );
}

#[test]
fn every_package_comes_from_the_public_registry() {
    let lock = std::fs::read_to_string(crate::files::root().join("Cargo.lock")).expect("Cargo.lock is committed");
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    let broken: Vec<String> = sources
        .filter(|source| source.trim_matches('"') != "registry+https://github.com/rust-lang/crates.io-index")
        .map(|source| format!("Cargo.lock: {source}"))
        .collect();
    expect_none(&broken, "Use a released version from crates.io; git and private registries are not reachable for everybody.");

    let config = std::fs::read_to_string(crate::files::root().join(".cargo/config.toml")).unwrap_or_default();
    let replaced: Vec<String> = config
        .lines()
        .filter(|line| line.trim_start().starts_with("[source") || line.trim_start().starts_with("[registr"))
        .map(str::to_owned)
        .collect();
    expect_none(&replaced, "Mirrors belong into the developer's own ~/.cargo/config.toml, not into the repository's.");
}
