//! Service accounts and their API keys.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ApiKeyCreate, ApiKeyCreated, Page, PageQuery, ServiceAccountCreate};
use gpuaas_api::routes;
use gpuaas_contract::id::{ApiTokenId, ServiceAccountId};
use gpuaas_contract::state::ApiKeyState;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, KeyScopes};
use gpuaas_domain::tenancy::ServiceAccount;

use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::api_tokens::TokenWithSecret;
use crate::app::{Caller, service_accounts};

type Shared = State<Arc<Control>>;

#[derive(serde::Deserialize)]
pub(super) struct AccountPath {
    service_account: ServiceAccountId,
}

#[derive(serde::Deserialize)]
pub(super) struct KeyPath {
    service_account: ServiceAccountId,
    key: ApiTokenId,
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ServiceAccount>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = service_accounts::list(&control, caller.project()?.id, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ServiceAccountCreate>,
) -> Result<(StatusCode, Location, Json<dto::ServiceAccount>), Rejected> {
    let made = service_accounts::create(&control, &caller, &caller.project()?, &wanted).await?;
    let location = Location::of(routes::SERVICE_ACCOUNT, [&made.project_id as &dyn std::fmt::Display, &made.id]);
    Ok((StatusCode::CREATED, location, Json(to_dto(made))))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<AccountPath>,
) -> Result<Json<dto::ServiceAccount>, Rejected> {
    let gone = service_accounts::delete(&control, &caller, caller.project()?.id, path.service_account).await?;
    Ok(Json(to_dto(gone)))
}

pub(super) async fn keys(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<AccountPath>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ApiKey>>, Rejected> {
    let account = service_accounts::get(&control, caller.project()?.id, path.service_account).await?;
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = service_accounts::keys(&control, &account, &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(|key| key_to_dto(key, &account)).collect(), next: found.next }))
}

pub(super) async fn key_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<AccountPath>,
    JsonBody(wanted): JsonBody<ApiKeyCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<ApiKeyCreated>), Rejected> {
    let account = service_accounts::get(&control, caller.project()?.id, path.service_account).await?;
    let TokenWithSecret { token: key, secret } = service_accounts::key_create(&control, &caller, &account, wanted).await?;
    let location = Location::of(routes::API_KEY, [&account.project_id as &dyn std::fmt::Display, &account.id, &key.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(ApiKeyCreated { key: key_to_dto(key, &account), secret })))
}

pub(super) async fn key_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(path): Segments<KeyPath>,
) -> Result<Json<dto::ApiKey>, Rejected> {
    let account = service_accounts::get(&control, caller.project()?.id, path.service_account).await?;
    let key = service_accounts::key_revoke(&control, &caller, &account, path.key).await?;
    Ok(Json(key_to_dto(key, &account)))
}

fn to_dto(account: ServiceAccount) -> dto::ServiceAccount {
    dto::ServiceAccount {
        id: account.id,
        project_id: account.project_id,
        name: account.name,
        description: account.description,
        created_at: account.created_at,
        deleted_at: account.deleted_at,
    }
}

fn key_to_dto(key: ApiToken, account: &ServiceAccount) -> dto::ApiKey {
    let state = match (key.revoked_at, key.counts(Timestamp::now())) {
        (Some(_), _) => ApiKeyState::Revoked,
        (None, true) => ApiKeyState::Active,
        (None, false) => ApiKeyState::Expired,
    };
    dto::ApiKey {
        id: key.id,
        service_account_id: account.id,
        project_id: account.project_id,
        name: key.name,
        parent_id: key.parent,
        created_by: key.created_by.map(|maker| maker.to_string()),
        scopes: key.scopes.as_ref().map(KeyScopes::patterns),
        state: state.into(),
        created_at: key.created_at,
        expires_at: key.expires_at,
        revoked_at: key.revoked_at,
    }
}
