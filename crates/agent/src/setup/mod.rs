//! `setup slices`: prepares this host to run guests, and can undo exactly that.
//!
//! It has three separate parts: `observe` reads the host; `plan` is a pure function that decides which steps are done, to do or
//! not possible; `apply` runs them, step by step, each recorded in `record` first. A second run finds everything done. `undo`
//! reads the record and removes only what is in it.
//!
//! The host's own network stays as it is: the bridge has no physical interface, the default route is never touched, and only the
//! table `gpuaas_slices` of the packet filter is changed.

mod apply;
mod files;
mod observe;
mod plan;
mod record;
mod undo;

use std::path::{Path, PathBuf};

use gpuaas_contract::slice::{InterfaceName, Subnet};
use gpuaas_contract::task::slice_topology_discover::Params;
use gpuaas_host::HostError;
use gpuaas_host::ip::IpError;
use gpuaas_host::nft::NftError;
pub use gpuaas_host::ovs::Datapath;
use gpuaas_host::ovs::OvsError;
use gpuaas_host::private_file::PrivateFileError;
use gpuaas_host::systemd::SystemdError;

use crate::config::Config;
use files::Settings;
use record::Record;

/// The options of the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetupOptions {
    /// The bridge of the guests; by default `br-slices`, or that of the last run.
    pub bridge: Option<InterfaceName>,
    /// The network of the guests; by default `10.77.0.0/24`, or that of the last run.
    pub network: Option<Subnet>,
    /// The only interface by which guests leave the host; by default any.
    pub uplink: Option<InterfaceName>,
    /// The datapath of the bridge.
    pub datapath: Option<Datapath>,
    /// Whether to install missing programs.
    pub install_packages: bool,
    /// Write files under this folder, and do not use systemd, packages and kernel modules; for tests.
    pub root: Option<PathBuf>,
}

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepStatus {
    /// Nothing to do.
    Done,
    /// It will be done.
    ToDo,
    /// It cannot be done now, and will be done at the next boot by the written files.
    AtBoot,
    /// The program cannot do it.
    Cannot,
}

impl StepStatus {
    /// Returns its name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::ToDo => "to do",
            Self::AtBoot => "at boot",
            Self::Cannot => "cannot",
        }
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its short name.
    pub name: &'static str,
    /// Its status.
    pub status: StepStatus,
    /// What it does, or what must be done by hand.
    pub what: String,
    /// The file or the command.
    pub how: String,
    action: Option<Action>,
}

/// The action of a step on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Setup(apply::SetupAction),
    Undo(undo::UndoAction),
}

/// All steps in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Returns how many steps have this status.
    pub fn count(&self, status: StepStatus) -> usize {
        self.steps.iter().filter(|step| step.status == status).count()
    }
}

