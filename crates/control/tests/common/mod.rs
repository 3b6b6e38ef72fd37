//! A real server and scripted nodes: real TLS, real signatures, no agent.

#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "shared by several test programs, each of which uses a part"
)]

pub mod answers;
pub mod looking;
pub mod node;

use std::path::PathBuf;

use gpuaas_api::{Client, ClientOptions};
use gpuaas_control::{ApiTls, Server, ServerConfig, roles, start};
use gpuaas_store::StoreConfig;
use gpuaas_testkit::{PgDatabase, TempDir, pg_database};

pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A server with everything it needs, gone when dropped.
pub struct TestServer {
    pub server: Option<Server>,
    pub dir: TempDir,
    pub pg: Option<PgDatabase>,
    pub admin_token: String,
}

impl TestServer {
    pub async fn sqlite() -> Self {
        Self::launch(TempDir::new(), None).await
    }

    /// `None` (with a loud line) where there is no PostgreSQL.
    pub async fn postgres() -> Option<Self> {
        let pg = tokio::task::spawn_blocking(pg_database).await.unwrap()?;
        Some(Self::launch(TempDir::new(), Some(pg)).await)
    }

    pub fn config(dir: &TempDir, pg: Option<&PgDatabase>) -> ServerConfig {
        let store = match pg {
            Some(pg) => StoreConfig::parse(pg.url()).unwrap(),
            None => StoreConfig::Sqlite { path: dir.join("test.db") },
        };
        ServerConfig {
            data_dir: dir.path().to_owned(),
            store,
            roles: roles::parse("all").unwrap(),
            api_listen: "127.0.0.1:0".parse().unwrap(),
            api_tls: ApiTls::Off,
            link_listen: "127.0.0.1:0".parse().unwrap(),
            link_advertise: None,
            identity: gpuaas_control::identity::IdentityConfig { built_in: true, ..Default::default() },
            policies: Vec::new(),
            engines: Default::default(),
            webhooks_to_private: true,
        }
    }

    async fn launch(dir: TempDir, pg: Option<PgDatabase>) -> Self {
        let server = start(Self::config(&dir, pg.as_ref())).await.unwrap_or_else(|e| panic!("server does not start: {e:?}"));
        let admin_token = std::fs::read_to_string(&server.admin_token_file).unwrap();
        Self { server: Some(server), dir, pg, admin_token }
    }

    pub async fn restart(&mut self) {
        let before = self.server.take().unwrap();
        let (api, link) = (before.api_address.unwrap(), before.link_address.unwrap());
        before.stop().await;
        // Where it was: nodes and clients find it again.
        let config = ServerConfig { api_listen: api, link_listen: link, ..Self::config(&self.dir, self.pg.as_ref()) };
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

    /// What Prometheus would read.
    pub async fn metrics(&self) -> String {
        let config =
            rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
        let client = reqwest::Client::builder().tls_backend_preconfigured(config).build().unwrap();
        let answer = client.get(format!("{}/metrics", self.url())).bearer_auth(&self.admin_token).send().await.unwrap();
        answer.text().await.unwrap()
    }

    pub fn ca_pem(&self) -> PathBuf {
        self.dir.join("keys/ca.crt")
    }
}
