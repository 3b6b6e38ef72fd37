//! Runs: every allocation is advanced until it has ended.
//!
//! [`gpuaas_domain::allocation::advance`] decides about a step; this module loads its inputs and commits its decision. A
//! [`Driver`] only makes sure that [`advance`] is called again when there may be something to do. Calling it too often, or from
//! several processes at once, is harmless: a step is committed over the version of the allocation it was decided on.

mod fleet;
mod load;
mod placing;
mod waker;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use gpuaas_contract::id::{AllocationId, OrgId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{self, Advance, Allocation, AllocationStep, Next, Signers, StepInputs};
use gpuaas_domain::decision::Context;
use gpuaas_domain::task::{self, TaskRecord};
use gpuaas_domain::{Actor, Decision};

use crate::error::ControlError;
use crate::lease_settlement::seal;
use crate::transact::transact_counted;
use crate::{Control, resources};

pub use fleet::FleetView;
pub(crate) use fleet::placement_request;
pub(crate) use placing::Placing;

/// A boxed future.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Remembers runs and their timers. The store remembers them too, so that one driver can replace another.
pub trait Driver: Debug + Send + Sync {
    /// Starts what it needs. Called once, when the server is ready.
    fn start(&self, control: &Arc<Control>);

    /// Requests that this run is advanced soon, because something may have changed.
    fn wake<'a>(&'a self, control: &'a Arc<Control>, id: AllocationId) -> Pending<'a, Result<Woken, ControlError>>;
}

/// The result of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The run was advanced, with the time of its next wake-up.
    Advanced(Next),
    /// Another service has the run and keeps its timers.
    HandedOver,
}

/// The driver without another server: the process that wakes a run also advances it.
#[derive(Clone, Copy, Debug)]
pub struct Embedded;

impl Driver for Embedded {
    fn start(&self, _: &Arc<Control>) {}

    fn wake<'a>(&'a self, control: &'a Arc<Control>, id: AllocationId) -> Pending<'a, Result<Woken, ControlError>> {
        Box::pin(async move {
            let advanced = advance(control, id, None).await?;
            Ok(Woken::Advanced(advanced.map_or(Next::Done, |advanced| advanced.next)))
        })
    }
}

/// Starts to drive runs.
pub(crate) fn spawn(control: &Arc<Control>, driver: Arc<dyn Driver>) {
    driver.start(control);
    waker::spawn(control, driver);
}

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// The current step of the run.
    pub step: AllocationStep,
    /// When to advance it again.
    pub next: Next,
}

/// Returns the current step of a run, or `None` if there is no such allocation.
pub async fn step_of(control: &Control, id: AllocationId) -> Result<Option<AllocationStep>, ControlError> {
    Ok(resources::get::<Allocation>(control, id).await?.map(|run| run.step))
}

/// Advances the run of an allocation by one step; with `at`, only if it is at that step. Returns `None` if there is no such
/// allocation.
pub async fn advance(control: &Control, id: AllocationId, at: Option<AllocationStep>) -> Result<Option<Advanced>, ControlError> {
    // The held place is kept until the decision is written.
    let of = |(_, _, _, organization): &(_, _, _, Option<OrgId>)| *organization;
    let changes = control.fleet.changes();
    let (advanced, wrote, _held, _) = transact_counted(control, (), of, async |_| {
        let nothing = |advanced| Ok(((advanced, None, None, None), Decision::default()));
        let Some(run) = resources::get::<Allocation>(control, id).await? else { return nothing(None) };
        if run.step == AllocationStep::Done {
            return nothing(Some(Advanced { step: run.step, next: Next::Done }));
        }
        if at.is_some_and(|at| at != run.step) {
            return nothing(Some(Advanced { step: run.step, next: Next::Now }));
        }
        let context = context_of(&run);
        let (mut inputs, held) = load::load(control, &run, &context).await?;
        let mut advanced = decide(control, &run, &inputs, &context);
        if advanced.allocation.state.is_terminal() {
            // The same decision, with the returned quota.
            inputs.quotas = resources::quotas(control, run.project_id, run.organization_id).await?;
            advanced = decide(control, &run, &inputs, &context);
        }
        if advanced.allocation.state != run.state {
            tracing::info!(
                allocation = %id, from = run.state.as_str(), to = advanced.allocation.state.as_str(), step = run.step.as_str(),
                "allocation advanced"
            );
        }
        let writes = !advanced.decision.is_empty();
        if writes {
            gpuaas_failpoint::hit(decided(run.step));
        }
        let came = Advanced { step: advanced.allocation.step, next: advanced.next };
        Ok(((Some(came), writes.then_some(run.step), held, Some(run.organization_id)), advanced.decision))
    })
    .await?;
    if let Some(step) = wrote {
        control.metrics.step_written(step.as_str());
        gpuaas_failpoint::hit(committed(step));
    }
    if control.placing.note(id, advanced) && control.fleet.changes() != changes {
        // The fleet changed after it was read for this step, and before the run was known to wait: nobody else wakes it for that.
        return Ok(advanced.map(|advanced| Advanced { next: Next::Now, ..advanced }));
    }
    Ok(advanced)
}

fn decide(control: &Control, run: &Allocation, inputs: &StepInputs, context: &Context) -> Advance {
    let seal = seal(control);
    let intent = |task: &TaskRecord| control.keys.intent_mac(&task::intent_text(task));
    allocation::advance(run, inputs, &Signers { seal: &seal, intent: &intent }, context)
}

/// Returns the failpoint before a step is written.
const fn decided(step: AllocationStep) -> &'static str {
    match step {
        AllocationStep::Place => "run.place.decided",
        AllocationStep::AwaitProvision => "run.await_provision.decided",
        AllocationStep::Serve => "run.serve.decided",
        AllocationStep::AwaitPower => "run.await_power.decided",
        AllocationStep::Release => "run.release.decided",
        AllocationStep::AwaitRelease => "run.await_release.decided",
        AllocationStep::Done => "run.done.decided",
    }
}

/// Returns the failpoint after a step was written.
const fn committed(step: AllocationStep) -> &'static str {
    match step {
        AllocationStep::Place => "run.place.committed",
        AllocationStep::AwaitProvision => "run.await_provision.committed",
        AllocationStep::Serve => "run.serve.committed",
        AllocationStep::AwaitPower => "run.await_power.committed",
        AllocationStep::Release => "run.release.committed",
        AllocationStep::AwaitRelease => "run.await_release.committed",
        AllocationStep::Done => "run.done.committed",
    }
}

/// Returns the context of a run. It acts for the requester of the allocation, as the control plane.
fn context_of(run: &Allocation) -> Context {
    let correlation_id = run.correlation_id.clone();
    Context { now: Timestamp::now(), actor: Actor::System, correlation_id }
}
