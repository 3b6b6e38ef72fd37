//! Quotas: how much an organization or a project may hold at once, and how much it holds.

use gpuaas_contract::id::{OrgId, ProjectId};

/// Limits of what may exist at once. An absent limit means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of allocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u32>,
    /// Maximum number of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Maximum number of whole machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u32>,
}

/// A quota and its usage.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Quota {
    /// The organization.
    pub organization_id: OrgId,
    /// The project; null for the quota of an organization.
    #[serde(default)]
    pub project_id: Option<ProjectId>,
    /// The limits.
    pub limits: QuotaLimits,
    /// Current usage.
    pub used: QuotaUsed,
    /// Entity tag of this version of the limits and the usage, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// [`Limits`] as a server sends them, with kinds that an older client does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct QuotaLimits {
    /// Maximum number of allocations; null for no limit.
    #[serde(default)]
    pub allocations: Option<u32>,
    /// Maximum number of slots; null for no limit.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Maximum number of whole machines; null for no limit.
    #[serde(default)]
    pub machines: Option<u32>,
}

impl From<Limits> for QuotaLimits {
    fn from(Limits { allocations, slots, machines }: Limits) -> Self {
        Self { allocations, slots, machines }
    }
}

/// Current usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct QuotaUsed {
    /// Number of open allocations.
    pub allocations: u32,
    /// Number of their slots.
    pub slots: u32,
    /// Number of whole machines among them.
    pub machines: u32,
}
