//! API tokens and signing keys.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, ApiTokenCreate, ApiTokenCreated, Page, PageQuery, Reason};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::event::{self, ApiTokenRevoked, Event, SigningKeyChanged};
use gpuaas_contract::id::ApiTokenId;
use gpuaas_contract::key::KeyId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, KeyLimits, MemberRole, Place};
use gpuaas_domain::decision::Change;
use gpuaas_domain::{Decision, Refusal, Wakeup, caps};
use gpuaas_store::ApiTokenFilter;

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, check_cap, counting_tokens, mint, page, page_limit, parse_id, parse_opt};
use crate::Control;
use crate::error::ControlError;
use crate::pki::{KeyRingError, secret_text};
use crate::transact::transact;

type Shared = State<Arc<Control>>;

pub(super) async fn keys(State(control): Shared) -> Json<Page<dto::SigningKey>> {
    let keys = control.keys.verifier_set().document().keys.clone();
    let shown = keys.into_iter().map(|e| dto::SigningKey { key_id: e.key_id, state: e.state.into(), public_key: e.public_key });
    Json(Page::whole(shown.collect()))
}

pub(super) async fn stage(state: Shared, Extension(caller): Extension<Caller>) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    let staged = state.keys.stage(Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: Some(staged.clone()), active: None, revoked: None, reason: None };
    key_changed(&state, &caller, &staged, change).await?;
    Ok(keys(state).await)
}

pub(super) async fn rotate(state: Shared, Extension(caller): Extension<Caller>) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    let active = state.keys.rotate(Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: None, active: Some(active.clone()), revoked: None, reason: None };
    key_changed(&state, &caller, &active, change).await?;
    Ok(keys(state).await)
}

pub(super) async fn revoke_key(
    state: Shared,
    Extension(caller): Extension<Caller>,
    Segments(key): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<Page<dto::SigningKey>>, Rejected> {
    let key = KeyId::from(key);
    let active = state.keys.revoke(&key, Timestamp::now()).map_err(key_failure)?;
    let change = SigningKeyChanged { staged: None, active: Some(active), revoked: Some(key.clone()), reason: Some(reason) };
    key_changed(&state, &caller, &key, change).await?;
    Ok(keys(state).await)
}

/// Writes it down and tells every connected node; the others hear of it when they say hello.
async fn key_changed(control: &Control, caller: &Caller, key: &KeyId, change: SigningKeyChanged) -> Result<(), ControlError> {
    let decision = Decision::default().record(&caller.context(), key, Event::SigningKeyChanged(change));
    transact(control, || async { Ok(((), decision.clone())) }).await?;
    let (version, document) = control.keys.set_document();
    for session in control.hub.all() {
        session.tell_verifier_set(version, &document);
    }
    Ok(())
}

fn key_failure(error: KeyRingError) -> ControlError {
    match error {
        KeyRingError::Unknown(_) => Refusal::not_found("signing_key_unknown", error.to_string()).into(),
        KeyRingError::File(_) | KeyRingError::Set(_) | KeyRingError::ActiveKeyMissing(_) => {
            ControlError::Internal(crate::link::chain(&error))
        }
    }
}

pub(super) async fn tokens(
    State(control): Shared,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::ApiToken>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let after = parse_opt(query.after.as_deref())?;
    let found = control.store.api_token_list(&ApiTokenFilter::default(), after, limit.saturating_add(1)).await?;
    let found = page(found, limit, |token| token.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn token_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<ApiTokenCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<ApiTokenCreated>), Rejected> {
    let role = wanted.role;
    if wanted.name.is_empty() || wanted.name.len() > 100 || wanted.name.chars().any(char::is_control) {
        return Err(Refusal::invalid("name_invalid", "the name needs 1 to 100 printable bytes").into());
    }
    let context = caller.context();
    let life = wanted.life_seconds.map(std::time::Duration::from_secs);
    if life.is_some_and(|life| life.is_zero()) {
        return Err(Refusal::invalid("life_invalid", "a token lives at least a second").into());
    }
    mint::role_of_new_account(&control, &caller, Place::Platform, MemberRole::Platform(role))?;
    let wanted_limits = KeyLimits { scopes: None, expires_at: life.map(|life| context.now.plus(life)) };
    let (KeyLimits { scopes, expires_at }, parent) = mint::key(&control, &caller, wanted_limits).await?;
    let secret = secret_text("gpt_");
    let token = ApiToken {
        id: ApiTokenId::generate(),
        version: 0,
        name: wanted.name,
        role: Some(role),
        service_account: None,
        project: None,
        parent,
        scopes,
        secret_digest: Digest::of(secret.as_bytes()),
        created_at: context.now,
        expires_at,
        revoked_at: None,
    };
    let event = Event::ApiTokenCreated(event::ApiTokenCreated {
        api_token_id: token.id,
        role: role.into(),
        name: token.name.clone(),
        parent_id: token.parent,
    });
    let decision = Decision::default().change(Change::ApiTokenInsert(token.clone())).record(&context, token.id, event);
    transact(&control, || async {
        check_cap(&control, caps::PLATFORM_TOKENS, counting_tokens(&control, &ApiTokenFilter::default(), context.now).await?)?;
        Ok(((), decision.clone()))
    })
    .await?;
    let location = Location::of(routes::API_TOKEN, [&token.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(ApiTokenCreated { api_token: to_dto(token), token: secret })))
}

pub(super) async fn token_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::ApiToken>, Rejected> {
    let id: ApiTokenId = parse_id(&id)?;
    let context = caller.context();
    let unknown = || Refusal::not_found("api_token_unknown", format!("there is no API token {id}"));
    let token = transact(&control, || async {
        let token = control.store.api_token_get(id).await?.ok_or_else(unknown)?;
        if token.revoked_at.is_some() {
            return Ok((token, Decision::default()));
        }
        let revoked = ApiToken { revoked_at: Some(context.now), ..token };
        let decision = Decision::default().change(Change::ApiTokenUpdate(revoked.clone())).wakeup(Wakeup::Rights);
        let decision = decision.record(&context, id, Event::ApiTokenRevoked(ApiTokenRevoked { api_token_id: id }));
        Ok((revoked, decision))
    })
    .await?;
    Ok(Json(to_dto(token)))
}

fn to_dto(token: ApiToken) -> dto::ApiToken {
    dto::ApiToken {
        id: token.id,
        name: token.name,
        role: token.role.map(Into::into),
        project: token.project,
        service_account: token.service_account,
        parent_id: token.parent,
        scopes: token.scopes.map(Into::into),
        created_at: token.created_at,
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
    }
}
