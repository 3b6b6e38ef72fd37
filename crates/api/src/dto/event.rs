//! What happened, as CloudEvents.

use gpuaas_contract::event::{Event, EventKind};
use gpuaas_contract::id::EventId;
use gpuaas_contract::names::Open;
use gpuaas_contract::time::{Rfc3339, Timestamp};

/// One thing that happened, as a CloudEvents 1.0 document: what streams and webhooks carry.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct CloudEvent {
    /// `1.0`.
    pub specversion: String,
    /// Its id: the same event may come twice, with the same id.
    pub id: EventId,
    /// The installation it happened in.
    pub source: String,
    /// What happened, such as `gpuaas.allocation.active.v1`.
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub kind: Open<EventKind>,
    /// What it happened to.
    #[serde(default)]
    pub subject: String,
    /// When, as RFC 3339.
    pub time: String,
    /// `application/json`.
    #[serde(default)]
    pub datacontenttype: String,
    /// Follows the request that caused it.
    #[serde(default)]
    pub correlationid: String,
    /// What there is to know about it.
    #[serde(default)]
    pub data: serde_json::Value,
}

impl CloudEvent {
    /// The event with its data. `None` if it is of another version: of a kind that this one does not know, or with other data.
    pub fn event(&self) -> Option<Event> {
        Event::read(self.kind.known()?, self.data.clone()).ok()
    }
}

/// One thing that happened to an allocation, as a line of its history.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct EventRow {
    /// Its id.
    pub id: EventId,
    /// Where it stands among all events: later ones have higher positions.
    pub position: i64,
    /// What happened, such as `gpuaas.allocation.active.v1`.
    #[schemars(with = "String")]
    pub kind: Open<EventKind>,
    /// When.
    #[serde(with = "Rfc3339")]
    pub at: Timestamp,
    /// What there is to know about it.
    pub data: serde_json::Value,
}

/// Where a stream of events starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events after this position: the `id` of the last one that was seen. From now on unless given; 0 for everything that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// Only these kinds, such as `allocation.active`, or `allocation` for all of its kind; several with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<String>,
}
