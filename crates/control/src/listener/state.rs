//! The state of a connection, and its deadlines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_runtime::places::{PlaceHandle, Stage};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ListenerLimits, Reason};

/// How often a connection without a deadline is checked.
const AT_REST: Duration = Duration::from_secs(3600);

/// Shared by the socket, its requests and the deadline check.
pub(super) struct ConnectionState {
    pub(super) place: PlaceHandle,
    /// When the connection began, or its TLS handshake ended.
    started: Instant,
    has_sent: AtomicBool,
    /// Since when the client has not read what waits for it: microseconds after `started`, plus one.
    blocked: AtomicU64,
    requests: Mutex<Requests>,
    /// How long a client may take to read an answer, and how long it may be idle.
    write: Duration,
    idle: Duration,
    /// When the connection is checked next: microseconds after `started`.
    next_look: AtomicU64,
    /// Notified when something with an earlier deadline began.
    look_earlier: Notify,
}

struct Requests {
    open: usize,
    /// Bodies that are not complete.
    receiving: usize,
    is_first: bool,
    /// When the last open request ended.
    idle_since: Instant,
    /// Answers whose last part is passed on and not sent yet.
    unsent: BTreeMap<u64, Instant>,
    next: u64,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Check again at this time.
    Wait(Instant),
    /// Close it now.
    Cut(Reason),
    /// It is idle: close it cleanly.
    Close,
}

impl ConnectionState {
    pub(super) fn new(place: PlaceHandle, limits: &ListenerLimits) -> Arc<Self> {
        let started = Instant::now();
        let requests = Requests { open: 0, receiving: 0, is_first: true, idle_since: started, unsent: BTreeMap::new(), next: 0 };
        Arc::new(Self {
            place,
            started,
            has_sent: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            requests: Mutex::new(requests),
            write: limits.write,
            idle: limits.idle,
            next_look: AtomicU64::new(0),
            look_earlier: Notify::new(),
        })
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_micros()).unwrap_or(u64::MAX)
    }

    /// Sets the next check. It is earlier only if [`ConnectionState::earlier`] resolves.
    pub(super) fn judged_again_at(&self, at: Instant) {
        self.next_look.store(self.micros(at), Ordering::Release);
    }

    /// Resolves when something began whose deadline is before the next check.
    pub(super) async fn earlier(&self) {
        self.look_earlier.notified().await;
    }

    /// Records that something began with the deadline `within`. An idle connection is rarely checked; this brings the check
    /// forward, at most once per `within`.
    fn may_be_late(&self, since: Instant, within: Duration) {
        if self.micros(since + within) < self.next_look.load(Ordering::Acquire) {
            self.look_earlier.notify_one();
        }
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the first byte.
    pub(super) fn has_sent(&self) {
        self.has_sent.store(true, Ordering::Release);
        self.place.reached(Stage::Started);
    }

    /// Records that the client stopped or resumed reading what waits for it.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        let since = if is_blocked {
            u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX - 1).saturating_add(1)
        } else {
            0
        };
        self.blocked.store(since, Ordering::Release);
        if is_blocked {
            self.may_be_late(Instant::now(), self.write);
        }
    }

    fn blocked_since(&self) -> Option<Instant> {
        let since = self.blocked.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.started + Duration::from_micros(since))
    }

    /// Begins a request.
    pub(super) fn open(self: &Arc<Self>) -> OpenRequest {
        let mut requests = self.requests();
        requests.open += 1;
        requests.is_first = false;
        let number = requests.next;
        requests.next += 1;
        let is_only = requests.open == 1;
        drop(requests);
        self.place.opened();
        if is_only {
            self.place.reached(Stage::Serving);
        }
        OpenRequest { state: Arc::clone(self), number, is_kept: false }
    }

    /// Begins to wait for the rest of a body.
    pub(super) fn receive(self: &Arc<Self>) -> Receiving {
        let mut requests = self.requests();
        requests.receiving += 1;
        let is_only = requests.receiving == 1;
        drop(requests);
        if is_only {
            self.place.reached(Stage::Receiving);
        }
        Receiving { state: Arc::clone(self) }
    }

    /// Checks the deadline of the TLS handshake, before there are requests.
    pub(super) fn judge_handshake(&self, now: Instant, limits: &ListenerLimits) -> Verdict {
        let first_byte = (!self.has_sent.load(Ordering::Acquire)).then_some((limits.first_byte, Reason::FirstByte));
        let (within, reason) = first_byte.unwrap_or((limits.handshake, Reason::Handshake));
        due(self.started + within, now, Verdict::Cut(reason))
    }

    /// Checks the deadlines of a connection that uses HTTP since `http_since`.
    pub(super) fn judge(&self, http_since: Instant, now: Instant, limits: &ListenerLimits) -> Verdict {
        // Anything that begins from here on requests another check, unless the verdict is early enough.
        self.next_look.store(u64::MAX, Ordering::Release);
        let blocked = match self.blocked_since().map(|since| since + limits.write) {
            Some(at) if now >= at => return Verdict::Cut(Reason::Write),
            blocked => blocked,
        };
        match (self.judge_requests(http_since, now, limits), blocked) {
            (Verdict::Wait(at), Some(blocked)) => Verdict::Wait(at.min(blocked)),
            (verdict, _) => verdict,
        }
    }

    fn judge_requests(&self, http_since: Instant, now: Instant, limits: &ListenerLimits) -> Verdict {
        let requests = self.requests();
        if requests.is_first {
            let is_silent = !self.has_sent.load(Ordering::Acquire);
            let (since, within, reason) = if is_silent {
                (self.started, limits.first_byte, Reason::FirstByte)
            } else {
                (http_since, limits.head, Reason::Head)
            };
            return due(since + within, now, Verdict::Cut(reason));
        }
        if requests.open == 0 {
            return due(requests.idle_since + limits.idle, now, Verdict::Close);
        }
        match requests.unsent.values().min().map(|since| *since + limits.write) {
            Some(at) => due(at, now, Verdict::Cut(Reason::Write)),
            // Anything that begins later requests a check itself.
            None => Verdict::Wait(now + AT_REST),
        }
    }
}

