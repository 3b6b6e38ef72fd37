//! Compares the table with the schemas, and checks that every key controls its parameter.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::schema;
use serde_json::{Value, json};

use super::*;
use crate::policy::Policy;

/// Collects the path of every leaf of a schema, in the notation of the table.
fn leaves(schema: &Value, definitions: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/$defs/").expect("a definition of its own");
        return leaves(&definitions[name], definitions, path, found);
    }
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        if let Some(list) = schema[alternatives].as_array().filter(|list| list.iter().any(|one| one.get("const").is_none())) {
            for one in list.iter().filter(|one| one["type"] != "null") {
                leaves(one, definitions, path, found);
            }
            return;
        }
    }
    let is = |name: &str| schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.contains(&json!(name)));
    if is("object") {
        let properties = schema["properties"].as_object();
        assert!(
            properties.is_none_or(|some| some.is_empty()) || schema["additionalProperties"] == json!(false),
            "{path}: a map has no names to be listed"
        );
        for (name, property) in properties.into_iter().flatten() {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            leaves(property, definitions, &below, found);
        }
    } else if is("array") {
        leaves(&schema["items"], definitions, &format!("{path}[]"), found);
    } else {
        found.insert(path.to_owned());
    }
}

#[test]
fn every_parameter_of_every_task_has_a_policy_key_or_a_reason_to_have_none() {
    for kind in TaskType::ALL {
        let schema = schema::of(kind).params.to_value();
        let mut there = BTreeSet::new();
        leaves(&schema, &schema["$defs"], "", &mut there);
        let mut listed = BTreeSet::new();
        for parameter in of(kind).iter().copied().flatten() {
            assert!(listed.insert(parameter.path.to_owned()), "{kind}: {} is listed twice", parameter.path);
            if let Decided::Exempt { reason } = parameter.decided {
                assert!(reason.len() > 10, "{kind}: {} needs a reason", parameter.path);
            }
        }
        assert_eq!(listed, there, "{kind}: give every parameter a row in agent/src/policy/parameters.rs");
    }
}

/// Every key in the table, with a value that allows the tasks of [`tasks`].
const ALLOWS: [(&str, &str); 10] = [
    ("slices.pci_addresses", "[\"*\"]"),
    ("slices.nvme_serials", "[\"S1\"]"),
    ("slices.image_sources", "[\"https://images.example/\", \"file\"]"),
    ("slices.image_formats", "[\"raw\"]"),
    ("slices.driver_strategies", "[\"cloud-init\"]"),
    ("slices.usernames", "[\"deb*\"]"),
    ("slices.bridges", "[\"br-slices\"]"),
    ("slices.max_shutdown_seconds", "900"),
    ("slices.allow_graphics", "true"),
    ("bare_metal.usernames", "[\"tenant-*\"]"),
];

