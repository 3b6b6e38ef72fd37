//! Quotas: how much an organization and a project may have at once, and how much they have.

use gpuaas_contract::id::{OrgId, ProjectId};

/// How much may be had at once. What is absent has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Allocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u32>,
    /// Slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Whole machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machines: Option<u32>,
}

/// A quota and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Quota {
    /// The organization.
    pub organization_id: OrgId,
    /// The project, if it is that of one.
    #[serde(default)]
    pub project_id: Option<ProjectId>,
    /// How much may be had at once.
    pub limits: QuotaLimits,
    /// How much there is.
    pub used: QuotaUsed,
    /// Names this version of the limits and of what is used, for `If-Match`.
    #[serde(default)]
    pub etag: String,
}

/// [`Limits`] as a server tells them: with kinds that an older client does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct QuotaLimits {
    /// Allocations; no limit if null.
    #[serde(default)]
    pub allocations: Option<u32>,
    /// Slots; no limit if null.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Whole machines; no limit if null.
    #[serde(default)]
    pub machines: Option<u32>,
}

impl From<Limits> for QuotaLimits {
    fn from(Limits { allocations, slots, machines }: Limits) -> Self {
        Self { allocations, slots, machines }
    }
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct QuotaUsed {
    /// Allocations that are not over.
    pub allocations: u32,
    /// Their slots.
    pub slots: u32,
    /// Whole machines among them.
    pub machines: u32,
}
