//! The files of the setup and their content: pure functions of the settings.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use gpuaas_contract::slice::{InterfaceName, Subnet};
use gpuaas_host::ovs::{self, Datapath};

use super::SetupError;

/// Our table of the packet filter, of the family `inet`. No other is ever changed.
pub(super) const TABLE: &str = "gpuaas_slices";
/// Modules for passthrough, by their names in sysfs.
pub(super) const MODULES: [&str; 2] = ["vfio_iommu_type1", "vfio_pci"];

/// The settings of a host's setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) bridge: InterfaceName,
    pub(super) network: Subnet,
    pub(super) datapath: Datapath,
    pub(super) uplink: Option<InterfaceName>,
    pub(super) install_packages: bool,
    pub(super) telemetry: Option<SocketAddr>,
    pub(super) dhcp_hosts: PathBuf,
    pub(super) dnsmasq_pid: PathBuf,
    pub(super) slices_dir: PathBuf,
    pub(super) policy_file: PathBuf,
    pub(super) root: PathBuf,
}

/// A file that is completely ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ManagedFile {
    Modules,
    Sysctl,
    Rules,
    Dhcp,
    NetworkUnit,
    DhcpUnit,
}

/// A link that starts a unit at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    Network,
    Dhcp,
}

impl Unit {
    pub(super) const ALL: [Self; 2] = [Self::Network, Self::Dhcp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Network => "gpuaas-slices.service",
            Self::Dhcp => "gpuaas-slices-dhcp.service",
        }
    }

    /// Returns the target of the link: the same on the host, whatever folder the files are written under.
    pub(super) fn target(self) -> PathBuf {
        Path::new("/etc/systemd/system").join(self.name())
    }

    pub(super) fn link(self, settings: &Settings) -> PathBuf {
        settings.root.join("etc/systemd/system/multi-user.target.wants").join(self.name())
    }
}

impl ManagedFile {
    pub(super) const ALL: [Self; 6] = [Self::Modules, Self::Sysctl, Self::Rules, Self::Dhcp, Self::NetworkUnit, Self::DhcpUnit];

    /// Returns its short name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Modules => "modules-file",
            Self::Sysctl => "sysctl-file",
            Self::Rules => "rules-file",
            Self::Dhcp => "dhcp-file",
            Self::NetworkUnit => "network-unit",
            Self::DhcpUnit => "dhcp-unit",
        }
    }

    /// Returns its purpose.
    pub(super) const fn purpose(self) -> &'static str {
        match self {
            Self::Modules => "list of modules that give devices to guests, loaded at boot",
            Self::Sysctl => "kernel setting that forwards packets, applied at boot",
            Self::Rules => "rules of the packet filter for guests",
            Self::Dhcp => "settings of DHCP and DNS for guests",
            Self::NetworkUnit => "systemd unit that creates the bridge and loads the rules",
            Self::DhcpUnit => "systemd unit that runs DHCP and DNS for guests",
        }
    }

    /// Returns its path on the host.
    const fn place(self) -> &'static str {
        match self {
            Self::Modules => "etc/modules-load.d/gpuaas-slices.conf",
            Self::Sysctl => "etc/sysctl.d/90-gpuaas-slices.conf",
            Self::Rules => "etc/gpuaas-agent/slices.nft",
            Self::Dhcp => "etc/gpuaas-agent/slices-dnsmasq.conf",
            Self::NetworkUnit => "etc/systemd/system/gpuaas-slices.service",
            Self::DhcpUnit => "etc/systemd/system/gpuaas-slices-dhcp.service",
        }
    }

    /// Returns the path where it is written.
    pub(super) fn path(self, settings: &Settings) -> PathBuf {
        settings.root.join(self.place())
    }

    /// Returns the path that units use.
    fn path_on_host(self) -> PathBuf {
        Path::new("/").join(self.place())
    }

    /// Returns its content.
    pub(super) fn content(self, settings: &Settings) -> String {
        let body = match self {
            Self::Modules => MODULES.map(|module| format!("{module}\n")).concat(),
            Self::Sysctl => "net.ipv4.ip_forward = 1\n".to_owned(),
            Self::Rules => settings.rules_text(),
            Self::Dhcp => settings.dhcp_text(),
            Self::NetworkUnit => settings.network_unit(),
            Self::DhcpUnit => settings.dhcp_unit(),
        };
        format!("# Written by `gpuaas-agent setup slices`, and removed by `gpuaas-agent setup slices --undo`.\n{body}")
    }
}

struct RuleChain {
    name: &'static str,
    base: &'static str,
    rules: Vec<String>,
}

impl Settings {
    /// Returns whether the running system may be changed besides its network.
    pub(super) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the host's address in the guests' network, and its prefix length.
    pub(super) fn gateway(&self) -> (Ipv4Addr, u8) {
        (self.network.gateway(), self.network.parts().1)
    }

    /// Returns the path of dnsmasq's lease file.
    pub(super) fn dhcp_leases(&self) -> PathBuf {
        self.dhcp_hosts.with_file_name("dnsmasq.leases")
    }

