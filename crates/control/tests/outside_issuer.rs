//! Tokens of an external OIDC issuer: a real independent implementation, a scripted browser, a real server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::TestServer;
use common::looking::refused;
use gpuaas_api::dto::{MemberAdd, UserListQuery};
use gpuaas_contract::access::{MemberRole, PlatformRole};
use gpuaas_control::ServerConfig;
use gpuaas_control::identity::{ExternalIssuer, IdentityConfig};
use gpuaas_identity::browser_client::{self, BrowserLogin, ClientSettings, HttpClient, Provider};
use tokio::io::{AsyncBufReadExt as _, BufReader};

const EMAIL: &str = "grace@example.org";

/// Returns the folder where `cargo xtask test` installed the packages of `tests/oidc-provider`.
fn packages() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/oidc-provider");
    folder.join("node_modules/oidc-provider").is_dir().then_some(folder)
}

/// What is not tested without an independent issuer.
const WHAT: &str = "tokens of an issuer that is not ours";

/// An independent issuer. It ends with the test.
struct Outside {
    _program: tokio::process::Child,
    issuer: String,
}

impl Outside {
    /// Starts the issuer. Returns `None` and prints a line if it cannot be started.
    #[expect(clippy::disallowed_types, reason = "the issuer of another make is a program")]
    async fn start() -> Option<Self> {
        let Some(packages) = packages() else {
            gpuaas_testkit::skip(WHAT, "oidc-provider is not in target/tools; `cargo xtask test` puts it there");
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oidc-provider/issuer.mjs");
        let started = tokio::process::Command::new("node")
            .arg(script)
            .arg(packages)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let Ok(mut program) = started else {
            gpuaas_testkit::skip(WHAT, "node is not installed; `cargo xtask test` installs it as root");
            return None;
        };
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let line =
            tokio::time::timeout(common::PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it says where it is");
        let issuer = line.strip_prefix("ready ").expect("ready").to_owned();
        Some(Self { _program: program, issuer })
    }
}

/// A browser with cookies, enough for the pages of that issuer.
struct Browser {
    http: HttpClient,
    cookies: BTreeMap<String, String>,
}

impl Browser {
    fn new() -> Self {
        Self { http: http(), cookies: BTreeMap::new() }
    }

    /// Sends a request and follows redirects. Returns the page, or nothing once the program's own address was called.
    async fn go(&mut self, mut url: reqwest::Url, mut form: Option<&str>) -> Option<(reqwest::Url, String)> {
        loop {
            let request = match form.take() {
                Some(body) => {
                    let post = self.http.post(url.clone()).header("content-type", "application/x-www-form-urlencoded");
                    post.body(body.to_owned())
                }
                None => self.http.get(url.clone()),
            };
            let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let response = request.header("cookie", cookies.join("; ")).send().await.unwrap();
            for cookie in response.headers().get_all("set-cookie") {
                let (name, value) = cookie.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap();
                match value {
                    "" => self.cookies.remove(name),
                    _ => self.cookies.insert(name.to_owned(), value.to_owned()),
                };
            }
            match response.headers().get("location") {
                Some(location) => url = url.join(location.to_str().unwrap()).unwrap(),
                None if url.path() == "/callback" => return None,
                None => {
                    assert!(response.status().is_success(), "{url}: {}", response.status());
                    return Some((url, response.text().await.unwrap()));
                }
            }
        }
    }

    /// Signs in and agrees to everything.
    async fn signs_in(&mut self, url: &str) {
        let mut page = self.go(url.parse().unwrap(), None).await;
        for _ in 0..5 {
            let Some((at, html)) = page else { return };
            let action = html.split_once("action=\"").expect("a form").1.split_once('"').unwrap().0;
            let form = if html.contains("name=\"login\"") {
                "prompt=login&login=grace%40example.org&password=x"
            } else {
                "prompt=consent"
            };
            page = self.go(at.join(action).unwrap(), Some(form)).await;
        }
        panic!("the issuer asks without end");
    }
}

fn http() -> HttpClient {
    browser_client::http_client(gpuaas_api::tls_config(false, None).unwrap(), true).unwrap()
}

async fn server(issuer: &str, audience: &str) -> TestServer {
    let mut server = TestServer::sqlite().await;
    server.server.take().unwrap().stop().await;
    let issuers = vec![ExternalIssuer { issuer: issuer.to_owned(), audience: audience.to_owned() }];
    let config = TestServer::config(&server.dir, None);
    let config = ServerConfig { identity: IdentityConfig { built_in: true, issuers, ..IdentityConfig::default() }, ..config };
    server.server = Some(gpuaas_control::start(config).await.unwrap());
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_from_another_issuer_signs_in_is_invited_by_address_and_stays_signed_in() {
    let Some(outside) = Outside::start().await else { return };
    let server = server(&outside.issuer, "gpuaas").await;
    // Invited before the first sign-in.
    let invite =
        MemberAdd { email: Some(EMAIL.to_owned()), service_account_id: None, role: MemberRole::Platform(PlatformRole::Support) };
    server.client().platform_member_add(&invite, None).await.unwrap();

    let http = http();
    let provider = Provider::discover(&http, &outside.issuer).await.unwrap();
    let client = ClientSettings { client_id: "gpuaas-cli".to_owned(), scope: "openid email profile offline_access".to_owned() };
    let login = BrowserLogin::start(&provider, &client).await.unwrap();
    let url = login.url().to_owned();
    let (tokens, ()) = tokio::join!(login.finish(&http), async { Browser::new().signs_in(&url).await });
    let tokens = tokens.unwrap();
    let who = server.client_with(Some(&tokens.access_token)).whoami().await.unwrap();
    assert_eq!(
        (who.kind.as_str(), who.email.as_deref(), who.platform_role.as_ref().map(|role| role.as_str())),
        ("user", Some(EMAIL), Some("support"))
    );
    let users = server.client().users(&UserListQuery::default()).await.unwrap().items;
    assert!(users.len() == 1 && !users[0].local && users[0].issuer == outside.issuer);

    let refreshed = browser_client::refresh(&http, &provider, &client, &tokens.refresh_token.unwrap()).await.unwrap();
    assert_eq!(server.client_with(Some(&refreshed.access_token)).whoami().await.unwrap().id, who.id);
    // The ID token is valid, but for the client.
    let id_token = tokens.id_token.expect("an ID token");
    assert_eq!(refused(server.client_with(Some(&id_token)).whoami().await), "token_audience");
    let id = users[0].id.to_string();
    assert_eq!(refused(server.client().user_password_set(&id, &Default::default()).await), "user_not_local");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_is_not_configured_or_away_lets_nobody_in() {
    let Some(outside) = Outside::start().await else { return };
    let http = http();
    let provider = Provider::discover(&http, &outside.issuer).await.unwrap();
    let client = ClientSettings { client_id: "gpuaas-cli".to_owned(), scope: "openid email".to_owned() };
    let login = BrowserLogin::start(&provider, &client).await.unwrap();
    let url = login.url().to_owned();
    let (tokens, ()) = tokio::join!(login.finish(&http), async { Browser::new().signs_in(&url).await });
    let token = tokens.unwrap().access_token;
    let stranger = server("http://127.0.0.1:1", "gpuaas").await;
    assert_eq!(refused(stranger.client_with(Some(&token)).whoami().await), "token_issuer");
    let server = server(&outside.issuer, "gpuaas").await;
    drop(outside);
    // The keys cannot be fetched: no caller is at fault, and none is accepted.
    assert_eq!(refused(server.client_with(Some(&token)).whoami().await), "issuer_unavailable");
}
