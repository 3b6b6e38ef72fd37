//! Types of the operations.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use gpuaas_contract::Digest;
use gpuaas_contract::address::Network;
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::slice::{Holder, InterfaceName, PciAddress, SlotSpec, UserName, VmName};
use gpuaas_contract::time::Timestamp;

/// Paths and limits for guests on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Leases and fences. Only the agent reads them.
    pub leases: PathBuf,
    /// A folder per guest: seed, keys, console. The hypervisor reads them.
    pub instances: PathBuf,
    /// The image store, by digest.
    pub images: PathBuf,
    /// Folders with images of the host's owner, for `image_path`.
    pub image_folders: Vec<PathBuf>,
    /// Size limit of the image store.
    pub image_cache_bytes: u64,
    /// The folder of dnsmasq's `--dhcp-hostsdir`.
    pub dhcp_hosts: PathBuf,
    /// The file with dnsmasq's process id.
    pub dnsmasq_pid: PathBuf,
    /// Size limit of one guest's console.
    pub console_bytes: u64,
    /// Whether guests' memory comes from huge pages.
    pub huge_pages: bool,
}

/// The paths of the kernel's file systems; they differ only in tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachinePaths {
    /// `/sys`
    pub sys: PathBuf,
    /// `/proc`
    pub proc_root: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for MachinePaths {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc_root: "/proc".into(), dev: "/dev".into() }
    }
}

/// A point in a phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Nothing is done, and the journal has no record of the phase.
    Begin,
    /// The journal has a record of the start.
    Journaled,
    /// Everything is done, and the journal has no record of the end.
    Done,
}

/// Whether a drive may have been written since it was last proven clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveMark {
    /// It was not written.
    Clean,
    /// It may have been written: recorded before the first byte.
    Dirty,
}

/// Whether a guest may have had the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestMark {
    /// It never had them.
    Never,
    /// It may have had them: recorded before the guest is defined.
    Given,
}

/// The desired power state of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// It should not run, or not yet.
    Off,
    /// It should run: it is started again after a reboot of the host.
    On,
}

/// The lease of a slot, and its state. One file per slot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The slot.
    pub slot_id: SlotId,
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Its epoch, for fencing.
    pub lease_epoch: u64,
    /// The task that took it.
    pub task_id: TaskId,
    /// The parts of the slot.
    pub spec: SlotSpec,
    /// The guest's name.
    pub vm_name: String,
    /// The time when it was taken.
    pub taken_at: Timestamp,
    /// The boot in which the guest was last started.
    pub boot_id: String,
    /// The state of the drive.
    pub drive: DriveMark,
    /// The state of the functions.
    pub guest: GuestMark,
    /// The desired power state.
    pub power: Power,
}

impl Lease {
    /// Returns its holder.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

/// What a slot remembers after its lease is gone.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// The slot.
    pub slot_id: SlotId,
    /// The highest epoch it has seen.
    pub lease_epoch: u64,
    /// The allocation of that epoch.
    pub allocation_id: AllocationId,
    /// Its functions, which stay on `vfio-pci`.
    pub functions: Vec<PciAddress>,
    /// Whether the holder has given it back. From then on nothing can begin in that epoch; it can only be cleaned up again.
    pub over: bool,
}

/// Memory that is free for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Ordinary memory.
    pub available_mib: u64,
    /// Free huge pages.
    pub huge_pages_mib: u64,
}

/// The state of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionState {
    /// Its address.
    pub address: PciAddress,
    /// Its current driver; empty if none.
    pub driver: String,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
    /// The other members of the group, without bridges.
    pub group_members: Vec<PciAddress>,
    /// The size of all its BARs.
    pub bar_bytes: u64,
    /// Whether the firmware assigned an address to every BAR.
    pub bars_assigned: bool,
    /// Whether it can be reset.
    pub can_reset: bool,
}

/// A requested image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageWanted {
    /// Its digest, which identifies it.
    pub sha256: Digest,
    /// A path below one of the host's image folders.
    pub path: Option<String>,
    /// Its URL, if it has no path.
    pub url: Option<String>,
    /// Allowed redirect targets: each address must be below one of these, or `*` is among them. Empty for none.
    pub allowed_prefixes: Vec<String>,
    /// Private networks that are allowed as a source.
    pub private_networks: Vec<Network>,
}

