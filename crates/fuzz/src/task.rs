//! Parameters and outputs of every kind of task.

use gpuaas_contract::envelope;
use gpuaas_contract::receipt::{self, ReceiptError};
use gpuaas_contract::slice::{LeasedSlot, MAX_MEMORY_MIB, MAX_SLOTS, MAX_VCPUS};
use gpuaas_contract::task::{BadParams, Output, Task, TaskType, diag_ping, package_list, slice_console_read, slice_vm_provision};
use serde_json::value::RawValue;

use crate::fixture::KEYS;
use crate::input::Input;
use crate::receipt::{expectation, success};

/// Parses parameters whose kind is the first byte. Returns true if they were accepted.
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

    // No field can be added to those of a kind.
    let mut fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(json.get()).expect("parameters are an object");
    fields.insert("not_a_field".to_owned(), 1.into());
    let more = serde_json::Value::Object(fields).to_string();
    assert!(matches!(Task::parse(kind, &more), Err(BadParams::UnknownField { .. })), "{more}");
    true
}

fn within_limits(task: &Task) {
    match task {
        Task::DiagPing(params) => {
            assert!(params.message.len() <= diag_ping::MAX_MESSAGE && !params.message.contains(char::is_control));
            assert!(params.hold_ms <= diag_ping::MAX_HOLD_MS && params.log_lines <= diag_ping::MAX_LOG_LINES);
        }
        Task::DiagHealthProbe(_) => {}
        Task::PackageList(params) => {
            assert!((1..=package_list::MAX_LIMIT).contains(&params.limit));
            assert!(params.name_contains.len() <= package_list::MAX_FILTER);
        }
        Task::SliceTopologyDiscover(params) => {
            assert!((1..=MAX_VCPUS).contains(&params.vcpu_count));
            assert!((512..=MAX_MEMORY_MIB).contains(&params.memory_mib));
            let bridge = params.ovs_bridge.as_str();
            assert!(!bridge.starts_with('-') && !bridge.contains('/') && (1..=15).contains(&bridge.len()), "{bridge}");
            assert!(params.private_subnet.parts().0.is_private(), "{}", params.private_subnet);
        }
        Task::SliceVmProvision(params) => {
            slots_within_limits(&params.slots);
            harmless(params.vm_name.as_str());
            harmless(params.default_username.as_str());
            if let Some(bridge) = &params.ovs_bridge {
                harmless(bridge.as_str());
            }
            assert!(params.image_path.is_some() || params.image_url.is_some());
            if let Some(path) = &params.image_path {
                assert!(path.split('/').all(|part| !part.is_empty() && part != ".." && part != "."), "{path}");
                harmless(path);
            }
            if let Some(url) = &params.image_url {
                assert!(url.len() <= slice_vm_provision::MAX_URL && (url.starts_with("https://") || url.starts_with("http://")));
                harmless(url);
            }
            for key in &params.ssh_public_keys {
                assert_eq!(key.as_str().split(' ').count(), 2, "{key}");
                harmless(key.as_str());
            }
        }
        Task::SliceVmRelease(params) => slots_within_limits(&params.slots),
        Task::SliceVmPower(params) => slots_within_limits(&params.slots),
        Task::SliceConsoleRead(params) => {
            assert!(params.tail_bytes <= slice_console_read::MAX_BYTES);
            assert!(params.follow_seconds <= slice_console_read::MAX_FOLLOW_SECONDS);
        }
        Task::AllocationProvisionUser(params) => {
            harmless(params.username.as_str());
            assert!(params.username.as_str() != "root" && params.lease_epoch > 0);
            assert!((1..=slice_vm_provision::MAX_KEYS).contains(&params.ssh_public_keys.len()));
            for key in &params.ssh_public_keys {
                assert_eq!(key.as_str().split(' ').count(), 2, "{key}");
                harmless(key.as_str());
            }
        }
        Task::AllocationDeprovisionUser(params) => {
            harmless(params.username.as_str());
            assert!(params.username.as_str() != "root" && params.lease_epoch > 0);
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

/// Checks that a text has no characters with a meaning in XML, YAML, a shell or a terminal.
fn harmless(text: &str) {
    let bad = |c: char| c.is_control() || matches!(c, '<' | '>' | '"' | '\'' | '\\' | '`' | '\n');
    assert!(!text.is_empty() && !text.starts_with('-') && !text.contains(bad) && text.is_ascii(), "{text:?}");
}

/// Parses an output whose kind is the first byte. Returns true if it was accepted.
pub fn task_output(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let kind = input.choose(TaskType::ALL);
    let Ok(text) = std::str::from_utf8(input.rest()) else { return false };
    let Ok(output) = Output::parse(kind, text) else {
        // Not even when a node signs it.
        if let Ok(raw) = serde_json::from_str::<Box<RawValue>>(text) {
            let signed = success(kind, raw).sign(&KEYS.node).receipt;
            let disbelief = receipt::verify(&signed, &expectation(kind)).expect_err("believed");
            assert!(matches!(disbelief, ReceiptError::BadOutput(_) | ReceiptError::Open(_)), "{disbelief}");
        }
        return false;
    };
    let matches_kind = match &output {
        Output::DiagPing(_) => TaskType::DiagPing,
        Output::DiagHealthProbe(_) => TaskType::DiagHealthProbe,
        Output::PackageList(_) => TaskType::PackageList,
        Output::SliceTopologyDiscover(_) => TaskType::SliceTopologyDiscover,
        Output::SliceVmProvision(_) => TaskType::SliceVmProvision,
        Output::SliceVmRelease(_) => TaskType::SliceVmRelease,
        Output::SliceVmPower(_) => TaskType::SliceVmPower,
        Output::SliceConsoleRead(_) => TaskType::SliceConsoleRead,
        Output::AllocationProvisionUser(_) => TaskType::AllocationProvisionUser,
        Output::AllocationDeprovisionUser(_) => TaskType::AllocationDeprovisionUser,
    };
    assert_eq!(matches_kind, kind);
    let json = serde_json::to_string(&output).expect("an output serializes");
    let again = Output::parse(kind, &json).expect("written and read again it is still an output");
    assert_eq!(again, output);
    assert_eq!(serde_json::to_string(&again).expect("an output serializes"), json);

    // The control plane accepts it in a receipt, byte for byte as the node wrote it.
    let raw: Box<RawValue> = serde_json::from_str(text).expect("it was parsed");
    let signed = success(kind, raw.clone()).sign(&KEYS.node).receipt;
    let verified = receipt::verify(&signed, &expectation(kind)).expect("a good output is believed");
    assert_eq!(verified.payload().output.as_ref().map(|output| output.get()), Some(raw.get()));
    true
}
