//! API tokens and signing keys.

use gpuaas_contract::access::PlatformRole;
use gpuaas_contract::id::{ApiTokenId, ProjectId, ServiceAccountId};
use gpuaas_contract::key::{KeyId, VerifyingKey};
use gpuaas_contract::names::Open;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};
use gpuaas_contract::verifier_set::KeyState;

/// An API token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiToken {
    /// Id of the token.
    pub id: ApiTokenId,
    /// Display name.
    pub name: String,
    /// Its own role on the platform: `admin` (everything), `operator` (runs the platform), `support` (reads everything, changes nothing)
    /// or `auditor` (reads the audit log and the state of the platform).
    /// Null for a key of a service account, which has the roles of the account.
    #[serde(default)]
    pub role: Option<Open<PlatformRole>>,
    /// The project, if it is a key of a service account.
    #[serde(default)]
    pub project: Option<ProjectId>,
    /// The service account, if it is a key of one.
    #[serde(default)]
    pub service_account: Option<ServiceAccountId>,
    /// The token or key that created it, if no person did. It is valid only as long as its parent.
    #[serde(default)]
    pub parent_id: Option<ApiTokenId>,
    /// Who created it, as the audit log names them. A key is revoked when the person who created it is deleted.
    #[serde(default)]
    pub created_by: Option<String>,
    /// Scopes that limit it, such as `allocation.*` or `*.read`; null if it is not limited.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
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

/// An API token to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiTokenCreate {
    /// Display name.
    pub name: String,
    /// Role on the platform.
    pub role: PlatformRole,
    /// Lifetime in seconds; without it, valid until revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_seconds: Option<u64>,
}

/// A new API token. The only response with its secret.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiTokenCreated {
    /// The token, without its secret.
    pub api_token: ApiToken,
    /// The secret for the `Authorization: Bearer` header. Shown once.
    pub token: String,
}

/// Omits the secret.
impl std::fmt::Debug for ApiTokenCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiTokenCreated").field("api_token", &self.api_token).finish_non_exhaustive()
    }
}

/// A current or former key that signs tasks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SigningKey {
    /// Id of the key.
    #[schemars(with = "String")]
    pub key_id: KeyId,
    /// State of the key.
    pub state: Open<KeyState>,
    /// Public key.
    #[schemars(with = "String")]
    pub public_key: VerifyingKey,
}
