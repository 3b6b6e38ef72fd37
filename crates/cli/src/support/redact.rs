//! Redacts documents for a support bundle: only fields on a list are kept.
//!
//! This is an allowlist, not a denylist: a field that is added to a document later is left out until somebody decides that it may
//! be shown. Texts that people write (notes, reasons, descriptions, tags) and the parameters of tasks and guests are not on it.

use serde_json::Value;

/// The fields that are kept, at any depth.
const FIELDS: &str = "\
    accepted_at action active_at actor agent_rss_bytes agent_version allocated allocation_id allocations \
    approved_at architecture at attempts available ca ca_sha256 cancel_requested_at certificate_not_after \
    checked_at cluster_id code correlation_id correlationid cpu_model cpu_percent cpu_threads created_at \
    credential_expires_at delivered device_id disk_read_bytes disk_written_bytes disks dispatches driver due_at \
    ended_at ends_at enrolled_at epoch expires_at facts free from gpu gpu_model gpus guests hash healthy hostname id \
    items kernel key_id kind largest_free_on_one_node last_seen_at lease_epoch lease_task lease_until lifted \
    link_address load_percent machines memberships memory_bytes memory_mib memory_used_bytes message metrics \
    milliseconds model models network_received_bytes network_sent_bytes networks next node_epoch node_id node_name \
    nodes numa_node offered_at online organization_id os pci_address pci_id per_hour phase phases place_until \
    platform_role position power_milliwatts project_id queue_until rejoins release_requested role root_size_bytes \
    root_used_bytes rows running scope scopes seq server_time service session share simulated since size_bytes sku \
    sku_id skus slot_index slots source spec specversion speed_mbit started_at starts_at state step store subject \
    target task_id task_type tasks_open temperature_celsius time timeout_seconds to transport type unhealthy up \
    used utilization_percent vcpu_count vendor vendor_id version";

fn is_listed(field: &str) -> bool {
    FIELDS.split(' ').any(|listed| listed == field)
}

/// What secrets look like. The allowlist keeps them out; should a listed field contain one of these anyway, its text is redacted.
const SECRETS: [&str; 14] = [
    "gpt_",
    "gpj_",
    "gpk_",
    "gpc_",
    "gpd_",
    "gpr_",
    "gps_",
    "gpx_",
    "whsec_",
    "PRIVATE KEY",
    "ssh-",
    "ecdsa-sha2",
    "Bearer ",
    "eyJ",
];

/// Replaces a text that may contain a secret.
const REDACTED: &str = "[redacted]";

/// Returns the document with only the listed fields.
pub(super) fn document(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(name, _)| is_listed(name));
            Value::Object(kept.map(|(name, value)| (name, document(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(document).collect()),
        Value::String(text) => Value::String(text_of(text)),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

fn text_of(text: String) -> String {
    // A URL may contain a password in front of the host, or a key in its query.
    let has_secret = SECRETS.iter().any(|secret| text.contains(secret)) || text.contains("://");
    if has_secret { REDACTED.to_owned() } else { text }
}

/// Returns the lines of a metrics page that are about our own metrics.
pub(super) fn metrics(page: &str) -> String {
    let own = page.lines().filter(|line| line.trim_start_matches("# ").contains("gpuaas_"));
    own.map(|line| text_of(line.to_owned()) + "\n").collect()
}

/// Redacts one line of a server's log: keeps its time, level, origin, message and the listed fields.
pub(super) fn log_line(line: &str) -> String {
    if let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(line) {
        let values = fields.remove("fields").unwrap_or_default();
        let mut kept = serde_json::Map::new();
        for name in ["timestamp", "level", "target"] {
            kept.insert(name.to_owned(), fields.remove(name).unwrap_or_default());
        }
        kept.insert("fields".to_owned(), document(values));
        return Value::Object(kept).to_string();
    }
    // The format is `TIME LEVEL span{field=value}: target: message field=value field="some value"`.
    let (mut kept, mut rest) = (String::new(), line);
    while let Some(at) = rest.find('=') {
        let name_at = rest[..at].rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(0, |before| before + 1);
        let (name, value) = (&rest[name_at..at], &rest[at + 1..]);
        let end = match value.strip_prefix('"') {
            Some(quoted) => end_of_quoted(quoted).map_or(value.len(), |end| end + 2),
            None => value.find([' ', '}', ',']).unwrap_or(value.len()),
        };
        kept.push_str(&text_of(rest[..name_at].to_owned()));
        kept.push_str(name);
        kept.push('=');
        if is_listed(name) {
            kept.push_str(&text_of(value[..end].to_owned()));
        } else {
            kept.push_str(REDACTED);
        }
        rest = &value[end..];
    }
    kept.push_str(&text_of(rest.to_owned()));
    kept
}

/// Returns where the closing quote is. A quote after a backslash belongs to the value.
fn end_of_quoted(quoted: &str) -> Option<usize> {
    let mut escaped = false;
    quoted.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_is_sorted_and_names_nothing_that_people_or_guests_write() {
        assert!(FIELDS.split(' ').is_sorted_by(|one, other| one < other), "keep the list sorted");
        for private in [
            "token",
            "secret",
            "params",
            "output",
            "ssh_public_keys",
            "public_key",
            "note",
            "reason",
            "tags",
            "body",
            "data",
            "url",
        ] {
            assert!(!is_listed(private), "{private}");
        }
    }

    #[test]
    fn only_fields_of_the_list_are_kept() {
        let task = json!({
            "id": "task_1", "state": "failed", "code": "boom", "message": "cannot fetch https://u:hunter2@images/x",
            "params": { "ssh_public_keys": ["ssh-ed25519 AAAA"], "id": "x" }, "later_field": "s3cret", "phases": [{ "phase": "fetch", "note": "s3cret" }],
        });
        let kept = document(task);
        let expected =
            json!({ "id": "task_1", "state": "failed", "code": "boom", "message": REDACTED, "phases": [{ "phase": "fetch" }] });
        assert_eq!(kept, expected);
        assert_eq!(document(json!({ "message": "used gpt_abc" })), json!({ "message": REDACTED }));
    }

    #[test]
    fn log_lines_keep_their_message_and_the_fields_of_the_list() {
        let line = r#"2027-01-01T00:00:00Z  INFO request{id=req_1 token=s3cret}: gpuaas_control: started state=ready password="two words" code=7"#;
        let kept = log_line(line);
        assert!(kept.contains("gpuaas_control: started state=ready") && kept.contains("code=7"), "{kept}");
        assert!(!kept.contains("s3cret") && !kept.contains("two words"), "{kept}");
        let kept = log_line(r#"x: message password="a \"hunter2\" b \\" state=ready"#);
        assert!(!kept.contains("hunter2") && !kept.contains(" b ") && kept.contains("state=ready"), "{kept}");
        let line = r#"{"timestamp":"t","level":"INFO","target":"x","fields":{"message":"hello","token":"s3cret"},"span":{"key":"s3cret"}}"#;
        let kept = log_line(line);
        assert!(kept.contains("hello") && !kept.contains("s3cret"), "{kept}");
    }

    #[test]
    fn metrics_are_those_of_gpuaas() {
        let page = "# TYPE gpuaas_links gauge\ngpuaas_links{transport=\"stream\"} 2\nother_thing{password=\"x\"} 1\n# EOF\n";
        assert_eq!(metrics(page), "# TYPE gpuaas_links gauge\ngpuaas_links{transport=\"stream\"} 2\n");
    }
}
