//! People, and those among them whom the built-in issuer signs in.

use std::sync::Arc;

use gpuaas_api::dto::{MAX_PAGE, OwnPassword, Page, UserCreate};
use gpuaas_contract::id::UserId;
use gpuaas_contract::state::UserState;
use gpuaas_domain::access::{ApiToken, PrincipalId, Who};
use gpuaas_domain::names::checked_email;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, User, UserBelongings};
use gpuaas_domain::{Actor, Refusal, access, caps};
use gpuaas_identity::user_code::UserCode;
use gpuaas_store::{ApiTokenFilter, ResourceFilter};
use zeroize::Zeroizing;

use super::{Caller, PageRequest, check_cap, list_resources, members};
use crate::error::ControlError;
use crate::identity::{self, BuiltIn};
use crate::stranger_budgets::AddressRange;
use crate::{Control, authz_cache, resources};

/// A user, and the password that was made up for them: it is told once.
pub(crate) struct UserWithPassword {
    /// The user.
    pub(crate) user: User,
    /// The password, if the caller gave none.
    pub(crate) one_time_password: Option<String>,
}

fn built_in(control: &Control) -> Result<&BuiltIn, ControlError> {
    let off = "nobody signs in with a password of this server (`--no-built-in-issuer`); make the user at your own issuer";
    Ok(control.identity.built_in.as_ref().ok_or_else(|| Refusal::conflict("built_in_issuer_off", off))?)
}

/// The user with this id.
pub(crate) async fn get(control: &Control, id: UserId) -> Result<User, ControlError> {
    let unknown = || Refusal::not_found("user_unknown", format!("there is no user {id}"));
    Ok(resources::get::<User>(control, id).await?.ok_or_else(unknown)?)
}

/// The user with this id, unless they were deleted.
async fn get_live(control: &Control, id: UserId) -> Result<User, ControlError> {
    let user = get(control, id).await?;
    match user.deleted_at {
        None => Ok(user),
        Some(_) => Err(Refusal::not_found("user_unknown", format!("user {id} was deleted")).into()),
    }
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

/// Lists users, in one state or with one address if asked for.
pub(crate) async fn list(
    control: &Control,
    state: Option<UserState>,
    email: Option<&str>,
    page: &PageRequest<UserId>,
) -> Result<Page<User>, ControlError> {
    let bad = |refusal: Refusal| ControlError::BadInput { code: refusal.code, message: refusal.message };
    let owner = email.map(checked_email).transpose().map_err(bad)?;
    let states = match state {
        Some(state) => vec![state.as_str()],
        None => authz_cache::users_there().states,
    };
    list_resources(control, &ResourceFilter { owner, states, ..ResourceFilter::default() }, page, false).await
}

/// Creates a user whom the built-in issuer signs in.
pub(crate) async fn create(control: &Control, caller: &Caller, wanted: UserCreate) -> Result<UserWithPassword, ControlError> {
    let built_in = built_in(control)?;
    let (id, context) = (UserId::generate(), caller.context());
    access::check_password_life(&caller.principal)?;
    let email = checked_email(&wanted.email)?;
    let (password, one_time_password) = chosen(wanted.password);
    let hash = built_in.hashing.hash(control, password).await?;
    let attempt = || async {
        if resources::by_lookup::<User>(control, &tenancy::user_lookup(&built_in.issuer, &email)).await?.is_some() {
            let message = format!("there is a user with the address {email} already");
            return Err(Refusal::conflict("user_exists", message).into());
        }
        let present = control.store.resource_count(ResourceKind::User, &authz_cache::users_there()).await?;
        check_cap(control, caps::USERS, present)?;
        let hash = Some(hash.clone());
        Ok(tenancy::create_local_user(id, &built_in.issuer, &email, &wanted.name, hash, &context)?)
    };
    Ok(UserWithPassword { user: caller.transact(control, attempt).await?, one_time_password })
}

/// Nobody is signed out by this: refresh tokens are refused from now on, and access tokens, which every request is checked against the
/// user with, are refused at once. A token that another service took for good ends within ten minutes.
pub(crate) async fn deactivate(control: &Control, caller: &Caller, id: UserId) -> Result<User, ControlError> {
    let context = caller.context();
    caller.transact(control, || async { Ok(tenancy::deactivate(&get_live(control, id).await?, &context)) }).await
}

/// Deletes a user with their roles, their sign-ins and the keys they created.
pub(crate) async fn delete(control: &Control, caller: &Caller, id: UserId) -> Result<User, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let user = get_live(control, id).await?;
        let (user, decision) = tenancy::delete_user(&user, &belongings(control, &user).await?, &context)?;
        let ended = identity::end_all(control, user.id, "user_deleted", &context).await?;
        Ok((user, decision.and(ended)))
    };
    caller.transact(control, attempt).await
}

