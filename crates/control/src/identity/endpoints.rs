//! The endpoints of the built-in issuer for programs: discovery, keys, tokens, device codes, revocation, user info.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::tenancy::User;
use gpuaas_domain::{Actor, Decision, Refusal};
use gpuaas_identity::form::Form;
use gpuaas_identity::oauth::{
    ACCESS_TOKEN_LIFE, ClientId, DeviceAuthorizationRequest, DeviceGrant, OauthError, OauthFailure, Scope, TokenRequest,
};
use gpuaas_identity::pkce;
use gpuaas_identity::secrets::{Secret, SecretKind};
use gpuaas_identity::signing::{AccessTokenClaims, IdTokenClaims, SigningError};
use serde_json::json;

use super::grants::{self, Granted};
use super::{AUDIENCE, BuiltIn, browser, rows};
use crate::error::ControlError;
use crate::http::problem::{Rejected, retry_after_value};
use crate::listener::ClientAddress;
use crate::stranger_budgets::{AddressRange, DEVICE_CODES, TOKEN_REQUESTS};
use crate::transact::transact;
use crate::{Control, pki, resources};

/// The discovery document of OpenID Connect.
const DISCOVERY: &str = "/.well-known/openid-configuration";
/// The public keys.
const JWKS: &str = "/oauth/jwks.json";
/// The sign-in page.
pub(super) const AUTHORIZE: &str = "/oauth/authorize";
/// The token endpoint.
const TOKEN: &str = "/oauth/token";
/// The device authorization endpoint.
const DEVICE_AUTHORIZATION: &str = "/oauth/device_authorization";
/// The page for a device's code.
pub(super) const DEVICE: &str = "/device";
/// The revocation endpoint.
const REVOKE: &str = "/oauth/revoke";
/// The user info endpoint.
const USERINFO: &str = "/oauth/userinfo";

type Shared = State<Arc<Control>>;

/// Returns the routes without authentication, or none if the built-in issuer is off.
pub(crate) fn router(control: &Control) -> Router<Arc<Control>> {
    if control.identity.built_in.is_none() {
        return Router::new();
    }
    Router::new()
        .route(DISCOVERY, get(discovery))
        .route(JWKS, get(jwks))
        .route(AUTHORIZE, get(browser::authorize).post(browser::sign_in))
        .route(TOKEN, post(token))
        .route(DEVICE_AUTHORIZATION, post(device_authorization))
        .route(DEVICE, get(browser::device).post(browser::device_step))
        .route(REVOKE, post(revoke))
        .route(USERINFO, get(userinfo))
}

/// Returns the built-in issuer, which is on wherever these routes are.
pub(super) fn issuer(control: &Control) -> Result<&BuiltIn, ControlError> {
    let off = || Refusal::not_found("built_in_issuer_off", "the built-in issuer of this server is turned off");
    Ok(control.identity.built_in.as_ref().ok_or_else(off)?)
}

async fn discovery(State(control): Shared) -> Result<Json<serde_json::Value>, Rejected> {
    let built_in = issuer(&control)?;
    let at = |path: &str| format!("{}{path}", built_in.issuer);
    Ok(Json(json!({
        "issuer": built_in.issuer,
        "authorization_endpoint": at(AUTHORIZE),
        "token_endpoint": at(TOKEN),
        "jwks_uri": at(JWKS),
        "userinfo_endpoint": at(USERINFO),
        "revocation_endpoint": at(REVOKE),
        "device_authorization_endpoint": at(DEVICE_AUTHORIZATION),
        "scopes_supported": Scope::ALL.map(Scope::as_str),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token", TokenRequest::DEVICE_CODE_GRANT],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": [pkce::METHOD],
        "claims_supported": ["iss", "sub", "aud", "exp", "iat", "sid", "nonce", "email", "email_verified", "name"],
        "authorization_response_iss_parameter_supported": true,
        "request_parameter_supported": false,
        "request_uri_parameter_supported": false,
    })))
}

async fn jwks(State(control): Shared) -> Result<Response, Rejected> {
    let keys = issuer(&control)?.keys.jwk_set();
    // A new key must be visible soon after it begins to sign.
    Ok(([(header::CACHE_CONTROL, "public, max-age=300")], Json(keys)).into_response())
}

