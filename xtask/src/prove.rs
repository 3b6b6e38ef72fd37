//! `cargo xtask prove`: the long forms of the tests that kill, fill and damage things. The short ones are part of `cargo xtask test`.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::{cargo, requirements, test};

/// Options of `cargo xtask prove`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What to prove; everything unless given
    #[arg(value_enum)]
    proofs: Vec<Proof>,
    /// How often to do what the proof repeats, instead of its usual number (with one proof only)
    #[arg(long)]
    count: Option<u32>,
    /// Stop after this many minutes; what is not proven by then has failed
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// A promise and the test that tries to break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Proof {
    /// A million random tasks on random host policies: no effect outside compiled ∩ policy ∩ task
    Authority,
    /// PostgreSQL, and the server on SQLite, killed 50 times under load: nothing promised is lost, nothing is stuck
    Databases,
    /// The agent's disk is full, and its system calls fail at 40 places: never a false success
    Disk,
    /// 5,000 random lives of eight slots, with cancellations, restarts, reboots and broken devices: no slot twice, none without proof
    Guests,
    /// The agent's journal truncated 400 times and damaged 600 times: nothing runs twice
    Journal,
    /// 100,000 deliveries, half of them duplicates, over both transports: one effect per task
    SingleExecution,
}

impl Proof {
    const ALL: [Self; 6] = [Self::Authority, Self::Databases, Self::Disk, Self::Guests, Self::Journal, Self::SingleExecution];

    /// The package, the target in it, and the part of the tests' names.
    fn tests(self) -> (&'static str, &'static [&'static str], &'static str) {
        const E2E: &[&str] = &["--test", "e2e"];
        match self {
            Self::Authority => ("gpuaas-agent", &["--lib"], "authority_tests::"),
            Self::Databases => ("gpuaas", E2E, "databases::"),
            Self::Disk => ("gpuaas", E2E, "disk::"),
            Self::Guests => ("gpuaas-agent", &["--lib"], "guests::tests::random::"),
            Self::Journal => ("gpuaas", E2E, "rotten_journal::"),
            Self::SingleExecution => ("gpuaas", E2E, "single_execution::"),
        }
    }
}

/// Runs the proofs one after the other and prints how they went. True if all of them hold.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    if options.count.is_some() && options.proofs.len() != 1 {
        return Err("--count means something else for every proof: name the one it is for".to_owned());
    }
    let root = requirements::is_root();
    for requirement in requirements::ALL {
        if let Err(reason) = requirement.ensure(root) {
            println!("not everything will be proven ({}): {reason}", requirement.needed_for);
        }
    }
    let failpoints = cargo::packages_with_failpoints()?;
    let features = test::features(&failpoints);
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    let mut guard = Guard::over(&test::temporary_folder(Path::new("/tmp"))?)?;
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    // The tests start the real programs.
    if !step(&mut guard, &[&["build", "--workspace", "--bins"], features.as_slice()].concat(), None, until)? {
        return Err("the programs cannot be built".to_owned());
    }
    let proofs = if options.proofs.is_empty() { &Proof::ALL[..] } else { &options.proofs };
    let mut results = Vec::new();
    for proof in proofs {
        let (package, target, filter) = proof.tests();
        let feature = format!("{package}/failpoints");
        let mut arguments = vec!["test", "--package", package, "--features", &feature];
        arguments.extend(target);
        // One at a time: each of them keeps the machine busy by itself.
        arguments.extend(["--", "--nocapture", "--test-threads=1", filter]);
        let started = Instant::now();
        let holds = step(&mut guard, &arguments, Some(options.count), until)?;
        results.push((proof, holds, started.elapsed().as_secs()));
    }
    drop(guard);
    println!("\n==> summary");
    for (proof, holds, seconds) in &results {
        println!("    {:<16} {} ({seconds} s)", format!("{proof:?}"), if *holds { "holds" } else { "FAILED" });
    }
    Ok(results.iter().all(|(_, holds, _)| *holds))
}

/// Runs cargo until it ends or the time is over. `count` is there for the long form of a test.
fn step(guard: &mut Guard, arguments: &[&str], count: Option<Option<u32>>, until: Instant) -> Result<bool, String> {
    println!("==> cargo {}", arguments.join(" "));
    let mut command = cargo::command(arguments);
    // A group of its own, so that the guard can end cargo together with everything it started.
    command.process_group(0).stdin(Stdio::null()).env_remove("GPUAAS_FAILPOINT_DIR");
    if let Some(count) = count {
        command.env("GPUAAS_PROVE", "long");
        match count {
            Some(count) => command.env("GPUAAS_PROVE_COUNT", count.to_string()),
            None => command.env_remove("GPUAAS_PROVE_COUNT"),
        };
    }
    let mut child = command.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
    guard.running(child.id())?;
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("waiting for cargo: {error}"))? {
            break status.success();
        }
        if Instant::now() > until {
            println!("the time is over; stopping");
            guard.idle()?;
            child.wait().map_err(|error| format!("waiting for cargo: {error}"))?;
            break false;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    guard.idle()?;
    Ok(ended)
}
