//! Rate limits by the generic cell rate algorithm: a burst at once, then evenly, with one number per key.
//!
//! A limiter is not a security check. It keeps the control plane usable for others, so an unreachable Redis does not cause
//! refusals: each process then applies the same rules with its own counts. With n processes a caller may then send up to n times
//! as many requests. What must be refused for security (a wrong password, a used token) is refused elsewhere.

mod gcra;
mod in_process;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Script;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::redis::{Redis, RedisError, Repeat};
use in_process::InProcess;

/// Longest time that a request waits for the answer of Redis.
const PATIENCE: Duration = Duration::from_secs(1);
/// Shortest time between two warnings about an unreachable Redis.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Keys longer than this are replaced by their digest.
const MAX_KEY_BYTES: usize = 128;

/// The same decision as [`gcra::decide`], by the clock of Redis, so that all processes agree on the time.
///
/// `KEYS[1]` holds the theoretical arrival time in microseconds; `ARGV` is the period, the burst and the cost. The result is
/// whether the request is allowed, what remains, and the two times in microseconds.
const SCRIPT: &str = r"
local period, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local arrival = tonumber(redis.call('GET', KEYS[1]) or now)
arrival = math.min(math.max(arrival, now), now + period)
local after = arrival + math.floor(cost * period / burst)
local allowed = 0
local retry = 0
if after <= now + period then
    allowed = 1
    if after > now then
        redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000))
    end
else
    retry = after - period - now
    after = arrival
end
local remaining = math.min(burst, math.floor((now + period - after) * burst / period))
return {allowed, remaining, after - now, retry}
";

static COMPILED: LazyLock<Script> = LazyLock::new(|| Script::new(SCRIPT));

/// The limit: `burst` at once, refilled evenly over `per`.
///
/// With `burst: 60` and `per` one minute, this is one per second, and up to 60 after a quiet minute. A burst of 0 counts as 1,
/// and rates above one per microsecond count as one per microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The time to refill an empty burst.
    pub per: Duration,
    /// The most that can be used at once.
    pub burst: u32,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed. If not, nothing was used.
    pub allowed: bool,
    /// What can be used right now.
    pub remaining: u32,
    /// The time until the whole burst is available again.
    pub reset_after: Duration,
    /// The time until the same request would be allowed, if it is not now.
    pub retry_after: Option<Duration>,
}

/// A limiter. Clones share their counts.
#[derive(Clone, Debug)]
pub struct Limits(Backend);

#[derive(Clone, Debug)]
enum Backend {
    InProcess(Arc<InProcess>),
    Redis(Arc<OnRedis>),
}

#[derive(Debug)]
struct OnRedis {
    redis: Redis,
    /// Decides while Redis cannot be reached.
    fallback: InProcess,
    fallbacks: AtomicU64,
    started: Instant,
    /// Milliseconds after the start at which the next warning may be logged.
    warn_after: AtomicU64,
}

impl Limits {
    /// Creates limits of this process alone.
    pub fn in_process() -> Self {
        Self(Backend::InProcess(Arc::new(InProcess::new())))
    }

    /// Creates limits that all processes share.
    pub fn redis(redis: &Redis) -> Self {
        let (fallback, fallbacks, warn_after) = (InProcess::new(), AtomicU64::new(0), AtomicU64::new(0));
        Self(Backend::Redis(Arc::new(OnRedis { redis: redis.clone(), fallback, fallbacks, started: Instant::now(), warn_after })))
    }

    /// Checks whether `key` may use `cost` now, and uses it if so. A cost above the burst counts as the whole burst; a cost of 0
    /// uses nothing.
    pub async fn check(&self, key: &str, rule: Rule, cost: u32) -> Decision {
        let key = bounded(key);
        match &self.0 {
            Backend::InProcess(limits) => limits.check(&key, rule, cost),
            Backend::Redis(limits) => limits.check(&key, rule, cost).await,
        }
    }

    /// Returns how many checks this process decided alone because Redis could not be reached.
    pub fn fallbacks(&self) -> u64 {
        match &self.0 {
            Backend::InProcess(_) => 0,
            Backend::Redis(limits) => limits.fallbacks.load(Ordering::Relaxed),
        }
    }
}

impl OnRedis {
    async fn check(&self, key: &str, rule: Rule, cost: u32) -> Decision {
        let asked = tokio::time::timeout(PATIENCE, self.ask(key, rule, cost)).await;
        match asked.unwrap_or_else(|_| Err(RedisError::Away("it did not answer in time".to_owned()))) {
            Ok(decision) => decision,
            Err(error) => {
                self.fallbacks.fetch_add(1, Ordering::Relaxed);
                self.warn(&error);
                self.fallback.check(key, rule, cost)
            }
        }
    }

    async fn ask(&self, key: &str, rule: Rule, cost: u32) -> Result<Decision, RedisError> {
        let (per, burst, cost) = gcra::normal(rule, cost);
        let mut call = COMPILED.prepare_invoke();
        call.key(format!("gpuaas:limit:{key}")).arg(per).arg(burst).arg(cost);
        let call = &call;
        let (allowed, remaining, reset, retry): (i64, i64, i64, i64) =
            self.redis.run(Repeat::Once, |mut connection| async move { call.invoke_async(&mut connection).await }).await?;
        let time = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(Decision {
            allowed: allowed == 1,
            remaining: u32::try_from(remaining).unwrap_or(0),
            reset_after: time(reset),
            retry_after: (allowed != 1).then(|| time(retry)),
        })
    }

    fn warn(&self, error: &RedisError) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = |next: u64| {
            (now >= next).then(|| now.saturating_add(u64::try_from(WARNING_INTERVAL.as_millis()).unwrap_or(u64::MAX)))
        };
        if self.warn_after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            tracing::warn!(code = error.code(), %error, "Redis is unavailable; each process keeps its own rate limits");
        }
    }
}

/// Bounds the length of a key, because keys contain data from callers.
fn bounded(key: &str) -> std::borrow::Cow<'_, str> {
    if key.len() <= MAX_KEY_BYTES {
        return key.into();
    }
    let hex: String = Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_replaced_by_its_digest_and_stays_different_from_others() {
        let long = "x".repeat(MAX_KEY_BYTES + 1);
        assert_eq!(bounded("short"), "short");
        assert!(bounded(&long).len() <= MAX_KEY_BYTES);
        assert_ne!(bounded(&long), bounded(&format!("{long}x")));
    }
}