/// A stored image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageStored {
    /// The size of the file.
    pub bytes: u64,
    /// Whether it was already there.
    pub was_cached: bool,
}

/// A file of a guest's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceFile {
    /// cloud-init's user data.
    UserData,
    /// cloud-init's metadata.
    MetaData,
    /// cloud-init's network configuration.
    NetworkConfig,
    /// The seed disk built from them.
    Seed,
    /// The private key for terminals.
    TerminalKey,
    /// Its public half.
    TerminalKeyPublic,
    /// The guest's host key, for SSH clients.
    KnownHosts,
    /// The guest's private host key, which it gets through its seed.
    HostKey,
    /// Its public half.
    HostKeyPublic,
    /// The token of the guest's telemetry helper.
    TelemetryToken,
    /// The guest's serial console.
    Console,
}

impl InstanceFile {
    /// Returns its file name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserData => "user-data",
            Self::MetaData => "meta-data",
            Self::NetworkConfig => "network-config",
            Self::Seed => "seed.iso",
            Self::TerminalKey => "terminal_ed25519",
            Self::TerminalKeyPublic => "terminal_ed25519.pub",
            Self::KnownHosts => "known_hosts",
            Self::HostKey => "host_ed25519",
            Self::HostKeyPublic => "host_ed25519.pub",
            Self::TelemetryToken => "telemetry-token",
            Self::Console => "console.log",
        }
    }
}

/// A DHCP reservation of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The guest.
    pub allocation_id: AllocationId,
    /// Its MAC address.
    pub mac_address: String,
    /// Its IP address.
    pub private_ip: Ipv4Addr,
    /// Its name.
    pub vm_name: VmName,
}

/// A drive: its path and its expected identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveRef {
    /// Stable path.
    pub path: String,
    /// Serial number.
    pub serial: String,
}

impl DriveRef {
    /// Returns the drive of a slot.
    pub fn of(spec: &SlotSpec) -> Self {
        Self { path: spec.nvme_device.clone(), serial: spec.nvme_serial.clone() }
    }
}

/// An identified drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInfo {
    /// Kernel name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

/// The specification of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSpec {
    /// The allocation. It is also the guest's UUID, so that it can never be confused with another.
    pub allocation_id: AllocationId,
    /// Its epoch, for fencing.
    pub lease_epoch: u64,
    /// The guest's host name.
    pub vm_name: VmName,
    /// Its slots, in order. The first one's drive is the boot drive, and its address is the guest's.
    pub slots: Vec<SlotSpec>,
    /// The bridge of the guests.
    pub ovs_bridge: InterfaceName,
    /// Whether KVM runs it; otherwise it is emulated.
    pub kvm: bool,
    /// Whether it has a virtual screen.
    pub graphics: bool,
}

impl DomainSpec {
    /// Returns the number of all vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.slots.iter().map(|slot| slot.vcpu_count).fold(0, u32::saturating_add)
    }

    /// Returns all memory.
    pub fn memory_mib(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory_mib).fold(0, u64::saturating_add)
    }
}

/// The state of a guest in the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DomainState {
    /// The guest is not defined.
    Absent,
    /// It is defined and not running.
    Off,
    /// It is running, stopping or hanging: it has its devices.
    Running,
}

/// How to sign in to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAccess {
    /// The guest. Its keys are in its folder.
    pub allocation_id: AllocationId,
    /// Its address.
    pub address: Ipv4Addr,
    /// The user with the terminal key.
    pub user: UserName,
}

/// The answer of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestAnswer {
    /// Whether SSH worked and the host key was right.
    pub ssh: bool,
    /// Whether the guest is marked as ready.
    pub marker: bool,
}

/// Where to start reading a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleFrom {
    /// This many bytes before its end.
    Tail(u64),
    /// This position.
    Position(u64),
}

/// A part of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsolePart {
    /// Its first position. Later than requested if older output was removed.
    pub start: u64,
    /// The output of the guest.
    pub bytes: Vec<u8>,
}

impl ConsolePart {
    /// Returns the position after it.
    pub fn next(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}
