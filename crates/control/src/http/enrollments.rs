//! Enrollment, the operator's side.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{
    self, EnrollmentApprove, EnrollmentListQuery, ExistingNode, JoinTokenCreate, JoinTokenCreated, JoinedNode, Page, PageQuery,
    Reason,
};
use gpuaas_api::routes;
use gpuaas_contract::id::{EnrollmentId, JoinTokenId};
use gpuaas_contract::state::{EnrollmentStatus, JoinTokenState};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::enrollment::{self, Door, Enrollment, EnrollmentState, Existing, JoinToken};

use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::Caller;
use crate::app::enrollments::{self, JoinTokenWithSecret};
use crate::error::ControlError;

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<EnrollmentListQuery>,
) -> Result<Json<Page<dto::Enrollment>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = enrollments::list(&control, query.state, &page).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for enrollment in found.items {
        items.push(to_dto(&control, enrollment).await?);
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn show(
    State(control): Shared,
    Segments(id): Segments<EnrollmentId>,
) -> Result<Json<dto::Enrollment>, Rejected> {
    let enrollment = enrollments::get(&control, id).await?;
    Ok(Json(to_dto(&control, enrollment).await?))
}

async fn to_dto(control: &Control, enrollment: Enrollment) -> Result<dto::Enrollment, ControlError> {
    let open = matches!(enrollment.state, EnrollmentState::Pending | EnrollmentState::Approved);
    let lapsed = Timestamp::now() > enrollment.expires_at;
    let state = if open && lapsed { EnrollmentStatus::Expired } else { enrollment.state.into() };
    let existing = if open && !lapsed { enrollments::existing_node(control, &enrollment).await? } else { None };
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
    Segments(id): Segments<EnrollmentId>,
    JsonBody(EnrollmentApprove { reason: _, replace_node }): JsonBody<EnrollmentApprove>,
) -> Result<Json<dto::Enrollment>, Rejected> {
    let enrollment = enrollments::approve(&control, &caller, id, replace_node).await?;
    Ok(Json(to_dto(&control, enrollment).await?))
}

pub(super) async fn reject(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<EnrollmentId>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
) -> Result<Json<dto::Enrollment>, Rejected> {
    let enrollment = enrollments::reject(&control, &caller, id, &reason).await?;
    Ok(Json(to_dto(&control, enrollment).await?))
}

pub(super) async fn token_list(
    State(control): Shared,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::JoinToken>>, Rejected> {
    let found = enrollments::token_list(&control, &page_request(query.after.as_deref(), query.limit)?).await?;
    Ok(Json(Page { items: found.items.into_iter().map(token_to_dto).collect(), next: found.next }))
}

pub(super) async fn token_create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<JoinTokenCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<JoinTokenCreated>), Rejected> {
    let JoinTokenWithSecret { join_token, token } = enrollments::token_create(&control, &caller, &wanted).await?;
    let location = Location::of(routes::JOIN_TOKEN, [&join_token.id]);
    let enroll_command = format!("gpuaas-agent enroll --server {} --token {token}", control.link_address);
    let document = JoinTokenCreated { join_token: token_to_dto(join_token), token, enroll_command };
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(document)))
}

pub(super) async fn token_revoke(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<JoinTokenId>,
) -> Result<Json<dto::JoinToken>, Rejected> {
    Ok(Json(token_to_dto(enrollments::token_revoke(&control, &caller, id).await?)))
}

fn token_to_dto(token: JoinToken) -> dto::JoinToken {
    let left = token.left();
    let state = if left == 0 {
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
        uses: token.uses,
        left,
        used_at: token.used.last().map(|(at, _)| *at),
        used_by: token.used.last().map(|(_, node)| *node),
        joined: token.used.into_iter().map(|(joined_at, node_id)| JoinedNode { node_id, joined_at }).collect(),
        revoked_at: token.revoked_at,
        replace_node: token.replace_node,
    }
}
