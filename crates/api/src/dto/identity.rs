//! Who the caller is.

use gpuaas_contract::id::{MembershipId, OrgId};

/// Who the server takes the caller for, and what they may.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WhoAmI {
    /// `user`, `service_account`, `token` or `local_admin`.
    pub kind: String,
    /// Their id; for whoever sits at the server itself, `local-admin`.
    pub id: String,
    /// What people call them.
    pub name: String,
    /// Their address, if they are a person.
    #[serde(default)]
    pub email: Option<String>,
    /// Their role on the platform: `admin`, `operator` or `support`.
    #[serde(default)]
    pub platform_role: Option<String>,
    /// Every role they hold.
    pub memberships: Vec<WhoAmIMembership>,
    /// Whether they have any role at all. Who has none can do nothing until somebody invites them.
    pub invited: bool,
}

/// A role of the caller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WhoAmIMembership {
    /// Its id.
    pub membership_id: MembershipId,
    /// `platform`, or the id of the organization or project.
    pub at: String,
    /// What people call that place.
    pub place_name: String,
    /// The organization it is, or the project belongs to.
    #[serde(default)]
    pub organization_id: Option<OrgId>,
    /// The role: `admin`, `operator` or `support` on the platform; `owner`, `member` or `viewer` elsewhere.
    pub role: String,
}
