//! Allocations.

mod view;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, AllocationChange, AllocationCreate, AllocationExtend, AllocationListQuery, AllocationRetry, AllocationSearchQuery,
    Page, Reason, SliceConsole, StateFilter,
};
use gpuaas_api::routes;
use gpuaas_contract::id::ProjectId;
use gpuaas_contract::task::slice_vm_power::PowerAction as Power;
use gpuaas_domain::allocation::{Allocation, AllocationState};

use super::problem::{JsonBody, Params, Rejected};
use super::{Location, Tagged, page_request, parse_opt, tasks};
use crate::Control;
use crate::app::allocations::{self, AllocationFilter};
use crate::app::{Caller, IfMatch};
use crate::error::ControlError;
use view::{plan_to_dto, to_dto, to_dtos};

pub(super) use watch::{history, watch};

type Shared = State<Arc<Control>>;
type Shown = Tagged<dto::Allocation>;

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<AllocationCreate>,
) -> Result<Response, Rejected> {
    let project = caller.project()?;
    if wanted.dry_run {
        let plan = allocations::plan(&control, &caller, &project, wanted).await?;
        return Ok(Json(plan_to_dto(caller.audience(), plan)).into_response());
    }
    let made = allocations::create(&control, &caller, &project, wanted).await?;
    let location = Location::of(routes::ALLOCATION, [&made.id]);
    Ok((StatusCode::CREATED, location, shown(&control, &caller, made).await?).into_response())
}

/// An allocation with its `ETag`, as the caller sees it.
pub(super) async fn shown(control: &Control, caller: &Caller, allocation: Allocation) -> Result<Shown, ControlError> {
    let document = to_dto(control, caller.audience(), allocation).await?;
    Ok(Tagged(document.etag.clone(), document))
}

/// The states that a query filters by. Empty means all.
fn states(asked: Option<StateFilter<AllocationState>>) -> Vec<AllocationState> {
    match asked {
        None => Vec::new(),
        Some(StateFilter::Is(state)) => vec![state],
        Some(StateFilter::Open) => AllocationState::ALL.into_iter().filter(|state| !state.is_terminal()).collect(),
    }
}

fn tags(asked: Option<&str>) -> Result<Vec<(String, String)>, ControlError> {
    let Some(text) = asked else { return Ok(Vec::new()) };
    let tags: dto::Tags = text
        .parse()
        .map_err(|error: dto::BadTags| ControlError::BadInput { code: "tags_invalid", message: error.to_string() })?;
    Ok(tags.0.into_iter().collect())
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AllocationListQuery>,
) -> Result<Json<Page<dto::Allocation>>, Rejected> {
    let filter = AllocationFilter {
        project: Some(caller.project()?.id),
        states: states(query.state),
        tags: tags(query.tags.as_deref())?,
        name_contains: query.name,
        ..AllocationFilter::default()
    };
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = allocations::list(&control, filter, &page, query.newest_first.unwrap_or(false)).await?;
    Ok(Json(Page { items: to_dtos(&control, caller.audience(), found.items).await?, next: found.next }))
}

pub(super) async fn search(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AllocationSearchQuery>,
) -> Result<Json<Page<dto::Allocation>>, Rejected> {
    let filter = AllocationFilter {
        project: parse_opt::<ProjectId>(query.project.as_deref())?,
        organization: query.organization,
        node: query.node,
        states: states(query.state),
        tags: tags(query.tags.as_deref())?,
        name_contains: query.name,
    };
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = allocations::list(&control, filter, &page, query.newest_first.unwrap_or(false)).await?;
    Ok(Json(Page { items: to_dtos(&control, caller.audience(), found.items).await?, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Shown, Rejected> {
    Ok(shown(&control, &caller, caller.allocation()?).await?)
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    JsonBody(change): JsonBody<AllocationChange>,
) -> Result<Shown, Rejected> {
    let next = allocations::change(&control, &caller, caller.allocation()?, change, &if_match).await?;
    Ok(shown(&control, &caller, next).await?)
}

async fn power(control: &Control, caller: &Caller, action: Power) -> Result<Shown, Rejected> {
    let next = allocations::power(control, caller, caller.allocation()?, action).await?;
    Ok(shown(control, caller, next).await?)
}

pub(super) async fn stop(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Shown, Rejected> {
    power(&control, &caller, Power::Stop).await
}

pub(super) async fn start(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Shown, Rejected> {
    power(&control, &caller, Power::Start).await
}

pub(super) async fn reboot(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Shown, Rejected> {
    power(&control, &caller, Power::Reboot).await
}

pub(super) async fn extend(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(extend): JsonBody<AllocationExtend>,
) -> Result<Shown, Rejected> {
    let by = match (extend.by_seconds, extend.forever) {
        (Some(seconds), false) => Some(Duration::from_secs(seconds)),
        (None, true) => None,
        (Some(_), true) | (None, false) => {
            let message = "give either by_seconds or forever".to_owned();
            return Err(ControlError::BadInput { code: "extension_invalid", message }.into());
        }
    };
    let next = allocations::extend(&control, &caller, caller.allocation()?, by).await?;
    Ok(shown(&control, &caller, next).await?)
}

pub(super) async fn release(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Shown, Rejected> {
    let next = allocations::release(&control, &caller, caller.allocation()?, &reason).await?;
    Ok(shown(&control, &caller, next).await?)
}

pub(super) async fn retry(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(AllocationRetry { wait_seconds }): JsonBody<AllocationRetry>,
) -> Result<Shown, Rejected> {
    let wait = Duration::from_secs(wait_seconds.unwrap_or(0));
    let next = allocations::retry(&control, &caller, caller.allocation()?, wait).await?;
    Ok(shown(&control, &caller, next).await?)
}

pub(super) async fn console(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(console): JsonBody<SliceConsole>,
) -> Result<(StatusCode, Location, Json<dto::Task>), Rejected> {
    let task = allocations::console(&control, &caller, &caller.allocation()?, &console).await?;
    let location = Location::of(routes::TASK, [&task.id]);
    Ok((StatusCode::CREATED, location, Json(tasks::shown(&control, &caller, task).await?)))
}
