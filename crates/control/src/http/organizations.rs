//! Organizations.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use gpuaas_api::dto::{self, OrganizationChange, OrganizationCreate, OrganizationListQuery, Page};
use gpuaas_api::routes;
use gpuaas_contract::id::{MembershipId, OrgId};
use gpuaas_domain::Refusal;
use gpuaas_domain::access::{MemberRole, Place, ProjectRole};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Organization, Project};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, etag_of, free_name, if_match, page, page_limit, parse_id, quotas};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

pub(super) async fn get(control: &Control, id: &str) -> Result<Organization, ControlError> {
    let id: OrgId = parse_id(id)?;
    let found = resources::get::<Organization>(control, id).await?.filter(is_live);
    Ok(found.ok_or_else(|| unknown(&id.to_string()))?)
}

/// The organization with this id or name.
pub(super) async fn named(control: &Control, name: &str) -> Result<Organization, ControlError> {
    let found = match name.parse::<OrgId>() {
        Ok(id) => resources::get::<Organization>(control, id).await?,
        Err(_) => resources::by_name::<Organization>(control, "", name).await?,
    };
    Ok(found.filter(is_live).ok_or_else(|| unknown(name))?)
}

fn is_live(organization: &Organization) -> bool {
    organization.deleted_at.is_none()
}

fn unknown(name: &str) -> Refusal {
    Refusal::not_found("organization_unknown", format!("there is no organization {name}"))
}

/// Those that the caller sees: all of them on the platform, else those in which they have a role, or a role in a project.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<OrganizationListQuery>,
) -> Result<Json<Page<dto::Organization>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<OrgId>(after)?;
    }
    let found = if caller.principal.platform.is_some() {
        let filter = ResourceFilter { name_contains: query.name, states: vec!["active"], ..ResourceFilter::default() };
        resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?
    } else {
        let mut ids = BTreeSet::new();
        for (place, _) in &caller.principal.memberships {
            match place {
                Place::Organization(id) => drop(ids.insert(*id)),
                Place::Project(id) => {
                    ids.extend(resources::get::<Project>(&control, id).await?.map(|project| project.organization_id));
                }
                Place::Platform => {}
            }
        }
        let mut found: Vec<Organization> = Vec::new();
        for id in ids.into_iter().filter(|id| query.after.as_deref().is_none_or(|after| id.to_string().as_str() > after)) {
            found.extend(resources::get::<Organization>(&control, id).await?.filter(is_live));
        }
        found.retain(|organization| query.name.as_deref().is_none_or(|name| organization.name.contains(name)));
        found
    };
    let found = page(found, limit, |organization| organization.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<OrganizationCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Organization>), Rejected> {
    let (id, owner, context) = (OrgId::generate(), MembershipId::generate(), caller.context());
    let made = transact(&control, || async {
        free_name::<Organization>(&control, "", &wanted.name).await?;
        let limits = quotas::limits(&wanted.limits);
        let (made, mut decision) = tenancy::create_organization(id, &wanted.name, &wanted.description, limits, &context)?;
        if let Some(email) = &wanted.owner_email {
            let who = super::members::by_email(&control, email).await?;
            let role = MemberRole::Project(ProjectRole::Owner);
            super::mint::role(&control, &caller, Place::Organization(id), role)?;
            decision = decision.and(tenancy::invite(owner, who, Place::Organization(id), role, &context)?.1);
        }
        Ok((made, decision))
    })
    .await?;
    let location = Location::of(routes::ORGANIZATION, [&made.id]);
    Ok((StatusCode::CREATED, location, Tagged(etag_of(made.version), to_dto(made))))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Tagged<dto::Organization>, Rejected> {
    let organization = get(&control, &id).await?;
    Ok(Tagged(etag_of(organization.version), to_dto(organization)))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(change): JsonBody<OrganizationChange>,
) -> Result<Tagged<dto::Organization>, Rejected> {
    let context = caller.context();
    transact(&control, || async {
        let organization = get(&control, &id).await?;
        if_match(&headers, &etag_of(organization.version))?;
        let description = change.description.as_deref().unwrap_or(&organization.description);
        Ok(tenancy::describe_organization(&organization, description, &context)?)
    })
    .await?;
    show(State(control), Segments(id)).await
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
) -> Result<Json<dto::Organization>, Rejected> {
    let context = caller.context();
    let gone = transact(&control, || async {
        let organization = get(&control, &id).await?;
        if_match(&headers, &etag_of(organization.version))?;
        let projects = super::live_count(&control, ResourceKind::Project, &organization.id.to_string()).await?;
        Ok(tenancy::delete_organization(&organization, projects, &context)?)
    })
    .await?;
    Ok(Json(to_dto(gone)))
}

fn to_dto(organization: Organization) -> dto::Organization {
    dto::Organization {
        id: organization.id,
        etag: etag_of(organization.version),
        name: organization.name,
        description: organization.description,
        created_at: organization.created_at,
        deleted_at: organization.deleted_at,
    }
}
