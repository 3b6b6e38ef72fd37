//! Organizations, which own projects.

use gpuaas_contract::id::OrgId;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Limits;

/// An organization, which owns projects.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Organization {
    /// Id of the organization.
    pub id: OrgId,
    /// Name, unique among organizations.
    pub name: String,
    /// Description.
    pub description: String,
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

/// Filter for a list of organizations.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationListQuery {
    /// Only the organization with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An organization to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// Quota; no limit by default.
    #[serde(default)]
    pub limits: Limits,
    /// Email address of the owner, who is invited. Without it, an administrator adds the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_email: Option<String>,
}

/// Changes to an organization. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationChange {
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
