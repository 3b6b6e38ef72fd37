//! `gpuaas server`: runs the control plane.

use std::io::{ErrorKind, IsTerminal as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gpuaas_control::CorsOrigin;
use gpuaas_control::identity::{ExternalIssuer, IdentityConfig};
use gpuaas_control::listener::TrustedProxy;
use gpuaas_control::{ApiTls, Server, ServerConfig, StartError, process_roles};
use gpuaas_store::{StoreConfig, StoreError};
use tracing_subscriber::EnvFilter;

use crate::backend_args::BackendArgs;
use crate::ca_args::CaArgs;
use crate::error::CliError;
use crate::exit::Exit;

/// Options of `gpuaas server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Folder for keys, the admin token and, unless --store says otherwise, the database.
    #[arg(long, env = "GPUAAS_DATA_DIR", value_name = "DIR", default_value = "/var/lib/gpuaas/server")]
    data_dir: PathBuf,
    /// Database: `sqlite:PATH` or `postgres://user@host/name` [default: sqlite in the data folder].
    #[arg(long, env = "GPUAAS_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// Maximum number of connections to PostgreSQL.
    #[arg(long, value_name = "N", default_value_t = 16)]
    store_connections: u32,
    /// Roles of this process: `all`, or some of `api`, `link`, `provisioning`, `outbox`, `notify`, `webhook`, separated by commas.
    #[arg(long, value_name = "ROLES", default_value = "all")]
    roles: String,
    /// Address of the REST listener. Plain HTTP is only allowed on a loopback address.
    #[arg(long, env = "GPUAAS_API_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    api_listen: SocketAddr,
    /// TLS of REST: off, or a certificate of the cluster's CA (see --ca; clients trust `DATA/keys/ca.crt`, or step-ca's root).
    #[arg(long, value_enum, default_value_t)]
    api_tls: TlsChoice,
    /// Name or address of this server in the certificate of --api-tls built-in; repeatable.
    #[arg(long = "api-name", value_name = "NAME")]
    api_names: Vec<String>,
    /// PEM certificate chain for REST, instead of one of the cluster's CA.
    #[arg(long, value_name = "FILE", requires = "api_key")]
    api_cert: Option<PathBuf>,
    /// PEM key for --api-cert.
    #[arg(long, value_name = "FILE", requires = "api_cert")]
    api_key: Option<PathBuf>,
    /// Proxy whose X-Forwarded-For header is trusted: an address or a network such as `192.0.2.0/24`; repeatable.
    #[arg(long = "trusted-proxy", env = "GPUAAS_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',')]
    trusted_proxies: Vec<TrustedProxy>,
    /// Origin whose pages can call REST from a browser, such as `https://portal.example.com`; repeatable.
    #[arg(long = "cors-origin", env = "GPUAAS_CORS_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origins: Vec<CorsOrigin>,
    /// Address of the listener for agents (always TLS 1.3 with client certificates).
    #[arg(long, env = "GPUAAS_LINK_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    link_listen: SocketAddr,
    /// Address that agents connect to, `host:port` [default: that of --link-listen].
    #[arg(long, env = "GPUAAS_LINK_ADVERTISE", value_name = "ADDRESS")]
    link_advertise: Option<String>,
    #[command(flatten)]
    ca: CaArgs,
    /// Public URL of REST, such as `https://gpuaas.example.com`, which is also the name of the built-in issuer [default: --api-listen].
    #[arg(long, env = "GPUAAS_PUBLIC_URL", value_name = "URL")]
    public_url: Option<String>,
    /// External OIDC issuer whose tokens are accepted, and their audience: `https://issuer.example.com=AUDIENCE`; repeatable.
    #[arg(long = "issuer", value_name = "URL=AUDIENCE")]
    issuers: Vec<String>,
    /// PEM file with the certificate authorities for --issuer [default: the system's].
    #[arg(long, value_name = "FILE")]
    issuer_ca: Option<PathBuf>,
    /// Disable the built-in issuer: nobody can sign in with a password of this server.
    #[arg(long)]
    no_built_in_issuer: bool,
    #[command(flatten)]
    backends: BackendArgs,
    /// Allow webhooks to private addresses and over plain HTTP, for sites whose tenants are in the same network.
    #[arg(long)]
    webhooks_to_private: bool,
    /// Maximum number of releases, cleanups and retirements of nodes per hour, such as `600/h`. One organization can use half of it,
    /// operators a quarter; `gpuaas cluster budget lift` allows more for an hour.
    #[arg(long, value_name = "COUNT/h", default_value = "3600/h", value_parser = per_hour)]
    destructive_budget: u32,
    /// Folder with Cedar policies (`*.cedar`) that forbid more than the built-in ones.
    #[arg(long, env = "GPUAAS_POLICY_DIR", value_name = "DIR")]
    policy_dir: Option<PathBuf>,
    /// Format of the log on stderr.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// Log filter, such as `info` or `gpuaas_control=debug`.
    #[arg(long, env = "GPUAAS_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

/// TLS of the REST listener.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum TlsChoice {
    /// Plain HTTP, on a loopback address only.
    #[default]
    Off,
    /// A certificate of the cluster's own CA.
    BuiltIn,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The limit of open files is raised to what the system allows, but not above this: more connections are not accepted anyway.
pub(crate) const MAX_FILES: u64 = 65_536;

/// Runs the server until SIGINT or SIGTERM.
pub(crate) async fn run(args: ServerArgs) -> Result<Exit, CliError> {
    init_log(&args.log, args.log_format)?;
    let files = gpuaas_runtime::file_limit::raise(MAX_FILES);
    tracing::info!(files, "file limit");
    let server = gpuaas_control::start(config(args).await?).await.map_err(|error| start_failure(&error))?;
    announce(&server);
    until_stopped().await?;
    tracing::info!("stopping");
    server.stop().await;
    tracing::info!("stopped");
    Ok(Exit::Done)
}

/// Parses `URL=AUDIENCE`.
fn issuer(text: &str) -> Result<ExternalIssuer, CliError> {
    let bad =
        || CliError::usage("issuer_invalid", format!("`{text}` is not URL=AUDIENCE, as in https://issuer.example.com=gpuaas"));
    let (issuer, audience) =
        text.rsplit_once('=').filter(|(issuer, audience)| !issuer.is_empty() && !audience.is_empty()).ok_or_else(bad)?;
    Ok(ExternalIssuer { issuer: issuer.to_owned(), audience: audience.to_owned() })
}

/// Returns the Cedar files of a folder, by name. They are validated when the server starts.
fn policies(folder: &Path) -> Result<Vec<(String, String)>, CliError> {
    let bad = |path: &Path, error: &std::io::Error| {
        CliError::usage("policies_unreadable", format!("cannot read {}: {error}", path.display()))
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| bad(folder, &error))? {
        let path = entry.map_err(|error| bad(folder, &error))?.path();
        if path.extension().is_some_and(|extension| extension == "cedar") {
            let text = std::fs::read_to_string(&path).map_err(|error| bad(&path, &error))?;
            files.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text));
        }
    }
    files.sort();
    Ok(files)
}

