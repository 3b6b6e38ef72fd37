//! Handlers: one file per kind of task in the catalog.
//!
//! `run` does the work; `recover` is called after a restart for a task that had started, and either completes it or reports that it was
//! interrupted. Both get only what they need: the host, the log, progress and a cancellation token.

mod allocation_deprovision_user;
mod allocation_provision_user;
mod diag_health_probe;
mod diag_ping;
mod package_list;
mod readiness;
mod slice_console_read;
mod slice_topology_discover;
mod slice_vm_power;
mod slice_vm_provision;
mod slice_vm_release;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use gpuaas_contract::cleanup::CleanupProof;
use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::link::{Progress, from_node};
use gpuaas_contract::receipt::{Outcome, PhaseTiming};
use gpuaas_contract::task::{Output, Task};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::guests::DomainState;
use gpuaas_host::{Host, HostError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::guests::Guests;
use crate::journal::{Journal, Record};
use crate::policy::SliceRules;
use crate::spool::Spool;

/// Everything a handler may use.
pub(crate) struct Context {
    pub(crate) task_id: TaskId,
    pub(crate) host: Host,
    /// Cancelled when the task is cancelled or out of time: the handler stops before its next side effect.
    pub(crate) stop: CancellationToken,
    pub(crate) deadline: Timestamp,
    pub(crate) log: Log,
    pub(crate) phases: Phases,
    /// Whether the host policy still allows this kind of task. `recover` needs it: the policy may have changed since the task started.
    pub(crate) still_allowed: bool,
    /// How many times the task has been started, including this time.
    pub(crate) attempt: u32,
    /// Identifies the current boot of the host.
    pub(crate) boot_id: String,
    /// The `[slices]` section of the host policy.
    pub(crate) rules: SliceRules,
    /// In-memory state about the guests of this host, shared by all tasks.
    pub(crate) guests: Guests,
}

pub(crate) struct Log {
    pub(crate) task_id: TaskId,
    pub(crate) spool: Spool,
}

impl Log {
    pub(crate) async fn line(&self, text: String) {
        self.spool.append(self.task_id, "stdout", text).await;
    }
}

/// Records and reports which phase the task is in.
pub(crate) struct Phases {
    pub(crate) task_id: TaskId,
    pub(crate) outbound: mpsc::Sender<from_node::Message>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) timings: Arc<Mutex<Vec<(String, Instant)>>>,
}

impl Phases {
    /// Enters a phase: records it in the journal, reports it to the control plane if connected, and starts its timing for the receipt.
    pub(crate) async fn enter(&self, phase: &'static str, message: &str) {
        tracing::info!(phase, message, "task phase");
        self.timings.lock().unwrap_or_else(PoisonError::into_inner).push((phase.to_owned(), Instant::now()));
        let at = Timestamp::now();
        if let Ok(slot) = self.journal.reserve().await {
            // Not awaited: the record of a phase helps people and recovery, but nothing relies on it being durable.
            drop(slot.append(Record::Phase { task_id: self.task_id, phase: phase.to_owned(), at }, Vec::new()));
        }
        let progress =
            Progress { task_id: self.task_id.to_string(), phase: phase.to_owned(), message: message.to_owned(), at_us: at.0 };
        // The link may be down, and the receipt reports all phases anyway.
        let _ = self.outbound.try_send(from_node::Message::Progress(progress));
    }

    /// Reports progress within the phase. It is sent to the control plane if connected, and not recorded.
    pub(crate) fn tell(&self, phase: &'static str, message: String) {
        let at_us = Timestamp::now().0;
        let progress = Progress { task_id: self.task_id.to_string(), phase: phase.to_owned(), message, at_us };
        let _ = self.outbound.try_send(from_node::Message::Progress(progress));
    }
}

/// Durations of the phases entered so far, the last one until now.
pub(crate) fn timings(entered: &[(String, Instant)]) -> Vec<PhaseTiming> {
    let ends = entered.iter().skip(1).map(|(_, at)| *at).chain([Instant::now()]);
    let timing = |((phase, start), end): (&(String, Instant), Instant)| PhaseTiming {
        phase: phase.clone(),
        milliseconds: u64::try_from(end.saturating_duration_since(*start).as_millis()).unwrap_or(u64::MAX),
    };
    entered.iter().zip(ends).map(timing).collect()
}

/// How a task ended when it did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskFailure {
    pub(crate) outcome: Outcome,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// What was proven clean despite the failure, by tasks that undo what they began.
    pub(crate) proof: Option<Box<CleanupProof>>,
}

/// How a task ended when it did succeed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Success {
    pub(crate) output: Output,
    pub(crate) proof: Option<Box<CleanupProof>>,
}

impl From<Output> for Success {
    fn from(output: Output) -> Self {
        Self { output, proof: None }
    }
}

