//! Adjacent versions of server and agent work together, in both directions, while they are replaced one by one.
//!
//! The previous version is real: `cargo xtask prove versions` builds its programs from the commit that `xtask/previous-version`
//! names. Ordinary test runs compare recorded messages instead (`crates/contract/tests/trust/previous_version.rs`).

use crate::allocations::{catalog_of_slots, tenant};
use crate::cluster::{AgentHost, Carrier, Cluster, Store, Version, previous_programs};

/// Returns whether the programs of the previous version are available. Reports the skip if not.
fn has_previous(test: &str) -> bool {
    let has = previous_programs().is_some();
    if !has {
        gpuaas_testkit::skip(test, "it needs the programs of the version before; run `cargo xtask prove versions`");
    }
    has
}

/// Starts a simulated host with an agent of this version, and waits until it is online.
fn host(cluster: &Cluster, name: &str, carrier: Carrier, version: Version) -> (AgentHost, String) {
    let mut host = AgentHost::new(cluster, name, carrier, Some("h100"), None);
    host.change_version(version);
    host.enroll(cluster);
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);
    (host, node)
}

fn pings(cluster: &Cluster, node: &str) {
    let task = cluster.ping(node, &[]);
    cluster.wait_state(&task, "succeeded");
}

/// Enrollment, a task, a lease, a restart of the agent and a release.
fn whole_life(store: Store, carrier: Carrier, server: Version, agent: Version) {
    let Some(cluster) = Cluster::start_version(store, server) else { return };
    let (mut host, node) = host(&cluster, "gpu-1", carrier, agent);
    pings(&cluster, &node);
    tenant(&cluster);
    catalog_of_slots(&cluster, &node);
    assert_eq!(lease(&cluster, "trainer"), "active");
    host.stop();
    cluster.wait_online(&node, false);
    host.start();
    cluster.wait_online(&node, true);
    pings(&cluster, &node);
    assert_eq!(cluster.json(&["alloc", "release", "trainer", "--yes"])["state"], "released");
    host.stop();
    cluster.verify_audit();
}

fn lease(cluster: &Cluster, name: &str) -> String {
    let create = ["alloc", "create", name, "--sku", "h100-2x", "--image", "ubuntu", "--ssh-key", "laptop"];
    cluster.json(&create)["state"].as_str().unwrap().to_owned()
}

#[test]
fn an_agent_of_the_version_before_works_with_this_server() {
    if has_previous("an agent of the version before with this server") {
        whole_life(Store::Sqlite, Carrier::Stream, Version::This, Version::Previous);
        whole_life(Store::Postgres, Carrier::Poll, Version::This, Version::Previous);
    }
}

#[test]
fn this_agent_works_with_a_server_of_the_version_before() {
    if has_previous("this agent with a server of the version before") {
        whole_life(Store::Sqlite, Carrier::Stream, Version::Previous, Version::This);
        whole_life(Store::Postgres, Carrier::Poll, Version::Previous, Version::This);
    }
}

/// The server is upgraded, then the agent, then the server is downgraded again. A tenant's lease survives all of it.
#[test]
fn a_lease_outlives_the_upgrade_of_everything_and_the_way_back() {
    if !has_previous("a lease over an upgrade") {
        return;
    }
    let Some(mut cluster) = Cluster::start_version(Store::Postgres, Version::Previous) else { return };
    let (mut host, node) = host(&cluster, "gpu-1", Carrier::Stream, Version::Previous);
    tenant(&cluster);
    catalog_of_slots(&cluster, &node);
    assert_eq!(lease(&cluster, "trainer"), "active");

    cluster.change_version(Version::This);
    cluster.wait_online(&node, true);
    pings(&cluster, &node);
    host.stop();
    host.change_version(Version::This);
    host.start();
    cluster.wait_online(&node, true);
    pings(&cluster, &node);
    assert_eq!(cluster.json(&["alloc", "stop", "trainer"])["state"], "stopped");
    assert_eq!(cluster.json(&["alloc", "start", "trainer"])["state"], "active");

    cluster.change_version(Version::Previous);
    cluster.wait_online(&node, true);
    pings(&cluster, &node);
    assert_eq!(cluster.json(&["alloc", "release", "trainer", "--yes"])["state"], "released");
    host.stop();
    cluster.verify_audit();
}

/// Both servers write to one database, each with an agent on its link, and each sends tasks to the other's agent.
#[test]
fn servers_of_both_versions_work_side_by_side_on_one_database() {
    if !has_previous("servers of both versions side by side") {
        return;
    }
    let Some(before) = Cluster::start_version(Store::Postgres, Version::Previous) else { return };
    let (mut first, first_node) = host(&before, "gpu-1", Carrier::Stream, Version::Previous);
    tenant(&before);
    catalog_of_slots(&before, &first_node);
    assert_eq!(lease(&before, "one"), "active");

    // The newer server migrates the schema while the older one is running.
    let after = before.beside(Version::This);
    let (mut second, second_node) = host(&after, "gpu-2", Carrier::Stream, Version::This);
    for cluster in [&before, &after] {
        pings(cluster, &first_node);
        pings(cluster, &second_node);
    }
    assert_eq!(lease(&before, "two"), "active");
    assert_eq!(lease(&after, "three"), "active");
    assert_eq!(after.json(&["alloc", "release", "one", "--yes"])["state"], "released");
    assert_eq!(after.json(&["alloc", "release", "two", "--yes"])["state"], "released");
    assert_eq!(before.json(&["alloc", "release", "three", "--yes"])["state"], "released");
    first.stop();
    second.stop();
    before.verify_audit();
    after.verify_audit();
}
