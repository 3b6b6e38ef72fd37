//! A complete sign-in over real HTTP: the client of `gpuaas login`, an issuer built from the core, and the verifier.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;
use gpuaas_identity::browser_client::{
    self, BrowserLogin, ClientSettings, DeviceLogin, DeviceStep, LoginError, Provider, Tokens,
};
use gpuaas_identity::oauth::{
    ACCESS_TOKEN_LIFE, AuthorizationCode, AuthorizationRequest, ClientId, Clients, CodeOutcome, DeviceAuthorizationRequest,
    DeviceGrant, DevicePoll, OauthError, OauthFailure, Refresh, RefreshOutcome, Rotation, Scopes, TokenRequest,
};
use gpuaas_identity::signing::{self, AccessTokenClaims, IdTokenClaims, SigningKey, SigningKeys};
use gpuaas_identity::verifier::{HttpOptions, IssuerConfig, Source, Verifier};
use serde_json::json;

const AUDIENCE: &str = "https://api.cloud.example";
const START: Timestamp = Timestamp(1_800_000_000_000_000);

fn tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

fn http() -> reqwest::Client {
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls());
    builder.redirect(reqwest::redirect::Policy::none()).no_proxy().build().expect("a client")
}

#[derive(Default)]
struct Rows {
    codes: HashMap<Digest, AuthorizationCode>,
    devices: HashMap<Digest, DeviceGrant>,
    refreshes: HashMap<Digest, Refresh>,
    revoked: Vec<GrantId>,
}

/// The built-in issuer with a map as store and a fixed clock.
struct Issuer {
    url: String,
    keys: SigningKeys,
    user: UserId,
    clock: AtomicI64,
    rows: Mutex<Rows>,
}

impl Issuer {
    async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let key = || SigningKey::from_pem(signing::generate().expect("a key").expose()).expect("a key");
        let issuer = Arc::new(Self {
            url: format!("http://{}", listener.local_addr().expect("an address")),
            keys: SigningKeys::new(key(), [key()]).expect("keys"),
            user: UserId::generate(),
            clock: AtomicI64::new(START.0),
            rows: Mutex::default(),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(jwks))
            .route("/authorize", get(authorize))
            .route("/device", post(device))
            .route("/token", post(token))
            .with_state(Arc::clone(&issuer));
        tokio::spawn(async move { axum::serve(listener, router).await });
        issuer
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.load(Ordering::SeqCst))
    }

    fn wait(&self, by: Duration) {
        self.clock.store(self.now().plus(by).0, Ordering::SeqCst);
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("the rows")
    }

    fn tokens(&self, grant: GrantId, client: ClientId, nonce: Option<String>, scope: &Scopes, refresh: &str) -> Response {
        let now = self.now();
        let (iat, exp) = (now.0 / 1_000_000, now.plus(ACCESS_TOKEN_LIFE).0 / 1_000_000);
        let (email, name) = ("person@cloud.example".to_owned(), "A Person".to_owned());
        let access = AccessTokenClaims {
            iss: self.url.clone(),
            sub: self.user.to_string(),
            aud: AUDIENCE.to_owned(),
            exp,
            iat,
            jti: "one".to_owned(),
            sid: grant.to_string(),
            client_id: client.as_str().to_owned(),
            email: email.clone(),
            email_verified: true,
            name: name.clone(),
            scope: scope.to_string(),
        };
        let id = IdTokenClaims {
            iss: self.url.clone(),
            sub: self.user.to_string(),
            aud: client.as_str().to_owned(),
            exp,
            iat,
            nonce,
            sid: grant.to_string(),
            email,
            email_verified: true,
            name,
        };
        Json(json!({
            "access_token": self.keys.sign(&access).expect("a token"),
            "id_token": self.keys.sign_id_token(&id).expect("a token"),
            "refresh_token": refresh,
            "token_type": "Bearer",
            "expires_in": ACCESS_TOKEN_LIFE.as_secs(),
        }))
        .into_response()
    }

    fn first_tokens(&self, rows: &mut Rows, grant: GrantId, client: ClientId, nonce: Option<String>, scope: &Scopes) -> Response {
        let (refresh, secret) = Refresh::first(grant, client, scope.clone(), self.now());
        rows.refreshes.insert(refresh.digest.clone(), refresh);
        self.tokens(grant, client, nonce, scope, secret.expose())
    }
}

fn refuse(failure: &OauthFailure) -> Response {
    (StatusCode::from_u16(failure.error.http_status()).expect("a status"), Json(failure)).into_response()
}

