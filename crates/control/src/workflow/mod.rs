//! Runs: every allocation that is not over is advanced until it is.
//!
//! What a step means is decided by [`gpuaas_domain::allocation::advance`]; here it is given what it is decided on, and its decision is
//! committed. A [`Driver`] only sees to it that [`advance`] is called again when it may have something to do. Calling it too often, or
//! from several processes at once, does no harm: a step is committed over the version of the allocation it was decided on.

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

/// Something that is under way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who remembers runs and their times. The store remembers them as well, so that one driver can take over from another.
pub trait Driver: Debug + Send + Sync {
    /// Starts what it needs. Called once, when the server is ready.
    fn start(&self, control: &Arc<Control>);

    /// Something may have changed for this run: it is to be advanced soon.
    fn wake<'a>(&'a self, control: &'a Arc<Control>, id: AllocationId) -> Pending<'a, Result<Woken, ControlError>>;
}

/// What came of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The run was advanced and wants to be woken again then.
    Advanced(Next),
    /// Another one has it now and remembers its times.
    HandedOver,
}

/// The driver without another server: runs are advanced by the process that woke them.
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

/// What came of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// The step that the run is at now.
    pub step: AllocationStep,
    /// When to come again.
    pub next: Next,
}

/// The step that a run is at. `None` if there is no such allocation.
pub async fn step_of(control: &Control, id: AllocationId) -> Result<Option<AllocationStep>, ControlError> {
    Ok(resources::get::<Allocation>(control, id).await?.map(|run| run.step))
}

/// Advances the run of an allocation by one step, but only if it is `at` this one, where one is given. `None` if there is no such
/// allocation.
pub async fn advance(control: &Control, id: AllocationId, at: Option<AllocationStep>) -> Result<Option<Advanced>, ControlError> {
    // What is held for it is held until the decision is written.
    let of = |(_, _, _, organization): &(_, _, _, Option<OrgId>)| *organization;
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
            // The same decision, with what is given back.
            inputs.quotas = resources::quotas(control, run.project_id, run.organization_id).await?;
            advanced = decide(control, &run, &inputs, &context);
        }
        if advanced.allocation.state != run.state {
            tracing::info!(
                allocation = %id, from = run.state.as_str(), to = advanced.allocation.state.as_str(), step = run.step.as_str(),
                "allocation went on"
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
    control.placing.note(id, advanced);
    Ok(advanced)
}

fn decide(control: &Control, run: &Allocation, inputs: &StepInputs, context: &Context) -> Advance {
    let seal = seal(control);
    let intent = |task: &TaskRecord| control.keys.intent_mac(&task::intent_text(task));
    allocation::advance(run, inputs, &Signers { seal: &seal, intent: &intent }, context)
}

/// Where a crash test stops the server before a step is written.
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

/// Where a crash test stops the server after a step was written.
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

/// A run acts for whoever asked for the allocation; what it does is the control plane's.
fn context_of(run: &Allocation) -> Context {
    let correlation_id = run.correlation_id.clone();
    Context { now: Timestamp::now(), actor: Actor::System, correlation_id }
}
