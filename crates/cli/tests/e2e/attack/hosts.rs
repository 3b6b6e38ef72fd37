//! Attacks on a host behind its agent's back, and what the URL of an image can make a host do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{chown, lchown, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuaas_contract::Digest;
use gpuaas_contract::id::{AllocationId, SlotId};
use gpuaas_contract::receipt::Payload;
use gpuaas_testkit::{PATIENCE, TempDir, eventually, skip};
use serde_json::json;

use super::target::Target;
use super::{is_long, withstand};
use crate::cluster::{AgentHost, Carrier, write_private};
use crate::doubled_agent::DoubledAgent;
use crate::link_double::LinkDouble;
use crate::rotten_journal::payload;

/// The user id of `nobody`: on every system, somebody other than root.
const NOBODY: u32 = 65534;

#[test]
fn a_host_without_its_journal_or_with_anothers_policy_runs_nothing() {
    let mut target = Target::start();
    withstand("host-files", &mut target, |target| {
        let cluster = &target.cluster;
        let mut host = AgentHost::enrolled(cluster, "gpu-2", Carrier::Stream);
        let node = host.node_id();
        host.start();
        cluster.wait_online(&node, true);
        let done = cluster.json(&["task", "run", &node, "diag.ping", "--wait"])["id"].as_str().unwrap().to_owned();
        host.stop();
        let waiting = cluster.ping(&node, &[]);

        let (journal, aside) = (host.folder.join("state/journal"), host.folder.join("journal.aside"));
        std::fs::rename(&journal, &aside).unwrap();
        host.start();
        let reported = host.fails();
        assert!(reported.contains("journal"), "{reported}");
        assert!(!journal.exists(), "a new journal was made in place of the one that is gone");
        std::fs::rename(&aside, &journal).unwrap();

        let mut refused = 1;
        if rustix::process::geteuid().is_root() {
            refused += foreign_policies(&mut host);
        } else {
            skip("policies that belong to somebody else", "only root can make them");
        }
        assert_eq!((host.effects(&done), host.effects(&waiting)), (1, 0), "something ran while the host was not to be trusted");
        host.start();
        cluster.wait_state(&waiting, "succeeded");
        assert_eq!((host.effects(&done), host.effects(&waiting)), (1, 1));
        format!(
            "{refused} starts without a journal or with a policy that somebody else can change refused, and no task was run twice"
        )
    });
}