fn unknown() -> Response {
    refuse(&OauthFailure::new(OauthError::InvalidGrant, "nobody knows it"))
}

async fn discovery(State(issuer): State<Arc<Issuer>>) -> Json<serde_json::Value> {
    let url = &issuer.url;
    Json(json!({
        "issuer": url,
        "jwks_uri": format!("{url}/jwks"),
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/token"),
        "device_authorization_endpoint": format!("{url}/device"),
    }))
}

async fn jwks(State(issuer): State<Arc<Issuer>>) -> Response {
    Json(issuer.keys.jwk_set()).into_response()
}

/// Every request is signed in at once.
async fn authorize(State(issuer): State<Arc<Issuer>>, RawQuery(query): RawQuery) -> Response {
    match AuthorizationRequest::parse(&query.unwrap_or_default(), &Clients::default(), &issuer.url) {
        Ok(request) => {
            let (code, secret) = AuthorizationCode::issue(&request, issuer.user, GrantId::generate(), issuer.now());
            issuer.rows().codes.insert(code.digest.clone(), code);
            Redirect::to(&request.granted(&secret, &issuer.url)).into_response()
        }
        Err(refusal) => (StatusCode::BAD_REQUEST, refusal.to_string()).into_response(),
    }
}

async fn device(State(issuer): State<Arc<Issuer>>, body: String) -> Response {
    let request = match DeviceAuthorizationRequest::parse(&body) {
        Ok(request) => request,
        Err(failure) => return refuse(&failure),
    };
    let (grant, secret) = DeviceGrant::issue(&request, issuer.now());
    let answer = json!({
        "device_code": secret.expose(),
        "user_code": grant.user_code,
        "verification_uri": format!("{}/verify", issuer.url),
        "expires_in": 600,
        "interval": grant.interval.as_secs(),
    });
    issuer.rows().devices.insert(grant.device_digest.clone(), grant);
    Json(answer).into_response()
}

async fn token(State(issuer): State<Arc<Issuer>>, body: String) -> Response {
    let request = match TokenRequest::parse(&body) {
        Ok(request) => request,
        Err(failure) => return refuse(&failure),
    };
    let (now, mut rows) = (issuer.now(), issuer.rows());
    match request {
        TokenRequest::AuthorizationCode { client, code, redirect_uri, verifier } => {
            let Some(row) = rows.codes.get(&code.digest()) else { return unknown() };
            match row.redeem(client, &redirect_uri, &verifier, now) {
                CodeOutcome::Granted(used) => {
                    let (grant, nonce, scope) = (used.grant, used.nonce.clone(), used.scope.clone());
                    rows.codes.insert(used.digest.clone(), used);
                    issuer.first_tokens(&mut rows, grant, client, nonce, &scope)
                }
                CodeOutcome::Refused(failure) => refuse(&failure),
                CodeOutcome::Reused { grant, failure } => {
                    rows.revoked.push(grant);
                    refuse(&failure)
                }
            }
        }
        TokenRequest::RefreshToken { client, token, scope } => {
            let Some(row) = rows.refreshes.get(&token.digest()) else { return unknown() };
            if rows.revoked.contains(&row.grant) {
                return unknown();
            }
            match row.rotate(client, scope.as_ref(), now) {
                RefreshOutcome::Rotated(rotation) => {
                    let Rotation { used, next, secret, scope } = *rotation;
                    let grant = next.grant;
                    rows.refreshes.insert(used.digest.clone(), used);
                    rows.refreshes.insert(next.digest.clone(), next);
                    issuer.tokens(grant, client, None, &scope, secret.expose())
                }
                RefreshOutcome::Refused(failure) => refuse(&failure),
                RefreshOutcome::Reused { grant, failure } => {
                    rows.revoked.push(grant);
                    refuse(&failure)
                }
            }
        }
        TokenRequest::DeviceCode { client, code } => {
            let Some(row) = rows.devices.get(&code.digest()) else { return unknown() };
            match row.poll(client, now) {
                DevicePoll::NotYet { grant, failure } => {
                    rows.devices.insert(grant.device_digest.clone(), grant);
                    refuse(&failure)
                }
                DevicePoll::Tokens { grant, user } => {
                    assert_eq!(user, issuer.user);
                    let (id, scope) = (grant.grant, grant.scope.clone());
                    rows.devices.insert(grant.device_digest.clone(), grant);
                    issuer.first_tokens(&mut rows, id, client, None, &scope)
                }
                DevicePoll::Refused(failure) => refuse(&failure),
                DevicePoll::Reused { grant, failure } => {
                    rows.revoked.push(grant);
                    refuse(&failure)
                }
            }
        }
    }
}

