//! Images: the platform's, and those of organizations.

use gpuaas_api::dto::{ImageCreate, Page};
use gpuaas_contract::guest::DEFAULT_USERNAME;
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_domain::catalog::{self, Image, NewImage};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::{Caller, PageRequest, check_cap, check_name_free, list_resources, live_count};
use crate::error::ControlError;
use crate::{Control, resources};

fn parent(owner: Option<OrgId>) -> String {
    owner.map(|id| id.to_string()).unwrap_or_default()
}

/// Those of the platform, and those of an organization if one is named.
pub(crate) async fn list(
    control: &Control,
    owner: Option<OrgId>,
    name: Option<String>,
    page: &PageRequest<ImageId>,
) -> Result<Page<Image>, ControlError> {
    let mut parents = vec![String::new()];
    parents.extend(owner.map(|id| id.to_string()));
    let filter =
        ResourceFilter { parents: Some(parents), states: vec!["active"], name_contains: name, ..ResourceFilter::default() };
    list_resources(control, &filter, page, false).await
}

/// Creates an image of the platform, or of an organization.
pub(crate) async fn create(
    control: &Control,
    caller: &Caller,
    owner: Option<OrgId>,
    wanted: ImageCreate,
) -> Result<Image, ControlError> {
    let (id, context) = (ImageId::generate(), caller.context());
    let default_username = match wanted.default_username {
        Some(name) => name,
        None => DEFAULT_USERNAME.parse().map_err(|_| ControlError::Internal("the default user name".to_owned()))?,
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
    let attempt = || async {
        check_name_free::<Image>(control, &parent(owner), &new.name).await?;
        check_cap(control, caps::IMAGES, live_count(control, ResourceKind::Image, parent(owner)).await?)?;
        Ok(catalog::create_image(id, owner, new.clone(), &context)?)
    };
    caller.transact(control, attempt).await
}

fn unknown(id: ImageId) -> Refusal {
    Refusal::not_found("image_unknown", format!("there is no image {id} here"))
}

/// One of the platform, or of the organization if one is named.
pub(crate) async fn get(control: &Control, owner: Option<OrgId>, id: ImageId) -> Result<Image, ControlError> {
    let image = resources::get::<Image>(control, id).await?;
    let is_seen = |image: &Image| image.organization_id.is_none() || image.organization_id == owner;
    Ok(image.filter(is_seen).ok_or_else(|| unknown(id))?)
}

/// Deletes an image of the platform, or of an organization.
pub(crate) async fn delete(control: &Control, caller: &Caller, owner: Option<OrgId>, id: ImageId) -> Result<Image, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let image = resources::get::<Image>(control, id).await?;
        // One of the platform is seen by tenants and is not theirs to delete.
        let image = image.filter(|image| image.organization_id == owner).ok_or_else(|| unknown(id))?;
        Ok(catalog::delete_image(&image, &context))
    };
    caller.transact(control, attempt).await
}
