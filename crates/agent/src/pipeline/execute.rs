//! One task from its start to its receipt.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpuaas_contract::envelope::{CLOCK_SKEW, RefusalCode};
use gpuaas_contract::link::TaskPhase;
use gpuaas_contract::receipt::{self, Outcome, PhaseTiming};
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Inner, Live};
use crate::handler::{self, Context, Log, Phases, Success, TaskFailure};
use crate::journal::{AppendError, Chain, Record, TaskNote};

/// A task to run or recover.
pub(super) struct Job {
    pub(super) note: TaskNote,
    pub(super) task: Task,
    pub(super) deadline: Timestamp,
    /// Number of starts so far.
    pub(super) attempt: u32,
    /// The first start, if there was one.
    pub(super) started_at: Option<Timestamp>,
    pub(super) mode: Mode,
    /// Set if it was started together with its acceptance, on these slots.
    pub(super) begun: Option<(RunSlots, Timestamp)>,
}

/// Whether it starts or is recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Fresh,
    Recover,
}

/// The end of a task.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) output: Option<Box<RawValue>>,
    pub(super) proof: Option<Box<RawValue>>,
}

impl Ended {
    /// Returns an end without output and without proof.
    pub(super) fn plainly(outcome: Outcome, code: &'static str, message: String) -> Self {
        Self { outcome, code, message, output: None, proof: None }
    }

    fn from(failure: TaskFailure) -> Self {
        let proof = failure.proof.as_deref().and_then(|proof| serde_json::value::to_raw_value(proof).ok());
        Self { proof, ..Self::plainly(failure.outcome, failure.code, failure.message) }
    }
}

pub(super) async fn execute(inner: Arc<Inner>, job: Job, live: Arc<Live>) {
    let task_id = job.note.task_id;
    let result = execute_claimed(&inner, job, &live).await;
    inner.release(task_id);
    if let Err(error) = result {
        inner.journal_failed(&error);
    }
}

async fn execute_claimed(inner: &Arc<Inner>, job: Job, live: &Live) -> Result<(), AppendError> {
    let Job { note, task, deadline, attempt, started_at, mode, begun } = job;
    let kind = task.task_type();
    let attempt = attempt + 1;
    let (slots, now) = match begun {
        Some(begun) => begun,
        None => match start(inner, &note, kind, attempt, mode, live).await? {
            Some(started) => started,
            None => return Ok(()),
        },
    };
    gpuaas_failpoint::hit("agent.started");
    tracing::info!(attempt, recovering = (mode == Mode::Recover), "task started");
    live.set_phase(TaskPhase::Started);
    inner.acknowledge(note.task_id, TaskPhase::Started);

    let entered = Arc::new(Mutex::new(Vec::new()));
    let stop = CancellationToken::new();
    let context = Context {
        task_id: note.task_id,
        host: inner.host.clone(),
        stop: stop.clone(),
        deadline,
        log: Log { task_id: note.task_id, spool: inner.spool.clone() },
        phases: Phases {
            task_id: note.task_id,
            outbound: inner.outbound.clone(),
            journal: Arc::clone(&inner.journal),
            timings: Arc::clone(&entered),
        },
        still_allowed: inner.policy.still_allows(&task),
        attempt,
        boot_id: inner.boot_id.clone(),
        rules: inner.policy.slices(),
        guests: inner.guests.clone(),
    };
    let handler = tokio::spawn(
        async move {
            match mode {
                Mode::Fresh => handler::run(task, &context).await,
                Mode::Recover => handler::recover(task, &context).await,
            }
        }
        .in_current_span(),
    );
    let bounds = Bounds {
        until_deadline: deadline.since(Timestamp::now()),
        task_timeout: inner.limits.task_timeout,
        // A task that undoes its own effects is never dropped in the middle of that.
        log_drain_timeout: if kind.undoes_itself() { Duration::MAX } else { inner.limits.log_drain_timeout },
        abandon: &inner.abandon,
    };
    let Some(result) = supervise(&bounds, live, handler, &stop).await else {
        // Abandoned at shutdown: the journal has it as started, and the next start recovers it.
        return Ok(());
    };
    inner.spool.close(note.task_id).await;
    let timings = handler::timings(&entered.lock().unwrap_or_else(PoisonError::into_inner));
    let ended = conclude(result);
    drop(slots);
    finish(inner, &note, attempt, Some(started_at.unwrap_or(now)), timings, ended).await
}

