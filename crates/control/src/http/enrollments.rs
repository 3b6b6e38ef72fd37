//! The two doors, from the operator's side.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, EnrollmentApprove, EnrollmentListQuery, ExistingNode, JoinTokenCreate, JoinTokenCreated, Page, PageQuery, Reason,
};
use gpuaas_api::routes;
use gpuaas_contract::Digest;
use gpuaas_contract::id::{EnrollmentId, JoinTokenId};
use gpuaas_contract::state::{EnrollmentStatus, JoinTokenState};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::enrollment::{self, Door, Enrollment, EnrollmentState, Existing, JoinToken, TOKEN_LIFE};
use gpuaas_domain::node::Node;

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, node_name, page, page_limit, parse_id, parse_opt};
use crate::Control;
use crate::error::ControlError;
use crate::link::enroll::{applicant_of, is_same_host};
use crate::pki::secret_text;
use crate::transact::transact;

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<EnrollmentListQuery>,
) -> Result<Json<Page<dto::Enrollment>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let found = control.store.enrollment_list(query.state, parse_opt(query.after.as_deref())?, limit.saturating_add(1)).await?;
    let found = page(found, limit, |enrollment| enrollment.id.to_string());
    let mut items = Vec::with_capacity(found.items.len());
    for enrollment in found.items {
        items.push(to_dto(&control, enrollment).await?);
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<dto::Enrollment>, Rejected> {
    Ok(Json(to_dto(&control, get(&control, parse_id(&id)?).await?).await?))
}

async fn get(control: &Control, id: EnrollmentId) -> Result<Enrollment, ControlError> {
    let unknown = || Refusal::not_found("enrollment_unknown", format!("there is no enrollment {id}"));
    Ok(control.store.enrollment_get(id).await?.ok_or_else(unknown)?)
}

/// The node that the host is already, by its fingerprint, and whether it has that node's keys.
async fn existing(control: &Control, enrollment: &Enrollment) -> Result<Option<(Node, bool)>, ControlError> {
    let Some(node) = control.store.node_by_fingerprint(&enrollment.fingerprint).await? else { return Ok(None) };
    let same_keys = is_same_host(&node, &applicant_of(enrollment))?;
    Ok(Some((node, same_keys)))
}

async fn to_dto(control: &Control, enrollment: Enrollment) -> Result<dto::Enrollment, ControlError> {
    let open = matches!(enrollment.state, EnrollmentState::Pending | EnrollmentState::Approved);
    let lapsed = Timestamp::now() > enrollment.expires_at;
    let state = if open && lapsed { EnrollmentStatus::Expired } else { enrollment.state.into() };
    let existing = if open && !lapsed { existing(control, &enrollment).await? } else { None };
    let existing_node = existing.map(|(node, same_keys)| ExistingNode {
        id: node.id,
        needs_replace: enrollment::check_replacement(
            Some(Existing { node: &node, same_keys }),
            None,
            Door::Approval(enrollment.id),
        )
        .is_err(),
        name: node.name,
        service: node.service.into(),
        online: node.session.is_some(),
        keys_differ: !same_keys,
    });
    Ok(dto::Enrollment {
        id: enrollment.id,
        state: state.into(),
        email: enrollment.email,
        fingerprint: enrollment.fingerprint,
        receipt_key: enrollment.receipt_key,
        facts: enrollment.facts,
        address: enrollment.address,
        reason: enrollment.reason,
        node_id: enrollment.node_id,
        existing_node,
        replace_node: enrollment.replace_node,
        created_at: enrollment.created_at,
        expires_at: enrollment.expires_at,
    })
}

pub(super) async fn approve(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(EnrollmentApprove { reason: _, replace_node }): JsonBody<EnrollmentApprove>,
) -> Result<Json<dto::Enrollment>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    transact(&control, || async {
        let enrollment = get(&control, id).await?;
        let known = existing(&control, &enrollment).await?;
        let known = known.as_ref().map(|(node, same_keys)| Existing { node, same_keys: *same_keys });
        Ok(((), enrollment::approve(&enrollment, known, replace_node, &context)?))
    })
    .await?;
    Ok(Json(to_dto(&control, get(&control, id).await?).await?))
}

pub(super) async fn reject(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Enrollment>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    transact(&control, || async { Ok(((), enrollment::reject(&get(&control, id).await?, &reason, &context)?)) }).await?;
    Ok(Json(to_dto(&control, get(&control, id).await?).await?))
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
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<JoinTokenCreated>), Rejected> {
    let context = caller.context();
    let (id, secret) = (JoinTokenId::generate(), secret_text("gpj_"));
    let life = wanted.life_seconds.map_or(TOKEN_LIFE, Duration::from_secs);
    if let Some(node) = wanted.replace_node {
        node_name::find(&control, &node.to_string()).await?;
    }
    let decision =
        enrollment::token_create(id, Digest::of(secret.as_bytes()), &wanted.note, life, wanted.replace_node, &context)?;
    transact(&control, || async { Ok(((), decision.clone())) }).await?;
    let token = format!("{secret}.{}", control.ca.pin());
    let enroll_command = format!("gpuaas-agent enroll --server {} --token {token}", control.link_address);
    let join_token = token_shown(token_get(&control, id).await?);
    let location = Location::of(routes::JOIN_TOKEN, [&join_token.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(JoinTokenCreated { join_token, token, enroll_command })))
}

pub(super) async fn token_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
) -> Result<Json<dto::JoinToken>, Rejected> {
    let (id, context) = (parse_id(&id)?, caller.context());
    transact(&control, || async { Ok(((), enrollment::token_revoke(&token_get(&control, id).await?, &context)?)) }).await?;
    Ok(Json(token_shown(token_get(&control, id).await?)))
}

async fn token_get(control: &Control, id: JoinTokenId) -> Result<JoinToken, ControlError> {
    let unknown = || Refusal::not_found("join_token_unknown", format!("there is no join token {id}"));
    Ok(control.store.join_token_get(id).await?.ok_or_else(unknown)?)
}

fn token_shown(token: JoinToken) -> dto::JoinToken {
    let state = if token.used.is_some() {
        JoinTokenState::Used
    } else if token.revoked_at.is_some() {
        JoinTokenState::Revoked
    } else if Timestamp::now() > token.expires_at {
        JoinTokenState::Expired
    } else {
        JoinTokenState::Open
    };
    dto::JoinToken {
        id: token.id,
        state: state.into(),
        note: token.note,
        created_at: token.created_at,
        expires_at: token.expires_at,
        used_at: token.used.map(|(at, _)| at),
        used_by: token.used.map(|(_, node)| node),
        revoked_at: token.revoked_at,
        replace_node: token.replace_node,
    }
}
