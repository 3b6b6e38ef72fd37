//! The `gpuaas-agent` program.

mod setup_command;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use gpuaas_agent::config::{self, Config, Key, Loaded};
use gpuaas_agent::doctor::{self, Verdict};
use gpuaas_agent::error_chain::chain;
use gpuaas_agent::{Door, EnrollOptions, EnrollProgress, RunEvent, RunOptions, device, service, status};
use gpuaas_host::systemd;
use tokio_util::sync::CancellationToken;

/// Exit code after an error.
const FAILED: u8 = 1;
/// Exit code when `status` finds no running agent.
const NOT_RUNNING: u8 = 3;

/// The gpuaas host agent.
#[derive(Parser)]
#[command(
    name = "gpuaas-agent",
    version,
    about = "The gpuaas host agent: runs signed tasks that this host's owner allows, and answers with signed receipts",
    after_help = "Exit codes:\n  0  done\n  1  failed; the message says what to do\n  2  wrong usage\n  3  status: the agent is not running\n  4  setup: something is left that only you can do; the plan says what"
)]
struct Cli {
    /// Configuration file.
    #[arg(long, global = true, env = config::ENV_CONFIG, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log as JSON lines.
    #[arg(long, global = true)]
    json_logs: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Enroll this host, with a join token or with an operator's approval.
    Enroll {
        /// Address of the control plane's link listener, host:port; separate several with commas.
        #[arg(long, value_name = "HOST:PORT")]
        server: Option<String>,
        /// Join token, as `gpuaas node token create` prints it. Prefer GPUAAS_JOIN_TOKEN to the command line.
        #[arg(long, env = "GPUAAS_JOIN_TOKEN", hide_env_values = true, conflicts_with = "email")]
        token: Option<String>,
        /// Request the approval of an operator, who sees this e-mail address.
        #[arg(long, requires = "ca_sha256")]
        email: Option<String>,
        /// SHA-256 fingerprint of the control plane's CA, in hex (with --email).
        #[arg(long, value_name = "HEX")]
        ca_sha256: Option<String>,
        /// Enroll again even if this host is already enrolled. Its old identity ends.
        #[arg(long)]
        replace: bool,
    },
    /// Run the agent in the foreground.
    Run,
    /// Install the agent as a systemd service.
    Install {
        /// Write the files under this folder, and do not use systemd.
        #[arg(long, default_value = "/")]
        root: PathBuf,
    },
    /// Stop and remove the service.
    Uninstall {
        /// Folder that was given to `install`.
        #[arg(long, default_value = "/")]
        root: PathBuf,
        /// Also remove configuration, policy and identity.
        #[arg(long)]
        purge: bool,
    },
    /// Start the service.
    Start,
    /// Stop the service; running tasks get time to finish.
    Stop,
    /// Restart the service.
    Restart,
    /// Show what the agent is doing.
    Status,
    /// Show or change the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check for problems and show how to fix them.
    Doctor,
    /// List this host's devices, and bind, give back or reset one manually.
    Device {
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Show which key of the host policy applies to each parameter of each task.
    PolicyKeys,
    /// Recover from a journal that prevents the agent from starting.
    Journal {
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Prepare this host for guests, or undo the preparation.
    Setup {
        #[command(subcommand)]
        command: SetupCommand,
    },
    /// Show the possible slots of this host, and what blocks them, as JSON. Changes nothing.
    Topology,
}

#[derive(Subcommand)]
enum SetupCommand {
    /// Create everything that guests need: bridge, addresses, DHCP, packet filter, modules, host policy.
    ///
    /// Shows a plan first and asks before anything is changed. A second run finds everything done. The host's own network stays
    /// as it is.
    Slices(setup_command::Arguments),
}

#[derive(Subcommand)]
enum DeviceCommand {
    /// List GPUs, fabric functions and drives with their drivers and IOMMU groups.
    Ls,
    /// Bind a function to vfio-pci, so that it can be passed through to guests.
    Bind {
        /// PCI address of the function, such as 0000:17:00.0.
        address: String,
    },
    /// Give a function back to the host's own driver.
    GiveBack {
        /// PCI address of the function.
        address: String,
    },
    /// Reset a function.
    Reset {
        /// PCI address of the function.
        address: String,
    },
    /// Compare the host with its leases once and repair differences; a running agent does this automatically.
    Reconcile,
}

#[derive(Subcommand)]
enum JournalCommand {
    /// Continue with a journal that is missing, of another identity or older than before. Tasks created before now are not run.
    AcceptLoss,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Show the effective values and their sources.
    Show,
    /// Set one value in the configuration file.
    Set {
        /// Key to set.
        key: String,
        /// New value.
        value: String,
    },
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // This process has the node's keys and secrets of guests.
    if let Err(error) = gpuaas_runtime::process::forbid_memory_dumps() {
        return complain(&error);
    }
    // The first provider wins; there is no other in this program.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&error),
    };
    let code = match runtime.block_on(dispatch(cli)) {
        Ok(code) => code,
        Err(error) => complain(error.as_ref()),
    };
    // A host call that hangs in the kernel must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

#[allow(clippy::print_stderr)]
fn complain(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {}", chain(error));
    ExitCode::from(FAILED)
}

#[allow(clippy::print_stdout, reason = "the program's answers go to standard output")]
fn say(line: impl std::fmt::Display) {
    println!("{line}");
}

async fn dispatch(cli: Cli) -> Result<ExitCode, BoxError> {
    let path = cli.config.clone().unwrap_or_else(|| PathBuf::from(config::DEFAULT_PATH));
    let explicit = cli.config.is_some();
    let load = || Config::load(&path, explicit, config::environment());
    match cli.command {
        Command::Enroll { server, token, email, ca_sha256, replace } => {
            let loaded = load()?;
            start_logging("warn", cli.json_logs);
            let door = match (token, email, ca_sha256) {
                (Some(token), _, _) => Door::Token(token),
                (None, Some(email), Some(ca_sha256)) => Door::Approval { email, ca_sha256 },
                (None, _, _) => return Err("give a join token (--token), or --email with --ca-sha256".into()),
            };
            enroll(loaded.config, server, door, replace).await
        }
        Command::Run => {
            let loaded = load()?;
            start_logging(&loaded.config.log_level, cli.json_logs);
            // As in the unit that `install` writes, however the agent is started.
            gpuaas_runtime::file_limit::raise(65_536);
            run(loaded.config).await
        }
        Command::Install { root } => {
            let binary = std::env::current_exe()?;
            print_all(service::install(&root, &binary).await?)
        }
        Command::Uninstall { root, purge } => print_all(service::uninstall(&root, purge).await?),
        Command::Start => Ok(systemd::start(service::UNIT).await.map(|()| ExitCode::SUCCESS)?),
        Command::Stop => Ok(systemd::stop(service::UNIT).await.map(|()| ExitCode::SUCCESS)?),
        Command::Restart => Ok(systemd::restart(service::UNIT).await.map(|()| ExitCode::SUCCESS)?),
        Command::Status => show_status(&load()?.config).await,
        Command::Config { command: ConfigCommand::Show } => {
            show_config(&load()?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Config { command: ConfigCommand::Set { key, value } } => set_config(&path, &key, &value),
        Command::Doctor => {
            let findings = doctor::examine(load()).await;
            for finding in &findings {
                say(format_args!("{:<4}  {:<14}  {}", finding.verdict.as_str(), finding.check, finding.message));
            }
            let failed = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
            Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
        }
        Command::Device { command } => {
            let config = load()?.config;
            start_logging("warn", cli.json_logs);
            let lines = match command {
                DeviceCommand::Ls => device::list(&config)?,
                DeviceCommand::Bind { address } => vec![device::act(&config, &address, device::Action::Bind).await?],
                DeviceCommand::GiveBack { address } => vec![device::act(&config, &address, device::Action::GiveBack).await?],
                DeviceCommand::Reset { address } => vec![device::act(&config, &address, device::Action::Reset).await?],
                DeviceCommand::Reconcile => device::reconcile(&config).await?,
            };
            print_all(lines)
        }
        Command::PolicyKeys => print_all(gpuaas_agent::policy::parameter_lines()),
        Command::Journal { command: JournalCommand::AcceptLoss } => {
            let config = load()?.config;
            start_logging("warn", cli.json_logs);
            print_all(gpuaas_agent::accept_journal_loss(&config)?)
        }
        Command::Setup { command: SetupCommand::Slices(arguments) } => {
            let config = load()?.config;
            start_logging("warn", cli.json_logs);
            setup_command::run(&config, arguments).await
        }
        Command::Topology => {
            say(serde_json::to_string_pretty(&device::topology(&load()?.config).await?)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_all(steps: Vec<String>) -> Result<ExitCode, BoxError> {
    steps.iter().for_each(say);
    Ok(ExitCode::SUCCESS)
}

fn start_logging(level: &str, json: bool) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        // Libraries log only warnings and errors.
        tracing_subscriber::EnvFilter::new(format!("warn,gpuaas_agent={level},gpuaas_host={level}"))
    });
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    if json { logs.json().flatten_event(true).init() } else { logs.init() }
}

/// Returns a token that Ctrl-C and the service manager fire.
fn shutdown_on_signal() -> Result<CancellationToken, BoxError> {
    let token = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let fired = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        fired.cancel();
    });
    Ok(token)
}

async fn enroll(mut config: Config, server: Option<String>, door: Door, replace: bool) -> Result<ExitCode, BoxError> {
    if let Some(server) = server {
        config.set(Key::Server, &server)?;
    }
    let options = EnrollOptions { config, door, replace, simulated_hostname: None };
    let progress = |progress| match progress {
        EnrollProgress::Waiting { enrollment_id, expires_at, resumed, receipt_key } => {
            let again = if resumed { "still " } else { "" };
            say(format_args!("{again}waiting for an operator: gpuaas node approve {enrollment_id} (until {expires_at})"));
            say(format_args!("this host's receipt key is {receipt_key}; the operator compares it before they approve"));
        }
        EnrollProgress::Unreachable(reason) => say(format_args!("still waiting; {reason}")),
    };
    let enrolled = gpuaas_agent::enroll(options, progress, shutdown_on_signal()?).await?;
    say(format_args!("enrolled as {} in {} (epoch {})", enrolled.node_id, enrolled.cluster_id, enrolled.node_epoch));
    Ok(ExitCode::SUCCESS)
}

async fn run(config: Config) -> Result<ExitCode, BoxError> {
    let shutdown = shutdown_on_signal()?;
    let mut options = RunOptions::new(config);
    options.on_event = Box::new(|event| match event {
        RunEvent::Ready { node_id } => {
            notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&format!("node {node_id}"))]);
        }
        RunEvent::Link(link) if link.connected => {
            notify(&[sd_notify::NotifyState::Status(&format!("connected by {}", link.transport))]);
        }
        RunEvent::Link(link) => notify(&[sd_notify::NotifyState::Status(&format!("not connected: {}", link.last_error))]),
        RunEvent::Stopping => notify(&[sd_notify::NotifyState::Stopping]),
    });
    if let Some(watchdog) = sd_notify::watchdog_enabled() {
        // On the same runtime that serves tasks: if it hangs, systemd restarts the agent.
        tokio::spawn(async move {
            loop {
                notify(&[sd_notify::NotifyState::Watchdog]);
                tokio::time::sleep(watchdog / 3).await;
            }
        });
    }
    gpuaas_agent::run(options, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

/// Notifies systemd. Outside systemd this does nothing.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

async fn show_status(config: &Config) -> Result<ExitCode, BoxError> {
    if systemd::is_running() {
        let unit = systemd::status(service::UNIT).await?;
        say(format_args!(
            "service    {} ({})",
            unit.active,
            if unit.enabled.is_empty() { "not installed" } else { &unit.enabled }
        ));
    }
    let Some(status) = status::read(&config.state_dir).filter(|status| doctor::is_alive(status.pid)) else {
        say(format_args!("agent      not running (state folder {})", config.state_dir.display()));
        return Ok(ExitCode::from(NOT_RUNNING));
    };
    let simulated = if status.simulated { " (simulated host)" } else { "" };
    say(format_args!("agent      {} as process {} since {}{simulated}", status.version, status.pid, status.started_at));
    say(format_args!("node       {} epoch {} in {}", status.node_id, status.node_epoch, status.cluster_id));
    if status.link.connected {
        say(format_args!("link       {} since {} ({})", status.link.transport, status.link.since, status.link.session_id));
        if !status.link.server_version.is_empty() {
            say(format_args!("server     {}", status.link.server_version));
        }
    } else {
        say(format_args!("link       down since {}: {}", status.link.since, status.link.last_error));
    }
    say(format_args!("tasks      {} running, {} receipts not confirmed", status.running, status.unreported));
    say(format_args!("certificate until {}", status.certificate_until));
    for notice in &status.notices {
        say(format_args!("notice     {notice}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn show_config(loaded: &Loaded) {
    let file = if loaded.found { "" } else { " (not there)" };
    say(format_args!("# {}{file}", loaded.path.display()));
    for key in Key::ALL {
        say(format_args!("{:<20} = {:<40} # {}", key.name(), loaded.config.get(key), loaded.source(key).as_str()));
    }
}

fn set_config(path: &Path, key: &str, value: &str) -> Result<ExitCode, BoxError> {
    let key = Key::parse(key)?;
    config::set_in_file(path, key, value)?;
    say(format_args!("{} = {value} in {}; restart the agent to use it", key.name(), path.display()));
    Ok(ExitCode::SUCCESS)
}
