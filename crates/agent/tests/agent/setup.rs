//! `setup slices` with real Open vSwitch, nftables and dnsmasq, in network, mount and process namespaces that end with the test.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_host::exec::{Exec, Finished};
use gpuaas_host::private_file;

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpuaas-agent");
const INSIDE: &str = "GPUAAS_TEST_NAMESPACES";
const IP: &str = "/usr/sbin/ip";
const NFT: &str = "/usr/sbin/nft";
const OVS_VSCTL: &str = "/usr/bin/ovs-vsctl";
const BUSYBOX: &str = "/usr/bin/busybox";
const NEEDED: [(&str, &str); 8] = [
    ("/usr/bin/unshare", "util-linux"),
    (IP, "iproute2"),
    (NFT, "nftables"),
    (OVS_VSCTL, "openvswitch-switch"),
    ("/usr/sbin/ovs-vswitchd", "openvswitch-switch"),
    ("/usr/bin/ovsdb-tool", "openvswitch-common"),
    ("/usr/sbin/ovsdb-server", "openvswitch-common"),
    ("/usr/sbin/dnsmasq", "dnsmasq-base"),
];
const POLICY: &str = "# mine\nallowed_tasks = [\"diag.ping\"] # and nothing else\n\n[concurrency]\n\"diag.ping\" = 2\n";

/// Prints that a test was skipped. Not with `eprintln!`: the test harness captures that for passing tests.
fn skipped(what: &str, why: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: {what}: {why} ***\n");
}

