//! `gpuaas dev`: a whole cluster in one process, on simulated hosts.
//!
//! Nothing here is a shortcut: the control plane is the one of `gpuaas server` on SQLite, and each simulated host runs the real
//! agent, enrolls with a join token, and connects over the real link with TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gpuaas_agent::config::Config as AgentConfig;
use gpuaas_agent::{Door, EnrollOptions, RunEvent, RunOptions};
use gpuaas_api::dto::JoinTokenCreate;
use gpuaas_api::{Client, ClientOptions};
use gpuaas_contract::task::TaskType;
use gpuaas_control::identity::IdentityConfig;
use gpuaas_control::{ApiTls, Server, ServerConfig, process_roles};
use gpuaas_host::Profile;
use gpuaas_store::StoreConfig;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::context::CommandContext;
use crate::dev_demo;
use crate::error::CliError;
use crate::exit::Exit;
use crate::server::{LogFormat, MAX_FILES, init_log, make_private_dir, start_failure, until_stopped};

/// The simulated hosts, by name.
const HOSTS: [(&str, Profile); 2] = [("sim-h100", Profile::H100), ("sim-mi300x", Profile::Mi300x)];
/// How long the hosts may take to come online before a warning is printed.
const ONLINE_WITHIN: Duration = Duration::from_secs(30);
/// What the policy of a simulated host allows tasks to use. All task types are allowed.
const RULES: &str = "[slices]\npci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"*\"]\n\
     bridges = [\"br-slices\"]\nimage_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\n\
     driver_strategies = [\"cloud-init\", \"preinstalled\"]\nmax_shutdown_seconds = 900\nallow_graphics = true\n\n\
     [bare_metal]\nusernames = [\"*\"]\nallow_sudo = true\n";

/// Options of `gpuaas dev`.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Folder for data, kept between starts [default: ~/.local/share/gpuaas/dev].
    #[arg(long, env = "GPUAAS_DEV_DIR", value_name = "DIR", conflicts_with = "ephemeral")]
    data_dir: Option<PathBuf>,
    /// Use a temporary folder that is removed on exit.
    #[arg(long)]
    ephemeral: bool,
    /// Port of the REST API on 127.0.0.1.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    api_port: u16,
    /// Port that agents connect to on 127.0.0.1.
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    link_port: u16,
    /// Log filter, such as `info`. Logs go to stderr.
    #[arg(long, env = "GPUAAS_LOG", value_name = "FILTER", default_value = "warn")]
    log: String,
}

/// Runs the cluster until SIGINT or SIGTERM.
pub(crate) async fn run(session: &CommandContext, args: DevArgs) -> Result<Exit, CliError> {
    init_log(&args.log, LogFormat::Text)?;
    gpuaas_runtime::file_limit::raise(MAX_FILES);
    // Dropped at the end of this function, after everything that writes to it has stopped.
    let temporary = if args.ephemeral {
        Some(tempfile::tempdir().map_err(|error| CliError::internal(format!("cannot make a temporary folder: {error}")))?)
    } else {
        None
    };
    let data_dir = match (&temporary, args.data_dir) {
        (Some(folder), _) => folder.path().to_owned(),
        (None, Some(folder)) => folder,
        (None, None) => default_data_dir()?,
    };
    make_private_dir(&data_dir)?;
    let data_dir = std::path::absolute(&data_dir).unwrap_or(data_dir);

    let server_dir = data_dir.join("server");
    make_private_dir(&server_dir)?;
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let config = ServerConfig {
        data_dir: server_dir.clone(),
        store: StoreConfig::Sqlite { path: server_dir.join("gpuaas.db") },
        roles: process_roles::Role::ALL.into(),
        api_listen: loopback(args.api_port),
        api_tls: ApiTls::Off,
        link_listen: loopback(args.link_port),
        link_advertise: None,
        ca: Default::default(),
        identity: IdentityConfig { built_in: true, ..IdentityConfig::default() },
        policies: Vec::new(),
        backends: Default::default(),
        driver: std::sync::Arc::new(gpuaas_control::workflow::Embedded),
        webhooks_to_private: true,
        cors_origins: Vec::new(),
        trusted_proxies: Vec::new(),
        limits: None,
        destructive_budget: gpuaas_domain::budget::DEFAULT_PER_HOUR,
    };
    let server = gpuaas_control::start(config).await.map_err(|error| {
        let failure = start_failure(&error);
        if matches!(failure.code.as_str(), "port_in_use" | "store_in_use") { failure.hint(IN_USE_HINT) } else { failure }
    })?;
    let result = with_hosts(session, &server, &data_dir, args.ephemeral).await;
    server.stop().await;
    result.map(|()| Exit::Done)
}

