//! The agent's disk is full or fails: tasks are refused or fail, never falsely succeed, and everything converges afterwards.

use gpuaas_testkit::{PATIENCE, SmallDisk, eventually, proof_count};

use crate::cluster::{AgentHost, Carrier, Cluster, Store};

/// Disk size with room for the identity, a small journal and the logs.
const ROOMY: u64 = 48 << 20;
/// Disk size with room for the identity only.
const TINY: u64 = 2 << 20;
const SMALL_JOURNAL: &str = "journal_bytes = 8388608\nlog_buffer_bytes = 4194304";

fn cluster_with_host() -> (Cluster, AgentHost, String) {
    let cluster = Cluster::start(Store::Sqlite).expect("SQLite needs nothing");
    let host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    let node = host.node_id();
    (cluster, host, node)
}

/// Checks that the task has ended with one receipt, and returns its state. A success has its effect, a refusal has none.
fn ended(cluster: &Cluster, host: &AgentHost, id: &str) -> String {
    let task = eventually(PATIENCE, &format!("{id} ends"), || {
        let task = cluster.task(id);
        task["ended_at"].is_string().then_some(task)
    });
    let state = task["state"].as_str().unwrap().to_owned();
    let marks = host.effects(id);
    match state.as_str() {
        "succeeded" => assert_eq!(marks, 1, "a false success: {task}"),
        "refused" => assert_eq!(marks, 0, "a false refusal: {task}"),
        "failed" | "interrupted" => assert!(marks <= 1, "{marks} marks of {task}"),
        _ => panic!("{task}"),
    }
    assert!(task["receipt_digest"].is_string(), "{task}");
    assert_eq!(cluster.cli(&["task", "verify", id]).code, 0);
    let audit = cluster.json(&["audit", "ls", "--target", id]);
    let rows = audit["items"].as_array().or(audit.as_array()).unwrap_or_else(|| panic!("no rows in {audit}"));
    assert_eq!(rows.iter().filter(|row| row["action"] == "task.receipt").count(), 1, "receipts of {id}");
    state
}

fn works(cluster: &Cluster, node: &str) {
    assert_eq!(cluster.json(&["task", "run", node, "diag.ping", "--wait"])["state"], "succeeded");
}

fn injected(log: &std::path::Path) -> usize {
    std::fs::read_to_string(log).unwrap().matches("(INJECTED)").count()
}

/// The journal's system call fails at its n-th use, for every n: the agent ends with a clear message, and after a restart every
/// task that it was given succeeds exactly once.
fn journal_fails_at_every_step(call: &str, error: &str, last: usize) {
    let (cluster, mut host, node) = cluster_with_host();
    host.start();
    cluster.wait_online(&node, true);
    works(&cluster, &node);
    host.stop();
    for step in 1..=last {
        let Some(log) = host.start_with_fault(&format!("{call}:error={error}:when={step}"), "journal") else { return };
        cluster.wait_online(&node, true);
        let mut ids = Vec::new();
        eventually(PATIENCE, &format!("{call} fails at use {step} and the agent ends"), || {
            if host.is_running() && ids.len() < 40 {
                ids.push(cluster.ping(&node, &[]));
            }
            (!host.is_running()).then_some(())
        });
        assert_eq!(injected(&log), 1, "{call} at use {step}");
        let reported = host.fails();
        assert!(reported.contains("the journal failed") && reported.contains("check the disk"), "{reported}");
        host.start();
        for id in &ids {
            assert_eq!(ended(&cluster, &host, id), "succeeded", "{call} at use {step}");
        }
        works(&cluster, &node);
        host.stop();
    }
    cluster.verify_audit();
}

#[test]
fn the_journal_cannot_be_synced() {
    journal_fails_at_every_step("fdatasync", "EIO", proof_count(5, 40));
}

#[test]
fn the_journal_cannot_be_written() {
    journal_fails_at_every_step("pwrite64", "ENOSPC", proof_count(5, 40));
}

#[test]
fn the_journal_cannot_be_made_or_read() {
    let (cluster, mut host, node) = cluster_with_host();
    let Some(log) = host.start_with_fault("fallocate:error=ENOSPC", "journal.new") else { return };
    let reported = host.fails();
    assert!(reported.contains("no room for the journal") && reported.contains("journal_bytes"), "{reported}");
    assert_eq!(injected(&log), 1);
    assert!(!host.folder.join("state/journal").exists() && !host.folder.join("state/journal.new").exists());
    // A file system that does not support allocation: the space is reserved by writing zeros.
    let log = host.start_with_fault("fallocate:error=EOPNOTSUPP", "journal.new").unwrap();
    cluster.wait_online(&node, true);
    assert_eq!(injected(&log), 1);
    works(&cluster, &node);
    let id = cluster.ping(&node, &["--param", "hold_ms=60000"]);
    cluster.wait_state(&id, "started");
    host.kill();
    for use_number in 1..=3 {
        let log = host.start_with_fault(&format!("pread64:error=EIO:when={use_number}"), "journal").unwrap();
        let reported = host.fails();
        assert!(reported.contains("journal") && reported.contains("cannot be read"), "{reported}");
        assert_eq!(injected(&log), 1);
        assert_eq!(cluster.task(&id)["state"], "started");
    }
    host.start();
    assert_eq!(ended(&cluster, &host, &id), "succeeded");
}

