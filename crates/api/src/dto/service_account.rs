//! Service accounts, the programs that act for a project, and their API keys.

use gpuaas_contract::access::ProjectRole;
use gpuaas_contract::id::{ApiTokenId, ProjectId, ServiceAccountId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::ApiKeyState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A program that acts for a project. What it may is decided by its memberships.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ServiceAccount {
    /// Its id.
    pub id: ServiceAccountId,
    /// The project it acts for.
    pub project_id: ProjectId,
    /// What people type; no other of the project has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted; its keys no longer count from then on.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

/// A service account to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceAccountCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// A role in its project that it gets at once. Without it, it can do nothing until it is made a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<ProjectRole>,
}

/// A key of a service account, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiKey {
    /// Its id.
    pub id: ApiTokenId,
    /// Whose it is.
    pub service_account_id: ServiceAccountId,
    /// The project that account acts for.
    pub project_id: ProjectId,
    /// What people call it.
    pub name: String,
    /// The key it was made with, if it was not made by a person. It counts only as long as that one does.
    #[serde(default)]
    pub parent_id: Option<ApiTokenId>,
    /// What it is limited to, such as `allocation.*` or `*.read`; null for no limit but what the account may.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// Whether it counts.
    pub state: Open<ApiKeyState>,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it stops to count by itself.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// When it was taken back.
    #[serde(default, with = "OptionalRfc3339")]
    pub revoked_at: Option<Timestamp>,
}

/// A key to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyCreate {
    /// What people call it.
    pub name: String,
    /// What it is limited to: `*`, `*.read`, a group such as `allocation.*`, or an action such as `allocation.create`. Without it, the key
    /// may what its service account may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// How long it is good for; until it is revoked unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
}

/// A new key. The only answer that ever holds its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiKeyCreated {
    /// The key as it is kept.
    pub key: ApiKey,
    /// What to put into the `Authorization: Bearer` header. Shown once.
    pub secret: String,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for ApiKeyCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeyCreated").field("key", &self.key).finish_non_exhaustive()
    }
}
