//! The rows of the built-in issuer: digests instead of secrets, and the data for decisions.

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::tenancy::{SignIn, SignInKind};
use gpuaas_identity::oauth::{AuthorizationCode, ClientId, DeviceGrant, DeviceState, GRANT_LIFE, Refresh, Scopes};
use gpuaas_identity::pkce::CodeChallenge;
use gpuaas_identity::user_code::UserCode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ControlError;

/// A code is kept for this long after its expiry, so that its second use is noticed while its tokens are still valid.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// Returns the id of a secret's row.
pub(super) fn id(kind: SignInKind, digest: &Digest) -> String {
    format!("{}:{digest}", kind.as_str())
}

/// Returns the id of a sign-in's row.
pub(super) fn grant_id(grant: GrantId) -> String {
    format!("{}:{grant}", SignInKind::Grant.as_str())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct CodeBody {
    digest: Digest,
    client: ClientId,
    redirect_uri: String,
    challenge: CodeChallenge,
    nonce: Option<String>,
    scope: Scopes,
    ends_at: Timestamp,
    used: bool,
}

/// Returns the row of a code.
pub(super) fn of_code(code: &AuthorizationCode, version: i64) -> Result<SignIn, ControlError> {
    let body = CodeBody {
        digest: code.digest.clone(),
        client: code.client,
        redirect_uri: code.redirect_uri.clone(),
        challenge: code.challenge.clone(),
        nonce: code.nonce.clone(),
        scope: code.scope.clone(),
        ends_at: code.expires_at,
        used: code.used,
    };
    Ok(SignIn {
        id: id(SignInKind::Code, &code.digest),
        version,
        kind: SignInKind::Code,
        lookup: None,
        grant: Some(code.grant),
        user: Some(code.user),
        body: written(&body)?,
        expires_at: code.expires_at.plus(REMEMBERED),
    })
}

/// Returns the code of a row.
pub(super) fn code(row: &SignIn) -> Result<AuthorizationCode, ControlError> {
    let body: CodeBody = read(row)?;
    Ok(AuthorizationCode {
        digest: body.digest,
        grant: grant_of(row)?,
        user: user_of(row)?,
        client: body.client,
        redirect_uri: body.redirect_uri,
        challenge: body.challenge,
        nonce: body.nonce,
        scope: body.scope,
        expires_at: body.ends_at,
        used: body.used,
    })
}

#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decided {
    Pending,
    Approved,
    Denied,
    Redeemed,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct DeviceBody {
    digest: Digest,
    user_code: UserCode,
    client: ClientId,
    scope: Scopes,
    decided: Decided,
    interval_seconds: u64,
    last_polled_at: Option<Timestamp>,
    ends_at: Timestamp,
    signed_in: Option<SignedIn>,
}

/// The user who has signed in in the browser to decide about a device, and the browser.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SignedIn {
    /// The user.
    pub(super) user: UserId,
    /// Digest of the secret that this browser got when the password was right.
    pub(super) browser: Digest,
}

/// Returns the row of a device.
pub(super) fn of_device(device: &DeviceGrant, signed_in: Option<SignedIn>, version: i64) -> Result<SignIn, ControlError> {
    let (decided, user) = match device.state {
        DeviceState::Pending => (Decided::Pending, None),
        DeviceState::Approved(user) => (Decided::Approved, Some(user)),
        DeviceState::Denied => (Decided::Denied, None),
        DeviceState::Redeemed => (Decided::Redeemed, signed_in.as_ref().map(|signed_in| signed_in.user)),
    };
    let body = DeviceBody {
        digest: device.device_digest.clone(),
        user_code: device.user_code,
        client: device.client,
        scope: device.scope.clone(),
        decided,
        interval_seconds: device.interval.as_secs(),
        last_polled_at: device.last_polled_at,
        ends_at: device.expires_at,
        signed_in,
    };
    Ok(SignIn {
        id: id(SignInKind::Device, &device.device_digest),
        version,
        kind: SignInKind::Device,
        lookup: Some(device.user_code.to_string()),
        grant: Some(device.grant),
        user,
        body: written(&body)?,
        // A device grant without a decision issues no tokens, so its second use need not be noticed.
        expires_at: if matches!(decided, Decided::Pending) { device.expires_at } else { device.expires_at.plus(REMEMBERED) },
    })
}

/// Returns the device of a row, and the user who has signed in to decide about it.
pub(super) fn device(row: &SignIn) -> Result<(DeviceGrant, Option<SignedIn>), ControlError> {
    let body: DeviceBody = read(row)?;
    let state = match body.decided {
        Decided::Pending => DeviceState::Pending,
        Decided::Approved => DeviceState::Approved(user_of(row)?),
        Decided::Denied => DeviceState::Denied,
        Decided::Redeemed => DeviceState::Redeemed,
    };
    let device = DeviceGrant {
        device_digest: body.digest,
        user_code: body.user_code,
        grant: grant_of(row)?,
        client: body.client,
        scope: body.scope,
        state,
        interval: Duration::from_secs(body.interval_seconds),
        last_polled_at: body.last_polled_at,
        expires_at: body.ends_at,
    };
    Ok((device, body.signed_in))
}

#[derive(serde::Serialize, serde::Deserialize)]
struct RefreshBody {
    digest: Digest,
    client: ClientId,
    scope: Scopes,
    generation: u32,
    used_at: Option<Timestamp>,
    ends_at: Timestamp,
    grant_ends_at: Timestamp,
}

