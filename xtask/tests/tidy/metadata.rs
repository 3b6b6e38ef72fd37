//! The output of `cargo metadata` for the workspace, on the current platform.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) in_workspace: bool,
    /// Names of the direct dependencies, by kind.
    pub(crate) normal: BTreeSet<String>,
    pub(crate) build: BTreeSet<String>,
    pub(crate) dev: BTreeSet<String>,
    /// Ids of the packages that a program with this package links.
    linked: Vec<String>,
}

/// All packages that `cargo metadata` resolves, by package id.
pub(crate) static TREE: LazyLock<BTreeMap<String, Package>> = LazyLock::new(load);

/// Name and version of every package that is compiled. `cargo metadata` also lists optional packages that a feature only mentions
/// (`ring?/alloc`), so this uses `cargo tree`.
pub(crate) static COMPILED: LazyLock<BTreeSet<(String, String)>> = LazyLock::new(|| {
    let tree = cargo(&[
        "tree",
        "--workspace",
        "--all-features",
        "--edges",
        "normal,build,dev",
        "--target",
        &host_platform(),
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let tree = String::from_utf8(tree).expect("cargo tree is text");
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    let compiled: BTreeSet<_> = tree.lines().filter_map(package).collect();
    assert!(compiled.len() > 50, "cargo tree was not understood");
    compiled
});

impl Package {
    /// Returns whether any of our programs or tests contains the package.
    pub(crate) fn is_compiled(&self) -> bool {
        COMPILED.contains(&(self.name.clone(), self.version.clone()))
    }
}

/// Returns the workspace package with this name.
pub(crate) fn member(name: &str) -> Option<&'static Package> {
    TREE.values().find(|package| package.in_workspace && package.name == name)
}

/// Returns all packages of the workspace.
pub(crate) fn members() -> impl Iterator<Item = &'static Package> {
    TREE.values().filter(|package| package.in_workspace)
}

/// Returns the names of everything that ends up in a program that links `package`, including the package itself.
pub(crate) fn linked_into(package: &Package) -> BTreeSet<&'static str> {
    let mut open: Vec<&str> = package.linked.iter().map(String::as_str).collect();
    let mut seen = BTreeSet::new();
    let mut names = BTreeSet::new();
    while let Some(id) = open.pop() {
        let next = &TREE[id];
        names.insert(next.name.as_str());
        open.extend(next.linked.iter().map(String::as_str).filter(|id| seen.insert(*id)));
    }
    names
}

fn load() -> BTreeMap<String, Package> {
    // With all features, so that no dependency is missed.
    let metadata = cargo(&["metadata", "--format-version", "1", "--all-features", "--filter-platform", &host_platform()]);
    let metadata: Value = serde_json::from_slice(&metadata).expect("cargo metadata is JSON");
    let members: BTreeSet<&str> = list(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
    let described: BTreeMap<&str, &Value> = list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    let names = |dependencies: &[(String, Option<String>)], wanted: Option<&str>| {
        let of_kind = dependencies.iter().filter(|(_, kind)| kind.as_deref() == wanted);
        of_kind.map(|(id, _)| text(&described[id.as_str()]["name"]).to_owned()).collect()
    };

    let package = |node: &Value| {
        let id = text(&node["id"]);
        let dependencies: Vec<(String, Option<String>)> = list(&node["deps"])
            .flat_map(|dependency| {
                let kinds = list(&dependency["dep_kinds"]).map(|kind| kind["kind"].as_str().map(str::to_owned));
                kinds.map(|kind| (text(&dependency["pkg"]).to_owned(), kind)).collect::<Vec<_>>()
            })
            .collect();
        let package = Package {
            name: text(&described[id]["name"]).to_owned(),
            version: text(&described[id]["version"]).to_owned(),
            license: described[id]["license"].as_str().map(str::to_owned).or_else(|| license_of_file(described[id])),
            in_workspace: members.contains(id),
            normal: names(&dependencies, None),
            build: names(&dependencies, Some("build")),
            dev: names(&dependencies, Some("dev")),
            linked: dependencies.iter().filter(|(_, kind)| kind.is_none()).map(|(id, _)| id.clone()).collect(),
        };
        (id.to_owned(), package)
    };
    list(&metadata["resolve"]["nodes"]).map(package).collect()
}

fn host_platform() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host").to_owned()
}

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(crate::files::root()).output().expect("cargo can be started");
    assert!(output.status.success(), "cargo {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list in cargo metadata").iter()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text in cargo metadata")
}

/// Returns the license of a package that declares none, but comes with the text of one in a file.
fn license_of_file(package: &Value) -> Option<String> {
    let folder = std::path::Path::new(package["manifest_path"].as_str()?).parent()?;
    let text = std::fs::read_to_string(folder.join(package["license_file"].as_str()?)).ok()?;
    text.starts_with("The MIT License").then(|| "MIT".to_owned())
}
