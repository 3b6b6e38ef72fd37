//! `cargo xtask prove`: the long forms of the tests that kill processes, fill disks and damage files. `cargo xtask test` runs the
//! short forms.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::servers::Servers;
use crate::{cargo, previous, test};

/// Options of `cargo xtask prove`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Proofs to run (default: all)
    #[arg(value_enum)]
    proofs: Vec<Proof>,
    /// Number of repetitions, instead of the usual number (with one proof only)
    #[arg(long)]
    count: Option<u32>,
    /// Stop after this many minutes; unfinished proofs count as failed
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// The target of the tests that start the real programs.
const E2E: &[&str] = &["--test", "e2e"];

/// A promise and the test that tries to break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Proof {
    /// 10,000 random storms over allocations, with broken hosts, lost tasks and late receipts: no capacity is leased twice or lost, all end
    Allocations,
    /// A million random tasks on random host policies: no effect outside compiled ∩ policy ∩ task
    Authority,
    /// PostgreSQL, and the server on SQLite, killed 50 times under load: no confirmed write is lost, nothing is stuck
    Databases,
    /// The agent's disk is full, and its system calls fail at 40 places: never a false success
    Disk,
    /// NATS killed 50 times while events are published, and its acknowledgments lost: each event stored once and in order
    Events,
    /// 5,000 random lives of eight slots, with cancellations, restarts, reboots and broken devices: no slot twice, none without proof
    Guests,
    /// The agent's journal truncated 400 times and damaged 600 times: nothing runs twice
    Journal,
    /// The relay of events killed 200 times, NATS stopped, its answers lost: every committed event is in the stream once and in order
    Relay,
    /// 100,000 deliveries, half of them duplicates, over both transports: one effect per task
    SingleExecution,
    /// Server and agent of the previous version, built from history, with the current ones: a lease survives the upgrade and the downgrade
    Versions,
}

impl Proof {
    const ALL: [Self; 10] = [
        Self::Allocations,
        Self::Authority,
        Self::Databases,
        Self::Disk,
        Self::Events,
        Self::Guests,
        Self::Journal,
        Self::Relay,
        Self::SingleExecution,
        Self::Versions,
    ];

    /// Returns the servers that the tests need; without them the tests would be skipped.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Events => &["NATS"],
            Self::Relay => &["PostgreSQL", "NATS"],
            Self::Databases | Self::Versions => &["PostgreSQL"],
            Self::Allocations | Self::Authority | Self::Disk | Self::Guests | Self::Journal | Self::SingleExecution => &[],
        }
    }

    /// Returns whether the tests start the real programs.
    fn is_end_to_end(self) -> bool {
        self.tests().0 == E2E
    }

    /// Returns the test target, and the filter for test names. An empty filter selects the whole target.
    fn tests(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Allocations => (&["--test", "allocation_model"], ""),
            Self::Authority => (&["--lib"], "authority_tests::"),
            Self::Databases => (E2E, "databases::"),
            Self::Disk => (E2E, "disk::"),
            Self::Events => (&["--test", "backends"], "nats_faults::"),
            Self::Guests => (&["--lib"], "guests::tests::random::"),
            Self::Journal => (E2E, "rotten_journal::"),
            Self::Relay => (&["--test", "relay"], ""),
            Self::SingleExecution => (E2E, "single_execution::"),
            Self::Versions => (E2E, "versions::"),
        }
    }
}

/// Runs the proofs one after the other and prints the results. Returns true if all of them hold.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    if options.count.is_some() && options.proofs.len() != 1 {
        return Err("--count means something else for every proof: name the one it is for".to_owned());
    }
    let features = test::features(&cargo::test_features()?);
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    let folder = test::temporary_folder(Path::new("/tmp"))?;
    let mut guard = Guard::over(&folder)?;
    let servers = Servers::start(&folder, &mut guard);
    for missing in servers.missing() {
        println!("not everything will be proven ({missing})");
    }
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let proofs = if options.proofs.is_empty() { &Proof::ALL[..] } else { &options.proofs };
    let previous = if proofs.contains(&Proof::Versions) { Some(previous::programs()?) } else { None };
    // The end-to-end tests start the real programs.
    if proofs.iter().any(|proof| proof.is_end_to_end()) {
        cargo::build_all(&features)?;
    }
    let mut results = Vec::new();
    for proof in proofs {
        let started = Instant::now();
        if let Some(server) = proof.needs().iter().find(|server| !servers.has(server)) {
            println!("{proof:?} cannot be proven without {server}");
            results.push((proof, false, 0));
            continue;
        }
        let (target, filter) = proof.tests();
        // The whole workspace has the features of `cargo xtask test`, so that nothing is compiled twice. The target and the filter
        // select tests of one crate.
        let mut arguments = vec!["test", "--workspace"];
        arguments.extend(&features);
        arguments.extend(target);
        // One at a time: each of them keeps the machine busy by itself.
        arguments.extend(["--", "--nocapture", "--test-threads=1"]);
        arguments.extend(Some(filter).filter(|filter| !filter.is_empty()));
        let holds = step(&mut guard, &arguments, &servers, options.count, previous.as_deref(), until)?;
        results.push((proof, holds, started.elapsed().as_secs()));
    }
    drop(guard);
    println!("\n==> summary");
    for (proof, holds, seconds) in &results {
        println!("    {:<16} {} ({seconds} s)", format!("{proof:?}"), if *holds { "holds" } else { "FAILED" });
    }
    Ok(results.iter().all(|(_, holds, _)| *holds))
}

/// Runs the long form of a test until it ends or time is up. `count` is how long. `previous` is the folder with the programs of
/// the previous version, if they are needed.
fn step(
    guard: &mut Guard,
    arguments: &[&str],
    servers: &Servers,
    count: Option<u32>,
    previous: Option<&Path>,
    until: Instant,
) -> Result<bool, String> {
    println!("==> cargo {}", arguments.join(" "));
    let mut command = cargo::command(arguments);
    // A process group of its own, so that the guard can end cargo together with everything it started.
    command.process_group(0).stdin(Stdio::null()).env_remove("GPUAAS_FAILPOINT_DIR");
    servers.tell(&mut command);
    command.env("GPUAAS_PROVE", "long");
    match count {
        Some(count) => command.env("GPUAAS_PROVE_COUNT", count.to_string()),
        None => command.env_remove("GPUAAS_PROVE_COUNT"),
    };
    if let Some(previous) = previous {
        command.env(previous::VARIABLE, previous);
    }
    let mut child = command.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
    guard.running(child.id())?;
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("waiting for cargo: {error}"))? {
            break status.success();
        }
        if Instant::now() > until {
            println!("the time is up; stopping");
            guard.end(child.id())?;
            child.wait().map_err(|error| format!("waiting for cargo: {error}"))?;
            break false;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    guard.end(child.id())?;
    Ok(ended)
}
