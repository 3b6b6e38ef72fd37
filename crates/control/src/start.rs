//! Starts and stops a server process.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use gpuaas_backends::{Backends, BackendsConfig, BackendsError};
use gpuaas_contract::Digest;
use gpuaas_contract::event::{ApiTokenCreated, Event};
use gpuaas_contract::id::{ApiTokenId, CorrelationId, ServerId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, PlatformRole, Policies};
use gpuaas_domain::decision::{Change, Context};
use gpuaas_domain::{Actor, Decision};
use gpuaas_runtime::net::TcpListener;
use gpuaas_store::{ApiTokenFilter, CommitError, Store, StoreConfig, StoreError};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ControlError;
use crate::http::conventions::CorsOrigin;
use crate::identity::{self, Identity, IdentityConfig, IdentityError};
use crate::listener::{ListenerKind, ListenerLimits, ListenerOptions, ServerLimits, TrustedProxies, TrustedProxy};
use crate::local_socket::LocalSocket;
use crate::process_roles::Role;
use crate::{Control, authz_cache, events, http, link, listener, metrics, pki, progress, workflow};

/// How the REST listener is protected.
#[derive(Clone, Debug)]
pub enum ApiTls {
    /// Plain HTTP; only on a loopback address.
    Off,
    /// A certificate of the cluster's own CA, for these names and addresses.
    BuiltIn(Vec<String>),
    /// A certificate from files.
    Files {
        /// PEM chain.
        certificate: PathBuf,
        /// PEM key.
        key: PathBuf,
    },
}

