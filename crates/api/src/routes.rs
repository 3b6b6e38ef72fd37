//! Every path of the REST interface, in the syntax of the server's router. All but [`HEALTHZ`] and [`READYZ`] need
//! `Authorization: Bearer <token>`.

/// `GET` → [`crate::dto::ClusterInfo`].
pub const CLUSTER: &str = "/api/v1/cluster";

/// `GET` [`crate::dto::NodeListQuery`] → page of [`crate::dto::Node`].
pub const NODES: &str = "/api/v1/nodes";
/// `GET` → [`crate::dto::Node`]; the segment is an id or a unique name, here and in the operations below.
pub const NODE: &str = "/api/v1/nodes/{node}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: maintenance on.
pub const NODE_DRAIN: &str = "/api/v1/nodes/{node}/drain";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: maintenance off.
pub const NODE_UNDRAIN: &str = "/api/v1/nodes/{node}/undrain";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: hold back.
pub const NODE_QUARANTINE: &str = "/api/v1/nodes/{node}/quarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: let go again.
pub const NODE_UNQUARANTINE: &str = "/api/v1/nodes/{node}/unquarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Node`]: end.
pub const NODE_RETIRE: &str = "/api/v1/nodes/{node}/retire";

/// `GET` → [`crate::dto::Topology`]: what the node found on itself last, and its slots.
pub const NODE_TOPOLOGY: &str = "/api/v1/nodes/{node}/topology";
/// `POST` [`crate::dto::TopologyApprove`] → page of [`crate::dto::Slot`], always whole: the approved slots.
pub const NODE_TOPOLOGY_APPROVE: &str = "/api/v1/nodes/{node}/topology/approve";

/// `GET` [`crate::dto::SlotListQuery`] → page of [`crate::dto::Slot`].
pub const SLOTS: &str = "/api/v1/slots";
/// `GET` → [`crate::dto::Slot`].
pub const SLOT: &str = "/api/v1/slots/{slot}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: hold it back; the rest of the node goes on.
pub const SLOT_QUARANTINE: &str = "/api/v1/slots/{slot}/quarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: let it go again.
pub const SLOT_UNQUARANTINE: &str = "/api/v1/slots/{slot}/unquarantine";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Slot`]: no longer a slot, until it is approved again.
pub const SLOT_WITHDRAW: &str = "/api/v1/slots/{slot}/withdraw";

/// `POST` [`crate::dto::Reason`] → 201 [`crate::dto::SliceOrder`]: clean up what is left of a slice on it and on the slots that belong to
/// it, whoever the host thinks has them. Frees nothing without a complete proof.
pub const SLOT_FORCE_CLEANUP: &str = "/api/v1/slots/{slot}/force-cleanup";

/// `GET` [`crate::dto::SliceListQuery`] → page of [`crate::dto::Slice`]; `POST` [`crate::dto::SliceCreate`] → 201
/// [`crate::dto::SliceOrder`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already).
pub const SLICES: &str = "/api/v1/slices";
/// `GET` → [`crate::dto::Slice`], also of one that was released.
pub const SLICE: &str = "/api/v1/slices/{slice}";
/// `POST` [`crate::dto::SliceRelease`] → 201 [`crate::dto::SliceOrder`]: end the guest, clean up, give the slots back.
pub const SLICE_RELEASE: &str = "/api/v1/slices/{slice}/release";
/// `POST` [`crate::dto::SlicePower`] → 201 [`crate::dto::SliceOrder`]: stop, start or reboot the guest.
pub const SLICE_POWER: &str = "/api/v1/slices/{slice}/power";
/// `POST` [`crate::dto::SliceConsole`] → 201 [`crate::dto::SliceOrder`]: read the guest's serial console into the task's log.
pub const SLICE_CONSOLE: &str = "/api/v1/slices/{slice}/console";

/// `GET` [`crate::dto::EnrolmentListQuery`] → page of [`crate::dto::Enrolment`].
pub const ENROLMENTS: &str = "/api/v1/enrolments";
/// `GET` → [`crate::dto::Enrolment`].
pub const ENROLMENT: &str = "/api/v1/enrolments/{enrolment}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Enrolment`].
pub const ENROLMENT_APPROVE: &str = "/api/v1/enrolments/{enrolment}/approve";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Enrolment`].
pub const ENROLMENT_REJECT: &str = "/api/v1/enrolments/{enrolment}/reject";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::JoinToken`]; `POST` [`crate::dto::JoinTokenCreate`] → 201
/// [`crate::dto::JoinTokenCreated`].
pub const JOIN_TOKENS: &str = "/api/v1/join-tokens";
/// `DELETE` → [`crate::dto::JoinToken`], revoked.
pub const JOIN_TOKEN: &str = "/api/v1/join-tokens/{token}";

