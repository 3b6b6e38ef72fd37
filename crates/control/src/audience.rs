//! What each audience may see. Tenants see their own data; nodes and the work on them are visible only to operators of the
//! platform.
//!
//! This is the only place that decides this for events and tasks. Fields that are not listed here are hidden from tenants, so
//! that a new field is hidden until someone decides otherwise. `http/allocation_view.rs` shows allocations with the same
//! [`Audience`].

use gpuaas_api::dto;
use gpuaas_contract::id::NodeId;
use gpuaas_domain::access::Principal;
use serde_json::Value;

/// The audience of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Operators of the platform.
    Platform,
    /// A tenant.
    Tenant,
}

/// The fields of the `data` of events that tenants see. None of them names a node, a task or what happened inside one.
const EVENT_FIELDS: [&str; 43] = [
    "action",
    "after",
    "again_at",
    "allocation_id",
    "api_token_id",
    "attempt",
    "code",
    "deleted",
    "delivery_id",
    "description",
    "disabled",
    "ends_at",
    "event_id",
    "expires_at",
    "failed",
    "from",
    "image_id",
    "kinds",
    "limits",
    "maintenance_id",
    "name",
    "organization_id",
    "parent_id",
    "price_per_hour",
    "project_id",
    "reason",
    "releases",
    "scopes",
    "secret_rotated",
    "service_account_id",
    "sha256",
    "sku",
    "ssh_key_id",
    "starts_at",
    "step",
    "summary",
    "tags",
    "to",
    "try",
    "until",
    "url",
    "used",
    "webhook_id",
];

/// The parameters of a task that tenants see. They only see tasks that read a console.
const TASK_PARAMS: [&str; 3] = ["allocation_id", "follow_seconds", "tail_bytes"];

/// The log streams of a task that tenants see: the output of the guest, not the agent's own messages.
const LOG_STREAMS: [&str; 1] = ["stdout"];

impl Audience {
    /// Returns the audience of a caller.
    pub(crate) fn of(principal: &Principal) -> Self {
        if principal.platform.is_some() { Self::Platform } else { Self::Tenant }
    }

    /// Returns whether the audience sees everything.
    pub(crate) fn is_platform(self) -> bool {
        self == Self::Platform
    }

    /// Returns the data of an event for the audience.
    pub(crate) fn event_data(self, mut data: Value) -> Value {
        match self {
            Self::Platform => data,
            Self::Tenant => {
                keep(&mut data, &EVENT_FIELDS);
                data
            }
        }
    }

    /// Returns a whole event for the audience, or `None` if it cannot be parsed.
    pub(crate) fn event(self, document: String) -> Option<String> {
        match self {
            Self::Platform => Some(document),
            Self::Tenant => {
                let mut event: Value = serde_json::from_str(&document).ok()?;
                let data = event.get_mut("data")?;
                keep(data, &EVENT_FIELDS);
                serde_json::to_string(&event).ok()
            }
        }
    }

    /// Returns a task for the audience.
    pub(crate) fn task(self, task: dto::Task) -> dto::Task {
        match self {
            Self::Platform => task,
            Self::Tenant => {
                let mut params = task.params;
                keep(&mut params, &TASK_PARAMS);
                let message = match (task.ended_at, task.state.as_str()) {
                    (None, _) | (_, "succeeded") => String::new(),
                    (Some(_), state) => format!("the task ended as {state} ({})", task.code),
                };
                dto::Task {
                    node_id: NodeId::from_bytes([0; 16]),
                    node_name: String::new(),
                    node_epoch: 0,
                    params,
                    dispatches: 0,
                    lease_until: None,
                    message,
                    receipt_digest: None,
                    progress: task.progress.map(|progress| self.progress(progress)),
                    phases: Vec::new(),
                    ..task
                }
            }
        }
    }

    /// Returns the progress of a task for the audience: the phase, but not the host's message.
    pub(crate) fn progress(self, progress: dto::TaskProgress) -> dto::TaskProgress {
        match self {
            Self::Platform => progress,
            Self::Tenant => dto::TaskProgress { message: String::new(), ..progress },
        }
    }

    /// Returns whether the audience sees lines of this log stream of a task.
    pub(crate) fn sees_stream(self, stream: &str) -> bool {
        match self {
            Self::Platform => true,
            Self::Tenant => LOG_STREAMS.contains(&stream),
        }
    }
}

fn keep(document: &mut Value, fields: &[&str]) {
    match document {
        Value::Object(map) => map.retain(|name, _| fields.contains(&name.as_str())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => *document = Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tenants_see_only_what_is_named_and_those_who_run_the_platform_see_all() {
        let data = json!({ "allocation_id": "a", "node_id": "n", "task_id": "t", "hostname": "h", "detail": { "node": "n" } });
        assert_eq!(Audience::Platform.event_data(data.clone()), data);
        assert_eq!(Audience::Tenant.event_data(data.clone()), json!({ "allocation_id": "a" }));
        let event = json!({ "id": "1", "type": "x", "data": data }).to_string();
        let seen: Value = serde_json::from_str(&Audience::Tenant.event(event).expect("an event")).expect("JSON");
        assert_eq!(seen, json!({ "id": "1", "type": "x", "data": { "allocation_id": "a" } }));
        assert_eq!(Audience::Tenant.event("no JSON".to_owned()), None, "what cannot be read is not shown");
        assert!(EVENT_FIELDS.is_sorted() && !EVENT_FIELDS.iter().any(|field| field.contains("node") || field.contains("task")));
    }
}
