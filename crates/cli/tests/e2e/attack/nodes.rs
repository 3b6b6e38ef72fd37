//! Attacks by hosts: to impersonate a node, to run a node twice, and to fill the server's store.

use std::collections::BTreeSet;
use std::path::Path;

use gpuaas_contract::link::{Heartbeat, LogChunk, LogLine, Ping, Pong, from_node, to_node};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_testkit::{PATIENCE, eventually};
use serde_json::Value;
use tokio::sync::mpsc;

use super::http::Request;
use super::rogue::{Link, Rogue};
use super::target::Target;
use super::{is_long, withstand};
use crate::cluster::{AgentHost, Carrier};
use crate::rotten_journal::copy_folder;

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().or_else(|| value["items"].as_array()).unwrap_or_else(|| panic!("no list: {value}"))
}

#[test]
fn a_host_that_looks_like_a_node_does_not_become_it() {
    let mut target = Target::start();
    let known = target.cluster.dir.join("gpu-1");
    withstand("imitated-node", &mut target, |target| {
        let cluster = &target.cluster;
        let before = cluster.wait_online(&target.node, true);
        // Further installations of the agent, with keys and names of their own, on what looks like the same machine.
        let [thief, other] = ["gpu-8", "gpu-9"].map(|name| {
            let host = AgentHost::new(cluster, name, Carrier::Stream, Some("h100"), None);
            copy_folder(&known.join("state/host"), &host.folder.join("state/host"));
            host
        });
        let pin = cluster.ca_pin();
        let mut asking =
            thief.agent_in_background(&["enroll", "--server", &cluster.link, "--email", "eve@example.org", "--ca-sha256", &pin]);
        let line = asking.wait_for_line("waiting for an operator", PATIENCE);
        let id = line.split_whitespace().find(|word| word.starts_with("enroll_")).unwrap_or_else(|| panic!("no id in {line}"));
        let requests = cluster.json(&["node", "requests"]);
        let existing = &list(&requests)[0]["existing_node"];
        assert_eq!(existing["id"], target.node.as_str(), "the operator is not shown the match: {requests}");
        assert_eq!((&existing["online"], &existing["needs_replace"]), (&true.into(), &true.into()), "{requests}");
        // Replacing a node takes an explicit option, so it does not happen by mistake.
        let approved = cluster.cli(&["node", "approve", id]);
        assert!(approved.code != 0 && approved.stderr.contains("--replace-node"), "{approved:?}");
        let ran = other.agent(&["enroll", "--server", &cluster.link, "--token", &cluster.join_token()]);
        assert!(
            ran.code != 0 && ran.stderr.contains("fingerprint"),
            "with a join token that is for no node in particular: {ran:?}"
        );
        cluster.json(&["node", "reject", id]);
        assert!(!asking.wait(PATIENCE).success(), "the imitation got in");
        let after = cluster.wait_online(&target.node, true);
        assert_eq!(
            (&after["epoch"], &after["session"]["id"]),
            (&before["epoch"], &before["session"]["id"]),
            "the link was touched"
        );
        "an online node's fingerprint shown with other keys, by request and with a join token, refused both times".to_owned()
    });
}

