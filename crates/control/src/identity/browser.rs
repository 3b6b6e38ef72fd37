//! The sign-in pages. One page asks for address and password, which also means consent; a device has two more.
//!
//! A form is accepted only from a page of ours in the same browser: its token must match a cookie, and the browser's origin
//! headers must match. There is no session: a user who has signed in to decide about a device proves it with the form's token,
//! which is generated at that moment.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use gpuaas_contract::event::{Event, SignInEvent};
use gpuaas_contract::id::{CorrelationId, GrantId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::tenancy::SignIn;
use gpuaas_domain::{Actor, Decision};
use gpuaas_identity::form::Form;
use gpuaas_identity::oauth::{AuthorizationCode, AuthorizationRefusal, AuthorizationRequest, DeviceGrant, DeviceState};
use gpuaas_identity::pages::{self, Page};
use gpuaas_identity::secrets::{Secret, SecretKind, same};
use gpuaas_identity::user_code::UserCode;
use zeroize::Zeroizing;

use super::endpoints::{AUTHORIZE, DEVICE, form_text, issuer};
use super::known_browser::KnownBrowser;
use super::passwords::Attempt;
use super::rows::SignedIn;
use super::{BuiltIn, grants, passwords, rows};
use crate::error::ControlError;
use crate::http::problem::retry_after_value;
use crate::listener::ClientAddress;
use crate::stranger_budgets::{AddressRange, USER_CODE_GUESSES};
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

/// The same message for every failed sign-in, so that an attacker does not learn which part was wrong.
const WRONG: &str = "The e-mail address or the password is wrong. After several attempts you have to wait a while.";
/// The same message for every code that cannot be used.
const NO_SUCH_CODE: &str = "This code is not valid. Check the code in your terminal, or start again there.";

/// A response with a page or an error.
struct Shown(Response);

impl From<ControlError> for Shown {
    fn from(failure: ControlError) -> Self {
        let (status, title, text, code) = match &failure {
            ControlError::Unavailable { code, message } => (StatusCode::SERVICE_UNAVAILABLE, "Not now", message.as_str(), *code),
            ControlError::TooMany { code, message, retry_after } => {
                let page = pages::error("Too many attempts", &sentence(message), code);
                let mut response = shown(StatusCode::TOO_MANY_REQUESTS, page);
                response.headers_mut().insert(header::RETRY_AFTER, retry_after_value(*retry_after));
                return Self(response);
            }
            ControlError::Store(_) | ControlError::Contended => {
                (StatusCode::SERVICE_UNAVAILABLE, "Not now", "The server is not ready. Try again shortly.", "store_unavailable")
            }
            ControlError::Refused(_)
            | ControlError::Unauthenticated { .. }
            | ControlError::Precondition { .. }
            | ControlError::BadInput { .. }
            | ControlError::BadBody { .. }
            | ControlError::AlreadyDone { .. }
            | ControlError::Fenced
            | ControlError::Internal(_) => {
                let text = "Something is broken on the server; its log has the details.";
                (StatusCode::INTERNAL_SERVER_ERROR, "Something broke", text, "internal")
            }
        };
        tracing::error!(error = %crate::link::chain(&failure), "a sign-in page failed");
        Self(shown(status, pages::error(title, text, code)))
    }
}

/// Returns a message as a sentence.
fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn answer(result: Result<Response, Shown>) -> Response {
    result.unwrap_or_else(|Shown(response)| response)
}

fn shown(status: StatusCode, page: Page) -> Response {
    let mut response = (status, page.html).into_response();
    for (name, value) in pages::HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // Without its policy the page is not sent at all.
    match HeaderValue::from_str(&page.content_security_policy) {
        Ok(policy) => {
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            response
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Returns a page with a form, and the cookie for its token.
fn with_form(built_in: &BuiltIn, status: StatusCode, page: Page, csrf: &Secret) -> Response {
    let mut response = shown(status, page);
    let secure = if is_https(built_in) { "; Secure" } else { "" };
    let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", cookie_name(built_in), csrf.expose());
    if let Ok(mut value) = HeaderValue::from_str(&cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

fn refused(code: &str, text: &str) -> Shown {
    Shown(shown(StatusCode::BAD_REQUEST, pages::error("This does not work", text, code)))
}

fn redirect(location: &str) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    match HeaderValue::from_str(location) {
        Ok(mut value) => {
            value.set_sensitive(true);
            response.headers_mut().insert(header::LOCATION, value);
        }
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn is_https(built_in: &BuiltIn) -> bool {
    built_in.issuer.starts_with("https://")
}

/// Returns the name of the cookie. With the prefix, only this host can set the cookie; browsers accept it over https only.
fn cookie_name(built_in: &BuiltIn) -> &'static str {
    if is_https(built_in) { "__Host-gpuaas-form" } else { "gpuaas-form" }
}

/// Returns the token in the browser's cookie. Two cookies with that name are rejected: one of them is forged.
fn cookie(built_in: &BuiltIn, headers: &HeaderMap) -> Option<Secret> {
    let name = cookie_name(built_in);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|line| line.split(';'));
    let mut found = cookies.filter_map(|pair| pair.trim().split_once('=')).filter(|(key, _)| *key == name);
    match (found.next(), found.next()) {
        (Some((_, value)), None) => Secret::parse(SecretKind::CsrfToken, value).ok(),
        (Some(_), Some(_)) | (None, _) => None,
    }
}

/// Returns the token for the forms of this browser: the existing one, so that two windows do not interfere.
fn csrf_for(built_in: &BuiltIn, headers: &HeaderMap) -> Secret {
    cookie(built_in, headers).unwrap_or_else(|| Secret::generate(SecretKind::CsrfToken))
}

/// Checks that a form comes from a page of ours in the same browser. Returns its text, its fields and its token.
fn posted<'a>(built_in: &BuiltIn, headers: &HeaderMap, body: &'a Bytes) -> Result<(&'a str, Form, Secret), Shown> {
    let text = form_text(headers, body).map_err(|failure| refused("form_invalid", &failure.description))?;
    let form = Form::parse(text).map_err(|error| refused("form_invalid", &error.to_string()))?;
    let forged = || {
        let text = "This form does not come from a page of this server. Go back, reload the page and allow cookies.";
        Shown(shown(StatusCode::FORBIDDEN, pages::error("This does not work", text, "form_forged")))
    };
    if !is_from_here(built_in, headers) {
        return Err(forged());
    }
    let csrf = cookie(built_in, headers).ok_or_else(forged)?;
    if !form.get(pages::CSRF_FIELD).is_some_and(|field| same(field, csrf.expose())) {
        return Err(forged());
    }
    Ok((text, form, csrf))
}

/// Checks the origin headers of a form. Our pages send no referrer, so their origin is `null`: then another header must show that
/// it comes from here. A request without any of them is not from a browser.
fn is_from_here(built_in: &BuiltIn, headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"));
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or("?"));
    let own = built_in.issuer.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    match (origin, site) {
        (_, Some(site)) if site != "same-origin" => false,
        (Some("null"), site) => site.is_some(),
        (Some(origin), _) => origin.eq_ignore_ascii_case(&own),
        (None, _) => true,
    }
}

/// Returns a path of ours for the browser: the issuer may be below a path of its host.
fn action(built_in: &BuiltIn, path: &str) -> String {
    let below = built_in.issuer.splitn(4, '/').nth(3).map(|below| format!("/{below}")).unwrap_or_default();
    format!("{below}{path}")
}

fn sign_in_page(
    built_in: &BuiltIn,
    request: &AuthorizationRequest,
    csrf: &Secret,
    email: &str,
    problem: Option<&str>,
) -> Response {
    let page = pages::sign_in(&pages::SignIn {
        action: &action(built_in, AUTHORIZE),
        client_title: request.client.title(),
        fields: &request.fields(),
        csrf: csrf.expose(),
        email,
        problem,
        form_action_source: Some(&request.form_action_source()),
    });
    with_form(built_in, status_of(problem), page, csrf)
}

fn status_of(problem: Option<&str>) -> StatusCode {
    if problem.is_some() { StatusCode::FORBIDDEN } else { StatusCode::OK }
}

fn refusal(refusal: AuthorizationRefusal) -> Response {
    match refusal {
        AuthorizationRefusal::Shown(failure) => refused(failure.error.as_str(), &failure.description).0,
        AuthorizationRefusal::Redirected { location, .. } => redirect(&location),
    }
}

pub(super) async fn authorize(State(control): Shared, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    answer((|| {
        let built_in = issuer(&control)?;
        let query = query.unwrap_or_default();
        Ok(match AuthorizationRequest::parse(&query, &built_in.clients, &built_in.issuer) {
            Ok(request) => sign_in_page(built_in, &request, &csrf_for(built_in, &headers), "", None),
            Err(reason) => refusal(reason),
        })
    })())
}

pub(super) async fn sign_in(
    State(control): Shared,
    Extension(correlation_id): Extension<CorrelationId>,
    from: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let from = AddressRange::of(from.map(|Extension(from)| from));
    answer(signed_in(&control, &correlation_id, &from, &headers, &body).await)
}

async fn signed_in(
    control: &Arc<Control>,
    correlation_id: &CorrelationId,
    from: &AddressRange,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, Shown> {
    let built_in = issuer(control)?;
    let (text, form, csrf) = posted(built_in, headers, body)?;
    let request = match AuthorizationRequest::parse(text, &built_in.clients, &built_in.issuer) {
        Ok(request) => request,
        Err(reason) => return Ok(refusal(reason)),
    };
    let email = form.get("email").unwrap_or_default();
    let password = Zeroizing::new(form.get("password").unwrap_or_default().to_owned());
    let account = passwords::account_key(email);
    let browser = KnownBrowser::read(control, built_in, headers, &account);
    let attempt = Attempt { email, typed: password, from, browser, correlation_id };
    let Some(user) = passwords::check(control, built_in, attempt).await? else {
        return Ok(sign_in_page(built_in, &request, &csrf, email, Some(WRONG)));
    };
    let (code, secret) = AuthorizationCode::issue(&request, user.id, GrantId::generate(), Timestamp::now());
    // Not reported yet: a sign-in begins when the code is redeemed.
    let decision = Decision::default().insert(&rows::of_code(&code, 0)?);
    transact(control, || async { Ok(((), decision.clone())) }).await?;
    let sent = redirect(&request.granted(&secret, &built_in.issuer));
    Ok(KnownBrowser::write(control, built_in, &account, sent))
}

fn entry_page(built_in: &BuiltIn, csrf: &Secret, user_code: &str, problem: Option<&str>) -> Response {
    let page =
        pages::device_entry(&pages::DeviceEntry { action: &action(built_in, DEVICE), csrf: csrf.expose(), user_code, problem });
    with_form(built_in, status_of(problem), page, csrf)
}

fn device_sign_in_page(built_in: &BuiltIn, device: &DeviceGrant, csrf: &Secret, email: &str, problem: Option<&str>) -> Response {
    let page = pages::sign_in(&pages::SignIn {
        action: &action(built_in, DEVICE),
        client_title: device.client.title(),
        fields: &[("user_code", device.user_code.to_string())],
        csrf: csrf.expose(),
        email,
        problem,
        form_action_source: None,
    });
    with_form(built_in, status_of(problem), page, csrf)
}

pub(super) async fn device(State(control): Shared, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    answer((|| {
        let built_in = issuer(&control)?;
        let form = Form::parse(&query.unwrap_or_default()).unwrap_or_default();
        // Only a well-formed code is shown again.
        let code = form.get("user_code").and_then(|code| code.parse::<UserCode>().ok());
        let code = code.map(|code| code.to_string()).unwrap_or_default();
        Ok(entry_page(built_in, &csrf_for(built_in, &headers), &code, None))
    })())
}

pub(super) async fn device_step(
    State(control): Shared,
    Extension(correlation_id): Extension<CorrelationId>,
    from: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let from = AddressRange::of(from.map(|Extension(from)| from));
    answer(device_stepped(&control, &correlation_id, &from, &headers, &body).await)
}

async fn device_stepped(
    control: &Arc<Control>,
    correlation_id: &CorrelationId,
    from: &AddressRange,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Response, Shown> {
    let built_in = issuer(control)?;
    let (_, form, csrf) = posted(built_in, headers, body)?;
    let typed = form.get("user_code").unwrap_or_default();
    let code: UserCode = match typed.parse() {
        Ok(code) => code,
        Err(error) => return Ok(entry_page(built_in, &csrf, "", Some(&format!("{error}.")))),
    };
    let is_known = from.is_known(control).await;
    USER_CODE_GUESSES.look(control, from, is_known).await?;
    let Some((device, ..)) = waiting(control, code).await? else {
        USER_CODE_GUESSES.spend(control, from, is_known).await?;
        return Ok(entry_page(built_in, &csrf, "", Some(NO_SUCH_CODE)));
    };
    match (form.get(pages::DECISION_FIELD), form.get("email"), form.get("password")) {
        (Some(decision), _, _) => {
            let is_yes = match decision {
                "approve" => true,
                "deny" => false,
                _ => return Err(refused("form_invalid", "Go back and choose one of the two buttons.")),
            };
            decide(control, built_in, code, is_yes, &csrf, correlation_id).await
        }
        (None, Some(email), Some(password)) => {
            let password = Zeroizing::new(password.to_owned());
            let account = passwords::account_key(email);
            let browser = KnownBrowser::read(control, built_in, headers, &account);
            let attempt = Attempt { email, typed: password, from, browser, correlation_id };
            let Some(user) = passwords::check(control, built_in, attempt).await? else {
                return Ok(device_sign_in_page(built_in, &device, &csrf, email, Some(WRONG)));
            };
            // A new token: the old one existed before the sign-in.
            let csrf = Secret::generate(SecretKind::CsrfToken);
            let signed_in = SignedIn { user: user.id, browser: csrf.digest() };
            let is_bound = transact(control, || async {
                let Some((device, _, row)) = waiting(control, code).await? else { return Ok((false, Decision::default())) };
                Ok((true, Decision::default().update(&rows::of_device(&device, Some(signed_in.clone()), row.version)?)))
            })
            .await?;
            if !is_bound {
                return Ok(entry_page(built_in, &csrf, "", Some(NO_SUCH_CODE)));
            }
            let page = pages::device_confirm(&pages::DeviceConfirm {
                action: &action(built_in, DEVICE),
                csrf: csrf.expose(),
                user_code: &code.to_string(),
                client_title: device.client.title(),
                email: &user.email,
            });
            let question = with_form(built_in, StatusCode::OK, page, &csrf);
            Ok(KnownBrowser::write(control, built_in, &account, question))
        }
        (None, email, _) => Ok(device_sign_in_page(built_in, &device, &csrf, email.unwrap_or_default(), None)),
    }
}

/// Returns the device with this code, the user who has signed in for it, and its row.
async fn waiting(control: &Control, code: UserCode) -> Result<Option<(DeviceGrant, Option<SignedIn>, SignIn)>, ControlError> {
    let Some(row) = resources::by_lookup::<SignIn>(control, &code.to_string()).await? else { return Ok(None) };
    let (device, signed_in) = rows::device(&row)?;
    let is_waiting = device.state == DeviceState::Pending && Timestamp::now() < device.expires_at;
    Ok(is_waiting.then_some((device, signed_in, row)))
}

/// The result of a decision.
enum Decided {
    Done,
    NotWaiting,
    SignInFirst(Box<DeviceGrant>),
}

async fn decide(
    control: &Control,
    built_in: &BuiltIn,
    code: UserCode,
    is_yes: bool,
    csrf: &Secret,
    correlation_id: &CorrelationId,
) -> Result<Response, Shown> {
    let browser = csrf.digest();
    let decided = transact(control, || async {
        let nothing = |decided| Ok((decided, Decision::default()));
        let now = Timestamp::now();
        let Some((device, signed_in, row)) = waiting(control, code).await? else { return nothing(Decided::NotWaiting) };
        let Some(by) = signed_in.filter(|signed_in| signed_in.browser == browser) else {
            return nothing(Decided::SignInFirst(Box::new(device)));
        };
        let Some(user) = grants::active(control, by.user).await? else {
            return nothing(Decided::SignInFirst(Box::new(device)));
        };
        let next = if is_yes { device.approve(user.id, now) } else { device.deny(now) };
        let Ok(next) = next else { return nothing(Decided::NotWaiting) };
        let context = Context { now, actor: Actor::User(user.id), correlation_id: correlation_id.clone() };
        let data = SignInEvent { grant_id: next.grant, user_id: user.id, client: next.client.as_str().to_owned() };
        let event = if is_yes { Event::SignInApproved(data) } else { Event::SignInDenied(data) };
        let decision = Decision::default().update(&rows::of_device(&next, Some(by), row.version)?);
        Ok((Decided::Done, decision.record(&context, next.grant, event)))
    })
    .await?;
    Ok(match decided {
        Decided::Done if is_yes => {
            shown(StatusCode::OK, pages::done("Signed in", "You can close this window and go back to the terminal."))
        }
        Decided::Done => shown(StatusCode::OK, pages::done("Denied", "The device gets nothing. You can close this window.")),
        Decided::NotWaiting => entry_page(built_in, csrf, "", Some(NO_SUCH_CODE)),
        Decided::SignInFirst(device) => device_sign_in_page(built_in, &device, csrf, "", Some("Sign in first.")),
    })
}
