//! Tasks.

mod watch;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, EnvelopeEvidence, Page, Reason, StateFilter, TaskCreate, TaskEvidence, TaskListQuery, TaskLogs, TaskLogsQuery,
};
use gpuaas_api::routes;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::{dsse, receipt};
use gpuaas_domain::decision::TaskLogLine;
use gpuaas_domain::task::TaskRecord;

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_limit, page_request};
use crate::Control;
use crate::app::tasks::{self, NamedTask, TaskListFilter};
use crate::app::{Caller, nodes};
use crate::error::ControlError;

pub(super) use watch::watch;

type Shared = State<Arc<Control>>;

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<TaskCreate>,
) -> Result<(StatusCode, Location, Json<dto::Task>), Rejected> {
    let NamedTask { task, node_name } = tasks::create(&control, &caller, wanted).await?;
    let location = Location::of(routes::TASK, [&task.id]);
    Ok((StatusCode::CREATED, location, Json(with_receipt(&control, task, node_name).await?)))
}

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<TaskListQuery>,
) -> Result<Json<Page<dto::Task>>, Rejected> {
    let (state, open_only) = match query.state {
        Some(StateFilter::Is(state)) => (Some(state), false),
        Some(StateFilter::Open) => (None, true),
        None => (None, false),
    };
    let filter = TaskListFilter { node: query.node, state, open_only, id_prefix: query.id_prefix };
    let found = tasks::list(&control, filter, &page_request(query.after.as_deref(), query.limit)?).await?;
    let to_dto = |NamedTask { task, node_name }| row_to_dto(&control, task, node_name);
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn show(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<TaskId>,
) -> Result<Json<dto::Task>, Rejected> {
    let task = tasks::get(&control, id).await?;
    Ok(Json(shown(&control, &caller, task).await?))
}

/// A task as the caller sees it.
pub(super) async fn shown(control: &Control, caller: &Caller, task: TaskRecord) -> Result<dto::Task, ControlError> {
    Ok(caller.audience().task(to_dto(control, task).await?))
}

/// A task as operators see it, with the contents of its receipt.
pub(super) async fn to_dto(control: &Control, task: TaskRecord) -> Result<dto::Task, ControlError> {
    let name = nodes::name_of(control, task.node_id).await?;
    with_receipt(control, task, name).await
}

async fn with_receipt(control: &Control, task: TaskRecord, node_name: String) -> Result<dto::Task, ControlError> {
    let receipt = match task.receipt_digest {
        Some(_) => control.store.receipt_get(task.id).await?,
        None => None,
    };
    let mut shown = row_to_dto(control, task, node_name);
    if let Some(row) = receipt {
        // The signature was verified when the receipt was stored; this is only for display. `gpuaas task verify` verifies it again.
        let payload = dsse::payload_unverified(&row.receipt).map_err(|e| ControlError::Internal(e.to_string()))?;
        let reported: receipt::Payload = serde_json::from_slice(&payload).map_err(|e| ControlError::Internal(e.to_string()))?;
        let output = reported.output.map(|raw| serde_json::from_str(raw.get())).transpose();
        shown.output = output.map_err(|e| ControlError::Internal(e.to_string()))?;
        shown.phases = reported.phases;
    }
    Ok(shown)
}

/// A task from its row alone, without the receipt.
pub(super) fn row_to_dto(control: &Control, task: TaskRecord, node_name: String) -> dto::Task {
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
    Segments(id): Segments<TaskId>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Task>, Rejected> {
    let task = tasks::cancel(&control, &caller, id, &reason).await?;
    Ok(Json(shown(&control, &caller, task).await?))
}

pub(super) async fn logs(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<TaskId>,
    Params(query): Params<TaskLogsQuery>,
) -> Result<Json<TaskLogs>, Rejected> {
    let (limit, after) = (page_limit(query.limit)?, query.after.unwrap_or(0));
    let part = tasks::logs(&control, id, after, limit, query.follow == Some(true)).await?;
    let audience = caller.audience();
    let lines = part.lines.into_iter().filter(|line| audience.sees_stream(&line.stream)).map(line_to_dto).collect();
    Ok(Json(TaskLogs { lines, next_after: part.next_after, at_end: part.at_end, complete: part.complete }))
}

fn line_to_dto(line: TaskLogLine) -> dto::TaskLogLine {
    dto::TaskLogLine { sequence: line.sequence, at: line.at, stream: line.stream, text: line.text, dropped: line.dropped }
}

pub(super) async fn evidence(State(control): Shared, Segments(id): Segments<TaskId>) -> Result<Json<TaskEvidence>, Rejected> {
    let evidence = tasks::evidence(&control, id).await?;
    let envelope = |row: gpuaas_store::EnvelopeRow| EnvelopeEvidence {
        digest: row.digest,
        key_id: row.key_id,
        signed_at: row.signed_at,
        envelope: row.envelope,
    };
    Ok(Json(TaskEvidence {
        envelopes: evidence.envelopes.into_iter().map(envelope).collect(),
        receipt: evidence.receipt,
        receipt_key: evidence.receipt_key,
        node_record: Some(evidence.node_record),
        cluster_id: control.cluster_id,
        root_key: control.keys.root_key(),
        verifier_set: control.keys.set_document().1,
        task: to_dto(&control, evidence.task).await?,
    }))
}
