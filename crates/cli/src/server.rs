//! `gpuaas server`: the control plane.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gpuaas_control::{ApiTls, Server, ServerConfig, StartError, roles};
use gpuaas_store::StoreConfig;
use tracing_subscriber::EnvFilter;

use crate::exit::Exit;
use crate::failure::Failure;

/// Options of `gpuaas server`.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Folder for keys, the admin token and, unless --store says otherwise, the database.
    #[arg(long, env = "GPUAAS_DATA_DIR", value_name = "DIR", default_value = "/var/lib/gpuaas/server")]
    data_dir: PathBuf,
    /// Database: `sqlite:PATH` or `postgres://user@host/name` [default: sqlite in the data folder].
    #[arg(long, env = "GPUAAS_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// Most connections to PostgreSQL.
    #[arg(long, value_name = "N", default_value_t = 16)]
    store_connections: u32,
    /// What this process does: `all`, or some of `api`, `link`, separated by commas.
    #[arg(long, value_name = "ROLES", default_value = "all")]
    roles: String,
    /// Where REST listens. Plain HTTP is only allowed on a loopback address.
    #[arg(long, env = "GPUAAS_API_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    api_listen: SocketAddr,
    /// How REST is protected: plain, or with a certificate of the built-in CA (trust `DATA/keys/ca.crt`).
    #[arg(long, value_enum, default_value_t)]
    api_tls: TlsChoice,
    /// A name or address that REST is reached by, for the built-in certificate; repeatable.
    #[arg(long = "api-name", value_name = "NAME")]
    api_names: Vec<String>,
    /// PEM chain for REST, instead of the built-in CA.
    #[arg(long, value_name = "FILE", requires = "api_key")]
    api_cert: Option<PathBuf>,
    /// PEM key for --api-cert.
    #[arg(long, value_name = "FILE", requires = "api_cert")]
    api_key: Option<PathBuf>,
    /// Where agents connect (TLS 1.3 with client certificates, always).
    #[arg(long, env = "GPUAAS_LINK_LISTEN", value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    link_listen: SocketAddr,
    /// What hosts are told to connect to, `host:port` [default: the address above].
    #[arg(long, env = "GPUAAS_LINK_ADVERTISE", value_name = "ADDRESS")]
    link_advertise: Option<String>,
    /// Form of the log on stderr.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
    /// What to log, such as `info` or `gpuaas_control=debug`.
    #[arg(long, env = "GPUAAS_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
}

/// How REST is protected.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum TlsChoice {
    /// Plain HTTP, on a loopback address only.
    #[default]
    Off,
    /// A certificate of the built-in CA.
    BuiltIn,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Runs until SIGINT or SIGTERM.
pub(crate) async fn run(args: ServerArgs) -> Result<Exit, Failure> {
    init_log(&args.log, args.log_format)?;
    let server = gpuaas_control::start(config(args)?).await.map_err(|error| start_failure(&error))?;
    announce(&server);
    until_stopped().await?;
    tracing::info!("stopping");
    server.stop().await;
    tracing::info!("stopped");
    Ok(Exit::Done)
}

fn config(args: ServerArgs) -> Result<ServerConfig, Failure> {
    let store = match &args.store {
        None => StoreConfig::Sqlite { path: args.data_dir.join("gpuaas.db") },
        Some(url) => match StoreConfig::parse(url).map_err(|error| Failure::usage("store_invalid", error.to_string()))? {
            StoreConfig::Postgres { url, .. } => StoreConfig::Postgres { url, max_connections: args.store_connections },
            sqlite @ StoreConfig::Sqlite { .. } => sqlite,
        },
    };
    let roles = roles::parse(&args.roles).map_err(|error| Failure::usage("roles_invalid", error.to_string()))?;
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
    })
}

/// Makes a folder that only its owner can enter.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        Failure::new(Exit::Internal, "data_dir", format!("cannot create the folder {}: {error}", path.display()))
            .hint("choose another one with --data-dir, or run as a user that may write there")
    })
}

/// Starts logging to stderr.
pub(crate) fn init_log(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage("log_filter_invalid", format!("--log: {error}")).hint("for example: --log info"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// A start error with all its causes.
pub(crate) fn start_failure(error: &StartError) -> Failure {
    let mut failure = Failure::new(Exit::Internal, "server_start", error.to_string());
    failure.cause = std::error::Error::source(error).map(gpuaas_control::link::chain);
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

/// Resolves at SIGINT or SIGTERM.
pub(crate) async fn until_stopped() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let no_signals = |error| Failure::internal(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}
