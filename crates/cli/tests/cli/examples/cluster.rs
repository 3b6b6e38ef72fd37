//! A server with agents on simulated hosts, all in this process.

use std::time::Duration;

use gpuaas_agent::config::Config as AgentConfig;
use gpuaas_agent::{Door, EnrollOptions, RunOptions};
use gpuaas_api::dto::EnrollmentListQuery;
use gpuaas_api::{Client, ClientOptions};
use gpuaas_host::Profile;
use gpuaas_identity::browser_client::HttpClient;
use gpuaas_identity::pkce::CodeVerifier;
use gpuaas_testkit::{PATIENCE, eventually_async};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::sign_in::{EMAIL, Place, encoded, http, submit};

/// What the owner of the hosts allows.
const POLICY: &str = "allowed_tasks = [\"diag.ping\", \"slice.topology_discover\", \"slice.vm_provision\", \"slice.vm_release\", \
     \"slice.vm_power\", \"slice.console_read\", \"allocation.provision_user\", \"allocation.deprovision_user\"]\n\n\
     [slices]\npci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"*\"]\nbridges = [\"br-slices\"]\n\
     image_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\ndriver_strategies = [\"cloud-init\", \"preinstalled\"]\n\
     max_shutdown_seconds = 900\nallow_graphics = true\n\n[bare_metal]\nusernames = [\"*\"]\nallow_sudo = true\n";

/// Where the server is, according to the examples.
const EXAMPLE_URL: &str = "https://gpuaas.example.com";
const EXAMPLE_LINK: &str = "gpuaas.example.com:8443";

/// A server, two hosts that are online and, on demand, two more that request enrollment.
pub(super) struct Cluster {
    place: Place,
    pub(super) url: String,
    pub(super) token: String,
    pub(super) client: Client,
    pub(super) http: HttpClient,
    link: String,
    shutdown: CancellationToken,
    agents: JoinSet<()>,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let place = Place::empty("all").await;
        let server = place.server();
        let url = place.url.clone();
        let token = std::fs::read_to_string(&server.admin_token_file).expect("a token").trim().to_owned();
        let mut options = ClientOptions::new(&url);
        options.token = Some(token.clone());
        let client = Client::new(options).expect("a client");
        let link = server.link_address.expect("a link").to_string();
        let (shutdown, agents) = (CancellationToken::new(), JoinSet::new());
        let mut cluster = Self { place, url, token, client, http: http(), link, shutdown, agents };
        for (name, profile) in [("gpu-01", Profile::H100), ("gpu-02", Profile::Mi300x)] {
            cluster.run_agent(name, profile).await;
        }
        cluster
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        while self.agents.join_next().await.is_some() {}
        self.place.stop().await;
    }

    fn agent(&self, name: &str, profile: Profile) -> AgentConfig {
        let folder = self.place.folder().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let policy_file = folder.join("policy.toml");
        gpuaas_control::pki::write_private(&policy_file, POLICY.as_bytes()).expect("a policy");
        AgentConfig {
            server: vec![self.link.clone()],
            state_dir: folder.join("state"),
            policy_file,
            metrics_interval: Duration::from_secs(1),
            journal_bytes: 16 * 1024 * 1024,
            simulate: Some(profile),
            ..AgentConfig::default()
        }
    }

    async fn run_agent(&mut self, name: &str, profile: Profile) {
        let config = self.agent(name, profile);
        let token = self.client.join_token_create(&Default::default(), None).await.expect("a token").token;
        let door = Door::Token(token);
        let options = EnrollOptions { config: config.clone(), door, replace: false, simulated_hostname: Some(name.to_owned()) };
        gpuaas_agent::enroll(options, |_| {}, CancellationToken::new()).await.expect("enrolled");
        let shutdown = self.shutdown.clone();
        self.agents.spawn(async move { gpuaas_agent::run(RunOptions::new(config), shutdown).await.expect("it runs") });
        eventually_async(PATIENCE, "the host is online", || async {
            self.client.node(name).await.expect("a node").online.then_some(())
        })
        .await;
    }

    /// Waits until both hosts have sent metrics.
    pub(super) async fn until_sampled(&self) {
        for name in ["gpu-01", "gpu-02"] {
            eventually_async(PATIENCE, "a sample of the host", || async {
                self.client.node(name).await.expect("a node").metrics.map(drop)
            })
            .await;
        }
    }

    /// Lets two hosts request enrollment, one after the other.
    pub(super) async fn request_enrollments(&mut self) {
        let ca_sha256 = self.client.cluster().await.expect("a cluster").ca_sha256;
        for (number, name) in ["gpu-03", "gpu-04"].into_iter().enumerate() {
            let config = self.agent(name, Profile::H100);
            let door = Door::Approval { email: "operator@example.org".to_owned(), ca_sha256: ca_sha256.clone() };
            let options = EnrollOptions { config, door, replace: false, simulated_hostname: Some(name.to_owned()) };
            let shutdown = self.shutdown.clone();
            // One request is approved and one is rejected, so both calls return.
            self.agents.spawn(async move { drop(gpuaas_agent::enroll(options, |_| {}, shutdown).await) });
            eventually_async(PATIENCE, "the request", || async {
                let requests = self.client.enrollments(&EnrollmentListQuery::default()).await.expect("requests").items;
                (requests.len() > number).then_some(())
            })
            .await;
        }
    }

    /// Returns a client on the server's local socket.
    pub(super) fn local(&self) -> Client {
        let mut options = ClientOptions::new(&self.url);
        options.unix_socket = Some(self.place.folder().join("server/admin.sock"));
        Client::new(options).expect("a client")
    }

    /// Signs in as the user of the examples, with the password in the request. Returns the access token.
    pub(super) async fn sign_in(&self, body: &Value) -> String {
        let password = body["current_password"].as_str().expect("a password");
        let verifier = CodeVerifier::generate();
        let callback = "http://127.0.0.1:4711/callback";
        let url = format!(
            "{}/oauth/authorize?response_type=code&client_id=gpuaas-cli&redirect_uri={}&scope=openid&state=s&nonce=n&code_challenge={}\
             &code_challenge_method=S256",
            self.url,
            encoded(callback),
            verifier.challenge().as_str()
        );
        let location = submit(&url, &self.url, EMAIL, password).await;
        let code = location.split("code=").nth(1).and_then(|rest| rest.split('&').next()).expect("a code").to_owned();
        let form = format!(
            "grant_type=authorization_code&client_id=gpuaas-cli&code={code}&redirect_uri={}&code_verifier={}",
            encoded(callback),
            verifier.expose()
        );
        let request =
            self.http.post(format!("{}/oauth/token", self.url)).header("content-type", "application/x-www-form-urlencoded");
        let text = request.body(form).send().await.expect("an answer").text().await.expect("text");
        let tokens: Value = serde_json::from_str(&text).expect("JSON");
        tokens["access_token"].as_str().unwrap_or_else(|| panic!("no token: {text}")).to_owned()
    }

    /// Replaces the addresses of this test in a response with those of the examples.
    pub(super) fn disguise(&self, response: Value) -> Value {
        let folder = self.place.folder().display().to_string();
        let port = self.link.rsplit(':').next().unwrap_or_default();
        let text = response.to_string().replace(&self.url, EXAMPLE_URL).replace(&self.link, EXAMPLE_LINK);
        let text = text.replace(&folder, "/var/lib/gpuaas").replace(&format!(":{port}"), ":8443");
        serde_json::from_str(&text).expect("JSON")
    }
}