/// Runs the test with this name again in its own namespaces. Returns true in that run, in which the test does its work.
async fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        skipped(name, "only root can make namespaces");
        return false;
    }
    if let Some((program, package)) = NEEDED.iter().find(|(program, _)| !Path::new(program).is_file()) {
        skipped(name, &format!("{program} is not installed (Debian package {package})"));
        return false;
    }
    if !Path::new("/dev/net/tun").exists() {
        skipped(name, "there is no /dev/net/tun");
        return false;
    }
    let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare = || namespaces.iter().fold(Exec::new("/usr/bin/unshare"), |exec, arg| exec.arg(arg));
    if let Err(error) = unshare().arg("/bin/true").run().await {
        skipped(name, &error.to_string());
        return false;
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let exec = unshare().arg(test).arg("--exact").arg(name).arg("--nocapture").env(INSIDE, "1");
    let (code, output) = exec.deadline(Duration::from_secs(180)).run_with_code().await.expect("runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let complete = code == Some(0) && printed.contains("1 passed");
    assert!(complete, "inside, with {code:?}:\n{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    false
}

async fn call(program: &str, args: &[&str]) -> Finished {
    let exec = args.iter().fold(Exec::new(program), |exec, arg| exec.arg(arg));
    exec.run().await.unwrap_or_else(|error| panic!("{program} {args:?}: {error}"))
}

async fn text(program: &str, args: &[&str]) -> String {
    String::from_utf8(call(program, args).await.stdout).expect("text")
}

/// A host: its files, its switch, and a network interface to the outside.
struct Lab {
    folder: tempfile::TempDir,
    config: PathBuf,
}

impl Lab {
    async fn start() -> Self {
        let lab = Self::without_switch().await;
        Self::start_switch().await;
        lab
    }

    async fn without_switch() -> Self {
        // Hides systemd and the Open vSwitch of the machine, if it has them.
        call("/bin/mount", &["-t", "tmpfs", "none", "/run"]).await;
        std::fs::create_dir_all("/run/openvswitch").expect("folder");
        call(IP, &["link", "set", "lo", "up"]).await;
        call(IP, &["netns", "add", "world"]).await;
        call(IP, &["link", "add", "uplink0", "type", "veth", "peer", "name", "eth0", "netns", "world"]).await;
        call(IP, &["address", "add", "192.168.200.2/24", "dev", "uplink0"]).await;
        call(IP, &["link", "set", "uplink0", "up"]).await;
        call(IP, &["-netns", "world", "address", "add", "192.168.200.1/24", "dev", "eth0"]).await;
        call(IP, &["-netns", "world", "link", "set", "eth0", "up"]).await;
        call(IP, &["route", "add", "default", "via", "192.168.200.1"]).await;

        let folder = tempfile::tempdir().expect("folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let config = folder.path().join("config.toml");
        let path = folder.path().display();
        let settings = format!(
            "state_dir = \"{path}/lib/agent\"\npolicy_file = \"{path}/policy.toml\"\nslices_dir = \"{path}/lib/slices\"\n\
             dhcp_hosts_dir = \"{path}/lib/dhcp-hosts\"\ndnsmasq_pid_file = \"{path}/run/dnsmasq.pid\"\n"
        );
        private_file::write_with_mode(&config, settings.as_bytes(), 0o644).expect("config");
        private_file::write_with_mode(&folder.path().join("policy.toml"), POLICY.as_bytes(), 0o640).expect("policy");
        // As a first enrollment leaves it.
        private_file::make_folder(&folder.path().join("lib/agent")).expect("folder");
        Self { folder, config }
    }

    async fn start_switch() {
        call("/usr/bin/ovsdb-tool", &["create", "/run/ovs.db", "/usr/share/openvswitch/vswitch.ovsschema"]).await;
        let quiet = ["--detach", "--no-chdir", "--pidfile", "--log-file=/run/ovs.log", "-vconsole:off"];
        let mut server = vec!["/run/ovs.db", "--remote=punix:/run/openvswitch/db.sock"];
        server.extend(quiet);
        call("/usr/sbin/ovsdb-server", &server).await;
        call(OVS_VSCTL, &["--no-wait", "init"]).await;
        call("/usr/sbin/ovs-vswitchd", &quiet).await;
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the exit code and all output.
    async fn setup(&self, args: &[&str]) -> (Option<i32>, String) {
        let exec = Exec::new(PROGRAM).arg("--config").arg(&self.config).arg("setup").arg("slices");
        let exec = args.iter().fold(exec, |exec, arg| exec.arg(arg)).deadline(Duration::from_secs(60));
        let (code, output) = exec.run_with_code().await.expect("runs");
        (code, String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Runs the setup with its files under the lab's folder.
    async fn set_up(&self, args: &[&str]) -> (Option<i32>, String) {
        let root = self.path("root");
        let root = root.to_str().expect("text");
        self.setup(&[&["--root", root, "--datapath", "netdev"], args].concat()).await
    }

    /// Returns every file with its mode and content, and all network state that could have changed.
    async fn snapshot(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("listed") {
                let path = entry.expect("entry").path();
                let meta = path.symlink_metadata().expect("meta");
                let content = if meta.is_dir() {
                    folders.push(path.clone());
                    String::new()
                } else if meta.is_symlink() {
                    std::fs::read_link(&path).expect("link").display().to_string()
                } else {
                    std::fs::read_to_string(&path).expect("text")
                };
                found.insert(path.display().to_string(), format!("{:o} {content}", meta.mode()));
            }
        }
        for (program, args) in [
            (IP, vec!["-4", "-oneline", "address", "show"]),
            (IP, vec!["-4", "route", "show", "table", "all"]),
            (NFT, vec!["list", "ruleset"]),
            (OVS_VSCTL, vec!["list-br"]),
        ] {
            found.insert(format!("{program} {args:?}"), text(program, &args).await);
        }
        let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("read");
        found.insert("ip_forward".to_owned(), forwarding);
        found
    }
}

/// Returns the differences.
fn difference(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let keys = before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key));
    let mut keys: Vec<String> = keys.cloned().collect();
    keys.sort();
    keys.dedup();
    keys
}

#[tokio::test]
async fn a_host_is_set_up_once_and_undone_without_a_trace() {
    if !inside("setup::a_host_is_set_up_once_and_undone_without_a_trace").await {
        return;
    }
    let lab = Lab::start().await;
    let bare = lab.snapshot().await;

    let (code, plan) = lab.set_up(&["--dry-run"]).await;
    assert_eq!(code, Some(0), "{plan}");
    for line in ["to do    bridge", "to do    address", "to do    rules", "to do    dhcp", "to do    policy", "at boot  modules"]
    {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    let (code, refusal) = lab.set_up(&[]).await;
    assert!(code == Some(1) && refusal.contains("--yes"), "nobody can be asked: {refusal}");
    for (arguments, says) in [
        (["--network", "192.168.200.0/24"], "the address 192.168.200.2/24 of uplink0"),
        (["--bridge", "uplink0"], "not an Open vSwitch bridge"),
        (["--uplink", "nothing0"], "no interface nothing0"),
    ] {
        let (code, refusal) = lab.set_up(&[&arguments[..], &["--yes"]].concat()).await;
        assert!(code == Some(1) && refusal.contains(says), "{says}: {refusal}");
    }
    assert_eq!(difference(&bare, &lab.snapshot().await), [""; 0], "nothing was changed without a yes");

    let (code, log) = lab.set_up(&["--yes"]).await;
    // The owner still has to decide which devices guests may have.
    assert_eq!(code, Some(4), "{log}");
    assert!(log.contains("cannot   devices") && !log.contains("failed"), "{log}");
    let ready = lab.snapshot().await;
    assert_eq!(text(OVS_VSCTL, &["list-br"]).await, "br-slices\n");
    assert!(text(IP, &["-4", "-oneline", "address", "show", "br-slices"]).await.contains("10.77.0.1/24"));
    assert!(text(NFT, &["list", "table", "inet", "gpuaas_slices"]).await.contains("masquerade"));
    assert_eq!(ready["ip_forward"], "1\n");
    let policy = std::fs::read_to_string(lab.path("policy.toml")).expect("policy");
    assert!(policy.contains("# and nothing else") && policy.contains("bridges = [\"br-slices\"]"), "{policy}");
    assert_eq!(lab.path("policy.toml").metadata().expect("meta").mode() & 0o7777, 0o640);
    gpuaas_agent::policy::Policy::load(&lab.path("policy.toml")).expect("the agent still trusts it");
    assert!(lab.path("root/etc/systemd/system/multi-user.target.wants/gpuaas-slices.service").is_symlink());

    let (code, again) = lab.setup(&["--yes"]).await;
    assert!(code == Some(4) && again.contains("nothing was changed"), "{again}");
    assert_eq!(difference(&ready, &lab.snapshot().await), [""; 0], "a second run changes nothing");
    let (code, other) = lab.setup(&["--network", "10.99.0.0/24", "--yes"]).await;
    assert!(code == Some(1) && other.contains("--undo"), "{other}");

    let settings = std::fs::read_to_string(&lab.config).expect("config");
    for (from, to) in [("run/dnsmasq.pid", "run/other.pid"), ("lib/dhcp-hosts", "elsewhere/dhcp-hosts")] {
        private_file::write_with_mode(&lab.config, settings.replace(from, to).as_bytes(), 0o644).expect("config");
        let (code, other) = lab.setup(&["--yes"]).await;
        assert!(code == Some(1) && other.contains("--undo"), "{other}");
    }
    private_file::write_with_mode(&lab.config, settings.as_bytes(), 0o644).expect("config");

    let (code, plan) = lab.setup(&["--undo", "--dry-run"]).await;
    assert!(code == Some(0) && plan.contains("to do    bridge"), "{plan}");
    assert_eq!(difference(&ready, &lab.snapshot().await), [""; 0]);
    let (code, log) = lab.setup(&["--undo", "--yes"]).await;
    assert_eq!(code, Some(0), "{log}");
    let lock = lab.path("lib/agent/setup-slices.lock").display().to_string();
    assert_eq!(difference(&bare, &lab.snapshot().await), [lock], "only the lock file is left");
    let (code, refusal) = lab.setup(&["--undo", "--yes"]).await;
    assert!(code == Some(1) && refusal.contains("nothing is recorded"), "{refusal}");
}

#[tokio::test]
async fn undo_leaves_what_was_changed_since_and_waits_for_guests() {
    if !inside("setup::undo_leaves_what_was_changed_since_and_waits_for_guests").await {
        return;
    }
    let lab = Lab::start().await;
    let bare = lab.snapshot().await;
    assert_eq!(lab.set_up(&["--uplink", "uplink0", "--yes"]).await.0, Some(4));
    let ready = lab.snapshot().await;

    // An emptied table is loaded again, and nothing else is done.
    call(NFT, &["flush", "table", "inet", "gpuaas_slices"]).await;
    let (code, log) = lab.setup(&["--yes"]).await;
    assert!(code == Some(4) && log.matches("\nok ").count() == 1, "{log}");
    assert_eq!(difference(&ready, &lab.snapshot().await), [""; 0]);

    call(IP, &["link", "add", "vnet7", "type", "veth", "peer", "name", "guest7"]).await;
    call(OVS_VSCTL, &["add-port", "br-slices", "vnet7"]).await;
    let (code, refusal) = lab.setup(&["--undo", "--yes"]).await;
    assert!(code == Some(1) && refusal.contains("vnet7 is connected to br-slices"), "{refusal}");
    assert_eq!(difference(&ready, &lab.snapshot().await), [""; 0], "guests keep their network");
    call(OVS_VSCTL, &["del-port", "br-slices", "vnet7"]).await;
    call(IP, &["link", "delete", "vnet7"]).await;

    // The owner's own changes: a file of ours, the policy, and another table with source NAT.
    let sysctl = lab.path("root/etc/sysctl.d/90-gpuaas-slices.conf");
    std::fs::write(&sysctl, "net.ipv4.ip_forward = 1\nnet.ipv4.conf.all.rp_filter = 1\n").expect("written");
    let policy = lab.path("policy.toml");
    let edited = std::fs::read_to_string(&policy).expect("read") + "usernames = [\"*\"]\n";
    private_file::rewrite_trusted(&policy, edited.as_bytes()).expect("written");
    let rule = ["add", "rule", "ip", "theirs", "out", "masquerade"];
    call(NFT, &["add", "table", "ip", "theirs"]).await;
    call(NFT, &["add", "chain", "ip", "theirs", "out", "{ type nat hook postrouting priority srcnat; }"]).await;
    call(NFT, &rule).await;

    let (code, log) = lab.setup(&["--undo", "--yes"]).await;
    assert_eq!(code, Some(4), "{log}");
    assert!(
        log.contains("changed since it was written") && log.contains("other programs on this host may need forwarding"),
        "{log}"
    );
    let after = lab.snapshot().await;
    let left = difference(&bare, &after);
    let expected = |key: &String| {
        [
            "root",
            "root/etc",
            "root/etc/sysctl.d",
            "root/etc/sysctl.d/90-gpuaas-slices.conf",
            "policy.toml",
            "lib/agent/setup-slices.lock",
        ]
        .iter()
        .any(|name| *key == lab.path(name).display().to_string())
            || key == "ip_forward"
            || key.contains("ruleset")
    };
    assert!(left.iter().all(expected) && left.len() == 8, "{left:?}");
    let rules = text(NFT, &["list", "ruleset"]).await;
    assert!(rules.contains("table ip theirs") && !rules.contains("gpuaas_slices"), "{rules}");
    let policy = std::fs::read_to_string(policy).expect("read");
    assert!(policy.contains("usernames = [\"*\"]") && !policy.contains("slice.vm_provision"), "{policy}");
}

#[tokio::test]
async fn what_comes_at_boot_is_undone_like_everything_else() {
    if !inside("setup::what_comes_at_boot_is_undone_like_everything_else").await {
        return;
    }
    let lab = Lab::without_switch().await;
    let (code, log) = lab.set_up(&["--yes"]).await;
    assert!(code == Some(4) && log.contains("at boot  bridge") && log.contains("at boot  dhcp"), "{log}");
    let (code, log) = lab.setup(&["--undo", "--yes"]).await;
    assert!(code == Some(0) && log.contains("never created"), "{log}");

    assert_eq!(lab.set_up(&["--yes"]).await.0, Some(4));
    Lab::start_switch().await;
    // Runs the commands of the units at boot, without their absolute paths.
    let units = lab.path("root/etc/systemd/system");
    let network = std::fs::read_to_string(units.join("gpuaas-slices.service")).expect("unit");
    let rules = lab.path("root/etc/gpuaas-agent/slices.nft").display().to_string();
    for line in network.lines().filter_map(|line| line.strip_prefix("ExecStart=")) {
        let line = line.replace("/etc/gpuaas-agent/slices.nft", &rules);
        let words: Vec<&str> = line.split(' ').collect();
        call(words[0], &words[1..]).await;
    }
    std::fs::create_dir_all(lab.path("run")).expect("folder");
    let settings = lab.path("root/etc/gpuaas-agent/slices-dnsmasq.conf");
    gpuaas_host::dnsmasq::start(&settings).await.expect("started");
    let (code, log) = lab.setup(&["--yes"]).await;
    assert!(code == Some(4) && log.contains("nothing was changed") && !log.contains("at boot  bridge"), "{log}");
    let (code, log) = lab.setup(&["--undo", "--yes"]).await;
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(text(OVS_VSCTL, &["list-br"]).await, "");
    assert_eq!(text(NFT, &["list", "ruleset"]).await, "");
    assert!(!lab.path("run/dnsmasq.pid").exists() && !lab.path("root/etc").exists());
}

/// A guest without a hypervisor: an interface in another namespace, with the MAC address of a reservation.
#[tokio::test]
async fn a_guest_gets_its_address_reaches_the_world_and_not_the_host() {
    const NAME: &str = "setup::a_guest_gets_its_address_reaches_the_world_and_not_the_host";
    if !Path::new(BUSYBOX).is_file() {
        return skipped(NAME, "busybox is not installed (Debian package busybox-static)");
    }
    if !inside(NAME).await {
        return;
    }
    let lab = Lab::start().await;
    assert_eq!(lab.set_up(&["--yes"]).await.0, Some(4));
    let mac = "02:00:5e:10:00:09";
    std::fs::write(lab.path("lib/dhcp-hosts/alloc"), format!("{mac},10.77.0.9,vm\n")).expect("reserved");
    call(IP, &["netns", "add", "guest"]).await;
    call(IP, &["link", "add", "vnet9", "type", "veth", "peer", "name", "eth0", "address", mac, "netns", "guest"]).await;
    // A user-space switch leaves the kernel a copy of every packet, and the kernel would answer for the bridge. A switch in the
    // kernel does not.
    call(IP, &["link", "set", "vnet9", "arp", "off", "up"]).await;
    call(IP, &["-netns", "guest", "link", "set", "eth0", "up"]).await;
    call(OVS_VSCTL, &["add-port", "br-slices", "vnet9"]).await;

    let script = lab.path("lease.sh");
    let lines =
        format!("#!/bin/sh\n[ \"$1\" = bound ] && echo \"$ip $mask $router $dns\" > {}\nexit 0\n", lab.path("lease").display());
    std::fs::write(&script, lines).expect("script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let script = script.to_str().expect("text");
    let in_guest = |args: &[&str]| {
        let exec = Exec::new(IP).arg("netns").arg("exec").arg("guest").arg(BUSYBOX).deadline(Duration::from_secs(40));
        args.iter().fold(exec, |exec, arg| exec.arg(arg))
    };
    // From the new reservation, without a signal to dnsmasq.
    in_guest(&["udhcpc", "-f", "-q", "-n", "-t", "10", "-T", "1", "-i", "eth0", "-s", script]).run().await.expect("an address");
    let lease = std::fs::read_to_string(lab.path("lease")).expect("bound");
    assert_eq!(lease.trim(), "10.77.0.9 24 10.77.0.1 10.77.0.1");
    call(IP, &["-netns", "guest", "address", "add", "10.77.0.9/24", "dev", "eth0"]).await;
    call(IP, &["-netns", "guest", "route", "add", "default", "via", "10.77.0.1"]).await;

    // The outside has no route to 10.77.0.0/24: an answer means that the packet left with the host's address.
    in_guest(&["ping", "-c", "1", "-W", "5", "192.168.200.1"]).run().await.expect("the world answers");
    in_guest(&["ping", "-c", "1", "-W", "5", "10.77.0.1"]).run().await.expect("the gateway answers");
    // Only echo requests cross a user-space switch with a valid checksum, so they stand for all other packets to the host.
    let other_address = async || in_guest(&["ping", "-c", "1", "-W", "2", "192.168.200.2"]).run().await.is_ok();
    let forged = async || in_guest(&["ping", "-c", "1", "-W", "2", "-I", "10.99.0.9", "10.77.0.1"]).run().await.is_ok();
    call(IP, &["-netns", "guest", "address", "add", "10.99.0.9/32", "dev", "eth0"]).await;
    call(IP, &["route", "add", "10.99.0.9", "dev", "br-slices"]).await;
    assert!(!other_address().await, "a guest reaches the host at an address outside of its network");
    assert!(!forged().await, "a guest speaks under an address that is not of its network");
    // The same without the rules, or this would prove nothing.
    call(NFT, &["flush", "table", "inet", "gpuaas_slices"]).await;
    assert!(other_address().await && forged().await);
}
