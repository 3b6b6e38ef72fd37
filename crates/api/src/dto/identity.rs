//! Who the caller is.

use gpuaas_contract::access::{MemberRole, PlatformRole};
use gpuaas_contract::id::{MembershipId, OrgId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::CallerKind;

/// The caller as the server sees them, and their roles.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WhoAmI {
    /// Kind of caller.
    pub kind: Open<CallerKind>,
    /// Id; `local-admin` for a caller on the local socket.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Email address, for a person.
    #[serde(default)]
    pub email: Option<String>,
    /// Role on the platform.
    #[serde(default)]
    pub platform_role: Option<Open<PlatformRole>>,
    /// All roles of the caller.
    pub memberships: Vec<WhoAmIMembership>,
    /// Whether the caller has any role. A caller without one can do nothing until invited.
    pub invited: bool,
}

/// A role of the caller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct WhoAmIMembership {
    /// Id of the membership.
    pub membership_id: MembershipId,
    /// `platform`, or the id of the organization or project.
    pub at: String,
    /// Name of the organization or project.
    pub place_name: String,
    /// The organization, or the one that the project belongs to.
    #[serde(default)]
    pub organization_id: Option<OrgId>,
    /// The role.
    pub role: Open<MemberRole>,
}
