//! Plans the steps from the state of the host: pure, so that every case can be tested.

use std::net::Ipv4Addr;

use gpuaas_contract::slice::Subnet;

use super::apply::SetupAction;
use super::files::{MODULES, ManagedFile, Settings, TABLE, Unit};
use super::observe::{DhcpFound, FileFound, FilterFound, Found, LinkFound, PolicyFound, SwitchFound};
use super::record::Record;
use super::{Action, Plan, SetupError, Step, StepStatus};
use crate::policy::{self, SlicePermissions};

/// Alternatives to a network that overlaps.
const OTHER_NETWORKS: [&str; 4] = ["10.77.0.0/24", "10.177.0.0/24", "172.29.77.0/24", "192.168.177.0/24"];

/// Returns the plan, or why there is none.
pub(super) fn plan(settings: &Settings, found: &Found, record: Option<&Record>) -> Result<Plan, SetupError> {
    refuse(settings, found, record)?;
    let planner = Planner { settings, found, record };
    let files: Vec<(ManagedFile, Step)> = ManagedFile::ALL.into_iter().map(|file| (file, planner.file(file))).collect();
    let file_status =
        |wanted: ManagedFile| files.iter().find(|(file, _)| *file == wanted).map_or(StepStatus::Cannot, |(_, step)| step.status);
    let (bridge, address) = (planner.bridge(), planner.address());
    let rules = planner.rules(file_status(ManagedFile::Rules));
    let bridge_status = bridge.status.max(address.status);
    let dhcp = planner.dhcp(file_status(ManagedFile::Dhcp), bridge_status);
    let links: Vec<Step> = Unit::ALL.into_iter().map(|unit| planner.link(unit, bridge_status)).collect();
    let units_changed = [ManagedFile::NetworkUnit, ManagedFile::DhcpUnit].into_iter().map(file_status).max();
    let units = planner.units(units_changed.unwrap_or(StepStatus::Done), bridge_status.max(dhcp.status));

    let mut steps = vec![planner.packages()];
    steps.extend(planner.kernel());
    steps.push(planner.modules());
    steps.push(planner.forwarding());
    steps.extend(planner.folders());
    steps.extend(files.into_iter().map(|(_, step)| step));
    steps.extend(links);
    steps.extend([bridge, address, rules]);
    steps.extend(planner.closed_chains());
    steps.push(dhcp);
    steps.extend(units);
    steps.extend(planner.policy()?);
    Ok(Plan { steps })
}

/// Refuses states on which no setup may build.
fn refuse(settings: &Settings, found: &Found, record: Option<&Record>) -> Result<(), SetupError> {
    let bridge = &settings.bridge;
    let interface = found.interfaces.iter().find(|interface| interface.name == bridge.as_str());
    if let Some(uplink) = &settings.uplink
        && (uplink == bridge || !found.interfaces.iter().any(|interface| interface.name == uplink.as_str()))
    {
        return Err(SetupError::Uplink { uplink: uplink.clone() });
    }
    match &found.switch {
        // Without an answer the kind of the interface is unknown; the step of the bridge reports it.
        SwitchFound::Silent(_) => {}
        SwitchFound::NoBridge if interface.is_some() => return Err(SetupError::NotABridge { bridge: bridge.clone() }),
        SwitchFound::NoBridge => {}
        SwitchFound::Bridge(connected) => {
            let ours = record.is_some_and(Record::made_bridge);
            let of_a_guest = |port: &str| port.starts_with("vnet") || port.starts_with("tap");
            // A bridge of someone else may lead anywhere, also by a tunnel or another bridge.
            let leads_away = |port: &&String| found.hardware.contains(*port) || (!ours && !of_a_guest(port));
            if let Some(port) = connected.iter().find(leads_away) {
                return Err(SetupError::Connected { bridge: bridge.clone(), port: port.clone() });
            }
            let other = |(address, prefix): &&(Ipv4Addr, u8)| (*address, *prefix) != settings.gateway();
            if let Some((address, prefix)) = interface.and_then(|interface| interface.addresses.iter().find(other)) {
                return Err(SetupError::OtherAddress { bridge: bridge.clone(), address: format!("{address}/{prefix}") });
            }
        }
    }
    if let Some(with) = overlap(settings.network, settings, found) {
        let free = |text: &&&str| text.parse().is_ok_and(|network| overlap(network, settings, found).is_none());
        let suggestion = (*OTHER_NETWORKS.iter().find(free).unwrap_or(&"a private one that nothing else uses")).to_owned();
        return Err(SetupError::Overlap { network: settings.network, with, suggestion });
    }
    Ok(())
}

