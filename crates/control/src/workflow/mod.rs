//! Runs: every allocation that is not over is advanced until it is.
//!
//! What a step means is decided by [`gpuaas_domain::allocation::advance`]; here it is given what it is decided on, and its decision is
//! committed. A driver only sees to it that [`advance`] is called again when it may have something to do. Calling it too often, or from
//! several processes at once, does no harm: a step is committed over the version of the allocation it was decided on.

mod embedded;
mod fleet;
mod world;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::allocation::{self, Allocation, Next, Step, Tools};
use gpuaas_domain::decision::Context;
use gpuaas_domain::task::{self, TaskRecord};
use gpuaas_domain::{Actor, Decision};

use crate::Control;
use crate::failure::{Failure, settle};
use crate::leases::seal;

pub(crate) use embedded::spawn;
pub use fleet::FleetView;
pub(crate) use fleet::wish_of;

/// What came of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advanced {
    /// The step that was taken.
    pub step: Step,
    /// When to come again.
    pub next: Next,
}

/// Advances the run of an allocation by one step. `None` if there is no such allocation.
pub async fn advance(control: &Control, id: AllocationId) -> Result<Option<Advanced>, Failure> {
    let (advanced, wrote) = settle(control, || async {
        let nothing = |advanced| Ok(((advanced, false), Decision::default()));
        let Some(run) = crate::books::get::<Allocation>(control, id).await? else { return nothing(None) };
        if run.step == Step::Done {
            return nothing(Some(Advanced { step: run.step, next: Next::Done }));
        }
        let world = world::load(control, &run).await?;
        let seal = seal(control);
        let intent = |task: &TaskRecord| control.keys.intent_mac(&task::intent_text(task));
        let tools = Tools { seal: &seal, intent: &intent };
        let context = context_of(&run);
        let advanced = allocation::advance(&run, &world, &tools, &context);
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
        Ok(((Some(Advanced { step: run.step, next: advanced.next }), writes), advanced.decision))
    })
    .await?;
    if let Some(Advanced { step, .. }) = advanced.filter(|_| wrote) {
        gpuaas_failpoint::hit(committed(step));
    }
    Ok(advanced)
}

/// Where a crash test stops the server before a step is written.
const fn decided(step: Step) -> &'static str {
    match step {
        Step::Place => "run.place.decided",
        Step::AwaitProvision => "run.await_provision.decided",
        Step::Serve => "run.serve.decided",
        Step::AwaitPower => "run.await_power.decided",
        Step::Release => "run.release.decided",
        Step::AwaitRelease => "run.await_release.decided",
        Step::Done => "run.done.decided",
    }
}

/// Where a crash test stops the server after a step was written.
const fn committed(step: Step) -> &'static str {
    match step {
        Step::Place => "run.place.committed",
        Step::AwaitProvision => "run.await_provision.committed",
        Step::Serve => "run.serve.committed",
        Step::AwaitPower => "run.await_power.committed",
        Step::Release => "run.release.committed",
        Step::AwaitRelease => "run.await_release.committed",
        Step::Done => "run.done.committed",
    }
}

/// A run acts for whoever asked for the allocation; what it does is the control plane's.
fn context_of(run: &Allocation) -> Context {
    let correlation_id = run.correlation_id.clone();
    Context { now: Timestamp::now(), actor: Actor::System, correlation_id }
}
