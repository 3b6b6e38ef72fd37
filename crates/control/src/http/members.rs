//! Members of the platform, of organizations and of projects. The same handlers serve all three.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, MemberAdd, MemberChange, Page, PageQuery};
use gpuaas_api::routes;
use gpuaas_contract::id::MembershipId;
use gpuaas_contract::state::MemberKind;
use gpuaas_domain::access::{Membership, Place, Scope, Who};
use gpuaas_domain::tenancy::{ServiceAccount, User};

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, page_request};
use crate::app::{Caller, IfMatch, etag_of, members};
use crate::error::ControlError;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

#[derive(serde::Deserialize)]
pub(super) struct MemberPath {
    member: MembershipId,
}

/// Where the members of the request belong: the scope that the guard derived from the path.
fn place(caller: &Caller) -> Place {
    match caller.scope {
        Scope::Platform => Place::Platform,
        Scope::Organization(id) => Place::Organization(id),
        Scope::Project { project, .. } => Place::Project(project),
    }
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Member>>, Rejected> {
    let found = members::list(&control, place(&caller), &page_request(query.after.as_deref(), query.limit)?).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for member in found.items {
        items.push(to_dto(&control, member).await?);
    }
    Ok(Json(Page { items, next: found.next }))
}

pub(super) async fn add(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<MemberAdd>,
) -> Result<(StatusCode, Location, Tagged<dto::Member>), Rejected> {
    let at = place(&caller);
    let made = members::add(&control, &caller, at, &wanted).await?;
    let location = match at {
        Place::Platform => Location::of(routes::PLATFORM_MEMBER, [&made.id]),
        Place::Organization(organization) => {
            Location::of(routes::ORGANIZATION_MEMBER, [&organization as &dyn std::fmt::Display, &made.id])
        }
        Place::Project(project) => Location::of(routes::PROJECT_MEMBER, [&project as &dyn std::fmt::Display, &made.id]),
    };
    Ok((StatusCode::CREATED, location, tagged(&control, made).await?))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    Segments(MemberPath { member }): Segments<MemberPath>,
    JsonBody(MemberChange { role }): JsonBody<MemberChange>,
) -> Result<Tagged<dto::Member>, Rejected> {
    let next = members::change(&control, &caller, place(&caller), member, role, &if_match).await?;
    Ok(tagged(&control, next).await?)
}

pub(super) async fn remove(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    Segments(MemberPath { member }): Segments<MemberPath>,
) -> Result<Json<dto::Member>, Rejected> {
    let gone = members::remove(&control, &caller, place(&caller), member, &if_match).await?;
    Ok(Json(to_dto(&control, gone).await?))
}

async fn tagged(control: &Control, member: Membership) -> Result<Tagged<dto::Member>, ControlError> {
    Ok(Tagged(etag_of(member.version), to_dto(control, member).await?))
}

async fn to_dto(control: &Control, member: Membership) -> Result<dto::Member, ControlError> {
    let (kind, user_id, service_account_id, email, name) = match &member.who {
        Who::User(id) => {
            let user = resources::get::<User>(control, id).await?;
            let (email, name) = user.map(|user| (user.email, user.name)).unwrap_or_default();
            (MemberKind::User, Some(*id), None, Some(email), name)
        }
        Who::ServiceAccount(id) => {
            let account = resources::get::<ServiceAccount>(control, id).await?;
            (MemberKind::ServiceAccount, None, Some(*id), None, account.map(|account| account.name).unwrap_or_default())
        }
        Who::Invited(email) => (MemberKind::Invited, None, None, Some(email.clone()), String::new()),
    };
    Ok(dto::Member {
        id: member.id,
        kind: kind.into(),
        user_id,
        service_account_id,
        email,
        name,
        at: member.at.to_string(),
        role: member.role.into(),
        state: member.state().into(),
        etag: etag_of(member.version),
        invited_by: member.invited_by,
        created_at: member.created_at,
        removed_at: member.removed_at,
    })
}
