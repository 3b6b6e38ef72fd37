//! Projects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, PageQuery, ProjectChange, ProjectCreate, ProjectListQuery};
use gpuaas_api::routes;
use gpuaas_contract::id::{MembershipId, OrgId, ProjectId};
use gpuaas_domain::access::{MemberRole, Place, ProjectRole};
use gpuaas_domain::quota::{Quota, quota_id};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Organization, Project};
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, etag_of, free_name, if_match, organizations, page, page_limit, parse_id, quotas};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

pub(super) async fn get(control: &Control, id: &str) -> Result<Project, ControlError> {
    let id: ProjectId = parse_id(id)?;
    let unknown = || Refusal::not_found("project_unknown", format!("there is no project {id}"));
    let project = resources::get::<Project>(control, id).await?.ok_or_else(unknown)?;
    project.check_live()?;
    Ok(project)
}

/// Those that the caller sees.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ProjectListQuery>,
) -> Result<Json<Page<dto::Project>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<ProjectId>(after)?;
    }
    let organization = match &query.organization {
        Some(name) => Some(organizations::named(&control, name).await?.id),
        None => None,
    };
    let found = if caller.principal.platform.is_some() {
        let filter = ResourceFilter {
            parent: organization.map(|id| id.to_string()),
            states: vec!["active"],
            name_contains: query.name,
            ..ResourceFilter::default()
        };
        resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?
    } else {
        let mut found = seen_by(&control, &caller).await?;
        found.retain(|project| {
            organization.is_none_or(|id| project.organization_id == id)
                && query.name.as_deref().is_none_or(|name| project.name.contains(name))
                && query.after.as_deref().is_none_or(|after| project.id.to_string().as_str() > after)
        });
        found
    };
    let found = page(found, limit, |project| project.id.to_string());
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

/// The projects in which a tenant has a role, by id.
async fn seen_by(control: &Control, caller: &Caller) -> Result<Vec<Project>, ControlError> {
    let mut found: BTreeMap<ProjectId, Project> = BTreeMap::new();
    for (place, _) in &caller.principal.memberships {
        match place {
            Place::Platform => {}
            Place::Project(id) => {
                found.extend(resources::get::<Project>(control, id).await?.map(|project| (project.id, project)))
            }
            Place::Organization(id) => {
                let filter = ResourceFilter { parent: Some(id.to_string()), states: vec!["active"], ..ResourceFilter::default() };
                found.extend(resources::all::<Project>(control, &filter).await?.into_iter().map(|project| (project.id, project)));
            }
        }
    }
    Ok(found.into_values().filter(|project| project.deleted_at.is_none()).collect())
}

pub(super) async fn list_of(
    State(control): Shared,
    Segments(organization): Segments<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Project>>, Rejected> {
    let organization = organizations::get(&control, &organization).await?;
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<ProjectId>(after)?;
    }
    let filter =
        ResourceFilter { parent: Some(organization.id.to_string()), states: vec!["active"], ..ResourceFilter::default() };
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |project: &Project| project.id.to_string());
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(organization): Segments<String>,
    JsonBody(wanted): JsonBody<ProjectCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Project>), Rejected> {
    let (id, owner, context) = (ProjectId::generate(), MembershipId::generate(), caller.context());
    let organization = organizations::get(&control, &organization).await?;
    let made = transact(&control, || async {
        free_name::<Project>(&control, &organization.id.to_string(), &wanted.name).await?;
        let present = super::live_count(&control, ResourceKind::Project, &organization.id.to_string()).await?;
        super::check_cap(&control, caps::PROJECTS, present)?;
        let limits = quotas::limits(&wanted.limits);
        let (made, mut decision) =
            tenancy::create_project(id, &organization, &wanted.name, &wanted.description, limits, &context)?;
        if let Some(email) = &wanted.owner_email {
            let who = super::members::by_email(&control, email).await?;
            let role = MemberRole::Project(ProjectRole::Owner);
            super::mint::role(&control, &caller, Place::Project(id), role)?;
            decision = decision.and(tenancy::invite(owner, who, Place::Project(id), role, &context)?.1);
        }
        Ok((made, decision))
    })
    .await?;
    let location = Location::of(routes::PROJECT, [&made.id]);
    Ok((StatusCode::CREATED, location, Tagged(etag_of(made.version), to_dto(made, organization.name))))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Tagged<dto::Project>, Rejected> {
    let project = get(&control, &id).await?;
    let tag = etag_of(project.version);
    Ok(Tagged(tag, shown_one(&control, project).await?))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(change): JsonBody<ProjectChange>,
) -> Result<Tagged<dto::Project>, Rejected> {
    let context = caller.context();
    transact(&control, || async {
        let project = get(&control, &id).await?;
        if_match(&headers, &etag_of(project.version))?;
        let description = change.description.as_deref().unwrap_or(&project.description);
        Ok(tenancy::describe_project(&project, description, &context)?)
    })
    .await?;
    show(State(control), Segments(id)).await
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
) -> Result<Json<dto::Project>, Rejected> {
    let context = caller.context();
    let gone = transact(&control, || async {
        let project = get(&control, &id).await?;
        if_match(&headers, &etag_of(project.version))?;
        let missing = || ControlError::Internal(format!("project {} has no quota in the resources", project.id));
        let quota = resources::get::<Quota>(&control, quota_id(&project.id)).await?.ok_or_else(missing)?;
        Ok(tenancy::delete_project(&project, &quota, &context)?)
    })
    .await?;
    Ok(Json(shown_one(&control, gone).await?))
}

async fn shown_one(control: &Control, project: Project) -> Result<dto::Project, ControlError> {
    let organization = resources::get::<Organization>(control, project.organization_id).await?;
    Ok(to_dto(project, organization.map(|organization| organization.name).unwrap_or_default()))
}

async fn to_dtos(control: &Control, projects: Vec<Project>) -> Result<Vec<dto::Project>, ControlError> {
    let ids: BTreeSet<OrgId> = projects.iter().map(|project| project.organization_id).collect();
    let mut names = BTreeMap::new();
    for id in ids {
        names.insert(id, resources::get::<Organization>(control, id).await?.map(|of| of.name).unwrap_or_default());
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