fn policy(keys: &BTreeMap<&str, &str>) -> (tempfile::TempDir, Policy) {
    let section = |name: &str| {
        let prefix = format!("{name}.");
        let lines = keys.iter().filter_map(|(key, value)| Some(format!("{} = {value}\n", key.strip_prefix(&prefix)?)));
        format!("[{name}]\n{}", lines.collect::<String>())
    };
    let text = format!("allowed_tasks = {}\n{}{}", TaskType::list(TaskType::ALL), section("slices"), section("bare_metal"));
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("policy.toml");
    gpuaas_host::private_file::write(&path, text.as_bytes()).expect("written");
    let policy = Policy::load(&path).expect("loads");
    (folder, policy)
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";

/// Tasks that together need every key.
fn tasks() -> Vec<(Task, Vec<&'static str>)> {
    let allocation = gpuaas_contract::id::AllocationId::generate();
    let slots = json!([{ "slot_id": gpuaas_contract::id::SlotId::generate(), "spec": {
        "slot_index": 0, "pci_address": "0000:17:00.0", "companions": ["0000:17:00.1"], "fabric_device": "0000:18:00.0",
        "nvme_device": "/dev/disk/by-id/nvme-S1", "nvme_serial": "S1", "numa_node": 0, "vcpu_count": 4, "memory_mib": 4096,
        "mac_address": "52:54:00:00:00:01", "private_ip": "10.77.0.2",
    }}]);
    let guest = |source: &str, place: &str| {
        let mut params = json!({
            "allocation_id": allocation, "lease_epoch": 1, "slots": slots,
            "guest": {
                "vm_name": "a", "image": { "sha256": gpuaas_contract::Digest::of(b"x"), "format": "raw" },
                "driver_strategy": "cloud-init", "default_username": "debian", "ssh_public_keys": [KEY],
                "ovs_bridge": "br-slices", "graceful_timeout_seconds": 900, "graphics": true,
            },
        });
        params["guest"]["image"][source] = json!(place);
        Task::parse(TaskType::SliceVmProvision, &params.to_string()).expect("a task")
    };
    let provision: Vec<&str> = ALLOWS.iter().map(|(key, _)| *key).filter(|key| key.starts_with("slices.")).collect();
    let user =
        json!({ "allocation_id": allocation, "lease_epoch": 1, "username": "tenant-1", "ssh_public_keys": [KEY], "sudo": true });
    vec![
        (guest("url", "https://images.example/a.raw"), provision.clone()),
        (guest("path", "a.raw"), provision),
        (
            Task::parse(TaskType::AllocationProvisionUser, &user.to_string()).expect("a task"),
            vec!["bare_metal.usernames", "bare_metal.allow_sudo"],
        ),
    ]
}

#[test]
fn every_key_of_the_table_denies_what_it_does_not_list() {
    let mut all: BTreeMap<&str, &str> = ALLOWS.into();
    all.insert("bare_metal.allow_sudo", "true");
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for parameter in TaskType::ALL.into_iter().flat_map(of).copied().flatten() {
        match parameter.decided {
            Decided::By { key, .. } | Decided::Limited { key } => named.insert(key),
            Decided::Exempt { .. } => continue,
        };
    }
    assert_eq!(named, all.keys().copied().collect(), "the keys of the table and those that this test takes away");
    for (task, needed) in tasks() {
        let (_folder, everything) = policy(&all);
        everything.check_task(&task).expect("everything that it names is allowed");
        assert!(everything.still_allows(&task));
        for key in needed {
            let without: BTreeMap<&str, &str> = all.iter().filter(|(name, _)| **name != key).map(|(n, v)| (*n, *v)).collect();
            let (_folder, less) = policy(&without);
            let denied = less.check_task(&task).expect_err(key).0;
            assert!(denied.contains(key.split_once('.').expect("a section").1), "{key}: {denied}");
            assert!(!less.still_allows(&task), "{key}");
        }
    }
}

#[test]
fn the_host_chooses_the_bridge_unless_an_operator_names_one_that_is_listed() {
    let rules = |bridges: &str| -> super::super::SliceRules { toml::from_str(&format!("bridges = {bridges}")).expect("rules") };
    let name = |text: &str| text.parse().expect("a name");
    let listed = rules("[\"br-a\", \"br-b\"]");
    assert_eq!(listed.bridge(None), Ok(name("br-a")));
    assert_eq!(listed.bridge(Some(&name("br-b"))), Ok(name("br-b")));
    assert!(listed.bridge(Some(&name("br-ex"))).is_err());
    assert_eq!(rules("[\"*\"]").bridge(Some(&name("br-ex"))), Ok(name("br-ex")));
    for none in ["[]", "[\"*\"]"] {
        assert!(rules(none).bridge(None).expect_err("none").contains("bridges"), "{none}");
    }
    for bad in ["[\"--help\"]", "[\"a/b\"]", "\"br-a\"", "[1]"] {
        assert!(toml::from_str::<super::super::SliceRules>(&format!("bridges = {bad}")).is_err(), "{bad}");
    }
}
