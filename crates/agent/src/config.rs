//! The agent's configuration: a TOML file, overridden by `GPUAAS_AGENT_<KEY>` variables.
//!
//! Every value goes through [`Config::set`], whether it comes from the file, from the environment or from `config set`, so that a
//! key means the same everywhere. Unknown keys are errors.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_host::Profile;
use gpuaas_host::guests::Layout;
use gpuaas_host::private_file::{self, PrivateFileError};

/// The default path of the file.
pub const DEFAULT_PATH: &str = "/etc/gpuaas-agent/config.toml";
/// The prefix of overriding variables.
pub const ENV_PREFIX: &str = "GPUAAS_AGENT_";
/// The variable that names another configuration file.
pub const ENV_CONFIG: &str = "GPUAAS_AGENT_CONFIG";
/// Maximum size of a configuration file, in bytes.
const MAX_FILE: u64 = 256 * 1024;

/// How the agent connects to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// The stream, and long-poll if streams do not work.
    Auto,
    /// Only the stream.
    Stream,
    /// Only long-poll.
    Poll,
}

/// The effective values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Addresses of the control plane's link listener, `host:port`. If empty, the address from the enrollment is used.
    pub server: Vec<String>,
    /// The folder of identity, journal and logs.
    pub state_dir: PathBuf,
    /// The host owner's policy.
    pub policy_file: PathBuf,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Time between metric samples.
    pub metrics_interval: Duration,
    /// Longest wait for a connection or an answer.
    pub request_timeout: Duration,
    /// Longest run of a task, whatever its deadline.
    pub task_timeout: Duration,
    /// How long running tasks may continue when the agent is stopped.
    pub shutdown_timeout: Duration,
    /// How long a cancelled task may continue to write its log.
    pub log_drain_timeout: Duration,
    /// How to connect to the control plane.
    pub transport: TransportChoice,
    /// Maximum number of tasks that run at the same time.
    pub max_tasks: u32,
    /// Maximum size of task logs kept on disk while the control plane cannot be reached, in bytes.
    pub log_buffer_bytes: u64,
    /// Size of the journal, allocated once.
    pub journal_bytes: u64,
    /// The log level: `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: String,
    /// A folder per guest: seed, keys, console.
    pub slices_dir: PathBuf,
    /// The folder of guest images, by digest.
    pub images_dir: PathBuf,
    /// Folders with images of the host's owner.
    pub image_folders: Vec<PathBuf>,
    /// Size limit of stored images.
    pub image_cache_bytes: u64,
    /// The folder of dnsmasq's `--dhcp-hostsdir`.
    pub dhcp_hosts_dir: PathBuf,
    /// The file with dnsmasq's process id.
    pub dnsmasq_pid_file: PathBuf,
    /// Size limit of one guest's console.
    pub console_bytes: u64,
    /// Whether guests' memory comes from huge pages.
    pub huge_pages: bool,
    /// The address for the metrics of guests: the host's address in the guests' network.
    pub guest_telemetry_listen: Option<SocketAddr>,
    /// The simulated host to use instead of this machine.
    pub simulate: Option<Profile>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: Vec::new(),
            state_dir: PathBuf::from("/var/lib/gpuaas/agent"),
            policy_file: PathBuf::from("/etc/gpuaas-agent/policy.toml"),
            heartbeat_interval: Duration::from_secs(15),
            metrics_interval: Duration::from_secs(15),
            request_timeout: Duration::from_secs(10),
            task_timeout: Duration::from_secs(3600),
            shutdown_timeout: Duration::from_secs(20),
            log_drain_timeout: Duration::from_secs(5),
            transport: TransportChoice::Auto,
            max_tasks: 4,
            log_buffer_bytes: 64 * 1024 * 1024,
            journal_bytes: 64 * 1024 * 1024,
            log_level: "info".to_owned(),
            slices_dir: PathBuf::from("/var/lib/gpuaas/slices"),
            images_dir: PathBuf::from("/var/lib/gpuaas/slice-images"),
            image_folders: vec![PathBuf::from("/var/lib/libvirt/images")],
            image_cache_bytes: 200 * 1024 * 1024 * 1024,
            dhcp_hosts_dir: PathBuf::from("/var/lib/gpuaas/dhcp-hosts"),
            dnsmasq_pid_file: PathBuf::from("/run/gpuaas/dnsmasq.pid"),
            console_bytes: 4 * 1024 * 1024,
            huge_pages: false,
            guest_telemetry_listen: None,
            simulate: None,
        }
    }
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `server`
    Server,
    /// `state_dir`
    StateDir,
    /// `policy_file`
    PolicyFile,
    /// `heartbeat_interval`
    HeartbeatInterval,
    /// `metrics_interval`
    MetricsInterval,
    /// `request_timeout`
    RequestTimeout,
    /// `task_timeout`
    TaskTimeout,
    /// `shutdown_timeout`
    ShutdownTimeout,
    /// `log_drain_timeout`
    LogDrainTimeout,
    /// `transport`
    Transport,
    /// `max_tasks`
    MaxTasks,
    /// `log_buffer_bytes`
    LogBufferBytes,
    /// `journal_bytes`
    JournalBytes,
    /// `log_level`
    LogLevel,
    /// `slices_dir`
    SlicesDir,
    /// `images_dir`
    ImagesDir,
    /// `image_folders`
    ImageFolders,
    /// `image_cache_bytes`
    ImageCacheBytes,
    /// `dhcp_hosts_dir`
    DhcpHostsDir,
    /// `dnsmasq_pid_file`
    DnsmasqPidFile,
    /// `console_bytes`
    ConsoleBytes,
    /// `huge_pages`
    HugePages,
    /// `guest_telemetry_listen`
    GuestTelemetryListen,
    /// `simulate`
    Simulate,
}

