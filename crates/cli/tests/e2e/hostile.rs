//! Bad input to the real programs: it causes a clear error that names what to fix, and nothing is lost.

use std::os::unix::fs::PermissionsExt as _;

use crate::cluster::{AgentHost, Carrier, Cluster, Store, write_private};
use gpuaas_testkit::{Launch, PATIENCE, eventually};

#[test]
fn the_agent_refuses_bad_files_by_name_and_loses_nothing() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    let node = host.node_id();
    host.start();
    cluster.wait_online(&node, true);
    let done = cluster.json(&["task", "run", &node, "diag.ping", "--wait"])["id"].as_str().unwrap().to_owned();
    host.stop();

    // A configuration with an unknown key.
    let config = host.folder.join("config.toml");
    let good = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{good}\nsheell = true\n")).unwrap();
    let ran = host.agent(&["run"]);
    assert!(ran.code != 0 && ran.stderr.contains("sheell"), "{ran:?}");
    std::fs::write(&config, &good).unwrap();

    // A policy that other users can write.
    let policy = host.folder.join("policy.toml");
    std::fs::set_permissions(&policy, std::fs::Permissions::from_mode(0o666)).unwrap();
    let ran = host.agent(&["run"]);
    assert!(ran.code != 0 && ran.stderr.contains("policy.toml") && ran.stderr.contains("chmod"), "{ran:?}");
    // A policy with an unknown task type.
    write_private(&policy, "allowed_tasks = [\"shell.exec\"]\n");
    let ran = host.agent(&["run"]);
    assert!(ran.code != 0 && ran.stderr.contains("shell.exec"), "{ran:?}");
    // A policy that allows only reading: the ping is refused with a signed receipt and a code of its own.
    write_private(&policy, "allowed_tasks = [\"diag.health_probe\"]\n");
    host.start();
    cluster.wait_online(&node, true);
    let refused = cluster.cli(&["task", "run", &node, "diag.ping", "--wait", "-o", "json"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    let refused = refused.any_json();
    assert_eq!((refused["state"].as_str(), refused["code"].as_str()), (Some("refused"), Some("policy_denied")));
    assert_eq!(host.effects(refused["id"].as_str().unwrap()), 0);
    host.kill();

    // A journal with a torn and corrupted end: the agent starts, reports it, and still knows what it has done.
    write_private(&policy, "allowed_tasks = [\"diag.ping\"]\n");
    let journal = host.folder.join("state/journal");
    let mut bytes = std::fs::read(&journal).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 3] ^= 0xff;
    std::fs::write(&journal, &bytes).unwrap();
    host.start();
    cluster.wait_online(&node, true);
    assert_eq!(cluster.json(&["task", "run", &node, "diag.ping", "--wait"])["state"], "succeeded");
    assert_eq!(host.effects(&done), 1);
    let damaged = std::fs::read_dir(host.folder.join("state")).unwrap().flatten();
    assert!(
        damaged.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("journal.damaged")),
        "the rotten bytes are not kept"
    );
    host.stop();

    // A certificate of another node.
    let other = AgentHost::enrolled(&cluster, "gpu-2", Carrier::Stream);
    for file in ["tls.crt", "tls.key"] {
        let (from, to) = (find(&other.folder.join("state"), file), find(&host.folder.join("state"), file));
        std::fs::copy(from, to).unwrap();
    }
    let mut program = host.agent_in_background(&["run"]);
    let line = eventually(PATIENCE, "the agent says what is wrong with its certificate", || {
        let log = program.stderr();
        log.lines()
            .find(|line| line.contains("certificate"))
            .map(str::to_owned)
            .or_else(|| (!program.is_running()).then(|| program.stderr()))
    });
    assert!(line.contains("certificate"), "{line}");
}

fn find(folder: &std::path::Path, name: &str) -> std::path::PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if entry.file_name() == name {
                return entry.path();
            }
        }
    }
    panic!("no {name} under {}", folder.display());
}

#[test]
fn a_task_that_no_host_takes_in_time_expires_and_says_where_to_look() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    let short = cluster.ping(&host.node_id(), &["--queue-time", "1s"]);
    let expired = cluster.wait_state(&short, "expired");
    assert_eq!(expired["code"], "queue_time_over");
    assert!(expired["message"].as_str().unwrap().contains("is online"));
}

#[test]
fn the_cli_says_what_to_do_next() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let unknown = cluster.cli(&["task", "run", "nowhere", "diag.ping"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");
    assert!(unknown.stdout.is_empty() && unknown.stderr.contains("node ls"), "{unknown:?}");
    let usage = cluster.cli(&["task", "run"]);
    assert_eq!(usage.code, 2, "{usage:?}");
    let unreachable = cluster.cli(&["node", "ls", "--url", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.code, 6, "{unreachable:?}");
    assert!(unreachable.stderr.contains("gpuaas dev") || unreachable.stderr.contains("gpuaas server"), "{unreachable:?}");
    let launch = Launch::new("gpuaas").args(["node", "ls"]).env("GPUAAS_URL", cluster.url()).env("GPUAAS_TOKEN", "gpt_wrong");
    let (status, stdout, stderr) = launch.run(cluster.dir.path(), PATIENCE);
    assert_eq!((status.code(), stdout.as_str()), (Some(5), ""), "{stderr}");
    let empty = cluster.cli(&["node", "ls", "-o", "json"]);
    assert_eq!((empty.code, empty.any_json()["items"].as_array().map_or(0, Vec::len)), (0, 0));
    for command in
        [&["node", "ls"][..], &["task", "ls"], &["audit", "ls"], &["signing-key", "ls"], &["token", "ls"], &["cluster", "info"]]
    {
        for format in ["table", "json", "yaml"] {
            let ran = cluster.cli(&[command, &["-o", format]].concat());
            assert_eq!(ran.code, 0, "{command:?} -o {format}: {ran:?}");
        }
    }
}

#[test]
fn the_server_refuses_what_would_be_unsafe() {
    let dir = gpuaas_testkit::TempDir::new();
    let data = dir.join("data").display().to_string();
    let run = |more: &[&str]| {
        let launch = Launch::new("gpuaas").args(["server", "--data-dir", &data]).args(more);
        let (status, _, stderr) = launch.run(dir.path(), PATIENCE);
        assert!(!status.success(), "{more:?} was accepted");
        stderr
    };
    assert!(run(&["--api-listen", "0.0.0.0:18080"]).contains("--api-tls"), "plain HTTP for everybody");
    assert!(run(&["--roles", "cook"]).contains("cook"));
    assert!(run(&["--store", "mysql://x"]).contains("postgres://"));
}
