//! The database, or the server on top of it, is killed under load: no acknowledged write is lost, and nothing is stuck.

use std::collections::{HashMap, HashSet};

use gpuaas_contract::id::TaskId;
use gpuaas_testkit::{PATIENCE, PrivatePostgres, eventually, proof_count};

use crate::cluster::{AgentHost, Carrier, Cluster, Store};
use crate::load::Load;

/// Number of tasks that the server must accept between two kills.
const BETWEEN: usize = 60;

fn hosts(cluster: &Cluster) -> [AgentHost; 2] {
    let mut hosts =
        [("gpu-1", Carrier::Stream), ("gpu-2", Carrier::Poll)].map(|(name, carrier)| AgentHost::enrolled(cluster, name, carrier));
    for host in &mut hosts {
        host.start();
        cluster.wait_online(&host.node_id(), true);
    }
    hosts
}

/// Returns the number of effects on both hosts, per task.
fn effects(hosts: &[AgentHost]) -> HashMap<TaskId, usize> {
    let mut counts = HashMap::new();
    for line in hosts.iter().flat_map(AgentHost::effect_lines) {
        let id = line.split(' ').next().and_then(|word| word.parse().ok());
        *counts.entry(id.unwrap_or_else(|| panic!("no task id in `{line}`"))).or_default() += 1;
    }
    counts
}

/// Ends the load, and compares the store with what the server acknowledged and with the effects on the hosts.
fn settle(cluster: &Cluster, hosts: &[AgentHost], mut load: Load, kills: usize) {
    let asked = load.stop();
    let tasks = load.settled();
    let lost: Vec<_> = asked.acknowledged.values().filter(|id| !tasks.contains_key(id)).collect();
    assert!(lost.is_empty(), "{} acknowledged tasks are lost: {lost:?}", lost.len());
    let distinct: HashSet<_> = asked.acknowledged.values().collect();
    assert_eq!(distinct.len(), asked.acknowledged.len(), "two requests share a task");
    assert!(tasks.len() <= asked.asked, "{} tasks for {} requests", tasks.len(), asked.asked);
    let keys: HashSet<_> = tasks.values().map(|task| task.idempotency_key.clone().expect("every request has a key")).collect();
    assert_eq!(keys.len(), tasks.len(), "a request made two tasks");
    let (effects, receipts) = (effects(hosts), load.receipts_believed());
    for task in tasks.values() {
        assert_eq!(task.state.as_str(), "succeeded", "{task:?}");
        assert!(task.receipt_digest.is_some(), "{task:?}");
        assert_eq!(effects.get(&task.id), Some(&1), "effects of {}", task.id);
        assert_eq!(receipts.get(&task.id), Some(&1), "receipts of {}", task.id);
    }
    assert_eq!(effects.len(), tasks.len(), "a host did something that the records do not know");
    cluster.verify_audit();
    for id in asked.acknowledged.values().take(3) {
        assert_eq!(cluster.cli(&["task", "verify", &id.to_string()]).code, 0);
    }
    let (acknowledged, failures) = (asked.acknowledged.len(), asked.failures);
    eprintln!("{kills} kills: {acknowledged} acknowledged, {} tasks in all, {failures} requests failed", tasks.len());
}

#[test]
fn postgres_is_killed_under_load() {
    let Some(mut postgres) = PrivatePostgres::start() else { return };
    let cluster = Cluster::start_with(&postgres.url());
    let hosts = hosts(&cluster);
    let load = Load::start(&cluster, &[hosts[0].node_id(), hosts[1].node_id()]);
    let kills = proof_count(5, 50);
    for kill in 0..kills {
        load.wait_for_more(BETWEEN);
        let before = load.failures();
        if kill % 2 == 0 {
            postgres.kill_postmaster();
        } else {
            postgres.kill_everything();
        }
        load.wait_for_failure(before);
        postgres.restart();
    }
    load.wait_for_more(BETWEEN);
    settle(&cluster, &hosts, load, kills);
}

#[test]
fn the_server_on_sqlite_is_killed_under_load() {
    let Some(mut cluster) = Cluster::start(Store::Sqlite) else { return };
    let hosts = hosts(&cluster);
    let load = Load::start(&cluster, &[hosts[0].node_id(), hosts[1].node_id()]);
    let kills = proof_count(5, 50);
    for _ in 0..kills {
        load.wait_for_more(BETWEEN);
        let before = load.failures();
        cluster.kill_server();
        load.wait_for_failure(before);
        cluster.start_server();
    }
    load.wait_for_more(BETWEEN);
    settle(&cluster, &hosts, load, kills);
}

fn a_node_leaves_while_the_database_is_gone(carrier: Carrier) {
    let Some(mut postgres) = PrivatePostgres::start() else { return };
    let cluster = Cluster::start_with(&postgres.url());
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", carrier);
    let node = host.node_id();
    host.start();
    cluster.wait_online(&node, true);
    postgres.kill_everything();
    host.kill();
    eventually(PATIENCE, "the server fails to write that the node left", || {
        let log = cluster.server_log();
        let told = log.lines().any(|line| line.contains("could not record that the node is offline") && line.contains(&node));
        told.then_some(())
    });
    postgres.restart();
    cluster.wait_online(&node, false);
}

#[test]
fn a_node_on_a_stream_that_leaves_while_the_database_is_gone_is_offline_when_it_is_back() {
    a_node_leaves_while_the_database_is_gone(Carrier::Stream);
}

#[test]
fn a_node_on_long_poll_that_leaves_while_the_database_is_gone_is_offline_when_it_is_back() {
    a_node_leaves_while_the_database_is_gone(Carrier::Poll);
}
