//! The workflow: runs the next step until there is none.
//!
//! Workflow code is replayed from its history after a restart, so it must decide the same way every time: it uses only the
//! workflow's clock, and waits only for timers, signals and activities. A change of the commands it issues would break running
//! workflows; `tests/replay.rs` replays recorded ones.

#![allow(missing_docs, reason = "the macros make items without a word")]

use std::time::Duration;

use gpuaas_domain::allocation::AllocationStep;
use serde::{Deserialize, Serialize};
use temporalio_common::RetryPolicy;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ActivityOptions, ApplicationFailure, CancellableFuture as _, ContinueAsNewOptions, SyncWorkflowContext, WorkflowContext,
    WorkflowContextView, WorkflowResult,
};

use crate::steps::{Came, Steps, When};

/// Steps of one execution. Then it continues as a new one, so that no history grows without end.
const STEPS_OF_ONE: u32 = 200;
/// Delay before the first retry of a failed step. It doubles every time.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// The input of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The allocation.
    pub allocation: String,
    /// Its current step.
    pub step: String,
    /// Time limit for one attempt of a step, in milliseconds.
    pub step_timeout_ms: u64,
}

/// The run of one allocation.
#[workflow]
pub struct AllocationRun {
    begin: Begin,
    /// How often it was woken.
    woken: u64,
}

#[workflow_methods]
impl AllocationRun {
    #[init]
    fn new(_ctx: &WorkflowContextView, begin: Begin) -> Self {
        Self { begin, woken: 0 }
    }

    /// Advances the run until it has ended. Returns its last step.
    #[run(name = "allocation")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<String> {
        let begin = ctx.state(|run| run.begin.clone());
        let mut step = begin.step.clone();
        for _ in 0..STEPS_OF_ONE {
            // The step may not see what happens after this, so a later wake-up runs it again.
            let heard = ctx.state(|run| run.woken);
            let Came { step: now, next } = take(ctx, &begin, &step).await?;
            step = now;
            match next {
                When::Over => return Ok(step),
                When::Now => {}
                When::At { unix_ms } => {
                    let now = now_ms(ctx).ok_or_else(|| ApplicationFailure::new("the workflow has no time"))?;
                    let wait = Duration::from_millis(unix_ms.saturating_sub(now));
                    if !wait.is_zero() {
                        let mut timer = std::pin::pin!(ctx.timer(wait));
                        let woken = temporalio_sdk::workflows::select! {
                            _ = timer.as_mut() => false,
                            _ = ctx.wait_condition(move |run: &Self| run.woken != heard) => true,
                        };
                        if woken {
                            timer.cancel();
                        }
                    }
                }
            }
        }
        ctx.continue_as_new(Begin { step, ..begin }, ContinueAsNewOptions::default())?;
        unreachable!("it goes on elsewhere")
    }

    /// Wakes the run, because something may have changed for it.
    #[signal]
    pub fn wake(&mut self, _ctx: &mut SyncWorkflowContext<Self>) {
        self.woken += 1;
    }
}

/// Returns the milliseconds since 1970, by the workflow's clock.
fn now_ms(ctx: &WorkflowContext<AllocationRun>) -> Option<u64> {
    let since = ctx.workflow_time()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).ok()
}

/// Runs one step. Temporal shows it under the step's name.
async fn take(ctx: &WorkflowContext<AllocationRun>, begin: &Begin, step: &str) -> WorkflowResult<Came> {
    let timeout = Duration::from_millis(begin.step_timeout_ms);
    let retry = RetryPolicy::builder().initial_interval(FIRST_RETRY).maximum_interval(LAST_RETRY).build();
    let options = ActivityOptions::with_start_to_close_timeout(timeout).retry_policy(retry).build();
    let id = begin.allocation.clone();
    let came = match AllocationStep::parse(step) {
        Some(AllocationStep::Place) => ctx.execute_activity(Steps::place, id, options).await,
        Some(AllocationStep::AwaitProvision) => ctx.execute_activity(Steps::await_provision, id, options).await,
        Some(AllocationStep::Serve) => ctx.execute_activity(Steps::serve, id, options).await,
        Some(AllocationStep::AwaitPower) => ctx.execute_activity(Steps::await_power, id, options).await,
        Some(AllocationStep::Release) => ctx.execute_activity(Steps::release, id, options).await,
        Some(AllocationStep::AwaitRelease) => ctx.execute_activity(Steps::await_release, id, options).await,
        Some(AllocationStep::Done) => return Ok(Came { step: step.to_owned(), next: When::Over }),
        // A newer server created it. The run ends here, and is started again from the store until a server knows the step.
        None => return Err(ApplicationFailure::new(format!("this server does not know the step `{step}`")).into()),
    };
    Ok(came?)
}
