//! A support bundle shows the state of a cluster, and none of its secrets.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::cluster::{AgentHost, Carrier, Cluster, Store};

const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";

/// Returns the files of a bundle, by name.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut text).unwrap();
        files.insert(name.strip_prefix("gpuaas-support/").expect("all in one folder").to_owned(), text);
    }
    files
}

#[test]
fn a_bundle_shows_the_cluster_and_no_secret() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let mut host = AgentHost::enrolled(&cluster, "gpu-1", Carrier::Stream);
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);

    // Everything that is secret, or that somebody wrote for private use.
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut secrets = vec![std::fs::read_to_string(cluster.admin_token_file()).unwrap().trim().to_owned()];
    secrets.push(cluster.join_token());
    secrets.push(text(&cluster.json(&["token", "create", "dashboards", "--role", "support"])["token"]));
    cluster.json(&["node", "token", "create", "--note", "note-of-the-operator"]);
    cluster.json(&["org", "create", "acme", "--description", "description-of-acme"]);
    cluster.json(&["project", "create", "acme/training"]);
    let project = ["--project", "acme/training"];
    let created = |arguments: &[&str]| cluster.json(&[arguments, &project[..]].concat());
    created(&["service-account", "create", "ci", "--role", "member"]);
    secrets.push(text(&created(&["key", "create", "ci"])["secret"]));
    secrets.push(text(&created(&["webhook", "create", "https://hooks.example.com/path-of-the-hook?key=hunter2"])["secret"]));
    let key = cluster.dir.join("key.pub").display().to_string();
    std::fs::write(&key, format!("{SSH_KEY} ada@laptop")).unwrap();
    created(&["ssh-key", "add", "laptop", &key]);
    secrets.push(text(&cluster.json(&["user", "create", "ada@example.com"])["one_time_password"]));
    let failed =
        cluster.cli(&["task", "run", &node, "diag.ping", "--param", "message=words-of-a-task", "--param", "fail=true", "--wait"]);
    assert_ne!(failed.code, 8, "{failed:?}");
    for key in ["server/keys/ca.key", "server/keys/issuer.pem"] {
        let pem = std::fs::read_to_string(cluster.dir.join(key)).unwrap_or_default();
        secrets.extend(pem.lines().filter(|line| line.len() > 40).map(str::to_owned));
    }
    secrets.extend(
        ["hunter2", "path-of-the-hook", "note-of-the-operator", "description-of-acme", "words-of-a-task", "AAAAC3NzaC1lZDI1NTE5"]
            .map(str::to_owned),
    );

    let log = cluster.dir.join("server.log");
    let written_log = format!("{} token={}\n{}", "2027-01-01T00:00:00Z INFO gpuaas: hello", secrets[0], cluster.server_log());
    std::fs::write(&log, written_log).unwrap();
    let path = cluster.dir.join("bundle.tar.gz");
    let arguments = ["support-bundle", "--file", path.to_str().unwrap(), "--server-log", log.to_str().unwrap()];
    let written = cluster.json(&arguments);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let files = unpacked(&path);
    let named: Vec<&str> = written["parts"].as_array().unwrap().iter().map(|part| part["name"].as_str().unwrap()).collect();
    let mut sorted = named.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, files.keys().map(String::as_str).collect::<Vec<_>>(), "it says what it contains");
    for (name, text) in &files {
        for secret in &secrets {
            assert!(!text.contains(secret), "{name} has {secret:?}");
        }
    }
    assert!(files["nodes.json"].contains(&node) && files["cluster.json"].contains("cluster_"), "{files:?}");
    assert!(files["metrics.txt"].contains("gpuaas_links") && files["readyz.txt"] == "ok\n");
    assert!(files["events.json"].contains("gpuaas.node.online.v1") && files["audit.json"].contains("webhook.create"));
    assert!(files["server.log"].contains("gpuaas: hello token=[redacted]"), "{}", files["server.log"]);
    assert!(files["config.json"].contains("GPUAAS_TOKEN_FILE"), "{}", files["config.json"]);

    // An existing file is kept, unless the user asks to replace it.
    let before = std::fs::read(&path).unwrap();
    let again = cluster.cli(&arguments);
    assert_eq!((again.code, std::fs::read(&path).unwrap() == before), (4, true), "{again:?}");
    assert_eq!(cluster.cli(&[&arguments[..], &["--overwrite"]].concat()).code, 0);

    // Without a server, the bundle still contains what this machine knows.
    let alone = cluster.dir.join("alone.tar.gz");
    let ran = cluster.cli(&["support-bundle", "--file", alone.to_str().unwrap(), "--url", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(unpacked(&alone)["nodes.json"].contains("server_unreachable"));
}
