//! Targets `task_params` and `task_output`: parameters and outputs of every task type.

use gpuaas_contract::guest::GuestSpec;
use gpuaas_contract::receipt::{self, ReceiptError};
use gpuaas_contract::slice::{LeasedSlot, MAX_MEMORY_MIB, MAX_SLOTS, MAX_VCPUS, SshPublicKey};
use gpuaas_contract::task::{BadParams, Output, Task, TaskType};
use gpuaas_contract::{envelope, schema};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::fixture::KEYS;
use crate::input::Input;
use crate::receipt::{expectation, success};

/// Parses parameters, whose task type the first byte selects. Returns true if they are accepted.
pub fn task_params(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = input.choose(TaskType::ALL);
    let Ok(text) = std::str::from_utf8(input.rest()) else { return false };
    let task = match Task::parse(kind, text) {
        Ok(task) => task,
        Err(BadParams::UnknownField { task_type, detail } | BadParams::Invalid { task_type, detail }) => {
            assert_eq!(task_type, kind);
            assert!(!detail.is_empty());
            return false;
        }
    };
    assert_eq!(task.task_type(), kind);
    within_limits(&task);
    let json = task.params_json();
    assert_eq!(Task::parse(kind, json.get()).as_ref(), Ok(&task), "written and read again it is another task");
    assert_eq!(Task::parse(kind, json.get()).map(|again| again.params_json().get().to_owned()), Ok(json.get().to_owned()));
    assert!(json.get().len() < envelope::MAX_BYTES / 2, "the largest parameters must fit into an envelope");

    // Unknown fields are refused.
    let mut fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json.get()).expect("parameters are an object");
    fields.insert("not_a_field".to_owned(), 1.into());
    let more = serde_json::Value::Object(fields).to_string();
    assert!(matches!(Task::parse(kind, &more), Err(BadParams::UnknownField { .. })), "{more}");
    true
}

/// Parameters that may contain any printable text. All others are free of characters that are special in XML, YAML, a shell or a terminal.
const FREE_TEXT: [(TaskType, &str); 2] = [(TaskType::DiagPing, "message"), (TaskType::PackageList, "name_contains")];

/// Checks limits that hold for the parameters of every task type, and further ones for some types.
fn within_limits(task: &Task) {
    let kind = task.task_type();
    let params: Value = serde_json::from_str(task.params_json().get()).expect("parameters are JSON");
    let schema = schema::of(kind).params.to_value();
    fits(&schema, &schema["$defs"], &params);
    for (name, value) in params.as_object().expect("an object") {
        if !FREE_TEXT.contains(&(kind, name.as_str())) {
            all_harmless(value);
        }
    }
    assert_eq!(task.holder().is_some(), kind.needs_lease());
    if !task.slots().is_empty() {
        slots_within_limits(task.slots());
    }
    if let Task::DiagPing(params) = task {
        assert!(!params.message.contains(char::is_control));
    }
    if let Task::SliceTopologyDiscover(params) = task {
        let bridge = params.ovs_bridge.as_str();
        assert!(!bridge.contains('/') && (1..=15).contains(&bridge.len()), "{bridge}");
        assert!(params.private_subnet.parts().0.is_private(), "{}", params.private_subnet);
    }
    if let Task::SliceVmProvision(params) = task {
        let GuestSpec { image, ssh_public_keys, default_username, .. } = &params.guest;
        assert!(!params.slots.is_empty() && (image.path.is_some() || image.url.is_some()));
        if let Some(path) = &image.path {
            assert!(path.split('/').all(|part| !part.is_empty() && part != ".." && part != "."), "{path}");
        }
        if let Some(url) = &image.url {
            assert!(url.starts_with("https://") || url.starts_with("http://"));
        }
        assert!(default_username.as_str() != "root" && params.lease_epoch > 0);
        plain_keys(ssh_public_keys);
    }
    if let Task::SliceVmRelease(params) = task {
        assert!(!params.slots.is_empty() && params.lease_epoch > 0);
    }
    if let Task::AllocationProvisionUser(params) = task {
        assert!(params.username.as_str() != "root" && params.lease_epoch > 0 && !params.ssh_public_keys.is_empty());
        plain_keys(&params.ssh_public_keys);
    }
    if let Task::AllocationDeprovisionUser(params) = task {
        assert!(params.username.as_str() != "root" && params.lease_epoch > 0);
    }
}

/// Checks that each key consists of nothing but its type and its bytes.
fn plain_keys(keys: &[SshPublicKey]) {
    for key in keys {
        assert_eq!(key.as_str().split(' ').count(), 2, "{key}");
    }
}

