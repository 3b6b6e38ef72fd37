//! `cargo xtask lab slice`: takes a tenant's lease, or an operator's command, through the real server and agent to a real guest,
//! signs in to it with SSH, and checks that nothing is left afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::cluster::{Caller, Cluster};
use super::guest::Guest;
use super::machine::Machine;
use super::program::{read, run as run_program, text, wait_until, write};
use super::tenant::{self, Wanted};
use super::{cache, cluster, guest_image, image_server, network, requirements};

/// Options of `cargo xtask lab slice`.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Run one guest, and one kill of the agent, like CI
    #[arg(long)]
    short: bool,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
    /// Keep the machine as it is until Enter is pressed, for inspection
    #[arg(long)]
    hold: bool,
}

/// Who requests each guest, and the phase in which the agent is killed. Each phase takes long enough to be caught.
const GUESTS: [(Caller, &str); 3] = [
    (Caller::Tenant, "image_stat_download"),
    (Caller::Operator, "image_write_convert"),
    // The short form runs only this one.
    (Caller::Tenant, "readiness"),
];
const USER: &str = "tenant";

/// Runs the lab. Returns true if every check passed.
pub(super) fn run(options: &Options) -> Result<bool, String> {
    requirements::ensure(&requirements::FOR_SLICE)?;
    let programs = cluster::programs(!options.no_build)?;
    let image = guest_image::ensure(&cache()?)?;
    step("starting the slice host");
    let mut machine = Machine::start()?;
    let source = image_server::start(&image)?;
    let folder = image.parent().ok_or("the image has no folder")?.to_owned();
    step("starting server and agent");
    let mut cluster = Cluster::start(programs, &mut machine, &folder, &source)?;
    cluster.approve()?;
    let result = guests(&mut machine, &mut cluster, &image, &source, options);
    if result.is_err() {
        eprintln!("the end of the agent's log:\n{}", cluster.agent_log(&machine));
    }
    if options.hold {
        println!("the lab is in {}; press Enter to end it", machine.folder.display());
        std::io::stdin().read_line(&mut String::new()).map_err(|error| format!("standard input: {error}"))?;
    }
    result?;
    drop(cluster);
    drop(machine);
    step("the slice host is gone again");
    Ok(true)
}

fn guests(machine: &mut Machine, cluster: &mut Cluster, image: &Path, source: &str, options: &Options) -> Result<(), String> {
    let digest = guest_image::sha256(image)?;
    let (key, public_key) = cluster.key_pair(&mut machine.cleanup)?;
    let url = format!("{source}debian.qcow2");
    let wanted = Wanted { url: &url, digest: &digest, user: USER, public_key: &public_key };
    step("a product, an image, and a tenant with a quota");
    tenant::welcome(cluster, &wanted)?;
    let last = GUESTS.len() - 1;
    let asked = if options.short { &GUESTS[last..] } else { &GUESTS };
    for (number, (caller, phase)) in asked.iter().enumerate() {
        step(&format!("a guest for {}, whose agent is killed in {phase}", caller.name()));
        let begun = Instant::now();
        let mut guest = Guest::ask(*caller, &format!("guest-{number}"), &wanted, cluster, &mut machine.cleanup)?;
        cluster.wait_for_phase(&guest.task, phase)?;
        cluster.kill_agent()?;
        println!("    killed after {} s", begun.elapsed().as_secs());
        cluster.start_agent(machine)?;
        let made = cluster.wait_for_success(&guest.task)?;
        println!("    ready after {} s, recovered: {}", begun.elapsed().as_secs(), made["output"]["recovered"]);
        if made["output"]["recovered"] != true {
            return Err("the task did not go on after the kill".to_owned());
        }
        let ssh = Ssh { key: &key, folder: cluster.folder() };
        write(&ssh.config(), guest.way_in(&made, &wanted, cluster)?)?;
        let canary = write_canary(machine, &ssh, number)?;
        expect(guest.console(cluster)?.lines().count() > 10, "the console has the guest's boot")?;
        let first_of_all = !options.short && number == 0;
        if first_of_all {
            power(cluster, &ssh, &guest)?;
            telemetry(cluster)?;
        }
        release(machine, cluster, &guest, &canary, first_of_all)?;
    }
    Ok(())
}

/// How the SSH client reaches the guest.
struct Ssh<'a> {
    key: &'a Path,
    folder: &'a Path,
}

