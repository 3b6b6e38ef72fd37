//! The budget of destructive commands.

/// The hourly budget of destructive commands, and its usage.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Budget {
    /// Destructive commands per hour: releases, cleanups and retirements of nodes.
    pub per_hour: u32,
    /// Number of commands within the last hour.
    pub used: u32,
    /// Additional commands that operators allowed for this hour.
    pub lifted: u32,
    /// Usage by organization and by operators.
    pub scopes: Vec<BudgetScope>,
}

/// The share of an organization or of the operators in the budget.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct BudgetScope {
    /// The id of an organization, or `operators`.
    pub scope: String,
    /// Number of commands within the last hour.
    pub used: u32,
    /// Number of commands that are allowed per hour.
    pub share: u32,
}

/// A temporary increase of the budget, for one hour. Needs a sign-in or the server's local socket; API tokens cannot request it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetLift {
    /// Number of additional commands, 1 to 100,000.
    pub count: u32,
    /// Reason, recorded in the audit log.
    pub reason: String,
}