fn due(at: Instant, now: Instant, verdict: Verdict) -> Verdict {
    if now >= at { verdict } else { Verdict::Wait(at) }
}

/// A body that is not complete.
pub(super) struct Receiving {
    state: Arc<ConnectionState>,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        let mut requests = self.state.requests();
        requests.receiving = requests.receiving.saturating_sub(1);
        let is_served = requests.receiving == 0 && requests.open > 0;
        drop(requests);
        if is_served {
            self.state.place.reached(Stage::Serving);
        }
    }
}

/// A request from its head to the end of its answer.
pub(super) struct OpenRequest {
    state: Arc<ConnectionState>,
    number: u64,
    is_kept: bool,
}

impl OpenRequest {
    /// Records that a part of the answer was passed on.
    pub(super) fn handed_over(&self) {
        let now = Instant::now();
        self.state.requests().unsent.insert(self.number, now);
        self.state.may_be_late(now, self.state.write);
    }

    /// Records that the passed-on part was sent.
    pub(super) fn sent(&self) {
        self.state.requests().unsent.remove(&self.number);
    }

    /// Ends the tracking of an upgraded connection, which has its own deadlines and is never idle.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let mut requests = self.state.requests();
        requests.open = requests.open.saturating_sub(1);
        requests.unsent.remove(&self.number);
        let is_idle = requests.open == 0;
        let now = Instant::now();
        if is_idle {
            requests.idle_since = now;
        }
        drop(requests);
        self.state.place.closed();
        if is_idle {
            self.state.may_be_late(now, self.state.idle);
            self.state.place.reached(Stage::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuaas_runtime::places::{PlaceLimits, Places};

    use super::*;

    fn limits() -> ListenerLimits {
        ListenerLimits::api(16)
    }

    fn connection() -> (gpuaas_runtime::places::Place, Arc<ConnectionState>) {
        let place = Places::new(PlaceLimits { total: 1, per_origin: 1 }).admit(None).expect("a place");
        let state = ConnectionState::new(place.handle(), &limits());
        (place, state)
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_of_a_connection_has_its_own_time() {
        let (limits, (_place, state)) = (limits(), connection());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.judge(start, at(4), &limits), Verdict::Wait(at(5)));
        assert_eq!(state.judge(start, at(5), &limits), Verdict::Cut(Reason::FirstByte));
        assert_eq!(state.judge_handshake(at(5), &limits), Verdict::Cut(Reason::FirstByte));
        state.has_sent();
        assert_eq!(state.judge_handshake(at(5), &limits), Verdict::Wait(at(10)));
        assert_eq!(state.judge_handshake(at(10), &limits), Verdict::Cut(Reason::Handshake));
        assert_eq!(state.judge(at(8), at(10), &limits), Verdict::Wait(at(18)));
        assert_eq!(state.judge(at(8), at(18), &limits), Verdict::Cut(Reason::Head));
        let request = state.open();
        assert_eq!(state.judge(start, at(1000), &limits), Verdict::Wait(at(4600)), "an open request may take its time");
        tokio::time::advance(Duration::from_secs(10)).await;
        drop(request);
        assert_eq!(state.judge(start, at(54), &limits), Verdict::Wait(at(55)));
        assert_eq!(state.judge(start, at(55), &limits), Verdict::Close);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_its_answer_is_cut() {
        let (limits, (_place, state)) = (limits(), connection());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        state.has_sent();
        let (one, other) = (state.open(), state.open());
        one.handed_over();
        tokio::time::advance(Duration::from_secs(10)).await;
        other.handed_over();
        assert_eq!(state.judge(start, at(10), &limits), Verdict::Wait(at(30)));
        assert_eq!(state.judge(start, at(30), &limits), Verdict::Cut(Reason::Write));
        one.sent();
        assert_eq!(state.judge(start, at(30), &limits), Verdict::Wait(at(40)));
        other.sent();
        assert_eq!(state.judge(start, at(50), &limits), Verdict::Wait(at(3650)));
        state.set_blocked(true);
        assert_eq!(state.judge(start, at(39), &limits), Verdict::Wait(at(40)));
        assert_eq!(state.judge(start, at(40), &limits), Verdict::Cut(Reason::Write));
        state.set_blocked(false);
        assert_eq!(state.judge(start, at(40), &limits), Verdict::Wait(at(3640)));
    }

    /// Returns whether an earlier check was requested.
    fn is_brought_forward(state: &ConnectionState) -> bool {
        let future = std::pin::pin!(state.earlier());
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_late_on_a_connection_at_rest_is_looked_at_in_time() {
        let (limits, (_place, state)) = (limits(), connection());
        let start = Instant::now();
        state.has_sent();
        let request = state.open();
        let rest = |state: &ConnectionState| match state.judge(start, Instant::now(), &limits) {
            Verdict::Wait(at) => state.judged_again_at(at),
            verdict @ (Verdict::Cut(_) | Verdict::Close) => unreachable!("{verdict:?}"),
        };
        rest(&state);
        assert!(!is_brought_forward(&state), "an open request alone is never late");
        request.handed_over();
        assert!(is_brought_forward(&state), "an answer that nobody takes");
        rest(&state);
        request.handed_over();
        assert!(!is_brought_forward(&state), "it is looked at in time as it is");
        request.sent();
        rest(&state);
        state.set_blocked(true);
        assert!(is_brought_forward(&state), "a client that does not read");
        state.set_blocked(false);
        rest(&state);
        drop(request);
        assert!(is_brought_forward(&state), "a connection that does nothing any more");
    }
}