/// The configuration of a server process.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The folder of keys, the admin token and, by default, the database.
    pub data_dir: PathBuf,
    /// The database.
    pub store: StoreConfig,
    /// The roles of this process.
    pub roles: BTreeSet<Role>,
    /// The address of REST.
    pub api_listen: SocketAddr,
    /// Its TLS.
    pub api_tls: ApiTls,
    /// The address for agents.
    pub link_listen: SocketAddr,
    /// The address that hosts connect to, if not the listening address: `host:port`.
    pub link_advertise: Option<String>,
    /// The certificate authority.
    pub ca: pki::CaConfig,
    /// The accepted issuers.
    pub identity: IdentityConfig,
    /// NATS and Redis, if configured.
    pub backends: BackendsConfig,
    /// The workflow driver.
    pub driver: Arc<dyn workflow::Driver>,
    /// Whether webhooks may go to private addresses, and over plain HTTP.
    pub webhooks_to_private: bool,
    /// Origins whose pages may call REST from a browser.
    pub cors_origins: Vec<CorsOrigin>,
    /// Maximum number of releases, cleanups and retirements of nodes per hour.
    pub destructive_budget: u32,
    /// Additional rules of the operator that forbid more: names and texts of Cedar files.
    pub policies: Vec<(String, String)>,
    /// Proxies in front of REST whose client addresses are trusted.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// The limits of clients; by default derived from the file limit of this process.
    pub limits: Option<ServerLimits>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database cannot be opened.
    #[error("the store cannot be opened")]
    Store(#[from] StoreError),
    /// The CA cannot be used.
    #[error("the certificate authority cannot be used")]
    Ca(#[from] pki::CaError),
    /// The keys cannot be used.
    #[error("the signing keys cannot be used")]
    Keys(#[from] pki::KeyRingError),
    /// The database has a cluster whose keys are elsewhere.
    #[error(
        "the database belongs to a cluster whose keys are not in {0}; copy the folder `keys` from another server or from the backup. \
         New keys would lock out every node"
    )]
    KeysMissing(PathBuf),
    /// A secret file cannot be written.
    #[error("a secret file cannot be written")]
    File(#[from] pki::KeyFileError),
    /// A port cannot be bound.
    #[error("cannot listen on {address}; is another server running there? Choose another address with `{flag}`")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The flag that changes it.
        flag: &'static str,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Plain HTTP on a network.
    #[error(
        "refusing plain HTTP on {0}: tokens would travel in the clear. Use `--api-tls built-in` or give `--api-cert` and `--api-key`"
    )]
    PlainHttp(SocketAddr),
    /// A certificate file cannot be used.
    #[error("the API certificate or key cannot be used ({path}): {detail}")]
    ApiCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// Authentication cannot be set up.
    #[error("sign-in cannot be set up")]
    Identity(#[from] IdentityError),
    /// NATS or Redis cannot be used.
    #[error("NATS or Redis cannot be used")]
    Backends(#[from] BackendsError),
    /// The operator's rules are not valid.
    #[error("the policies cannot be used")]
    Policies(#[from] gpuaas_domain::access::BadPolicies),
    /// The first read of the store failed.
    #[error("the first read of the store failed")]
    First(#[from] ControlError),
}

/// A running server.
pub struct Server {
    /// The address of REST, if this process has that role.
    pub api_address: Option<SocketAddr>,
    /// Base URL of REST.
    pub api_url: Option<String>,
    /// The address for agents, if this process has that role.
    pub link_address: Option<SocketAddr>,
    /// The pin for agents.
    pub ca_pin: String,
    /// File with the admin token.
    pub admin_token_file: PathBuf,
    /// The local socket, if this process has it.
    pub admin_socket: Option<PathBuf>,
    control: Arc<Control>,
    listeners: TaskTracker,
}

/// Opens everything and starts the roles. When this returns, the listeners are ready.
///
/// The future is boxed so that its code is compiled here, once, and not again in every program that waits for it.
pub fn start(config: ServerConfig) -> BoxFuture<'static, Result<Server, StartError>> {
    Box::pin(start_roles(config))
}

async fn start_roles(config: ServerConfig) -> Result<Server, StartError> {
    if matches!(config.api_tls, ApiTls::Off) && !config.api_listen.ip().is_loopback() && config.roles.contains(&Role::Api) {
        return Err(StartError::PlainHttp(config.api_listen));
    }
    let now = Timestamp::now();
    let store = Store::open(&config.store).await?;
    let cluster_id = store.cluster_id().await?;
    let keys_dir = config.data_dir.join("keys");
    // Keys are made before the first row of the audit log, and never again.
    if !pki::KeyRing::exists(&keys_dir) && store.audit_head().await?.seq > 0 {
        // The file of the database is free again at once for a start with the keys.
        store.close().await;
        return Err(StartError::KeysMissing(keys_dir));
    }
    let metrics = metrics::Metrics::new();
    let ca = pki::Ca::open(&config.ca, &keys_dir, cluster_id, now, metrics.ca_requests()).await?;
    let keys = pki::KeyRing::open(&keys_dir, cluster_id, now)?;
    let admin_token_file = config.data_dir.join("admin-token");
    ensure_admin_token(&store, &admin_token_file).await?;

    let link_listener = bind(&config, Role::Link, config.link_listen, "--link-listen").await?;
    let api_listener = bind(&config, Role::Api, config.api_listen, "--api-listen").await?;
    let address_of = |listener: &Option<TcpListener>| listener.as_ref().and_then(|l| l.local_addr().ok());
    let (link_address, api_address) = (address_of(&link_listener), address_of(&api_listener));
    let advertised = config.link_advertise.clone().unwrap_or_else(|| link_address.unwrap_or(config.link_listen).to_string());

    let store_kind = match config.store {
        StoreConfig::Sqlite { .. } => "sqlite",
        StoreConfig::Postgres { .. } => "postgres",
    };
    let scheme = if matches!(config.api_tls, ApiTls::Off) { "http" } else { "https" };
    let url = format!("{scheme}://{}", api_address.unwrap_or(config.api_listen));
    let identity = Identity::open(&config.identity, &keys_dir, &url)?;
    let policies = Policies::with_extra(&config.policies)?;
    let (has_api, has_link) = (config.roles.contains(&Role::Api), config.roles.contains(&Role::Link));
    let limits = config
        .limits
        .clone()
        .unwrap_or_else(|| ServerLimits::for_descriptors(gpuaas_runtime::file_limit::current_limit(), has_api, has_link));
    let control = Arc::new(Control {
        store,
        cluster_id,
        server_id: ServerId::generate(),
        ca: Arc::new(ca),
        keys,
        listener_certificates: pki::ListenerCertificates::default(),
        hub: link::Hub::default(),
        denied: link::DenyList::default(),
        budgets: link::NodeBudgets::default(),
        progress: progress::ProgressBoard::default(),
        fleet: workflow::FleetView::default(),
        placing: workflow::Placing::default(),
        deliveries_due: tokio::sync::Notify::new(),
        lines: crate::transact::Lines::default(),
        authz: authz_cache::AuthzCache::new(policies),
        identity,
        backends: Backends::from_config(&config.backends).await?,
        budget: crate::destructive_budget::Budget::new(config.destructive_budget),
        webhooks_to_private: config.webhooks_to_private,
        cors_origins: config.cors_origins.clone(),
        metrics,
        streams: http::Streams::new(&limits),
        link_address: advertised,
        store_kind,
        shutdown: CancellationToken::new(),
        background: TaskTracker::new(),
    });

    let proxies = TrustedProxies::new(&config.trusted_proxies);
    let options = |kind: ListenerKind, limits: &ListenerLimits| ListenerOptions {
        proxies: proxies.clone(),
        counts: control.metrics.connections().clone(),
        ..ListenerOptions::new(kind, limits.clone())
    };
    let listeners = TaskTracker::new();
    if let Some(listener) = link_listener {
        if store_kind == "sqlite" {
            link::bury_all_links(&control).await?;
        }
        link::spawn_sweepers(&control).await?;
        let tls = link::tls_acceptor(&control, &keys_dir).await?;
        let options = options(ListenerKind::Link, &limits.link);
        listeners.spawn(listener::serve(listener, Some(tls), link::router(&control), options, control.shutdown.clone()));
    }
    if config.roles.contains(&Role::Api) || config.roles.contains(&Role::Link) {
        pki::spawn_watch(&control);
    }
    if config.roles.contains(&Role::Api) || config.roles.contains(&Role::Provisioning) {
        workflow::FleetView::spawn(&control);
    }
    if config.roles.contains(&Role::Provisioning) {
        workflow::spawn(&control, Arc::clone(&config.driver));
    }
    // Without Redis every process that serves browsers has to read the outbox itself.
    let serves = config.roles.contains(&Role::Api) && config.backends.redis.is_none();
    if serves || (config.roles.contains(&Role::Notify) && config.backends.redis.is_some()) {
        events::notify::spawn(&control);
    }
    if config.roles.contains(&Role::Outbox) {
        events::relay::spawn(&control);
    }
    if config.roles.contains(&Role::Webhook) {
        events::webhooks::spawn(&control);
    }
    let (mut api_url, mut admin_socket) = (None, None);
    if let Some(listener) = api_listener {
        let tls = api_tls(&config.api_tls, &control, &keys_dir).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        api_url = api_address.map(|address| format!("{scheme}://{address}"));
        progress::ProgressBoard::spawn(&control);
        authz_cache::AuthzCache::spawn(&control);
        identity::spawn_sweep(&control);
        let local = options(ListenerKind::Local, &limits.local);
        admin_socket = open_admin_socket(&config.data_dir, &control, local, &listeners).await;
        let options = options(ListenerKind::Api, &limits.api);
        listeners.spawn(listener::serve(listener, tls, http::router(&control), options, control.shutdown.clone()));
    }
    let ca_pin = control.ca.pin();
    Ok(Server { api_address, api_url, link_address, ca_pin, admin_token_file, admin_socket, control, listeners })
}

/// Opens the local socket. A server without it still serves all other clients.
async fn open_admin_socket(
    data_dir: &Path,
    control: &Arc<Control>,
    options: ListenerOptions,
    listeners: &TaskTracker,
) -> Option<PathBuf> {
    // A simulated host has no files.
    if gpuaas_runtime::is_simulated() {
        return None;
    }
    let path = data_dir.join("admin.sock");
    match LocalSocket::open(&path).await {
        Ok(Some(socket)) => {
            let opened = socket.path().to_owned();
            listeners.spawn(listener::serve_any(socket, None, http::router(control), options, control.shutdown.clone()));
            Some(opened)
        }
        Ok(None) => {
            tracing::warn!(path = %path.display(), "another server has the local socket");
            None
        }
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "the local socket cannot be opened; is the path longer than 100 bytes?");
            None
        }
    }
}