/// Waits for a place to run and records the start. Returns `None` if it did not start; the result is then already recorded.
async fn start(
    inner: &Arc<Inner>,
    note: &TaskNote,
    kind: TaskType,
    attempt: u32,
    mode: Mode,
    live: &Live,
) -> Result<Option<(RunSlots, Timestamp)>, AppendError> {
    // A recovered task already has effects: it cannot be cancelled before it runs.
    let cancelled_early = async {
        match mode {
            Mode::Fresh => live.cancel.cancelled().await,
            Mode::Recover => std::future::pending().await,
        }
    };
    let slots = tokio::select! {
        biased;
        () = inner.closing.cancelled() => return Ok(None),
        () = cancelled_early => {
            let ended = Ended::plainly(Outcome::Cancelled, "cancelled", reason_of(live));
            return finish(inner, note, attempt - 1, None, Vec::new(), ended).await.map(|()| None);
        }
        slots = RunSlots::take(inner, kind) => slots,
    };
    if mode == Mode::Fresh {
        let now = Timestamp::now().max(inner.journal.highest_time());
        if now > note.start_by.plus(CLOCK_SKEW) {
            let message = format!("the task waited past its latest start {}; run it again", note.start_by);
            let code = RefusalCode::TaskExpired.as_str();
            let ended = Ended::plainly(Outcome::Refused, code, message);
            return finish(inner, note, attempt - 1, None, Vec::new(), ended).await.map(|()| None);
        }
    }
    let now = Timestamp::now();
    inner.journal.append(Record::Started { task: note.clone(), attempt, at: now }, Vec::new()).await?;
    Ok(Some((slots, now)))
}

/// Why a handler is stopped.
enum StopCause {
    Cancelled,
    Deadline,
    Timeout,
}

/// Time limits of a handler.
struct Bounds<'a> {
    until_deadline: Duration,
    task_timeout: Duration,
    /// After the request to stop.
    log_drain_timeout: Duration,
    /// Fired when the agent shuts down and no longer waits.
    abandon: &'a CancellationToken,
}

/// Waits for the handler within its limits. Returns `None` if the agent shuts down and the handler was dropped.
async fn supervise(
    bounds: &Bounds<'_>,
    live: &Live,
    mut handler: JoinHandle<Result<Success, TaskFailure>>,
    stop: &CancellationToken,
) -> Option<Result<Success, TaskFailure>> {
    let limit = bounds.until_deadline.min(bounds.task_timeout);
    let cause = tokio::select! {
        biased;
        ended = &mut handler => return Some(joined(ended)),
        () = bounds.abandon.cancelled() => return abandoned(handler).await,
        () = live.cancel.cancelled() => StopCause::Cancelled,
        () = tokio::time::sleep(limit) => {
            if bounds.until_deadline <= bounds.task_timeout { StopCause::Deadline } else { StopCause::Timeout }
        }
    };
    stop.cancel();
    // It may finish its log; after that it is dropped.
    let drained = tokio::select! {
        biased;
        drained = tokio::time::timeout(bounds.log_drain_timeout, &mut handler) => drained,
        () = bounds.abandon.cancelled() => return abandoned(handler).await,
    };
    let result = match drained {
        Ok(ended) => joined(ended),
        Err(_) => {
            handler.abort();
            match handler.await {
                // It ended at the last moment.
                Ok(result) => result,
                Err(error) if error.is_panic() => joined(Err(error)),
                Err(_) => Err(TaskFailure {
                    message: "it did not stop within log_drain_timeout and was dropped".to_owned(),
                    ..TaskFailure::stopped()
                }),
            }
        }
    };
    // A success despite the request to stop is a success.
    Some(result.map_err(|failure| match failure.outcome {
        Outcome::Cancelled => {
            let proof = failure.proof;
            TaskFailure { proof, ..stopped_because(&cause, live, bounds.task_timeout, failure.message) }
        }
        Outcome::Succeeded | Outcome::Failed | Outcome::Interrupted | Outcome::Refused => failure,
    }))
}