const IN_USE_HINT: &str = "another `gpuaas dev` may be running: stop it, or choose --api-port, --link-port and --data-dir";

fn default_data_dir() -> Result<PathBuf, CliError> {
    let base = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    let none = || CliError::usage("data_dir", "neither HOME nor XDG_DATA_HOME is set").hint("name a folder with --data-dir");
    base.map(|base| base.join("gpuaas/dev")).ok_or_else(none)
}

async fn with_hosts(session: &CommandContext, server: &Server, data_dir: &Path, ephemeral: bool) -> Result<(), CliError> {
    let url = server.api_url.clone().unwrap_or_default();
    let token = std::fs::read_to_string(&server.admin_token_file).map_err(|error| {
        CliError::internal(format!("cannot read {}: {error}", server.admin_token_file.display()))
            .hint("if you deleted it, delete the whole folder and start again")
    })?;
    let mut options = ClientOptions::new(&url);
    options.token = Some(token.trim().to_owned());
    let client = Client::new(options)?;
    let link = server.link_address.map(|address| address.to_string()).unwrap_or_default();

    let shutdown = CancellationToken::new();
    let _shutdown_on_return = shutdown.clone().drop_guard();
    let (online, mut came_online) = mpsc::channel(16);
    let mut agents = JoinSet::new();
    for (name, profile) in HOSTS {
        let config = host_config(&data_dir.join(name), &link, profile)?;
        if !gpuaas_agent::is_enrolled(&config.state_dir) {
            enroll(&client, name, config.clone()).await?;
        }
        let (online, shutdown) = (online.clone(), shutdown.clone());
        let mut options = RunOptions::new(config);
        options.on_event = Box::new(move |event| match event {
            RunEvent::Link(link) if link.connected => drop(online.try_send(name)),
            RunEvent::Link(_) | RunEvent::Ready { .. } | RunEvent::Stopping => {}
        });
        agents.spawn(async move { (name, gpuaas_agent::run(options, shutdown).await) });
    }
    drop(online);

    let mut waiting: Vec<&str> = HOSTS.iter().map(|(name, _)| *name).collect();
    let all_online = async {
        while let Some(name) = came_online.recv().await {
            waiting.retain(|other| *other != name);
            if waiting.is_empty() {
                return;
            }
        }
    };
    tokio::select! {
        waited = tokio::time::timeout(ONLINE_WITHIN, all_online) => {
            if waited.is_err() {
                session.output.warn("not every simulated host is online yet; `--log info` shows why");
            }
        }
        Some(ended) = agents.join_next() => return Err(agent_ended(ended)),
    }
    let hosts = HOSTS.map(|(name, _)| name);
    tokio::select! {
        furnished = dev_demo::furnish(&client, &hosts, data_dir) => {
            if let Err(failure) = furnished {
                let message = format!("the demonstration is not complete and is tried again at the next start: {}", failure.message);
                session.output.warn(&message);
            }
        }
        Some(ended) = agents.join_next() => return Err(agent_ended(ended)),
    }
    session.output.raw(block(&url, token.trim(), data_dir, ephemeral).as_bytes())?;

    let result = tokio::select! {
        stopped = until_stopped() => stopped,
        Some(ended) = agents.join_next() => Err(agent_ended(ended)),
    };
    shutdown.cancel();
    while agents.join_next().await.is_some() {}
    result
}