async fn bind(
    config: &ServerConfig,
    role: Role,
    address: SocketAddr,
    flag: &'static str,
) -> Result<Option<TcpListener>, StartError> {
    if !config.roles.contains(&role) {
        return Ok(None);
    }
    TcpListener::bind(address).await.map(Some).map_err(|source| StartError::Bind { address, flag, source })
}

/// Creates the first admin token, if there is no valid one. Its text goes into a file that only the owner can read.
async fn ensure_admin_token(store: &Store, file: &Path) -> Result<(), StartError> {
    let tokens = store.api_token_list(&ApiTokenFilter::default(), None, 1000).await?;
    if tokens.iter().any(|token| token.role == Some(PlatformRole::Admin) && token.counts(Timestamp::now())) {
        return Ok(());
    }
    let secret = pki::secret_text("gpt_");
    // The file first: a token in the store without its text would lock everyone out.
    pki::write_private(file, secret.as_bytes())?;
    let context = Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() };
    let token = ApiToken {
        id: ApiTokenId::generate(),
        version: 0,
        name: "first admin".to_owned(),
        role: Some(PlatformRole::Admin),
        service_account: None,
        project: None,
        parent: None,
        created_by: None,
        scopes: None,
        secret_digest: Digest::of(secret.as_bytes()),
        created_at: context.now,
        expires_at: None,
        revoked_at: None,
    };
    let event = Event::ApiTokenCreated(ApiTokenCreated {
        api_token_id: token.id,
        role: PlatformRole::Admin.into(),
        name: token.name.clone(),
        parent_id: None,
    });
    let id = token.id;
    let decision = Decision::default().change(Change::ApiTokenInsert(token)).record(&context, id, event);
    match store.commit(decision).await {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict) => Err(ControlError::Contended.into()),
        Err(CommitError::Store(error)) => Err(ControlError::from(error).into()),
    }
}