async fn config(args: ServerArgs) -> Result<ServerConfig, CliError> {
    let driver = args.backends.driver().await?;
    let store = match &args.store {
        None => StoreConfig::Sqlite { path: args.data_dir.join("gpuaas.db") },
        Some(url) => match StoreConfig::parse(url).map_err(|error| CliError::usage("store_invalid", error.to_string()))? {
            StoreConfig::Postgres { url, .. } => StoreConfig::Postgres { url, max_connections: args.store_connections },
            sqlite @ StoreConfig::Sqlite { .. } => sqlite,
        },
    };
    let roles = process_roles::parse(&args.roles).map_err(|error| CliError::usage("roles_invalid", error.to_string()))?;
    let api_tls = match (args.api_cert, args.api_key, args.api_tls) {
        (Some(certificate), Some(key), _) => ApiTls::Files { certificate, key },
        (_, _, TlsChoice::BuiltIn) => {
            let mut names = args.api_names;
            names.push("localhost".to_owned());
            names.push(args.api_listen.ip().to_string());
            ApiTls::BuiltIn(names)
        }
        (_, _, TlsChoice::Off) => ApiTls::Off,
    };
    make_private_dir(&args.data_dir)?;
    Ok(ServerConfig {
        data_dir: args.data_dir,
        store,
        roles,
        api_listen: args.api_listen,
        api_tls,
        link_listen: args.link_listen,
        link_advertise: args.link_advertise,
        ca: args.ca.config()?,
        identity: IdentityConfig {
            public_url: args.public_url,
            built_in: !args.no_built_in_issuer,
            issuers: args.issuers.iter().map(|text| issuer(text)).collect::<Result<_, _>>()?,
            ca_file: args.issuer_ca,
        },
        backends: args.backends.backends(),
        driver,
        webhooks_to_private: args.webhooks_to_private,
        cors_origins: args.cors_origins,
        trusted_proxies: args.trusted_proxies,
        limits: None,
        destructive_budget: args.destructive_budget,
        policies: match &args.policy_dir {
            Some(folder) => policies(folder)?,
            None => Vec::new(),
        },
    })
}