impl Key {
    /// Every key, in display order.
    pub const ALL: [Self; 24] = [
        Self::Server,
        Self::StateDir,
        Self::PolicyFile,
        Self::HeartbeatInterval,
        Self::MetricsInterval,
        Self::RequestTimeout,
        Self::TaskTimeout,
        Self::ShutdownTimeout,
        Self::LogDrainTimeout,
        Self::Transport,
        Self::MaxTasks,
        Self::LogBufferBytes,
        Self::JournalBytes,
        Self::LogLevel,
        Self::SlicesDir,
        Self::ImagesDir,
        Self::ImageFolders,
        Self::ImageCacheBytes,
        Self::DhcpHostsDir,
        Self::DnsmasqPidFile,
        Self::ConsoleBytes,
        Self::HugePages,
        Self::GuestTelemetryListen,
        Self::Simulate,
    ];

    /// Returns its name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::StateDir => "state_dir",
            Self::PolicyFile => "policy_file",
            Self::HeartbeatInterval => "heartbeat_interval",
            Self::MetricsInterval => "metrics_interval",
            Self::RequestTimeout => "request_timeout",
            Self::TaskTimeout => "task_timeout",
            Self::ShutdownTimeout => "shutdown_timeout",
            Self::LogDrainTimeout => "log_drain_timeout",
            Self::Transport => "transport",
            Self::MaxTasks => "max_tasks",
            Self::LogBufferBytes => "log_buffer_bytes",
            Self::JournalBytes => "journal_bytes",
            Self::LogLevel => "log_level",
            Self::SlicesDir => "slices_dir",
            Self::ImagesDir => "images_dir",
            Self::ImageFolders => "image_folders",
            Self::ImageCacheBytes => "image_cache_bytes",
            Self::DhcpHostsDir => "dhcp_hosts_dir",
            Self::DnsmasqPidFile => "dnsmasq_pid_file",
            Self::ConsoleBytes => "console_bytes",
            Self::HugePages => "huge_pages",
            Self::GuestTelemetryListen => "guest_telemetry_listen",
            Self::Simulate => "simulate",
        }
    }

    /// Returns its name in the environment.
    pub fn variable(self) -> String {
        format!("{ENV_PREFIX}{}", self.name().to_ascii_uppercase())
    }

    /// Returns the key with this name.
    pub fn parse(name: &str) -> Result<Self, ConfigError> {
        Self::ALL
            .into_iter()
            .find(|key| key.name() == name)
            .ok_or_else(|| ConfigError::UnknownKey { key: name.to_owned(), known: Self::ALL.map(Self::name).join(", ") })
    }
}