fn client() -> ClientSettings {
    ClientSettings { client_id: "gpuaas-cli".to_owned(), scope: "openid email".to_owned() }
}

/// Acts as a browser: requests the page and follows the redirect back to the terminal.
async fn browse(http: &reqwest::Client, url: &str) -> (String, reqwest::Response) {
    let answer = http.get(url).send().await.expect("an answer of the issuer");
    let location = answer.headers()["location"].to_str().expect("a location").to_owned();
    let page = http.get(&location).send().await.expect("an answer of the terminal");
    (location, page)
}

async fn signed_in(issuer: &Issuer, http: &reqwest::Client, provider: &Provider) -> Tokens {
    let login = BrowserLogin::start(provider, &client()).await.expect("started");
    let url = login.url().to_owned();
    let (tokens, _) = tokio::join!(login.finish(http), browse(http, &url));
    assert_eq!(provider.issuer(), issuer.url);
    tokens.expect("tokens")
}

#[tokio::test]
async fn a_person_signs_in_with_the_browser_and_the_token_is_taken() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    let tokens = signed_in(&issuer, &http, &provider).await;
    assert_eq!(tokens.expires_in, ACCESS_TOKEN_LIFE);

    let config = |source| IssuerConfig { issuer: issuer.url.clone(), audience: AUDIENCE.to_owned(), jwks: source };
    let same = Arc::clone(&issuer);
    let local = Source::Local(Arc::new(move || same.keys.jwk_set()));
    for source in [Source::Discovery, local] {
        let verifier = Verifier::new(vec![config(source)], HttpOptions::new(tls())).expect("a verifier");
        let claims = verifier.verify(&tokens.access_token, issuer.now()).await.expect("a good token");
        assert_eq!(claims.subject, issuer.user.to_string());
        assert_eq!((claims.email.as_deref(), claims.email_verified), (Some("person@cloud.example"), true));
        assert!(claims.session.is_some_and(|session| session.starts_with("grant_")));
        // An ID token says who signed in; it does not give access to the API.
        let id_token = tokens.id_token.as_ref().expect("an ID token");
        assert_eq!(verifier.verify(id_token, issuer.now()).await.expect_err("refused").code(), "token_audience");
    }
}

#[tokio::test]
async fn other_implementations_take_our_tokens() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    let tokens = signed_in(&issuer, &http, &provider).await;
    let published = serde_json::to_vec(&issuer.keys.jwk_set()).expect("JSON");
    let set: jsonwebtoken::jwk::JwkSet = serde_json::from_slice(&published).expect("a set");
    let kid = jsonwebtoken::decode_header(&*tokens.access_token).expect("a header").kid.expect("a name");
    let key = jsonwebtoken::DecodingKey::from_jwk(set.find(&kid).expect("the key")).expect("a key");
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::ES256);
    validation.set_audience(&[AUDIENCE]);
    validation.set_issuer(&[&issuer.url]);
    // Its clock cannot be set; the time is checked above.
    validation.validate_exp = false;
    let token = jsonwebtoken::decode::<serde_json::Value>(&*tokens.access_token, &key, &validation).expect("a good token");
    assert_eq!(token.header.typ.as_deref(), Some("at+jwt"));
    assert_eq!(token.claims["client_id"], "gpuaas-cli");
}

#[tokio::test]
async fn whatever_else_knocks_at_the_port_changes_nothing() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    let login = BrowserLogin::start(&provider, &client()).await.expect("started");
    let url = login.url().to_owned();
    let port = reqwest::Url::parse(&url)
        .expect("a URL")
        .query_pairs()
        .find(|(name, _)| name == "redirect_uri")
        .and_then(|(_, address)| reqwest::Url::parse(&address).ok())
        .and_then(|address| address.port())
        .expect("a port");
    let knocking = async {
        // Opened and never used, as browsers do.
        let idle = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
        for (path, status) in [("favicon.ico", 404), ("", 404), ("callback", 400), ("callback?state=guess&code=c", 400)] {
            let answer = http.get(format!("http://127.0.0.1:{port}/{path}")).send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), status, "{path}");
        }
        let renamed = http.get(format!("http://127.0.0.1:{port}/callback")).header("host", "evil.example").send().await;
        assert_eq!(renamed.expect("an answer").status().as_u16(), 421);
        // More than any browser sends: the connection is closed without an answer.
        let endless = http.get(format!("http://127.0.0.1:{port}/{}", "x".repeat(20_000))).send().await;
        assert!(endless.is_err());
        let (_, page) = browse(&http, &url).await;
        assert_eq!(page.status().as_u16(), 200);
        let policy = page.headers()["content-security-policy"].to_str().expect("a policy").to_owned();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(page.text().await.expect("a page").contains("You can close this window"));
        drop(idle);
    };
    let (tokens, ()) = tokio::join!(login.finish(&http), knocking);
    assert!(tokens.is_ok(), "{tokens:?}");
}

