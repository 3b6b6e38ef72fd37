//! Webhooks: addresses that are told what happens in a project.

use gpuaas_contract::id::{DeliveryId, EventId, ProjectId, WebhookId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::DeliveryState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// An address that is told, without the secret that signs what it is told.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Whose events it is told.
    pub project_id: ProjectId,
    /// Where it is.
    pub url: String,
    /// In words.
    pub description: String,
    /// Kinds of events it is told, such as `allocation.active`, or `allocation` for all of its kind; empty for all.
    pub kinds: Vec<String>,
    /// Whether it is told anything.
    pub enabled: bool,
    /// Why it is off; null while it is on.
    #[serde(default)]
    pub disabled_reason: Option<String>,
    /// Deliveries that failed in a row.
    pub failed: u32,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A webhook to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookCreate {
    /// Where it is; starts with `https://`.
    pub url: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// Kinds of events it is told, such as `allocation.active`, or `allocation` for all of its kind; all unless given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}

/// A new webhook. The only answer that holds its first secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WebhookCreated {
    /// The webhook as it is kept.
    pub webhook: Webhook,
    /// What signs its deliveries. Shown once.
    pub secret: String,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for WebhookCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookCreated").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// What to change of a webhook; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookChange {
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Other kinds of events, instead of all it has; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Turn it off, or on again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Make another secret. For 24 hours deliveries are signed with both, so that receivers can change over.
    #[serde(default)]
    pub rotate_secret: bool,
}

/// A changed webhook.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WebhookChanged {
    /// The webhook as it is kept.
    pub webhook: Webhook,
    /// The new secret, if one was asked for. Shown once.
    #[serde(default)]
    pub secret: Option<String>,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for WebhookChanged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookChanged").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// One event on its way to one webhook.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Where it goes.
    pub webhook_id: WebhookId,
    /// The event.
    pub event_id: EventId,
    /// What happened, such as `gpuaas.allocation.active.v1`.
    pub kind: String,
    /// Where it stands.
    pub state: Open<DeliveryState>,
    /// How often it was tried.
    pub attempts: u32,
    /// What came of the last try; empty before.
    pub last: String,
    /// When it is tried next.
    #[serde(default, with = "OptionalRfc3339")]
    pub due_at: Option<Timestamp>,
    /// When the event was to be told.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When the address took it.
    #[serde(default, with = "OptionalRfc3339")]
    pub delivered_at: Option<Timestamp>,
    /// Until when it can be looked at and replayed.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
}

/// Which deliveries of a webhook to list; newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeliveryListQuery {
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<DeliveryState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
