//! Tasks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use base64::Engine as _;
use gpuaas_api::dto::{
    self, EnvelopeEvidence, Page, Reason, StateFilter, TaskCreate, TaskEvidence, TaskListQuery, TaskLogs, TaskLogsQuery,
};
use gpuaas_api::routes;
use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::{dsse, receipt};
use gpuaas_domain::task::{self, TaskRecord};
use gpuaas_domain::{Refusal, Wakeup, slice};
use gpuaas_store::{AuditFilter, TaskFilter};

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::task_create::{self, Asked, TaskRequest};
use super::{CreatedOnce, Location};
use super::{node_name, page, page_limit, parse_id, parse_opt};
use crate::Control;
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::transact;

type Shared = State<Arc<Control>>;

/// How long a request for new log lines is held.
const FOLLOW: Duration = Duration::from_secs(20);

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonBody(wanted): JsonBody<TaskCreate>,
) -> Result<CreatedOnce<Json<dto::Task>>, Rejected> {
    let task_type = TaskType::parse(&wanted.task_type).ok_or_else(|| {
        let known = TaskType::ALL.map(TaskType::as_str).join(", ");
        Refusal::invalid("task_type_unknown", format!("there is no task type `{}`; choose from {known}", wanted.task_type))
            .in_body("/task_type")
    })?;
    slice::check_by_hand(task_type)?;
    let parsed = Task::parse(task_type, &wanted.params.to_string())
        .map_err(|error| Refusal::invalid("params_invalid", error.to_string()).in_body("/params"))?;
    let idempotency_key = task_create::idempotency_key(&headers)?;
    let node = node_name::in_body(&control, &wanted.node).await?;
    let node_name = node.name.clone();
    let asked = Asked {
        request: TaskRequest::Plain(parsed),
        queue_time: wanted.queue_seconds.map(Duration::from_secs),
        timeout: wanted.timeout_seconds.map(Duration::from_secs),
        idempotency_key,
        context: caller.context(),
    };
    let (made, task) = task_create::make(&control, node, asked).await?;
    let location = Location::of(routes::TASK, [&task.id]);
    let document = Json(with_receipt(&control, task, node_name).await?);
    Ok(CreatedOnce { is_new: made, location, document })
}

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<TaskListQuery>,
) -> Result<Json<Page<dto::Task>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let node = match &query.node {
        Some(name) => Some(node_name::find(&control, name).await?.id),
        None => None,
    };
    let (state, open_only) = match query.state {
        Some(StateFilter::Is(state)) => (Some(state), false),
        Some(StateFilter::Open) => (None, true),
        None => (None, false),
    };
    let mut before = parse_opt(query.after.as_deref())?;
    if let (None, Some(prefix)) = (before, &query.id_prefix) {
        // Ids sort by time: start right behind the last id that could have the prefix.
        let padded = format!("{prefix:f<width$}", width = TaskId::PREFIX.len() + 32);
        before = Some(parse_id(&padded)?);
    }
    let filter = TaskFilter { node, state, open_only, correlation_id: None };
    let mut found = control.store.task_list(&filter, before, limit.saturating_add(1)).await?;
    if let Some(prefix) = &query.id_prefix {
        let matching = found.iter().take_while(|task| task.id.to_string().starts_with(prefix.as_str())).count();
        found.truncate(matching);
    }
    let found = page(found, limit, |task| task.id.to_string());
    let mut names: HashMap<NodeId, String> = HashMap::new();
    let mut items = Vec::with_capacity(found.items.len());
    for task in found.items {
        let name = match names.get(&task.node_id) {
            Some(name) => name.clone(),
            None => {
                let name = name_of(&control, task.node_id).await?;
                names.insert(task.node_id, name.clone());
                name
            }
        };
        items.push(row_shown(&control, task, name));
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn show(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::Task>, Rejected> {
    let task = get(&control, parse_id(&id)?).await?;
    Ok(Json(Audience::of(&caller.principal).task(to_dto(&control, task).await?)))
}

pub(super) async fn get(control: &Control, id: TaskId) -> Result<TaskRecord, ControlError> {
    let unknown = || Refusal::not_found("task_unknown", format!("there is no task {id}"));
    Ok(control.store.task_get(id).await?.ok_or_else(unknown)?)
}

async fn name_of(control: &Control, node: NodeId) -> Result<String, ControlError> {
    Ok(control.store.node_get(node).await?.map(|node| node.name).unwrap_or_default())
}

/// A task as callers see it, with what its receipt says.
pub(super) async fn to_dto(control: &Control, task: TaskRecord) -> Result<dto::Task, ControlError> {
    let name = name_of(control, task.node_id).await?;
    with_receipt(control, task, name).await
}

async fn with_receipt(control: &Control, task: TaskRecord, node_name: String) -> Result<dto::Task, ControlError> {
    let receipt = match task.receipt_digest {
        Some(_) => control.store.receipt_get(task.id).await?,
        None => None,
    };
    let mut shown = row_shown(control, task, node_name);
    if let Some(row) = receipt {
        // Verified when it was stored; this is only for show. `gpuaas task verify` checks it again.
        let payload = dsse::payload_unverified(&row.receipt).map_err(|e| ControlError::Internal(e.to_string()))?;
        let reported: receipt::Payload = serde_json::from_slice(&payload).map_err(|e| ControlError::Internal(e.to_string()))?;
        let output = reported.output.map(|raw| serde_json::from_str(raw.get())).transpose();
        shown.output = output.map_err(|e| ControlError::Internal(e.to_string()))?;
        shown.phases = reported.phases;
    }
    Ok(shown)
}

/// A task as its row tells it.
pub(super) fn row_shown(control: &Control, task: TaskRecord, node_name: String) -> dto::Task {
    let progress = if task.state.ended() { None } else { control.progress.get(task.id) };
    dto::Task {
        id: task.id,
        node_id: task.node_id,
        node_name,
        node_epoch: task.node_epoch,
        task_type: task.task_type.as_str().to_owned(),
        params: serde_json::from_str(&task.params).unwrap_or_default(),
        state: task.state.into(),
        requested_by: task.requested_by,
        correlation_id: task.correlation_id,
        idempotency_key: task.idempotency_key,
        created_at: task.created_at,
        queue_until: task.queue_until,
        timeout_seconds: task.timeout.as_secs(),
        dispatches: task.dispatches,
        lease_until: task.lease_until,
        cancel_requested_at: task.cancel_requested_at,
        accepted_at: task.accepted_at,
        started_at: task.started_at,
        ended_at: task.ended_at,
        code: task.code,
        message: task.message,
        receipt_digest: task.receipt_digest,
        progress,
        output: None,
        phases: Vec::new(),
    }
}

pub(super) async fn cancel(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Task>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    transact(&control, || async { Ok(((), task::cancel(&get(&control, id).await?, &reason, &context)?)) }).await?;
    let task = get(&control, id).await?;
    Ok(Json(Audience::of(&caller.principal).task(to_dto(&control, task).await?)))
}

pub(super) async fn logs(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    Params(query): Params<TaskLogsQuery>,
) -> Result<Json<TaskLogs>, Rejected> {
    let id = parse_id(&id)?;
    let limit = page_limit(query.limit)?;
    let after = query.after.unwrap_or(0);
    let follow = query.follow == Some(true);
    let deadline = tokio::time::Instant::now() + FOLLOW;
    let mut wakeups = control.store.wakeups();
    loop {
        // The task before its lines: if it had ended by then, no line can come after what is read next, except late
        // deliveries, which a later request finds.
        let task = get(&control, id).await?;
        let mut lines = control.store.log_list(id, after, limit.saturating_add(1)).await?;
        let ended = task.state.ended();
        if !lines.is_empty() || ended || !follow || control.shutdown.is_cancelled() {
            let at_end = lines.len() <= usize::try_from(limit).unwrap_or(usize::MAX);
            lines.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            let next_after = lines.last().map_or(after, |line| line.sequence);
            let audience = Audience::of(&caller.principal);
            let lines = lines.into_iter().filter(|line| audience.sees_stream(&line.stream)).map(line_shown).collect();
            return Ok(Json(TaskLogs { lines, next_after, at_end, complete: at_end && ended }));
        }
        let changed = tokio::time::timeout_at(deadline, wait_for(&mut wakeups, id));
        let changed = tokio::select! { biased; () = control.shutdown.cancelled() => false, changed = changed => changed.is_ok() };
        if !changed {
            return Ok(Json(TaskLogs { lines: Vec::new(), next_after: after, at_end: true, complete: false }));
        }
    }
}

/// Resolves when the task may have changed.
async fn wait_for(wakeups: &mut tokio::sync::broadcast::Receiver<Wakeup>, id: TaskId) {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        match wakeups.recv().await {
            Ok(Wakeup::Task(task)) if task == id => return,
            Ok(
                Wakeup::Task(_)
                | Wakeup::Progress { .. }
                | Wakeup::NodeWork(_)
                | Wakeup::NodeAccess(_)
                | Wakeup::Allocation(_)
                | Wakeup::Fleet(_)
                | Wakeup::Outbox
                | Wakeup::Link(_)
                | Wakeup::Rights,
            ) => {}
            Err(RecvError::Lagged(_) | RecvError::Closed) => return,
        }
    }
}

fn line_shown(line: gpuaas_domain::decision::TaskLogLine) -> dto::TaskLogLine {
    dto::TaskLogLine { sequence: line.sequence, at: line.at, stream: line.stream, text: line.text, dropped: line.dropped }
}

pub(super) async fn evidence(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<TaskEvidence>, Rejected> {
    let task = get(&control, parse_id(&id)?).await?;
    let node = node_name::find(&control, &task.node_id.to_string()).await?;
    let (receipt_key, node_record) = if node.epoch == task.node_epoch {
        (node.receipt_key, Some(node.record))
    } else {
        let (key, record) = keys_of_epoch(&control, &task).await?;
        (key, Some(record))
    };
    let envelopes = control.store.envelope_list(task.id).await?;
    let receipt = control.store.receipt_get(task.id).await?.map(|row| row.receipt);
    Ok(Json(TaskEvidence {
        envelopes: envelopes
            .into_iter()
            .map(|row| EnvelopeEvidence {
                digest: row.digest,
                key_id: row.key_id,
                signed_at: row.signed_at,
                envelope: row.envelope,
            })
            .collect(),
        receipt,
        receipt_key,
        node_record,
        cluster_id: control.cluster_id,
        root_key: control.keys.root_key(),
        verifier_set: control.keys.set_document().1,
        task: to_dto(&control, task).await?,
    }))
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
