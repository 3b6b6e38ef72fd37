//! SSH keys of projects.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, PageQuery, SshKeyCreate};
use gpuaas_api::routes;
use gpuaas_contract::id::SshKeyId;
use gpuaas_domain::Refusal;
use gpuaas_domain::catalog::{self, SshKey};
use gpuaas_domain::resource::ResourceKind;
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, free_name, page, page_limit, parse_id};
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

fn of_project(project: &gpuaas_domain::tenancy::Project) -> ResourceFilter {
    ResourceFilter { parent: Some(project.id.to_string()), states: vec!["active"], ..ResourceFilter::default() }
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::SshKey>>, Rejected> {
    let project = caller.project()?;
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<SshKeyId>(after)?;
    }
    let filter = of_project(&project);
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |key: &SshKey| key.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<SshKeyCreate>,
) -> Result<(StatusCode, Location, Json<dto::SshKey>), Rejected> {
    let project = caller.project()?;
    let (id, context) = (SshKeyId::generate(), caller.context());
    let made = transact(&control, || async {
        free_name::<SshKey>(&control, &project.id.to_string(), &wanted.name).await?;
        let present = control.store.resource_count(ResourceKind::SshKey, &of_project(&project)).await?;
        Ok(catalog::add_ssh_key(id, &project, &wanted.name, wanted.public_key.clone(), present, &context)?)
    })
    .await?;
    let location = Location::of(routes::SSH_KEY, [&project.id as &dyn std::fmt::Display, &made.id]);
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<BTreeMap<String, String>>,
) -> Result<Json<dto::SshKey>, Rejected> {
    let project = caller.project()?;
    let id: SshKeyId = parse_id(path.get("ssh_key").map(String::as_str).unwrap_or_default())?;
    let context = caller.context();
    let unknown = || Refusal::not_found("ssh_key_unknown", format!("the project has no SSH key {id}"));
    let gone = transact(&control, || async {
        let key = resources::get::<SshKey>(&control, id).await?.filter(|key| key.project_id == project.id);
        Ok(catalog::delete_ssh_key(&key.ok_or_else(unknown)?, &context))
    })
    .await?;
    Ok(Json(to_dto(gone)))
}

fn to_dto(key: SshKey) -> dto::SshKey {
    dto::SshKey {
        id: key.id,
        project_id: key.project_id,
        name: key.name,
        public_key: key.public_key.to_string(),
        created_by: key.created_by,
        created_at: key.created_at,
        deleted_at: key.deleted_at,
    }
}
