//! Service accounts, the programs that act for a project, and their API keys.

use gpuaas_contract::access::ProjectRole;
use gpuaas_contract::id::{ApiTokenId, ProjectId, ServiceAccountId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::ApiKeyState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A service account: a program that acts for a project. Its memberships decide its permissions.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ServiceAccount {
    /// Id of the service account.
    pub id: ServiceAccountId,
    /// The project it acts for.
    pub project_id: ProjectId,
    /// Name, unique within the project.
    pub name: String,
    /// Description.
    pub description: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Its keys are no longer valid.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

/// A service account to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceAccountCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// Its role in the project. Without it, it has no permissions until it is added as a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<ProjectRole>,
}

/// A key of a service account, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiKey {
    /// Id of the key.
    pub id: ApiTokenId,
    /// The service account that owns it.
    pub service_account_id: ServiceAccountId,
    /// The project that the service account acts for.
    pub project_id: ProjectId,
    /// Display name.
    pub name: String,
    /// The key that created it, if no person did. It is valid only as long as its parent.
    #[serde(default)]
    pub parent_id: Option<ApiTokenId>,
    /// Who created it, as the audit log names them. A key is revoked when the person who created it is deleted.
    #[serde(default)]
    pub created_by: Option<String>,
    /// Scopes that limit it, such as `allocation.*` or `*.read`; null for all permissions of the account.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// State: whether it is valid.
    pub state: Open<ApiKeyState>,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it expires.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, with = "OptionalRfc3339")]
    pub revoked_at: Option<Timestamp>,
}

/// A key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyCreate {
    /// Display name.
    pub name: String,
    /// Scopes: `*`, `*.read`, a group such as `allocation.*`, or an action such as `allocation.create`. Without it, the key
    /// has all permissions of its service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// Lifetime in seconds; without it, valid until revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
}

/// A new key. The only response with its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiKeyCreated {
    /// The key, without its secret.
    pub key: ApiKey,
    /// The secret for the `Authorization: Bearer` header. Shown once.
    pub secret: String,
}

/// Omits the secret.
impl std::fmt::Debug for ApiKeyCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeyCreated").field("key", &self.key).finish_non_exhaustive()
    }
}
