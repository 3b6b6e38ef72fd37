//! The network of a slice host: a user-space Open vSwitch bridge, DHCP on it, and source NAT behind it.
//!
//! The agent calls `ovs-vsctl` without options and with an empty environment, so the sockets of Open vSwitch are at their usual
//! paths. If the machine has an Open vSwitch of its own, the lab leaves it alone and does not run.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cleanup::Cleanup;
use super::daemon::Daemon;
use super::program::{run, run_with_input, text, write};

/// Bridge that the guests are attached to.
pub(super) const BRIDGE: &str = "br-gpulab";
/// Address of the host on the bridge.
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 99, 1);
/// Address of the bridge's network.
pub(super) const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 77, 99, 0);
const PREFIX: u8 = 24;

const OVS_RUN: &str = "/var/run/openvswitch";
const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// The nftables table of the lab's rules. Other tables are not touched.
const TABLE: &str = "gpuaas_lab";

/// How to tell the DHCP server about guests.
pub(super) struct Dhcp {
    /// Each file in this folder is a reservation. dnsmasq reads it as soon as it appears.
    pub(super) reservations: PathBuf,
    /// File with the id of the process that needs a SIGHUP when a reservation is removed: deleting the file has no effect by itself.
    pub(super) pid_file: PathBuf,
}

/// Starts the bridge, DHCP and NAT.
pub(super) fn start(folder: &Path, cleanup: &mut Cleanup) -> Result<Dhcp, String> {
    start_switch(folder, cleanup)?;
    make_bridge(cleanup)?;
    let dhcp = start_dhcp(folder, cleanup)?;
    hide_guests(cleanup)?;
    Ok(dhcp)
}

fn start_switch(folder: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
    let at = |name: &str| Path::new(OVS_RUN).join(name);
    let socket = at("db.sock");
    let answers = || UnixStream::connect(&socket).is_ok();
    if answers() {
        return Err("Open vSwitch is already running, and the lab needs its own; stop it \
                    (`systemctl stop openvswitch-switch`), or run the lab where there is none"
            .to_owned());
    }
    cleanup.make_folder(Path::new(OVS_RUN))?;
    let database = folder.join("openvswitch.db");
    run(Command::new("ovsdb-tool").arg("create").arg(&database).arg(OVS_SCHEMA))?;
    let quiet = "-vconsole:warn";
    let mut server = Command::new("ovsdb-server");
    server.arg(&database).arg(format!("--remote=punix:{}", text(&socket)?)).arg(quiet);
    server.arg(format!("--unixctl={}", text(&at("ovsdb-server.lab.ctl"))?));
    Daemon::start("ovsdb-server", &mut server, folder, cleanup)?.wait_until(answers)?;
    run(Command::new("ovs-vsctl").args(["--no-wait", "init"]))?;
    let control = at("ovs-vswitchd.lab.ctl");
    let mut switch = Command::new("ovs-vswitchd");
    switch.arg(format!("unix:{}", text(&socket)?)).arg(format!("--unixctl={}", text(&control)?)).arg(quiet);
    Daemon::start("ovs-vswitchd", &mut switch, folder, cleanup)?.wait_until(|| UnixStream::connect(&control).is_ok())
}

/// Creates the bridge. Its datapath is in user space, so it needs no kernel module.
fn make_bridge(cleanup: &mut Cleanup) -> Result<(), String> {
    let add = ["--timeout=20", "--", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"];
    run(Command::new("ovs-vsctl").args(add))?;
    cleanup.call("ovs-vsctl", ["--timeout=20", "--if-exists", "del-br", BRIDGE])?;
    run(Command::new("ip").args(["address", "add", &format!("{HOST}/{PREFIX}"), "dev", BRIDGE]))?;
    run(Command::new("ip").args(["link", "set", BRIDGE, "up"]))?;
    Ok(())
}

/// Starts dnsmasq. It serves only clients with a reservation, listens only on the bridge, and does no DNS.
fn start_dhcp(folder: &Path, cleanup: &mut Cleanup) -> Result<Dhcp, String> {
    let dhcp = Dhcp { reservations: folder.join("reservations"), pid_file: folder.join("dnsmasq.pid") };
    // dnsmasq reads the reservations as an unprivileged user, as it does on any host.
    let reservations = &dhcp.reservations;
    std::fs::create_dir(reservations)
        .and_then(|()| std::fs::set_permissions(reservations, std::fs::Permissions::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", reservations.display()))?;
    let mut dnsmasq = Command::new("dnsmasq");
    dnsmasq
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=-", "--port=0", "--no-resolv", "--no-hosts"])
        .args(["--bind-interfaces", "--except-interface=lo", &format!("--interface={BRIDGE}")])
        .args([&format!("--dhcp-range={NETWORK},static"), &format!("--dhcp-hostsdir={}", text(reservations)?)])
        .arg(format!("--dhcp-leasefile={}", text(&folder.join("leases"))?))
        .arg(format!("--pid-file={}", text(&dhcp.pid_file)?));
    Daemon::start("dnsmasq", &mut dnsmasq, folder, cleanup)?.wait_until(|| dhcp.pid_file.is_file())?;
    Ok(dhcp)
}

/// Sets up source NAT and forwarding. The lab's guest does not use them, but a slice host must have them.
fn hide_guests(cleanup: &mut Cleanup) -> Result<(), String> {
    let rules = format!(
        "table ip {TABLE} {{\n  chain postrouting {{\n    type nat hook postrouting priority srcnat;\n    \
         ip saddr {NETWORK}/{PREFIX} oifname != \"{BRIDGE}\" masquerade\n  }}\n}}\n"
    );
    run_with_input(Command::new("nft").args(["-f", "-"]), &rules)?;
    cleanup.call("nft", ["delete", "table", "ip", TABLE])?;
    let before = std::fs::read_to_string(IP_FORWARD).map_err(|error| format!("{IP_FORWARD}: {error}"))?;
    cleanup.shell(&format!("echo {} > {IP_FORWARD}", before.trim()))?;
    write(Path::new(IP_FORWARD), "1\n")
}
