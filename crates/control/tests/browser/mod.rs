//! A scripted browser and a scripted client that sign in with the built-in issuer.

#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "shared by several test programs, each of which uses a part"
)]

use std::collections::BTreeMap;

use gpuaas_api::Client;
use gpuaas_api::dto::{User, UserCreate};
use gpuaas_identity::pkce::CodeVerifier;
use reqwest::{StatusCode, Url};
use serde_json::Value;

use crate::common::TestServer;

pub const EMAIL: &str = "ada@example.org";
pub const PASSWORD: &str = "seven green lanterns";
pub const CALLBACK: &str = "http://127.0.0.1:4711/callback";
pub const SCOPE: &str = "openid profile email offline_access";

pub fn encoded(fields: &[(&str, &str)]) -> String {
    Url::parse_with_params("http://x/", fields).unwrap().query().unwrap().to_owned()
}

/// A response.
pub struct Answer {
    pub status: StatusCode,
    pub location: Option<String>,
    /// Seconds to wait before the next attempt.
    pub retry_after: Option<u64>,
    pub html: String,
}

impl Answer {
    /// Returns the hidden fields of the form on the page.
    pub fn hidden(&self) -> BTreeMap<String, String> {
        let inputs = self.html.split("<input type=\"hidden\" name=\"").skip(1);
        let field = |input: &str| {
            let (name, rest) = input.split_once("\" value=\"").unwrap();
            (name.to_owned(), rest.split_once('"').unwrap().0.replace("&amp;", "&"))
        };
        inputs.map(field).collect()
    }

    /// Returns a parameter of the redirect.
    pub fn sent(&self, name: &str) -> Option<String> {
        let url = Url::parse(self.location.as_ref()?).unwrap();
        assert!(url.as_str().starts_with(CALLBACK), "{url}");
        url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }
}

/// A browser: it keeps cookies and sends forms.
pub struct Browser {
    pub http: reqwest::Client,
    pub base: String,
    /// By name.
    pub cookies: BTreeMap<String, String>,
    pub headers: Vec<(&'static str, String)>,
}

impl Browser {
    pub fn new(server: &TestServer) -> Self {
        let headers = vec![("origin", "null".to_owned()), ("sec-fetch-site", "same-origin".to_owned())];
        Self { http: crate::common::plain_http(), base: server.url(), cookies: BTreeMap::new(), headers }
    }

    /// Creates a browser on a machine with this address. All of 127.0.0.0/8 is this machine, so that a test can have many
    /// addresses.
    pub fn at(server: &TestServer, address: [u8; 4]) -> Self {
        Self { http: crate::common::plain_http_from(Some(address.into())), ..Self::new(server) }
    }

    pub async fn finish(&mut self, mut request: reqwest::RequestBuilder) -> Answer {
        if !self.cookies.is_empty() {
            let pairs: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            request = request.header("cookie", pairs.join("; "));
        }
        let response = request.send().await.unwrap();
        for cookie in response.headers().get_all("set-cookie") {
            let text = cookie.to_str().unwrap();
            assert!(text.contains("HttpOnly") && text.contains("SameSite=Strict"), "{text}");
            let (name, value) = text.split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
        let status = response.status();
        let location = response.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
        if location.is_none() {
            let policy = response.headers()["content-security-policy"].to_str().unwrap();
            assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
            assert_eq!(response.headers()["x-frame-options"], "DENY");
            assert_eq!(response.headers()["referrer-policy"], "no-referrer");
        }
        assert_eq!(response.headers()["cache-control"], "no-store");
        Answer { status, location, retry_after, html: response.text().await.unwrap() }
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        let request = self.http.get(format!("{}{path}", self.base));
        self.finish(request).await
    }

    pub async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let mut request = self.http.post(format!("{}{path}", self.base)).body(encoded(fields));
        request = request.header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        self.finish(request).await
    }

    /// Opens the sign-in page for this verifier.
    pub async fn open(&mut self, verifier: &CodeVerifier) -> Answer {
        self.get(&authorize(verifier, CALLBACK)).await
    }

    /// Submits address and password in the page's form.
    pub async fn types(&mut self, page: &Answer, path: &str, email: &str, password: &str) -> Answer {
        let hidden = page.hidden();
        let mut fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        fields.extend([("email", email), ("password", password)]);
        self.post(path, &fields).await
    }

    /// Opens the page and submits address and password.
    pub async fn tries(&mut self, email: &str, password: &str) -> Answer {
        let page = self.open(&CodeVerifier::generate()).await;
        self.types(&page, "/oauth/authorize", email, password).await
    }

