//! SSH keys of a project, by name.

use gpuaas_contract::id::{ProjectId, SshKeyId};
use gpuaas_contract::slice::SshPublicKey;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// An SSH key of a project.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SshKey {
    /// Id of the SSH key.
    pub id: SshKeyId,
    /// The project it belongs to.
    pub project_id: ProjectId,
    /// Name, unique within the project.
    pub name: String,
    /// The key, as a line of `authorized_keys`.
    pub public_key: String,
    /// Who added it.
    pub created_by: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Existing allocations keep it.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

/// An SSH key to add.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SshKeyCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// The key, as a line of `authorized_keys`.
    pub public_key: SshPublicKey,
}