/// Creates a folder that only its owner can enter.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), CliError> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        CliError::new(Exit::Internal, "data_dir", format!("cannot create the folder {}: {error}", path.display()))
            .hint("choose another one with --data-dir, or run as a user that may write there")
    })
}

/// Starts logging to stderr.
pub(crate) fn init_log(filter: &str, format: LogFormat) -> Result<(), CliError> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| CliError::usage("log_filter_invalid", format!("--log: {error}")).hint("for example: --log info"))?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// Returns the exit status, the code and the advice for an address that cannot be listened on.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the standard library: for every other kind there is no advice")]
fn bind_failure(kind: ErrorKind, flag: &str) -> (Exit, &'static str, Option<String>) {
    match kind {
        ErrorKind::AddrInUse => (
            Exit::Refused,
            "port_in_use",
            Some(format!("stop what listens there (`ss -ltnp` names it), or choose another address with {flag}")),
        ),
        ErrorKind::PermissionDenied => (
            Exit::Unauthorized,
            "port_forbidden",
            Some(format!("ports below 1024 need CAP_NET_BIND_SERVICE; choose another with {flag}")),
        ),
        ErrorKind::AddrNotAvailable => {
            (Exit::Usage, "address_unknown", Some(format!("no interface of this machine has this address; correct {flag}")))
        }
        _ => (Exit::Internal, "server_start", None),
    }
}

/// Returns a start error with all its causes, and with advice for the common ones.
pub(crate) fn start_failure(error: &StartError) -> CliError {
    let (exit, code, hint) = match error {
        StartError::Bind { source, flag, .. } => bind_failure(source.kind(), flag),
        StartError::Store(StoreError::InUse { .. }) => (Exit::Refused, "store_in_use", None),
        StartError::Store(error) if error.is_unreachable() => (
            Exit::Unreachable,
            "store_unreachable",
            Some("start the database, and check the address in --store or GPUAAS_STORE".to_owned()),
        ),
        StartError::Store(_) => (Exit::Internal, "store_unusable", None),
        StartError::KeysMissing(_) => (Exit::Refused, "keys_missing", None),
        StartError::PlainHttp(_) => (Exit::Usage, "plain_http_refused", None),
        StartError::ApiCertificate { .. } => (Exit::Usage, "api_certificate_invalid", None),
        StartError::Policies(_) => (Exit::Usage, "policies_invalid", None),
        StartError::Backends(_) => (Exit::Unreachable, "backend_unusable", None),
        StartError::Ca(_) | StartError::Keys(_) | StartError::File(_) | StartError::Identity(_) | StartError::First(_) => {
            (Exit::Internal, "server_start", None)
        }
    };
    let mut failure = CliError::new(exit, code, error.to_string());
    failure.cause = std::error::Error::source(error).map(gpuaas_control::link::chain);
    failure.hint = hint;
    failure
}

fn announce(server: &Server) {
    if let Some(url) = &server.api_url {
        tracing::info!(%url, token_file = %server.admin_token_file.display(), "REST ready");
    }
    if let Some(address) = server.link_address {
        tracing::info!(%address, ca_sha256 = %server.ca_pin, "link ready");
    }
}

/// Waits for SIGINT or SIGTERM.
pub(crate) async fn until_stopped() -> Result<(), CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let no_signals = |error| CliError::internal(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}
/// Parses `600/h` or `600`.
fn per_hour(text: &str) -> Result<u32, String> {
    let count = text.strip_suffix("/h").unwrap_or(text);
    count.parse().map_err(|_| "expected a number per hour, such as 600/h".to_owned())
}
