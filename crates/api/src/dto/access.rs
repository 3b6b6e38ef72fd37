//! API tokens and signing keys.

use gpuaas_contract::access::PlatformRole;
use gpuaas_contract::id::{ApiTokenId, ProjectId, ServiceAccountId};
use gpuaas_contract::key::{KeyId, VerifyingKey};
use gpuaas_contract::names::Open;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};
use gpuaas_contract::verifier_set::KeyState;

/// A token for this interface, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiToken {
    /// Its id.
    pub id: ApiTokenId,
    /// What people call it.
    pub name: String,
    /// Its own role on the platform: `admin` (everything), `operator` (runs the platform) or `support` (reads everything, changes nothing).
    /// Null for a key of a service account, which has the roles of the account.
    #[serde(default)]
    pub role: Option<Open<PlatformRole>>,
    /// The project, if it is a key of a service account.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// The service account, if it is a key of one.
    #[serde(default)]
    pub service_account: Option<ServiceAccountId>,
    /// The token or key it was made with, if it was not made by a person. It counts only as long as that one does.
    #[serde(default)]
    pub parent_id: Option<ApiTokenId>,
    /// What it is limited to, such as `allocation.*` or `*.read`; null for no such limit.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it stops to count by itself.
    #[serde(default, with = "OptionalRfc3339")]
    pub expires_at: Option<Timestamp>,
    /// When it stopped to count.
    #[serde(default, with = "OptionalRfc3339")]
    pub revoked_at: Option<Timestamp>,
}

/// An API token to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiTokenCreate {
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: PlatformRole,
    /// How long it is good for; until it is revoked unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
}

/// A new API token. The only answer that ever holds its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiTokenCreated {
    /// The token as it is kept.
    pub api_token: ApiToken,
    /// What to put into the `Authorization: Bearer` header. Shown once.
    pub token: String,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for ApiTokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiTokenCreated").field("api_token", &self.api_token).finish_non_exhaustive()
    }
}

/// A key that signs, or signed, tasks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SigningKey {
    /// Its name.
    #[schemars(with = "String")]
    pub key_id: KeyId,
    /// Where it is in its life.
    pub state: Open<KeyState>,
    /// Public half.
    #[schemars(with = "String")]
    pub public_key: VerifyingKey,
}
