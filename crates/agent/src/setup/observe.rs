//! The current state of this host, as far as the plan depends on it. Read-only.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gpuaas_host::exec::first_installed;
use gpuaas_host::ip::{self, Interface, Route};
use gpuaas_host::{dnsmasq, kernel, nft, ovs, packages, private_file, systemd};

use super::SetupError;
use super::files::{MODULES, ManagedFile, Settings, TABLE, Unit};
use crate::error_chain::chain;
use crate::policy::{self, PolicyError};

/// Size limit of a file that could be one of ours.
const MAX_FILE: u64 = 64 * 1024;

/// A program that guests need, its paths in distributions, and its Debian package.
struct Program {
    package: &'static str,
    places: &'static [&'static str],
}

const PROGRAMS: [Program; 11] = [
    Program { package: "cloud-image-utils", places: &["/usr/bin/cloud-localds"] },
    Program { package: "dnsmasq-base", places: &["/usr/sbin/dnsmasq"] },
    Program { package: "kmod", places: &["/usr/sbin/modprobe", "/sbin/modprobe"] },
    Program { package: "libvirt-clients", places: &["/usr/bin/virsh"] },
    Program { package: "libvirt-daemon-system", places: &["/usr/sbin/libvirtd", "/usr/sbin/virtqemud"] },
    Program { package: "nftables", places: &["/usr/sbin/nft", "/sbin/nft"] },
    Program { package: "nvme-cli", places: &["/usr/sbin/nvme", "/sbin/nvme"] },
    Program { package: "openssh-client", places: &["/usr/bin/ssh"] },
    Program { package: "openvswitch-switch", places: &["/usr/sbin/ovs-vswitchd"] },
    Program { package: "qemu-system-x86", places: &["/usr/bin/qemu-system-x86_64"] },
    Program { package: "qemu-utils", places: &["/usr/bin/qemu-img"] },
];

/// The state of the host.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Debian packages whose programs are missing.
    pub(super) missing_packages: BTreeSet<&'static str>,
    /// Whether packages can be installed here.
    pub(super) can_install: bool,
    /// The state of our units; `None` if systemd does not run, or is not used.
    pub(super) units: Option<UnitsFound>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) routes: Vec<Route>,
    /// Interfaces of hardware.
    pub(super) hardware: BTreeSet<String>,
    pub(super) switch: SwitchFound,
    pub(super) filter: FilterFound,
    /// Whether the kernel forwards packets.
    pub(super) forwarding: bool,
    /// Loaded modules, of those that guests need.
    pub(super) modules: BTreeSet<&'static str>,
    pub(super) kernel: KernelFound,
    pub(super) dhcp: DhcpFound,
    pub(super) files: BTreeMap<ManagedFile, FileFound>,
    pub(super) links: BTreeMap<Unit, LinkFound>,
    /// Whether the folder of reservations exists.
    pub(super) has_dhcp_hosts: bool,
    /// Folders on the way to files of dnsmasq and QEMU that other users cannot enter, with their modes.
    pub(super) closed_folders: BTreeMap<PathBuf, u32>,
    pub(super) policy: PolicyFound,
}

/// Our units under systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitsFound {
    /// Whether both are active.
    pub(super) active: bool,
}

/// Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SwitchFound {
    /// It does not answer, and why.
    Silent(String),
    /// It answers, and does not have the bridge.
    NoBridge,
    /// It has the bridge, with these interfaces.
    Bridge(Vec<String>),
}

/// The packet filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterFound {
    /// It does not answer, and why.
    Silent(String),
    /// It answers.
    Rules {
        /// The number of rules in our table, if it exists.
        ours: Option<usize>,
        /// Chains of others that drop by default.
        closed: Vec<String>,
    },
}

/// The features of processor and kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelFound {
    pub(super) kvm: bool,
    pub(super) iommu_groups: u32,
    pub(super) reboot_required: bool,
}

/// The dnsmasq of guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DhcpFound {
    Off,
    /// It runs with our settings.
    Ours,
    /// It runs with other settings.
    Foreign,
}

/// A file at the path of one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileFound {
    Absent,
    Content(Vec<u8>),
    /// A folder, a link, or an unreadable file.
    Unusable,
}

/// A link at the path of one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkFound {
    Absent,
    To(PathBuf),
    /// It is not a link.
    Unusable,
}

/// The host policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PolicyFound {
    Absent,
    Text(String),
    /// It cannot be trusted or read.
    Unusable(String),
}

