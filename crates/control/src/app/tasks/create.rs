//! Creating a task: it is recorded with whatever becomes true with it, and sent right away if the node's link has room.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::TaskId;
use gpuaas_contract::task::Task;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Decision;
use gpuaas_domain::budget::Scope;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::Node;
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, MAX_UNFINISHED_PER_NODE, NewTask, TaskRecord};

use crate::Control;
use crate::app::slices::SliceRequest;
use crate::app::{Caller, nodes};
use crate::error::ControlError;

/// What a caller asks for.
pub(in crate::app) struct NewTaskRequest {
    pub(in crate::app) request: TaskRequest,
    pub(in crate::app) queue_time: Option<Duration>,
    pub(in crate::app) timeout: Option<Duration>,
}

/// A task by itself, or one that goes with changes of slots.
pub(in crate::app) enum TaskRequest {
    Plain(Task),
    Slice(SliceRequest),
}

/// A task to create now.
pub(in crate::app) struct Planned {
    pub(in crate::app) task: Task,
    /// What is written besides the task.
    pub(in crate::app) decision: Decision,
}

impl TaskRequest {
    async fn plan(&self, control: &Control, node: &Node, id: TaskId, context: &Context) -> Result<Planned, ControlError> {
        match self {
            Self::Plain(task) => Ok(Planned { task: task.clone(), decision: Decision::default() }),
            Self::Slice(request) => request.plan(control, node, id, context).await,
        }
    }
}

/// Creates the task. On its own, because a caller that hangs up must not leave a task that is recorded and never sent.
pub(in crate::app) async fn create(
    control: &Arc<Control>,
    caller: &Caller,
    node: Node,
    new: NewTaskRequest,
) -> Result<TaskRecord, ControlError> {
    let (owned, caller) = (Arc::clone(control), caller.clone());
    let creating = control.background.spawn(async move { create_here(&owned, &caller, node, new).await });
    creating.await.map_err(|error| ControlError::Internal(format!("creating the task failed: {error}")))?
}

async fn create_here(
    control: &Control,
    caller: &Caller,
    node: Node,
    NewTaskRequest { request, queue_time, timeout }: NewTaskRequest,
) -> Result<TaskRecord, ControlError> {
    let (node_id, id, context) = (node.id, TaskId::generate(), caller.context());
    let place = control.hub.place(&node, id);
    let attempt = async |known: Option<Node>| {
        let node = match known {
            Some(node) => node,
            None => nodes::get(control, node_id).await?,
        };
        // Where there is a place nothing waits, and the link has fewer tasks than a node may.
        let room = match place {
            Some(_) => Ok(()),
            None => control.store.task_unfinished_below(node_id, MAX_UNFINISHED_PER_NODE).await?,
        };
        let unfinished = room.err().unwrap_or(0);
        let mut planned = request.plan(control, &node, id, &context).await?;
        if planned.task.task_type().destroys().is_some() {
            let of = planned.task.holder().map(|holder| holder.allocation_id);
            planned.decision = planned.decision.and(control.budget.take(control, Scope::Operators, of, &context).await?);
        }
        let new = NewTask {
            id,
            timeout: timeout.unwrap_or_else(|| planned.task.timeout()),
            task: planned.task,
            queue_time: queue_time.unwrap_or(DEFAULT_QUEUE_TIME),
            idempotency_key: caller.idempotency_key().map(str::to_owned),
        };
        let intent = |task: &TaskRecord| control.keys.intent_mac(&task::intent_text(task));
        if place.is_some() {
            let sign = |task: &TaskRecord| control.keys.outgoing(task, &node, context.now);
            let (task, outgoing, decision) = task::create_sent(&node, new, unfinished, &context, intent, sign)?;
            return Ok(((task, Some(outgoing.signed)), decision.and(planned.decision)));
        }
        let (task, decision) = task::create(&node, new, unfinished, &context, intent)?;
        Ok(((task, None), decision.and(planned.decision)))
    };
    let (task, signed) = caller.transact_knowing(control, node, attempt).await?;
    gpuaas_failpoint::hit("server.enqueued");
    if let (Some(place), Some(signed)) = (place, signed) {
        gpuaas_failpoint::hit("server.claimed");
        let (version, document) = control.keys.set_document();
        place.session().tell_verifier_set(version, &document);
        place.send(task.clone(), signed);
        control.metrics.task_dispatched(Timestamp::now().since(task.created_at));
    }
    tracing::info!(
        task = %task.id, node = %task.node_id, task_type = %task.task_type, actor = %context.actor, state = task.state.as_str(),
        "task created"
    );
    Ok(task)
}