#[test]
fn a_certificate_made_with_the_leaked_ca_key_opens_no_link() {
    let mut target = Target::start();
    let known = target.cluster.dir.join("gpu-1");
    withstand("forged-certificate", &mut target, |target| {
        let before = target.cluster.wait_online(&target.node, true);
        let thief = Rogue::of(target, &known).forged(&target.cluster.dir.join("server/keys"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let times = if is_long() { 100 } else { 5 };
        runtime.block_on(async {
            for _ in 0..times {
                let refused = thief.connect().await.map(|_| ()).expect_err("a link with a forged certificate");
                assert!(refused.message().starts_with("certificate_key_mismatch"), "{refused}");
                let refused = thief.hello_by_poll().await.expect("an answer");
                assert_eq!(refused.json()["code"], "certificate_key_mismatch", "{refused:?}");
            }
        });
        let after = target.cluster.wait_online(&target.node, true);
        assert_eq!((&after["service"], &after["session"]["id"]), (&before["service"], &before["session"]["id"]), "{after}");
        format!("{} links asked for with a certificate of the leaked CA key and a live serial number, none opened", 2 * times)
    });
}

/// Runs a node, and a second agent process with a copy of its files. Afterwards neither of them works.
fn copied(target: &Target, name: &str, carrier: Carrier) {
    let cluster = &target.cluster;
    let mut owner = AgentHost::enrolled(cluster, name, carrier);
    let node = owner.node_id();
    owner.start();
    cluster.wait_online(&node, true);
    cluster.json(&["task", "run", &node, "diag.ping", "--wait"]);
    let mut copy = AgentHost::new(cluster, &format!("{name}-copy"), carrier, Some("h100"), None);
    copy_folder(&owner.folder.join("state"), &copy.folder.join("state"));
    let known = copy.effect_lines().len();
    copy.start();
    let locked = eventually(PATIENCE, "the node is locked", || {
        let node = cluster.json(&["node", "show", &node]);
        (node["service"] == "locked").then_some(node)
    });
    assert_eq!(locked["id"], node.as_str());
    let refused = cluster.cli(&["task", "run", &node, "diag.ping"]);
    assert!(refused.code != 0 && refused.stderr.contains("is locked"), "{refused:?}");
    cluster.wait_online(&node, false);
    let audit = cluster.json(&["audit", "ls", "--target", &node]);
    assert!(list(&audit).iter().any(|row| row["action"] == "node.lock"), "the lock is not in the audit log: {audit}");
    assert_eq!((owner.effect_lines().len(), copy.effect_lines().len()), (known, known), "a task ran on a locked node");
}

#[test]
fn a_copy_of_a_nodes_files_gets_no_task_and_locks_the_node() {
    let mut target = Target::start();
    withstand("copied-node", &mut target, |target| {
        copied(target, "gpu-2", Carrier::Stream);
        let mut copies = 1;
        if is_long() {
            copied(target, "gpu-3", Carrier::Poll);
            copies += 1;
        }
        format!("files of {copies} node(s) used by a second agent, which locked the node and got no task")
    });
}

/// Returns the size of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

/// What a hostile node sends as the log of one task.
const CHUNKS_PER_TASK: u64 = 60;
const LINES_PER_CHUNK: u64 = 100;
const LINE: usize = 16_000;

/// Sends logs of these tasks and heartbeats with ever new host names, and waits until the server has stored or dropped everything.
async fn flood(link: Link, tasks: Vec<String>, heartbeats: u64) {
    let Link { say, mut answers } = link;
    // Acknowledgments are only read once everything is sent, so there is room for one per chunk of every task.
    let (acknowledged, mut acknowledgments) = mpsc::channel(4096);
    let answer = say.clone();
    let reader = tokio::spawn(async move {
        while let Ok(Some(message)) = answers.message().await {
            match message.message {
                Some(to_node::Message::Ping(Ping { nonce })) => {
                    let _ = answer.send(from_node::Message::Pong(Pong { nonce }).into()).await;
                }
                Some(to_node::Message::LogAck(ack)) => {
                    for position in ack.positions {
                        let _ = acknowledged.send((position.task_id, position.sequence)).await;
                    }
                }
                Some(to_node::Message::Goodbye(goodbye)) => panic!("{goodbye:?}"),
                Some(_) | None => {}
            }
        }
    });
    let mut open = BTreeSet::new();
    for number in 0..heartbeats {
        let hostname = format!("\u{1b}[2J\u{7}not-your-node-{number}\u{202e}{}", "x".repeat(2_000));
        let facts = HostFacts { hostname, kernel: number.to_string(), ..HostFacts::default() };
        let facts_json = serde_json::to_string(&facts).expect("JSON");
        say.send(from_node::Message::Heartbeat(Heartbeat { facts_json, ..Heartbeat::default() }).into()).await.expect("sent");
    }
    let text = "x".repeat(LINE);
    for task in &tasks {
        for chunk in 0..CHUNKS_PER_TASK {
            let first = chunk * LINES_PER_CHUNK + 1;
            let line = |sequence| LogLine {
                task_id: task.clone(),
                sequence,
                stream: "stdout".to_owned(),
                text: text.clone(),
                ..LogLine::default()
            };
            let lines: Vec<LogLine> = (first..first + LINES_PER_CHUNK).map(line).collect();
            open.insert((task.clone(), first + LINES_PER_CHUNK - 1));
            say.send(from_node::Message::Logs(LogChunk { lines }).into()).await.expect("sent");
        }
    }
    let all = async {
        while !open.is_empty() {
            open.remove(&acknowledgments.recv().await.expect("the link goes on"));
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("everything is answered");
    reader.abort();
}

#[test]
fn a_node_that_floods_logs_and_names_fills_neither_the_store_nor_the_screen() {
    let mut target = Target::start();
    // Enrolled regularly, but its agent never runs.
    let host = AgentHost::enrolled(&target.cluster, "gpu-2", Carrier::Stream);
    let node = host.node_id();
    let (tasks, heartbeats) = if is_long() { (6, 5_000) } else { (1, 300) };
    // The server keeps 32 MiB per task, and 128 MiB per node and hour. Pages, indexes and the write-ahead log come on top.
    let kept: u64 = if is_long() { 128 } else { 32 };
    let allowed = (kept + kept / 4 + 24) * 1024 * 1024;
    withstand("hostile-node", &mut target, |target| {
        let cluster = &target.cluster;
        let name = cluster.json(&["node", "show", &node])["name"].clone();
        let before = bytes_in(&cluster.dir.join("server"));
        let rogue = Rogue::of(target, &host.folder);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let mut link = runtime.block_on(rogue.connect()).expect("a link");
        let ids: Vec<String> = (0..tasks).map(|_| cluster.ping(&node, &[])).collect();
        runtime.block_on(async {
            let mut offered = 0;
            while offered < tasks {
                let answer = tokio::time::timeout(PATIENCE, link.answers.message()).await.expect("an offer").expect("a word");
                offered += usize::from(matches!(answer.and_then(|word| word.message), Some(to_node::Message::Offer(_))));
            }
            flood(link, ids, heartbeats).await;
        });
        let grown = bytes_in(&cluster.dir.join("server")).saturating_sub(before);
        let sent = tasks as u64 * CHUNKS_PER_TASK * LINES_PER_CHUNK * LINE as u64;
        assert!(grown <= allowed, "{sent} bytes of logs made the store grow by {grown}; {allowed} are allowed");
        assert!(sent > allowed, "less was sent than is allowed");
        let shown = cluster.json(&["node", "show", &node]);
        assert_eq!(shown["name"], name, "a node renamed itself");
        let hostname = shown["facts"]["hostname"].as_str().unwrap_or_default();
        assert!(hostname.contains("not-your-node") && !hostname.chars().any(char::is_control), "{hostname:?}");
        let path = format!("/api/v1/audit?target={node}&limit=1000");
        let rows = target.ask(&Request::get(&path, &target.token)).json();
        let rows = list(&rows).len();
        assert!(rows < 200, "{heartbeats} heartbeats made {rows} audit rows");
        format!(
            "{} MiB of logs and {heartbeats} heartbeats with other names sent, store grown by {} MiB, {rows} audit rows",
            sent / 1024 / 1024,
            grown / 1024 / 1024
        )
    });
}
