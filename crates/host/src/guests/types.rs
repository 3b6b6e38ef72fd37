//! Words of the operations.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use gpuaas_contract::Digest;
use gpuaas_contract::address::Network;
use gpuaas_contract::id::{AllocationId, SlotId, TaskId};
use gpuaas_contract::slice::{Holder, InterfaceName, PciAddress, SlotSpec, UserName, VmName};
use gpuaas_contract::time::Timestamp;

/// Where everything about guests is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Leases and fences; nobody but the agent reads them.
    pub leases: PathBuf,
    /// A folder per guest: seed, keys, console. The hypervisor reads in them.
    pub instances: PathBuf,
    /// The store of images, by digest.
    pub images: PathBuf,
    /// Folders with images that the host's owner put there, for `image_path`.
    pub image_folders: Vec<PathBuf>,
    /// Most bytes of the store of images.
    pub image_cache_bytes: u64,
    /// The folder that dnsmasq was given as `--dhcp-hostsdir`.
    pub dhcp_hosts: PathBuf,
    /// dnsmasq's process id.
    pub dnsmasq_pid: PathBuf,
    /// Most bytes of one guest's console.
    pub console_bytes: u64,
    /// Guests' memory comes from huge pages.
    pub huge_pages: bool,
}

/// Where the kernel's trees are; elsewhere only in tests.
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

/// Where in a phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Nothing of it has been done, and the journal does not know that it begins.
    Begin,
    /// The journal knows that it begins.
    Journaled,
    /// All of it has been done, and the journal does not know.
    Done,
}

/// Whether something may have been written to a drive since it was last proven clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveMark {
    /// No.
    Clean,
    /// It may: written down before the first byte.
    Dirty,
}

/// Whether a guest may have had the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestMark {
    /// Never.
    Never,
    /// It may: written down before the guest is made known to the hypervisor.
    Given,
}

/// Whether the guest is meant to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// It is not, or not yet.
    Off,
    /// It is: after a reboot of the host it is started again.
    On,
}

/// Who holds a slot, and what has become of it. One file per slot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The slot.
    pub slot_id: SlotId,
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Its fencing number.
    pub lease_epoch: u64,
    /// The task that took it.
    pub task_id: TaskId,
    /// What the slot consists of.
    pub spec: SlotSpec,
    /// The guest's name.
    pub vm_name: String,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The boot in which the guest was last started.
    pub boot_id: String,
    /// The drive.
    pub drive: DriveMark,
    /// The functions.
    pub guest: GuestMark,
    /// The guest.
    pub power: Power,
}

impl Lease {
    /// Whose it is.
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
    /// The highest number it has seen.
    pub lease_epoch: u64,
    /// Whose that was.
    pub allocation_id: AllocationId,
    /// Its functions: they rest on `vfio-pci`.
    pub functions: Vec<PciAddress>,
    /// The holder has given it back. From then on nothing can be begun under that number, only cleaned up again.
    pub over: bool,
}

/// Memory that guests could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// Ordinary memory.
    pub available_mib: u64,
    /// Free huge pages.
    pub huge_pages_mib: u64,
}

/// A function on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionState {
    /// Its address.
    pub address: PciAddress,
    /// The driver that has it; empty if none.
    pub driver: String,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
    /// What else is in the group, without bridges.
    pub group_members: Vec<PciAddress>,
    /// Its windows into memory, all together.
    pub bar_bytes: u64,
    /// The firmware gave every window an address.
    pub bars_assigned: bool,
    /// It can be reset.
    pub can_reset: bool,
}

/// An image that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageWanted {
    /// Its digest: what it is known by.
    pub sha256: Digest,
    /// A file below one of the host's image folders.
    pub path: Option<String>,
    /// Where it comes from otherwise.
    pub url: Option<String>,
    /// Where a server may send on to: each address must be below one of these, or `*` is among them. Empty: nowhere.
    pub allowed_prefixes: Vec<String>,
    /// Networks that are not the public internet and may be asked all the same.
    pub private_networks: Vec<Network>,
}

/// An image that the host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageStored {
    /// Size of the file.
    pub bytes: u64,
    /// It was there already.
    pub was_cached: bool,
}

/// A file of a guest's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceFile {
    /// What cloud-init shall do.
    UserData,
    /// Who the guest is.
    MetaData,
    /// How it reaches the network.
    NetworkConfig,
    /// The seed disk made of them.
    Seed,
    /// The key that terminals use.
    TerminalKey,
    /// Its public half.
    TerminalKeyPublic,
    /// The key that the guest must show, for SSH clients.
    KnownHosts,
    /// The guest's own host key; it gets it through its seed.
    HostKey,
    /// Its public half.
    HostKeyPublic,
    /// The token that the guest's helper shows.
    TelemetryToken,
    /// What the guest writes to its serial line.
    Console,
}

impl InstanceFile {
    /// Its name.
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

/// An address that belongs to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The guest.
    pub allocation_id: AllocationId,
    /// Its hardware address.
    pub mac_address: String,
    /// Its address.
    pub private_ip: Ipv4Addr,
    /// Its name.
    pub vm_name: VmName,
}

/// A drive: where it is, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveRef {
    /// Stable path.
    pub path: String,
    /// Serial number.
    pub serial: String,
}

impl DriveRef {
    /// The drive of a slot.
    pub fn of(spec: &SlotSpec) -> Self {
        Self { path: spec.nvme_device.clone(), serial: spec.nvme_serial.clone() }
    }
}

/// A drive that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveInfo {
    /// Kernel name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

/// What a guest consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSpec {
    /// The allocation: also the guest's own number, so it can never be taken for another.
    pub allocation_id: AllocationId,
    /// Its fencing number.
    pub lease_epoch: u64,
    /// The name the guest gives itself.
    pub vm_name: VmName,
    /// Its slots, in order: the first one's drive boots and its address is the guest's.
    pub slots: Vec<SlotSpec>,
    /// The bridge of the guests.
    pub ovs_bridge: InterfaceName,
    /// Run by the processor; emulated otherwise.
    pub kvm: bool,
    /// A virtual screen.
    pub graphics: bool,
}

impl DomainSpec {
    /// All vCPUs.
    pub fn vcpus(&self) -> u32 {
        self.slots.iter().map(|slot| slot.vcpu_count).fold(0, u32::saturating_add)
    }

    /// All memory.
    pub fn memory_mib(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory_mib).fold(0, u64::saturating_add)
    }
}

/// What the hypervisor says of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DomainState {
    /// It knows no such guest.
    Absent,
    /// It knows it, and it does not run.
    Off,
    /// It runs, or is about to stop, or hangs: it has its devices.
    Running,
}

/// How to get into a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAccess {
    /// The guest: its keys are in its folder.
    pub allocation_id: AllocationId,
    /// Its address.
    pub address: Ipv4Addr,
    /// The user of the terminal key.
    pub user: UserName,
}

/// What a guest answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestAnswer {
    /// It let us in and is who it should be.
    pub ssh: bool,
    /// It says that it is ready.
    pub marker: bool,
}

/// From where to read a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleFrom {
    /// So many bytes before its end.
    Tail(u64),
    /// This position.
    Position(u64),
}

/// A part of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsolePart {
    /// Where it begins. Later than asked for if the budget has taken what was before.
    pub start: u64,
    /// What the guest wrote.
    pub bytes: Vec<u8>,
}

impl ConsolePart {
    /// Where it goes on.
    pub fn next(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}
