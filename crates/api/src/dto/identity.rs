//! Who the caller is.

use gpuaas_contract::access::{MemberRole, PlatformRole};
use gpuaas_contract::id::{MembershipId, OrgId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::CallerKind;

/// Who the server takes the caller for, and what they may.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WhoAmI {
    /// What they are.
    pub kind: Open<CallerKind>,
    /// Their id; for whoever sits at the server itself, `local-admin`.
    pub id: String,
    /// What people call them.
    pub name: String,
    /// Their address, if they are a person.
    #[serde(default)]
    pub email: Option<String>,
    /// Their role on the platform.
    #[serde(default)]
    pub platform_role: Option<Open<PlatformRole>>,
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
    /// The role.
    pub role: Open<MemberRole>,
}
