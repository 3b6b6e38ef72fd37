//! The decisions of a host's owner, in two forms: as the text of a policy, and as an oracle over the JSON of a task that shares
//! no code with the policy.

use std::collections::BTreeSet;

use gpuaas_contract::task::TaskType;
use serde_json::{Value, json};

use super::Random;

const FUNCTIONS: [&str; 3] = ["0000:17:00.0", "0000:18:00.0", "0000:19:00.0"];
const SERIALS: [&str; 3] = ["S1", "S2", "S3"];
const URLS: [&str; 5] = [
    "https://images.example/a/x.qcow2",
    "https://images.example/x.qcow2",
    "https://images.example.evil/x.qcow2",
    "http://images.example/x.qcow2",
    "https://images.example/a/../x.qcow2",
];
const BRIDGES: [&str; 3] = ["br-a", "br-b", "br-ex"];
const USERS: [&str; 4] = ["debian", "ubuntu", "deb", "x"];
const TENANTS: [&str; 3] = ["tenant-1", "tenant", "jane"];
const GRACES: [u32; 5] = [0, 30, 120, 300, 9000];
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";

/// Returns values of one key, the widest first: it is chosen about half of the time, so that enough is allowed to prove
/// something.
fn pick<'a>(random: &mut Random, choices: &'a [&'a [&'a str]]) -> Vec<&'a str> {
    let number = if random.below(2) == 0 { 0 } else { random.below(choices.len()) };
    choices[number].to_vec()
}

/// The decisions of an owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) tasks: BTreeSet<TaskType>,
    functions: Vec<&'static str>,
    serials: Vec<&'static str>,
    sources: Vec<&'static str>,
    formats: Vec<&'static str>,
    bridges: Vec<&'static str>,
    users: Vec<&'static str>,
    drivers: Vec<&'static str>,
    graphics: bool,
    shutdown: Option<u32>,
    guests_per_hour: Option<u32>,
    /// The section `[bare_metal]`, if there is one: user names, sudo, tenants per hour.
    tenants: Option<(Vec<&'static str>, bool, Option<u32>)>,
}

impl Owner {
    pub(super) fn random(random: &mut Random) -> Self {
        let limit = |random: &mut Random| *random.of(&[Some(1_000_000), Some(1_000_000), Some(7), Some(0), None]);
        Self {
            tasks: TaskType::ALL.into_iter().filter(|_| random.below(3) > 0).collect(),
            functions: pick(random, &[&["*"], &[], &["0000:17:00.0"], &["0000:17:00.0", "0000:18:00.0"]]),
            serials: pick(random, &[&["*"], &[], &["S1"], &["S2", "S1"]]),
            sources: pick(
                random,
                &[&["*", "file"], &[], &["*"], &["file"], &["https://images.example/"], &["https://images.example/a/", "file"]],
            ),
            formats: pick(random, &[&["qcow2", "raw"], &[], &["raw"], &["qcow2"]]),
            bridges: pick(random, &[&["br-a", "*"], &[], &["*"], &["br-b"], &["br-b", "br-a"]]),
            users: pick(random, &[&["*"], &[], &["deb*"], &["ubuntu", "x"]]),
            drivers: pick(random, &[&["cloud-init", "preinstalled", "none"], &[], &["cloud-init"], &["preinstalled"]]),
            graphics: random.below(2) == 0,
            shutdown: *random.of(&[Some(900), Some(900), Some(30), Some(300), None]),
            guests_per_hour: limit(random),
            tenants: (random.below(4) > 0)
                .then(|| (pick(random, &[&["*"], &[], &["tenant-*"], &["jane"]]), random.below(2) == 0, limit(random))),
        }
    }