/// Reads the state of this host.
pub(super) async fn observe(settings: &Settings) -> Result<Found, SetupError> {
    let sys = Path::new("/sys");
    let interfaces = ip::interfaces().await?;
    let hardware = |interface: &&Interface| sys.join("class/net").join(&interface.name).join("device").exists();
    let missing = PROGRAMS.iter().filter(|program| first_installed(program.places).is_none());
    let live = settings.is_live();
    Ok(Found {
        missing_packages: missing.map(|program| program.package).collect(),
        can_install: live && packages::can_install(),
        units: if live && systemd::is_running() { Some(units().await?) } else { None },
        hardware: interfaces.iter().filter(hardware).map(|interface| interface.name.clone()).collect(),
        interfaces,
        routes: ip::routes().await?,
        switch: switch(settings).await,
        filter: filter().await,
        forwarding: kernel::forwards_ipv4(),
        modules: MODULES.into_iter().filter(|module| kernel::has_module(sys, module)).collect(),
        kernel: KernelFound {
            kvm: kernel::kvm(),
            iommu_groups: kernel::iommu_groups(sys),
            reboot_required: kernel::reboot_required(),
        },
        dhcp: dhcp(&settings.dnsmasq_pid, &ManagedFile::Dhcp.path(settings))?,
        files: ManagedFile::ALL.into_iter().map(|file| (file, file_at(&file.path(settings)))).collect(),
        links: Unit::ALL.into_iter().map(|unit| (unit, link_at(&unit.link(settings)))).collect(),
        has_dhcp_hosts: settings.dhcp_hosts.is_dir(),
        closed_folders: closed_folders(&[&settings.dhcp_hosts, &settings.slices_dir]),
        policy: policy_at(&settings.policy_file),
    })
}

async fn units() -> Result<UnitsFound, SetupError> {
    let mut active = true;
    for unit in Unit::ALL {
        active &= is_active(unit).await?;
    }
    Ok(UnitsFound { active })
}

pub(super) async fn is_active(unit: Unit) -> Result<bool, SetupError> {
    Ok(systemd::status(unit.name()).await?.active == "active")
}

async fn switch(settings: &Settings) -> SwitchFound {
    let found = async {
        if !ovs::bridge_exists(&settings.bridge).await? {
            return Ok(SwitchFound::NoBridge);
        }
        ovs::connected(&settings.bridge).await.map(SwitchFound::Bridge)
    };
    found.await.unwrap_or_else(|error: ovs::OvsError| SwitchFound::Silent(chain(&error)))
}

async fn filter() -> FilterFound {
    match nft::ruleset().await {
        Ok(rules) => FilterFound::Rules { ours: rules.count(TABLE), closed: rules.closed_forward_chains(TABLE) },
        Err(error) => FilterFound::Silent(chain(&error)),
    }
}

/// Returns the state of the agent's dnsmasq, and whether it uses this settings file.
pub(super) fn dhcp(pid_file: &Path, settings: &Path) -> Result<DhcpFound, SetupError> {
    Ok(match dnsmasq::server(pid_file)? {
        dnsmasq::Server::Off => DhcpFound::Off,
        dnsmasq::Server::Running(arguments) => {
            if arguments.contains(&dnsmasq::settings_argument(settings)) {
                DhcpFound::Ours
            } else {
                DhcpFound::Foreign
            }
        }
    })
}

/// Reads the file at this path. A link is not ours: following it would read, and later replace, another file.
pub(super) fn file_at(path: &Path) -> FileFound {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return FileFound::Absent,
        Ok(meta) if meta.is_file() && meta.len() <= MAX_FILE => {}
        Ok(_) | Err(_) => return FileFound::Unusable,
    }
    let mut bytes = Vec::new();
    match std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes)) {
        Ok(_) => FileFound::Content(bytes),
        Err(_) => FileFound::Unusable,
    }
}

pub(super) fn link_at(path: &Path) -> LinkFound {
    match std::fs::read_link(path) {
        Ok(target) => LinkFound::To(target),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => LinkFound::Absent,
        Err(_) => LinkFound::Unusable,
    }
}

/// Returns the folders on the way to these paths that other users cannot enter.
fn closed_folders(paths: &[&Path]) -> BTreeMap<PathBuf, u32> {
    let above = paths.iter().flat_map(|path| path.ancestors().skip(1));
    above
        .filter_map(|folder| Some((folder.to_owned(), folder.metadata().ok()?.mode() & 0o7777)))
        .filter(|(_, mode)| mode & 0o001 == 0)
        .collect()
}

pub(super) fn policy_at(path: &Path) -> PolicyFound {
    match policy::read_text(path) {
        Ok((text, _)) => PolicyFound::Text(text),
        Err(PolicyError::File(private_file::PrivateFileError::Io { source, .. }))
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            PolicyFound::Absent
        }
        Err(error) => PolicyFound::Unusable(chain(&error)),
    }
}
