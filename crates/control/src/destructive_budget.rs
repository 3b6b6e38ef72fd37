//! The cluster's budget of destructive commands, as this process sees it.
//!
//! The counts are rows of the store ([`gpuaas_domain::budget`]), written together with the commands. The sum over all processes
//! is read at most once a second; this process adds its own counts in between, so that a flood of commands hits the limit at
//! once.

use std::collections::BTreeMap;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Decision;
use gpuaas_domain::budget::{self, BudgetRow, Scope, Spent};
use gpuaas_domain::decision::Context;
use gpuaas_store::ResourceFilter;
use tokio::sync::Mutex;

use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

/// How old the sum of all counts may be.
const FRESH: Duration = Duration::from_secs(1);
/// How often an exhausted budget is reported.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// The limit, and its known use.
pub(crate) struct Budget {
    per_hour: u32,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    read_at: Option<Timestamp>,
    spent: Spent,
    /// When the exhausted budget of a scope was last reported.
    told: BTreeMap<String, Timestamp>,
}

impl Budget {
    pub(crate) fn new(per_hour: u32) -> Self {
        Self { per_hour, known: Mutex::default() }
    }

    pub(crate) fn per_hour(&self) -> u32 {
        self.per_hour
    }

    /// Returns what was used within the last hour.
    pub(crate) async fn spent(&self, control: &Control) -> Result<Spent, ControlError> {
        read(control, Timestamp::now()).await
    }

    /// Takes one command from the budget. Returns the rows to write with it, or refuses.
    pub(crate) async fn take(
        &self,
        control: &Control,
        scope: Scope,
        of: Option<AllocationId>,
        context: &Context,
    ) -> Result<Decision, ControlError> {
        let checked = {
            let mut known = self.known.lock().await;
            if known.read_at.is_none_or(|at| at > context.now || context.now.since(at) >= FRESH) {
                known.spent = read(control, context.now).await?;
                known.read_at = Some(context.now);
            }
            let checked = known.spent.check(scope, self.per_hour);
            match checked {
                Ok(()) => {
                    known.spent.add(&scope.to_string(), 1);
                    Ok(())
                }
                Err(refusal) => {
                    let told = known.told.insert(scope.to_string(), context.now);
                    let is_news = told.is_none_or(|at| context.now.since(at) >= TELL_EVERY);
                    if !is_news && let Some(at) = told {
                        known.told.insert(scope.to_string(), at);
                    }
                    Err((refusal, is_news.then(|| known.spent.clone())))
                }
            }
        };
        match checked {
            Ok(()) => {
                control.metrics.destruction_counted();
                let row = resources::get::<BudgetRow>(control, budget::row_id(scope, of)).await?;
                Ok(budget::count(row.as_ref(), scope, of, context.now))
            }
            Err((refusal, news)) => {
                control.metrics.destruction_refused();
                if let Some(spent) = news {
                    tracing::error!(%scope, total = spent.total, per_hour = self.per_hour, "the budget of destructive commands is used up");
                    transact(control, || async { Ok(((), budget::exhausted(scope, &spent, self.per_hour, context))) }).await?;
                }
                Err(refusal.into())
            }
        }
    }
}

async fn read(control: &Control, now: Timestamp) -> Result<Spent, ControlError> {
    let filter = ResourceFilter { parents: Some(vec![budget::PARENT.to_owned()]), ..ResourceFilter::default() };
    Ok(Spent::of(&resources::all::<BudgetRow>(control, &filter).await?, now))
}