    /// Returns the text of the policy.
    pub(super) fn text(&self) -> String {
        let list = |values: &[&str]| json!(values).to_string();
        let names: Vec<&str> = self.tasks.iter().map(|kind| kind.as_str()).collect();
        let mut text = format!("allowed_tasks = {}\n[slices]\n", list(&names));
        for (key, values) in [
            ("pci_addresses", &self.functions),
            ("nvme_serials", &self.serials),
            ("image_sources", &self.sources),
            ("image_formats", &self.formats),
            ("bridges", &self.bridges),
            ("usernames", &self.users),
            ("driver_strategies", &self.drivers),
        ] {
            // An empty list and none at all are the same.
            if !values.is_empty() {
                text.push_str(&format!("{key} = {}\n", list(values)));
            }
        }
        text.push_str(&format!("allow_graphics = {}\n", self.graphics));
        let limits = [("max_shutdown_seconds", self.shutdown), ("destroys_per_hour", self.guests_per_hour)];
        for (key, limit) in limits.into_iter().filter_map(|(key, limit)| Some((key, limit?))) {
            text.push_str(&format!("{key} = {limit}\n"));
        }
        if let Some((users, sudo, limit)) = &self.tenants {
            text.push_str(&format!("[bare_metal]\nusernames = {}\nallow_sudo = {sudo}\n", list(users)));
            text.extend(limit.map(|limit| format!("destroys_per_hour = {limit}\n")));
        }
        text
    }

    /// Returns whether a task of this kind may run with these parameters, budgets aside.
    pub(super) fn allows(&self, kind: TaskType, params: &Value) -> bool {
        let lists = |list: &[&str], wanted: &Value| list.contains(&"*") || list.iter().any(|entry| wanted == entry);
        let slots = params["slots"].as_array().cloned().unwrap_or_default();
        let devices = slots.iter().all(|slot| {
            let spec = &slot["spec"];
            let others = spec["companions"].as_array().cloned().unwrap_or_default();
            let functions = [&spec["pci_address"], &spec["fabric_device"]].into_iter().chain(&others);
            functions.filter(|function| !function.is_null()).all(|function| lists(&self.functions, function))
                && lists(&self.serials, &spec["nvme_serial"])
        });
        let tenant = || {
            let name = params["username"].as_str().expect("a name");
            let known = |pattern: &&str| match *pattern {
                "*" => true,
                "tenant-*" => name.starts_with("tenant-"),
                exact => exact == name,
            };
            self.tenants.as_ref().is_some_and(|(users, sudo, _)| users.iter().any(known) && (*sudo || params["sudo"] != true))
        };
        // By what a task names, not by its kind: a new kind with the same parameters is held to the same rules.
        self.tasks.contains(&kind)
            && devices
            && (params["username"].is_null() || tenant())
            && (params["guest"].is_null() || self.allows_guest(&params["guest"]))
    }

    fn allows_guest(&self, guest: &Value) -> bool {
        let text = |pointer: &str| guest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let url = text("/image/url");
        let source = |source: &&str| *source == "*" || (source.ends_with('/') && url.starts_with(source));
        let from_url = guest["image"]["url"].is_null() || (!url.contains("/../") && self.sources.iter().any(source));
        let from_file = guest["image"]["path"].is_null() || self.sources.contains(&"file") || self.sources.contains(&"*");
        let named = self.bridges.iter().any(|bridge| *bridge != "*");
        let bridge = match guest["ovs_bridge"].as_str() {
            None => named,
            Some(bridge) => self.bridges.contains(&"*") || self.bridges.contains(&bridge),
        };
        let user = |pattern: &&str| match *pattern {
            "*" => true,
            "deb*" => text("/default_username").starts_with("deb"),
            exact => exact == text("/default_username"),
        };
        let driver = text("/driver_strategy");
        let wanted = guest["graceful_timeout_seconds"].as_u64().expect("a number").clamp(30, 900);
        from_url
            && from_file
            && bridge
            && self.formats.contains(&text("/image/format"))
            && self.users.iter().any(user)
            && (driver == "none" || self.drivers.contains(&driver))
            && (self.graphics || guest["graphics"] != true)
            && wanted <= u64::from(self.shutdown.unwrap_or(120))
    }

