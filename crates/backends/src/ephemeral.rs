//! Values that live for minutes: single-use tokens and presence.
//!
//! Unlike limits, these are part of security checks, so everything here fails closed: while Redis cannot be reached nothing is
//! stored and nothing is found, and the caller gets an error. A token whose answer was lost in transit is spent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::redis::{Redis, RedisError, Repeat};

/// Longest key.
pub const MAX_KEY_BYTES: usize = 256;
/// Largest value.
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// Longest time to live.
pub const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of values of one process.
const MAX_VALUES: usize = 100_000;

/// Why a value was not stored or read.
#[derive(Debug, thiserror::Error)]
pub enum EphemeralError {
    /// The key is empty or too long.
    #[error("a key of {0} bytes is not between 1 and {MAX_KEY_BYTES}; use a digest of it")]
    Key(usize),
    /// The value is too large.
    #[error("a value of {0} bytes is larger than {MAX_VALUE_BYTES}; keep it in the store and put its id")]
    Value(usize),
    /// The time to live is zero or too long.
    #[error("a time to live of {0:?} is not between 1 ms and {MAX_TTL:?}; keep longer-lived values in the store")]
    Ttl(Duration),
    /// There are too many values.
    #[error("there are {MAX_VALUES} values already; try again later, or use Redis")]
    Full,
    /// Redis failed.
    #[error("Redis could not be used")]
    Redis(#[from] RedisError),
}

impl EphemeralError {
    /// Returns a stable code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Key(_) => "ephemeral_key_invalid",
            Self::Value(_) => "ephemeral_value_too_large",
            Self::Ttl(_) => "ephemeral_ttl_invalid",
            Self::Full => "ephemeral_full",
            Self::Redis(error) => error.code(),
        }
    }
}

/// Short-lived values. Clones share them.
#[derive(Clone, Debug)]
pub struct Ephemeral(Backend);

#[derive(Clone, Debug)]
enum Backend {
    InProcess(Arc<InProcess>),
    Redis(Redis),
}

impl Ephemeral {
    /// Creates values of this process alone. They are gone when it ends.
    pub fn in_process() -> Self {
        Self(Backend::InProcess(Arc::new(InProcess::default())))
    }

    /// Creates values that all processes share.
    pub fn redis(redis: &Redis) -> Self {
        Self(Backend::Redis(redis.clone()))
    }

    /// Stores a value under a key for `ttl`, and replaces an existing one.
    pub async fn put(&self, key: &str, value: Bytes, ttl: Duration) -> Result<(), EphemeralError> {
        check_key(key)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(EphemeralError::Value(value.len()));
        }
        if ttl < Duration::from_millis(1) || ttl > MAX_TTL {
            return Err(EphemeralError::Ttl(ttl));
        }
        match &self.0 {
            Backend::InProcess(values) => values.put(key, value, ttl),
            Backend::Redis(redis) => {
                let mut command = ::redis::cmd("SET");
                command.arg(redis_key(key)).arg(value.as_ref()).arg("PX").arg(u64::try_from(ttl.as_millis()).unwrap_or(1));
                Ok(redis.command(&command, Repeat::Once).await?)
            }
        }
    }

    /// Removes the value and returns it. Of any number of concurrent callers, in any process, only one gets it.
    pub async fn take(&self, key: &str) -> Result<Option<Bytes>, EphemeralError> {
        check_key(key)?;
        match &self.0 {
            Backend::InProcess(values) => Ok(values.take(key)),
            // Never sent twice: if the first command took the value, the second would report that there is none.
            Backend::Redis(redis) => found(redis.command(::redis::cmd("GETDEL").arg(redis_key(key)), Repeat::Never).await),
        }
    }

    /// Returns the value without removing it, for example for presence. Not for tokens.
    pub async fn peek(&self, key: &str) -> Result<Option<Bytes>, EphemeralError> {
        check_key(key)?;
        match &self.0 {
            Backend::InProcess(values) => Ok(values.peek(key)),
            Backend::Redis(redis) => found(redis.command(::redis::cmd("GET").arg(redis_key(key)), Repeat::Once).await),
        }
    }
}

fn found(answer: Result<Option<Vec<u8>>, RedisError>) -> Result<Option<Bytes>, EphemeralError> {
    Ok(answer?.map(Bytes::from))
}

fn check_key(key: &str) -> Result<(), EphemeralError> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) { Ok(()) } else { Err(EphemeralError::Key(key.len())) }
}

fn redis_key(key: &str) -> String {
    format!("gpuaas:ephemeral:{key}")
}

#[derive(Default)]
struct InProcess(Mutex<HashMap<Box<str>, (Bytes, Instant)>>);

impl std::fmt::Debug for InProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The values are secret.
        f.debug_struct("InProcess").field("values", &self.lock().len()).finish()
    }
}

impl InProcess {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, (Bytes, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: &str, value: Bytes, ttl: Duration) -> Result<(), EphemeralError> {
        let now = Instant::now();
        let mut values = self.lock();
        if values.len() >= MAX_VALUES && !values.contains_key(key) {
            values.retain(|_, (_, until)| *until > now);
            // A token of one caller is never evicted for another's.
            if values.len() >= MAX_VALUES {
                return Err(EphemeralError::Full);
            }
        }
        values.insert(key.into(), (value, now + ttl));
        Ok(())
    }

    fn take(&self, key: &str) -> Option<Bytes> {
        let (value, until) = self.lock().remove(key)?;
        (until > Instant::now()).then_some(value)
    }

    fn peek(&self, key: &str) -> Option<Bytes> {
        let values = self.lock();
        let (value, until) = values.get(key)?;
        (*until > Instant::now()).then(|| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_full_house_refuses_new_values_until_old_ones_expire() {
        let values = Ephemeral::in_process();
        for number in 0..MAX_VALUES {
            values.put(&number.to_string(), Bytes::new(), MINUTE).await.expect("there is room");
        }
        assert!(matches!(values.put("new", Bytes::new(), MINUTE).await, Err(EphemeralError::Full)));
        values.put("1", Bytes::new(), MINUTE).await.expect("in place of the one that is there");
        assert!(values.take("0").await.expect("works").is_some(), "nobody's token went");
        tokio::time::advance(MINUTE).await;
        values.put("new", Bytes::new(), MINUTE).await.expect("the old ones are over");
    }

    #[tokio::test]
    async fn what_is_out_of_bounds_is_refused_with_a_reason() {
        let values = Ephemeral::in_process();
        let code = |outcome: Result<(), EphemeralError>| outcome.expect_err("out of bounds").code();
        assert_eq!(code(values.put("", Bytes::new(), MINUTE).await), "ephemeral_key_invalid");
        assert_eq!(code(values.put(&"k".repeat(MAX_KEY_BYTES + 1), Bytes::new(), MINUTE).await), "ephemeral_key_invalid");
        assert_eq!(code(values.put("k", Bytes::from(vec![0; MAX_VALUE_BYTES + 1]), MINUTE).await), "ephemeral_value_too_large");
        for ttl in [Duration::ZERO, Duration::from_nanos(1), MAX_TTL + Duration::from_secs(1)] {
            assert_eq!(code(values.put("k", Bytes::new(), ttl).await), "ephemeral_ttl_invalid");
        }
        assert!(values.take("").await.is_err());
    }
}
