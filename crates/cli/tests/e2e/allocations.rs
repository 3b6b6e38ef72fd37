//! From a tenant's request to a guest that the tenant can sign in to, and back to free capacity: on slots, and on a whole machine.

use crate::cluster::{AgentHost, Beside, Carrier, Cluster, Ran, Store, write_private};
use gpuaas_contract::task::TaskType;
use gpuaas_contract::time::Timestamp;
use gpuaas_testkit::{Launch, PATIENCE, TempDir, eventually, free_port};
use serde_json::Value;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";
const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Starts a simulated host that allows guests, and waits until it is online.
pub(crate) fn host(cluster: &Cluster, name: &str) -> (AgentHost, String) {
    let mut host = AgentHost::new(cluster, name, Carrier::Stream, Some("h100"), None);
    write_private(
        &host.folder.join("policy.toml"),
        &format!(
            "allowed_tasks = {}\n\
         [slices]\npci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"https://images.example/\"]\n\
         bridges = [\"br-slices\"]\nimage_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\ndriver_strategies = [\"cloud-init\", \"preinstalled\"]\n\
         [bare_metal]\nusernames = [\"*\"]\nallow_sudo = true\n",
            TaskType::list(TaskType::ALL),
        ),
    );
    host.enroll(cluster);
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);
    (host, node)
}

/// The host's owner has the last word, and the control plane takes that into account before it places anything.
#[test]
fn a_host_whose_owner_denies_guests_has_no_capacity_until_the_policy_changes() {
    let Some(cluster) = Cluster::start_beside(Store::Sqlite, &[]) else { return };
    let (mut host, node) = host(&cluster, "gpu-1");
    let key = tenant(&cluster);
    cluster.json(&["node", "topology", "discover", &node]);
    cluster.json(&["node", "topology", "approve", &node]);
    cluster.json(&["sku", "create", "h100-2x", "--slots", "2", "--gpu", "10de:2330", "--price", "5"]);
    cluster.json(&["image", "create", "ubuntu", "--from", "https://images.example/u.img", "--sha256", DIGEST, "--platform"]);
    let until_available = |wanted: u64| {
        eventually(PATIENCE, "the control plane knows the policy", || {
            (cluster.json(&["catalog"])[0]["available"].as_u64() == Some(wanted)).then_some(())
        });
    };
    until_available(4);
    let path = host.folder.join("policy.toml");
    let policy = std::fs::read_to_string(&path).unwrap();
    // The agent keeps running, and notices the change by itself.
    write_private(&path, &policy.replace("\"slice.vm_provision\", ", ""));
    until_available(0);
    let check = || {
        let denied = serde_json::json!(["slice.vm_provision"]);
        let capacity = cluster.json(&["capacity"]);
        assert_eq!(
            (&capacity["nodes"][0]["host_policy_denies"], &capacity["models"][0]["free"]),
            (&denied, &serde_json::json!(0))
        );
        assert_eq!(cluster.json(&["node", "topology", "show", &node])["host_policy_denies"], denied);
        let create = ["alloc", "create", "trainer", "--sku", "h100-2x", "--image", "ubuntu", "--ssh-key", &key, "-o", "json"];
        // A dry run of something that does not fit is a valid answer, with an exit code of its own.
        let plan = cluster.cli(&[&create[..], &["--dry-run"]].concat());
        let document: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
        assert_eq!((plan.code, &document["fits"]), (4, &serde_json::json!(false)), "{plan:?}");
        let refused = cluster.cli(&create);
        assert!(refused.stderr.contains("no_capacity") || refused.stdout.contains("no_capacity"), "{refused:?}");
    };
    check();
    // A restart does not bring the capacity back either.
    host.stop();
    host.start();
    cluster.wait_online(&node, true);
    check();
    write_private(&path, &policy);
    until_available(4);
    host.stop();
}

/// Creates a tenant with an API key.
pub(crate) fn tenant(cluster: &Cluster) -> String {
    cluster.json(&["org", "create", "acme"]);
    cluster.json(&["project", "create", "acme/training"]);
    let key = cluster.dir.join("id.pub");
    std::fs::write(&key, KEY).unwrap();
    let key = key.display().to_string();
    cluster.json(&["ssh-key", "add", "laptop", &key]);
    key
}