/// The source of an effective value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default.
    Default,
    /// The file.
    File,
    /// A variable.
    Environment,
}

impl Source {
    /// Returns its name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
        }
    }
}

/// A configuration and the source of each value.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// The path of the file.
    pub path: PathBuf,
    /// Whether the file exists.
    pub found: bool,
    sources: [Source; Key::ALL.len()],
}

impl Loaded {
    /// Returns the source of the value of `key`.
    pub fn source(&self, key: Key) -> Source {
        let position = Key::ALL.iter().position(|k| *k == key).unwrap_or(0);
        self.sources[position]
    }
}

/// An error in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or written, or could be changed by others.
    #[error("the configuration file cannot be used")]
    File(#[from] PrivateFileError),
    /// The file was named with `--config` or the variable, and does not exist.
    #[error("{path} does not exist; create it or name another file with --config", path = .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {detail}", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The error of the parser, with the line.
        detail: String,
    },
    /// The key does not exist.
    #[error("unknown key `{key}`; remove it. Known keys are: {known}")]
    UnknownKey {
        /// The given key.
        key: String,
        /// The known keys.
        known: String,
    },
    /// The value is not valid for its key.
    #[error("{key} = {value:?}: {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// The given value.
        value: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// An error with the place of the value.
    #[error("in {place}")]
    In {
        /// A file or a variable.
        place: String,
        /// The error itself.
        #[source]
        source: Box<ConfigError>,
    },
}

impl ConfigError {
    fn within(self, place: impl std::fmt::Display) -> Self {
        Self::In { place: place.to_string(), source: Box::new(self) }
    }
}

impl Config {
    /// Returns the paths and limits for guests.
    pub fn guest_layout(&self) -> Layout {
        Layout {
            leases: self.state_dir.join("leases"),
            instances: self.slices_dir.clone(),
            images: self.images_dir.clone(),
            image_folders: self.image_folders.clone(),
            image_cache_bytes: self.image_cache_bytes,
            dhcp_hosts: self.dhcp_hosts_dir.clone(),
            dnsmasq_pid: self.dnsmasq_pid_file.clone(),
            console_bytes: self.console_bytes,
            huge_pages: self.huge_pages,
        }
    }