fn host_config(folder: &Path, link: &str, profile: Profile) -> Result<AgentConfig, CliError> {
    make_private_dir(folder)?;
    let policy_file = folder.join("policy.toml");
    if !policy_file.exists() {
        let allowed = TaskType::list(TaskType::ALL);
        let policy = format!("# What the control plane may ask of this simulated host.\nallowed_tasks = {allowed}\n\n{RULES}");
        gpuaas_control::pki::write_private(&policy_file, policy.as_bytes())
            .map_err(|error| CliError::internal(gpuaas_control::link::chain(&error)))?;
    }
    Ok(AgentConfig {
        server: vec![link.to_owned()],
        state_dir: folder.join("state"),
        policy_file,
        metrics_interval: Duration::from_secs(5),
        // Keeps a laptop from reserving 64 MiB for each simulated journal.
        journal_bytes: 16 * 1024 * 1024,
        simulate: Some(profile),
        ..AgentConfig::default()
    })
}

/// Enrolls a host like any other: with a join token from the API, over the real link.
async fn enroll(client: &Client, name: &str, config: AgentConfig) -> Result<(), CliError> {
    let wanted = JoinTokenCreate { note: format!("simulated host {name}"), ..JoinTokenCreate::default() };
    let token = client.join_token_create(&wanted, None).await?.token;
    let options = EnrollOptions { config, door: Door::Token(token), replace: false, simulated_hostname: Some(name.to_owned()) };
    let enrolled = gpuaas_agent::enroll(options, |_| {}, CancellationToken::new()).await;
    enrolled.map(|_| ()).map_err(|error| agent_failure(name, &error))
}

fn agent_ended(ended: Result<(&'static str, Result<(), gpuaas_agent::RunError>), tokio::task::JoinError>) -> CliError {
    match ended {
        Ok((name, Err(error))) => agent_failure(name, &error),
        Ok((name, Ok(()))) => CliError::internal(format!("the simulated host {name} stopped by itself")),
        Err(error) => CliError::internal(format!("a simulated host ended: {error}")),
    }
}

fn agent_failure(name: &str, error: &dyn std::error::Error) -> CliError {
    CliError::internal(format!("the simulated host {name}: {}", gpuaas_control::link::chain(error)))
        .hint("delete the data folder to start afresh, or name another one with --data-dir")
}

/// Returns the introduction that a newcomer sees.
fn block(url: &str, token: &str, data_dir: &Path, ephemeral: bool) -> String {
    let program = program_name();
    let kept = if ephemeral { "removed at the end".to_owned() } else { data_dir.display().to_string() };
    let hosts = HOSTS.map(|(name, _)| name).join(", ");
    let project = dev_demo::FULL_NAME;
    format!(
        "\n\
         gpuaas is running.\n\
         \n\
         \x20 API    {url}\n\
         \x20 Token  {token}\n\
         \x20 Hosts  {hosts} (simulated: 8 GPUs each, no real hardware is touched)\n\
         \x20 Data   {kept}\n\
         \x20 Tenant {project} (`project = \"{project}\"` in the config file makes it the default)\n\
         \n\
         Try this in another terminal:\n\
         \n\
         \x20 export GPUAAS_URL={url} GPUAAS_TOKEN={token} GPUAAS_PROJECT={project}\n\
         \x20 {program} catalog\n\
         \x20 {program} alloc create first --sku h100-1x --image ubuntu\n\
         \x20 {program} alloc ls\n\
         \x20 {program} alloc release first --yes\n\
         \n\
         And what operators see:\n\
         \n\
         \x20 {program} capacity\n\
         \x20 {program} node ls\n\
         \x20 {program} task run sim-h100 diag.health_probe --wait\n\
         \x20 {program} task run sim-mi300x diag.ping --param message=hello --wait\n\
         \n\
         Ctrl-C stops it.\n"
    )
}

/// Returns how the user can call this program from the current folder.
fn program_name() -> String {
    let Ok(path) = std::env::current_exe() else { return "gpuaas".to_owned() };
    let here = std::env::current_dir().unwrap_or_default();
    let shown = path.strip_prefix(&here).map_or_else(|_| path.clone(), |relative| Path::new(".").join(relative));
    shown.display().to_string()
}
