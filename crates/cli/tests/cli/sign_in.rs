//! `gpuaas login` and the commands after it, against a real control plane and with a scripted browser.

use std::process::Stdio;

use gpuaas_api::dto::UserCreate;
use gpuaas_api::{Client, ClientOptions};
use gpuaas_control::{ApiTls, Server, ServerConfig, process_roles};
use gpuaas_identity::browser_client::{self, HttpClient};
use gpuaas_store::StoreConfig;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::program::gpuaas_with;

pub(crate) const EMAIL: &str = "ada@example.org";
const PASSWORD: &str = "seven green lanterns";

/// A server with one user, and a home folder for the program.
pub(crate) struct Place {
    server: Option<Server>,
    folder: tempfile::TempDir,
    pub(crate) url: String,
}

impl Place {
    /// Starts a server for REST, with one user.
    async fn new() -> Self {
        let place = Self::empty("api").await;
        let mut options = ClientOptions::new(&place.url);
        options.token = Some(std::fs::read_to_string(&place.server().admin_token_file).expect("a token"));
        let wanted = UserCreate { email: EMAIL.to_owned(), name: "Ada".to_owned(), password: Some(PASSWORD.to_owned()) };
        Client::new(options).expect("a client").user_create(&wanted, None).await.expect("made");
        place
    }

    /// Starts a server with these roles, and without users.
    pub(crate) async fn empty(roles: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data_dir = folder.path().join("server");
        std::fs::create_dir(&data_dir).expect("made");
        let identity = gpuaas_control::identity::IdentityConfig { built_in: true, ..Default::default() };
        let config = ServerConfig {
            store: StoreConfig::Sqlite { path: data_dir.join("test.db") },
            roles: process_roles::parse(roles).expect("roles"),
            trusted_proxies: Vec::new(),
            limits: None,
            api_listen: "127.0.0.1:0".parse().expect("an address"),
            api_tls: ApiTls::Off,
            link_listen: "127.0.0.1:0".parse().expect("an address"),
            link_advertise: None,
            ca: Default::default(),
            identity,
            backends: Default::default(),
            driver: std::sync::Arc::new(gpuaas_control::workflow::Embedded),
            webhooks_to_private: false,
            cors_origins: Vec::new(),
            destructive_budget: gpuaas_domain::budget::DEFAULT_PER_HOUR,
            policies: Vec::new(),
            data_dir,
        };
        let server = gpuaas_control::start(config).await.expect("it starts");
        let url = server.api_url.clone().expect("REST");
        Self { server: Some(server), folder, url }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("running")
    }

    /// Returns the folder of all files. The server's own are in `server`.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    fn home(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn kept(&self) -> std::path::PathBuf {
        self.folder.path().join(".local/state/gpuaas/tokens/default.json")
    }

    fn read_kept(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.kept()).expect("kept")).expect("JSON")
    }

    pub(crate) async fn stop(mut self) {
        self.server.take().expect("running").stop().await;
    }
}

pub(crate) fn http() -> HttpClient {
    browser_client::http_client(gpuaas_api::tls_config(false, None).expect("TLS"), true).expect("a client")
}

pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Opens the URL, enters e-mail address and password, and follows the redirect, as a browser would.
async fn signs_in(url: &str, server: &str) {
    let location = submit(url, server, EMAIL, PASSWORD).await;
    assert!(http().get(location).send().await.expect("the program answers").status().is_success());
}

/// Opens the URL and enters e-mail address and password. Returns where the browser is redirected to.
pub(crate) async fn submit(url: &str, server: &str, email: &str, password: &str) -> String {
    let http = http();
    let page = http.get(url).send().await.expect("a page");
    let cookie = page.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("a cookie").to_owned();
    let html = page.text().await.expect("text");
    let mut body = format!("email={}&password={}", encoded(email), encoded(password));
    for input in html.split("<input type=\"hidden\" name=\"").skip(1) {
        let (name, rest) = input.split_once("\" value=\"").expect("a field");
        let value = rest.split_once('"').expect("a value").0.replace("&amp;", "&");
        body.push_str(&format!("&{name}={}", encoded(&value)));
    }
    let post = http.post(format!("{server}/oauth/authorize")).header("cookie", cookie);
    let answer = post.header("content-type", "application/x-www-form-urlencoded").body(body).send().await.expect("an answer");
    answer.headers()["location"].to_str().expect("text").to_owned()
}

