//! Limits in the memory of one process: a bounded, sharded map. An insert into a full shard makes room first.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::{Decision, Rule, gcra};

/// Number of shards, so that checks of different keys rarely wait for each other.
const SHARDS: usize = 16;
/// Maximum number of keys of one shard; about 16 MiB in all.
const SHARD_KEYS: usize = 8192;

pub(super) struct InProcess {
    started: Instant,
    hasher: RandomState,
    shards: [Mutex<HashMap<Box<str>, u64>>; SHARDS],
}

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InProcess").finish_non_exhaustive()
    }
}

impl InProcess {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), hasher: RandomState::new(), shards: Default::default() }
    }

    pub(super) fn check(&self, key: &str, rule: Rule, cost: u32) -> Decision {
        self.check_at(key, rule, cost, u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX / 2))
    }

    fn check_at(&self, key: &str, rule: Rule, cost: u32, now: u64) -> Decision {
        let number = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        let mut shard = self.shards[number].lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.get_mut(key);
        let (decision, arrival) = gcra::decide(known.as_deref().copied(), now, rule, cost);
        match known {
            Some(known) => *known = arrival,
            // A key that has used nothing needs no entry.
            None if arrival <= now => {}
            None => {
                if shard.len() >= SHARD_KEYS {
                    make_room(&mut shard, now);
                }
                shard.insert(key.into(), arrival);
            }
        }
        decision
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}

/// Removes the keys whose burst is whole again, which loses nothing. If that is less than an eighth, it also removes the keys
/// that will be whole soonest: they gain the least from it. Freeing many at once keeps the cost per new key small.
fn make_room(shard: &mut HashMap<Box<str>, u64>, now: u64) {
    shard.retain(|_, arrival| *arrival > now);
    if shard.len() > SHARD_KEYS - SHARD_KEYS / 8 {
        let mut arrivals: Vec<u64> = shard.values().copied().collect();
        let (_, limit, _) = arrivals.select_nth_unstable(SHARD_KEYS / 8);
        let limit = *limit;
        shard.retain(|_, arrival| *arrival > limit);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Rule = Rule { per: Duration::from_secs(3600), burst: 2 };

    #[test]
    fn millions_of_keys_take_no_more_room_than_the_bound() {
        let limits = InProcess::new();
        for number in 0..(SHARDS * SHARD_KEYS * 2) {
            limits.check_at(&format!("key {number}"), HOUR, 1, number as u64);
        }
        assert!(limits.keys() <= SHARDS * SHARD_KEYS);
        assert!(limits.keys() >= SHARDS * SHARD_KEYS / 2, "no more was forgotten than had to be");
    }

    #[test]
    fn a_key_that_used_more_outlives_those_that_used_less() {
        let limits = InProcess::new();
        limits.check_at("greedy", HOUR, 2, 0);
        for number in 0..(SHARDS * SHARD_KEYS * 2) {
            limits.check_at(&format!("key {number}"), HOUR, 1, 0);
        }
        assert!(!limits.check_at("greedy", HOUR, 1, 1).allowed, "it was forgotten and may begin anew");
    }

    #[test]
    fn idle_keys_make_room_for_new_ones() {
        let limits = InProcess::new();
        for number in 0..(SHARDS * SHARD_KEYS) {
            limits.check_at(&format!("key {number}"), HOUR, 1, 0);
        }
        let later = 3600 * 1_000_000 + 1;
        for number in 0..(SHARDS * SHARD_KEYS / 2) {
            limits.check_at(&format!("new key {number}"), HOUR, 2, later);
        }
        for number in 0..(SHARDS * SHARD_KEYS / 2) {
            assert!(!limits.check_at(&format!("new key {number}"), HOUR, 1, later).allowed, "{number}");
        }
    }
}