/// Returns the row of a refresh token. A used one is kept until its own expiry: after that it is refused anyway.
pub(super) fn of_refresh(token: &Refresh, user: UserId, version: i64) -> Result<SignIn, ControlError> {
    let body = RefreshBody {
        digest: token.digest.clone(),
        client: token.client,
        scope: token.scope.clone(),
        generation: token.generation,
        used_at: token.used_at,
        ends_at: token.expires_at,
        grant_ends_at: token.grant_ends_at,
    };
    Ok(SignIn {
        id: id(SignInKind::Refresh, &token.digest),
        version,
        kind: SignInKind::Refresh,
        lookup: None,
        grant: Some(token.grant),
        user: Some(user),
        body: written(&body)?,
        expires_at: token.expires_at,
    })
}

/// Returns the refresh token of a row.
pub(super) fn refresh(row: &SignIn) -> Result<Refresh, ControlError> {
    let body: RefreshBody = read(row)?;
    Ok(Refresh {
        digest: body.digest,
        grant: grant_of(row)?,
        client: body.client,
        scope: body.scope,
        generation: body.generation,
        used_at: body.used_at,
        expires_at: body.ends_at,
        grant_ends_at: body.grant_ends_at,
    })
}

/// A sign-in. All its tokens end with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Its id, the `sid` of its tokens.
    pub(super) id: GrantId,
    /// The user.
    pub(super) user: UserId,
    /// The client.
    pub(super) client: ClientId,
    /// The time of the sign-in.
    pub(super) since: Timestamp,
    /// The time of its latest tokens.
    pub(super) used_at: Timestamp,
    /// The time of its end.
    pub(super) revoked_at: Option<Timestamp>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct GrantBody {
    client: ClientId,
    since: Timestamp,
    used_at: Timestamp,
    revoked_at: Option<Timestamp>,
}

/// Returns the row of a sign-in.
pub(super) fn of_grant(grant: &Grant, version: i64) -> Result<SignIn, ControlError> {
    let Grant { client, since, used_at, revoked_at, .. } = *grant;
    Ok(SignIn {
        id: grant_id(grant.id),
        version,
        kind: SignInKind::Grant,
        lookup: None,
        grant: Some(grant.id),
        user: Some(grant.user),
        body: written(&GrantBody { client, since, used_at, revoked_at })?,
        expires_at: since.plus(GRANT_LIFE),
    })
}

/// Returns the sign-in of a row.
pub(super) fn grant(row: &SignIn) -> Result<Grant, ControlError> {
    let GrantBody { client, since, used_at, revoked_at } = read(row)?;
    Ok(Grant { id: grant_of(row)?, user: user_of(row)?, client, since, used_at, revoked_at })
}

fn grant_of(row: &SignIn) -> Result<GrantId, ControlError> {
    row.grant.ok_or_else(|| incomplete(row))
}

fn user_of(row: &SignIn) -> Result<UserId, ControlError> {
    row.user.ok_or_else(|| incomplete(row))
}

fn incomplete(row: &SignIn) -> ControlError {
    ControlError::Internal(format!("a remembered {} is incomplete", row.kind.as_str()))
}

fn written(body: &impl Serialize) -> Result<serde_json::Value, ControlError> {
    serde_json::to_value(body).map_err(|error| ControlError::Internal(format!("a sign-in cannot be written: {error}")))
}

fn read<T: DeserializeOwned>(row: &SignIn) -> Result<T, ControlError> {
    // Only the kind is named: the row contains personal data.
    T::deserialize(&row.body).map_err(|_| incomplete(row))
}

#[cfg(test)]
mod tests {
    use gpuaas_identity::oauth::DeviceAuthorizationRequest;

    use super::*;

    #[test]
    fn what_is_remembered_reads_back_and_holds_no_secret() {
        let now = Timestamp(1_000_000);
        let request = DeviceAuthorizationRequest::parse("client_id=gpuaas-cli&scope=openid").expect("a request");
        let (device, secret) = DeviceGrant::issue(&request, now);
        let signed_in = SignedIn { user: UserId::generate(), browser: Digest::of(b"b") };
        for state in [DeviceState::Pending, DeviceState::Approved(signed_in.user), DeviceState::Denied, DeviceState::Redeemed] {
            let device = DeviceGrant { state, ..device.clone() };
            let row = of_device(&device, Some(signed_in.clone()), 3).expect("written");
            assert!(!row.body.to_string().contains(secret.expose()) && row.version == 3);
            assert_eq!(super::device(&row).expect("read"), (device, Some(signed_in.clone())));
        }
        let (first, secret) = Refresh::first(device.grant, ClientId::Cli, request.scope.clone(), now);
        let row = of_refresh(&first, signed_in.user, 0).expect("written");
        assert!(!row.body.to_string().contains(secret.expose()) && row.id.starts_with("refresh:sha256:"));
        assert_eq!(refresh(&row).expect("read"), first);
        let whole = Grant {
            id: device.grant,
            user: signed_in.user,
            client: ClientId::Cli,
            since: now,
            used_at: now,
            revoked_at: Some(now),
        };
        assert_eq!(grant(&of_grant(&whole, 0).expect("written")).expect("read"), whole);
    }
}