#[tokio::test]
async fn a_refresh_token_works_once_and_its_reuse_ends_the_sign_in() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    let refresh_with = async |tokens: &Tokens| {
        let token = tokens.refresh_token.as_ref().expect("a refresh token");
        browser_client::refresh(&http, &provider, &client(), token).await
    };
    let first = signed_in(&issuer, &http, &provider).await;
    let second = refresh_with(&first).await.expect("refreshed");
    let third = refresh_with(&second).await.expect("refreshed again");
    assert!(matches!(refresh_with(&second).await, Err(LoginError::SignInAgain)));
    // The thief cannot be told from the user, so the newest token is revoked too.
    assert!(matches!(refresh_with(&third).await, Err(LoginError::SignInAgain)));
    assert_eq!(issuer.rows().revoked.len(), 1);
}

#[tokio::test]
async fn a_person_signs_in_with_a_code_and_the_terminal_keeps_the_pace() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    assert!(provider.offers_device_login());
    let mut login = DeviceLogin::start(&http, &provider, &client(), issuer.now()).await.expect("a code");
    assert_eq!(login.verification_uri(), format!("{}/verify", issuer.url));
    assert_eq!(login.interval(), Duration::from_secs(5));
    let paused = |step: Result<DeviceStep, LoginError>| match step {
        Ok(DeviceStep::Wait(pause)) => pause.as_secs(),
        other => panic!("{other:?}"),
    };
    assert_eq!(paused(login.poll(&http, issuer.now()).await), 5);
    issuer.wait(Duration::from_secs(5));
    assert_eq!(paused(login.poll(&http, issuer.now()).await), 5);
    assert_eq!(paused(login.poll(&http, issuer.now()).await), 10);
    {
        let mut rows = issuer.rows();
        let grant = rows.devices.values().find(|grant| grant.user_code.to_string() == login.user_code()).expect("the grant");
        let approved = grant.approve(issuer.user, issuer.now()).expect("approved");
        rows.devices.insert(approved.device_digest.clone(), approved);
    }
    issuer.wait(Duration::from_secs(10));
    assert!(matches!(login.poll(&http, issuer.now()).await, Ok(DeviceStep::Done(_))));
    assert!(matches!(login.poll(&http, issuer.now()).await, Err(LoginError::SignInAgain)));
    assert_eq!(issuer.rows().revoked.len(), 1);
}

#[tokio::test]
async fn a_code_that_is_denied_or_too_old_ends_the_wait() {
    let (issuer, http) = (Issuer::start().await, http());
    let provider = Provider::discover(&http, &issuer.url).await.expect("a provider");
    let mut denied = DeviceLogin::start(&http, &provider, &client(), issuer.now()).await.expect("a code");
    {
        let mut rows = issuer.rows();
        let grant = rows.devices.values().next().expect("the grant").deny(issuer.now()).expect("denied");
        rows.devices.insert(grant.device_digest.clone(), grant);
    }
    assert!(matches!(denied.poll(&http, issuer.now()).await, Err(LoginError::Denied)));
    let mut late = DeviceLogin::start(&http, &provider, &client(), issuer.now()).await.expect("a code");
    assert!(matches!(late.poll(&http, issuer.now().plus(Duration::from_secs(600))).await, Err(LoginError::CodeExpired)));
}

#[tokio::test]
async fn an_issuer_that_speaks_for_another_is_not_asked_for_anything() {
    let (issuer, http) = (Issuer::start().await, http());
    let refused = Provider::discover(&http, &format!("{}/", issuer.url)).await.expect_err("another name");
    assert_eq!(refused.code(), "issuer_unusable");
    assert_eq!(Provider::discover(&http, "http://issuer.example").await.expect_err("clear text").code(), "issuer_unusable");
}