/// Why there is no plan, or a step failed. Every message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The agent simulates its host.
    #[error("this agent simulates a host, which needs no setup; run `gpuaas-agent config set simulate none` to use the real one")]
    Simulated,
    /// The command needs root.
    #[error("only root can change this host; run the command again with sudo")]
    NotRoot,
    /// A path in the configuration cannot be used in the written files.
    #[error("{key} is {path}; choose a path of letters, digits and the signs / . _ - (`gpuaas-agent config set {key} PATH`)", path = .path.display())]
    Path {
        /// The key.
        key: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// The host was set up with other settings.
    #[error(
        "this host is set up with {there}, not with {asked}; run `gpuaas-agent setup slices --undo` first, or stay with what it has"
    )]
    OtherSetup {
        /// The recorded settings.
        there: String,
        /// The requested settings.
        asked: String,
    },
    /// The network of the guests overlaps one of the host.
    #[error("{network} overlaps {with}; choose another network with --network, such as {suggestion}")]
    Overlap {
        /// The network.
        network: Subnet,
        /// The address or the route.
        with: String,
        /// A free network.
        suggestion: String,
    },
    /// The interface does not exist.
    #[error("there is no interface {uplink} that guests could leave by; `ip link` lists what there is")]
    Uplink {
        /// The interface.
        uplink: InterfaceName,
    },
    /// The name is used by something else.
    #[error("the interface {bridge} is not an Open vSwitch bridge; choose another name with --bridge")]
    NotABridge {
        /// The interface.
        bridge: InterfaceName,
    },
    /// The bridge has a physical interface.
    #[error(
        "the bridge {bridge} is connected to {port}: guests and their DHCP would be in that network; choose another name with --bridge"
    )]
    Connected {
        /// The bridge.
        bridge: InterfaceName,
        /// The connected interface.
        port: String,
    },
    /// The bridge is used for another network.
    #[error(
        "the bridge {bridge} has the address {address}; name its network with --network, or choose another name with --bridge"
    )]
    OtherAddress {
        /// The bridge.
        bridge: InterfaceName,
        /// Its address.
        address: String,
    },
    /// The policy is not valid.
    #[error("the host policy {path} cannot be extended: {why}; correct it first", path = .path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Guests would lose their network.
    #[error("{what}; release the slices of this host first (`gpuaas slice release`), then run this again")]
    GuestsRun {
        /// What still exists.
        what: String,
    },
    /// There is no record.
    #[error("nothing is recorded in {path}: this host was not set up by `setup slices`, or is undone already", path = .path.display())]
    NothingRecorded {
        /// The record.
        path: PathBuf,
    },
    /// The record is not valid.
    #[error("{path} is not a record of a setup: {why}; restore it from a backup, or remove it and undo by hand", path = .path.display())]
    BadRecord {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another setup is running.
    #[error("another `setup slices` is running on this host; wait for its end")]
    Busy,
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// A file could not be linked or removed.
    #[error("cannot {what} {path}", path = .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The host operation failed.
    #[error("{} ({})", .0.message, .0.code)]
    Host(#[from] HostError),
    /// Addresses or routes.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// The packet filter.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Open vSwitch.
    #[error(transparent)]
    Ovs(#[from] OvsError),
    /// systemd.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> SetupError {
    let path = path.to_owned();
    move |source| SetupError::Io { what, path, source }
}

/// Returns the plan of a setup. Changes nothing.
pub async fn plan_setup(config: &Config, options: &SetupOptions) -> Result<Plan, SetupError> {
    let (settings, record) = settings(config, options)?;
    let found = observe::observe(&settings).await?;
    plan::plan(&settings, &found, record.as_ref())
}

/// Runs the pending steps of a plan, and reports each. Returns what is left.
pub async fn setup(
    config: &Config,
    options: &SetupOptions,
    confirmed: &Plan,
    mut on_step: impl FnMut(&Step, Option<&SetupError>),
) -> Result<Plan, SetupError> {
    must_be_root()?;
    let _lock = record::lock(&config.state_dir)?;
    let (settings, record) = settings(config, options)?;
    apply::apply(&settings, record, config, confirmed, &mut on_step).await?;
    plan_setup(config, &SetupOptions { install_packages: false, ..options.clone() }).await
}

/// Returns the plan of an undo. Changes nothing.
pub async fn plan_undo(config: &Config) -> Result<Plan, SetupError> {
    let record = recorded(config)?;
    undo::refuse_with_guests(config, &record).await?;
    undo::plan(&record).await
}

/// Removes what is recorded, and reports each step.
pub async fn undo(config: &Config, mut on_step: impl FnMut(&Step, Option<&SetupError>)) -> Result<Plan, SetupError> {
    must_be_root()?;
    let _lock = record::lock(&config.state_dir)?;
    let record = recorded(config)?;
    undo::refuse_with_guests(config, &record).await?;
    undo::apply(config, record, &mut on_step).await
}

fn recorded(config: &Config) -> Result<Record, SetupError> {
    if config.simulate.is_some() {
        return Err(SetupError::Simulated);
    }
    let path = record::path(&config.state_dir);
    Record::read(&path)?.ok_or(SetupError::NothingRecorded { path })
}

fn must_be_root() -> Result<(), SetupError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(SetupError::NotRoot) }
}

/// Combines the options with the settings of an earlier run.
fn settings(config: &Config, options: &SetupOptions) -> Result<(Settings, Option<Record>), SetupError> {
    if config.simulate.is_some() {
        return Err(SetupError::Simulated);
    }
    let record = Record::read(&record::path(&config.state_dir))?;
    let defaults = Params::default();
    let settings = Settings {
        bridge: chosen("the bridge", options.bridge.as_ref(), record.as_ref().map(|r| &r.bridge), defaults.ovs_bridge)?,
        network: chosen("the network", options.network.as_ref(), record.as_ref().map(|r| &r.network), defaults.private_subnet)?,
        datapath: chosen("the datapath", options.datapath.as_ref(), record.as_ref().map(|r| &r.datapath), Datapath::System)?,
        uplink: options.uplink.clone().or_else(|| record.as_ref().and_then(|r| r.uplink.clone())),
        install_packages: options.install_packages,
        telemetry: config.guest_telemetry_listen,
        dhcp_hosts: config.dhcp_hosts_dir.clone(),
        dnsmasq_pid: config.dnsmasq_pid_file.clone(),
        slices_dir: config.slices_dir.clone(),
        policy_file: config.policy_file.clone(),
        root: chosen("files under", options.root.as_ref(), record.as_ref().map(|r| &r.root), PathBuf::from("/"))?,
    };
    settings.check()?;
    if let Some(record) = &record {
        // A dnsmasq with another pid file would not be found again.
        chosen("dnsmasq_pid_file", Some(&settings.dnsmasq_pid), Some(&record.dnsmasq_pid), PathBuf::new())?;
        chosen("leases of dhcp_hosts_dir in", Some(&settings.dhcp_leases()), Some(&record.dhcp_leases), PathBuf::new())?;
    }
    Ok((settings, record))
}

fn chosen<T: Clone + PartialEq + ShownSetting>(
    what: &str,
    asked: Option<&T>,
    there: Option<&T>,
    default: T,
) -> Result<T, SetupError> {
    match (asked, there) {
        (Some(asked), Some(there)) if asked != there => {
            Err(SetupError::OtherSetup { there: format!("{what} {}", there.shown()), asked: asked.shown() })
        }
        (Some(asked), _) => Ok(asked.clone()),
        (None, Some(there)) => Ok(there.clone()),
        (None, None) => Ok(default),
    }
}

/// Formats a setting for people.
trait ShownSetting {
    fn shown(&self) -> String;
}

impl ShownSetting for InterfaceName {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl ShownSetting for Subnet {
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl ShownSetting for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl ShownSetting for Datapath {
    fn shown(&self) -> String {
        self.as_str().to_owned()
    }
}
