//! Organizations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, OrganizationChange, OrganizationCreate, OrganizationListQuery, Page};
use gpuaas_api::routes;
use gpuaas_domain::tenancy::Organization;

use super::problem::{JsonBody, Params, Rejected};
use super::{Location, Tagged, page_request};
use crate::Control;
use crate::app::{Caller, IfMatch, etag_of, organizations};

type Shared = State<Arc<Control>>;

/// Lists the organizations that the caller may see.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<OrganizationListQuery>,
) -> Result<Json<Page<dto::Organization>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = organizations::list(&control, &caller, query.name, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<OrganizationCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Organization>), Rejected> {
    let made = organizations::create(&control, &caller, &wanted).await?;
    let location = Location::of(routes::ORGANIZATION, [&made.id]);
    Ok((StatusCode::CREATED, location, tagged(made)))
}

pub(super) async fn show(Extension(caller): Extension<Caller>) -> Result<Tagged<dto::Organization>, Rejected> {
    Ok(tagged(caller.organization()?))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    JsonBody(change): JsonBody<OrganizationChange>,
) -> Result<Tagged<dto::Organization>, Rejected> {
    Ok(tagged(organizations::change(&control, &caller, caller.organization()?.id, &change, &if_match).await?))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
) -> Result<Json<dto::Organization>, Rejected> {
    Ok(Json(to_dto(organizations::delete(&control, &caller, caller.organization()?.id, &if_match).await?)))
}

fn tagged(organization: Organization) -> Tagged<dto::Organization> {
    Tagged(etag_of(organization.version), to_dto(organization))
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
