//! The two doors, from the operator's side.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, EnrolmentListQuery, JoinTokenCreate, JoinTokenCreated, Page, PageQuery, Reason};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{EnrolmentId, JoinTokenId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::enrolment::{self, Enrolment, EnrolmentState, JoinToken, TOKEN_LIFE};

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{page, page_limit, parse_id, parse_opt};
use crate::Control;
use crate::failure::{Failure, settle};
use crate::pki::secret_text;

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<EnrolmentListQuery>,
) -> Result<Json<Page<dto::Enrolment>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let state = match query.state.as_deref() {
        None => None,
        Some(name) => Some(EnrolmentState::parse(name).ok_or_else(|| Failure::BadInput {
            code: "state_invalid",
            message: format!("there is no state `{name}`; choose from pending, approved, enrolled, rejected"),
        })?),
    };
    let found = control.store.enrolment_list(state, parse_opt(query.after.as_deref())?, limit.saturating_add(1)).await?;
    let found = page(found, limit, |enrolment| enrolment.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(shown).collect(), next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<dto::Enrolment>, Rejected> {
    Ok(Json(shown(get(&control, parse_id(&id)?).await?)))
}

async fn get(control: &Control, id: EnrolmentId) -> Result<Enrolment, Failure> {
    let unknown =
        || Refusal::not_found("enrolment_unknown", format!("there is no enrolment {id}; `gpuaas node requests` lists them"));
    Ok(control.store.enrolment_get(id).await?.ok_or_else(unknown)?)
}

fn shown(enrolment: Enrolment) -> dto::Enrolment {
    let open = matches!(enrolment.state, EnrolmentState::Pending | EnrolmentState::Approved);
    let state = if open && Timestamp::now() > enrolment.expires_at { "expired" } else { enrolment.state.as_str() };
    dto::Enrolment {
        id: enrolment.id,
        state: state.to_owned(),
        email: enrolment.email,
        fingerprint: enrolment.fingerprint,
        receipt_key: enrolment.receipt_key,
        facts: enrolment.facts,
        address: enrolment.address,
        reason: enrolment.reason,
        node_id: enrolment.node_id,
        created_at: enrolment.created_at,
        expires_at: enrolment.expires_at,
    }
}

pub(super) async fn approve(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason: _ }): JsonBody<Reason>,
) -> Result<Json<dto::Enrolment>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    settle(&control, || async { Ok(((), enrolment::approve(&get(&control, id).await?, &context)?)) }).await?;
    Ok(Json(shown(get(&control, id).await?)))
}

pub(super) async fn reject(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Enrolment>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    settle(&control, || async { Ok(((), enrolment::reject(&get(&control, id).await?, &reason, &context)?)) }).await?;
    Ok(Json(shown(get(&control, id).await?)))
}

pub(super) async fn token_list(
    State(control): Shared,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::JoinToken>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let found = control.store.join_token_list(parse_opt(query.after.as_deref())?, limit.saturating_add(1)).await?;
    let found = page(found, limit, |token| token.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(token_shown).collect(), next: found.next }))
}

pub(super) async fn token_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<JoinTokenCreate>,
) -> Result<(StatusCode, Extension<NotKept>, Json<JoinTokenCreated>), Rejected> {
    let context = caller.context();
    let (id, secret) = (JoinTokenId::generate(), secret_text("gpj_"));
    let life = wanted.life_seconds.map_or(TOKEN_LIFE, Duration::from_secs);
    let decision = enrolment::token_create(id, Digest::of(secret.as_bytes()), &wanted.note, life, &context)?;
    settle(&control, || async { Ok(((), decision.clone())) }).await?;
    let token = format!("{secret}.{}", control.ca.pin());
    let enroll_command = format!("gpuaas-agent enroll --server {} --token {token}", control.link_address);
    let join_token = token_shown(token_get(&control, id).await?);
    Ok((StatusCode::CREATED, Extension(NotKept), Json(JoinTokenCreated { join_token, token, enroll_command })))
}

pub(super) async fn token_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::JoinToken>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    settle(&control, || async { Ok(((), enrolment::token_revoke(&token_get(&control, id).await?, &context)?)) }).await?;
    Ok(Json(token_shown(token_get(&control, id).await?)))
}

async fn token_get(control: &Control, id: JoinTokenId) -> Result<JoinToken, Failure> {
    let unknown =
        || Refusal::not_found("join_token_unknown", format!("there is no join token {id}; `gpuaas node token ls` lists them"));
    Ok(control.store.join_token_get(id).await?.ok_or_else(unknown)?)
}

fn token_shown(token: JoinToken) -> dto::JoinToken {
    let state = if token.used.is_some() {
        "used"
    } else if token.revoked_at.is_some() {
        "revoked"
    } else if Timestamp::now() > token.expires_at {
        "expired"
    } else {
        "open"
    };
    dto::JoinToken {
        id: token.id,
        state: state.to_owned(),
        note: token.note,
        created_at: token.created_at,
        expires_at: token.expires_at,
        used_at: token.used.map(|(at, _)| at),
        used_by: token.used.map(|(_, node)| node),
        revoked_at: token.revoked_at,
    }
}
