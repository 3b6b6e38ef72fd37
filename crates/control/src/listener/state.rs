//! What a connection is doing, and when that has taken too long.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_runtime::places::{PlaceHandle, Stage};
use tokio::time::Instant;

use super::{ListenerLimits, Reason};

/// Shared by the socket, the requests on it and whoever watches the time.
pub(super) struct ConnectionState {
    pub(super) place: PlaceHandle,
    /// When the connection began, or its TLS handshake ended.
    started: Instant,
    has_sent: AtomicBool,
    /// Since when the client has not taken what waits for it: microseconds after `started`, plus one.
    blocked: AtomicU64,
    requests: Mutex<Requests>,
}

struct Requests {
    open: usize,
    /// Bodies that have not come as a whole.
    receiving: usize,
    is_first: bool,
    /// When the last open request ended.
    idle_since: Instant,
    /// Answers whose last part was handed over and not sent yet.
    unsent: BTreeMap<u64, Instant>,
    next: u64,
}

/// What is to be done about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing before this moment.
    Wait(Instant),
    /// It ends now.
    Cut(Reason),
    /// It has done nothing for a while and is closed in good order.
    Close,
}

impl ConnectionState {
    pub(super) fn new(place: PlaceHandle) -> Arc<Self> {
        let started = Instant::now();
        let requests = Requests { open: 0, receiving: 0, is_first: true, idle_since: started, unsent: BTreeMap::new(), next: 0 };
        Arc::new(Self {
            place,
            started,
            has_sent: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            requests: Mutex::new(requests),
        })
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first byte has come.
    pub(super) fn has_sent(&self) {
        self.has_sent.store(true, Ordering::Release);
        self.place.reached(Stage::Started);
    }

    /// The client does not take what waits for it, since now; or it does again.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        let since = if is_blocked {
            u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX - 1).saturating_add(1)
        } else {
            0
        };
        self.blocked.store(since, Ordering::Release);
    }

    fn blocked_since(&self) -> Option<Instant> {
        let since = self.blocked.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.started + Duration::from_micros(since))
    }

    /// A request begins.
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

    /// The rest of a body has to be waited for.
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

    /// Before there are requests: the TLS handshake.
    pub(super) fn judge_handshake(&self, now: Instant, limits: &ListenerLimits) -> Verdict {
        let first_byte = (!self.has_sent.load(Ordering::Acquire)).then_some((limits.first_byte, Reason::FirstByte));
        let (within, reason) = first_byte.unwrap_or((limits.handshake, Reason::Handshake));
        due(self.started + within, now, Verdict::Cut(reason))
    }

    /// What is to be done now about a connection that speaks HTTP since `http_since`.
    pub(super) fn judge(&self, http_since: Instant, now: Instant, limits: &ListenerLimits) -> Verdict {
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
        // Whatever begins after now takes at least this long to be late.
        let later = now + limits.write.min(limits.idle);
        match requests.unsent.values().min().map(|since| *since + limits.write) {
            Some(at) if now >= at => Verdict::Cut(Reason::Write),
            Some(at) => Verdict::Wait(at.min(later)),
            None => Verdict::Wait(later),
        }
    }
}

fn due(at: Instant, now: Instant, verdict: Verdict) -> Verdict {
    if now >= at { verdict } else { Verdict::Wait(at) }
}

/// A body that has not come as a whole.
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
    /// A part of the answer was handed over.
    pub(super) fn handed_over(&self) {
        self.state.requests().unsent.insert(self.number, Instant::now());
    }

    /// What was handed over is on its way.
    pub(super) fn sent(&self) {
        self.state.requests().unsent.remove(&self.number);
    }

    /// The connection becomes something else, which watches the time itself: it is never idle.
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
        if is_idle {
            requests.idle_since = Instant::now();
        }
        drop(requests);
        self.state.place.closed();
        if is_idle {
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
        let state = ConnectionState::new(place.handle());
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
        assert_eq!(state.judge(start, at(1000), &limits), Verdict::Wait(at(1030)), "an open request may take its time");
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
        assert_eq!(state.judge(start, at(50), &limits), Verdict::Wait(at(80)));
        state.set_blocked(true);
        assert_eq!(state.judge(start, at(39), &limits), Verdict::Wait(at(40)));
        assert_eq!(state.judge(start, at(40), &limits), Verdict::Cut(Reason::Write));
        state.set_blocked(false);
        assert_eq!(state.judge(start, at(40), &limits), Verdict::Wait(at(70)));
    }
}