#[expect(clippy::disallowed_types, reason = "a test of the program starts the program")]
async fn logs_in(place: &Place) {
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_gpuaas"))
        .args(["login", "--no-browser", "--url", &place.url])
        .env_clear()
        .env("HOME", place.home())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(program.stderr.take().expect("stderr")).lines();
    let url = loop {
        let line = lines.next_line().await.expect("readable").expect("it says where to sign in");
        if line.trim().starts_with("http") {
            break line.trim().to_owned();
        }
    };
    signs_in(&url, &place.url).await;
    let output = program.wait_with_output().await.expect("it ends");
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && stdout.contains(EMAIL), "{stdout}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_is_kept_renewed_once_and_ended() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new().await;
    let home = place.home();
    let env = [("HOME", home.as_str())];
    logs_in(&place).await;
    assert_eq!(std::fs::metadata(place.kept()).expect("kept").permissions().mode() & 0o777, 0o600);
    let who = gpuaas_with(&["whoami", "-o", "json"], &env).await;
    assert_eq!((who.code, who.json()["email"].as_str()), (0, Some(EMAIL)), "{who:?}");
    let profiles = gpuaas_with(&["profile", "ls", "-o", "json"], &env).await.json();
    assert_eq!((profiles[0]["name"].as_str(), profiles[0]["signed_in"].as_bool()), (Some("default"), Some(true)));

    // Two concurrent commands find the token expired: one of them renews it, and both succeed.
    let mut kept = place.read_kept();
    kept["ends_at"] = serde_json::json!(0);
    std::fs::write(place.kept(), kept.to_string()).expect("written");
    let both = tokio::join!(gpuaas_with(&["whoami"], &env), gpuaas_with(&["whoami"], &env));
    assert_eq!((both.0.code, both.1.code), (0, 0), "{both:?}");
    assert_ne!(place.read_kept()["refresh_token"], kept["refresh_token"]);

    // The used refresh token is no longer valid, and the program says what to do.
    let renewed = place.read_kept();
    std::fs::write(place.kept(), kept.to_string()).expect("written");
    let refused = gpuaas_with(&["whoami"], &env).await;
    assert!(refused.code == 5 && refused.stderr.contains("gpuaas login"), "{refused:?}");
    std::fs::write(place.kept(), renewed.to_string()).expect("written");
    std::fs::set_permissions(place.kept(), std::fs::Permissions::from_mode(0o644)).expect("set");
    assert_eq!(gpuaas_with(&["whoami"], &env).await.code, 2, "a file that others can read is not used");

    assert_eq!(gpuaas_with(&["logout"], &env).await.code, 0);
    assert!(!place.kept().exists());
    let after = gpuaas_with(&["whoami", "--url", &place.url], &env).await;
    assert_eq!(after.code, 5, "{after:?}");
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_own_socket_needs_no_token_and_ignores_those_around() {
    let place = Place::new().await;
    let socket = place.folder.path().join("server/admin.sock").display().to_string();
    let home = place.home();
    let env = [("HOME", home.as_str()), ("GPUAAS_TOKEN", "gpt_wrong"), ("GPUAAS_URL", "http://127.0.0.1:1")];
    let who = gpuaas_with(&["--socket", &socket, "whoami", "-o", "json"], &env).await;
    assert_eq!((who.code, who.json()["kind"].as_str()), (0, Some("local_admin")), "{who:?}");
    let users = gpuaas_with(&["--socket", &socket, "user", "ls"], &env).await;
    assert!(users.code == 0 && users.stdout.contains(EMAIL), "{users:?}");
    place.stop().await;
}