    /// Reads the file (if it exists) and the variables. With `explicit`, the file was named by the user and must exist.
    pub fn load(path: &Path, explicit: bool, variables: impl Iterator<Item = (String, String)>) -> Result<Loaded, ConfigError> {
        let mut loaded = Loaded {
            config: Self::default(),
            path: path.to_owned(),
            found: path.exists(),
            sources: [Source::Default; Key::ALL.len()],
        };
        if loaded.found {
            let text = read_file(path)?;
            loaded.apply_file(&text).map_err(|error| error.within(path.display()))?;
        } else if explicit {
            return Err(ConfigError::Missing { path: path.to_owned() });
        }
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(ENV_PREFIX).filter(|_| variable != ENV_CONFIG) else { continue };
            loaded
                .apply(&name.to_ascii_lowercase(), &value, Source::Environment)
                .map_err(|error| error.within(format!("the variable {variable}")))?;
        }
        Ok(loaded)
    }

    /// Sets one value from its text form.
    pub fn set(&mut self, key: Key, text: &str) -> Result<(), ConfigError> {
        let bad = |problem: String| ConfigError::Value { key: key.name(), value: text.to_owned(), problem };
        match key {
            Key::Server => self.server = parse_servers(text).map_err(bad)?,
            Key::StateDir => self.state_dir = parse_path(text).map_err(bad)?,
            Key::PolicyFile => self.policy_file = parse_path(text).map_err(bad)?,
            Key::HeartbeatInterval => self.heartbeat_interval = parse_between(text, 1, 300).map_err(bad)?,
            Key::MetricsInterval => self.metrics_interval = parse_between(text, 1, 3600).map_err(bad)?,
            Key::RequestTimeout => self.request_timeout = parse_between(text, 1, 300).map_err(bad)?,
            Key::TaskTimeout => self.task_timeout = parse_between(text, 1, 7 * 86_400).map_err(bad)?,
            Key::ShutdownTimeout => self.shutdown_timeout = parse_between(text, 0, 3600).map_err(bad)?,
            Key::LogDrainTimeout => self.log_drain_timeout = parse_between(text, 0, 300).map_err(bad)?,
            Key::Transport => {
                self.transport = match text {
                    "auto" => TransportChoice::Auto,
                    "stream" => TransportChoice::Stream,
                    "poll" => TransportChoice::Poll,
                    _ => return Err(bad("choose auto, stream or poll".to_owned())),
                }
            }
            Key::MaxTasks => self.max_tasks = parse_number(text, 1, 64).map_err(bad)?,
            Key::LogBufferBytes => self.log_buffer_bytes = parse_number(text, 1 << 20, 1 << 36).map_err(bad)?,
            Key::JournalBytes => self.journal_bytes = parse_number(text, 4 << 20, 1 << 32).map_err(bad)?,
            Key::LogLevel => {
                if !["error", "warn", "info", "debug", "trace"].contains(&text) {
                    return Err(bad("choose error, warn, info, debug or trace".to_owned()));
                }
                self.log_level = text.to_owned();
            }
            Key::SlicesDir => self.slices_dir = parse_path(text).map_err(bad)?,
            Key::ImagesDir => self.images_dir = parse_path(text).map_err(bad)?,
            Key::ImageFolders => {
                let folders = text.split(',').map(str::trim).filter(|folder| !folder.is_empty());
                self.image_folders = folders.map(parse_path).collect::<Result<_, _>>().map_err(bad)?;
            }
            Key::ImageCacheBytes => self.image_cache_bytes = parse_number(text, 1 << 30, 1 << 50).map_err(bad)?,
            Key::DhcpHostsDir => self.dhcp_hosts_dir = parse_path(text).map_err(bad)?,
            Key::DnsmasqPidFile => self.dnsmasq_pid_file = parse_path(text).map_err(bad)?,
            Key::ConsoleBytes => self.console_bytes = parse_number(text, 64 << 10, 1 << 30).map_err(bad)?,
            Key::HugePages => {
                self.huge_pages = match text {
                    "yes" | "true" => true,
                    "no" | "false" => false,
                    _ => return Err(bad("choose yes or no".to_owned())),
                }
            }
            Key::GuestTelemetryListen => {
                self.guest_telemetry_listen = match text {
                    "none" => None,
                    address => Some(parse_guest_address(address).map_err(bad)?),
                }
            }
            Key::Simulate => {
                self.simulate = match text {
                    "none" => None,
                    name => {
                        let known = Profile::ALL.map(Profile::as_str).join(", ");
                        Some(Profile::parse(name).ok_or_else(|| bad(format!("choose none, {known}")))?)
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the value of a key in its text form.
    pub fn get(&self, key: Key) -> String {
        match key {
            Key::Server => self.server.join(","),
            Key::StateDir => self.state_dir.display().to_string(),
            Key::PolicyFile => self.policy_file.display().to_string(),
            Key::HeartbeatInterval => show_duration(self.heartbeat_interval),
            Key::MetricsInterval => show_duration(self.metrics_interval),
            Key::RequestTimeout => show_duration(self.request_timeout),
            Key::TaskTimeout => show_duration(self.task_timeout),
            Key::ShutdownTimeout => show_duration(self.shutdown_timeout),
            Key::LogDrainTimeout => show_duration(self.log_drain_timeout),
            Key::Transport => match self.transport {
                TransportChoice::Auto => "auto".to_owned(),
                TransportChoice::Stream => "stream".to_owned(),
                TransportChoice::Poll => "poll".to_owned(),
            },
            Key::MaxTasks => self.max_tasks.to_string(),
            Key::LogBufferBytes => self.log_buffer_bytes.to_string(),
            Key::JournalBytes => self.journal_bytes.to_string(),
            Key::LogLevel => self.log_level.clone(),
            Key::SlicesDir => self.slices_dir.display().to_string(),
            Key::ImagesDir => self.images_dir.display().to_string(),
            Key::ImageFolders => {
                self.image_folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(",")
            }
            Key::ImageCacheBytes => self.image_cache_bytes.to_string(),
            Key::DhcpHostsDir => self.dhcp_hosts_dir.display().to_string(),
            Key::DnsmasqPidFile => self.dnsmasq_pid_file.display().to_string(),
            Key::ConsoleBytes => self.console_bytes.to_string(),
            Key::HugePages => if self.huge_pages { "yes" } else { "no" }.to_owned(),
            Key::GuestTelemetryListen => self.guest_telemetry_listen.map_or("none".to_owned(), |address| address.to_string()),
            Key::Simulate => self.simulate.map_or("none", Profile::as_str).to_owned(),
        }
    }
}

impl Loaded {
    fn apply_file(&mut self, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax { path: self.path.clone(), detail: e.to_string() })?;
        for (name, value) in &table {
            let text = text_of(value).ok_or_else(|| ConfigError::Value {
                key: Key::ALL.iter().map(|key| key.name()).find(|key| key == name).unwrap_or("this key"),
                value: value.to_string(),
                problem: "write a text, a number or a list of texts".to_owned(),
            });
            // An unknown key is the more useful error.
            Key::parse(name)?;
            self.apply(name, &text?, Source::File)?;
        }
        Ok(())
    }

    fn apply(&mut self, name: &str, text: &str, source: Source) -> Result<(), ConfigError> {
        let key = Key::parse(name)?;
        self.config.set(key, text)?;
        if let Some(position) = Key::ALL.iter().position(|k| *k == key) {
            self.sources[position] = source;
        }
        Ok(())
    }
}

/// Returns the overriding variables of this process. Others are ignored and need not be valid text.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(ENV_PREFIX))?;
        // A value that is not text cannot be valid; the parser reports it.
        Some((name, value.to_string_lossy().into_owned()))
    })
}

