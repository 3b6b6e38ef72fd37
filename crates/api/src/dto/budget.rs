//! The budget of destructive commands.

/// How much may be destroyed per hour, and how much was within the last one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Budget {
    /// Destructive commands per hour: releases, cleanups and retirements of nodes.
    pub per_hour: u32,
    /// How many there were within the last hour.
    pub used: u32,
    /// How many more operators allowed for this hour.
    pub lifted: u32,
    /// Who they were by.
    pub scopes: Vec<BudgetScope>,
}

/// A part of the budget.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct BudgetScope {
    /// The id of an organization, or `operators`.
    pub scope: String,
    /// How many there were within the last hour.
    pub used: u32,
    /// How many there may be.
    pub share: u32,
}

/// More than the budget, for the hour that follows. Only a person who signed in can ask for it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetLift {
    /// How many more, 1 to 100,000.
    pub count: u32,
    /// Why; it is in the audit log.
    pub reason: String,
}
