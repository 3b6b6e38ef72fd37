//! Webhooks: URLs that receive the events of a project.

use gpuaas_contract::id::{DeliveryId, EventId, ProjectId, WebhookId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::DeliveryState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A webhook, which receives events of a project, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Webhook {
    /// Id of the webhook.
    pub id: WebhookId,
    /// The project whose events it receives.
    pub project_id: ProjectId,
    /// URL.
    pub url: String,
    /// Description.
    pub description: String,
    /// Event types it receives, such as `allocation.active`, or `allocation` for all types of allocations; empty for all.
    pub kinds: Vec<String>,
    /// Whether it receives events.
    pub enabled: bool,
    /// Why it is disabled; null while it is enabled.
    #[serde(default)]
    pub disabled_reason: Option<String>,
    /// Number of consecutive failed deliveries.
    pub failed: u32,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
    /// Entity tag of this version, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A webhook to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookCreate {
    /// URL, which starts with `https://`.
    pub url: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// Event types it receives, such as `allocation.active`, or `allocation` for all types of allocations; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}

/// A new webhook. The only response with its first secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WebhookCreated {
    /// The webhook.
    pub webhook: Webhook,
    /// Secret that signs the deliveries. Shown once.
    pub secret: String,
}

/// Omits the secret.
impl std::fmt::Debug for WebhookCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookCreated").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// Changes to a webhook. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookChange {
    /// URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// New event types, which replace the existing ones; empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Enables or disables the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Replaces the secret. For 24 hours deliveries are signed with both secrets.
    #[serde(default)]
    pub rotate_secret: bool,
}

/// An updated webhook.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WebhookChanged {
    /// The webhook.
    pub webhook: Webhook,
    /// The new secret, if one was requested. Shown once.
    #[serde(default)]
    pub secret: Option<String>,
}

/// Omits the secret.
impl std::fmt::Debug for WebhookChanged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookChanged").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// A test of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WebhookTest {
    /// Id of the webhook.
    pub webhook_id: WebhookId,
    /// Id of the event that is sent to it. The deliveries of the webhook show the result.
    pub event_id: EventId,
}

/// A delivery of an event to a webhook.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Delivery {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// The webhook that receives it.
    pub webhook_id: WebhookId,
    /// Id of the event.
    pub event_id: EventId,
    /// Type of the event, such as `gpuaas.allocation.active.v1`.
    pub kind: String,
    /// State of the delivery.
    pub state: Open<DeliveryState>,
    /// Number of attempts.
    pub attempts: u32,
    /// Result of the last attempt; empty before.
    pub last: String,
    /// When it is attempted next.
    #[serde(default, with = "OptionalRfc3339")]
    pub due_at: Option<Timestamp>,
    /// When the delivery was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was delivered.
    #[serde(default, with = "OptionalRfc3339")]
    pub delivered_at: Option<Timestamp>,
    /// When it is deleted and can no longer be replayed.
    #[serde(with = "Rfc3339")]
    pub expires_at: Timestamp,
}

/// Filter for a list of deliveries, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeliveryListQuery {
    /// Only items in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<DeliveryState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