impl Ssh<'_> {
    /// Returns the path of the client's configuration, whose only host is the guest.
    fn config(&self) -> PathBuf {
        self.folder.join("ssh_config")
    }

    fn run(&self, command: &str) -> Result<String, String> {
        let config = read(&self.config())?;
        let config = String::from_utf8_lossy(&config);
        let host = config.lines().find_map(|line| line.strip_prefix("Host ")).ok_or("the way in names no host")?;
        let known = self.folder.join("known_hosts");
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(self.config()).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
        ssh.arg("-o").arg(format!("UserKnownHostsFile={}", text(&known)?)).arg("-i").arg(self.key);
        run_program(ssh.args([host, "--", command]))
    }
}

/// Writes a file in the guest as the tenant, and checks that its content is on the drive.
fn write_canary(machine: &Machine, ssh: &Ssh<'_>, number: usize) -> Result<String, String> {
    let canary = format!("canary-of-tenant-{number}-{}", std::process::id());
    let devices =
        ssh.run("ls /sys/bus/usb/devices 2>/dev/null | wc -l; ls /sys/class/sound /sys/class/drm 2>/dev/null | wc -l; nproc")?;
    println!(
        "    inside: usb devices, sound and screens, processors: {}",
        devices.split_whitespace().collect::<Vec<_>>().join(", ")
    );
    ssh.run(&format!("for i in $(seq 1000); do echo {canary}; done > ~/canary; sync"))?;
    expect(on_drive(machine, &canary)?, "the canary is on the drive")?;
    Ok(canary)
}

fn power(cluster: &Cluster, ssh: &Ssh<'_>, guest: &Guest) -> Result<(), String> {
    step("stop, start, reboot: the guest keeps everything");
    let boot = |ssh: &Ssh<'_>| ssh.run("cat /proc/sys/kernel/random/boot_id; head -1 ~/canary");
    let before = boot(ssh)?;
    for action in ["stop", "start", "reboot"] {
        guest.power(action, cluster)?;
    }
    wait_until("the guest answers again", Duration::from_secs(600), || boot(ssh).is_ok())?;
    let after = boot(ssh)?;
    expect(before.lines().next() != after.lines().next(), "it is another boot")?;
    expect(before.lines().nth(1) == after.lines().nth(1), "the tenant's file is still there")
}

fn telemetry(cluster: &Cluster) -> Result<(), String> {
    let reported = || {
        let node = cluster.json(Caller::Operator, &["node", "show", &cluster.node]);
        node.is_ok_and(|node| node.to_string().contains("\"source\":\"slice_guest\""))
    };
    wait_until("the guest's own metrics arrive", Duration::from_secs(180), reported)
}

fn release(machine: &mut Machine, cluster: &mut Cluster, guest: &Guest, canary: &str, kill: bool) -> Result<(), String> {
    step("releasing it");
    let task = guest.release(cluster)?;
    if kill {
        cluster.wait_for_phase(&task, "shutdown")?;
        cluster.kill_agent()?;
        println!("    killed while the guest shuts down");
        cluster.start_agent(machine)?;
    }
    let ended = cluster.wait_for_success(&task)?;
    println!("    {}", ended["output"]);
    guest.expect_over(cluster)?;
    let slots = cluster.json(Caller::Operator, &["slot", "ls"])?;
    expect(slots.to_string().contains("\"state\":\"available\""), "the slot is free again, with proof")?;
    expect(!on_drive(machine, canary)?, "the canary is gone from the drive")?;
    let guests = run_program(Command::new("virsh").args(["--quiet", "list", "--all", "--name"]))?;
    expect(!guests.contains("gpuaas-"), "the hypervisor knows no guest")?;
    let ports = run_program(Command::new("ovs-vsctl").args(["--timeout=20", "list-ports", network::BRIDGE]))?;
    expect(ports.trim().is_empty(), "the bridge has no port of a guest")?;
    let empty = |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    expect(empty(&machine.instances), "no guest has a folder")?;
    expect(empty(&machine.dhcp.reservations), "no address is reserved")?;
    expect(cluster.leases() == 0, "no slot is leased")
}

/// Returns whether a text occurs anywhere on the drive, in a file system or outside one.
fn on_drive(machine: &Machine, what: &str) -> Result<bool, String> {
    let mut grep = Command::new("grep");
    let status = grep.args(["--quiet", "--text", "--fixed-strings", what]).arg(&machine.drive.device).status();
    match status.map_err(|error| format!("grep: {error}"))?.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err("grep cannot read the drive".to_owned()),
    }
}

/// Prints `what` if `so` is true, and returns it as an error otherwise.
pub(super) fn expect(so: bool, what: &str) -> Result<(), String> {
    if !so {
        return Err(format!("not so: {what}"));
    }
    println!("    {what}");
    Ok(())
}

fn step(what: &str) {
    println!("==> {what}");
}
