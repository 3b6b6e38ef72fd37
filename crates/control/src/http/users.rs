//! People, and those among them whom the built-in issuer signs in.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, OwnPassword, Page, Reason, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet};
use gpuaas_api::routes;
use gpuaas_contract::id::UserId;
use gpuaas_domain::names::checked_email;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, User};
use gpuaas_domain::{Actor, Refusal, access, caps};
use gpuaas_identity::user_code::UserCode;
use gpuaas_store::ResourceFilter;
use zeroize::Zeroizing;

use super::caller::Caller;
use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page, page_limit, parse_id};
use crate::error::ControlError;
use crate::identity::{self, BuiltIn};
use crate::listener::ClientAddress;
use crate::stranger_budgets::AddressRange;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

fn built_in(control: &Control) -> Result<&BuiltIn, ControlError> {
    let off = "nobody signs in with a password of this server (`--no-built-in-issuer`); make the user at your own issuer";
    Ok(control.identity.built_in.as_ref().ok_or_else(|| Refusal::conflict("built_in_issuer_off", off))?)
}

async fn get(control: &Control, id: &str) -> Result<User, ControlError> {
    let id: UserId = parse_id(id)?;
    let unknown = || Refusal::not_found("user_unknown", format!("there is no user {id}"));
    Ok(resources::get::<User>(control, id).await?.ok_or_else(unknown)?)
}

/// The password to set, and the one to tell because it was made up.
fn chosen(given: Option<String>) -> (Zeroizing<String>, Option<String>) {
    match given {
        Some(password) => (Zeroizing::new(password), None),
        None => {
            // Two codes of eight letters: about 69 bits, and nobody mistakes one letter for another.
            let made_up = format!("{}-{}", UserCode::generate(), UserCode::generate());
            (Zeroizing::new(made_up.clone()), Some(made_up))
        }
    }
}

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<UserListQuery>,
) -> Result<Json<Page<dto::User>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<UserId>(after)?;
    }
    let states = query.state.map(|state| state.as_str()).into_iter().collect();
    let bad = |refusal: Refusal| ControlError::BadInput { code: refusal.code, message: refusal.message };
    let owner = query.email.as_deref().map(checked_email).transpose().map_err(bad)?;
    let filter = ResourceFilter { owner, states, ..ResourceFilter::default() };
    let found = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |user: &User| user.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(|user| to_dto(&control, user)).collect(), next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<String>) -> Result<Json<dto::User>, Rejected> {
    let user = get(&control, &id).await?;
    Ok(Json(to_dto(&control, user)))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<UserCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<UserCreated>), Rejected> {
    let built_in = built_in(&control)?;
    let (id, context) = (UserId::generate(), caller.context());
    access::check_password_life(&caller.principal)?;
    let email = checked_email(&wanted.email)?;
    let (password, one_time_password) = chosen(wanted.password);
    let hash = built_in.hashing.hash(&control, password).await?;
    let made = transact(&control, || async {
        if resources::by_lookup::<User>(&control, &tenancy::user_lookup(&built_in.issuer, &email)).await?.is_some() {
            let message = format!("there is a user with the address {email} already");
            return Err(Refusal::conflict("user_exists", message).into());
        }
        let present = control.store.resource_count(ResourceKind::User, &ResourceFilter::default()).await?;
        super::check_cap(&control, caps::USERS, present)?;
        let hash = Some(hash.clone());
        Ok(tenancy::create_local_user(id, &built_in.issuer, &email, &wanted.name, hash, &context)?)
    })
    .await?;
    let location = Location::of(routes::USER, [&made.id]);
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(UserCreated { user: to_dto(&control, made), one_time_password })))
}

/// Nobody is signed out by this: refresh tokens are refused from now on, and access tokens, which every request is checked against the
/// user with, are refused at once. A token that another service took for good ends within ten minutes.
pub(super) async fn deactivate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { .. }): JsonBody<Reason>,
) -> Result<Json<dto::User>, Rejected> {
    let context = caller.context();
    let gone = transact(&control, || async {
        let user = get(&control, &id).await?;
        Ok(tenancy::deactivate(&user, &context))
    })
    .await?;
    Ok(Json(to_dto(&control, gone)))
}

