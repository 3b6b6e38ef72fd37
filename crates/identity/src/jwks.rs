//! The cached keys of an issuer.
//!
//! A set is fetched again in the background when it is five minutes old, and is used for up to an hour while the issuer does not
//! answer. There is one fetch at a time per issuer. It runs in its own task, so a caller that is cancelled neither stops it nor
//! starts another. Tokens with an unknown key id cause a fetch at most every 30 seconds. So a key rotation needs no restart, and
//! a flood of forged tokens does not cause a flood of requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::time::Timestamp;
use tokio::sync::watch;

use crate::fetch::{self, FetchError};
use crate::jwk::{Algorithm, JwkSet, KeySet, NoKey, PublicKey};
use crate::verifier::TokenError;

/// Age at which a set is fetched again.
const REFRESH_AFTER: Duration = Duration::from_secs(5 * 60);
/// Age from which a set is no longer used.
const UNUSABLE_AFTER: Duration = Duration::from_secs(60 * 60);
/// Pause between attempts in the background.
const BACKGROUND_PAUSE: Duration = Duration::from_secs(30);
/// Pause between attempts that a caller waits for, while there are no keys at all.
const FAILED_PAUSE: Duration = Duration::from_secs(5);
/// Pause between fetches because of unknown key ids.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(30);
/// How long a key id is remembered as unknown. If a later set has it, it is accepted at once.
const UNKNOWN_FOR: Duration = Duration::from_secs(5 * 60);
/// Maximum number of remembered unknown key ids.
const MAX_UNKNOWN: usize = 256;

/// The keys of an issuer in this process.
pub(crate) struct LocalKeys {
    read: Arc<dyn Fn() -> JwkSet + Send + Sync>,
    parsed: Mutex<Option<(JwkSet, Arc<KeySet>)>>,
}

impl LocalKeys {
    pub(crate) fn new(read: Arc<dyn Fn() -> JwkSet + Send + Sync>) -> Self {
        Self { read, parsed: Mutex::new(None) }
    }

    /// Returns the key for a token. The set is read every time, and parsed when it has changed.
    pub(crate) fn find(&self, issuer: &str, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<PublicKey>, TokenError> {
        let set = (self.read)();
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = match parsed.as_ref() {
            Some((same, keys)) if *same == set => Arc::clone(keys),
            Some(_) | None => {
                let malformed = |reason: String| FetchError::Malformed { url: issuer.to_owned(), reason };
                let keys = KeySet::usable(&set).map_err(|error| unavailable(issuer, malformed(error.to_string()).into()))?;
                let keys = Arc::new(keys);
                *parsed = Some((set, Arc::clone(&keys)));
                keys
            }
        };
        keys.find(kid, algorithm).map_err(refusal)
    }
}

/// The keys of a remote issuer.
pub(crate) struct RemoteKeys {
    issuer: String,
    http: reqwest::Client,
    state: Mutex<State>,
    /// Counts the finished fetches, and wakes those who wait for one.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    current: Option<(Arc<KeySet>, Timestamp)>,
    /// Why the last fetch failed; empty after a success.
    failure: Option<Arc<FetchError>>,
    is_fetching: bool,
    last_attempt: Option<Timestamp>,
    last_unknown: Option<Timestamp>,
    /// Key ids that a fetched set did not have, oldest first.
    unknown: VecDeque<(String, Timestamp)>,
}

impl State {
    /// Returns the keys if they are younger than `age`.
    fn younger_than(&self, age: Duration, now: Timestamp) -> Option<Arc<KeySet>> {
        let (keys, at) = self.current.as_ref()?;
        (apart(now, *at) < age).then(|| Arc::clone(keys))
    }

    fn attempted_within(&self, pause: Duration, now: Timestamp) -> bool {
        self.last_attempt.is_some_and(|at| apart(now, at) < pause)
    }

    fn is_known_as_unknown(&self, kid: &str, now: Timestamp) -> bool {
        self.unknown.iter().any(|(name, at)| name == kid && apart(now, *at) < UNKNOWN_FOR)
    }

    fn remember_unknown(&mut self, kid: &str, now: Timestamp) {
        self.unknown.retain(|(name, at)| name != kid && apart(now, *at) < UNKNOWN_FOR);
        if self.unknown.len() == MAX_UNKNOWN {
            self.unknown.pop_front();
        }
        self.unknown.push_back((kid.to_owned(), now));
    }
}

impl RemoteKeys {
    pub(crate) fn new(issuer: String, http: reqwest::Client) -> Self {
        Self { issuer, http, state: Mutex::default(), ended: watch::Sender::new(0) }
    }

    /// Returns the key for a token, from the cached set, or from a new one if the cached set is too old or does not have it.
    pub(crate) async fn find(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
        now: Timestamp,
    ) -> Result<Arc<PublicKey>, TokenError> {
        let found = self.keys(now).await?.find(kid, algorithm);
        match (found, kid) {
            (Err(NoKey::Unknown), Some(name)) => match self.keys_after_refetch(name, now).await {
                Some(keys) => keys.find(kid, algorithm).map_err(refusal),
                None => Err(refusal(NoKey::Unknown)),
            },
            (found, _) => found.map_err(refusal),
        }
    }

    /// Returns a usable set.
    async fn keys(self: &Arc<Self>, now: Timestamp) -> Result<Arc<KeySet>, TokenError> {
        let (mut ended, flight) = {
            let mut state = self.state();
            if let Some(keys) = state.younger_than(REFRESH_AFTER, now) {
                return Ok(keys);
            }
            if let Some(keys) = state.younger_than(UNUSABLE_AFTER, now) {
                let is_due = !state.attempted_within(BACKGROUND_PAUSE, now);
                let flight = if is_due { self.board(&mut state, now) } else { None };
                drop(state);
                spawn(flight);
                return Ok(keys);
            }
            if !state.is_fetching && state.attempted_within(FAILED_PAUSE, now) {
                return Err(self.outage(&state));
            }
            (self.ended.subscribe(), self.board(&mut state, now))
        };
        spawn(flight);
        // Cannot fail: the sender belongs to this value.
        let _ = ended.changed().await;
        let state = self.state();
        state.younger_than(UNUSABLE_AFTER, now).ok_or_else(|| self.outage(&state))
    }