fn stopped_because(cause: &StopCause, live: &Live, task_timeout: Duration, detail: String) -> TaskFailure {
    let with_detail = |text: String| if detail.is_empty() { text } else { format!("{text}; {detail}") };
    match cause {
        StopCause::Cancelled => TaskFailure { message: with_detail(reason_of(live)), ..TaskFailure::stopped() },
        StopCause::Deadline => TaskFailure::failed("deadline_exceeded", with_detail("the task's deadline passed".to_owned())),
        StopCause::Timeout => {
            let text = format!("the task ran longer than this agent's task_timeout of {} s", task_timeout.as_secs());
            TaskFailure::failed("task_timeout", with_detail(text))
        }
    }
}

async fn abandoned(handler: JoinHandle<Result<Success, TaskFailure>>) -> Option<Result<Success, TaskFailure>> {
    handler.abort();
    let _ = handler.await;
    None
}

fn joined(ended: Result<Result<Success, TaskFailure>, tokio::task::JoinError>) -> Result<Success, TaskFailure> {
    ended.unwrap_or_else(|error| {
        let message = match error.try_into_panic() {
            Ok(panic) => panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "without a message".to_owned()),
            Err(error) => error.to_string(),
        };
        Err(TaskFailure::failed("handler_panicked", format!("this is a bug in the agent: {message}")))
    })
}