impl From<HostError> for TaskFailure {
    fn from(error: HostError) -> Self {
        Self::failed(error.code, error.message)
    }
}

impl TaskFailure {
    pub(crate) fn failed(code: &'static str, message: String) -> Self {
        Self { outcome: Outcome::Failed, code, message, proof: None }
    }

    /// The handler stopped because its `stop` token was cancelled.
    pub(crate) fn stopped() -> Self {
        Self { outcome: Outcome::Cancelled, code: "cancelled", message: String::new(), proof: None }
    }

    pub(crate) fn interrupted(code: &'static str, message: &str) -> Self {
        Self { outcome: Outcome::Interrupted, code, message: message.to_owned(), proof: None }
    }
}

/// Runs a task for the first time.
pub(crate) async fn run(task: Task, context: &Context) -> Result<Success, TaskFailure> {
    let output = match task {
        Task::DiagPing(params) => diag_ping::run(&params, context).await.map(Output::DiagPing)?,
        Task::DiagHealthProbe(_) => diag_health_probe::run(context).await.map(Output::DiagHealthProbe)?,
        Task::PackageList(params) => package_list::run(&params, context).await.map(Output::PackageList)?,
        Task::SliceTopologyDiscover(params) => {
            slice_topology_discover::run(&params, context).await.map(Output::SliceTopologyDiscover)?
        }
        Task::SliceVmProvision(params) => return slice_vm_provision::run(&params, context).await,
        Task::SliceVmRelease(params) => return slice_vm_release::run(&params, context).await,
        Task::SliceVmPower(params) => slice_vm_power::run(&params, context).await.map(Output::SliceVmPower)?,
        Task::SliceConsoleRead(params) => slice_console_read::run(&params, context).await.map(Output::SliceConsoleRead)?,
        Task::AllocationProvisionUser(params) => {
            allocation_provision_user::run(&params, context).await.map(Output::AllocationProvisionUser)?
        }
        Task::AllocationDeprovisionUser(params) => {
            allocation_deprovision_user::run(&params, context).await.map(Output::AllocationDeprovisionUser)?
        }
    };
    Ok(output.into())
}

/// Completes a task that had started before the agent was restarted.
pub(crate) async fn recover(task: Task, context: &Context) -> Result<Success, TaskFailure> {
    match task {
        Task::DiagPing(params) => Ok(diag_ping::recover(&params, context).await.map(Output::DiagPing)?.into()),
        Task::SliceVmProvision(params) => slice_vm_provision::recover(&params, context).await,
        // Every step of a release is idempotent, and all of them must run again: a half-finished release must not remain.
        Task::SliceVmRelease(params) => slice_vm_release::run(&params, context).await,
        Task::SliceVmPower(params) => Ok(slice_vm_power::recover(&params, context).await.map(Output::SliceVmPower)?.into()),
        Task::AllocationProvisionUser(params) => {
            Ok(allocation_provision_user::recover(&params, context).await.map(Output::AllocationProvisionUser)?.into())
        }
        // The same holds for removing a user.
        Task::AllocationDeprovisionUser(params) => {
            Ok(allocation_deprovision_user::run(&params, context).await.map(Output::AllocationDeprovisionUser)?.into())
        }
        // There is nothing to clean up, and a stale result would be useless: the requester decides whether to run the task again.
        Task::DiagHealthProbe(_) | Task::PackageList(_) | Task::SliceTopologyDiscover(_) | Task::SliceConsoleRead(_) => {
            Err(TaskFailure::interrupted("agent_restarted", "the agent was restarted while the task ran; run it again"))
        }
    }
}

/// Asks a guest to shut down, and powers it off if it does not do so in time or if the task is stopped. Returns whether it was powered off.
async fn shut_down(context: &Context, allocation_id: AllocationId, seconds: u32) -> Result<bool, TaskFailure> {
    context.host.domain_shutdown(allocation_id).await?;
    let state = tokio::select! {
        biased;
        () = context.stop.cancelled() => DomainState::Running,
        state = context.host.domain_wait_off(allocation_id, context.rules.shutdown_time(seconds)) => state?,
    };
    let hard = state == DomainState::Running;
    if hard {
        context.log.line("the guest did not shut down in time and is stopped".to_owned()).await;
        context.host.domain_destroy(allocation_id).await?;
    }
    Ok(hard)
}

/// Runs a short blocking call on the host in a blocking thread.
async fn on_host<T: Send + 'static>(context: &Context, call: impl FnOnce(&Host) -> T + Send + 'static) -> Result<T, TaskFailure> {
    let host = context.host.clone();
    let result = gpuaas_runtime::blocking(move || call(&host)).await;
    result.map_err(|error| TaskFailure::failed("handler_panicked", error.to_string()))
}
