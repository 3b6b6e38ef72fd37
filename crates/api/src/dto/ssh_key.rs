//! SSH keys of a project, by name.

use gpuaas_contract::id::{ProjectId, SshKeyId};
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A stored key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SshKey {
    /// Its id.
    pub id: SshKeyId,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// What people type; no other key of the project has it.
    pub name: String,
    /// The key, as a line of `authorized_keys`.
    pub public_key: String,
    /// Who added it.
    pub created_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Allocations that have it keep it.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

/// A key to store.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SshKeyCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// The key, as a line of `authorized_keys`.
    pub public_key: SshPublicKey,
}