/// `GET` [`crate::dto::TaskListQuery`] → page of [`crate::dto::Task`]; `POST` [`crate::dto::TaskCreate`] → 201
/// [`crate::dto::Task`] (200 if [`IDEMPOTENCY_KEY_HEADER`] found it made already).
pub const TASKS: &str = "/api/v1/tasks";
/// `GET` → [`crate::dto::Task`].
pub const TASK: &str = "/api/v1/tasks/{task}";
/// `POST` [`crate::dto::Reason`] → [`crate::dto::Task`].
pub const TASK_CANCEL: &str = "/api/v1/tasks/{task}/cancel";
/// `GET` [`crate::dto::TaskLogsQuery`] → [`crate::dto::TaskLogs`].
pub const TASK_LOGS: &str = "/api/v1/tasks/{task}/logs";
/// `GET` → `text/event-stream`: [`EVENT_TASK`] at once and on every change, [`EVENT_PROGRESS`] in between, a comment at
/// least every 15 s; ends after the [`EVENT_TASK`] of a task that has ended.
pub const TASK_WATCH: &str = "/api/v1/tasks/{task}/watch";
/// `GET` → [`crate::dto::TaskEvidence`].
pub const TASK_EVIDENCE: &str = "/api/v1/tasks/{task}/evidence";
/// `GET` → page of [`crate::dto::TaskTypeInfo`], always whole.
pub const TASK_TYPES: &str = "/api/v1/task-types";

/// `GET` [`crate::dto::AuditQuery`] → page of [`crate::dto::AuditRow`].
pub const AUDIT: &str = "/api/v1/audit";
/// `GET` → `application/x-ndjson`, one [`crate::dto::AuditRow`] per line, the whole chain.
pub const AUDIT_EXPORT: &str = "/api/v1/audit/export";

/// `GET` → page of [`crate::dto::SigningKey`], always whole.
pub const SIGNING_KEYS: &str = "/api/v1/signing-keys";
/// `POST` (empty body) → page of [`crate::dto::SigningKey`]: the next key is made and published, not believed yet.
pub const SIGNING_KEYS_STAGE: &str = "/api/v1/signing-keys/stage";
/// `POST` (empty body) → page of [`crate::dto::SigningKey`]: the staged or a new key signs, the old one goes into grace.
pub const SIGNING_KEYS_ROTATE: &str = "/api/v1/signing-keys/rotate";
/// `POST` [`crate::dto::Reason`] → page of [`crate::dto::SigningKey`]: the key is never believed again.
pub const SIGNING_KEY_REVOKE: &str = "/api/v1/signing-keys/{key}/revoke";

/// `GET` [`crate::dto::PageQuery`] → page of [`crate::dto::ApiToken`]; `POST` [`crate::dto::ApiTokenCreate`] → 201
/// [`crate::dto::ApiTokenCreated`].
pub const API_TOKENS: &str = "/api/v1/api-tokens";
/// `DELETE` → [`crate::dto::ApiToken`], revoked.
pub const API_TOKEN: &str = "/api/v1/api-tokens/{token}";

/// `GET`: the process is alive. Needs no token.
pub const HEALTHZ: &str = "/healthz";
/// `GET`: the process can serve. Needs no token.
pub const READYZ: &str = "/readyz";
/// `GET` → Prometheus text.
pub const METRICS: &str = "/metrics";

/// Header of `POST` [`TASKS`] and of every `POST` that makes a task of a slice: the same key with the same body makes one task; with
/// another body it is a conflict.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Header both ways: follows a request into every log line.
pub const CORRELATION_ID_HEADER: &str = "x-correlation-id";
/// Name of the event that carries a [`crate::dto::Task`].
pub const EVENT_TASK: &str = "task";
/// Name of the event that carries a [`crate::dto::TaskProgress`].
pub const EVENT_PROGRESS: &str = "progress";

/// A path with its `{…}` segments filled in, percent-encoded; `None` if a value cannot be a segment or is one too few.
pub fn fill(route: &str, values: &[&str]) -> Option<String> {
    let mut values = values.iter();
    let mut path = String::with_capacity(route.len() + 40);
    for segment in route.split('/').skip(1) {
        path.push('/');
        if segment.starts_with('{') {
            let value = values.next()?;
            // A dot segment would be resolved away and name another resource.
            if value.is_empty() || *value == "." || *value == ".." {
                return None;
            }
            encode_segment(value, &mut path);
        } else {
            path.push_str(segment);
        }
    }
    values.next().is_none().then_some(path)
}

fn encode_segment(value: &str, path: &mut String) {
    use std::fmt::Write as _;
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_segment() {
        assert_eq!(fill(NODE_DRAIN, &["rack 1/7"]).as_deref(), Some("/api/v1/nodes/rack%201%2F7/drain"));
        assert_eq!(fill(NODE, &["a?b#c%"]).as_deref(), Some("/api/v1/nodes/a%3Fb%23c%25"));
        for bad in ["", ".", ".."] {
            assert_eq!(fill(NODE, &[bad]), None);
        }
    }

    #[test]
    fn the_number_of_values_must_fit() {
        assert_eq!(fill(NODES, &[]).as_deref(), Some(NODES));
        assert_eq!(fill(NODE, &[]), None);
        assert_eq!(fill(NODES, &["x"]), None);
    }
}