    /// Checks the paths of the configuration. They become words in files of other programs with different quoting rules; plain
    /// paths need no quoting.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-');
        let paths = [("dhcp_hosts_dir", &self.dhcp_hosts), ("dnsmasq_pid_file", &self.dnsmasq_pid)];
        for (key, path) in paths {
            let text = path.to_string_lossy();
            let good = path.is_absolute() && path.parent().is_some() && text.len() <= 1024 && text.bytes().all(plain);
            if !good || path.components().any(|part| part == std::path::Component::ParentDir) {
                return Err(SetupError::Path { key, path: path.clone() });
            }
        }
        Ok(())
    }

    /// Returns the number of rules in our table.
    pub(super) fn rule_count(&self) -> usize {
        self.chains().iter().map(|chain| chain.rules.len()).sum()
    }

    fn chains(&self) -> [RuleChain; 4] {
        let (bridge, network, gateway) = (&self.bridge, self.network, self.network.gateway());
        let leave_by = match &self.uplink {
            Some(uplink) => format!("oifname \"{uplink}\""),
            None => format!("oifname != \"{bridge}\""),
        };
        let mut input = vec![
            format!("iifname != \"{bridge}\" accept"),
            "meta nfproto ipv6 drop".to_owned(),
            "ct state established,related accept".to_owned(),
            "udp dport { 53, 67 } accept".to_owned(),
            format!("ip daddr {gateway} tcp dport 53 accept"),
            format!("ip daddr {gateway} icmp type echo-request accept"),
        ];
        if let Some(SocketAddr::V4(listener)) = self.telemetry.filter(|listener| !listener.ip().is_loopback()) {
            input.push(format!("ip daddr {} tcp dport {} accept", listener.ip(), listener.port()));
        }
        input.push("drop".to_owned());
        // If the host is itself a cloud instance, its credentials are served at such an address.
        let mut forward = vec![format!("iifname \"{bridge}\" ip daddr 169.254.0.0/16 drop")];
        if let Some(uplink) = &self.uplink {
            forward.push(format!("iifname \"{bridge}\" oifname != {{ \"{bridge}\", \"{uplink}\" }} drop"));
        }
        [
            RuleChain {
                name: "prerouting",
                base: "type filter hook prerouting priority raw; policy accept;",
                rules: vec![format!("iifname \"{bridge}\" ip saddr != {{ 0.0.0.0, {network} }} drop")],
            },
            RuleChain { name: "input", base: "type filter hook input priority filter; policy accept;", rules: input },
            RuleChain { name: "forward", base: "type filter hook forward priority filter; policy accept;", rules: forward },
            RuleChain {
                name: "postrouting",
                base: "type nat hook postrouting priority srcnat; policy accept;",
                rules: vec![format!("ip saddr {network} {leave_by} masquerade")],
            },
        ]
    }

    /// Returns the rules. Loading them replaces the table in one transaction, whether it exists or not.
    fn rules_text(&self) -> String {
        let mut text = format!("table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n");
        for RuleChain { name, base, rules } in self.chains() {
            text.push_str(&format!("  chain {name} {{\n    {base}\n"));
            for rule in rules {
                text.push_str(&format!("    {rule}\n"));
            }
            text.push_str("  }\n");
        }
        text + "}\n"
    }

    /// Returns dnsmasq's settings. Only guests with a reservation get an address. The interface may appear later than dnsmasq:
    /// `bind-dynamic`.
    fn dhcp_text(&self) -> String {
        let (network, prefix) = self.network.parts();
        let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0));
        format!(
            "interface={bridge}\nexcept-interface=lo\nbind-dynamic\nno-hosts\ndhcp-authoritative\n\
             dhcp-range={network},static,{mask}\ndhcp-hostsdir={hosts}\ndhcp-leasefile={leases}\npid-file={pid}\n",
            bridge = self.bridge,
            hosts = self.dhcp_hosts.display(),
            leases = self.dhcp_leases().display(),
            pid = self.dnsmasq_pid.display(),
        )
    }

    /// Returns the network unit. It has no stop command: stopping the unit keeps the guests' network. `nftables.service` flushes
    /// the whole packet filter when it starts, restarts or reloads, so this unit follows it.
    fn network_unit(&self) -> String {
        let (gateway, prefix) = self.gateway();
        let bridge = &self.bridge;
        format!(
            "[Unit]\nDescription=Network of GPU slices on {bridge}\nWants=openvswitch-switch.service\n\
             After=openvswitch-switch.service nftables.service\nPartOf=nftables.service\n\
             ReloadPropagatedFrom=nftables.service\nBefore=gpuaas-agent.service\n\n\
             [Service]\nType=oneshot\nRemainAfterExit=yes\n\
             ExecStart=/usr/bin/ovs-vsctl {add_bridge}\n\
             ExecStart=/sbin/ip address replace {gateway}/{prefix} dev {bridge}\n\
             ExecStart=/sbin/ip link set dev {bridge} up\n\
             ExecStart={load}\nExecReload={load}\n\n\
             [Install]\nWantedBy=multi-user.target\n",
            add_bridge = ovs::add_bridge_arguments(bridge, self.datapath).join(" "),
            load = format_args!("/usr/sbin/nft --file {}", ManagedFile::Rules.path_on_host().display()),
        )
    }

    fn dhcp_unit(&self) -> String {
        let run = self.dnsmasq_pid.parent().unwrap_or(Path::new("/run"));
        format!(
            "[Unit]\nDescription=DHCP and DNS of GPU slices on {bridge}\nWants={network}\nAfter={network}\n\
             Before=gpuaas-agent.service\n\n\
             [Service]\nType=exec\nExecStartPre=/bin/mkdir -p {run}\n\
             ExecStart=/usr/sbin/dnsmasq --keep-in-foreground --conf-file={settings}\n\
             Restart=on-failure\nRestartSec=2\nNoNewPrivileges=yes\nProtectHome=yes\nPrivateTmp=yes\n\n\
             [Install]\nWantedBy=multi-user.target\n",
            bridge = self.bridge,
            network = Unit::Network.name(),
            run = run.display(),
            settings = ManagedFile::Dhcp.path_on_host().display(),
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::setup) fn settings() -> Settings {
        Settings {
            bridge: "br-slices".parse().expect("a name"),
            network: "10.77.0.0/24".parse().expect("a network"),
            datapath: Datapath::System,
            uplink: None,
            install_packages: false,
            telemetry: None,
            dhcp_hosts: "/var/lib/gpuaas/dhcp-hosts".into(),
            dnsmasq_pid: "/run/gpuaas/dnsmasq.pid".into(),
            slices_dir: "/var/lib/gpuaas/slices".into(),
            policy_file: "/etc/gpuaas-agent/policy.toml".into(),
            root: "/".into(),
        }
    }

    #[test]
    fn the_rules_name_one_table_and_count_as_many_as_they_are() {
        let plain = settings();
        let closed = Settings {
            uplink: Some("eth0".parse().expect("a name")),
            telemetry: Some("10.77.0.1:9110".parse().expect("an address")),
            ..settings()
        };
        assert_eq!((plain.rule_count(), closed.rule_count()), (10, 12));
        for settings in [&plain, &closed] {
            let text = ManagedFile::Rules.content(settings);
            assert!(text.lines().filter(|line| line.contains("table ")).all(|line| line.contains(TABLE)), "{text}");
            assert!(!text.contains("flush ruleset"));
        }
        let text = ManagedFile::Rules.content(&closed);
        assert!(text.contains("ip saddr 10.77.0.0/24 oifname \"eth0\" masquerade"), "{text}");
        assert!(text.contains("ip daddr 10.77.0.1 tcp dport 9110 accept"), "{text}");
        let local = Settings { telemetry: Some("127.0.0.1:9110".parse().expect("an address")), ..settings() };
        assert_eq!(local.rule_count(), plain.rule_count(), "guests cannot reach loopback");
    }

    #[test]
    fn dhcp_serves_reservations_on_the_bridge_and_nothing_else() {
        let text = ManagedFile::Dhcp.content(&Settings { network: "192.168.64.0/20".parse().expect("a network"), ..settings() });
        for line in ["interface=br-slices", "except-interface=lo", "dhcp-range=192.168.64.0,static,255.255.240.0"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(
            text.contains("dhcp-leasefile=/var/lib/gpuaas/dnsmasq.leases\n"),
            "not the file of the host's own dnsmasq: {text}"
        );
    }

    #[test]
    fn a_path_that_would_need_quotes_is_refused() {
        assert!(settings().check().is_ok());
        for path in ["/run/a b/x.pid", "/run/x\ny.pid", "/run/%n.pid", "relative.pid", "/run/../etc/x", "/", "/run/$x"] {
            let error = Settings { dnsmasq_pid: path.into(), ..settings() }.check().expect_err("refused").to_string();
            assert!(error.contains("config set dnsmasq_pid_file"), "{error}");
        }
    }

    #[tokio::test]
    async fn systemd_finds_nothing_wrong_with_the_units() {
        let folder = tempfile::tempdir().expect("folder");
        let mut files = Vec::new();
        for (file, unit) in [(ManagedFile::NetworkUnit, Unit::Network), (ManagedFile::DhcpUnit, Unit::Dhcp)] {
            let path = folder.path().join(unit.name());
            // systemd would complain about programs that are not installed here.
            let text = ["/usr/bin/ovs-vsctl", "/sbin/ip", "/usr/sbin/nft", "/usr/sbin/dnsmasq", "/bin/mkdir"]
                .iter()
                .fold(file.content(&settings()), |text, program| text.replace(program, "/bin/true"));
            std::fs::write(&path, text).expect("written");
            files.push(path);
        }
        for path in files {
            if let Some(complaints) = gpuaas_host::systemd::verify_unit(&path).await.expect("runs") {
                let ours: Vec<_> = complaints.lines().filter(|line| line.contains("gpuaas-slices")).collect();
                assert!(ours.is_empty(), "{ours:?}");
            }
        }
    }
}
