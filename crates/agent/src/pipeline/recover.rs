//! Handles the tasks in the journal at start: runs, refuses, recovers them, or reports that they were interrupted.

use std::sync::Arc;

use gpuaas_contract::envelope::{self, Payload};
use gpuaas_contract::link::TaskPhase;
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::task::{Task, TaskType};

use super::execute::{self, Ended, Job, Mode};
use super::{Claim, Inner, Live};
use crate::journal::{AppendError, Unfinished};

/// Continues one unfinished task.
pub(super) async fn take_up(inner: &Arc<Inner>, task: Unfinished) -> Result<(), AppendError> {
    let task_id = task.note.task_id;
    tracing::info!(%task_id, correlation_id = %task.note.correlation_id, attempt = task.attempt, "found an unfinished task in the journal");
    if task.attempt == 0 { run_or_refuse(inner, task).await } else { recover(inner, task).await }
}

/// Runs a task that was accepted and never started, if everything that was true at its acceptance is still true.
async fn run_or_refuse(inner: &Arc<Inner>, task: Unfinished) -> Result<(), AppendError> {
    let refusal = match inner.verify(task.envelope.as_deref().unwrap_or_default()) {
        Ok(verified) => match inner.policy.check_task(verified.task()) {
            Ok(()) => {
                let job = Job {
                    note: task.note,
                    task: verified.task().clone(),
                    deadline: verified.payload().deadline,
                    attempt: 0,
                    started_at: None,
                    mode: Mode::Fresh,
                    begun: None,
                };
                spawn(inner, job, TaskPhase::Accepted);
                return Ok(());
            }
            Err(denied) => (envelope::RefusalCode::PolicyDenied.as_str(), denied.0),
        },
        Err(refusal) => (refusal.code.as_str(), refusal.message),
    };
    let (code, message) = refusal;
    let ended = Ended::plainly(Outcome::Refused, code, message);
    execute::finish(inner, &task.note, 0, None, Vec::new(), ended).await
}

/// Recovers a started task through its handler.
async fn recover(inner: &Arc<Inner>, task: Unfinished) -> Result<(), AppendError> {
    let Some((payload, parsed)) = task.envelope.as_deref().and_then(recorded) else {
        let message = "the journal lost the record of this task; check the host before running it again";
        let ended = Ended::plainly(Outcome::Interrupted, "journal_damaged", message.to_owned());
        return execute::finish(inner, &task.note, task.attempt, task.started_at, Vec::new(), ended).await;
    };
    let job = Job {
        note: task.note,
        task: parsed,
        deadline: payload.deadline,
        attempt: task.attempt,
        started_at: task.started_at,
        mode: Mode::Recover,
        begun: None,
    };
    spawn(inner, job, TaskPhase::Started);
    Ok(())
}

fn spawn(inner: &Arc<Inner>, job: Job, phase: TaskPhase) {
    // The journal knows it, so there is no other claim; the entry allows it to be cancelled.
    let live = match inner.claim(job.note.task_id) {
        Claim::New(live) => live,
        Claim::InHand(_) | Claim::Finished => {
            let live = Live::new();
            inner.lock_live().insert(job.note.task_id, Arc::clone(&live));
            live
        }
    };
    live.set_phase(phase);
    // It has reserved space in the journal, so it counts like any task in flight.
    let permit = Arc::clone(&inner.in_flight).try_acquire_owned().ok();
    inner.spawn(job, live, permit);
}

/// Returns the task in an envelope that this agent verified before it wrote it to its own journal. Its time may have passed and
/// its key may have been retired since; a started task must still be brought to an end.
fn recorded(envelope: &[u8]) -> Option<(Payload, Task)> {
    let payload = gpuaas_contract::dsse::payload_unverified(envelope).ok()?;
    let payload: Payload = serde_json::from_slice(&payload).ok()?;
    let task = Task::parse(TaskType::parse(&payload.task_type)?, payload.params.get()).ok()?;
    Some((payload, task))
}
