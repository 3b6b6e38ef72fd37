//! API tokens and signing keys.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ApiTokenCreate, ApiTokenCreated, Page, PageQuery, Reason};
use gpuaas_api::routes;
use gpuaas_contract::id::ApiTokenId;
use gpuaas_contract::key::KeyId;
use gpuaas_domain::access::ApiToken;
use gpuaas_store::ApiTokenFilter;

use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::api_tokens::{self, TokenWithSecret};
use crate::app::{Caller, signing_keys};

type Shared = State<Arc<Control>>;

pub(super) async fn keys(State(control): Shared) -> Json<Page<dto::SigningKey>> {
    let keys = control.keys.verifier_set().document().keys.clone();
    let shown = keys.into_iter().map(|e| dto::SigningKey { key_id: e.key_id, state: e.state.into(), public_key: e.public_key });
    Json(Page::whole(shown.collect()))
}

pub(super) async fn stage(state: Shared, Extension(caller): Extension<Caller>) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    signing_keys::stage(&state, &caller).await?;
    Ok(keys(state).await)
}

pub(super) async fn rotate(state: Shared, Extension(caller): Extension<Caller>) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    signing_keys::rotate(&state, &caller).await?;
    Ok(keys(state).await)
}

pub(super) async fn revoke_key(
    state: Shared,
    Extension(caller): Extension<Caller>,
    Segments(key): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    signing_keys::revoke(&state, &caller, &KeyId::from(key), reason).await?;
    Ok(keys(state).await)
}

pub(super) async fn tokens(
    State(control): Shared,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ApiToken>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = api_tokens::list(&control, &ApiTokenFilter::default(), &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn token_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ApiTokenCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<ApiTokenCreated>), Rejected> {
    let TokenWithSecret { token, secret } = api_tokens::create(&control, &caller, wanted).await?;
    let location = Location::of(routes::API_TOKEN, [&token.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(ApiTokenCreated { api_token: to_dto(token), token: secret })))
}

pub(super) async fn token_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<ApiTokenId>,
) -> Result<Json<dto::ApiToken>, Rejected> {
    Ok(Json(to_dto(api_tokens::revoke(&control, &caller, id).await?)))
}

fn to_dto(token: ApiToken) -> dto::ApiToken {
    dto::ApiToken {
        id: token.id,
        name: token.name,
        role: token.role.map(Into::into),
        project: token.project,
        service_account: token.service_account,
        parent_id: token.parent,
        created_by: token.created_by.map(|maker| maker.to_string()),
        scopes: token.scopes.map(Into::into),
        created_at: token.created_at,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
    }
}
