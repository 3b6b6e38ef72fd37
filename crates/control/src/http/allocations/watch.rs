//! Streams changes of an allocation as server-sent events, and serves its history.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::{Extension, Json};
use futures::Stream;
use gpuaas_api::dto::{self, AllocationWatchQuery, EventRow, Page, PageQuery};
use gpuaas_api::routes::EVENT_ALLOCATION;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::names::Open;
use gpuaas_domain::Wakeup;

use super::view::to_dto;
use crate::Control;
use crate::app::allocations::{get, history as history_of};
use crate::app::{Caller, PageRequest};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::http::page_limit;
use crate::http::problem::{Params, Rejected};
use crate::http::watch::{Watch, Woken, keep_alive};

pub(in crate::http) async fn watch(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AllocationWatchQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Rejected> {
    let settled = match query.until.as_deref() {
        None | Some("over") => false,
        Some("settled") => true,
        Some(other) => {
            let message = format!("until is `{other}`; choose over or settled");
            return Err(ControlError::BadInput { code: "until_invalid", message }.into());
        }
    };
    let (allocation, audience) = (caller.allocation()?.id, caller.audience());
    let mut watch = Watch::new(&control, audience);
    let events = async_stream::stream! {
        let mut last = None;
        loop {
            let seen = match look(&control, audience, allocation).await {
                Ok(seen) => seen,
                // The client reconnects and gets the current state or the error.
                Err(error) => {
                    tracing::warn!(%allocation, error = %crate::link::chain(&error), "watch ended");
                    return;
                }
            };
            let (task, over) = (seen.task, if settled { seen.settled() } else { seen.is_terminal() });
            if last.as_ref() != Some(&seen) {
                if let Ok(event) = Event::default().event(EVENT_ALLOCATION).json_data(&seen) {
                    yield Ok(event);
                }
                last = Some(seen);
            }
            if over {
                return;
            }
            loop {
                let concerns = |wakeup: &Wakeup| {
                    [Wakeup::Allocation(allocation), Wakeup::AllocationAdvanced(allocation)].contains(wakeup)
                };
                match watch.next(&control, task, concerns).await {
                    Woken::Changed => break,
                    Woken::Progress(event) => yield Ok(event),
                    Woken::Shutdown => return,
                }
            }
        }
    };
    Ok(Sse::new(events).keep_alive(keep_alive()))
}

async fn look(control: &Control, audience: Audience, id: AllocationId) -> Result<dto::Allocation, ControlError> {
    to_dto(control, audience, get(control, id).await?).await
}

/// The history of an allocation, oldest entry first.
pub(in crate::http) async fn history(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<EventRow>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let after = match query.after.as_deref() {
        Some(text) => Some(text.parse().map_err(|_| ControlError::BadInput {
            code: "cursor_invalid",
            message: "`after` is not a cursor of this list; give the `next` of the page before".to_owned(),
        })?),
        None => None,
    };
    let found = history_of(&control, caller.allocation()?.id, &PageRequest { after, limit }).await?;
    let to_dto = |row| event_to_dto(caller.audience(), row);
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect::<Result<_, _>>()?, next: found.next }))
}

fn event_to_dto(audience: Audience, row: gpuaas_store::OutboxRow) -> Result<EventRow, ControlError> {
    let event: serde_json::Value = serde_json::from_str(&row.body).map_err(|error| ControlError::Internal(error.to_string()))?;
    let data = audience.event_data(&row.kind, event["data"].clone());
    Ok(EventRow { id: row.id, position: row.position, kind: Open::read(&row.kind), at: row.created_at, data })
}
