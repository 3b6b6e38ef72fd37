//! Organizations, which own projects.

use gpuaas_contract::id::OrgId;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

use super::Limits;

/// A company, a university, a team.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Organization {
    /// Its id.
    pub id: OrgId,
    /// What people type; no other organization has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// When it was made.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// Which organizations to list, of those the caller can see.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationListQuery {
    /// Only the one with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An organization to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// How much it may have at once; no limit unless given.
    #[serde(default)]
    pub limits: Limits,
    /// Who owns it. They are invited by this address and may come later; without it an administrator adds the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_email: Option<String>,
}

/// What to change of an organization; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrganizationChange {
    /// Other words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
