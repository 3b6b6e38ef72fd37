//! Limits on what an organization or a project may hold at once.

/// How much; none is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "QuotaLimits")]
pub struct Limits {
    /// Allocations at once.
    #[serde(default)]
    pub allocations: Option<u32>,
    /// Slots at once.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Whole machines at once.
    #[serde(default)]
    pub machines: Option<u32>,
}
