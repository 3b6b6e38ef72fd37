//! Projects, which own allocations.

use gpuaas_contract::id::{OrgId, ProjectId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::ProjectState;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Limits;

/// A project, which owns allocations, keys, images and webhooks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Project {
    /// Id of the project.
    pub id: ProjectId,
    /// The organization that owns it.
    pub organization_id: OrgId,
    /// Name of the organization.
    pub organization_name: String,
    /// Name, unique within the organization.
    pub name: String,
    /// Description.
    pub description: String,
    /// State of the project.
    pub state: Open<ProjectState>,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Its history stays.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
    /// Entity tag of this version, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// Filter for a list of projects.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectListQuery {
    /// Only items of this organization, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Only projects with this name. Several organizations may have a project of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A project to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// Quota within the quota of the organization; no limit of its own by default.
    #[serde(default)]
    pub limits: Limits,
    /// Email address of the owner, who is invited. Owners of the organization own it in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_email: Option<String>,
}

/// Changes to a project. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectChange {
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
