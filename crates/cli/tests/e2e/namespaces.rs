//! An agent on another network: enrolled from a network namespace, with a join token and by approval, then disconnected and reconnected.

use crate::cluster::{AgentHost, Carrier, Cluster, Store};
use gpuaas_testkit::{NetNs, PATIENCE, eventually};

#[test]
fn an_agent_in_another_network_namespace_comes_through_both_doors_and_survives_a_cut_link() {
    let Some(namespace) = NetNs::new() else { return };
    let Some(cluster) = Cluster::start_on(Store::Postgres, &namespace.host_address().to_string()) else { return };

    let mut by_token = AgentHost::new(&cluster, "by-token", Carrier::Auto, Some("h100"), Some(&namespace));
    assert!(by_token.namespace().is_some());
    let ran = by_token.agent(&["enroll", "--server", &cluster.link, "--token", &cluster.join_token()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    by_token.start();
    let first = by_token.node_id();
    cluster.wait_online(&first, true);

    let mut by_approval = AgentHost::new(&cluster, "by-approval", Carrier::Auto, Some("mi300x"), Some(&namespace));
    let pin = cluster.ca_pin();
    let mut waiting = by_approval.agent_in_background(&[
        "enroll",
        "--server",
        &cluster.link,
        "--email",
        "ops@example.org",
        "--ca-sha256",
        &pin,
    ]);
    let request = eventually(PATIENCE, "the request waits for an operator", || {
        let list = cluster.json(&["node", "requests"]);
        let items = list["items"].as_array().or(list.as_array()).cloned().unwrap_or_default();
        items.first().map(|item| item["id"].as_str().unwrap().to_owned())
    });
    cluster.json(&["node", "approve", &request]);
    assert!(waiting.wait(PATIENCE).success(), "{}", waiting.stderr());
    by_approval.start();
    let second = by_approval.node_id();
    cluster.wait_online(&second, true);
    for node in [&first, &second] {
        assert_eq!(cluster.json(&["task", "run", node, "diag.ping", "--wait"])["state"], "succeeded");
    }

    // The cable is pulled while a task runs: the server notices the half-open link, the task continues, and the receipt arrives later.
    let held = cluster.ping(&first, &["--param", "hold_ms=2000"]);
    cluster.wait_state(&held, "started");
    namespace.cut();
    eventually(PATIENCE, "the effect happens on the cut-off host", || (by_token.effects(&held) == 1).then_some(()));
    cluster.wait_online(&first, false);
    namespace.restore();
    cluster.wait_online(&first, true);
    cluster.wait_state(&held, "succeeded");
    assert_eq!(by_token.effects(&held), 1);
    cluster.verify_audit();
}