/// Returns the first address or route of the host that overlaps a network.
fn overlap(network: Subnet, settings: &Settings, found: &Found) -> Option<String> {
    let own = |name: &str| name == settings.bridge.as_str();
    let shares = |address: Ipv4Addr, prefix: u8| {
        let (start, length) = network.parts();
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(length))).unwrap_or(0);
        start.to_bits() & mask == address.to_bits() & mask
    };
    let addresses = found
        .interfaces
        .iter()
        .filter(|interface| !own(&interface.name))
        .flat_map(|interface| interface.addresses.iter().map(move |(address, prefix)| (*address, *prefix, &interface.name)));
    let mut overlapping = addresses.filter(|(address, prefix, _)| shares(*address, *prefix));
    if let Some((address, prefix, name)) = overlapping.next() {
        return Some(format!("the address {address}/{prefix} of {name}"));
    }
    // The default route overlaps everything, also if a VPN writes it as two halves.
    let routes = found.routes.iter().filter(|route| route.prefix > 1 && !own(&route.interface));
    let mut overlapping = routes.filter(|route| shares(route.destination, route.prefix));
    let route = overlapping.next()?;
    let by = if route.interface.is_empty() { String::new() } else { format!(" by {}", route.interface) };
    Some(format!("the route to {}/{}{by}", route.destination, route.prefix))
}

struct Planner<'a> {
    settings: &'a Settings,
    found: &'a Found,
    record: Option<&'a Record>,
}

