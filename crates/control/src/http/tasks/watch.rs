//! Streams changes of a task as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use gpuaas_api::dto::TaskProgress;
use gpuaas_api::routes::{EVENT_PROGRESS, EVENT_TASK};
use gpuaas_contract::id::TaskId;
use gpuaas_domain::Wakeup;
use tokio::sync::broadcast::error::RecvError;

use super::to_dto;
use crate::Control;
use crate::app::Caller;
use crate::app::tasks::get;
use crate::audience::Audience;
use crate::error::ControlError;
use crate::http::problem::{Rejected, Segments};

/// Fallback in case a wake-up is lost.
const SLOW_POLL: Duration = Duration::from_secs(10);

pub(in crate::http) async fn watch(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<TaskId>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Rejected> {
    let audience = caller.audience();
    // Subscribe before the first read, so that no change is missed in between.
    let mut wakeups = control.store.wakeups();
    get(&control, id).await?;
    let events = async_stream::stream! {
        let mut last_version = None;
        loop {
            match look(&control, audience, id, &mut last_version).await {
                Ok((event, ended)) => {
                    if let Some(event) = event {
                        yield Ok(event);
                    }
                    if ended {
                        return;
                    }
                }
                // The client reconnects and then sees the current state.
                Err(error) => {
                    tracing::warn!(task = %id, error = %crate::link::chain(&error), "watch ended");
                    return;
                }
            }
            loop {
                let wakeup = tokio::select! {
                    biased;
                    () = control.shutdown.cancelled() => return,
                    wakeup = tokio::time::timeout(SLOW_POLL, wakeups.recv()) => wakeup,
                };
                match wakeup {
                    Ok(Ok(Wakeup::Task(task))) if task == id => break,
                    Ok(Ok(Wakeup::Progress { task_id, phase, message, at })) if task_id == id => {
                        if let Ok(event) = Event::default().event(EVENT_PROGRESS).json_data(audience.progress(TaskProgress { phase, message, at })) {
                            yield Ok(event);
                        }
                    }
                    Ok(Ok(
                        Wakeup::Task(_)
                        | Wakeup::Progress { .. }
                        | Wakeup::NodeWork(_)
                        | Wakeup::NodeAccess(_)
                        | Wakeup::Allocation(_)
                        | Wakeup::Fleet(_)
                        | Wakeup::Outbox
                        | Wakeup::Link(_)
                        | Wakeup::Rights,
                    )) => {}
                    Ok(Err(RecvError::Lagged(_))) | Err(_) => break,
                    Ok(Err(RecvError::Closed)) => return,
                }
            }
        }
    };
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(10))))
}

/// The task as an event, if it changed since the last read.
async fn look(
    control: &Control,
    audience: Audience,
    id: TaskId,
    last_version: &mut Option<i64>,
) -> Result<(Option<Event>, bool), ControlError> {
    let task = get(control, id).await?;
    let ended = task.state.ended();
    if *last_version == Some(task.version) {
        return Ok((None, ended));
    }
    *last_version = Some(task.version);
    let event = Event::default().event(EVENT_TASK).json_data(audience.task(to_dto(control, task).await?));
    Ok((Some(event.map_err(|e| ControlError::Internal(e.to_string()))?), ended))
}
