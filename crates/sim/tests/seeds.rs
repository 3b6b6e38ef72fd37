//! Runs many seeds, replays one, and breaks promises on purpose to test that the simulation notices.
//!
//! `GPUAAS_SIM_SEEDS=from..to` runs other seeds. `GPUAAS_SIM_SEED=n` runs a single one and prints its history, with the programs'
//! own log if `GPUAAS_LOG` is set and with the promises of `GPUAAS_SIM_BREAK` broken. `cargo xtask sim` sets all of these.

#![allow(clippy::print_stdout, reason = "the account of a run is for people")]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuaas_sim::{Violation, run};

/// Seeds of an ordinary test run.
const SEEDS: Range<u64> = 0..1_000;

fn seeds() -> Range<u64> {
    let given = std::env::var("GPUAAS_SIM_SEEDS").ok();
    let range = given.as_deref().and_then(|text| text.split_once("..")).map(|(from, to)| from.parse()..to.parse());
    match range {
        Some(Range { start: Ok(start), end: Ok(end) }) => start..end,
        _ => SEEDS,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the seeds on all cores. Stops at the first one that breaks a promise.
fn first_violation(seeds: Range<u64>, broken: &[&str]) -> Option<Violation> {
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<Option<Violation>> = Mutex::new(None);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || lock(&found).is_some() {
                        return;
                    }
                    if seed.is_multiple_of(1_000) && seed > seeds.start {
                        println!("{} of {} seeds", seed - seeds.start, seeds.end - seeds.start);
                    }
                    if let Err(violation) = run(seed, broken) {
                        let mut found = lock(&found);
                        // Several threads may find a violation at the same time; report the lowest seed.
                        if found.as_ref().is_none_or(|other| violation.seed < other.seed) {
                            *found = Some(violation);
                        }
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_seed_keeps_every_promise() {
    if let Ok(seed) = std::env::var("GPUAAS_SIM_SEED") {
        let log = std::env::var("GPUAAS_LOG").unwrap_or_else(|_| "off".to_owned());
        let _ = tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).try_init();
        let broken = std::env::var("GPUAAS_SIM_BREAK").unwrap_or_default();
        let broken: Vec<&str> = broken.split(',').filter(|name| !name.is_empty()).collect();
        match run(seed.parse().expect("GPUAAS_SIM_SEED is a number"), &broken) {
            Ok(report) => println!("{}", report.history.join("\n")),
            Err(violation) => panic!("{violation}"),
        }
        return;
    }
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    if let Some(violation) = first_violation(seeds, &[]) {
        panic!("{violation}\nsee it again with: cargo xtask sim --seed {}", violation.seed);
    }
    println!("{count} seeds kept every promise");
}

/// Seeds beyond those of an ordinary run that broke a promise once.
#[test]
fn seeds_that_found_a_defect_keep_every_promise() {
    // A task was created while its node was being locked, and nobody ended it.
    for seed in [9_174] {
        if let Err(violation) = run(seed, &[]) {
            panic!("{violation}\nsee it again with: cargo xtask sim --seed {seed}");
        }
    }
}

#[test]
fn a_seed_happens_in_the_same_way_every_time() {
    for seed in [3, 35, 1_234_567] {
        let (first, second) = (run(seed, &[]), run(seed, &[]));
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Each entry breaks one promise in the programs. The simulation must notice it, and name the promise.
#[test]
fn a_broken_promise_is_noticed() {
    for (broken, noticed) in [
        ("agent.duplicates", &["once"][..]),
        ("agent.journal", &["once", "truth", "ends"]),
        ("agent.effect", &["truth"]),
        ("store.commit", &["acknowledged"]),
        ("control.receipt_before_ack", &["ends", "truth"]),
        ("control.second_copy", &["copies"]),
    ] {
        let violation = first_violation(0..2_000, &[broken]).unwrap_or_else(|| panic!("nobody noticed that {broken} is broken"));
        assert!(noticed.iter().any(|promise| violation.what.starts_with(promise)), "{broken}: {violation}");
        let again = run(violation.seed, &[broken]).expect_err("the same seed shows it again");
        assert_eq!(again.what, violation.what, "{broken}");
        println!("{broken}: noticed with seed {}: {}", violation.seed, violation.what);
    }
}
