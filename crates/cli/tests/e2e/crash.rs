//! SIGKILL at every step of a task's life: the task always ends with one effect and one receipt.

use crate::cluster::{AgentHost, Carrier, Cluster, Store};

const AGENT_STEPS: [&str; 6] =
    ["agent.before_accept", "agent.accepted", "agent.started", "agent.effect_done", "agent.finished", "agent.reported"];

const SERVER_STEPS: [&str; 4] = ["server.enqueued", "server.claimed", "server.before_receipt_commit", "server.receipt_committed"];

/// Checks that the task has succeeded, exactly once, and that the evidence is valid.
fn converged(cluster: &Cluster, host: &AgentHost, node: &str, id: &str, step: &str) {
    let task = cluster.wait_state(id, "succeeded");
    assert_eq!(host.effects(id), 1, "{step}: effects of {id}");
    assert!(task["receipt_digest"].is_string(), "{step}");
    assert_eq!(cluster.cli(&["task", "verify", id]).code, 0, "{step}");
    // One receipt: exactly one row of the audit log records that one was accepted.
    let audit = cluster.json(&["audit", "ls", "--target", id]);
    let rows = audit["items"].as_array().or(audit.as_array()).unwrap_or_else(|| panic!("no rows in {audit}"));
    let receipts = rows.iter().filter(|row| row["action"] == "task.receipt").count();
    assert_eq!(receipts, 1, "{step}: receipts of {id}");
    // The node keeps working.
    let next = cluster.json(&["task", "run", node, "diag.ping", "--wait"]);
    assert_eq!(next["state"], "succeeded", "{step}");
}

fn agent_killed_at_every_step(store: Store, carrier: Carrier) {
    let Some(cluster) = Cluster::start(store) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", carrier);
    let node = host.node_id();
    for step in AGENT_STEPS {
        host.failpoints.arm(step);
        host.start();
        cluster.wait_online(&node, true);
        let id = cluster.ping(&node, &[]);
        host.failpoints.wait_hit(step);
        host.kill();
        cluster.wait_online(&node, false);
        host.start();
        cluster.wait_online(&node, true);
        converged(&cluster, &host, &node, &id, step);
        host.kill();
        cluster.wait_online(&node, false);
    }
    cluster.verify_audit();
}

fn server_killed_at_every_step(store: Store, carrier: Carrier) {
    let Some(mut cluster) = Cluster::start(store) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", carrier);
    let node = host.node_id();
    host.start();
    for step in SERVER_STEPS {
        cluster.wait_online(&node, true);
        cluster.failpoints.arm(step);
        // The caller may not get the response, so it repeats the request with the same idempotency key, as a client should.
        let key = format!("crash-{step}");
        let ask = ["task", "run", &node, "diag.ping", "--idempotency-key", &key, "-o", "json"];
        let mut caller = cluster.cli_launch(&ask).start(cluster.dir.path());
        cluster.failpoints.wait_hit(step);
        cluster.kill_server();
        caller.sigkill();
        cluster.start_server();
        cluster.wait_online(&node, true);
        let id = cluster.cli(&ask).json()["id"].as_str().unwrap().to_owned();
        converged(&cluster, &host, &node, &id, step);
    }
    cluster.verify_audit();
}

#[test]
fn the_agent_is_killed_at_every_step_over_the_stream() {
    agent_killed_at_every_step(Store::Sqlite, Carrier::Stream);
}

#[test]
fn the_agent_is_killed_at_every_step_over_long_poll() {
    agent_killed_at_every_step(Store::Postgres, Carrier::Poll);
}

#[test]
fn the_server_is_killed_at_every_step_on_sqlite() {
    server_killed_at_every_step(Store::Sqlite, Carrier::Stream);
}

#[test]
fn the_server_is_killed_at_every_step_on_postgres() {
    server_killed_at_every_step(Store::Postgres, Carrier::Poll);
}