    /// Signs in and returns the code for the client.
    pub async fn code(&mut self, verifier: &CodeVerifier) -> String {
        let page = self.open(verifier).await;
        assert_eq!(page.status, StatusCode::OK);
        let sent = self.types(&page, "/oauth/authorize", EMAIL, PASSWORD).await;
        assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.html);
        assert_eq!(sent.sent("state").as_deref(), Some("s-1"));
        assert_eq!(sent.sent("iss"), Some(self.base.clone()));
        sent.sent("code").unwrap()
    }
}

pub fn authorize(verifier: &CodeVerifier, redirect_uri: &str) -> String {
    let query = encoded(&[
        ("response_type", "code"),
        ("client_id", "gpuaas-cli"),
        ("redirect_uri", redirect_uri),
        ("scope", SCOPE),
        ("state", "s-1"),
        ("nonce", "n-1"),
        ("code_challenge", verifier.challenge().as_str()),
        ("code_challenge_method", "S256"),
    ]);
    format!("/oauth/authorize?{query}")
}

pub async fn call(server: &TestServer, path: &str, fields: &[(&str, &str)]) -> Result<Value, String> {
    let mut fields = fields.to_vec();
    fields.push(("client_id", "gpuaas-cli"));
    let request = crate::common::plain_http()
        .post(format!("{}{path}", server.url()))
        .header("content-type", "application/x-www-form-urlencoded");
    let response = request.body(encoded(&fields)).send().await.unwrap();
    assert_eq!(response.headers()["cache-control"], "no-store");
    let is_good = response.status().is_success();
    let body: Value = response.json().await.unwrap();
    if is_good { Ok(body) } else { Err(body["error"].as_str().unwrap().to_owned()) }
}

pub async fn redeem(server: &TestServer, code: &str, verifier: &CodeVerifier) -> Result<Value, String> {
    let fields =
        [("grant_type", "authorization_code"), ("code", code), ("redirect_uri", CALLBACK), ("code_verifier", verifier.expose())];
    call(server, "/oauth/token", &fields).await
}

pub async fn refresh(server: &TestServer, token: &str) -> Result<Value, String> {
    call(server, "/oauth/token", &[("grant_type", "refresh_token"), ("refresh_token", token)]).await
}

pub async fn poll(server: &TestServer, device_code: &str) -> Result<Value, String> {
    let grant = "urn:ietf:params:oauth:grant-type:device_code";
    call(server, "/oauth/token", &[("grant_type", grant), ("device_code", device_code)]).await
}

pub fn text(document: &Value, name: &str) -> String {
    document[name].as_str().unwrap_or_else(|| panic!("no {name} in {document}")).to_owned()
}

pub async fn ada(server: &TestServer) -> User {
    let wanted = UserCreate { email: EMAIL.to_owned(), name: "Ada".to_owned(), password: Some(PASSWORD.to_owned()) };
    server.client().user_create(&wanted, None).await.unwrap().user
}

/// Signs Ada in and returns her tokens.
pub async fn tokens(server: &TestServer) -> Value {
    let verifier = CodeVerifier::generate();
    let code = Browser::new(server).code(&verifier).await;
    redeem(server, &code, &verifier).await.unwrap()
}

pub fn as_bearer(server: &TestServer, tokens: &Value) -> Client {
    server.client_with(Some(&text(tokens, "access_token")))
}

pub async fn start_device(server: &TestServer) -> (String, String) {
    let started = call(server, "/oauth/device_authorization", &[("scope", SCOPE)]).await.unwrap();
    assert_eq!(text(&started, "verification_uri"), format!("{}/device", server.url()));
    (text(&started, "device_code"), text(&started, "user_code"))
}

/// Submits a device's code, signs in, and returns the page with the question.
pub async fn asked(browser: &mut Browser, user_code: &str) -> Answer {
    let entry = browser.get(&format!("/device?user_code={user_code}")).await;
    assert!(entry.html.contains(user_code));
    let csrf = entry.hidden()["csrf"].clone();
    let page = browser.post("/device", &[("user_code", &user_code.to_lowercase()), ("csrf", &csrf)]).await;
    assert_eq!((page.status, page.hidden()["user_code"].as_str()), (StatusCode::OK, user_code));
    let question = browser.types(&page, "/device", EMAIL, PASSWORD).await;
    assert!(question.status == StatusCode::OK && question.html.contains("Approve") && question.html.contains(EMAIL));
    assert_ne!(question.hidden()["csrf"], csrf, "the token is new once somebody has signed in");
    question
}

pub async fn decides(browser: &mut Browser, question: &Answer, decision: &str) -> Answer {
    let hidden = question.hidden();
    let fields = [("user_code", hidden["user_code"].as_str()), ("csrf", &hidden["csrf"]), ("decision", decision)];
    browser.post("/device", &fields).await
}
