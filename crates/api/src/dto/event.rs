//! Events, in the format of CloudEvents.

use gpuaas_contract::event::{Event, EventKind};
use gpuaas_contract::id::EventId;
use gpuaas_contract::names::Open;
use gpuaas_contract::time::{Rfc3339, Timestamp};

/// An event as a CloudEvents 1.0 document, as streams and webhooks carry it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CloudEvent {
    /// `1.0`.
    pub specversion: String,
    /// Id of the event. The same event may arrive twice, with the same id.
    pub id: EventId,
    /// The installation in which it happened.
    pub source: String,
    /// Type of the event, such as `gpuaas.allocation.active.v1`.
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub kind: Open<EventKind>,
    /// Id of the object of the event.
    #[serde(default)]
    pub subject: String,
    /// Time of the event, as RFC 3339.
    pub time: String,
    /// `application/json`.
    #[serde(default)]
    pub datacontenttype: String,
    /// Correlation id of the request that caused it.
    #[serde(default)]
    pub correlationid: String,
    /// Position among all events, as a decimal number. Only on WebSockets; other streams carry it as the id of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// Data of the event.
    #[serde(default)]
    pub data: serde_json::Value,
}

impl CloudEvent {
    /// The typed event. `None` if another version of gpuaas sent it, with a kind or data that this version does not know.
    pub fn event(&self) -> Option<Event> {
        Event::read(self.kind.known()?, self.data.clone()).ok()
    }
}

/// An event of an allocation.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct EventRow {
    /// Id of the event.
    pub id: EventId,
    /// Position among all events; later events have higher positions.
    pub position: i64,
    /// Type of the event, such as `gpuaas.allocation.active.v1`.
    #[schemars(with = "String")]
    pub kind: Open<EventKind>,
    /// When it happened.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// Data of the event.
    pub data: serde_json::Value,
}

/// Start and filter of a stream of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events after this position, which is the `id` of the last event seen. By default the stream starts now; 0 starts with the oldest
    /// event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// Only these types, such as `allocation.active`, or `allocation` for all types of allocations; separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
}
