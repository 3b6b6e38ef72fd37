//! Time and randomness derived from a seed. For simulations only; not part of ordinary builds.

use std::sync::OnceLock;

use crate::time::Timestamp;

/// Sources of time and randomness to ask before the real ones. Each answers only on simulated hosts.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The simulated host's clock; `None` if the caller is not simulated.
    pub now: fn() -> Option<Timestamp>,
    /// Fills the buffer with random bytes derived from the seed; `false` if the caller is not simulated.
    pub random: fn(&mut [u8]) -> bool,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Installs `hooks` for the whole process. Only the first call has an effect.
pub fn install(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

pub(crate) fn now() -> Option<Timestamp> {
    HOOKS.get().and_then(|hooks| (hooks.now)())
}

/// A UUIDv7 at the simulated time. Ids within one millisecond sort randomly.
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
