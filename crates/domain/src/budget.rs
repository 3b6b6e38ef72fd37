//! The budget of destructive commands: how many guests and tenants may be removed, and nodes retired, per hour in the whole cluster.
//!
//! It limits the damage when a stolen token or a faulty program starts to destroy everything: the rest survives until an operator
//! intervenes. The counts are rows in the store, written in the commit that orders the destruction; each scope has several rows, so that
//! two releases rarely write the same one. A scope is an organization, or the operators; no single scope can use up the whole budget.

use std::collections::BTreeMap;

use gpuaas_contract::event::{BudgetExhausted, BudgetLifted, Event};
use gpuaas_contract::id::{AllocationId, OrgId};
use gpuaas_contract::time::Timestamp;

use crate::access::Actor;
use crate::decision::{Context, Decision};
use crate::names::checked_text;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// Destructive commands per hour unless the configuration sets a number.
pub const DEFAULT_PER_HOUR: u32 = 3600;
/// Maximum that a single lift may add.
pub const MAX_LIFT: u32 = 100_000;
/// Code of the refusal, and of a release that waits for the budget.
pub const EXHAUSTED: &str = "destructive_budget_exhausted";
/// Parent of all budget rows.
pub const PARENT: &str = "destructive";
/// Number of rows per scope.
const SHARDS: u8 = 8;
const MINUTE: i64 = 60 * 1_000_000;
const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

/// Whose budget a destructive command counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// An organization that releases its own resources, or whose lease has ended.
    Organization(OrgId),
    /// All operators together.
    Operators,
}

impl Scope {
    /// The part of the whole that the scope may use: half for an organization, a quarter for operators.
    pub const fn share(self, per_hour: u32) -> u32 {
        let share = match self {
            Self::Organization(_) => per_hour / 2,
            Self::Operators => per_hour / 4,
        };
        // Rounding down must not turn a small budget into none.
        if share == 0 && per_hour > 0 { 1 } else { share }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Organization(id) => id.fmt(f),
            Self::Operators => f.write_str("operators"),
        }
    }
}

/// A row with the counts of a scope, or with a lift.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BudgetRow {
    /// Scope and shard, or the id of the lift.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Counts or a lift.
    pub entry: Entry,
    /// When the row was last written.
    pub at: Timestamp,
}

/// The content of a budget row.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// How much a scope destroyed, by minute since the epoch.
    Count {
        /// The scope as text.
        scope: String,
        /// Number of destructive commands per minute.
        minutes: BTreeMap<i64, u32>,
    },
    /// An addition to the budget, for one hour from `at`.
    Lift {
        /// How much is added.
        count: u32,
        /// The actor who added it.
        by: String,
        /// Why it was added.
        reason: String,
    },
}

resource!(BudgetRow, Budget);

impl BudgetRow {
    fn found_by(&self) -> Keys {
        // Kept longer than it counts, so that operators can still look at it.
        Keys { parent: PARENT.to_owned(), state: "active", expires_at: Some(self.at.plus(HOUR * 2)), ..Keys::default() }
    }

    /// Counts one more in the current minute, and drops minutes older than an hour.
    fn counted(self, now: Timestamp) -> Self {
        let minute = now.0.div_euclid(MINUTE);
        let entry = match self.entry {
            Entry::Count { scope, mut minutes } => {
                minutes.retain(|counted, _| *counted > minute - 60);
                let count = minutes.entry(minute).or_default();
                *count = count.saturating_add(1);
                Entry::Count { scope, minutes }
            }
            lift @ Entry::Lift { .. } => lift,
        };
        Self { entry, at: now, ..self }
    }
}

/// Id of the row in which destructive commands on this allocation count for the scope.
pub fn row_id(scope: Scope, of: Option<AllocationId>) -> String {
    // The end of an id is random, so it distributes allocations evenly.
    let shard = of.map_or(0, |id| id.as_bytes()[15] % SHARDS);
    format!("budget:{scope}:{shard}")
}