impl Planner<'_> {
    /// Returns whether a package's programs exist when the step runs.
    fn will_have(&self, package: &str) -> bool {
        !self.found.missing_packages.contains(package) || (self.settings.install_packages && self.found.can_install)
    }

    fn packages(&self) -> Step {
        let missing: Vec<&'static str> = self.found.missing_packages.iter().copied().collect();
        if missing.is_empty() {
            return done("packages", "every program that guests need is installed", "");
        }
        let how = format!("apt-get install --no-install-recommends {}", missing.join(" "));
        let what = format!("install what is missing: {}", missing.join(", "));
        if self.settings.install_packages && self.found.can_install {
            return to_do("packages", &what, &how, SetupAction::Packages(missing));
        }
        let what = if self.found.can_install { format!("{what}; do it yourself, or add --install-packages") } else { what };
        cannot("packages", &what, &how)
    }

    /// Checks firmware and kernel, which only the owner can change.
    fn kernel(&self) -> Vec<Step> {
        let kernel = self.found.kernel;
        let mut steps = vec![if kernel.kvm {
            done("kvm", "the processor helps with guests", "/dev/kvm")
        } else {
            cannot("kvm", "switch virtualization on in the firmware, and load kvm_intel or kvm_amd", "/dev/kvm")
        }];
        steps.push(if kernel.iommu_groups > 0 {
            let what = format!("the IOMMU is on, with {} groups", kernel.iommu_groups);
            done("iommu", &what, "/sys/kernel/iommu_groups")
        } else {
            let what = "switch VT-d or AMD-Vi on in the firmware, add intel_iommu=on or amd_iommu=on to GRUB_CMDLINE_LINUX, \
                        run update-grub and reboot";
            cannot("iommu", what, "/etc/default/grub")
        });
        if kernel.reboot_required {
            steps.push(cannot("reboot", "the distribution asks for a reboot; do it before there are guests", "reboot"));
        }
        steps
    }

    fn modules(&self) -> Step {
        let missing: Vec<&'static str> = MODULES.into_iter().filter(|module| !self.found.modules.contains(module)).collect();
        if missing.is_empty() {
            return done("modules", "the modules that give devices to guests are loaded", "/sys/module");
        }
        let (what, how) = (format!("load {}", missing.join(" and ")), format!("modprobe -a {}", missing.join(" ")));
        if self.found.units.is_none() {
            // In a container, or in a test: the kernel belongs to another system.
            return at_boot("modules", &what, &how, SetupAction::Modules(missing));
        }
        if !self.will_have("kmod") {
            return cannot("modules", "install kmod first", &how);
        }
        to_do("modules", &what, &how, SetupAction::Modules(missing))
    }

    fn forwarding(&self) -> Step {
        let how = "sysctl net.ipv4.ip_forward=1";
        if self.found.forwarding {
            return done("forwarding", "the kernel forwards packets", how);
        }
        to_do("forwarding", "let the kernel forward packets", how, SetupAction::Forwarding)
    }

    fn folders(&self) -> Vec<Step> {
        let (settings, found) = (self.settings, self.found);
        let mut steps = Vec::new();
        let products = [settings.dhcp_hosts.parent(), settings.slices_dir.parent()];
        for (folder, mode) in &found.closed_folders {
            let how = format!("chmod o+x {}", folder.display());
            steps.push(if products.contains(&Some(folder)) {
                let what = "let dnsmasq and QEMU enter the folder of the agent's guests";
                to_do("folder", what, &how, SetupAction::OpenFolder { path: folder.clone(), mode: *mode })
            } else {
                cannot("folder", "dnsmasq and QEMU must be able to enter this folder", &how)
            });
        }
        let how = settings.dhcp_hosts.display().to_string();
        steps.push(if found.has_dhcp_hosts {
            done("reservations", "the folder of guests' addresses is there", &how)
        } else {
            to_do("reservations", "create the folder of guests' addresses", &how, SetupAction::DhcpFolder)
        });
        steps
    }

    fn file(&self, file: ManagedFile) -> Step {
        let path = file.path(self.settings);
        let (content, how) = (file.content(self.settings), path.display().to_string());
        let write = |what: String, replaces: Option<Vec<u8>>| {
            let action = SetupAction::WriteFile { path: path.clone(), content: content.clone(), replaces };
            to_do(file.name(), &what, &how, action)
        };
        match self.found.files.get(&file).unwrap_or(&FileFound::Absent) {
            FileFound::Absent => write(format!("write the {}", file.purpose()), None),
            FileFound::Content(bytes) if *bytes == content.as_bytes() => done(file.name(), file.purpose(), &how),
            FileFound::Content(bytes) if self.record.is_some_and(|record| record.wrote(&path, bytes)) => {
                write(format!("rewrite the {}", file.purpose()), Some(bytes.clone()))
            }
            FileFound::Content(_) | FileFound::Unusable => {
                let what = format!(
                    "{}: this file was not written by this setup, or was changed since; move it away and run this again",
                    file.purpose()
                );
                cannot(file.name(), &what, &how)
            }
        }
    }

    /// Plans the link of a unit, but not before the bridge: what a unit creates at boot must be in the record.
    fn link(&self, unit: Unit, bridge: StepStatus) -> Step {
        let (path, target) = (unit.link(self.settings), unit.target());
        let (what, how) = (format!("start {} at boot", unit.name()), path.display().to_string());
        match self.found.links.get(&unit).unwrap_or(&LinkFound::Absent) {
            LinkFound::Absent if bridge == StepStatus::Cannot => cannot("boot", &format!("{what}: the bridge comes first"), &how),
            LinkFound::Absent => to_do("boot", &what, &how, SetupAction::Link { path, target }),
            LinkFound::To(found) if *found == target => done("boot", &what, &how),
            LinkFound::To(_) | LinkFound::Unusable => {
                cannot("boot", &format!("{what}: something else is at this path; move it away and run this again"), &how)
            }
        }
    }

    fn bridge(&self) -> Step {
        let bridge = &self.settings.bridge;
        let how = format!("ovs-vsctl add-br {bridge}");
        let what = format!("create the Open vSwitch bridge {bridge}, with no physical interface");
        if !self.will_have("openvswitch-switch") {
            return cannot("bridge", "install openvswitch-switch first", &how);
        }
        match &self.found.switch {
            SwitchFound::Bridge(_) => done("bridge", &format!("Open vSwitch has the bridge {bridge}"), &how),
            SwitchFound::NoBridge => to_do("bridge", &what, &how, SetupAction::Bridge),
            // It starts when it is installed.
            SwitchFound::Silent(_) if self.found.missing_packages.contains("openvswitch-switch") => {
                to_do("bridge", &what, &how, SetupAction::Bridge)
            }
            SwitchFound::Silent(_) if self.found.units.is_none() => at_boot("bridge", &what, &how, SetupAction::Bridge),
            SwitchFound::Silent(why) => cannot("bridge", &format!("{why}; start it"), "systemctl start openvswitch-switch"),
        }
    }

    fn address(&self) -> Step {
        let (gateway, prefix) = self.settings.gateway();
        let bridge = &self.settings.bridge;
        let how = format!("ip address add {gateway}/{prefix} dev {bridge}");
        let interface = self.found.interfaces.iter().find(|interface| interface.name == bridge.as_str());
        if interface.is_some_and(|interface| interface.up && interface.addresses.contains(&(gateway, prefix))) {
            return done("address", &format!("{bridge} is up and has the address {gateway}/{prefix}"), &how);
        }
        let what = format!("switch {bridge} on and give it the first address of {}", self.settings.network);
        match self.bridge().status {
            StepStatus::Done | StepStatus::ToDo => to_do("address", &what, &how, SetupAction::Address),
            StepStatus::AtBoot => at_boot("address", &what, &how, SetupAction::Address),
            StepStatus::Cannot => cannot("address", "the bridge comes first", &how),
        }
    }

    fn rules(&self, file: StepStatus) -> Step {
        let how = format!("nft --file {}", ManagedFile::Rules.path(self.settings).display());
        let what = format!(
            "hide {} behind the host's address, and keep guests away from the host (table inet {TABLE})",
            self.settings.network
        );
        if !self.will_have("nftables") {
            return cannot("rules", "install nftables first", &how);
        }
        if file == StepStatus::Cannot {
            return cannot("rules", "the file of rules comes first", &how);
        }
        match &self.found.filter {
            FilterFound::Rules { ours, .. } if *ours == Some(self.settings.rule_count()) && file == StepStatus::Done => {
                done("rules", &format!("the table inet {TABLE} is loaded"), &how)
            }
            FilterFound::Rules { .. } => to_do("rules", &what, &how, SetupAction::Rules),
            FilterFound::Silent(_) if self.found.missing_packages.contains("nftables") => {
                to_do("rules", &what, &how, SetupAction::Rules)
            }
            FilterFound::Silent(why) => cannot("rules", &format!("{why}; run this as root"), &how),
        }
    }

    /// Reports chains of others that drop packets: an accepted packet continues with the next chain, and a dropped one is gone,
    /// so no table of ours can let it pass.
    fn closed_chains(&self) -> Vec<Step> {
        let FilterFound::Rules { closed, .. } = &self.found.filter else { return Vec::new() };
        let bridge = &self.settings.bridge;
        let step = |chain: &String| {
            let what = format!(
                "the chain {chain} drops forwarded packets; accept those from and to {bridge} in it, and keep that in the \
                                configuration of the firewall it belongs to"
            );
            let rule = |direction: &str| format!("nft insert rule {chain} {direction} {bridge} accept");
            cannot("firewall", &what, &format!("{}; {}", rule("iifname"), rule("oifname")))
        };
        closed.iter().map(step).collect()
    }

    fn dhcp(&self, file: StepStatus, bridge: StepStatus) -> Step {
        let how = format!("dnsmasq --conf-file={}", ManagedFile::Dhcp.path(self.settings).display());
        let what = format!("start DHCP and DNS for guests on {}", self.settings.bridge);
        if !self.will_have("dnsmasq-base") {
            return cannot("dhcp", "install dnsmasq-base first", &how);
        }
        if file == StepStatus::Cannot {
            return cannot("dhcp", "its file of settings comes first", &how);
        }
        match (&self.found.dhcp, bridge) {
            (DhcpFound::Foreign, _) => {
                let pid = self.settings.dnsmasq_pid.display();
                cannot(
                    "dhcp",
                    &format!("another dnsmasq runs by {pid}; stop it, so that it does not start again, and run this again"),
                    &how,
                )
            }
            (DhcpFound::Ours, StepStatus::Done) if file == StepStatus::Done => done("dhcp", "DHCP and DNS for guests run", &how),
            (DhcpFound::Off | DhcpFound::Ours, StepStatus::Done | StepStatus::ToDo) => {
                to_do("dhcp", &what, &how, SetupAction::Dhcp)
            }
            (DhcpFound::Off | DhcpFound::Ours, StepStatus::AtBoot) => at_boot("dhcp", &what, &how, SetupAction::Dhcp),
            (DhcpFound::Off | DhcpFound::Ours, StepStatus::Cannot) => cannot("dhcp", "the bridge comes first", &how),
        }
    }

    /// Plans the start of the units, if systemd runs.
    fn units(&self, files: StepStatus, parts: StepStatus) -> Option<Step> {
        let active = self.found.units?.active;
        let how = format!("systemctl daemon-reload; systemctl start {} {}", Unit::Network.name(), Unit::Dhcp.name());
        Some(match (files, parts) {
            (StepStatus::Cannot, _) => cannot("services", "the unit files come first", &how),
            (_, StepStatus::Cannot) => cannot("services", "bridge and DHCP come first", &how),
            (StepStatus::Done, _) if active => done("services", "systemd runs both services", &how),
            (StepStatus::Done | StepStatus::ToDo | StepStatus::AtBoot, _) => {
                to_do("services", "let systemd run both services", &how, SetupAction::Units)
            }
        })
    }

    fn policy(&self) -> Result<Vec<Step>, SetupError> {
        let path = &self.settings.policy_file;
        let bad = |why: String| SetupError::Policy { path: path.clone(), why };
        let example = policy::example();
        let (text, created) = match &self.found.policy {
            PolicyFound::Text(text) => (text.as_str(), false),
            PolicyFound::Absent => (example.as_str(), true),
            PolicyFound::Unusable(why) => return Err(bad(why.clone())),
        };
        let wanted = SlicePermissions::all(self.settings.bridge.clone());
        let missing = policy::missing(text, &wanted).map_err(|error| bad(error.to_string()))?;
        let how = path.display().to_string();
        let mut steps = vec![if missing.is_empty() && !created {
            done("policy", &format!("the host policy allows slice tasks on {}", self.settings.bridge), &how)
        } else {
            let content = policy::extended(text, &missing).map_err(|error| bad(error.to_string()))?;
            let before = (!created).then(|| text.to_owned());
            let what = permissions_text(&missing, created);
            to_do("policy", &what, &how, SetupAction::Policy { path: path.clone(), before, content, added: missing })
        }];
        let undecided = policy::undecided(text).map_err(|error| bad(error.to_string()))?;
        if !undecided.is_empty() {
            let what = format!(
                "list in [slices] of the host policy which devices, drives and images guests may have: {}; \
                 `gpuaas-agent topology` lists what this host has",
                undecided.join(", ")
            );
            steps.push(cannot("devices", &what, &how));
        }
        Ok(steps)
    }
}

