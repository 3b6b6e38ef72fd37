//! API tokens and signing keys.

use gpuaas_contract::id::ApiTokenId;
use gpuaas_contract::key::{KeyId, VerifyingKey};
use gpuaas_contract::time::Timestamp;

/// A token for this interface, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct ApiToken {
    /// Its id.
    pub id: ApiTokenId,
    /// What people call it.
    pub name: String,
    /// `admin` (everything) or `viewer` (reads everything, changes nothing).
    pub role: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stopped to count.
    #[serde(default)]
    pub revoked_at: Option<Timestamp>,
}

/// An API token to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiTokenCreate {
    /// What people call it.
    pub name: String,
    /// `admin` or `viewer`.
    pub role: String,
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
    /// `staged`, `active`, `grace`, `retired` or `revoked`.
    pub state: String,
    /// Public half.
    #[schemars(with = "String")]
    pub public_key: VerifyingKey,
}
