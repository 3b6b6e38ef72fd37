//! Members of the platform, of organizations and of projects: the same in three places.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use gpuaas_api::dto::{self, MemberAdd, MemberChange, Page, PageQuery};
use gpuaas_api::routes;
use gpuaas_contract::id::MembershipId;
use gpuaas_contract::state::MemberKind;
use gpuaas_domain::access::{Membership, Place, Scope, Who};
use gpuaas_domain::names::checked_email;
use gpuaas_domain::resource::Resource as _;
use gpuaas_domain::tenancy::{self, ServiceAccount, User};
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, etag_of, if_match, mint, page, page_limit, parse_id};
use crate::audience::Audience;
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

/// The place whose members a request is about: the guard has read it from the path.
fn place(caller: &Caller) -> Place {
    match caller.scope {
        Scope::Platform => Place::Platform,
        Scope::Organization(id) => Place::Organization(id),
        Scope::Project { project, .. } => Place::Project(project),
    }
}

/// The person with this address: a user who has proved to have it, or whoever will.
pub(super) async fn by_email(control: &Control, email: &str) -> Result<Who, ControlError> {
    let email = checked_email(email)?;
    let filter = ResourceFilter { owner: Some(email.clone()), states: vec!["active"], ..ResourceFilter::default() };
    let users: Vec<User> = resources::all(control, &filter).await?;
    let mut proven = users.into_iter().filter(|user| user.email_verified);
    // Two issuers may both know the address; then whoever signs in next is meant, as with nobody.
    Ok(match (proven.next(), proven.next()) {
        (Some(user), None) => Who::User(user.id),
        (Some(_), Some(_)) | (None, _) => Who::Invited(email),
    })
}

async fn of_place(control: &Control, at: Place) -> Result<Vec<Membership>, ControlError> {
    let filter = ResourceFilter { parent: Some(at.to_string()), states: vec!["active", "invited"], ..ResourceFilter::default() };
    resources::all(control, &filter).await
}

/// The membership with this id, if it is in that place.
async fn get(control: &Control, at: Place, id: &str) -> Result<Membership, ControlError> {
    let id: MembershipId = parse_id(id)?;
    let unknown = || Refusal::not_found("member_unknown", format!("there is no member {id} here"));
    let found = resources::get::<Membership>(control, id).await?.filter(|found| found.at == at && found.removed_at.is_none());
    Ok(found.ok_or_else(unknown)?)
}

pub(super) async fn list(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<dto::Member>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<MembershipId>(after)?;
    }
    let filter = ResourceFilter {
        parent: Some(place(&caller).to_string()),
        states: vec!["active", "invited"],
        ..ResourceFilter::default()
    };
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |member: &Membership| member.id.to_string());
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
    let (at, role, context) = (place(&caller), wanted.role, caller.context());
    let id = MembershipId::generate();
    mint::role(&control, &caller, at, role)?;
    let made = transact(&control, || async {
        let who = match (&wanted.email, wanted.service_account_id) {
            (Some(email), None) => by_email(&control, email).await?,
            (None, Some(account)) => account_of(&control, at, account).await?,
            (Some(_), Some(_)) | (None, None) => {
                let message = "give either the e-mail address of a person or a service account";
                return Err(Refusal::invalid("member_invalid", message).into());
            }
        };
        let present = of_place(&control, at).await?;
        if present.iter().any(|present| present.who == who) {
            let message = "they are a member already; change their role instead";
            return Err(Refusal::conflict("member_exists", message).into());
        }
        let who = match (who, &wanted.email) {
            // Whether an address has an account, and the name of its owner, is not told to whoever types it: they become a member when
            // they next come, as somebody does who has no account yet.
            (Who::User(_), Some(email)) if !Audience::of(&caller.principal).is_platform() => Who::Invited(checked_email(email)?),
            (who, _) => who,
        };
        if present.iter().any(|present| present.who == who) {
            return Err(Refusal::conflict("member_exists", "they are invited already; change their role instead").into());
        }
        check_caps(&control, &present, &who)?;
        Ok(tenancy::invite(id, who, at, role, &context)?)
    })
    .await?;
    let tag = etag_of(made.version());
    let location = match at {
        Place::Platform => Location::of(routes::PLATFORM_MEMBER, [&id]),
        Place::Organization(organization) => {
            Location::of(routes::ORGANIZATION_MEMBER, [&organization as &dyn std::fmt::Display, &id])
        }
        Place::Project(project) => Location::of(routes::PROJECT_MEMBER, [&project as &dyn std::fmt::Display, &id]),
    };
    Ok((StatusCode::CREATED, location, Tagged(tag, to_dto(&control, made).await?)))
}

/// Refuses one more member than there may be.
fn check_caps(control: &Control, present: &[Membership], who: &Who) -> Result<(), ControlError> {
    let is_invited = |who: &Who| matches!(who, Who::Invited(_));
    let cap = if is_invited(who) { caps::INVITATIONS } else { caps::MEMBERS };
    let count = present.iter().filter(|present| is_invited(&present.who) == is_invited(who)).count();
    super::check_cap(control, cap, u64::try_from(count).unwrap_or(u64::MAX))
}

/// A service account acts in its own project only.
async fn account_of(control: &Control, at: Place, id: gpuaas_contract::id::ServiceAccountId) -> Result<Who, ControlError> {
    let account = resources::get::<ServiceAccount>(control, id).await?.filter(|account| account.deleted_at.is_none());
    match account {
        Some(account) if at == Place::Project(account.project_id) => Ok(Who::ServiceAccount(id)),
        Some(_) | None => {
            let message =
                format!("there is no service account {id} in this project; one can be a member of its own project only");
            Err(Refusal::invalid("service_account_unknown", message).in_body("/service_account_id").into())
        }
    }
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(segments): Segments<std::collections::BTreeMap<String, String>>,
    JsonBody(MemberChange { role }): JsonBody<MemberChange>,
) -> Result<Tagged<dto::Member>, Rejected> {
    let (at, context) = (place(&caller), caller.context());
    let id = segments.get("member").cloned().unwrap_or_default();
    transact(&control, || async {
        let member = get(&control, at, &id).await?;
        if_match(&headers, &etag_of(member.version))?;
        if !member.role.includes(role) {
            mint::role(&control, &caller, at, role)?;
        }
        Ok(tenancy::change_role(&member, role, &of_place(&control, at).await?, &context)?)
    })
    .await?;
    let member = get(&control, at, &id).await?;
    let tag = etag_of(member.version);
    Ok(Tagged(tag, to_dto(&control, member).await?))
}

pub(super) async fn remove(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(segments): Segments<std::collections::BTreeMap<String, String>>,
) -> Result<Json<dto::Member>, Rejected> {
    let (at, context) = (place(&caller), caller.context());
    let id = segments.get("member").cloned().unwrap_or_default();
    let gone = transact(&control, || async {
        let member = get(&control, at, &id).await?;
        if_match(&headers, &etag_of(member.version))?;
        Ok(tenancy::leave(&member, &of_place(&control, at).await?, &context)?)
    })
    .await?;
    Ok(Json(to_dto(&control, gone).await?))
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
