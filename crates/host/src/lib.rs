//! The host: the only crate that runs processes and reads the machine, with one module per tool, and the simulated host beside
//! the real one.
//!
//! Calls that read `/proc`, `/sys` or the ping log block for a short time; the agent makes them on blocking threads.
//!
//! # Promises
//!
//! - Programs are started only here: by absolute path, with an argument vector, a cleared environment, a deadline and a limit on
//!   their output. There is no shell.
//! - A lease of a slot or of the whole machine is exclusive, has an epoch that only grows, and is written before anything is
//!   touched. Tasks with an older epoch are refused, also after the lease has ended.
//! - Every operation on a guest is idempotent.
//! - The simulated host has the same operations, with state.

// A new variant of our own enums must be considered everywhere.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod block;
mod browser;
pub mod cloud_init;
mod console;
pub mod dnsmasq;
mod domain_xml;
mod drive;
mod error;
pub mod exec;
pub mod fabric;
mod facts;
pub mod fingerprint;
pub mod guests;
mod health;
pub mod image;
mod instance;
pub mod ip;
pub mod kernel;
mod lease;
mod libvirt;
mod metrics;
pub mod network;
pub mod nft;
mod nvme;
pub mod nvml;
mod openat2;
pub mod openssh_key;
pub mod ovs;
pub mod packages;
pub mod pci;
pub mod ping_log;
pub mod private_file;
mod proc;
mod qemu_img;
pub mod sim;
#[cfg(test)]
mod skip;
mod ssh;
mod sysfs;
pub mod systemd;
pub mod topology;
pub mod users;
mod vfio;
mod xml;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use gpuaas_contract::id::TaskId;
use gpuaas_contract::slice::InterfaceName;
use gpuaas_contract::task::slice_topology_discover::SliceNetwork;
use gpuaas_contract::task::{diag_health_probe, package_list};
use gpuaas_contract::telemetry::{HostFacts, HostMetrics};
use gpuaas_contract::time::Timestamp;

pub use browser::open_browser;
pub use error::HostError;
pub use metrics::{Space, space};
use ping_log::{PingLog, PingLogError};
pub use sim::{Profile, SimError, SimHost};

/// The host an agent works on. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Host {
    /// This machine.
    Real(RealHost),
    /// A simulated machine.
    Sim(SimHost),
}

/// This machine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RealHost {
    inner: Arc<Real>,
}

#[derive(Debug)]
struct Real {
    sampler: metrics::Sampler,
    // Loading takes a moment, and most commands of the agent never need it.
    nvml: OnceLock<nvml::Library>,
    ping_log: PingLog,
    layout: guests::Layout,
    images: image::Images,
}

impl RealHost {
    /// Creates the host for this machine, with its ping log in `state_dir` and its guests in the paths of `layout`.
    pub fn new(state_dir: &Path, layout: guests::Layout) -> Self {
        let images = image::Images::new(&layout);
        let (sampler, ping_log) = (metrics::Sampler::default(), PingLog::new(state_dir));
        Self { inner: Arc::new(Real { sampler, nvml: OnceLock::new(), ping_log, layout, images }) }
    }

    pub(crate) fn layout(&self) -> &guests::Layout {
        &self.inner.layout
    }

    pub(crate) fn images(&self) -> &image::Images {
        &self.inner.images
    }

    pub(crate) fn machine_paths(&self) -> guests::MachinePaths {
        guests::MachinePaths::default()
    }

    fn nvml(&self) -> &nvml::Library {
        self.inner.nvml.get_or_init(nvml::Library::load)
    }
}

impl Host {
    /// Returns slow-changing facts. Blocks for milliseconds.
    pub fn facts(&self) -> HostFacts {
        match self {
            Self::Real(real) => facts::collect(real.nvml()),
            Self::Sim(sim) => sim.facts(),
        }
    }

    /// Returns one sample of metrics. Blocks for milliseconds.
    pub fn metrics(&self) -> HostMetrics {
        match self {
            Self::Real(real) => real.inner.sampler.sample(real.nvml()),
            Self::Sim(sim) => sim.metrics(),
        }
    }

    /// Returns the boot id, which changes with every reboot.
    pub fn boot_id(&self) -> String {
        match self {
            Self::Real(_) => kernel::boot_id(Path::new("/proc")),
            Self::Sim(sim) => sim.boot_id(),
        }
    }

    /// Returns the fingerprint of the machine, which stays the same after a reboot and a reinstallation.
    pub fn fingerprint(&self) -> Result<String, fingerprint::NoIdentity> {
        match self {
            Self::Real(_) => fingerprint::fingerprint(Path::new("/")),
            Self::Sim(sim) => Ok(sim.fingerprint()),
        }
    }

    /// Appends a line of the task to the ping log. Durable when it returns.
    pub fn ping(&self, task_id: TaskId, at: Timestamp, message: &str) -> Result<(), PingLogError> {
        self.ping_log().append(task_id, at, message)
    }

    /// Returns whether the ping log has a line of the task.
    pub fn ping_done(&self, task_id: TaskId) -> Result<bool, PingLogError> {
        self.ping_log().contains(task_id)
    }

    /// Returns the path of the ping log.
    pub fn ping_log_path(&self) -> PathBuf {
        self.ping_log().path().to_owned()
    }

    /// Returns the state of the host. Blocks for milliseconds.
    pub fn health_probe(&self) -> diag_health_probe::Output {
        match self {
            Self::Real(real) => health::probe(real.nvml()),
            Self::Sim(sim) => sim.health(),
        }
    }

    /// Returns the devices of the host and its prerequisites for guests. Blocks for milliseconds.
    pub fn inventory(&self) -> Result<topology::Inventory, fingerprint::NoIdentity> {
        let machine = self.fingerprint()?;
        Ok(match self {
            Self::Real(_) => topology::read(machine),
            Self::Sim(sim) => sim.inventory(machine),
        })
    }

    /// Returns drives of any kind by their stable paths; missing ones are left out. Blocks for milliseconds.
    pub fn drives_at(&self, stable_paths: &[String]) -> Vec<block::Namespace> {
        match self {
            Self::Real(real) => {
                let machine = real.machine_paths();
                stable_paths.iter().filter_map(|path| block::extra_drive(&machine, path)).collect()
            }
            // A simulated host has no extra drives.
            Self::Sim(_) => Vec::new(),
        }
    }

    /// Returns the state of the guests' network with this bridge.
    pub async fn slice_network(&self, bridge: &InterfaceName) -> SliceNetwork {
        match self {
            Self::Real(_) => topology::read_network(bridge).await,
            Self::Sim(sim) => sim.slice_network(bridge),
        }
    }

    /// Lists the installed packages.
    pub async fn package_list(&self, params: &package_list::Params) -> Result<package_list::Output, packages::PackagesError> {
        match self {
            Self::Real(_) => packages::list(params).await,
            Self::Sim(sim) => Ok(sim.packages(params)),
        }
    }

    /// Returns whether this host is simulated.
    pub fn is_simulated(&self) -> bool {
        match self {
            Self::Real(_) => false,
            Self::Sim(_) => true,
        }
    }

    fn ping_log(&self) -> &PingLog {
        match self {
            Self::Real(real) => &real.inner.ping_log,
            Self::Sim(sim) => sim.ping_log(),
        }
    }
}
