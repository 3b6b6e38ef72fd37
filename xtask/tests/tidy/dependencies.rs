//! Dependencies between packages point in one direction. `ARCHITECTURE.md` explains why.

use std::collections::BTreeSet;

use crate::expect_none;
use crate::metadata::{TREE, linked_into, member, members};

/// The workspace packages that each workspace package may link. The CLI may link everything except the testkit, for `gpuaas dev`.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("gpuaas-contract", &[]),
    ("gpuaas-failpoint", &[]),
    ("gpuaas-runtime", &["gpuaas-contract"]),
    ("gpuaas-domain", &["gpuaas-contract"]),
    ("gpuaas-api", &["gpuaas-contract"]),
    ("gpuaas-host", &["gpuaas-contract"]),
    ("gpuaas-identity", &["gpuaas-contract"]),
    ("gpuaas-backends", &["gpuaas-contract"]),
    ("gpuaas-store", &["gpuaas-contract", "gpuaas-domain", "gpuaas-runtime"]),
    ("gpuaas-agent", &["gpuaas-contract", "gpuaas-failpoint", "gpuaas-host", "gpuaas-runtime"]),
    (
        "gpuaas-control",
        &[
            "gpuaas-api",
            "gpuaas-contract",
            "gpuaas-domain",
            "gpuaas-backends",
            "gpuaas-failpoint",
            "gpuaas-identity",
            "gpuaas-store",
            "gpuaas-runtime",
        ],
    ),
    (
        "gpuaas",
        &[
            "gpuaas-agent",
            "gpuaas-api",
            "gpuaas-contract",
            "gpuaas-control",
            "gpuaas-domain",
            "gpuaas-backends",
            "gpuaas-failpoint",
            "gpuaas-host",
            "gpuaas-identity",
            "gpuaas-store",
            "gpuaas-temporal",
            "gpuaas-runtime",
        ],
    ),
    // Its tests reuse the scripted nodes of the control plane's tests, which call the REST API and read the store.
    ("gpuaas-temporal", &["gpuaas-api", "gpuaas-contract", "gpuaas-control", "gpuaas-domain", "gpuaas-store"]),
    ("gpuaas-testkit", &["gpuaas-contract", "gpuaas-failpoint"]),
    ("gpuaas-bench", &["gpuaas-api", "gpuaas-contract", "gpuaas-control", "gpuaas-domain", "gpuaas-host", "gpuaas-store"]),
    ("gpuaas-fuzz", &["gpuaas-agent", "gpuaas-contract", "gpuaas-control"]),
    (
        "gpuaas-sim",
        &[
            "gpuaas-agent",
            "gpuaas-api",
            "gpuaas-contract",
            "gpuaas-control",
            "gpuaas-domain",
            "gpuaas-host",
            "gpuaas-store",
            "gpuaas-runtime",
        ],
    ),
    ("xtask", &[]),
];

fn workspace_names() -> BTreeSet<&'static str> {
    members().map(|package| package.name.as_str()).collect()
}

#[test]
fn dependencies_between_our_crates_point_one_way() {
    let ours = workspace_names();
    let mut broken = vec![];
    for package in members() {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            broken.push(format!("{} is not in the table of this test", package.name));
            continue;
        };
        for dependency in package.normal.iter().chain(&package.build).filter(|name| ours.contains(name.as_str())) {
            if !allowed.contains(&dependency.as_str()) {
                broken.push(format!("{} depends on {dependency}", package.name));
            }
        }
    }
    expect_none(
        &broken,
        "Move the shared part down (usually into gpuaas-contract) or pass it in as an argument. If the direction itself is to \
         change, change ARCHITECTURE.md and the table in xtask/tests/tidy/dependencies.rs together.",
    );
}

