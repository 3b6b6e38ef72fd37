//! `cargo xtask lab slice`: a signed task through the real server and agent, a real guest, SSH into it, and the proof that nothing is left.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::machine::Machine;
use super::program::{run as run_program, wait_until};
use super::{cache, guest_image, image_server, network, requirements};

/// Options of `cargo xtask lab slice`.
#[derive(clap::Args)]
pub(super) struct Options {
    /// One guest, and one kill of the agent: what CI runs
    #[arg(long)]
    short: bool,
    /// Keep the machine as it is until Enter is pressed, to look around in it
    #[arg(long)]
    hold: bool,
}

/// Phases that take long enough to be killed in the middle.
const LONG_PHASES: [&str; 3] = ["image_stat_download", "image_write_convert", "readiness"];
const USER: &str = "tenant";

/// Runs the lab. True if everything in it went as it should.
pub(super) fn run(options: &Options) -> Result<bool, String> {
    requirements::ensure(&requirements::FOR_SLICE)?;
    let image = guest_image::ensure(&cache()?)?;
    step("starting the slice host");
    let mut machine = Machine::start()?;
    let source = image_server::start(&image)?;
    let folder = image.parent().ok_or("the image has no folder")?.to_owned();
    step("starting server and agent");
    let mut cluster = Cluster::start(&mut machine, &folder, &source)?;
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
    let (key, public) = cluster.public_key(&mut machine.cleanup)?;
    let public = super::program::text(&public)?.to_owned();
    let url = format!("{source}debian.qcow2");
    let phases: &[&str] = if options.short { &["readiness"] } else { &LONG_PHASES };
    for (number, phase) in phases.iter().enumerate() {
        let name = format!("guest-{number}");
        step(&format!("a guest whose agent is killed in {phase}"));
        let arguments = [
            "slice",
            "create",
            &cluster.node,
            "--slot",
            "0",
            "--name",
            &name,
            "--image-url",
            &url,
            "--image-sha256",
            &digest,
            "--ssh-key",
            &public,
            "--user",
            USER,
            "--bridge",
            network::BRIDGE,
            "--no-wait",
        ];
        let begun = Instant::now();
        let order = cluster.json(&arguments)?;
        let task = order["task"]["id"].as_str().ok_or_else(|| format!("no task: {order}"))?.to_owned();
        let allocation = order["allocation_id"].as_str().ok_or_else(|| format!("no allocation: {order}"))?.to_owned();
        cluster.wait_for_phase(&task, phase)?;
        cluster.kill_agent()?;
        println!("    killed after {} s", begun.elapsed().as_secs());
        cluster.start_agent(machine)?;
        let made = cluster.wait_for_success(&task)?;
        let address = made["output"]["private_ip"].as_str().ok_or("no address")?.to_owned();
        println!("    ready after {} s at {address}, recovered: {}", begun.elapsed().as_secs(), made["output"]["recovered"]);
        if made["output"]["recovered"] != true {
            return Err("the task did not go on after the kill".to_owned());
        }
        let ssh = Ssh { key: &key, address: &address, folder: cluster.folder() };
        let canary = write_canary(machine, &ssh, number)?;
        let console = cluster.cli(&["slice", "console", &allocation])?;
        expect(console.lines().count() > 10, "the console has the guest's boot")?;
        if !options.short && number == 0 {
            power(cluster, &ssh, &allocation)?;
            telemetry(cluster)?;
        }
        release(machine, cluster, &allocation, &canary, !options.short && number == 0)?;
    }
    Ok(())
}

/// The tenant's way in.
struct Ssh<'a> {
    key: &'a Path,
    address: &'a str,
    folder: &'a Path,
}

impl Ssh<'_> {
    fn run(&self, command: &str) -> Result<String, String> {
        let known = self.folder.join("known_hosts");
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=10"]);
        ssh.arg("-o").arg(format!("UserKnownHostsFile={}", super::program::text(&known)?)).arg("-i").arg(self.key);
        run_program(ssh.args(["-l", USER, self.address, "--", command]))
    }
}

/// The tenant writes something, and it is really on the drive.
fn write_canary(machine: &Machine, ssh: &Ssh<'_>, number: usize) -> Result<String, String> {
    // A host key is new with every guest, and the address is the same.
    let _ = std::fs::remove_file(ssh.folder.join("known_hosts"));
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

fn power(cluster: &Cluster, ssh: &Ssh<'_>, allocation: &str) -> Result<(), String> {
    step("stop, start, reboot: the guest keeps everything");
    let boot = |ssh: &Ssh<'_>| ssh.run("cat /proc/sys/kernel/random/boot_id; head -1 ~/canary");
    let before = boot(ssh)?;
    for action in ["stop", "start", "reboot"] {
        cluster.cli(&["slice", action, allocation])?;
    }
    wait_until("the guest answers again", Duration::from_secs(600), || boot(ssh).is_ok())?;
    let after = boot(ssh)?;
    expect(before.lines().next() != after.lines().next(), "it is another boot")?;
    expect(before.lines().nth(1) == after.lines().nth(1), "the tenant's file is still there")
}

fn telemetry(cluster: &Cluster) -> Result<(), String> {
    let reported = || {
        cluster.json(&["node", "show", &cluster.node]).is_ok_and(|node| node.to_string().contains("\"source\":\"slice_guest\""))
    };
    wait_until("the guest's own metrics arrive", Duration::from_secs(180), reported)
}

fn release(machine: &mut Machine, cluster: &mut Cluster, allocation: &str, canary: &str, kill: bool) -> Result<(), String> {
    step("releasing it");
    let order = cluster.json(&["slice", "release", allocation, "--yes", "--no-wait"])?;
    let task = order["task"]["id"].as_str().ok_or_else(|| format!("no task: {order}"))?.to_owned();
    if kill {
        cluster.wait_for_phase(&task, "shutdown")?;
        cluster.kill_agent()?;
        println!("    killed while the guest shuts down");
        cluster.start_agent(machine)?;
    }
    let ended = cluster.wait_for_success(&task)?;
    println!("    {}", ended["output"]);
    let slots = cluster.json(&["slot", "ls"])?;
    expect(slots.to_string().contains("\"state\":\"available\""), "the slot is free again, with proof")?;
    expect(!on_drive(machine, canary)?, "the canary is gone from the drive")?;
    let guests = run_program(Command::new("virsh").args(["--quiet", "list", "--all", "--name"]))?;
    expect(!guests.contains("gpuaas-"), "the hypervisor knows no guest")?;
    let empty = |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    expect(empty(&machine.instances), "no guest has a folder")?;
    expect(empty(&machine.dhcp.reservations), "no address is reserved")?;
    expect(cluster.leases() == 0, "no slot is leased")
}

/// Whether a text is anywhere on the drive, whatever file system is on it.
fn on_drive(machine: &Machine, what: &str) -> Result<bool, String> {
    let mut grep = Command::new("grep");
    let status = grep.args(["--quiet", "--text", "--fixed-strings", what]).arg(&machine.drive.device).status();
    match status.map_err(|error| format!("grep: {error}"))?.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err("grep cannot read the drive".to_owned()),
    }
}

fn expect(so: bool, what: &str) -> Result<(), String> {
    if !so {
        return Err(format!("not so: {what}"));
    }
    println!("    {what}");
    Ok(())
}

fn step(what: &str) {
    println!("==> {what}");
}
