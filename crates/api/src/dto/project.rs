//! Projects, which own everything that is leased.

use gpuaas_contract::id::{OrgId, ProjectId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::ProjectState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Limits;

/// What owns allocations, keys, images and webhooks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Project {
    /// Its id.
    pub id: ProjectId,
    /// Whose it is.
    pub organization_id: OrgId,
    /// That organization's name.
    pub organization_name: String,
    /// What people type; no other project of the organization has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// Whether it is there.
    pub state: Open<ProjectState>,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Its history stays.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// Which projects to list, of those the caller can see.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectListQuery {
    /// Only those of this organization, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Only those with this name; several organizations may have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A project to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// How much it may have at once, inside what its organization may have; no limit of its own unless given.
    #[serde(default)]
    pub limits: Limits,
    /// Who owns it. They are invited by this address and may come later; owners of the organization own it in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_email: Option<String>,
}

/// What to change of a project; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectChange {
    /// Other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