async fn api_tls(tls: &ApiTls, control: &Control, keys_dir: &Path) -> Result<Option<TlsAcceptor>, StartError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificate: Arc<dyn rustls::server::ResolvesServerCert> = match tls {
        ApiTls::Off => return Ok(None),
        ApiTls::BuiltIn(names) => {
            let ca = Arc::clone(&control.ca);
            let certificate = pki::ServingCertificate::new(ca, names.clone(), keys_dir, pki::Listener::Api).await?;
            control.listener_certificates.show(&certificate);
            control.background.spawn(Arc::clone(&certificate).keep_fresh(control.shutdown.clone()));
            certificate
        }
        ApiTls::Files { certificate, key } => {
            let bad = |path: &Path| {
                let path = path.to_owned();
                move |error: rustls::pki_types::pem::Error| StartError::ApiCertificate { path, detail: error.to_string() }
            };
            let chain = CertificateDer::pem_file_iter(certificate).map_err(bad(certificate))?;
            let chain = chain.collect::<Result<Vec<_>, _>>().map_err(bad(certificate))?;
            let private = PrivateKeyDer::from_pem_file(key).map_err(bad(key))?;
            if let Some(leaf) = chain.first() {
                control.listener_certificates.show_file(pki::Listener::Api, leaf)?;
            }
            let unfit = |error: rustls::Error| StartError::ApiCertificate { path: key.clone(), detail: error.to_string() };
            let certified = rustls::sign::CertifiedKey::from_der(chain, private, &provider).map_err(unfit)?;
            Arc::new(rustls::sign::SingleCertAndKey::from(certified))
        }
    };
    let bad = |error: rustls::Error| StartError::ApiCertificate { path: PathBuf::from("api"), detail: error.to_string() };
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(bad)?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

impl Server {
    /// Stops cleanly: agents are notified, open requests end. Everything committed is durable anyway.
    pub fn stop(self) -> BoxFuture<'static, ()> {
        Box::pin(self.end())
    }

    async fn end(self) {
        self.control.shutdown.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        self.control.background.close();
        if tokio::time::timeout(Duration::from_secs(5), self.control.background.wait()).await.is_err() {
            tracing::warn!("background work did not end in time");
        }
        self.control.store.clone().close().await;
    }
}