/// Nothing of before comes back with it: whoever is meant signs in again.
pub(super) async fn reactivate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(Reason { .. }): JsonBody<Reason>,
) -> Result<Json<dto::User>, Rejected> {
    let context = caller.context();
    let back = transact(&control, || async {
        let user = get(&control, &id).await?;
        let (user, decision) = tenancy::reactivate(&user, &context);
        if decision.is_empty() {
            return Ok((user, decision));
        }
        let ended = identity::end_all(&control, user.id, "user_reactivated", &context).await?;
        Ok((user, decision.and(ended)))
    })
    .await?;
    Ok(Json(to_dto(&control, back)))
}

/// Another password ends every sign-in that the old one began.
pub(super) async fn set_password(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<UserPassword>,
) -> Result<(Extension<NotKept>, Json<UserPasswordSet>), Rejected> {
    let built_in = built_in(&control)?;
    let context = caller.context();
    let local = |user: User| {
        if user.issuer == built_in.issuer {
            return Ok(user);
        }
        let message = format!("{} signs this user in; the password is set there", user.issuer);
        Err(ControlError::from(Refusal::conflict("user_not_local", message)))
    };
    access::check_password_life(&caller.principal)?;
    local(get(&control, &id).await?)?;
    let (password, one_time_password) = chosen(wanted.password);
    let hash = built_in.hashing.hash(&control, password).await?;
    let user = transact(&control, || async {
        let user = local(get(&control, &id).await?)?;
        let (user, decision) = tenancy::set_password(&user, hash.clone(), &context);
        let ended = identity::end_all(&control, user.id, "password_set", &context).await?;
        Ok((user, decision.and(ended)))
    })
    .await?;
    Ok((Extension(NotKept), Json(UserPasswordSet { user: to_dto(&control, user), one_time_password })))
}

/// The same for oneself: whoever knows the current one may.
pub(super) async fn set_own_password(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    address: Option<Extension<ClientAddress>>,
    JsonBody(wanted): JsonBody<OwnPassword>,
) -> Result<Json<dto::User>, Rejected> {
    let (built_in, context) = (built_in(&control)?, caller.context());
    let Actor::User(id) = caller.actor else {
        return Err(Refusal::forbidden("password_needs_person", "only a person who signed in has a password").into());
    };
    let user = get(&control, &id.to_string()).await?;
    if user.issuer != built_in.issuer {
        let message = format!("{} signs you in; change your password there", user.issuer);
        return Err(Refusal::conflict("user_not_local", message).into());
    }
    let from = AddressRange::of(address.map(|Extension(address)| address));
    let current = Zeroizing::new(wanted.current_password);
    if !identity::is_password_of(&control, built_in, &user, current, &from, &context.correlation_id).await? {
        return Err(Refusal::invalid("password_wrong", "this is not your current password").in_body("/current_password").into());
    }
    let hash = built_in.hashing.hash(&control, Zeroizing::new(wanted.new_password)).await?;
    let user = transact(&control, || async {
        let (user, decision) = tenancy::set_password(&get(&control, &id.to_string()).await?, hash.clone(), &context);
        let ended = identity::end_all(&control, user.id, "password_set", &context).await?;
        Ok((user, decision.and(ended)))
    })
    .await?;
    Ok(Json(to_dto(&control, user)))
}

fn to_dto(control: &Control, user: User) -> dto::User {
    dto::User {
        id: user.id,
        state: user.state().into(),
        local: control.identity.built_in.as_ref().is_some_and(|built_in| built_in.issuer == user.issuer),
        email: user.email,
        email_verified: user.email_verified,
        name: user.name,
        issuer: user.issuer,
        created_at: user.created_at,
        deactivated_at: user.deactivated_at,
    }
}
