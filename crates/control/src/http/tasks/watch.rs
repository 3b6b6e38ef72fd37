//! Streams changes of a task as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures::Stream;
use gpuaas_api::routes::EVENT_TASK;
use gpuaas_contract::id::TaskId;
use gpuaas_domain::Wakeup;

use super::to_dto;
use crate::Control;
use crate::app::Caller;
use crate::app::tasks::get;
use crate::audience::Audience;
use crate::error::ControlError;
use crate::http::problem::{Rejected, Segments};
use crate::http::watch::{Watch, Woken, keep_alive};

pub(in crate::http) async fn watch(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<TaskId>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Rejected> {
    let audience = caller.audience();
    let mut watch = Watch::new(&control, audience);
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
                // The client reconnects and gets the current state or the error.
                Err(error) => {
                    tracing::warn!(task = %id, error = %crate::link::chain(&error), "watch ended");
                    return;
                }
            }
            loop {
                match watch.next(&control, Some(id), |wakeup| *wakeup == Wakeup::Task(id)).await {
                    Woken::Changed => break,
                    Woken::Progress(event) => yield Ok(event),
                    Woken::Shutdown => return,
                }
            }
        }
    };
    Ok(Sse::new(events).keep_alive(keep_alive()))
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
