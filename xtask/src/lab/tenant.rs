//! The tenant of the lab: what an operator creates for it, and what the tenant sees of its project.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::cluster::{Caller, Cluster};
use super::program::{run, text};
use super::slice::expect;

const ORGANIZATION: &str = "acme";
const PROJECT: &str = "acme/training";
/// The service account that acts as the tenant. A person would need a browser to sign in, and has the same permissions.
const ACCOUNT: &str = "lab";
const PRODUCT: &str = "lab-1x";
const IMAGE: &str = "debian";
const KEY: &str = "laptop";

/// The image that the guests start from, and who may sign in to them.
pub(super) struct Wanted<'a> {
    /// URL from which hosts download the image.
    pub(super) url: &'a str,
    /// SHA-256 of the image, in hexadecimal.
    pub(super) digest: &'a str,
    /// Name of the user in the guest.
    pub(super) user: &'a str,
    /// Path of the user's public SSH key.
    pub(super) public_key: &'a Path,
}

/// As an operator, creates a product, an image and a project with a quota of one slot. The tenant gets an API key of its own, and
/// uses it from then on.
pub(super) fn welcome(cluster: &Cluster, wanted: &Wanted<'_>) -> Result<(), String> {
    let Wanted { url, digest, user, public_key } = wanted;
    for order in [
        &["sku", "create", PRODUCT, "--slots", "1", "--min-vcpus", "2", "--min-memory-mib", "1024", "--price", "2.50"][..],
        &["image", "create", IMAGE, "--from", url, "--sha256", digest, "--user", user, "--platform"],
        &["org", "create", ORGANIZATION, "--slots", "1"],
        &["project", "create", PROJECT, "--slots", "1", "--machines", "0"],
        &["service-account", "create", ACCOUNT, "--role", "member", "--project", PROJECT],
    ] {
        cluster.json(Caller::Operator, order)?;
    }
    let key = cluster.json(Caller::Operator, &["key", "create", ACCOUNT, "--life", "1d", "--project", PROJECT])?;
    let secret = key["secret"].as_str().ok_or("the key has no secret")?;
    let path = cluster.token_file(Caller::Tenant);
    // The CLI refuses a token file that other users can read.
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, secret.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    cluster.json(Caller::Tenant, &["ssh-key", "add", KEY, text(public_key)?])?;
    expect_free(cluster)
}

/// Returns the tenant's command that leases a guest. It runs until the tenant can sign in.
pub(super) fn lease(cluster: &Cluster, name: &str) -> std::process::Command {
    let order = ["alloc", "create", name, "--sku", PRODUCT, "--image", IMAGE, "--ssh-key", KEY, "-o", "json"];
    cluster.command(Caller::Tenant, &order)
}

/// Checks that the tenant holds the only slot, and that no capacity is shown as available.
pub(super) fn expect_leased(cluster: &Cluster) -> Result<(), String> {
    expect(used_slots(cluster)? == Some(1), "the quota counts the slot")?;
    expect(available(cluster)? == Some(0), "the catalog has none left")?;
    let another = ["alloc", "create", "another", "--sku", PRODUCT, "--image", IMAGE, "--ssh-key", KEY, "--dry-run", "-o", "json"];
    let plan = cluster.command(Caller::Tenant, &another).output().map_err(|error| format!("gpuaas: {error}"))?;
    let plan: Value = serde_json::from_slice(&plan.stdout).map_err(|error| format!("the plan of another guest: {error}"))?;
    expect(plan["fits"] == false, "another guest would not fit")
}

/// Checks that the tenant holds nothing, and that the slot is available again.
pub(super) fn expect_free(cluster: &Cluster) -> Result<(), String> {
    expect(used_slots(cluster)? == Some(0), "the quota counts nothing")?;
    expect(available(cluster)? == Some(1), "the catalog has one to lease")
}

/// Checks that the tenant sees the complete history of an ended allocation.
pub(super) fn expect_history(cluster: &Cluster, allocation: &str) -> Result<(), String> {
    let printed = run(&mut cluster.command(Caller::Tenant, &["alloc", "events", allocation, "-o", "json"]))?;
    for kind in ["requested", "provisioning", "active", "releasing", "released"] {
        if !printed.contains(&format!("\"gpuaas.allocation.{kind}.v1\"")) {
            return Err(format!("not so: its history has `{kind}`:\n{printed}"));
        }
    }
    println!("    its history is complete");
    Ok(())
}

fn used_slots(cluster: &Cluster) -> Result<Option<u64>, String> {
    Ok(cluster.json(Caller::Tenant, &["quota", "show"])?["used"]["slots"].as_u64())
}

fn available(cluster: &Cluster) -> Result<Option<u64>, String> {
    let catalog = cluster.json(Caller::Tenant, &["catalog"])?;
    let offers = catalog.as_array().into_iter().flatten();
    Ok(offers.filter(|offer| offer["name"] == PRODUCT).find_map(|offer| offer["available"].as_u64()))
}