    /// Returns how many tasks of this kind may run in an hour, or `None` if there is no limit.
    pub(super) fn per_hour(&self, kind: TaskType) -> Option<usize> {
        let limit = if kind == TaskType::SliceVmRelease {
            self.guests_per_hour.unwrap_or(32)
        } else if kind == TaskType::AllocationDeprovisionUser {
            self.tenants.as_ref().and_then(|(_, _, limit)| *limit).unwrap_or(8)
        } else {
            return None;
        };
        Some(usize::try_from(limit).expect("small"))
    }
}

/// Parameters of a task that acts on what an allocation holds: those of an example, and others where the policy decides about them.
pub(super) fn leased_params(random: &mut Random, kind: TaskType, holder: (&str, u64)) -> Value {
    let mut params = super::one_of(random, kind.examples().params);
    (params["allocation_id"], params["lease_epoch"]) = (json!(holder.0), json!(holder.1));
    let has = |params: &Value, name: &str| !params[name].is_null();
    if has(&params, "slots") {
        params["slots"] = slots(random);
    }
    if has(&params, "guest") {
        params["guest"] = guest(random);
    }
    if has(&params, "username") {
        params["username"] = json!(*random.of(&TENANTS));
    }
    for flag in ["wipe", "take_over", "sudo"] {
        if has(&params, flag) {
            params[flag] = json!(random.below(2) == 0);
        }
    }
    if kind == TaskType::SliceVmPower {
        params["action"] = json!(*random.of(&["stop", "start", "reboot"]));
    }
    if kind == TaskType::SliceConsoleRead {
        (params["tail_bytes"], params["follow_seconds"]) = (json!(random.below(1000)), json!(random.below(10)));
    }
    if kind == TaskType::SliceVmRelease || kind == TaskType::SliceVmPower {
        params["graceful_timeout_seconds"] = json!(*random.of(&GRACES));
    }
    params
}

/// A guest of which an owner may refuse anything.
fn guest(random: &mut Random) -> Value {
    let mut guest = json!({
        "vm_name": "guest", "driver_strategy": *random.of(&["none", "cloud-init", "preinstalled"]),
        "default_username": *random.of(&USERS), "ssh_public_keys": [KEY], "graphics": random.below(4) == 0,
        "graceful_timeout_seconds": *random.of(&GRACES),
        "image": {
            "sha256": gpuaas_contract::Digest::of(b"image"), "format": *random.of(&["qcow2", "raw"]),
            "trusted": random.below(2) == 0,
        },
    });
    let source = random.below(4);
    if source != 0 {
        guest["image"]["url"] = json!(*random.of(&URLS));
    }
    if source < 2 {
        guest["image"]["path"] = json!("folder/image.qcow2");
    }
    if random.below(2) == 0 {
        guest["ovs_bridge"] = json!(*random.of(&BRIDGES));
    }
    guest
}

/// One or two slots with devices of this small harness.
fn slots(random: &mut Random) -> Value {
    let first = random.below(3);
    let count = 1 + usize::from(random.below(4) == 0);
    let slot = |number: usize| {
        let place = (first + number) % 3;
        json!({ "slot_id": gpuaas_contract::id::SlotId::generate(), "spec": {
            "slot_index": place, "pci_address": FUNCTIONS[place], "companions": [], "fabric_device": null,
            "nvme_device": format!("/dev/disk/by-id/nvme-{}", SERIALS[place]), "nvme_serial": SERIALS[place], "numa_node": 0,
            "vcpu_count": 4, "memory_mib": 4096, "mac_address": format!("52:54:00:00:00:0{place}"),
            "private_ip": format!("10.77.0.{}", 2 + place),
        }})
    };
    (0..count).map(slot).collect()
}
