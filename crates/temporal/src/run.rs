//! The workflow of an allocation: runs one step after another until the run ends.
//!
//! After a restart, Temporal replays workflow code from its history, so the code must be deterministic: it reads only the
//! workflow's clock, and waits only for timers, signals and activities. Changing the commands that it issues breaks running
//! workflows; `tests/replay.rs` replays recorded histories to catch that.

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

/// Steps per workflow execution. After that many, the run continues as a new execution, which bounds the size of the history.
const STEPS_OF_ONE: u32 = 200;
/// Delay before the first retry of a failed step. It doubles with every further retry.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Upper bound of the retry delay.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// The input of the workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// The allocation's id.
    pub allocation: String,
    /// The name of the step to start with.
    pub step: String,
    /// Time limit for one attempt of a step, in milliseconds.
    pub step_timeout_ms: u64,
}

/// The workflow that runs one allocation.
#[workflow]
pub struct AllocationRun {
    begin: Begin,
    /// Number of wake-ups received so far.
    woken: u64,
}

#[workflow_methods]
impl AllocationRun {
    #[init]
    fn new(_ctx: &WorkflowContextView, begin: Begin) -> Self {
        Self { begin, woken: 0 }
    }

    /// Advances the run until it ends. Returns the name of its last step.
    #[run(name = "allocation")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<String> {
        let begin = ctx.state(|run| run.begin.clone());
        let mut step = begin.step.clone();
        for _ in 0..STEPS_OF_ONE {
            // Read before the step runs. The step may miss a change that arrives while it runs; comparing this count with the
            // current one then runs the step again.
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

    /// Handles a wake-up: something that affects this run may have changed.
    #[signal]
    pub fn wake(&mut self, _ctx: &mut SyncWorkflowContext<Self>) {
        self.woken += 1;
    }
}

/// Returns the workflow's time, in milliseconds since the Unix epoch.
fn now_ms(ctx: &WorkflowContext<AllocationRun>) -> Option<u64> {
    let since = ctx.workflow_time()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).ok()
}

/// Runs one step as an activity, which Temporal shows under the step's name.
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
        // A newer server wrote this step. This execution fails, and the run is started again from the store until a server that
        // knows the step picks it up.
        None => return Err(ApplicationFailure::new(format!("this server does not know the step `{step}`")).into()),
    };
    Ok(came?)
}
