//! Random storms over allocations, compared with what is really on the hosts and with the invariants of the ledger.
//!
//! `cargo xtask prove allocations` plays many more storms than an ordinary run; `GPUAAS_MODEL_SEED` replays a single one.

mod support;

#[path = "support/hosts.rs"]
mod hosts;
#[path = "support/ledger.rs"]
mod ledger;
#[path = "support/rules.rs"]
mod rules;
#[path = "support/site.rs"]
mod site;
#[path = "support/storm.rs"]
mod storm;
#[path = "support/truth.rs"]
mod truth;

use std::collections::BTreeSet;

use gpuaas_domain::quota::Used;
use gpuaas_domain::slot::SlotState;
use hosts::End;
use storm::{Action, BAD_ENDS, Chance, ENDS, Storm};

const SEQUENCES: u64 = 300;
/// Number of storms in the long form.
const LONG_SEQUENCES: u64 = 10_000;
const ACTIONS: usize = 60;

/// Events that must occur when many storms are played.
const MUST_HAPPEN: [&str; 27] = [
    "allocation.placing",
    "allocation.active",
    "allocation.extended",
    "allocation.power_ordered",
    "allocation.power_failed",
    "allocation.rebooted",
    "allocation.release_blocked",
    "allocation.release_failed",
    "allocation.released",
    "allocation.retried",
    "allocation.stopped",
    "allocation.failed",
    "machine.leased",
    "machine.cleanup_blocked",
    "machine.withdrawn",
    "maintenance.announced",
    "node.enrolled",
    "node.retired",
    "quota.set",
    "slot.cleanup_blocked",
    "slot.needs_wipe",
    "slot.taken_over",
    "task.expired",
    "task.interrupted",
    "task.lost",
    "task.refused",
    "task.requeued",
];

/// Prints how to replay a storm if it panics.
struct Story {
    seed: u64,
    actions: Vec<Action>,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("GPUAAS_MODEL_SEED={} plays this again:", self.seed);
            for (number, action) in self.actions.iter().enumerate() {
                eprintln!("{number:3} {action:?}");
            }
        }
    }
}

/// Plays a storm and the calm after it.
fn play(seed: u64) -> Storm {
    let mut chance = Chance::new(seed);
    let mut storm = Storm::new();
    let mut story = Story { seed, actions: Vec::new() };
    // Some storms are short, so that later actions do not hide an early error.
    let length = ACTIONS / 2 + chance.below(ACTIONS);
    // On some sites the hosts are broken.
    let ends: &[End] = if chance.below(4) == 0 { &BAD_ENDS } else { &ENDS };
    let mut opening = Action::opening(&mut chance).into_iter();
    for _ in 0..length {
        let action = opening.next().unwrap_or_else(|| Action::any(&mut chance, ends));
        story.actions.push(action.clone());
        storm.take(&action);
        storm.check();
    }
    storm.calm();
    let ledger = &storm.ledger;
    assert!(ledger.quotas.values().all(|quota| quota.used == Used::default()));
    for slot in ledger.slots.values() {
        let held_back = slot.quarantine.is_some() || slot.state == SlotState::Withdrawn;
        assert!(slot.allocation_id.is_none() && (slot.state == SlotState::Available || held_back), "{slot:?}");
    }
    storm
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{value}`")))
}

/// Number of storms to play.
fn sequences() -> u64 {
    let long = std::env::var("GPUAAS_PROVE").is_ok_and(|form| form == "long");
    if long { number("GPUAAS_PROVE_COUNT").unwrap_or(LONG_SEQUENCES) } else { SEQUENCES }
}

/// What happened in all storms together.
#[derive(Default)]
struct Seen {
    kinds: BTreeSet<&'static str>,
    conflicts: usize,
}

/// Plays every `every`th storm, from seed `first` up to but not including `below`.
fn play_each(first: u64, every: usize, below: u64) -> Seen {
    let mut seen = Seen::default();
    for seed in (first..below).step_by(every) {
        let storm = play(seed);
        seen.conflicts += storm.conflicts;
        seen.kinds.extend(storm.ledger.events.iter().map(|event| event.kind.short()));
    }
    seen
}

#[test]
fn whatever_happens_nothing_has_two_holders_and_everything_comes_to_an_end() {
    if let Some(seed) = number("GPUAAS_MODEL_SEED") {
        play(seed);
        return;
    }
    let sequences = sequences();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let firsts = 0..u64::try_from(threads).expect("few");
        let playing: Vec<_> = firsts.map(|first| scope.spawn(move || play_each(first, threads, sequences))).collect();
        playing.into_iter().map(|thread| thread.join().expect("the story is told above")).collect()
    });
    // A storm in which nothing happens proves nothing.
    if sequences >= SEQUENCES {
        let happened = |kind: &&str| seen.iter().any(|seen| seen.kinds.contains(kind));
        let missing: Vec<&str> = MUST_HAPPEN.into_iter().filter(|kind| !happened(kind)).collect();
        assert_eq!(missing, Vec::<&str>::new(), "never happened");
        assert!(seen.iter().any(|seen| seen.conflicts > 0), "nobody was ever too late");
    }
    eprintln!("{sequences} storms, {} commits too late", seen.iter().map(|seen| seen.conflicts).sum::<usize>());
}
