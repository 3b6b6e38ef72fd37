//! `cargo xtask bench`: installs the peers, builds for release, and runs `gpuaas-bench`.
//!
//! A missing peer is not an error: its rows are reported as SKIP.

mod peers;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::guard::Guard;
use crate::test::temporary_folder;
use crate::{cargo, postgres, requirements};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run short rounds of one second with small numbers, for a first impression in a few minutes
    #[arg(long)]
    quick: bool,
    /// Only run measurements whose name contains one of these: see --list
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// List the measurements
    #[arg(long)]
    list: bool,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
    /// Install nothing; missing peers are skipped
    #[arg(long)]
    offline: bool,
}

impl Options {
    /// Returns whether the selection includes one of these rows. The full list of rows is in `gpuaas-bench`.
    fn wants(&self, names: &[&str]) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|part| names.iter().any(|name| name.contains(part.as_str())))
    }
}

/// Prepares and runs the measurements. Returns false only if they could not run at all: a slow result is not a failure.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let target = cargo::target();
    let folder = target.join("bench");
    std::fs::create_dir_all(folder.join("logs")).map_err(|error| format!("{}: {error}", folder.display()))?;
    if !options.no_build {
        build(options)?;
    }
    let program = target.join("release/gpuaas-bench");
    if !listed(&program, options)? || options.list {
        return Ok(options.list);
    }
    peers::ensure(options, &folder);

    let disk_folder = temporary_folder(&disk())?;
    let mut disk_guard = Guard::over(&disk_folder)?;
    let on_disk = start_postgres(options, &disk_folder, &mut disk_guard);
    let memory = Path::new("/dev/shm");
    let memory_guarded = if memory.is_dir() && on_disk.is_some() {
        let folder = temporary_folder(memory)?;
        let mut guard = Guard::over(&folder)?;
        start_postgres(options, &folder, &mut guard).map(|url| (url, guard))
    } else {
        None
    };

    let scratch = disk_folder.join("scratch");
    std::fs::create_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let mut command = std::process::Command::new(program);
    command.arg("run").arg("--folder").arg(folder.join("logs")).arg("--disk").arg(&scratch);
    command.arg("--scripts").arg(cargo::workspace().join("bench")).arg("--peers").arg(&folder);
    command.arg("--output").arg(&folder).arg("--programs").arg(target.join("release"));
    command.arg("--dist").arg(target.join("dist"));
    if let Some(programs) = postgres::programs() {
        command.arg("--postgres-programs").arg(programs);
    }
    if let Some(url) = &on_disk {
        command.args(["--postgres-disk", url]);
    }
    if let Some((url, _)) = &memory_guarded {
        command.args(["--postgres-tmpfs", url]);
    }
    if options.quick {
        command.arg("--quick");
    }
    command.args(&options.rows);
    let succeeded = watched(command, &mut disk_guard)?;
    drop(memory_guarded);
    drop(disk_guard);
    Ok(succeeded)
}

/// Prints the selected measurements. Returns false if a given name matches none; `gpuaas-bench` then prints that name.
fn listed(program: &Path, options: &Options) -> Result<bool, String> {
    let mut command = std::process::Command::new(program);
    let status = command.arg("list").args(&options.rows).status();
    Ok(status.map_err(|error| format!("{} cannot be started: {error}", program.display()))?.success())
}

/// Runs the command in a process group of its own, so that the guard can end it together with everything it started.
fn watched(mut command: std::process::Command, guard: &mut Guard) -> Result<bool, String> {
    use std::os::unix::process::CommandExt as _;
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("gpuaas-bench cannot be started: {error}"))?;
    guard.running(child.id())?;
    let succeeded = child.wait().map_err(|error| format!("waiting for gpuaas-bench: {error}"))?.success();
    guard.end(child.id())?;
    Ok(succeeded)
}

fn build(options: &Options) -> Result<(), String> {
    let mut builds: Vec<&[&str]> =
        vec![&["build", "--release", "--package", "gpuaas-bench", "--package", "gpuaas", "--package", "gpuaas-agent"]];
    if options.wants(&["footprint"]) {
        builds.push(&["build", "--profile", "dist", "--package", "gpuaas-agent"]);
    }
    for build in builds {
        println!("==> cargo {}", build.join(" "));
        if !cargo::run(build)? {
            return Err("the build failed".to_owned());
        }
    }
    Ok(())
}

/// The rows that need PostgreSQL.
const STORED: [&str; 12] = [
    "durable",
    "allocations",
    "api-reads",
    "relay",
    "latency",
    "fan-out",
    "growth-finished",
    "growth-depth",
    "growth-idle",
    "growth-agents",
    "growth-dead",
    "growth-waiters",
];

fn start_postgres(options: &Options, folder: &Path, guard: &mut Guard) -> Option<String> {
    if !options.wants(&STORED) {
        return None;
    }
    let requirement = requirements::ALL.iter().find(|requirement| requirement.name == "PostgreSQL")?;
    let root = requirements::is_root() && !options.offline;
    let started = requirement.ensure(root).and_then(|()| postgres::start(&folder.join("database"), guard));
    match started {
        Ok(url) => Some(url),
        Err(reason) => {
            println!("without PostgreSQL: {reason}");
            None
        }
    }
}

/// Returns a folder that is on a disk rather than in memory, that all users may enter, and whose path is short enough for a socket.
fn disk() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let in_memory = |folder: &Path| {
        let of_folder = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind) = (fields.next()?, fields.next()?);
            folder.starts_with(point).then_some((point.len(), matches!(kind, "tmpfs" | "ramfs")))
        });
        of_folder.max().is_some_and(|(_, in_memory)| in_memory)
    };
    let choices = ["/tmp", "/var/tmp"].map(PathBuf::from);
    choices.iter().find(|folder| folder.is_dir() && !in_memory(folder)).unwrap_or(&choices[0]).clone()
}