/// Creates the slots of the node, a product for them and an image.
pub(crate) fn catalog_of_slots(cluster: &Cluster, node: &str) {
    cluster.json(&["node", "topology", "discover", node]);
    assert_eq!(cluster.json(&["node", "topology", "approve", node]).as_array().unwrap().len(), 8);
    cluster.json(&["sku", "create", "h100-2x", "--slots", "2", "--gpu", "10de:2330", "--price", "5"]);
    cluster.json(&["image", "create", "ubuntu", "--from", "https://images.example/u.img", "--sha256", DIGEST, "--platform"]);
}

fn kinds(ran: &Ran) -> Vec<String> {
    let kind = |line: &str| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned();
    ran.stdout.lines().map(kind).collect()
}

#[test]
fn a_guest_is_leased_stopped_started_read_and_released() {
    whole_life_of_a_guest(Store::Sqlite, &[]);
}

/// With all the backends of a production site, all of them real.
#[test]
fn the_same_on_postgres_with_nats_and_redis() {
    whole_life_of_a_guest(Store::Postgres, &[Beside::Nats, Beside::Redis]);
}

#[test]
#[cfg(feature = "temporal")]
fn the_same_on_postgres_with_nats_redis_and_temporal() {
    whole_life_of_a_guest(Store::Postgres, &[Beside::Nats, Beside::Redis, Beside::Temporal]);
}

#[test]
#[cfg(feature = "temporal")]
fn the_same_on_sqlite_with_nats_redis_and_temporal() {
    whole_life_of_a_guest(Store::Sqlite, &[Beside::Nats, Beside::Redis, Beside::Temporal]);
}

#[test]
fn the_same_on_sqlite_with_nats_and_redis() {
    whole_life_of_a_guest(Store::Sqlite, &[Beside::Nats, Beside::Redis]);
}

fn whole_life_of_a_guest(store: Store, beside: &[Beside]) {
    let Some(cluster) = Cluster::start_beside(store, beside) else { return };
    let (mut host, node) = host(&cluster, "gpu-1");
    let key = tenant(&cluster);
    catalog_of_slots(&cluster, &node);
    let offer = cluster.json(&["catalog"]);
    assert_eq!((offer[0]["name"].as_str(), offer[0]["available"].as_u64()), (Some("h100-2x"), Some(4)));

    let create =
        ["alloc", "create", "trainer", "--sku", "h100-2x", "--image", "ubuntu", "--ssh-key", "laptop", "--ssh-key", &key];
    let plan = cluster.json(&[&create[..], &["--dry-run"]].concat());
    assert_eq!((plan["fits"].as_bool(), plan["slots"].as_array().map(Vec::len)), (Some(true), Some(2)), "{plan}");
    let made = cluster.cli(&[&create[..], &["--tag", "team=ml", "--lease", "8h", "-o", "json"]].concat());
    assert_eq!(made.json()["state"], "active", "{made:?}");
    assert!(made.stderr.contains("provisioning") && made.stderr.contains("phase"), "{made:?}");
    let shown = cluster.cli(&["alloc", "show", "trainer"]);
    assert!(shown.stdout.contains("ssh ubuntu@") && shown.stdout.contains("5.00 USD/h"), "{shown:?}");
    assert_eq!(cluster.json(&["catalog"])[0]["available"].as_u64(), Some(3));
    assert_eq!(cluster.json(&["alloc", "ls", "--tag", "team=ml"]).as_array().unwrap().len(), 1);
    let preview = cluster.json(&["node", "drain", &node, "--preview"]);
    assert_eq!(preview["allocations"][0]["name"], "trainer", "{preview}");

    assert_eq!(cluster.json(&["alloc", "stop", "trainer"])["state"], "stopped");
    let started = cluster.cli(&["alloc", "start", "trainer", "-o", "json"]);
    assert_eq!((&started.json()["state"], &started.json()["guest"]), (&"active".into(), &"answering".into()), "{started:?}");
    let console = cluster.cli(&["alloc", "console", "trainer"]);
    assert!(console.stdout.contains("login"), "{console:?}");
    let before = cluster.json(&["alloc", "show", "trainer"])["expires_at"].as_str().and_then(Timestamp::parse_rfc3339).unwrap();
    let after = cluster.json(&["alloc", "extend", "trainer", "--by", "1h"])["expires_at"]
        .as_str()
        .and_then(Timestamp::parse_rfc3339)
        .unwrap();
    assert_eq!(after.since(before).as_secs(), 3600);

    assert_eq!(cluster.json(&["alloc", "release", "trainer", "--yes"])["state"], "released");
    let history = kinds(&cluster.cli(&["alloc", "events", "trainer", "-o", "json"]));
    for kind in ["requested", "active", "stopped", "started", "extended", "released"] {
        assert!(history.contains(&format!("gpuaas.allocation.{kind}.v1")), "{kind} is not in {history:?}");
    }
    assert_eq!(cluster.json(&["catalog"])[0]["available"].as_u64(), Some(4));
    assert!(cluster.json(&["alloc", "ls"]).as_array().unwrap().is_empty());
    host.stop();
    cluster.verify_audit();
}