/// How much was destroyed within the last hour, and how much was added to the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// By all scopes together.
    pub total: u32,
    /// By scope, as text.
    pub by_scope: BTreeMap<String, u32>,
    /// What operators added for this hour.
    pub lifted: u32,
}

impl Spent {
    /// Sums up the rows as of `now`.
    pub fn of(rows: &[BudgetRow], now: Timestamp) -> Self {
        let mut spent = Self::default();
        let minute = now.0.div_euclid(MINUTE);
        for row in rows {
            match &row.entry {
                Entry::Count { scope, minutes } => {
                    let recent = minutes.iter().filter(|(counted, _)| **counted > minute - 60);
                    let count = recent.fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
                    spent.add(scope, count);
                }
                Entry::Lift { count, .. } if now.since(row.at) < HOUR => spent.lifted = spent.lifted.saturating_add(*count),
                Entry::Lift { .. } => {}
            }
        }
        spent
    }

    /// Adds `count` for a scope.
    pub fn add(&mut self, scope: &str, count: u32) {
        self.total = self.total.saturating_add(count);
        let of_scope = self.by_scope.entry(scope.to_owned()).or_default();
        *of_scope = of_scope.saturating_add(count);
    }

    /// Refuses if one more command would exceed the budget of the scope or of the cluster.
    pub fn check(&self, scope: Scope, per_hour: u32) -> Result<(), Refusal> {
        let of_scope = self.by_scope.get(&scope.to_string()).copied().unwrap_or(0);
        let (whole, share) = (per_hour.saturating_add(self.lifted), scope.share(per_hour).saturating_add(self.lifted));
        if self.total < whole && of_scope < share {
            return Ok(());
        }
        let message = format!(
            "the budget of {per_hour} destructive commands per hour is used up ({} in all, {of_scope} of {share} here); wait, or let an \
             administrator who signed in look at it and lift the budget",
            self.total
        );
        Err(Refusal::conflict(EXHAUSTED, message))
    }
}

/// Counts one more command, to be written together with it. `row` is the row of [`row_id`], if it exists.
pub fn count(row: Option<&BudgetRow>, scope: Scope, of: Option<AllocationId>, now: Timestamp) -> Decision {
    match row {
        Some(row) => Decision::default().update(&row.clone().counted(now)),
        None => {
            let entry = Entry::Count { scope: scope.to_string(), minutes: BTreeMap::new() };
            Decision::default().insert(&BudgetRow { id: row_id(scope, of), version: 0, entry, at: now }.counted(now))
        }
    }
}

/// Adds to the budget for one hour. Only a signed-in person or a caller on the local socket may do so: a stolen token must not lift the
/// limit that is there to stop it.
pub fn lift(count: u32, reason: &str, context: &Context) -> Result<Decision, Refusal> {
    match context.actor {
        Actor::User(_) | Actor::LocalAdmin => {}
        Actor::ServiceAccount { .. } | Actor::Token { .. } | Actor::Node(_) | Actor::Applicant(_) | Actor::System => {
            let message = "only a person who signed in can lift the budget, not a token; sign in, or lift it on the server \
                           itself over its local socket";
            return Err(Refusal::forbidden("budget_lift_needs_person", message));
        }
    }
    checked_text(reason, "the reason")?;
    if reason.is_empty() || count == 0 || count > MAX_LIFT {
        let message = format!("give a reason and a count of 1 to {MAX_LIFT}");
        return Err(Refusal::invalid("budget_lift_invalid", message));
    }
    let entry = Entry::Lift { count, by: context.actor.to_string(), reason: reason.to_owned() };
    let row = BudgetRow { id: format!("budget:lift:{}", context.now.0), version: 0, entry, at: context.now };
    let event = Event::BudgetLifted(BudgetLifted { count, reason: reason.to_owned(), until: context.now.plus(HOUR) });
    Ok(Decision::default().insert(&row).record(context, &row.id, event))
}

