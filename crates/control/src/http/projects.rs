//! Projects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, PageQuery, ProjectChange, ProjectCreate, ProjectListQuery};
use gpuaas_api::routes;
use gpuaas_contract::id::OrgId;
use gpuaas_domain::tenancy::Project;

use super::problem::{JsonBody, Params, Rejected};
use super::{Location, Tagged, page_request};
use crate::Control;
use crate::app::projects::{self, ProjectFilter};
use crate::app::{Caller, IfMatch, etag_of, organizations};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;

/// Lists the projects that the caller may see.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ProjectListQuery>,
) -> Result<Json<Page<dto::Project>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let filter = ProjectFilter { organization: query.organization, name_contains: query.name };
    let found = projects::list(&control, &caller, filter, &page).await?;
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn list_of(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Project>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = projects::list_of(&control, caller.organization()?.id, &page).await?;
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ProjectCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Project>), Rejected> {
    let organization = caller.organization()?;
    let made = projects::create(&control, &caller, &organization, &wanted).await?;
    let location = Location::of(routes::PROJECT, [&made.id]);
    Ok((StatusCode::CREATED, location, Tagged(etag_of(made.version), to_dto(made, organization.name))))
}

pub(super) async fn show(State(control): Shared, Extension(caller): Extension<Caller>) -> Result<Tagged<dto::Project>, Rejected> {
    Ok(tagged(&control, caller.project()?).await?)
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    JsonBody(change): JsonBody<ProjectChange>,
) -> Result<Tagged<dto::Project>, Rejected> {
    let next = projects::change(&control, &caller, caller.project()?.id, &change, &if_match).await?;
    Ok(tagged(&control, next).await?)
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
) -> Result<Json<dto::Project>, Rejected> {
    let gone = projects::delete(&control, &caller, caller.project()?.id, &if_match).await?;
    let organization = organizations::name_of(&control, gone.organization_id).await?;
    Ok(Json(to_dto(gone, organization)))
}

async fn tagged(control: &Control, project: Project) -> Result<Tagged<dto::Project>, ControlError> {
    let organization = organizations::name_of(control, project.organization_id).await?;
    Ok(Tagged(etag_of(project.version), to_dto(project, organization)))
}

async fn to_dtos(control: &Control, projects: Vec<Project>) -> Result<Vec<dto::Project>, ControlError> {
    let ids: BTreeSet<OrgId> = projects.iter().map(|project| project.organization_id).collect();
    let mut names = BTreeMap::new();
    for id in ids {
        names.insert(id, organizations::name_of(control, id).await?);
    }
    let named = |project: Project| {
        let name = names.get(&project.organization_id).cloned().unwrap_or_default();
        to_dto(project, name)
    };
    Ok(projects.into_iter().map(named).collect())
}

fn to_dto(project: Project, organization_name: String) -> dto::Project {
    dto::Project {
        id: project.id,
        organization_id: project.organization_id,
        organization_name,
        etag: etag_of(project.version),
        state: project.state().into(),
        name: project.name,
        description: project.description,
        created_at: project.created_at,
        deleted_at: project.deleted_at,
    }
}
