//! Making a task: written down with whatever becomes true with it, and sent right away if the node's link has room.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use gpuaas_api::routes::IDEMPOTENCY_KEY_HEADER;
use gpuaas_contract::id::TaskId;
use gpuaas_contract::task::Task;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::budget::Scope;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::Node;
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, MAX_UNFINISHED_PER_NODE, NewTask, TaskRecord};
use gpuaas_domain::{Decision, Refusal};

use super::node_name;
use super::slices::SliceRequest;
use crate::Control;
use crate::error::ControlError;
use crate::transact::transact_knowing;

/// What a caller asks for.
pub(super) struct Asked {
    pub(super) request: TaskRequest,
    pub(super) queue_time: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) idempotency_key: Option<String>,
    pub(super) context: Context,
}

/// A task by itself, or one that goes with changes of slots.
pub(super) enum TaskRequest {
    Plain(Task),
    Slice(SliceRequest),
}

/// A task to make now.
pub(super) struct Planned {
    pub(super) task: Task,
    pub(super) timeout: Duration,
    /// What is written besides the task.
    pub(super) decision: Decision,
}

impl TaskRequest {
    async fn plan(&self, control: &Control, node: &Node, id: TaskId, context: &Context) -> Result<Planned, ControlError> {
        match self {
            Self::Plain(task) => {
                Ok(Planned { task: task.clone(), timeout: task::DEFAULT_TIMEOUT, decision: Decision::default() })
            }
            Self::Slice(request) => request.plan(control, node, id, context).await,
        }
    }

    /// Whether a task that was made before is what is asked for.
    fn is_that_of(&self, earlier: &TaskRecord) -> bool {
        match self {
            Self::Plain(task) => earlier.task_type == task.task_type() && earlier.params == task.params_json().get(),
            Self::Slice(request) => request.is_that_of(earlier),
        }
    }
}

/// The caller's own key against asking twice.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ControlError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY_HEADER) else { return Ok(None) };
    let text =
        value.to_str().map_err(|_| Refusal::invalid("idempotency_key_invalid", "the idempotency key must be plain text"))?;
    Ok(Some(text.to_owned()))
}

/// Makes the task, and says whether it is new. On its own, because a caller that hangs up must not leave a task that is in the resources and
/// never sent.
pub(super) async fn make(control: &Arc<Control>, node: Node, asked: Asked) -> Result<(bool, TaskRecord), ControlError> {
    let owned = Arc::clone(control);
    let making = control.background.spawn(async move { make_here(&owned, node, asked).await });
    making.await.map_err(|error| ControlError::Internal(format!("creating the task failed: {error}")))?
}

async fn make_here(control: &Control, node: Node, asked: Asked) -> Result<(bool, TaskRecord), ControlError> {
    let Asked { request, queue_time, timeout, idempotency_key, context } = asked;
    let (node_id, id) = (node.id, TaskId::generate());
    let place = control.hub.place(&node, id);
    let (made, task, signed) = transact_knowing(control, node, async |known| {
        if let Some(key) = &idempotency_key
            && let Some(earlier) = control.store.task_by_idempotency_key(&context.actor.to_string(), key).await?
        {
            if earlier.node_id == node_id && request.is_that_of(&earlier) {
                return Ok(((false, earlier, None), Decision::default()));
            }
            let message = format!("this idempotency key was used for {} with other content; choose a new key", earlier.id);
            return Err(Refusal::conflict("idempotency_key_reused", message).into());
        }
        let node = match known {
            Some(node) => node,
            None => node_name::find(control, &node_id.to_string()).await?,
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
            task: planned.task,
            queue_time: queue_time.unwrap_or(DEFAULT_QUEUE_TIME),
            timeout: timeout.unwrap_or(planned.timeout),
            idempotency_key: idempotency_key.clone(),
        };
        let intent = |task: &TaskRecord| control.keys.intent_mac(&task::intent_text(task));
        if place.is_some() {
            let sign = |task: &TaskRecord| control.keys.outgoing(task, &node, context.now);
            let (task, outgoing, decision) = task::create_sent(&node, new, unfinished, &context, intent, sign)?;
            return Ok(((true, task, Some(outgoing.signed)), decision.and(planned.decision)));
        }
        let (task, decision) = task::create(&node, new, unfinished, &context, intent)?;
        Ok(((true, task, None), decision.and(planned.decision)))
    })
    .await?;
    gpuaas_failpoint::hit("server.enqueued");
    if let (Some(place), Some(signed)) = (place, signed) {
        gpuaas_failpoint::hit("server.claimed");
        let (version, document) = control.keys.set_document();
        place.session().tell_verifier_set(version, &document);
        place.send(task.clone(), signed);
        control.metrics.task_dispatched(Timestamp::now().since(task.created_at));
    }
    if made {
        tracing::info!(
            task = %task.id, node = %task.node_id, task_type = %task.task_type, actor = %context.actor, state = task.state.as_str(),
            "task created"
        );
    }
    Ok((made, task))
}
