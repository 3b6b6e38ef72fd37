//! Target `agent_policy`: a host policy allows exactly what its text lists, and any other text is rejected.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_agent::policy::{Policy, PolicyError};
use gpuaas_contract::address::Network;
use gpuaas_contract::slice::InterfaceName;
use gpuaas_contract::task::TaskType;

/// Returns true if the text is a policy that allows at least one task type.
pub fn agent_policy(data: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("policy.toml");
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        Policy::load(&path)
    };
    let meant = std::str::from_utf8(data).ok().and_then(meaning);
    let policy = match load(data) {
        Ok(policy) => policy,
        Err(error) => {
            assert!(matches!(error, PolicyError::Malformed { .. }), "{error}");
            assert_eq!(meant, None, "a good policy is refused");
            return false;
        }
    };
    let (allowed, limits) = meant.expect("what is no policy was taken for one");
    assert_eq!(policy.allowed().into_iter().collect::<BTreeSet<_>>(), allowed);
    for kind in TaskType::ALL {
        assert_eq!(policy.check(kind).is_ok(), allowed.contains(&kind), "{kind}");
        assert_eq!(policy.concurrency(kind), limits.get(&kind).copied(), "{kind}");
        // An escape sequence can spell a name without containing it. Without one, the name itself must be in the text.
        let text = String::from_utf8_lossy(data);
        assert!(!allowed.contains(&kind) || text.contains('\\') || text.contains(kind.as_str()), "{kind} is not in the text");
    }
    // A text with an unknown key is rejected.
    let unknown = [b"not_a_key = 1\n", data].concat();
    assert!(matches!(load(&unknown), Err(PolicyError::Malformed { .. })));
    // The policy in use has reloaded the file: it now allows nothing, whatever it allowed before.
    assert_eq!(policy.allowed(), []);
    assert!(TaskType::ALL.into_iter().all(|kind| policy.check(kind).is_err()));
    !allowed.is_empty()
}

/// Returns what the text allows, parsed independently of the agent's code, or `None` if it is not a policy.
fn meaning(text: &str) -> Option<(BTreeSet<TaskType>, BTreeMap<TaskType, u32>)> {
    let table: toml::Table = text.parse().ok()?;
    if table.keys().any(|key| !["allowed_tasks", "concurrency", "slices", "bare_metal"].contains(&key.as_str())) {
        return None;
    }
    if let Some(slices) = table.get("slices") {
        slices.as_table()?.iter().all(|(name, value)| is_slice_rule(name, value)).then_some(())?;
    }
    if let Some(rules) = table.get("bare_metal") {
        rules.as_table()?.iter().all(|(name, value)| is_bare_metal_rule(name, value)).then_some(())?;
    }
    let mut allowed = BTreeSet::new();
    if let Some(list) = table.get("allowed_tasks") {
        for name in list.as_array()? {
            allowed.insert(TaskType::parse(name.as_str()?)?);
        }
    }
    let mut limits = BTreeMap::new();
    if let Some(table) = table.get("concurrency") {
        for (name, limit) in table.as_table()? {
            let limit = u32::try_from(limit.as_integer()?).ok().filter(|limit| *limit > 0)?;
            limits.insert(TaskType::parse(name)?, limit);
        }
    }
    Some((allowed, limits))
}

fn is_pattern(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'*');
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}

fn is_list_of(value: &toml::Value, is_entry: impl Fn(&str) -> bool) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|entry| entry.as_str().is_some_and(&is_entry)))
}

fn is_bare_metal_rule(name: &str, value: &toml::Value) -> bool {
    match name {
        "usernames" => is_list_of(value, is_pattern),
        "allow_sudo" => value.is_bool(),
        "destroys_per_hour" => value.as_integer().is_some_and(|limit| u32::try_from(limit).is_ok()),
        _ => false,
    }
}

fn is_slice_rule(name: &str, value: &toml::Value) -> bool {
    match name {
        "pci_addresses" | "nvme_serials" | "image_sources" | "drives_without_gpu" => {
            value.as_array().is_some_and(|list| list.iter().all(toml::Value::is_str))
        }
        "emulation" => value.as_str().is_some_and(|when| ["never", "fallback", "always"].contains(&when)),
        "install_packages" | "allow_graphics" => value.is_bool(),
        "image_formats" => is_list_of(value, |format| ["qcow2", "raw"].contains(&format)),
        "driver_strategies" => is_list_of(value, |how| ["cloud-init", "preinstalled", "none"].contains(&how)),
        "usernames" => is_list_of(value, is_pattern),
        "bridges" => is_list_of(value, |name| name == "*" || name.parse::<InterfaceName>().is_ok()),
        "image_private_networks" => is_list_of(value, |network| network.parse::<Network>().is_ok()),
        "max_shutdown_seconds" => value.as_integer().is_some_and(|seconds| (30..=900).contains(&seconds)),
        "destroys_per_hour" => value.as_integer().is_some_and(|limit| u32::try_from(limit).is_ok()),
        _ => false,
    }
}
