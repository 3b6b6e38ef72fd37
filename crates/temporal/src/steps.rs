//! The activities: one per step, each a single call of [`gpuaas_control::workflow::advance`].

use std::sync::Arc;

use gpuaas_contract::id::AllocationId;
use gpuaas_control::Control;
use gpuaas_control::link::chain;
use gpuaas_control::workflow::{Advanced, advance};
use gpuaas_domain::allocation::{AllocationStep, Next};
use serde::{Deserialize, Serialize};
use temporalio_macros::activities;
use temporalio_sdk::ApplicationFailure;
use temporalio_sdk::activities::{ActivityContext, ActivityError};

/// What an activity returns to the workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Came {
    /// The name of the step that the run is at now.
    pub(crate) step: String,
    pub(crate) next: When,
}

/// When to advance a run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum When {
    /// Immediately.
    Now,
    /// At this time, or earlier if a wake-up arrives.
    At {
        /// Milliseconds since the Unix epoch.
        unix_ms: u64,
    },
    /// Never: the run has ended.
    Over,
}

impl From<Advanced> for Came {
    fn from(advanced: Advanced) -> Self {
        let next = match advanced.next {
            Next::Now => When::Now,
            Next::At(at) => When::At { unix_ms: u64::try_from(at.0 / 1000).unwrap_or(0) },
            Next::Done => When::Over,
        };
        Self { step: advanced.step.as_str().to_owned(), next }
    }
}

/// The activities, with what they need from this server.
pub(crate) struct Steps {
    control: Arc<Control>,
    /// The runtime that the store's connections belong to. The worker runs on a thread of its own, so steps are spawned here.
    runtime: tokio::runtime::Handle,
}

impl Steps {
    pub(crate) fn new(control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control), runtime: tokio::runtime::Handle::current() }
    }

    async fn take(&self, allocation: &str, step: AllocationStep) -> Result<Came, ActivityError> {
        let id: AllocationId = allocation.parse().map_err(|error| {
            ActivityError::application(ApplicationFailure::non_retryable(format!("`{allocation}` is no allocation: {error}")))
        })?;
        let control = Arc::clone(&self.control);
        let taken = self.runtime.spawn(async move { advance(&control, id, Some(step)).await }).await;
        let failed = |reason: String| ActivityError::application(ApplicationFailure::new(reason));
        match taken {
            Ok(Ok(Some(advanced))) => Ok(advanced.into()),
            // The allocation no longer exists.
            Ok(Ok(None)) => Ok(Came { step: AllocationStep::Done.as_str().to_owned(), next: When::Over }),
            Ok(Err(failure)) => {
                let reason = chain(&failure);
                tracing::warn!(allocation, step = step.as_str(), error = reason, "a step failed; it will be retried");
                Err(failed(reason))
            }
            Err(panicked) => Err(failed(panicked.to_string())),
        }
    }
}

#[activities]
impl Steps {
    #[activity(name = "place")]
    pub(crate) async fn place(self: Arc<Self>, _ctx: ActivityContext, allocation: String) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::Place).await
    }

    #[activity(name = "await_provision")]
    pub(crate) async fn await_provision(
        self: Arc<Self>,
        _ctx: ActivityContext,
        allocation: String,
    ) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::AwaitProvision).await
    }

    #[activity(name = "serve")]
    pub(crate) async fn serve(self: Arc<Self>, _ctx: ActivityContext, allocation: String) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::Serve).await
    }

    #[activity(name = "await_power")]
    pub(crate) async fn await_power(self: Arc<Self>, _ctx: ActivityContext, allocation: String) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::AwaitPower).await
    }

    #[activity(name = "release")]
    pub(crate) async fn release(self: Arc<Self>, _ctx: ActivityContext, allocation: String) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::Release).await
    }

    #[activity(name = "await_release")]
    pub(crate) async fn await_release(self: Arc<Self>, _ctx: ActivityContext, allocation: String) -> Result<Came, ActivityError> {
        self.take(&allocation, AllocationStep::AwaitRelease).await
    }
}