/// Returns a response that no proxy may store.
fn private(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let mut response = (status, Json(body)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}

fn refused(failure: &OauthFailure) -> Response {
    private(StatusCode::from_u16(failure.error.http_status()).unwrap_or(StatusCode::BAD_REQUEST), failure)
}

/// Returns an OAuth error. The cause is in the log, not in the response.
fn broken(failure: &ControlError) -> Response {
    if let ControlError::TooMany { code, message, retry_after } = failure {
        let body = json!({ "error": OauthError::SlowDown, "error_description": message, "code": code });
        let mut response = private(StatusCode::TOO_MANY_REQUESTS, &body);
        response.headers_mut().insert(header::RETRY_AFTER, retry_after_value(*retry_after));
        return response;
    }
    tracing::error!(error = %crate::link::chain(failure), "a request to the built-in issuer failed");
    let (error, text) = match failure {
        ControlError::Store(_) | ControlError::Contended | ControlError::Unavailable { .. } | ControlError::TooMany { .. } => {
            (OauthError::TemporarilyUnavailable, "the server is not ready for this; try again shortly")
        }
        ControlError::Refused(_)
        | ControlError::Unauthenticated { .. }
        | ControlError::Precondition { .. }
        | ControlError::BadInput { .. }
        | ControlError::BadBody { .. }
        | ControlError::AlreadyDone { .. }
        | ControlError::Fenced
        | ControlError::Internal(_) => (OauthError::ServerError, "something is broken on the server; its log has the details"),
    };
    refused(&OauthFailure::new(error, text))
}

/// Returns the text of a form. No other content type is accepted, which limits what a page elsewhere can send without permission.
pub(super) fn form_text<'a>(headers: &HeaderMap, body: &'a Bytes) -> Result<&'a str, OauthFailure> {
    let named = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_form = named.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/x-www-form-urlencoded");
    let wrong = || OauthFailure::new(OauthError::InvalidRequest, "send a form (`application/x-www-form-urlencoded`)");
    std::str::from_utf8(body).ok().filter(|_| is_form).ok_or_else(wrong)
}

async fn token(
    State(control): Shared,
    Extension(correlation_id): Extension<CorrelationId>,
    from: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = match form_text(&headers, &body).and_then(TokenRequest::parse) {
        Ok(request) => request,
        Err(failure) => return refused(&failure),
    };
    let given = async {
        let from = AddressRange::of(from.map(|Extension(from)| from));
        TOKEN_REQUESTS.spend(&control, &from, from.is_known(&control).await).await?;
        let granted = grants::redeem(&control, &request, &correlation_id).await?;
        match granted {
            Ok(granted) => Ok(Ok(tokens(issuer(&control)?, &granted, Timestamp::now())?)),
            Err(failure) => Ok::<_, ControlError>(Err(failure)),
        }
    };
    match given.await {
        Ok(Ok(tokens)) => private(StatusCode::OK, &tokens),
        Ok(Err(failure)) => refused(&failure),
        Err(failure) => broken(&failure),
    }
}

/// The body of a successful token response.
#[derive(serde::Serialize)]
struct Tokens {
    access_token: String,
    token_type: &'static str,
    expires_in: u64,
    scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id_token: Option<String>,
}

fn tokens(built_in: &BuiltIn, granted: &Granted, now: Timestamp) -> Result<Tokens, ControlError> {
    let failed = |error: SigningError| ControlError::Internal(error.to_string());
    let Granted { user, grant, client, scope, nonce, is_first, refresh } = granted;
    let (issued, ends) = (seconds(now), seconds(now.plus(ACCESS_TOKEN_LIFE)));
    let access = AccessTokenClaims {
        iss: built_in.issuer.clone(),
        sub: user.subject.clone(),
        aud: AUDIENCE.to_owned(),
        exp: ends,
        iat: issued,
        jti: pki::secret_text(""),
        sid: grant.to_string(),
        client_id: client.as_str().to_owned(),
        email: user.email.clone(),
        email_verified: user.email_verified,
        name: user.name.clone(),
        scope: scope.to_string(),
    };
    let id_token = if *is_first && scope.contains(Scope::OpenId) {
        let claims = IdTokenClaims {
            iss: access.iss.clone(),
            sub: access.sub.clone(),
            aud: client.as_str().to_owned(),
            exp: ends,
            iat: issued,
            nonce: nonce.clone(),
            sid: access.sid.clone(),
            email: access.email.clone(),
            email_verified: access.email_verified,
            name: access.name.clone(),
        };
        Some(built_in.keys.sign_id_token(&claims).map_err(failed)?)
    } else {
        None
    };
    Ok(Tokens {
        access_token: built_in.keys.sign(&access).map_err(failed)?,
        token_type: "Bearer",
        expires_in: ACCESS_TOKEN_LIFE.as_secs(),
        scope: scope.to_string(),
        refresh_token: refresh.as_ref().map(|secret| secret.expose().to_owned()),
        id_token,
    })
}

