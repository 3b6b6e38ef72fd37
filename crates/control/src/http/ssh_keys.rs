//! SSH keys of projects.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, Page, PageQuery, SshKeyCreate};
use gpuaas_api::routes;
use gpuaas_contract::id::SshKeyId;
use gpuaas_domain::catalog::SshKey;

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::{Caller, ssh_keys};

type Shared = State<Arc<Control>>;

#[derive(serde::Deserialize)]
pub(super) struct SshKeyPath {
    ssh_key: SshKeyId,
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::SshKey>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = ssh_keys::list(&control, caller.project()?.id, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<SshKeyCreate>,
) -> Result<(StatusCode, Location, Json<dto::SshKey>), Rejected> {
    let made = ssh_keys::create(&control, &caller, &caller.project()?, &wanted).await?;
    let location = Location::of(routes::SSH_KEY, [&made.project_id as &dyn std::fmt::Display, &made.id]);
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(SshKeyPath { ssh_key }): Segments<SshKeyPath>,
) -> Result<Json<dto::SshKey>, Rejected> {
    Ok(Json(to_dto(ssh_keys::delete(&control, &caller, caller.project()?.id, ssh_key).await?)))
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