/// Writes one value to the file and keeps everything else in it, including comments. Nothing is written after an error.
pub fn set_in_file(path: &Path, key: Key, text: &str) -> Result<(), ConfigError> {
    let mut check = Config::default();
    check.set(key, text)?;
    let old = if path.exists() { read_file(path)? } else { String::new() };
    let mut document: toml_edit::DocumentMut = old
        .parse()
        .map_err(|error: toml_edit::TomlError| ConfigError::Syntax { path: path.to_owned(), detail: error.to_string() })?;
    let value: toml_edit::Value = match key {
        Key::Server => check.server.iter().map(String::as_str).collect::<toml_edit::Array>().into(),
        Key::MaxTasks => i64::from(check.max_tasks).into(),
        Key::LogBufferBytes => i64::try_from(check.log_buffer_bytes).unwrap_or(i64::MAX).into(),
        Key::JournalBytes => i64::try_from(check.journal_bytes).unwrap_or(i64::MAX).into(),
        Key::ImageCacheBytes => i64::try_from(check.image_cache_bytes).unwrap_or(i64::MAX).into(),
        Key::ConsoleBytes => i64::try_from(check.console_bytes).unwrap_or(i64::MAX).into(),
        Key::ImageFolders => {
            check.image_folders.iter().map(|folder| folder.display().to_string()).collect::<toml_edit::Array>().into()
        }
        Key::SlicesDir
        | Key::ImagesDir
        | Key::DhcpHostsDir
        | Key::DnsmasqPidFile
        | Key::HugePages
        | Key::GuestTelemetryListen
        | Key::StateDir
        | Key::PolicyFile
        | Key::HeartbeatInterval
        | Key::MetricsInterval
        | Key::RequestTimeout
        | Key::TaskTimeout
        | Key::ShutdownTimeout
        | Key::LogDrainTimeout
        | Key::Transport
        | Key::LogLevel
        | Key::Simulate => check.get(key).into(),
    };
    match document.get_mut(key.name()).and_then(toml_edit::Item::as_value_mut) {
        Some(existing) => {
            // The comment after a value belongs to the key, not to the old value.
            let decor = existing.decor().clone();
            *existing = value;
            *existing.decor_mut() = decor;
        }
        None => {
            document.insert(key.name(), toml_edit::Item::Value(value));
        }
    }
    let text = document.to_string();
    // The rest of the file must be valid too, or the agent would not start with it.
    let mut loaded =
        Loaded { config: Config::default(), path: path.to_owned(), found: true, sources: [Source::Default; Key::ALL.len()] };
    loaded.apply_file(&text).map_err(|error| error.within(path.display()))?;
    Ok(private_file::write_with_mode(path, text.as_bytes(), 0o644)?)
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let (bytes, _) = private_file::read_trusted(path, MAX_FILE)?;
    String::from_utf8(bytes).map_err(|_| ConfigError::Syntax { path: path.to_owned(), detail: "it is not UTF-8 text".to_owned() })
}

fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Array(list) => list.iter().map(toml::Value::as_str).collect::<Option<Vec<_>>>().map(|texts| texts.join(",")),
        toml::Value::Float(_) | toml::Value::Boolean(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// Parses `host:port` addresses, separated by commas. A leading `https://` is allowed; its default port is 443.
pub fn parse_servers(text: &str) -> Result<Vec<String>, String> {
    let servers: Vec<String> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(parse_server).collect::<Result<_, _>>()?;
    if servers.len() > 16 { Err("at most 16 addresses".to_owned()) } else { Ok(servers) }
}

fn parse_server(text: &str) -> Result<String, String> {
    let how = "write host:port, for example control.example.com:7443";
    let (address, default_port) = match text.strip_prefix("https://") {
        Some(rest) => (rest.trim_end_matches('/'), Some("443")),
        None => (text, None),
    };
    if text.starts_with("http://") {
        return Err("the link always uses TLS; write https:// or leave the scheme out".to_owned());
    }
    if address.is_empty() || address.contains(['/', '?', '#', '@', ' ']) {
        return Err(how.to_owned());
    }
    let authority: http::uri::Authority = address.parse().map_err(|_| how.to_owned())?;
    match (authority.port_u16(), default_port) {
        (Some(port), _) if port > 0 => Ok(address.to_owned()),
        (Some(_), _) => Err("port 0 cannot be dialed".to_owned()),
        (None, Some(port)) => Ok(format!("{address}:{port}")),
        (None, None) => Err(how.to_owned()),
    }
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("write an absolute path".to_owned()) }
}

/// Parses the address for guests, which must be a private address and never a public one.
fn parse_guest_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "write the host's address in the guests' network, like 10.77.0.1:9110, or none".to_owned())?;
    let ours = match address.ip() {
        IpAddr::V4(ip) => ip.is_private() || ip.is_loopback(),
        IpAddr::V6(_) => false,
    };
    if ours && address.port() != 0 {
        Ok(address)
    } else {
        Err("choose a private IPv4 address of this host and a port".to_owned())
    }
}

fn parse_between(text: &str, min_seconds: u64, max_seconds: u64) -> Result<Duration, String> {
    let duration = parse_duration(text).ok_or_else(|| "write a duration like 500ms, 15s, 2m or 1h".to_owned())?;
    let (min, max) = (Duration::from_secs(min_seconds), Duration::from_secs(max_seconds));
    if duration < min || duration > max {
        return Err(format!("choose {} to {}", show_duration(min), show_duration(max)));
    }
    Ok(duration)
}

/// Parses `500ms`, `15s`, `2m`, `1h`.
fn parse_duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        0 => "0s".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

fn parse_number<N: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<N, String> {
    let problem = || format!("write a whole number from {min} to {max}");
    let number: u64 = text.parse().map_err(|_| problem())?;
    if !(min..=max).contains(&number) {
        return Err(problem());
    }
    N::try_from(number).map_err(|_| problem())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
