//! Images: the platform's, and those of organizations.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ImageCreate, ImageListQuery, Page};
use gpuaas_api::routes;
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_domain::access::Scope;
use gpuaas_domain::catalog::{self, Image, NewImage};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, free_name, page, page_limit, parse_id};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

/// Whose images a request is about: those of the platform, or of the organization of the project.
fn owner(caller: &Caller) -> Option<OrgId> {
    match caller.scope {
        Scope::Platform => None,
        Scope::Organization(organization) | Scope::Project { organization, .. } => Some(organization),
    }
}

fn parent(owner: Option<OrgId>) -> String {
    owner.map(|id| id.to_string()).unwrap_or_default()
}

/// Those of the platform, and for a project also those of its organization.
pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<ImageListQuery>,
) -> Result<Json<Page<dto::Image>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<ImageId>(after)?;
    }
    let mut parents = vec![String::new()];
    parents.extend(owner(&caller).map(|id| id.to_string()));
    let filter =
        ResourceFilter { parents: Some(parents), states: vec!["active"], name_contains: query.name, ..ResourceFilter::default() };
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |image: &Image| image.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ImageCreate>,
) -> Result<(StatusCode, Location, Json<dto::Image>), Rejected> {
    let (id, owner, context) = (ImageId::generate(), owner(&caller), caller.context());
    let default_username = match wanted.default_username {
        Some(name) => name,
        None => dto::DEFAULT_USERNAME.parse().map_err(|_| ControlError::Internal("the default user name".to_owned()))?,
    };
    let new = NewImage {
        name: wanted.name,
        description: wanted.description,
        url: wanted.url,
        path: wanted.path,
        sha256: wanted.sha256,
        format: wanted.format,
        driver_strategy: wanted.driver_strategy,
        default_username,
    };
    let made = transact(&control, || async {
        free_name::<Image>(&control, &parent(owner), &new.name).await?;
        super::check_cap(&control, caps::IMAGES, super::live_count(&control, ResourceKind::Image, &parent(owner)).await?)?;
        Ok(catalog::create_image(id, owner, new.clone(), &context)?)
    })
    .await?;
    let location = match caller.scope {
        Scope::Project { project, .. } => Location::of(routes::PROJECT_IMAGE, [&project as &dyn std::fmt::Display, &made.id]),
        Scope::Platform | Scope::Organization(_) => Location::of(routes::IMAGE, [&made.id]),
    };
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

/// One of the platform, or for a project also one of its organization.
pub(super) async fn show(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<BTreeMap<String, String>>,
) -> Result<Json<dto::Image>, Rejected> {
    let id: ImageId = parse_id(path.get("image").map(String::as_str).unwrap_or_default())?;
    let (image, owner) = (resources::get::<Image>(&control, id).await?, owner(&caller));
    let is_seen = |image: &Image| image.organization_id.is_none() || image.organization_id == owner;
    let unknown = || Refusal::not_found("image_unknown", format!("there is no image {id} here"));
    Ok(Json(to_dto(image.filter(is_seen).ok_or_else(unknown)?)))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<BTreeMap<String, String>>,
) -> Result<Json<dto::Image>, Rejected> {
    let id: ImageId = parse_id(path.get("image").map(String::as_str).unwrap_or_default())?;
    let (owner, context) = (owner(&caller), caller.context());
    let unknown = || Refusal::not_found("image_unknown", format!("there is no image {id} here"));
    let gone = transact(&control, || async {
        let image = resources::get::<Image>(&control, id).await?;
        // One of the platform is seen by tenants and is not theirs to delete.
        let image = image.filter(|image| image.organization_id == owner).ok_or_else(unknown)?;
        Ok(catalog::delete_image(&image, &context))
    })
    .await?;
    Ok(Json(to_dto(gone)))
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
