//! Limits on what an organization or a project may hold at once.

/// Limits of what may exist at once. An absent limit means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "QuotaLimits")]
pub struct Limits {
    /// Maximum number of allocations.
    #[serde(default)]
    pub allocations: Option<u32>,
    /// Maximum number of slots.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Maximum number of whole machines.
    #[serde(default)]
    pub machines: Option<u32>,
}