#[test]
fn a_mark_that_may_not_be_on_disk_is_no_success() {
    let (cluster, mut host, node) = cluster_with_host();
    host.start();
    cluster.wait_online(&node, true);
    works(&cluster, &node);
    host.stop();
    let Some(log) = host.start_with_fault("fsync:error=EIO", "host/ping.log") else { return };
    cluster.wait_online(&node, true);
    for _ in 0..3 {
        let id = cluster.ping(&node, &[]);
        assert_eq!(ended(&cluster, &host, &id), "failed");
        assert_eq!(cluster.task(&id)["code"], "host_error");
    }
    assert_eq!(injected(&log), 3);
    assert!(host.is_running(), "a failing ping log is no reason to end");
    host.stop();
    host.start();
    cluster.wait_online(&node, true);
    works(&cluster, &node);
}

#[test]
fn a_full_disk() {
    let cluster = Cluster::start(Store::Sqlite).expect("SQLite needs nothing");
    let mut host = AgentHost::new(&cluster, "gpu-1", Carrier::Stream, Some("h100"), None);
    let Some(disk) = SmallDisk::mount(&host.folder.join("state"), TINY) else { return };
    host.configure(SMALL_JOURNAL);
    host.enroll(&cluster);
    let node = host.node_id();
    let waiting = cluster.ping(&node, &[]);

    // There is no room for the journal: the agent says so and accepts nothing.
    host.start();
    let reported = host.fails();
    assert!(reported.contains("no room for the journal") && reported.contains("lower journal_bytes"), "{reported}");
    assert_eq!(cluster.task(&waiting)["state"], "queued");

    disk.resize(ROOMY);
    host.start();
    assert_eq!(ended(&cluster, &host, &waiting), "succeeded");

    // The disk is full while the agent runs, and across a restart: the journal has its reserved room, but the effect has none.
    let ballast = disk.fill();
    let without_room = |host: &AgentHost| {
        // The rest of the last page may hold a few more effects.
        let message = format!("message={}", "m".repeat(250));
        eventually(PATIENCE, "a mark has no room", || {
            let task = cluster.json(&["task", "run", &node, "diag.ping", "--param", &message, "--param", "log_lines=50"]);
            let id = task["id"].as_str().unwrap().to_owned();
            let state = ended(&cluster, host, &id);
            assert!(["succeeded", "failed"].contains(&state.as_str()), "{state}");
            (state == "failed").then(|| {
                assert_eq!(cluster.task(&id)["code"], "host_error");
                assert_eq!(host.effects(&id), 0, "a mark without room");
            })
        });
    };
    without_room(&host);
    host.kill();
    host.start();
    without_room(&host);
    let held = cluster.ping(&node, &["--param", "hold_ms=60000"]);
    cluster.wait_state(&held, "started");
    host.kill();

    drop(ballast);
    host.start();
    assert_eq!(ended(&cluster, &host, &held), "succeeded");
    works(&cluster, &node);
    cluster.verify_audit();
    host.stop();
}

#[test]
fn a_damaged_journal_changes_nothing_that_was_reported_and_leaves_no_task_open() {
    use std::os::unix::fs::FileExt as _;
    let (cluster, mut host, node) = cluster_with_host();
    for cut in [true, false] {
        host.start();
        cluster.wait_online(&node, true);
        let done: Vec<_> = (0..3).map(|_| cluster.ping(&node, &[])).collect();
        let before: Vec<_> = done.iter().map(|id| cluster.wait_state(id, "succeeded")).collect();
        let held = cluster.ping(&node, &["--param", "hold_ms=60000"]);
        cluster.wait_state(&held, "started");
        host.kill();
        cluster.wait_online(&node, false);
        let waiting = cluster.ping(&node, &[]);
        let journal = std::fs::OpenOptions::new().read(true).write(true).open(host.folder.join("state/journal")).unwrap();
        if cut {
            journal.set_len(0).unwrap();
        } else {
            let mut byte = [0];
            journal.read_exact_at(&mut byte, 4096 + 300).unwrap();
            journal.write_all_at(&[byte[0] ^ 4], 4096 + 300).unwrap();
        }
        host.start();
        let reported = cluster.wait_online(&node, true);
        assert!(host.log().contains("local state was repaired"), "{reported}");
        let task = eventually(PATIENCE, "the held task ends", || Some(cluster.task(&held)).filter(|t| t["ended_at"].is_string()));
        if cut {
            // Nobody knows how the task ended, and the control plane reports that.
            assert_eq!((&task["state"], &task["code"]), (&"lost".into(), &"journal_lost".into()), "{task}");
            assert_eq!(host.effects(&held), 0);
        } else {
            assert_eq!(ended(&cluster, &host, &held), "succeeded");
        }
        // Created before the damage was found, and unknown to the journal: as far as the agent can tell, it may have run.
        assert_eq!(ended(&cluster, &host, &waiting), "interrupted");
        assert_eq!((cluster.task(&waiting)["code"].as_str(), host.effects(&waiting)), (Some("journal_damaged"), 0));
        for (id, before) in done.iter().zip(&before) {
            assert_eq!((&cluster.task(id), host.effects(id)), (before, 1));
        }
        works(&cluster, &node);
        host.stop();
    }
    cluster.verify_audit();
}
