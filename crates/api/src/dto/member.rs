//! Members: who has which role on the platform, in an organization or in a project.

use gpuaas_contract::access::MemberRole;
use gpuaas_contract::id::{MembershipId, ServiceAccountId, UserId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{MemberKind, MemberState};
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// One role of somebody in one place.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Member {
    /// The membership's id.
    pub id: MembershipId,
    /// What they are.
    pub kind: Open<MemberKind>,
    /// The user, if it is one.
    #[serde(default)]
    pub user_id: Option<UserId>,
    /// The service account, if it is one.
    #[serde(default)]
    pub service_account_id: Option<ServiceAccountId>,
    /// Their address, if they are a person.
    #[serde(default)]
    pub email: Option<String>,
    /// What people call them; empty if that is not known yet.
    pub name: String,
    /// `platform`, or the id of the organization or project.
    pub at: String,
    /// The role.
    pub role: Open<MemberRole>,
    /// Whether it counts.
    pub state: Open<MemberState>,
    /// Who gave it to them.
    pub invited_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was taken away.
    #[serde(default, with = "OptionalRfc3339")]
    pub removed_at: Option<Timestamp>,
    /// Names this version of it, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// A role to give. Exactly one of `email` and `service_account_id` says to whom.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberAdd {
    /// A person. Who is not known yet is invited, and gets the role with their first sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// A service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_id: Option<ServiceAccountId>,
    /// The role.
    pub role: MemberRole,
}

/// Another role.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// The role.
    pub role: MemberRole,
}