/// Reports that the budget is used up. Called once in a while, not for every refused command.
pub fn exhausted(scope: Scope, spent: &Spent, per_hour: u32, context: &Context) -> Decision {
    let event =
        Event::BudgetExhausted(BudgetExhausted { scope: scope.to_string(), total: spent.total, per_hour, lifted: spent.lifted });
    Decision::default().record(context, scope, event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuaas_contract::id::{ApiTokenId, CorrelationId, UserId};

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn context(actor: Actor) -> Context {
        Context { now: NOW, actor, correlation_id: CorrelationId::generate() }
    }

    fn counted(scope: Scope, times: u32, now: Timestamp) -> BudgetRow {
        let entry = Entry::Count { scope: scope.to_string(), minutes: BTreeMap::new() };
        let row = BudgetRow { id: row_id(scope, None), version: 1, entry, at: now };
        (0..times).fold(row, |row, _| row.counted(now))
    }

    #[test]
    fn nobody_can_use_more_than_their_share_and_all_together_not_more_than_the_whole() {
        let (one, two) = (Scope::Organization(OrgId::generate()), Scope::Organization(OrgId::generate()));
        let spent = Spent::of(&[counted(one, 5, NOW)], NOW);
        assert_eq!(spent.check(one, 10).expect_err("its half is used").code, EXHAUSTED);
        assert!(spent.check(two, 10).is_ok() && spent.check(Scope::Operators, 10).is_ok());
        let spent = Spent::of(&[counted(one, 5, NOW), counted(two, 4, NOW), counted(Scope::Operators, 1, NOW)], NOW);
        for scope in [one, two, Scope::Operators] {
            assert!(spent.check(scope, 10).is_err(), "{scope}: the whole is used");
        }
        assert!(Spent::of(&[counted(Scope::Operators, 2, NOW)], NOW).check(Scope::Operators, 10).is_err(), "a quarter");
        assert!(Spent::default().check(Scope::Operators, 1).is_ok() && Spent::default().check(one, 0).is_err());
    }

    #[test]
    fn what_is_an_hour_ago_counts_no_more() {
        let scope = Scope::Operators;
        let row = counted(scope, 3, NOW);
        let later = |minutes: i64| Timestamp(NOW.0 + minutes * MINUTE);
        assert_eq!(Spent::of(std::slice::from_ref(&row), later(59)).total, 3);
        assert_eq!(Spent::of(std::slice::from_ref(&row), later(60)).total, 0);
        let Entry::Count { minutes, .. } = row.counted(later(90)).entry else { panic!("a count") };
        assert_eq!(minutes.len(), 1, "what is over is not kept");
    }

    #[test]
    fn a_person_can_lift_it_for_an_hour_and_a_token_cannot() {
        let token = Actor::Token { id: ApiTokenId::generate(), role: crate::access::PlatformRole::Admin };
        assert_eq!(lift(5, "moving a rack", &context(token)).expect_err("a token").code, "budget_lift_needs_person");
        for (count, reason) in [(0, "x"), (MAX_LIFT + 1, "x"), (5, "")] {
            assert!(lift(count, reason, &context(Actor::LocalAdmin)).is_err(), "{count} {reason:?}");
        }
        let lifted = lift(5, "moving a rack", &context(Actor::User(UserId::generate()))).expect("a person");
        assert_eq!((lifted.events.len(), lifted.audit.len()), (1, 1));
        let entry = Entry::Lift { count: 5, by: String::new(), reason: String::new() };
        let row = BudgetRow { id: "budget:lift:1".to_owned(), version: 1, entry, at: NOW };
        let rows = [counted(Scope::Operators, 2, NOW), row];
        assert!(Spent::of(&rows, NOW).check(Scope::Operators, 8).is_ok());
        assert!(Spent::of(&rows, Timestamp(NOW.0 + 60 * MINUTE)).lifted == 0, "for an hour");
    }
}