fn permissions_text(added: &SlicePermissions, created: bool) -> String {
    let mut parts = Vec::new();
    if !added.tasks.is_empty() {
        let tasks: Vec<&str> = added.tasks.iter().map(|kind| kind.as_str()).collect();
        parts.push(format!("the tasks {}", tasks.join(", ")));
    }
    if let Some(bridge) = &added.bridge {
        parts.push(format!("guests on {bridge}"));
    }
    let verb = if created { "write a host policy that allows diagnostics and" } else { "allow in the host policy" };
    format!("{verb} {}", parts.join(" and "))
}

fn step(name: &'static str, status: StepStatus, what: &str, how: &str, action: Option<SetupAction>) -> Step {
    Step { name, status, what: what.to_owned(), how: how.to_owned(), action: action.map(Action::Setup) }
}

fn done(name: &'static str, what: &str, how: &str) -> Step {
    step(name, StepStatus::Done, what, how, None)
}

fn to_do(name: &'static str, what: &str, how: &str, action: SetupAction) -> Step {
    step(name, StepStatus::ToDo, what, how, Some(action))
}

/// Records now what a unit does at boot, because it is ours too.
fn at_boot(name: &'static str, what: &str, how: &str, action: SetupAction) -> Step {
    step(name, StepStatus::AtBoot, what, how, Some(action))
}

fn cannot(name: &'static str, what: &str, how: &str) -> Step {
    step(name, StepStatus::Cannot, what, how, None)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