fn seconds(at: Timestamp) -> i64 {
    at.0.div_euclid(1_000_000)
}

async fn device_authorization(
    State(control): Shared,
    from: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = match form_text(&headers, &body).and_then(DeviceAuthorizationRequest::parse) {
        Ok(request) => request,
        Err(failure) => return refused(&failure),
    };
    let made = async {
        let built_in = issuer(&control)?;
        let from = AddressRange::of(from.map(|Extension(from)| from));
        DEVICE_CODES.spend(&control, &from, from.is_known(&control).await).await?;
        // A code that is already in use is a conflict, and another one is generated.
        let (device, secret) = transact(&control, || async {
            let (device, secret) = DeviceGrant::issue(&request, Timestamp::now());
            let decision = Decision::default().insert(&rows::of_device(&device, None, 0)?);
            Ok(((device, secret), decision))
        })
        .await?;
        let address = format!("{}{DEVICE}", built_in.issuer);
        Ok::<_, ControlError>(json!({
            "device_code": secret.expose(),
            "user_code": device.user_code,
            "verification_uri": address,
            "verification_uri_complete": format!("{address}?user_code={}", device.user_code),
            "expires_in": device.expires_at.since(Timestamp::now()).as_secs(),
            "interval": device.interval.as_secs(),
        }))
    };
    match made.await {
        Ok(answer) => private(StatusCode::OK, &answer),
        Err(failure) => broken(&failure),
    }
}

/// Ends a sign-in (RFC 7009), by its refresh token or an access token. The response is the same whether it existed or not.
async fn revoke(
    State(control): Shared,
    Extension(correlation_id): Extension<CorrelationId>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let invalid = |text: &str| OauthFailure::new(OauthError::InvalidRequest, text);
    let parsed = form_text(&headers, &body).and_then(|text| {
        let form = Form::parse(text).map_err(|error| invalid(&error.to_string()))?;
        let client: ClientId = form.get("client_id").ok_or_else(|| invalid("`client_id` is missing"))?.parse()?;
        let token = form.get("token").ok_or_else(|| invalid("`token` is missing"))?;
        Ok((client, zeroize::Zeroizing::new(token.to_owned())))
    });
    let (client, token) = match parsed {
        Ok(parsed) => parsed,
        Err(failure) => return refused(&failure),
    };
    let ended = async {
        let grant = match Secret::parse(SecretKind::RefreshToken, &token) {
            Ok(token) => grants::of_refresh_token(&control, client, &token).await?,
            Err(_) => control.identity.sign_in_of(&token).await,
        };
        match grant {
            Some(grant) => grants::sign_out(&control, grant, &correlation_id).await,
            None => Ok(()),
        }
    };
    match ended.await {
        Ok(()) => private(StatusCode::OK, &json!({})),
        Err(failure) => broken(&failure),
    }
}

async fn userinfo(State(control): Shared, headers: HeaderMap) -> Result<Response, Rejected> {
    let unauthenticated = || ControlError::Unauthenticated {
        code: "token_required",
        message: "send an access token of this issuer as `Authorization: Bearer …`".to_owned(),
    };
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = value.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(unauthenticated)?;
    let (actor, _) = control.identity.caller(&control, token.trim()).await?;
    let user = match actor {
        Actor::User(id) => resources::get::<User>(&control, id).await?,
        Actor::ServiceAccount { .. }
        | Actor::Token { .. }
        | Actor::LocalAdmin
        | Actor::Node(_)
        | Actor::Applicant(_)
        | Actor::System => None,
    };
    let built_in = issuer(&control)?;
    let user = user.filter(|user| user.issuer == built_in.issuer).ok_or_else(unauthenticated)?;
    let claims = json!({ "sub": user.subject, "email": user.email, "email_verified": user.email_verified, "name": user.name });
    Ok(private(StatusCode::OK, &claims))
}
