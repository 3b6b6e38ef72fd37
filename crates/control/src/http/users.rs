//! Users.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, OwnPassword, Page, Reason, UserCreate, UserCreated, UserListQuery, UserPassword, UserPasswordSet};
use gpuaas_api::routes;
use gpuaas_contract::id::UserId;
use gpuaas_domain::tenancy::User;

use super::idempotency::NotKept;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, page_request};
use crate::Control;
use crate::app::{Caller, users};
use crate::listener::ClientAddress;
use crate::stranger_budgets::AddressRange;

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<UserListQuery>,
) -> Result<Json<Page<dto::User>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = users::list(&control, query.state, query.email.as_deref(), &page).await?;
    Ok(Json(Page { items: found.items.into_iter().map(|user| to_dto(&control, user)).collect(), next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(id): Segments<UserId>) -> Result<Json<dto::User>, Rejected> {
    Ok(Json(to_dto(&control, users::get(&control, id).await?)))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<UserCreate>,
) -> Result<(StatusCode, Location, Extension<NotKept>, Json<UserCreated>), Rejected> {
    let made = users::create(&control, &caller, wanted).await?;
    let location = Location::of(routes::USER, [&made.user.id]);
    let document = UserCreated { user: to_dto(&control, made.user), one_time_password: made.one_time_password };
    Ok((StatusCode::CREATED, location, Extension(NotKept), Json(document)))
}

pub(super) async fn deactivate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<UserId>,
    JsonBody(Reason { .. }): JsonBody<Reason>,
) -> Result<Json<dto::User>, Rejected> {
    let user = users::deactivate(&control, &caller, id).await?;
    Ok(Json(to_dto(&control, user)))
}

pub(super) async fn delete(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<UserId>,
) -> Result<Json<dto::User>, Rejected> {
    let user = users::delete(&control, &caller, id).await?;
    Ok(Json(to_dto(&control, user)))
}

pub(super) async fn reactivate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<UserId>,
    JsonBody(Reason { .. }): JsonBody<Reason>,
) -> Result<Json<dto::User>, Rejected> {
    let user = users::reactivate(&control, &caller, id).await?;
    Ok(Json(to_dto(&control, user)))
}

pub(super) async fn set_password(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(id): Segments<UserId>,
    JsonBody(UserPassword { password }): JsonBody<UserPassword>,
) -> Result<(Extension<NotKept>, Json<UserPasswordSet>), Rejected> {
    let set = users::set_password(&control, &caller, id, password).await?;
    let document = UserPasswordSet { user: to_dto(&control, set.user), one_time_password: set.one_time_password };
    Ok((Extension(NotKept), Json(document)))
}

pub(super) async fn set_own_password(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    address: Option<Extension<ClientAddress>>,
    JsonBody(wanted): JsonBody<OwnPassword>,
) -> Result<Json<dto::User>, Rejected> {
    let from = AddressRange::of(address.map(|Extension(address)| address));
    let user = users::set_own_password(&control, &caller, &from, wanted).await?;
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
        deleted_at: user.deleted_at,
    }
}