/// What ends with a user.
async fn belongings(control: &Control, user: &User) -> Result<UserBelongings, ControlError> {
    let mut memberships = authz_cache::of_owner(control, &Who::User(user.id).to_string()).await?;
    let mut others = Vec::new();
    for own in &memberships {
        for other in members::of_place(control, own.at).await? {
            let Who::User(id) = other.who else { continue };
            if resources::get::<User>(control, id).await?.is_some_and(|user| user.deactivated_at.is_none()) {
                others.push(other);
            }
        }
    }
    if let Some(invited) = tenancy::invitations_of(user) {
        memberships.extend(authz_cache::of_owner(control, &invited).await?);
    }
    let filter = ApiTokenFilter { created_by: Some(PrincipalId::User(user.id)), ..ApiTokenFilter::default() };
    let mut keys: Vec<ApiToken> = Vec::new();
    loop {
        let page = control.store.api_token_list(&filter, keys.last().map(|key| key.id), MAX_PAGE).await?;
        let is_last = page.len() < usize::try_from(MAX_PAGE).unwrap_or(usize::MAX);
        keys.extend(page);
        if is_last {
            break;
        }
    }
    keys.retain(|key| key.revoked_at.is_none());
    Ok(UserBelongings { memberships, others, keys })
}

/// Nothing of before comes back with it: whoever is meant signs in again.
pub(crate) async fn reactivate(control: &Control, caller: &Caller, id: UserId) -> Result<User, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let (user, decision) = tenancy::reactivate(&get_live(control, id).await?, &context);
        if decision.is_empty() {
            return Ok((user, decision));
        }
        let ended = identity::end_all(control, user.id, "user_reactivated", &context).await?;
        Ok((user, decision.and(ended)))
    };
    caller.transact(control, attempt).await
}

/// Sets somebody's password. That ends every sign-in that the old one began.
pub(crate) async fn set_password(
    control: &Control,
    caller: &Caller,
    id: UserId,
    password: Option<String>,
) -> Result<UserWithPassword, ControlError> {
    let built_in = built_in(control)?;
    let local = |user: User| {
        if user.issuer == built_in.issuer {
            return Ok(user);
        }
        let message = format!("{} signs this user in; the password is set there", user.issuer);
        Err(ControlError::from(Refusal::conflict("user_not_local", message)))
    };
    access::check_password_life(&caller.principal)?;
    local(get_live(control, id).await?)?;
    let (password, one_time_password) = chosen(password);
    let hash = built_in.hashing.hash(control, password).await?;
    let user = replace_password(control, caller, id, local, hash).await?;
    Ok(UserWithPassword { user, one_time_password })
}

/// Sets the caller's own password, if they know the current one.
pub(crate) async fn set_own_password(
    control: &Arc<Control>,
    caller: &Caller,
    from: &AddressRange,
    wanted: OwnPassword,
) -> Result<User, ControlError> {
    let built_in = built_in(control)?;
    let Actor::User(id) = caller.actor else {
        return Err(Refusal::forbidden("password_needs_person", "only a person who signed in has a password").into());
    };
    let user = get_live(control, id).await?;
    if user.issuer != built_in.issuer {
        let message = format!("{} signs you in; change your password there", user.issuer);
        return Err(Refusal::conflict("user_not_local", message).into());
    }
    let current = Zeroizing::new(wanted.current_password);
    if !identity::is_password_of(control, built_in, &user, current, from, &caller.correlation_id).await? {
        return Err(Refusal::invalid("password_wrong", "this is not your current password").in_body("/current_password").into());
    }
    let hash = built_in.hashing.hash(control, Zeroizing::new(wanted.new_password)).await?;
    replace_password(control, caller, id, Ok, hash).await
}

/// Writes another password and ends what the old one began, if the user is still one that `check` takes.
async fn replace_password(
    control: &Control,
    caller: &Caller,
    id: UserId,
    check: impl Fn(User) -> Result<User, ControlError>,
    hash: String,
) -> Result<User, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let user = check(get_live(control, id).await?)?;
        let (user, decision) = tenancy::set_password(&user, hash.clone(), &context);
        let ended = identity::end_all(control, user.id, "password_set", &context).await?;
        Ok((user, decision.and(ended)))
    };
    caller.transact(control, attempt).await
}
