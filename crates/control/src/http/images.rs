//! Images of the platform and of organizations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ImageCreate, ImageListQuery, Page};
use gpuaas_api::routes;
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_domain::access::Scope;
use gpuaas_domain::catalog::Image;

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::{Caller, images};

type Shared = State<Arc<Control>>;

#[derive(serde::Deserialize)]
pub(super) struct ImagePath {
    image: ImageId,
}

/// The organization whose images a request acts on. `None` for the images of the platform.
fn owner(caller: &Caller) -> Option<OrgId> {
    match caller.scope {
        Scope::Platform => None,
        Scope::Organization(organization) | Scope::Project { organization, .. } => Some(organization),
    }
}

/// Lists the images of the platform and, for a project, also those of its organization.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ImageListQuery>,
) -> Result<Json<Page<dto::Image>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = images::list(&control, owner(&caller), query.name, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ImageCreate>,
) -> Result<(StatusCode, Location, Json<dto::Image>), Rejected> {
    let made = images::create(&control, &caller, owner(&caller), wanted).await?;
    let location = match caller.scope {
        Scope::Project { project, .. } => Location::of(routes::PROJECT_IMAGE, [&project as &dyn std::fmt::Display, &made.id]),
        Scope::Platform | Scope::Organization(_) => Location::of(routes::IMAGE, [&made.id]),
    };
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

/// Shows an image of the platform or, for a project, also of its organization.
pub(super) async fn show(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(ImagePath { image }): Segments<ImagePath>,
) -> Result<Json<dto::Image>, Rejected> {
    Ok(Json(to_dto(images::get(&control, owner(&caller), image).await?)))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(ImagePath { image }): Segments<ImagePath>,
) -> Result<Json<dto::Image>, Rejected> {
    Ok(Json(to_dto(images::delete(&control, &caller, owner(&caller), image).await?)))
}

fn to_dto(image: Image) -> dto::Image {
    dto::Image {
        id: image.id,
        organization_id: image.organization_id,
        name: image.name,
        description: image.description,
        url: image.url,
        path: image.path,
        sha256: image.sha256,
        format: dto::Image::format_name(image.format).to_owned(),
        driver_strategy: dto::Image::driver_strategy_name(image.driver_strategy).to_owned(),
        default_username: image.default_username.to_string(),
        created_by: image.created_by,
        created_at: image.created_at,
        deleted_at: image.deleted_at,
    }
}