fn reason_of(live: &Live) -> String {
    live.cancel_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn conclude(result: Result<Success, TaskFailure>) -> Ended {
    let Success { output, proof } = match result {
        Ok(success) => success,
        Err(failure) => return Ended::from(failure),
    };
    match serde_json::value::to_raw_value(&output) {
        Ok(raw) if raw.get().len() <= receipt::MAX_OUTPUT_BYTES => {
            let proof = proof.as_deref().and_then(|proof| serde_json::value::to_raw_value(proof).ok());
            Ended { output: Some(raw), proof, ..Ended::plainly(Outcome::Succeeded, "ok", String::new()) }
        }
        Ok(raw) => {
            let message = format!("the output has {} bytes; at most {} fit", raw.get().len(), receipt::MAX_OUTPUT_BYTES);
            Ended::from(TaskFailure::failed("output_too_large", message))
        }
        Err(error) => Ended::from(TaskFailure::failed("output_invalid", error.to_string())),
    }
}

/// Signs the receipt, chains it to the previous one and makes it durable. Only then is it visible.
pub(super) async fn finish(
    inner: &Inner,
    note: &TaskNote,
    attempt: u32,
    started_at: Option<Timestamp>,
    phases: Vec<PhaseTiming>,
    ended: Ended,
) -> Result<(), AppendError> {
    let mut message = ended.message;
    if message.len() > receipt::MAX_MESSAGE {
        let cut = (0..=receipt::MAX_MESSAGE).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(cut);
    }
    let slot = inner.journal.reserve().await?;
    let pending = {
        // The order of receipts is the order of their records: both are fixed under this lock.
        let mut chain = inner.chain.lock().unwrap_or_else(PoisonError::into_inner);
        let payload = receipt::Payload {
            cluster_id: inner.cluster_id,
            node_id: inner.node_id,
            node_epoch: inner.node_epoch,
            task_id: note.task_id,
            task_type: note.task_type.clone(),
            task_digest: note.digest.clone(),
            agent_instance_id: inner.instance_id,
            boot_id: inner.boot_id.clone(),
            attempt: attempt.max(1),
            started_at,
            // A clock that was set back while the task ran must not make the receipt contradict itself.
            finished_at: Timestamp::now().max(started_at.unwrap_or_default()),
            outcome: ended.outcome,
            code: ended.code.to_owned(),
            message,
            output: ended.output,
            phases,
            cleanup_proof: ended.proof,
            sequence: chain.sequence + 1,
            previous_receipt: chain.digest.clone(),
        };
        let signed = payload.sign(&inner.receipt_key);
        let record = Record::Finished {
            task_id: note.task_id,
            start_by: note.start_by,
            sequence: payload.sequence,
            receipt_digest: signed.digest.clone(),
        };
        let pending = slot.append(record, signed.receipt);
        *chain = Chain { sequence: payload.sequence, digest: Some(signed.digest) };
        pending
    };
    pending.wait().await?;
    gpuaas_failpoint::hit("agent.finished");
    tracing::info!(outcome = ended.outcome.as_str(), code = ended.code, "task finished");
    inner.receipts.send_modify(|count| *count += 1);
    Ok(())
}

/// A place to run: one of the agent's, and one of the kind's if the host's owner limits it.
pub(super) struct RunSlots {
    inner: Arc<Inner>,
    kind: TaskType,
    permit: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl RunSlots {
    /// Waits for a place.
    async fn take(inner: &Arc<Inner>, kind: TaskType) -> Self {
        // The kind first, so that tasks of a limited kind do not hold places that others could use.
        let slots = loop {
            let freed = inner.kind_freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(slots) = Self::of_kind(inner, kind) {
                break slots;
            }
            freed.await;
        };
        // Never closed: the semaphore lives as long as the pipeline.
        let permit = Arc::clone(inner.places_for(kind)).acquire_owned().await.ok();
        slots.with(permit)
    }

    /// Returns a place that is free now.
    pub(super) fn take_free(inner: &Arc<Inner>, kind: TaskType) -> Option<Self> {
        let slots = Self::of_kind(inner, kind)?;
        let permit = Arc::clone(inner.places_for(kind)).try_acquire_owned().ok()?;
        Some(slots.with(Some(permit)))
    }

    /// Takes only one of the kind's places.
    fn of_kind(inner: &Arc<Inner>, kind: TaskType) -> Option<Self> {
        let mut counts = inner.kind_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind).or_default();
        let free = inner.policy.concurrency(kind).is_none_or(|limit| *count < limit);
        free.then(|| {
            *count += 1;
            Self { inner: Arc::clone(inner), kind, permit: None }
        })
    }

    fn with(mut self, permit: Option<tokio::sync::OwnedSemaphorePermit>) -> Self {
        self.permit = permit;
        self.inner.running.send_modify(|count| *count += 1);
        self
    }
}

impl Drop for RunSlots {
    fn drop(&mut self) {
        if let Some(count) = self.inner.kind_slots.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.kind) {
            *count -= 1;
        }
        if self.permit.is_some() {
            self.inner.running.send_modify(|count| *count -= 1);
        }
        self.inner.kind_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::task::{Output, package_list};

    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_is_a_failure_with_its_own_code() {
        let handler: JoinHandle<Result<Success, TaskFailure>> = tokio::spawn(async { panic!("boom") });
        let failure = joined(handler.await).expect_err("a failure");
        assert_eq!((failure.outcome, failure.code), (Outcome::Failed, "handler_panicked"));
        assert!(failure.message.contains("boom"));
    }

    #[test]
    fn an_output_that_does_not_fit_is_a_failure_and_never_cut() {
        let package = package_list::Package { name: "x".repeat(1000), version: String::new(), architecture: String::new() };
        let output = |count| {
            let packages = vec![package.clone(); count];
            let output = package_list::Output { manager: "dpkg".to_owned(), packages, matched: 1, truncated: false };
            Success::from(Output::PackageList(output))
        };
        assert_eq!(conclude(Ok(output(600))).code, "ok");
        let ended = conclude(Ok(output(700)));
        assert_eq!((ended.outcome, ended.code), (Outcome::Failed, "output_too_large"));
        assert!(ended.output.is_none());
    }

    fn bounds(abandon: &CancellationToken, drain: Duration) -> Bounds<'_> {
        let long = Duration::from_secs(3600);
        Bounds { until_deadline: long, task_timeout: long, log_drain_timeout: drain, abandon }
    }

    #[tokio::test]
    async fn a_cancelled_handler_may_finish_what_it_is_writing() {
        let (abandon, stop, live) = (CancellationToken::new(), CancellationToken::new(), Live::new());
        let (told, wrote) = (stop.clone(), Arc::new(Mutex::new(false)));
        let writing = Arc::clone(&wrote);
        let handler = tokio::spawn(async move {
            told.cancelled().await;
            tokio::task::yield_now().await;
            *writing.lock().expect("lock") = true;
            Err(TaskFailure::stopped())
        });
        live.cancel.cancel();
        let result = supervise(&bounds(&abandon, Duration::from_secs(60)), &live, handler, &stop).await.expect("ended");
        assert_eq!(result.expect_err("cancelled").outcome, Outcome::Cancelled);
        assert!(*wrote.lock().expect("lock"), "it was given the time to write");
    }

    #[tokio::test]
    async fn a_cancelled_handler_that_does_not_stop_is_dropped_after_the_drain() {
        struct Dropped(Arc<Mutex<bool>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                *self.0.lock().expect("lock") = true;
            }
        }
        let (abandon, stop, live) = (CancellationToken::new(), CancellationToken::new(), Live::new());
        let dropped = Arc::new(Mutex::new(false));
        let guard = Dropped(Arc::clone(&dropped));
        let handler = tokio::spawn(async move {
            let _guard = guard;
            std::future::pending().await
        });
        live.cancel.cancel();
        let result = supervise(&bounds(&abandon, Duration::from_millis(50)), &live, handler, &stop).await.expect("ended");
        let failure = result.expect_err("cancelled");
        assert!(failure.outcome == Outcome::Cancelled && failure.message.contains("log_drain_timeout"), "{failure:?}");
        assert!(*dropped.lock().expect("lock"), "nothing of it runs on");
    }

    #[tokio::test]
    async fn an_agent_that_shuts_down_leaves_the_task_to_be_recovered() {
        let (abandon, stop, live) = (CancellationToken::new(), CancellationToken::new(), Live::new());
        abandon.cancel();
        let handler = tokio::spawn(std::future::pending());
        assert!(supervise(&bounds(&abandon, Duration::ZERO), &live, handler, &stop).await.is_none());
    }

    #[tokio::test]
    async fn a_success_in_spite_of_a_cancellation_is_a_success() {
        let (abandon, stop, live) = (CancellationToken::new(), CancellationToken::new(), Live::new());
        let told = stop.clone();
        let handler = tokio::spawn(async move {
            told.cancelled().await;
            let packages = Vec::new();
            let output = package_list::Output { manager: "dpkg".to_owned(), packages, matched: 0, truncated: false };
            Ok(Output::PackageList(output).into())
        });
        live.cancel.cancel();
        assert!(supervise(&bounds(&abandon, Duration::from_secs(60)), &live, handler, &stop).await.expect("ended").is_ok());
    }

    #[test]
    fn what_stopped_a_task_decides_how_it_ended() {
        let live = Live::new();
        *live.cancel_reason.lock().expect("lock") = "asked".to_owned();
        let because = |cause| stopped_because(&cause, &live, Duration::from_secs(9), "dropped".to_owned());
        assert_eq!(because(StopCause::Cancelled).message, "asked; dropped");
        assert_eq!(
            (because(StopCause::Deadline).outcome, because(StopCause::Deadline).code),
            (Outcome::Failed, "deadline_exceeded")
        );
        assert!(because(StopCause::Timeout).message.contains("9 s"));
    }
}