/// Puts the agent's policy in places that another user can change. Returns how often the agent refused to start.
fn foreign_policies(host: &mut AgentHost) -> usize {
    let config = host.folder.join("config.toml");
    let good = std::fs::read_to_string(&config).unwrap();
    let own = host.folder.join("policy.toml");
    let policy = std::fs::read_to_string(&own).unwrap();
    let theirs = host.folder.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    write_private(&theirs.join("policy.toml"), &policy);
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    // The folder belongs to root, but another user decides which folder the link points to.
    let real = host.folder.join("real");
    std::fs::create_dir(&real).unwrap();
    write_private(&real.join("policy.toml"), &policy);
    let link = host.folder.join("link");
    symlink(&real, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    let file = host.folder.join("file.toml");
    write_private(&file, &policy);
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let places = [theirs.join("policy.toml"), link.join("policy.toml"), file];
    for place in &places {
        let (own, place) = (own.display().to_string(), place.display().to_string());
        std::fs::write(&config, good.replace(&own, &place)).unwrap();
        host.start();
        let reported = host.fails();
        assert!(reported.contains("policy"), "{place}: {reported}");
    }
    std::fs::write(&config, &good).unwrap();
    places.len()
}

/// An image server that redirects to the target in its path, and counts requests.
struct Images {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Images {
    fn start(address: Ipv4Addr) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((address, 0))).unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let mut reader = BufReader::new(&stream);
                let mut lines = Vec::new();
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    lines.push(std::mem::take(&mut line));
                }
                let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
                let answer = match path.strip_prefix("/to/") {
                    Some(place) => format!(
                        "HTTP/1.1 302 Found\r\nlocation: http://{place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    ),
                    None => "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret".to_owned(),
                };
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A policy that accepts images from any URL, and allows guests without hardware virtualization.
fn policy(private_networks: &str) -> String {
    format!(
        "allowed_tasks = [\"diag.ping\", \"slice.vm_provision\"]\n[slices]\nnvme_serials = [\"*\"]\nimage_sources = [\"*\"]\n\
         bridges = [\"br-slices\"]\nimage_formats = [\"raw\"]\nusernames = [\"*\"]\nemulation = \"always\"\n\
         image_private_networks = [{private_networks}]\n"
    )
}

/// Orders a guest from this image, like a control plane that does not check what its tenant asks for. Returns the host's receipt.
fn order(double: &LinkDouble, agent: &DoubledAgent, url: &str) -> Payload {
    let allocation = AllocationId::generate();
    // A drive that does not exist, and a different one each time: without a hypervisor, no drive is proven clean again.
    let drive = format!("NONE-{allocation}");
    let params = json!({
        "allocation_id": allocation, "lease_epoch": 1,
        "guest": {
            "vm_name": "guest", "image": { "url": url, "sha256": Digest::of(url.as_bytes()), "format": "raw" },
            "default_username": "ubuntu",
            "ssh_public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq"],
        },
        "slots": [{ "slot_id": SlotId::generate(), "spec": {
            "slot_index": 0, "pci_address": null, "companions": [], "fabric_device": null,
            "nvme_device": format!("/dev/disk/by-id/nvme-attack_{drive}"), "nvme_serial": drive, "numa_node": -1, "vcpu_count": 1,
            "memory_mib": 1024, "mac_address": "52:54:00:66:00:01", "private_ip": "10.77.0.5",
        }}],
    });
    let (id, envelope) = double.sign(agent.node, "slice.vm_provision", &params, Some(allocation));
    receipt(double, agent, id, envelope)
}

fn receipt(double: &LinkDouble, agent: &DoubledAgent, id: gpuaas_contract::id::TaskId, envelope: Vec<u8>) -> Payload {
    double.deliver(agent.node, [(id, envelope)]);
    let receipts = eventually(PATIENCE, "the host answers the order", || double.receipt_bytes(agent.node).remove(&id));
    payload(&receipts[0])
}

/// Returns whether this is why the order failed. Without a hypervisor the host cannot prove either that nothing is left of the
/// guest, so the receipt may report both.
fn because(reported: &Payload, code: &str) -> bool {
    reported.code == code || reported.message.contains(&format!("({code})"))
}

/// Uses the agent's code for real hosts, because a simulated host downloads no images.
#[test]
#[allow(clippy::print_stdout, reason = "`cargo xtask attack` prints the figures")]
fn an_image_does_not_lead_the_agent_into_the_owners_networks() {
    let (double, dir) = (LinkDouble::start(), TempDir::new());
    let folder = |name: &str| dir.join(name).display().to_string();
    let settings = format!(
        "slices_dir = \"{}\"\nimages_dir = \"{}\"\ndhcp_hosts_dir = \"{}\"",
        folder("slices"),
        folder("images"),
        folder("dhcp")
    );
    let mut agent = DoubledAgent::start_with_policy(&double, &dir, "stream", &settings, &policy(""));
    let (images, inner) = (Images::start(Ipv4Addr::LOCALHOST), Images::start(Ipv4Addr::new(127, 0, 0, 2)));
    let (port, inner_port) = (images.port, inner.port);

    let mut refused = 0;
    let mut hosts = vec!["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "169.254.169.254", "10.255.255.1"];
    if is_long() {
        hosts.extend(["0.0.0.0", "127.1", "2130706433", "0x7f000001", "[::1]", "192.168.0.1", "172.16.0.1", "100.100.100.200"]);
    }
    for host in hosts {
        let reported = order(&double, &agent, &format!("http://{host}:{port}/image"));
        if because(&reported, "host_dependency_missing") {
            skip("an image's address on a real host", &reported.message);
            return;
        }
        assert!(because(&reported, "image_address_refused"), "{host}: {} {}", reported.code, reported.message);
        refused += 1;
    }
    assert_eq!(images.asked(), 0, "the agent connected to what it refused");

    // The owner lists one private address: the host connects to that one, but does not follow its redirect.
    agent.program.sigkill();
    write_private(&agent.folder.join("policy.toml"), &policy("\"127.0.0.1\""));
    agent.restart(&double);
    for place in
        [format!("127.0.0.2:{inner_port}/image"), "169.254.169.254/latest/meta-data".to_owned(), "10.255.255.1/".to_owned()]
    {
        let reported = order(&double, &agent, &format!("http://127.0.0.1:{port}/to/{place}"));
        assert!(because(&reported, "image_address_refused"), "{place}: {} {}", reported.code, reported.message);
        refused += 1;
    }
    assert_eq!((images.asked(), inner.asked()), (3, 0), "a redirect into the owner's network was followed");
    let reported = order(&double, &agent, &format!("http://127.0.0.1:{port}/image"));
    assert!(because(&reported, "image_digest_mismatch"), "{} {}", reported.code, reported.message);
    assert_eq!(images.asked(), 4);

    let (id, envelope) = double.sign_ping(agent.node);
    let ping = receipt(&double, &agent, id, envelope);
    assert_eq!(ping.code, "ok", "{}", ping.message);
    println!(
        "attack image-addresses: {refused} images at addresses of the owner's networks refused, by name and by redirect; bystander ran a task on the same host"
    );
}
