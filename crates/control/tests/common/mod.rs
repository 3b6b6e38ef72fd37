//! A real server and scripted nodes: real TLS, real signatures, no agent.

#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "shared by several test programs, each of which uses a part"
)]

pub mod answers;
pub mod lifecycle;
pub mod looking;
pub mod node;

use std::path::PathBuf;
use std::sync::Arc;

use gpuaas_api::{Client, ClientOptions};
use gpuaas_control::pki::CaConfig;
use gpuaas_control::workflow::{Driver, Embedded};
use gpuaas_control::{ApiTls, Server, ServerConfig, process_roles, start};
use gpuaas_store::StoreConfig;
use gpuaas_testkit::{PgDatabase, TempDir, pg_database};

pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Runs each scenario on both stores.
macro_rules! on_both_stores {
    ($(async fn $name:ident($server:ident: TestServer) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn scenario($server: TestServer) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                scenario(TestServer::sqlite().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(server) = TestServer::postgres().await {
                    scenario(server).await;
                }
            }
        }
    )*};
}

pub(crate) use on_both_stores;

/// Creates an HTTP client without trusted certificates and without redirects.
pub fn plain_http() -> reqwest::Client {
    plain_http_from(None)
}

/// Creates the same client, from this address.
pub fn plain_http_from(address: Option<std::net::IpAddr>) -> reqwest::Client {
    let config = rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = reqwest::Client::builder().tls_backend_preconfigured(config).redirect(reqwest::redirect::Policy::none());
    builder.no_proxy().local_address(address).build().unwrap()
}

/// A server with everything it needs, removed when dropped.
pub struct TestServer {
    pub server: Option<Server>,
    pub dir: TempDir,
    pub pg: Option<PgDatabase>,
    pub admin_token: String,
    pub driver: Arc<dyn Driver>,
    pub ca: CaConfig,
}

impl TestServer {
    pub async fn sqlite() -> Self {
        Self::driven_by(Arc::new(Embedded), None).await
    }

    /// Starts a server on PostgreSQL. Returns `None` and prints a line if there is none.
    pub async fn postgres() -> Option<Self> {
        let pg = tokio::task::spawn_blocking(pg_database).await.unwrap()?;
        Some(Self::driven_by(Arc::new(Embedded), Some(pg)).await)
    }

    pub fn config(dir: &TempDir, pg: Option<&PgDatabase>) -> ServerConfig {
        let store = match pg {
            Some(pg) => StoreConfig::parse(pg.url()).unwrap(),
            None => StoreConfig::Sqlite { path: dir.join("test.db") },
        };
        ServerConfig {
            data_dir: dir.path().to_owned(),
            store,
            roles: process_roles::parse("all").unwrap(),
            api_listen: "127.0.0.1:0".parse().unwrap(),
            api_tls: ApiTls::Off,
            link_listen: "127.0.0.1:0".parse().unwrap(),
            link_advertise: None,
            ca: Default::default(),
            identity: gpuaas_control::identity::IdentityConfig { built_in: true, ..Default::default() },
            policies: Vec::new(),
            backends: Default::default(),
            driver: Arc::new(Embedded),
            webhooks_to_private: true,
            cors_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            limits: None,
            destructive_budget: gpuaas_domain::budget::DEFAULT_PER_HOUR,
        }
    }

    /// Starts a server on SQLite with a changed configuration.
    pub async fn configured(change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = TempDir::new();
        let mut config = Self::config(&dir, None);
        change(&mut config);
        let (driver, ca) = (Arc::clone(&config.driver), config.ca.clone());
        let server = start(config).await.unwrap_or_else(|e| panic!("server does not start: {e:?}"));
        let admin_token = std::fs::read_to_string(&server.admin_token_file).unwrap();
        Self { server: Some(server), dir, pg: None, admin_token, driver, ca }
    }

    pub async fn driven_by(driver: Arc<dyn Driver>, pg: Option<PgDatabase>) -> Self {
        Self::made_of(driver, pg, CaConfig::BuiltIn).await
    }

    /// Starts a server with another CA.
    pub async fn with_ca(ca: CaConfig) -> Self {
        Self::made_of(Arc::new(Embedded), None, ca).await
    }

    async fn made_of(driver: Arc<dyn Driver>, pg: Option<PgDatabase>, ca: CaConfig) -> Self {
        let dir = TempDir::new();
        let config = ServerConfig { driver: Arc::clone(&driver), ca: ca.clone(), ..Self::config(&dir, pg.as_ref()) };
        let server = start(config).await.unwrap_or_else(|e| panic!("server does not start: {e:?}"));
        let admin_token = std::fs::read_to_string(&server.admin_token_file).unwrap();
        Self { server: Some(server), dir, pg, admin_token, driver, ca }
    }

    pub async fn restart(&mut self) {
        let before = self.server.take().unwrap();
        let (api, link) = (before.api_address.unwrap(), before.link_address.unwrap());
        before.stop().await;
        // On the same address, so that nodes and clients find it again.
        let driver = Arc::clone(&self.driver);
        let ca = self.ca.clone();
        let config = ServerConfig { api_listen: api, link_listen: link, driver, ca, ..Self::config(&self.dir, self.pg.as_ref()) };
        self.server = Some(start(config).await.unwrap());
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn url(&self) -> String {
        self.server().api_url.clone().unwrap()
    }

    pub fn client(&self) -> Client {
        self.client_with(Some(&self.admin_token))
    }

    pub fn client_with(&self, token: Option<&str>) -> Client {
        let mut options = ClientOptions::new(self.url());
        options.token = token.map(str::to_owned);
        Client::new(options).unwrap()
    }

    /// Returns the text for Prometheus.
    pub async fn metrics(&self) -> String {
        let answer = plain_http().get(format!("{}/metrics", self.url())).bearer_auth(&self.admin_token).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// Returns the path of the root that nodes pin, for any CA.
    pub fn ca_pem(&self) -> PathBuf {
        let roots = ["keys/ca.crt", "keys/step-ca-root.crt"].map(|name| self.dir.join(name));
        roots.into_iter().find(|path| path.exists()).expect("there is a root")
    }
}

impl TestServer {
    /// Restarts the server with another destructive budget, on the same address.
    pub async fn with_budget(&mut self, per_hour: u32) {
        let before = self.server.take().unwrap();
        let (api, link) = (before.api_address.unwrap(), before.link_address.unwrap());
        before.stop().await;
        let driver = Arc::clone(&self.driver);
        let config = Self::config(&self.dir, self.pg.as_ref());
        let config = ServerConfig { api_listen: api, link_listen: link, driver, destructive_budget: per_hour, ..config };
        self.server = Some(start(config).await.unwrap());
    }

    /// Returns a client on the local socket.
    pub fn local_client(&self) -> Client {
        let mut options = ClientOptions::new(self.url());
        options.unix_socket = Some(self.dir.join("admin.sock"));
        Client::new(options).unwrap()
    }
}