    /// Returns the newest set, if it may now contain a key with this id.
    async fn keys_after_refetch(self: &Arc<Self>, kid: &str, now: Timestamp) -> Option<Arc<KeySet>> {
        let (mut ended, flight) = {
            let mut state = self.state();
            if !state.is_fetching {
                let too_soon = state.last_unknown.is_some_and(|at| apart(now, at) < UNKNOWN_PAUSE);
                if too_soon || state.is_known_as_unknown(kid, now) {
                    // Another caller's fetch may have finished since the caller's lookup.
                    return state.current.as_ref().map(|(keys, _)| Arc::clone(keys)).filter(|keys| keys.has(kid));
                }
                state.last_unknown = Some(now);
            }
            (self.ended.subscribe(), self.board(&mut state, now))
        };
        let is_ours = flight.is_some();
        spawn(flight);
        let _ = ended.changed().await;
        let mut state = self.state();
        let keys = state.younger_than(UNUSABLE_AFTER, now)?;
        // A fetch that began before the token arrived may have missed a key that was just published.
        if is_ours && state.failure.is_none() && !keys.has(kid) {
            state.remember_unknown(kid, now);
        }
        Some(keys)
    }

    /// Returns a fetch for [`spawn`], unless one is running.
    fn board(self: &Arc<Self>, state: &mut State, now: Timestamp) -> Option<Flight> {
        if state.is_fetching {
            return None;
        }
        state.is_fetching = true;
        state.last_attempt = Some(now);
        Some(Flight { keys: Arc::clone(self), outcome: Err(FetchError::Interrupted), started: now })
    }

    fn outage(&self, state: &State) -> TokenError {
        unavailable(&self.issuer, state.failure.clone().unwrap_or_else(|| Arc::new(FetchError::Interrupted)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running fetch. It records its end when dropped, so that a fetch that dies does not block later ones.
struct Flight {
    keys: Arc<RemoteKeys>,
    outcome: Result<KeySet, FetchError>,
    started: Timestamp,
}

/// Starts a fetch. Not while the state is locked: a runtime that is shutting down drops the fetch at once, and the drop locks the
/// state.
fn spawn(flight: Option<Flight>) {
    if let Some(mut flight) = flight {
        tokio::spawn(async move {
            let outcome = fetch_keys(&flight.keys.http, &flight.keys.issuer).await;
            flight.brings(outcome);
        });
    }
}

impl Flight {
    fn brings(&mut self, outcome: Result<KeySet, FetchError>) {
        self.outcome = outcome;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.keys.state();
        state.is_fetching = false;
        match std::mem::replace(&mut self.outcome, Err(FetchError::Interrupted)) {
            Ok(keys) => {
                state.current = Some((Arc::new(keys), self.started));
                state.failure = None;
            }
            Err(error) => {
                tracing::warn!(
                    issuer = self.keys.issuer,
                    error = &error as &dyn std::error::Error,
                    "cannot fetch the keys of an issuer"
                );
                state.failure = Some(Arc::new(error));
            }
        }
        // Sent while the state is locked, so that this end does not wake a waiter of the next fetch.
        self.keys.ended.send_modify(|count| *count = count.wrapping_add(1));
    }
}

async fn fetch_keys(http: &reqwest::Client, issuer: &str) -> Result<KeySet, FetchError> {
    let discovery = fetch::discover(http, issuer).await?;
    let url = fetch::endpoint(issuer, discovery.jwks_uri.as_deref(), "its discovery document names no `jwks_uri`")?;
    let body = fetch::success(http.get(url.clone()), url.as_str()).await?;
    let set = JwkSet::parse(&body).and_then(|set| KeySet::usable(&set));
    set.map_err(|error| FetchError::Malformed { url: url.to_string(), reason: error.to_string() })
}

fn refusal(reason: NoKey) -> TokenError {
    match reason {
        NoKey::Unknown => TokenError::UnknownKey,
        NoKey::NameNeeded => TokenError::KeyNameNeeded,
        NoKey::Algorithm => TokenError::Algorithm,
    }
}

fn unavailable(issuer: &str, source: Arc<FetchError>) -> TokenError {
    TokenError::IssuerUnavailable { issuer: issuer.to_owned(), source }
}

/// Returns the distance between two times in either order. After a clock was set back, a time in the future counts as old instead
/// of staying fresh until then.
fn apart(a: Timestamp, b: Timestamp) -> Duration {
    a.since(b).max(b.since(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_remembered_for_a_while_and_within_a_bound() {
        let (start, mut state) = (Timestamp(0), State::default());
        state.remember_unknown("first", start);
        assert!(state.is_known_as_unknown("first", start.plus(UNKNOWN_FOR - Duration::from_secs(1))));
        assert!(!state.is_known_as_unknown("first", start.plus(UNKNOWN_FOR)));
        for number in 0..MAX_UNKNOWN {
            state.remember_unknown(&number.to_string(), start);
        }
        assert_eq!(state.unknown.len(), MAX_UNKNOWN);
        assert!(!state.is_known_as_unknown("first", start));
        assert!(state.is_known_as_unknown("0", start));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_keys_fresh() {
        assert_eq!(apart(Timestamp(10), Timestamp(4)), apart(Timestamp(4), Timestamp(10)));
    }
}
