//! From an operator's command to an effect on a host, and back to a verified receipt.

use crate::cluster::{AgentHost, Carrier, Cluster, Store};
use gpuaas_testkit::{PATIENCE, eventually};

fn tour(store: Store, carrier: Carrier) {
    let Some(mut cluster) = Cluster::start(store) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", carrier);
    host.start();
    let node = host.node_id();
    let shown = cluster.wait_online(&node, true);
    assert_eq!(shown["session"]["transport"], if carrier == Carrier::Poll { "poll" } else { "stream" });
    assert_eq!((shown["simulated"].as_bool(), shown["facts"]["gpus"].as_array().unwrap().len()), (Some(true), 8));

    // A task with `--wait`: its correlation id is in the agent's log, and its log lines are on the server.
    let correlation = "ticket-4711";
    let run = ["task", "run", &node, "diag.ping", "--param", "message=hello", "--param", "log_lines=50", "--wait"];
    let done = cluster.json(&[&run[..], &["--correlation-id", correlation]].concat());
    assert_eq!((done["state"].as_str(), done["output"]["message"].as_str()), (Some("succeeded"), Some("hello")));
    let id = done["id"].as_str().unwrap();
    assert_eq!(host.effects(id), 1);
    assert!(host.log().contains(correlation), "the correlation id is not in the agent's log");
    assert!(cluster.server_log().contains(correlation), "the correlation id is not in the server's log");
    eventually(PATIENCE, "all log lines are at the server", || {
        let logs = cluster.cli(&["task", "logs", id]);
        (logs.stdout.lines().count() >= 50).then_some(())
    });

    // Both signatures are valid, verified online and offline.
    assert_eq!(cluster.cli(&["task", "verify", id]).code, 0);
    let file = cluster.dir.join("evidence.json").display().to_string();
    assert_eq!(cluster.cli(&["task", "verify", id, "--save", &file]).code, 0);
    let offline = ["task", "verify", id, "--evidence", &file, "--url", "http://127.0.0.1:1"];
    assert_eq!(cluster.cli(&offline).code, 0);
    let tampered = std::fs::read_to_string(&file).unwrap().replacen("\"receipt\":", "\"receipt\":\"AAAA\",\"old\":", 1);
    std::fs::write(&file, tampered).unwrap();
    assert_ne!(cluster.cli(&offline).code, 0, "a tampered receipt passes");

    // Task types that only read.
    let probe = cluster.json(&["task", "run", &node, "diag.health_probe", "--wait"]);
    assert_eq!((probe["state"].as_str(), probe["output"]["simulated"].as_bool()), (Some("succeeded"), Some(true)));
    let packages = cluster.json(&["task", "run", &node, "package.list", "--param", "limit=3", "--wait"]);
    assert_eq!(packages["output"]["packages"].as_array().unwrap().len(), 3);

    // The node discovers its topology, and an operator turns the candidates into slots.
    let seen = cluster.json(&["node", "topology", "discover", &node]);
    assert_eq!(seen["proposal"]["found"]["candidate_summary"]["schedulable"].as_u64(), Some(8));
    assert!(seen["slots"].as_array().unwrap().is_empty(), "looking makes no slots");
    let some = cluster.json(&["node", "topology", "approve", &node, "--slot", "3", "--slot", "0"]);
    assert_eq!(some.as_array().unwrap().len(), 2);
    assert_eq!(cluster.json(&["node", "topology", "approve", &node]).as_array().unwrap().len(), 8);
    let place = format!("{}/3", shown["name"].as_str().unwrap());
    let held = cluster.json(&["slot", "quarantine", &place, "--reason", "fan is loud"]);
    assert_eq!((held["state"].as_str(), held["spec"]["slot_index"].as_u64()), (Some("quarantined"), Some(3)));
    let table = cluster.cli(&["node", "topology", "show", &node, "-o", "table"]);
    assert!(table.stdout.contains("quarantined") && table.stdout.contains("8 of 8 slots"), "{}", table.stdout);

    // A guest on two of the slots, which are released afterwards.
    let digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let image = ["--image-url", "https://images.example/a.qcow2", "--image-sha256", digest];
    let create = |slot: &'static str, name: &'static str| {
        let arguments = ["slice", "create", &node, "--slot", slot, "--slot", "5", "--name", name];
        cluster.cli(&[&arguments[..], &image, &["-o", "json"]].concat())
    };
    let refused = create("3", "held");
    assert!(refused.code != 0 && refused.stderr.contains("quarantined"), "{refused:?}");
    let made = create("4", "guest");
    assert_eq!(made.code, 0, "{made:?}");
    let states = || {
        let slots = cluster.json(&["slot", "ls", "--node", &node]);
        let state = |slot: &serde_json::Value| (slot["spec"]["slot_index"].as_u64(), slot["state"].as_str().map(str::to_owned));
        slots.as_array().unwrap().iter().map(state).collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(states()[&Some(4)].as_deref(), Some("leased"));
    assert!(cluster.cli(&["slice", "console", "guest"]).stdout.contains("login"));
    assert_eq!(cluster.cli(&["slice", "reboot", "guest"]).code, 0);
    let gone = cluster.cli(&["slice", "release", "guest", "--yes"]);
    assert_eq!(gone.code, 0, "{gone:?}");
    assert_eq!((states()[&Some(4)].as_deref(), states()[&Some(5)].as_deref()), (Some("available"), Some("available")));

    // A running task is cancelled, and has no effect.
    let held = cluster.ping(&node, &["--param", "hold_ms=60000"]);
    cluster.wait_state(&held, "started");
    cluster.json(&["task", "cancel", &held]);
    let cancelled = cluster.wait_state(&held, "cancelled");
    assert!(cancelled["receipt_digest"].is_string(), "a started task ends by receipt only");
    assert_eq!(host.effects(&held), 0);

    // Outage of the server: the agent continues, and reports when the server is back.
    let through = cluster.ping(&node, &["--param", "hold_ms=1500", "--param", "log_lines=20"]);
    cluster.wait_state(&through, "started");
    cluster.stop_server();
    eventually(PATIENCE, "the effect happens while the server is down", || (host.effects(&through) == 1).then_some(()));
    cluster.start_server();
    cluster.wait_state(&through, "succeeded");
    eventually(PATIENCE, "logs of the outage are shipped", || {
        (cluster.cli(&["task", "logs", &through]).stdout.lines().count() >= 20).then_some(())
    });

    // Maintenance.
    cluster.json(&["node", "drain", &node, "--reason", "new fans"]);
    let refused = cluster.cli(&["task", "run", &node, "diag.ping"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    cluster.json(&["node", "undrain", &node]);

    // Signing keys are rotated, and tasks continue to work.
    cluster.json(&["signing-key", "rotate"]);
    assert_eq!(cluster.json(&["task", "run", &node, "diag.ping", "--wait"])["state"], "succeeded");

    host.stop();
    cluster.wait_online(&node, false);
    cluster.verify_audit();
}

#[test]
fn the_tour_on_sqlite_over_the_stream() {
    tour(Store::Sqlite, Carrier::Stream);
}

#[test]
fn the_tour_on_sqlite_over_long_poll() {
    tour(Store::Sqlite, Carrier::Poll);
}

#[test]
fn the_tour_on_postgres_over_the_stream() {
    tour(Store::Postgres, Carrier::Stream);
}

#[test]
fn the_tour_on_postgres_over_long_poll() {
    tour(Store::Postgres, Carrier::Poll);
}

#[test]
fn this_very_machine_answers_for_itself() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let mut host = AgentHost::new(&cluster, "real", Carrier::Auto, None, None);
    let ran = host.agent(&["enroll", "--server", &cluster.link, "--token", &cluster.join_token()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);
    let probe = cluster.json(&["task", "run", &node, "diag.health_probe", "--wait"]);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!((probe["output"]["simulated"].as_bool(), probe["output"]["kernel"].as_str()), (Some(false), Some(kernel.trim())));
    let packages = cluster.json(&["task", "run", &node, "package.list", "--param", "name_contains=bash", "--wait"]);
    if std::path::Path::new("/usr/bin/dpkg-query").exists() {
        let names = packages["output"]["packages"].as_array().unwrap();
        assert!(names.iter().any(|package| package["name"] == "bash"), "{packages}");
    }
    let metrics = eventually(PATIENCE, "a sample of metrics", || {
        let shown = cluster.json(&["node", "show", &node]);
        shown["metrics"]["memory_used_bytes"].as_u64().filter(|bytes| *bytes > 0)
    });
    assert!(metrics > 1024 * 1024);
}

#[test]
fn roles_in_different_processes_wake_each_other_through_the_database() {
    let Some(cluster) = Cluster::start(Store::Postgres) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);
    // The agent is linked to the first process. The CLI talks to the second one, which has no link at all.
    let (_api_only, url) = cluster.another_server("api");
    let run = ["task", "run", &node, "diag.ping", "--param", "hold_ms=300", "--wait", "--url", &url];
    let ran = cluster.cli(&[&run[..], &["-o", "json"]].concat());
    assert_eq!(ran.json()["state"], "succeeded");
    assert!(ran.stderr.contains("effect"), "phases cross the processes: {}", ran.stderr);
    // A rotation in one process reaches the nodes of the other, and so does a retirement.
    cluster.json(&["signing-key", "rotate", "--url", &url]);
    assert_eq!(cluster.json(&["task", "run", &node, "diag.ping", "--wait", "--url", &url])["state"], "succeeded");
    cluster.json(&["node", "retire", &node, "--yes", "--url", &url]);
    cluster.wait_online(&node, false);
}
