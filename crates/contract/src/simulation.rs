//! For simulations only: time and chance that follow from a seed. Not part of ordinary builds.

use std::sync::OnceLock;

use crate::time::Timestamp;

/// Who to ask first. Each answers only on hosts of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The simulated host's clock.
    pub now: fn() -> Option<Timestamp>,
    /// Random numbers that follow from the seed; `false` if the caller is not simulated.
    pub random: fn(&mut [u8]) -> bool,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Asks `hooks` first from now on, in the whole process. The first call counts.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

pub(crate) fn now() -> Option<Timestamp> {
    HOOKS.get().and_then(|hooks| (hooks.now)())
}

/// A UUIDv7 of the simulated moment. Within a millisecond the order is left to chance.
pub(crate) fn uuid() -> Option<uuid::Uuid> {
    let hooks = HOOKS.get()?;
    let now = (hooks.now)()?.0;
    let mut random = [0; 10];
    if !(hooks.random)(&mut random) {
        return None;
    }
    let millis = u64::try_from(now / 1000).ok()?;
    Some(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}
