//! Tasks.

pub(in crate::app) mod create;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use gpuaas_api::dto::{Page, TaskCreate};
use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_domain::decision::TaskLogLine;
use gpuaas_domain::task::{self, TaskRecord, TaskState};
use gpuaas_domain::{Refusal, Wakeup, slice};
use gpuaas_store::{AuditFilter, EnvelopeRow, TaskFilter};
use tokio::sync::broadcast::error::RecvError;

use self::create::{NewTaskRequest, TaskRequest};
use super::{Caller, PageRequest, nodes};
use crate::Control;
use crate::error::ControlError;

/// How long a request for new log lines is held.
const FOLLOW: Duration = Duration::from_secs(20);

/// A task, and what its node is called.
pub(crate) struct NamedTask {
    /// The task.
    pub(crate) task: TaskRecord,
    /// The name of its node.
    pub(crate) node_name: String,
}

/// Creates a task that an operator asks for by its type.
pub(crate) async fn create(control: &Arc<Control>, caller: &Caller, wanted: TaskCreate) -> Result<NamedTask, ControlError> {
    let task_type = TaskType::parse(&wanted.task_type).ok_or_else(|| {
        let known = TaskType::ALL.map(TaskType::as_str).join(", ");
        Refusal::invalid("task_type_unknown", format!("there is no task type `{}`; choose from {known}", wanted.task_type))
            .in_body("/task_type")
    })?;
    slice::check_by_hand(task_type)?;
    let parsed = Task::parse(task_type, &wanted.params.to_string())
        .map_err(|error| Refusal::invalid("params_invalid", error.to_string()).in_body("/params"))?;
    let node = nodes::find_in_body(control, &wanted.node).await?;
    let node_name = node.name.clone();
    let new = NewTaskRequest {
        request: TaskRequest::Plain(parsed),
        queue_time: wanted.queue_seconds.map(Duration::from_secs),
        timeout: wanted.timeout_seconds.map(Duration::from_secs),
    };
    Ok(NamedTask { task: create::create(control, caller, node, new).await?, node_name })
}

/// Which tasks are listed.
#[derive(Debug, Default)]
pub(crate) struct TaskListFilter {
    /// Those of the node with this id or name.
    pub(crate) node: Option<String>,
    /// Those in this state.
    pub(crate) state: Option<TaskState>,
    /// Those that are not over.
    pub(crate) open_only: bool,
    /// Those whose id begins like this.
    pub(crate) id_prefix: Option<String>,
}

/// Lists tasks, the newest first.
pub(crate) async fn list(
    control: &Control,
    filter: TaskListFilter,
    page: &PageRequest<TaskId>,
) -> Result<Page<NamedTask>, ControlError> {
    let node = nodes::find_id(control, filter.node.as_deref()).await?;
    let mut before = page.after;
    if let (None, Some(prefix)) = (before, &filter.id_prefix) {
        // Ids sort by time: start right behind the last id that could have the prefix.
        let padded = format!("{prefix:f<width$}", width = TaskId::PREFIX.len() + 32);
        before = Some(padded.parse().map_err(ControlError::id_invalid)?);
    }
    let tasks = TaskFilter { node, state: filter.state, open_only: filter.open_only, correlation_id: None };
    let mut found = control.store.task_list(&tasks, before, page.rows()).await?;
    if let Some(prefix) = &filter.id_prefix {
        let matching = found.iter().take_while(|task| task.id.to_string().starts_with(prefix.as_str())).count();
        found.truncate(matching);
    }
    let found = page.cut(found, |task| task.id.to_string());
    let mut names: HashMap<NodeId, String> = HashMap::new();
    let mut items = Vec::with_capacity(found.items.len());
    for task in found.items {
        let node_name = match names.get(&task.node_id) {
            Some(name) => name.clone(),
            None => {
                let name = nodes::name_of(control, task.node_id).await?;
                names.insert(task.node_id, name.clone());
                name
            }
        };
        items.push(NamedTask { task, node_name });
    }
    Ok(Page { items, next: found.next })
}

/// The task with this id.
pub(crate) async fn get(control: &Control, id: TaskId) -> Result<TaskRecord, ControlError> {
    let unknown = || Refusal::not_found("task_unknown", format!("there is no task {id}"));
    Ok(control.store.task_get(id).await?.ok_or_else(unknown)?)
}

/// Cancels a task, as far as its node still can.
pub(crate) async fn cancel(control: &Control, caller: &Caller, id: TaskId, reason: &str) -> Result<TaskRecord, ControlError> {
    let context = caller.context();
    caller.transact(control, || async { Ok(((), task::cancel(&get(control, id).await?, reason, &context)?)) }).await?;
    get(control, id).await
}