fn all_harmless(value: &Value) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => harmless(text),
        Value::Array(items) => items.iter().for_each(all_harmless),
        Value::Object(fields) => fields.values().for_each(all_harmless),
    }
}

/// Checks a value against its published schema: types, names, sizes and ranges.
fn fits(schema: &Value, definitions: &Value, value: &Value) {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
        return fits(&definitions[name], definitions, value);
    }
    if value.is_null() {
        return;
    }
    for choice in ["anyOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        // An optional value: if it is not null, it must match the other choice.
        if choice["type"] != "null" && choice.get("const").is_none() {
            fits(choice, definitions, value);
        }
    }
    let at_most = |key: &str, size: usize| {
        assert!(schema[key].as_u64().is_none_or(|limit| size as u64 <= limit), "{key} of {schema}: {value}");
    };
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => {
            let number = number.as_f64().expect("a number");
            assert!(schema["minimum"].as_f64().is_none_or(|least| number >= least), "{schema}: {value}");
            assert!(schema["maximum"].as_f64().is_none_or(|most| number <= most), "{schema}: {value}");
        }
        Value::String(text) => at_most("maxLength", text.chars().count()),
        Value::Array(items) => {
            at_most("maxItems", items.len());
            assert!(schema["minItems"].as_u64().is_none_or(|least| items.len() as u64 >= least), "{schema}: {value}");
            items.iter().for_each(|item| fits(&schema["items"], definitions, item));
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let known = schema["properties"].get(name);
                assert!(known.is_some() || schema["additionalProperties"] != false, "{name} is not in {schema}");
                known.into_iter().for_each(|known| fits(known, definitions, field));
            }
        }
    }
}

fn slots_within_limits(slots: &[LeasedSlot]) {
    assert!((1..=MAX_SLOTS).contains(&slots.len()));
    for (place, slot) in slots.iter().enumerate() {
        assert!(
            slots
                .iter()
                .skip(place + 1)
                .all(|other| other.slot_id != slot.slot_id && other.spec.collides_with(&slot.spec).is_none())
        );
        let drive = slot.spec.nvme_device.strip_prefix("/dev/disk/by-id/").expect("a stable path");
        assert!(!drive.contains('/') && drive != ".." && drive != ".", "{drive}");
        for text in [&slot.spec.nvme_device, &slot.spec.nvme_serial, &slot.spec.mac_address] {
            harmless(text);
        }
        assert!((1..=MAX_VCPUS).contains(&slot.spec.vcpu_count) && (512..=MAX_MEMORY_MIB).contains(&slot.spec.memory_mib));
    }
}

/// Checks that a text has no characters that are special in XML, YAML, a shell or a terminal.
fn harmless(text: &str) {
    let bad = |c: char| c.is_control() || matches!(c, '<' | '>' | '"' | '\'' | '\\' | '`' | '\n');
    assert!(!text.is_empty() && !text.starts_with('-') && !text.contains(bad) && text.is_ascii(), "{text:?}");
}

/// Parses an output, whose task type the first byte selects. Returns true if it is accepted.
pub fn task_output(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = input.choose(TaskType::ALL);
    let Ok(text) = std::str::from_utf8(input.rest()) else { return false };
    let Ok(output) = Output::parse(kind, text) else {
        // The control plane refuses an invalid output even if the node signed it.
        if let Ok(raw) = serde_json::from_str::<Box<RawValue>>(text) {
            let signed = success(kind, raw).sign(&KEYS.node).receipt;
            let disbelief = receipt::verify(&signed, &expectation(kind)).expect_err("believed");
            assert!(matches!(disbelief, ReceiptError::BadOutput(_) | ReceiptError::Open(_)), "{disbelief}");
        }
        return false;
    };
    assert_eq!(output.task_type(), kind);
    let json = serde_json::to_string(&output).expect("an output serializes");
    let again = Output::parse(kind, &json).expect("written and read again it is still an output");
    assert_eq!(again, output);
    assert_eq!(serde_json::to_string(&again).expect("an output serializes"), json);

    // The control plane accepts a valid output in a receipt, byte for byte as the node wrote it.
    let raw: Box<RawValue> = serde_json::from_str(text).expect("it was parsed");
    let signed = success(kind, raw.clone()).sign(&KEYS.node).receipt;
    let verified = receipt::verify(&signed, &expectation(kind)).expect("a good output is believed");
    assert_eq!(verified.payload().output.as_ref().map(|output| output.get()), Some(raw.get()));
    true
}
