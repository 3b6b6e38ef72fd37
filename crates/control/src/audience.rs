//! What each audience may see. Tenants see their own data; nodes and the work on them are visible only to operators of the
//! platform.
//!
//! Which fields of an event tenants see is declared with the event (`gpuaas_contract::event`); for tasks it is decided here. Fields
//! that are not listed for tenants are hidden from them, so that a new field is hidden until someone decides otherwise.
//! `http/allocations/view.rs` shows allocations with the same [`Audience`].

use gpuaas_api::dto;
use gpuaas_contract::event::EventKind;
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

/// The parameters of a task that tenants see. They only see tasks that read a console.
const TASK_PARAMS: [&str; 3] = ["allocation_id", "follow_seconds", "tail_bytes"];

/// The log streams of a task that tenants see: the output of the guest, not the agent's own messages.
const LOG_STREAMS: [&str; 1] = ["stdout"];

impl Audience {
    /// Returns the audience of a caller.
    pub(crate) fn of(principal: &Principal) -> Self {
        if principal.is_of_platform() { Self::Platform } else { Self::Tenant }
    }

    /// Returns whether the audience sees everything.
    pub(crate) fn is_platform(self) -> bool {
        self == Self::Platform
    }

    /// Returns the data of an event of this kind for the audience. Tenants see nothing of a kind that this version does not know.
    pub(crate) fn event_data(self, kind: &str, mut data: Value) -> Value {
        match self {
            Self::Platform => data,
            Self::Tenant => {
                keep(&mut data, &EventKind::parse(kind).map(EventKind::tenant_fields).unwrap_or_default());
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
                let data = event.get_mut("data")?.take();
                event["data"] = self.event_data(event.get("type")?.as_str()?, data);
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
        let kind = EventKind::AllocationActive.as_str();
        let data = json!({ "allocation_id": "a", "node_id": "n", "task_id": "t", "hostname": "h", "detail": { "node": "n" } });
        assert_eq!(Audience::Platform.event_data(kind, data.clone()), data);
        assert_eq!(Audience::Tenant.event_data(kind, data.clone()), json!({ "allocation_id": "a" }));
        assert_eq!(Audience::Tenant.event_data("gpuaas.slot.leased.v1", data.clone()), json!({}), "declared with each kind");
        assert_eq!(Audience::Tenant.event_data("gpuaas.allocation.hibernated.v1", data.clone()), json!({}), "of another version");
        let event = json!({ "id": "1", "type": kind, "data": data }).to_string();
        let seen: Value = serde_json::from_str(&Audience::Tenant.event(event).expect("an event")).expect("JSON");
        assert_eq!(seen, json!({ "id": "1", "type": kind, "data": { "allocation_id": "a" } }));
        assert_eq!(Audience::Tenant.event("no JSON".to_owned()), None, "what cannot be read is not shown");
    }
}
