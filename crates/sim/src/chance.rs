//! Random choices that derive from a seed.

use std::time::Duration;

use gpuaas_runtime::simulation::next_random;

#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        // Scrambles the seed, so that neighboring seeds do not lead to similar choices.
        let mut state = seed ^ 0x6770_7561_6173;
        next_random(&mut state);
        Self(state)
    }

    pub(crate) fn number(&mut self) -> u64 {
        next_random(&mut self.0)
    }

    /// Returns a number from `0` to below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.number() % limit).unwrap_or(0)
    }

    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns a duration between two bounds, in whole milliseconds.
    pub(crate) fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_millis()).unwrap_or(u64::MAX).max(1);
        low + Duration::from_millis(self.number() % span)
    }
}