/// A part of a task's log.
pub(crate) struct LogPart {
    /// Its lines.
    pub(crate) lines: Vec<TaskLogLine>,
    /// Where the next part begins.
    pub(crate) next_after: u64,
    /// There are no more lines now.
    pub(crate) at_end: bool,
    /// There will be no more lines.
    pub(crate) complete: bool,
}

/// Reads the log of a task after a line. With `follow`, waits a while for new lines if there are none.
pub(crate) async fn logs(control: &Control, id: TaskId, after: u64, limit: u32, follow: bool) -> Result<LogPart, ControlError> {
    let deadline = tokio::time::Instant::now() + FOLLOW;
    let mut wakeups = control.store.wakeups();
    loop {
        // The task before its lines: if it had ended by then, no line can come after what is read next, except late
        // deliveries, which a later request finds.
        let task = get(control, id).await?;
        let mut lines = control.store.log_list(id, after, limit.saturating_add(1)).await?;
        let ended = task.state.ended();
        if !lines.is_empty() || ended || !follow || control.shutdown.is_cancelled() {
            let at_end = lines.len() <= usize::try_from(limit).unwrap_or(usize::MAX);
            lines.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            let next_after = lines.last().map_or(after, |line| line.sequence);
            return Ok(LogPart { lines, next_after, at_end, complete: at_end && ended });
        }
        let changed = tokio::time::timeout_at(deadline, wait_for(&mut wakeups, id));
        let changed = tokio::select! { biased; () = control.shutdown.cancelled() => false, changed = changed => changed.is_ok() };
        if !changed {
            return Ok(LogPart { lines: Vec::new(), next_after: after, at_end: true, complete: false });
        }
    }
}

/// Resolves when the task may have changed.
async fn wait_for(wakeups: &mut tokio::sync::broadcast::Receiver<Wakeup>, id: TaskId) {
    loop {
        match wakeups.recv().await {
            Ok(Wakeup::Task(task)) if task == id => return,
            Ok(
                Wakeup::Task(_)
                | Wakeup::Progress { .. }
                | Wakeup::NodeWork(_)
                | Wakeup::NodeAccess(_)
                | Wakeup::Allocation(_)
                | Wakeup::AllocationAdvanced(_)
                | Wakeup::Fleet(_)
                | Wakeup::Outbox
                | Wakeup::Link(_)
                | Wakeup::Rights,
            ) => {}
            Err(RecvError::Lagged(_) | RecvError::Closed) => return,
        }
    }
}

/// Everything that proves what a task was and what came of it.
pub(crate) struct Evidence {
    /// The task.
    pub(crate) task: TaskRecord,
    /// What was signed for it.
    pub(crate) envelopes: Vec<EnvelopeRow>,
    /// What the node signed about it.
    pub(crate) receipt: Option<Vec<u8>>,
    /// The key the node signed with.
    pub(crate) receipt_key: VerifyingKey,
    /// The signed record of that key.
    pub(crate) node_record: Vec<u8>,
}

/// Collects the evidence of a task.
pub(crate) async fn evidence(control: &Control, id: TaskId) -> Result<Evidence, ControlError> {
    let task = get(control, id).await?;
    let node = nodes::get(control, task.node_id).await?;
    let (receipt_key, node_record) = match node.epoch == task.node_epoch {
        true => (node.receipt_key, node.record),
        false => keys_of_epoch(control, &task).await?,
    };
    let envelopes = control.store.envelope_list(task.id).await?;
    let receipt = control.store.receipt_get(task.id).await?.map(|row| row.receipt);
    Ok(Evidence { task, envelopes, receipt, receipt_key, node_record })
}

/// The receipt key a node had in an earlier epoch and the signed record of it, from the audit row of that enrollment.
async fn keys_of_epoch(control: &Control, task: &TaskRecord) -> Result<(VerifyingKey, Vec<u8>), ControlError> {
    let filter =
        AuditFilter { target: Some(task.node_id.to_string()), action: Some("node.enroll".to_owned()), ..AuditFilter::default() };
    let internal = |error: &dyn std::fmt::Display| ControlError::Internal(format!("audit row of an enrollment: {error}"));
    for row in control.store.audit_list(0, 1000, &filter).await? {
        let body: serde_json::Value = serde_json::from_str(&row.body).map_err(|e| internal(&e))?;
        let detail = &body["detail"];
        if detail["epoch"].as_u64() == Some(task.node_epoch) {
            let key = serde_json::from_value(detail["receipt_key"].clone()).map_err(|e| internal(&e))?;
            let record = base64::engine::general_purpose::STANDARD.decode(detail["record"].as_str().unwrap_or_default());
            return Ok((key, record.map_err(|e| internal(&e))?));
        }
    }
    Err(Refusal::not_found("receipt_key_unknown", format!("the receipt key of epoch {} is not on record", task.node_epoch))
        .into())
}