#[test]
fn a_whole_machine_is_offered_leased_and_given_back() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let (mut host, node) = host(&cluster, "metal-1");
    let key = tenant(&cluster);
    assert_eq!(cluster.json(&["machine", "offer", &node])["state"], "available");
    cluster.json(&["sku", "create", "h100-metal", "--bare-metal", "--gpu", "10de:2330", "--price", "20"]);
    let create = ["alloc", "create", "metal", "--sku", "h100-metal", "--ssh-key", &key, "--user", "ada", "--sudo"];
    assert_eq!(cluster.json(&create)["state"], "active");
    assert_eq!(cluster.json(&["machine", "ls"])[0]["state"], "leased");
    assert_ne!(cluster.cli(&["alloc", "stop", "metal"]).code, 0, "a whole machine is not stopped from here");
    assert_eq!(cluster.json(&["alloc", "release", "metal", "--yes"])["state"], "released");
    assert_eq!(cluster.json(&["machine", "ls"])[0]["state"], "available");
    assert_eq!(cluster.json(&["machine", "withdraw", &node, "--yes"])["state"], "withdrawn");
    host.stop();
    cluster.verify_audit();
}

#[test]
fn a_newcomer_leases_something_with_the_printed_commands() {
    let dir = TempDir::new();
    let (api, link, data) = (free_port().to_string(), free_port().to_string(), dir.join("data").display().to_string());
    let launch = || Launch::new("gpuaas").args(["dev", "--api-port", &api, "--link-port", &link, "--data-dir", &data]);
    let shell = |exports: &str, command: &str| {
        let script = format!("{exports}\n{command}");
        let (status, stdout, stderr) =
            Launch::at("/bin/sh").arg("-c").arg(script).env("HOME", dir.path()).run(dir.path(), PATIENCE * 2);
        assert!(status.success(), "`{command}` failed: {stderr}");
        stdout
    };
    let mut program = launch().start(dir.path());
    program.wait_for_line("Ctrl-C", PATIENCE);
    let block = program.stdout();
    let lines: Vec<&str> = block.lines().map(str::trim).collect();
    let exports = *lines.iter().find(|line| line.starts_with("export ")).unwrap();
    let commands: Vec<&str> =
        lines.iter().copied().filter(|line| line.contains(" alloc ") || line.ends_with(" catalog")).collect();
    assert_eq!(commands.len(), 4, "{block}");
    for command in &commands {
        shell(exports, command);
    }
    let gpuaas = commands[0].split_whitespace().next().unwrap();
    let everything = |what: &str| shell(exports, &format!("{gpuaas} {what} -o json"));
    let before: Vec<String> = ["sku ls", "image ls", "org ls", "project ls", "slot ls", "task ls"].map(everything).into();
    program.sigterm();
    assert!(program.wait(PATIENCE).success(), "{}", program.stderr());

    let mut program = launch().start(dir.path());
    program.wait_for_line("Ctrl-C", PATIENCE);
    let after: Vec<String> = ["sku ls", "image ls", "org ls", "project ls", "slot ls", "task ls"].map(everything).into();
    assert_eq!(before, after, "a second start changes nothing");
    program.sigterm();
    assert!(program.wait(PATIENCE).success());
}
