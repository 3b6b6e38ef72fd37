//! Codes, device codes and refresh tokens: each is used once, and a second use ends its whole sign-in.

use gpuaas_contract::event::{Event, SignInEvent, SignInRevoked};
use gpuaas_contract::id::{CorrelationId, GrantId, UserId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::tenancy::{SignIn, SignInKind, User};
use gpuaas_domain::{Actor, Decision, Wakeup};
use gpuaas_identity::oauth::{
    ClientId, CodeOutcome, DevicePoll, OauthError, OauthFailure, Refresh, RefreshOutcome, Scope, Scopes, TokenRequest,
};
use gpuaas_identity::secrets::Secret;
use gpuaas_store::ResourceFilter;

use super::rows::{self, Grant};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

/// The user and the scopes for new tokens.
pub(super) struct Granted {
    /// The user who signed in.
    pub(super) user: User,
    /// The sign-in.
    pub(super) grant: GrantId,
    /// The client.
    pub(super) client: ClientId,
    /// The scopes.
    pub(super) scope: Scopes,
    /// From the authorization request.
    pub(super) nonce: Option<String>,
    /// Whether these are the first tokens of the sign-in.
    pub(super) is_first: bool,
    /// The refresh token to give.
    pub(super) refresh: Option<Secret>,
}

/// The result of a request, and the decision to write.
type Attempt = (Result<Granted, OauthFailure>, Decision);

fn refused(failure: OauthFailure) -> Attempt {
    (Err(failure), Decision::default())
}

fn invalid() -> OauthFailure {
    OauthFailure::new(OauthError::InvalidGrant, "this is not valid, or not any more; sign in again")
}

fn context(user: UserId, now: Timestamp, correlation_id: &CorrelationId) -> Context {
    Context { now, actor: Actor::User(user), correlation_id: correlation_id.clone() }
}

/// Redeems the grant of a token request. If it is used at the same time, it is decided again, as used.
pub(super) async fn redeem(
    control: &Control,
    request: &TokenRequest,
    correlation_id: &CorrelationId,
) -> Result<Result<Granted, OauthFailure>, ControlError> {
    transact(control, || async {
        let now = Timestamp::now();
        match request {
            TokenRequest::AuthorizationCode { client, code, redirect_uri, verifier } => {
                let Some(row) = get(control, SignInKind::Code, code).await? else { return Ok(refused(invalid())) };
                match rows::code(&row)?.redeem(*client, redirect_uri, verifier, now) {
                    CodeOutcome::Refused(failure) => Ok(refused(failure)),
                    CodeOutcome::Reused { grant, failure } => {
                        Ok((Err(failure), revoked(control, grant, "code_used_twice", now, correlation_id).await?))
                    }
                    CodeOutcome::Granted(code) => {
                        let used = Decision::default().update(&rows::of_code(&code, row.version)?);
                        let asked = (code.grant, code.client, code.scope, code.nonce);
                        first_tokens(control, code.user, asked, used, &context(code.user, now, correlation_id)).await
                    }
                }
            }
            TokenRequest::DeviceCode { client, code } => {
                let Some(row) = get(control, SignInKind::Device, code).await? else { return Ok(refused(invalid())) };
                let (device, signed_in) = rows::device(&row)?;
                match device.poll(*client, now) {
                    DevicePoll::Refused(failure) => Ok(refused(failure)),
                    DevicePoll::NotYet { grant, failure } => {
                        Ok((Err(failure), Decision::default().update(&rows::of_device(&grant, signed_in, row.version)?)))
                    }
                    DevicePoll::Reused { grant, failure } => {
                        Ok((Err(failure), revoked(control, grant, "device_code_used_twice", now, correlation_id).await?))
                    }
                    DevicePoll::Tokens { grant, user } => {
                        let used = Decision::default().update(&rows::of_device(&grant, signed_in, row.version)?);
                        let asked = (grant.grant, grant.client, grant.scope, None);
                        first_tokens(control, user, asked, used, &context(user, now, correlation_id)).await
                    }
                }
            }
            TokenRequest::RefreshToken { client, token, scope } => {
                let Some(row) = get(control, SignInKind::Refresh, token).await? else { return Ok(refused(invalid())) };
                let stored = rows::refresh(&row)?;
                match stored.rotate(*client, scope.as_ref(), now) {
                    RefreshOutcome::Refused(failure) => Ok(refused(failure)),
                    RefreshOutcome::Reused { grant, failure } => {
                        Ok((Err(failure), revoked(control, grant, "refresh_token_used_twice", now, correlation_id).await?))
                    }
                    RefreshOutcome::Rotated(rotation) => {
                        let rotation = *rotation;
                        let Some((whole, version)) = live(control, stored.grant).await? else { return Ok(refused(invalid())) };
                        let Some(user) = active(control, whole.user).await? else { return Ok(refused(invalid())) };
                        // The sign-in is written too: one that is revoked at this moment issues no more tokens.
                        let decision = Decision::default()
                            .update(&rows::of_refresh(&rotation.used, user.id, row.version)?)
                            .insert(&rows::of_refresh(&rotation.next, user.id, 0)?)
                            .update(&rows::of_grant(&Grant { used_at: now, ..whole }, version)?);
                        let granted = Granted {
                            user,
                            grant: stored.grant,
                            client: stored.client,
                            scope: rotation.scope,
                            nonce: None,
                            is_first: false,
                            refresh: Some(rotation.secret),
                        };
                        Ok((Ok(granted), decision))
                    }
                }
            }
        }
    })
    .await
}

/// Issues the first tokens of a sign-in, which begins with them.
async fn first_tokens(
    control: &Control,
    user: UserId,
    (grant, client, scope, nonce): (GrantId, ClientId, Scopes, Option<String>),
    used: Decision,
    context: &Context,
) -> Result<Attempt, ControlError> {
    let Some(user) = active(control, user).await? else { return Ok(refused(invalid())) };
    let whole = Grant { id: grant, user: user.id, client, since: context.now, used_at: context.now, revoked_at: None };
    let mut decision = used.insert(&rows::of_grant(&whole, 0)?);
    let mut refresh = None;
    if scope.contains(Scope::OfflineAccess) {
        let (token, secret) = Refresh::first(grant, client, scope.clone(), context.now);
        decision = decision.insert(&rows::of_refresh(&token, user.id, 0)?);
        refresh = Some(secret);
    }
    let event = Event::SignInStarted(SignInEvent { grant_id: grant, user_id: user.id, client: client.as_str().to_owned() });
    let decision = decision.record(context, grant, event);
    Ok((Ok(Granted { user, grant, client, scope, nonce, is_first: true, refresh }), decision))
}

async fn get(control: &Control, kind: SignInKind, secret: &Secret) -> Result<Option<SignIn>, ControlError> {
    resources::get(control, rows::id(kind, &secret.digest())).await
}

/// Returns the user, if they may sign in.
pub(super) async fn active(control: &Control, id: UserId) -> Result<Option<User>, ControlError> {
    Ok(resources::get::<User>(control, id).await?.filter(|user| user.deactivated_at.is_none()))
}

/// Returns a sign-in that is not revoked, and the version of its row.
async fn live(control: &Control, id: GrantId) -> Result<Option<(Grant, i64)>, ControlError> {
    let Some(row) = resources::get::<SignIn>(control, rows::grant_id(id)).await? else { return Ok(None) };
    let whole = rows::grant(&row)?;
    Ok(whole.revoked_at.is_none().then_some((whole, row.version)))
}

/// Returns whether a sign-in was created here and has not ended. A sign-in of a deleted user has ended, even if it began at that moment: its
/// tokens name an address, which another user may have by now.
pub(crate) async fn is_live(control: &Control, id: GrantId) -> Result<bool, ControlError> {
    let Some((whole, _)) = live(control, id).await? else { return Ok(false) };
    let user = resources::get::<User>(control, whole.user).await?;
    Ok(user.is_some_and(|user| user.deleted_at.is_none()))
}

/// Ends a sign-in with all its tokens. There is nothing to write if it already ended.
async fn revoked(
    control: &Control,
    id: GrantId,
    reason: &'static str,
    now: Timestamp,
    correlation_id: &CorrelationId,
) -> Result<Decision, ControlError> {
    let Some((whole, version)) = live(control, id).await? else { return Ok(Decision::default()) };
    tracing::warn!(grant = %id, user = %whole.user, reason, "a sign-in is revoked");
    let context = Context { now, actor: Actor::System, correlation_id: correlation_id.clone() };
    end(&whole, version, reason, &context)
}

fn end(whole: &Grant, version: i64, reason: &'static str, context: &Context) -> Result<Decision, ControlError> {
    let ended = Grant { revoked_at: Some(context.now), ..whole.clone() };
    let event = Event::SignInRevoked(SignInRevoked { grant_id: whole.id, user_id: whole.user, reason: reason.to_owned() });
    let decision = Decision::default().update(&rows::of_grant(&ended, version)?).wakeup(Wakeup::Rights);
    Ok(decision.record(context, whole.id, event))
}

/// Signs a user out.
pub(super) async fn sign_out(control: &Control, id: GrantId, correlation_id: &CorrelationId) -> Result<(), ControlError> {
    transact(control, || async {
        let Some((whole, version)) = live(control, id).await? else { return Ok(((), Decision::default())) };
        let context = context(whole.user, Timestamp::now(), correlation_id);
        Ok(((), end(&whole, version, "signed_out", &context)?))
    })
    .await
}

/// Returns the sign-in of a refresh token that was issued to this client.
pub(super) async fn of_refresh_token(
    control: &Control,
    client: ClientId,
    token: &Secret,
) -> Result<Option<GrantId>, ControlError> {
    let Some(row) = get(control, SignInKind::Refresh, token).await? else { return Ok(None) };
    let stored = rows::refresh(&row)?;
    Ok((stored.client == client).then_some(stored.grant))
}

/// Ends every sign-in of a user whose password was changed.
pub(crate) async fn end_all(
    control: &Control,
    user: UserId,
    reason: &'static str,
    context: &Context,
) -> Result<Decision, ControlError> {
    let filter =
        ResourceFilter { owner: Some(user.to_string()), states: vec![SignInKind::Grant.as_str()], ..ResourceFilter::default() };
    let mut decision = Decision::default();
    for row in resources::all::<SignIn>(control, &filter).await? {
        let whole = rows::grant(&row)?;
        if whole.revoked_at.is_none() {
            decision = decision.and(end(&whole, row.version, reason, context)?);
        }
    }
    Ok(decision)
}
