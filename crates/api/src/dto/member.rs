//! Members: the roles of users and service accounts on the platform, in an organization or in a project.

use gpuaas_contract::access::MemberRole;
use gpuaas_contract::id::{MembershipId, ServiceAccountId, UserId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{MemberKind, MemberState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// A role of a user or service account on the platform, in an organization or in a project.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Member {
    /// Id of the membership.
    pub id: MembershipId,
    /// Kind of member.
    pub kind: Open<MemberKind>,
    /// The user, if the member is a user.
    #[serde(default)]
    pub user_id: Option<UserId>,
    /// The service account, if the member is one.
    #[serde(default)]
    pub service_account_id: Option<ServiceAccountId>,
    /// Email address, for a person.
    #[serde(default)]
    pub email: Option<String>,
    /// Display name; empty if it is not known yet.
    pub name: String,
    /// `platform`, or the id of the organization or project.
    pub at: String,
    /// The role.
    pub role: Open<MemberRole>,
    /// State: whether it is valid.
    pub state: Open<MemberState>,
    /// Who added the member.
    pub invited_by: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When the member was removed.
    #[serde(default, with = "OptionalRfc3339")]
    pub removed_at: Option<Timestamp>,
    /// Entity tag of this version, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A member to add. Exactly one of `email` and `service_account_id` is required.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberAdd {
    /// Email address of a person. An unknown person is invited and gets the role with the first sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// A service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_id: Option<ServiceAccountId>,
    /// The role.
    pub role: MemberRole,
}

/// Change of a role.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// The role.
    pub role: MemberRole,
}