#[test]
fn tests_reach_no_further_than_their_crate_but_for_the_testkit() {
    let ours = workspace_names();
    let mut broken = vec![];
    for package in members() {
        // xtask checks the task catalog, which is in the contract.
        let extra: &[&str] = if package.name == "xtask" { &["gpuaas-contract"] } else { &["gpuaas-testkit"] };
        let allowed = ALLOWED.iter().find(|(name, _)| *name == package.name).map_or(&[][..], |(_, allowed)| allowed);
        for dependency in package.dev.iter().filter(|name| ours.contains(name.as_str())) {
            if !allowed.contains(&dependency.as_str()) && !extra.contains(&dependency.as_str()) {
                broken.push(format!("the tests of {} depend on {dependency}", package.name));
            }
        }
    }
    expect_none(&broken, "Tests that need several parts of the house belong into crates/cli/tests, which may see all of them.");
}

#[test]
fn the_agent_can_never_reach_the_control_plane() {
    let Some(agent) = member("gpuaas-agent") else { return };
    let linked = linked_into(agent);
    let forbidden = ["gpuaas-domain", "gpuaas-store", "gpuaas-control", "gpuaas-api", "gpuaas", "sqlx", "sqlx-core"];
    let broken: Vec<String> =
        forbidden.into_iter().filter(|name| linked.contains(name)).map(|name| format!("gpuaas-agent links {name}")).collect();
    expect_none(&broken, "The agent is root on other people's machines: it holds no SQL and no product policy.");
}

#[test]
fn the_domain_can_never_do_input_or_output() {
    let Some(domain) = member("gpuaas-domain") else { return };
    let forbidden = [
        "async-stream",
        "axum",
        "futures",
        "getrandom",
        "http",
        "hyper",
        "hyper-util",
        "nvml-wrapper",
        "procfs",
        "prost",
        "reqwest",
        "rustix",
        "rustls",
        "sqlx",
        "tempfile",
        "tokio",
        "tokio-rustls",
        "tokio-stream",
        "tokio-util",
        "tonic",
        "tower",
        "tower-http",
        "tracing",
    ];
    let direct = domain.normal.iter().chain(&domain.build);
    let broken: Vec<String> =
        direct.filter(|name| forbidden.contains(&name.as_str())).map(|name| format!("gpuaas-domain depends on {name}")).collect();
    expect_none(
        &broken,
        "The domain only decides: take what was read, and the clock, as arguments, and return what is to be done.",
    );
}

#[test]
fn the_testkit_is_only_for_tests() {
    let broken: Vec<String> = members()
        .filter(|package| package.normal.contains("gpuaas-testkit") || package.build.contains("gpuaas-testkit"))
        .map(|package| format!("{} depends on gpuaas-testkit", package.name))
        .collect();
    expect_none(&broken, "Move the line to [dev-dependencies].");
}

#[test]
fn failpoints_are_off_unless_a_test_turns_them_on() {
    let mut broken = vec![];
    for manifest in crate::files::crate_manifests() {
        let text = manifest.toml();
        let default = text.get("features").and_then(|features| features.get("default")).and_then(toml::Value::as_array);
        let on_by_default =
            default.is_some_and(|names| names.iter().filter_map(toml::Value::as_str).any(|name| name.contains("failpoints")));
        let always_on = ["dependencies", "build-dependencies"].into_iter().any(|section| {
            let dependency = text.get(section).and_then(|dependencies| dependencies.get("gpuaas-failpoint"));
            dependency.is_some_and(|dependency| dependency.get("features").is_some())
        });
        if on_by_default || always_on {
            broken.push(format!("{} turns failpoints on", manifest.name()));
        }
    }
    expect_none(
        &broken,
        "Shipped programs have no failpoints: keep the feature out of `default` and out of the dependency line.",
    );
}

#[test]
fn nothing_that_is_banned_is_in_the_tree() {
    let deny = crate::files::deny();
    let banned: Vec<&str> =
        deny["bans"]["deny"].as_array().expect("bans in deny.toml").iter().filter_map(|ban| ban["crate"].as_str()).collect();
    assert!(banned.contains(&"ring"), "deny.toml must ban ring");
    let broken: Vec<String> = TREE
        .values()
        .filter(|package| banned.contains(&package.name.as_str()) && package.is_compiled())
        .map(|package| format!("{} {} is in the tree; deny.toml says why it must not be", package.name, package.version))
        .collect();
    expect_none(&broken, "`cargo tree -i <name>` shows who brings it; turn that feature off or choose another crate.");
}
