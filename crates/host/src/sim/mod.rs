//! The simulated host: a realistic 8-GPU server in a folder, for `gpuaas dev`, demos and tests.
//!
//! It is stateful (boot id, identity, packages, ping log, devices and guests are in its folder and survive a restart of the
//! agent) and reports `simulated: true` wherever a real host reports its identity. Every operation can be told to fail
//! (`faults.rs`), and violations of rules that must always hold are recorded ([`SimHost::violations`]).

mod console;
mod devices;
mod domains;
mod faults;
mod guests;
mod knobs;
mod machine;
mod operation;
#[cfg(test)]
mod operation_tests;
mod profile;
mod topology;
mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuaas_contract::Digest;
use gpuaas_contract::cleanup::RESTING_DRIVER;
use gpuaas_contract::slice::InterfaceName;
use gpuaas_contract::task::slice_topology_discover::SliceNetwork;
use gpuaas_contract::task::{diag_health_probe, package_list};
use gpuaas_contract::telemetry::{GpuMetrics, HostFacts, HostMetrics};
use gpuaas_contract::time::Timestamp;

use crate::guests::Layout;
use crate::ping_log::PingLog;
use crate::topology::Inventory;
use crate::{packages, private_file};
use faults::SimOperations;
pub use faults::{Call, Fault, FaultKind, Target, When};
pub use knobs::Leftovers;
pub use machine::Content;
use machine::Machine;
pub use operation::Operation;
pub use profile::Profile;
pub use users::SimUser;

/// A simulated host. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SimHost {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    profile: Profile,
    state: State,
    ping_log: PingLog,
    layout: Layout,
    /// The constant part: the devices of a fresh host.
    hardware: Inventory,
    operations: SimOperations,
}

/// The identity of the host, kept in the folder.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    profile: Profile,
    hostname: String,
    hardware_id: String,
    boot_id: String,
    booted_at: Timestamp,
}

impl State {
    /// Returns the facts of a fresh host.
    fn facts(&self) -> HostFacts {
        self.profile.facts(&self.hostname, &self.hardware_id)
    }

    fn hardware(&self) -> Inventory {
        topology::inventory(self.profile, &self.facts(), String::new())
    }
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// Reading or writing failed.
    #[error("the simulated host's folder cannot be used")]
    File(#[from] private_file::PrivateFileError),
    /// The machine's state could not be written.
    #[error("{path} cannot be written", path = .path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The state file is invalid.
    #[error("{path} is damaged; remove it to get a new simulated host", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The folder has a host of another profile.
    #[error("{path} holds a simulated {found} host; choose that profile or another folder", path = .path.display())]
    OtherProfile {
        /// The file.
        path: PathBuf,
        /// The profile in the folder.
        found: Profile,
    },
    /// There is no randomness.
    #[error("the system has no random numbers: {0}")]
    Random(getrandom::Error),
}

impl SimHost {
    /// Opens the host in `folder`. Creates it on first use, with this `hostname`.
    pub fn open(folder: &Path, profile: Profile, hostname: &str) -> Result<Self, SimError> {
        private_file::make_folder(folder)?;
        let path = folder.join("simulated-host.json");
        let state = if path.exists() {
            let bytes = private_file::read_secret(&path, 64 * 1024)?;
            let state: State =
                serde_json::from_slice(&bytes).map_err(|source| SimError::Damaged { path: path.clone(), source })?;
            if state.profile != profile {
                return Err(SimError::OtherProfile { path, found: state.profile });
            }
            state
        } else {
            let state = State {
                profile,
                hostname: hostname.to_owned(),
                hardware_id: random_hex()?,
                boot_id: random_boot_id()?,
                booted_at: Timestamp::now(),
            };
            private_file::write(&path, &serde_json::to_vec_pretty(&state).unwrap_or_default())?;
            state
        };
        let layout = Layout {
            leases: folder.join("leases"),
            instances: folder.join("slices"),
            images: folder.join("slice-images"),
            image_folders: Vec::new(),
            image_cache_bytes: 1 << 30,
            dhcp_hosts: folder.join("dhcp-hosts"),
            dnsmasq_pid: folder.join("dnsmasq.pid"),
            console_bytes: 1 << 20,
            huge_pages: false,
        };
        let hardware = state.hardware();
        let operations = SimOperations::new(folder, Machine::load(folder, &hardware)?);
        Ok(Self { inner: Arc::new(Inner { profile, state, ping_log: PingLog::new(folder), layout, hardware, operations }) })
    }

    /// Applies a reboot to the host in `folder`: a new boot id, guests that are off, functions with the host's own drivers. For
    /// tests: open it again afterwards.
    pub fn reboot(folder: &Path) -> Result<(), SimError> {
        let path = folder.join("simulated-host.json");
        let bytes = private_file::read_secret(&path, 64 * 1024)?;
        let mut state: State =
            serde_json::from_slice(&bytes).map_err(|source| SimError::Damaged { path: path.clone(), source })?;
        state.boot_id = random_boot_id()?;
        state.booted_at = Timestamp::now();
        Machine::reboot(folder, &state.hardware())?;
        Ok(private_file::write(&path, &serde_json::to_vec_pretty(&state).unwrap_or_default())?)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    fn profile(&self) -> Profile {
        self.inner.profile
    }

    fn hardware(&self) -> &Inventory {
        &self.inner.hardware
    }

    fn operations(&self) -> &SimOperations {
        &self.inner.operations
    }

    pub(crate) fn ping_log(&self) -> &PingLog {
        &self.inner.ping_log
    }

    pub(crate) fn boot_id(&self) -> String {
        self.inner.state.boot_id.clone()
    }

    pub(crate) fn fingerprint(&self) -> String {
        Digest::of(format!("simulated={}\n", self.inner.state.hardware_id).as_bytes()).to_string()
    }

    pub(crate) fn facts(&self) -> HostFacts {
        let mut facts = self.inner.state.facts();
        self.operations().look(|machine| {
            for gpu in &mut facts.gpus {
                machine.driver(&gpu.pci_address).clone_into(&mut gpu.driver);
            }
        });
        facts
    }

    pub(crate) fn metrics(&self) -> HostMetrics {
        let now = Timestamp::now();
        let seconds = now.since(self.inner.state.booted_at).as_secs();
        let facts = self.facts();
        let guests_mib = self.operations().look(Machine::guests_memory_mib);
        // Slow waves with a different phase per GPU: changing numbers without stored state.
        let wave = |phase: u64, period: u64| triangle(seconds.wrapping_add(phase * 37), period);
        // Passed-through devices are not measured by the host.
        let own = facts.gpus.iter().zip(0_u64..).filter(|(gpu, _)| gpu.driver != RESTING_DRIVER);
        let gpus = own.map(|(gpu, index)| {
            let busy = 20 + wave(index, 240) * 7 / 10;
            GpuMetrics {
                pci_address: gpu.pci_address.clone(),
                utilization_percent: u32::try_from(busy).unwrap_or(0),
                memory_used_bytes: gpu.memory_bytes / 100 * (10 + wave(index, 600) * 8 / 10),
                temperature_celsius: u32::try_from(34 + busy * 4 / 10).unwrap_or(0),
                power_milliwatts: u32::try_from(70_000 + busy * 6_000).unwrap_or(0),
            }
        });
        HostMetrics {
            at: now,
            cpu_percent: u32::try_from(5 + wave(1, 90) / 4).unwrap_or(0),
            load_percent: 100 + wave(2, 120) * 20,
            memory_used_bytes: (facts.memory_bytes / 1000 * (80 + wave(3, 900)))
                .saturating_add(guests_mib << 20)
                .min(facts.memory_bytes / 100 * 99),
            network_received_bytes: seconds * 125_000_000,
            network_sent_bytes: seconds * 80_000_000,
            disk_read_bytes: seconds * 20_000_000,
            disk_written_bytes: seconds * 45_000_000,
            root_used_bytes: 212 << 30,
            root_size_bytes: 894 << 30,
            agent_rss_bytes: 0,
            gpus: gpus.collect(),
            guests: Vec::new(),
        }
    }

    pub(crate) fn health(&self) -> diag_health_probe::Output {
        let facts = self.facts();
        let metrics = self.metrics();
        let fabric = topology::links(&facts);
        let loaded = |name: &&str| self.operations().look(|machine| machine.modules.contains(*name));
        let vfio_modules = topology::VFIO_MODULES.into_iter().filter(loaded).map(str::to_owned).collect();
        diag_health_probe::Output {
            healthy: true,
            simulated: true,
            kernel: facts.kernel,
            uptime_seconds: Timestamp::now().since(self.inner.state.booted_at).as_secs(),
            load_percent: metrics.load_percent,
            memory_bytes: facts.memory_bytes,
            memory_available_bytes: facts.memory_bytes - metrics.memory_used_bytes,
            kvm: true,
            vfio_modules,
            iommu_groups: topology::IOMMU_GROUPS,
            reboot_required: false,
            fabric,
            gpus: facts.gpus,
            disks: facts.disks,
            drift: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn inventory(&self, machine: String) -> Inventory {
        let mut inventory = Inventory { machine, ..self.hardware().clone() };
        self.operations().look(|machine| machine.overlay(&mut inventory));
        inventory
    }

    pub(crate) fn slice_network(&self, bridge: &InterfaceName) -> SliceNetwork {
        topology::network(&self.facts(), bridge)
    }

    pub(crate) fn packages(&self, params: &package_list::Params) -> package_list::Output {
        let mut all = self.inner.profile.packages();
        self.operations().look(|machine| {
            let later = machine.packages.iter().filter(|name| !all.iter().any(|known| known.name == **name));
            let later: Vec<_> = later.map(|name| profile::package(name, "1.0-simulated")).collect();
            all.extend(later);
        });
        packages::select("simulated", all, params)
    }
}

/// Returns a wave between 0 and 100 with this period.
fn triangle(at: u64, period: u64) -> u64 {
    let position = at % period * 200 / period;
    if position <= 100 { position } else { 200 - position }
}

fn random_hex() -> Result<String, SimError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(SimError::Random)?;
    Ok(gpuaas_contract::hex(&bytes))
}

fn random_boot_id() -> Result<String, SimError> {
    let hex = random_hex()?;
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_host_is_the_same_host_after_a_restart_and_another_after_a_reboot() {
        let folder = tempfile::tempdir().expect("folder");
        let first = SimHost::open(folder.path(), Profile::H100, "sim-a").expect("opens");
        let again = SimHost::open(folder.path(), Profile::H100, "ignored").expect("opens");
        assert_eq!((first.fingerprint(), first.boot_id()), (again.fingerprint(), again.boot_id()));
        assert_eq!(again.facts().hostname, "sim-a");
        SimHost::reboot(folder.path()).expect("reboots");
        let rebooted = SimHost::open(folder.path(), Profile::H100, "sim-a").expect("opens");
        assert_eq!(rebooted.fingerprint(), first.fingerprint());
        assert_ne!(rebooted.boot_id(), first.boot_id());
    }

    #[test]
    fn two_simulated_hosts_are_two_machines_with_eight_gpus_each() {
        for profile in [Profile::H100, Profile::Mi300x] {
            let folders = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
            let one = SimHost::open(folders.0.path(), profile, "a").expect("opens");
            let two = SimHost::open(folders.1.path(), profile, "b").expect("opens");
            assert_ne!(one.fingerprint(), two.fingerprint());
            let facts = one.facts();
            assert!(facts.simulated && facts.gpus.len() == 8 && facts.gpus.iter().all(|gpu| gpu.source == "simulated"));
            assert!(one.health().simulated);
            assert_eq!(one.metrics().gpus.len(), 8);
            assert!(!one.packages(&package_list::Params::default()).packages.is_empty());
        }
    }

    #[test]
    fn every_gpu_of_a_simulated_host_is_a_slot_with_its_own_drive_and_fabric_function() {
        for profile in [Profile::H100, Profile::Mi300x] {
            let folder = tempfile::tempdir().expect("folder");
            let host = crate::Host::Sim(SimHost::open(folder.path(), profile, "a").expect("opens"));
            let params = gpuaas_contract::task::slice_topology_discover::Params::default();
            let crate::Host::Sim(sim) = &host else { unreachable!("just made") };
            let inventory = host.inventory().expect("known");
            let output = crate::topology::discover(&inventory, sim.slice_network(&params.ovs_bridge), &params);
            assert_eq!((output.candidate_summary.slots, output.candidate_summary.schedulable), (8, 8), "{output:?}");
            assert!(output.simulated && output.approval_required);
            for slot in &output.candidate_slots {
                // Devices that belong together are behind one switch: the next bus is the drive's, the one after that the
                // fabric's.
                let bus = |address: &str| u8::from_str_radix(&address[5..7], 16).expect("a bus");
                let gpu = bus(slot.pci_address.as_ref().expect("a GPU").as_str());
                let drive =
                    inventory.namespaces.iter().find(|drive| Some(&drive.serial) == slot.nvme_serial.as_ref()).expect("known");
                assert_eq!(drive.path.last().map(|last| bus(last)), Some(gpu + 1));
                assert_eq!(slot.fabric_device.as_ref().map(|function| bus(function.as_str())), Some(gpu + 2));
            }
            assert_eq!(
                output,
                crate::topology::discover(&host.inventory().expect("known"), sim.slice_network(&params.ovs_bridge), &params)
            );
        }
    }

    #[test]
    fn a_folder_of_another_profile_is_not_taken_over() {
        let folder = tempfile::tempdir().expect("folder");
        SimHost::open(folder.path(), Profile::H100, "a").expect("opens");
        let error = SimHost::open(folder.path(), Profile::Mi300x, "a").expect_err("refused").to_string();
        assert!(error.contains("h100"), "{error}");
    }
}
