//! Wakes runs: reacts to wake-ups, keeps the timers of runs in memory, and polls the store slowly as a fallback. What is lost
//! when the process dies is in the rows: `due_at` of each allocation is the time of its next check. The [`Driver`] handles the
//! wake-up.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Wakeup;
use gpuaas_domain::allocation::Next;
use gpuaas_domain::resource::ResourceKind;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

use super::{Driver, Woken};
use crate::Control;
use crate::error::ControlError;

/// Maximum number of concurrent runs.
const AT_ONCE: usize = 16;
/// How often the store is polled for due runs.
const SLOW_LOOK: Duration = Duration::from_secs(30);
/// Runs of one read.
const BATCH: u32 = 500;
/// Runs that are due later than this are left to the polling.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Delay before the first retry of a failed run. It doubles every time.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Starts to wake runs.
pub(super) fn spawn(control: &Arc<Control>, driver: Arc<dyn Driver>) {
    let waker = Waker::new(Arc::clone(control), driver);
    control.background.spawn(waker.keep_going());
}

struct Waker {
    control: Arc<Control>,
    driver: Arc<dyn Driver>,
    /// Runs to wake now.
    ready: VecDeque<AllocationId>,
    /// The same runs, for lookups.
    waiting: std::collections::HashSet<AllocationId>,
    /// Runs that are being woken, and whether there was another wake-up in the meantime.
    running: HashMap<AllocationId, bool>,
    /// The timers of runs.
    timers: BTreeSet<(Timestamp, AllocationId)>,
    timer_of: HashMap<AllocationId, Timestamp>,
    /// Consecutive failures of a run.
    failures: HashMap<AllocationId, u32>,
    tasks: JoinSet<(AllocationId, Result<Woken, ControlError>)>,
}

impl Waker {
    fn new(control: Arc<Control>, driver: Arc<dyn Driver>) -> Self {
        Self {
            control,
            driver,
            ready: VecDeque::new(),
            waiting: std::collections::HashSet::new(),
            running: HashMap::new(),
            timers: BTreeSet::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    async fn keep_going(mut self) {
        let control = Arc::clone(&self.control);
        // Subscribed before the first read, so that nothing is missed between the two.
        let mut wakeups = control.store.wakeups();
        let mut slow = tokio::time::interval(SLOW_LOOK);
        slow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.start();
            let next = self.timers.first().map(|(at, _)| at.since(Timestamp::now()));
            tokio::select! {
                biased;
                () = control.shutdown.cancelled() => break,
                Some(done) = self.tasks.join_next() => match done {
                    Ok((id, result)) => self.advanced(id, result),
                    Err(error) => {
                        // A step panicked: the polling finds its run again.
                        tracing::error!(%error, "a step of a run panicked");
                        self.running.clear();
                    }
                },
                wakeup = wakeups.recv() => match wakeup {
                    Ok(wakeup) => self.hear(&wakeup),
                    Err(RecvError::Lagged(_)) => {
                        self.wake_placing();
                        self.look().await;
                    }
                    Err(RecvError::Closed) => break,
                },
                () = tokio::time::sleep(next.unwrap_or(SLOW_LOOK)), if next.is_some() => self.ring(),
                _ = slow.tick() => self.look().await,
            }
        }
        // Running steps end by themselves: they are decided and committed as a whole, or not at all.
        while self.tasks.join_next().await.is_some() {}
    }

    /// Starts ready runs, as far as there is room.
    fn start(&mut self) {
        while self.tasks.len() < AT_ONCE {
            let Some(id) = self.ready.pop_front() else { return };
            self.waiting.remove(&id);
            self.running.insert(id, false);
            let (control, driver) = (Arc::clone(&self.control), Arc::clone(&self.driver));
            self.tasks.spawn(async move { (id, driver.wake(&control, id).await) });
        }
    }

    fn wake(&mut self, id: AllocationId) {
        if let Some(again) = self.running.get_mut(&id) {
            *again = true;
        } else if self.waiting.insert(id) {
            self.forget_timer(id);
            self.ready.push_back(id);
        }
    }

    fn forget_timer(&mut self, id: AllocationId) {
        if let Some(at) = self.timer_of.remove(&id) {
            self.timers.remove(&(at, id));
        }
    }

    fn advanced(&mut self, id: AllocationId, result: Result<Woken, ControlError>) {
        let woken = self.running.remove(&id).unwrap_or(false);
        let next = match result {
            Ok(Woken::HandedOver) if woken => Next::Now,
            Ok(Woken::HandedOver) => Next::Done,
            Ok(Woken::Advanced(next)) => next,
            Err(error) => {
                let failures = self.failures.entry(id).or_insert(0);
                *failures = failures.saturating_add(1);
                let wait = FIRST_RETRY.saturating_mul(1 << (*failures - 1).min(16)).min(LAST_RETRY);
                tracing::warn!(allocation = %id, error = %crate::link::chain(&error), ?wait, "a step failed; it will be retried");
                // Not at once, even if it was woken: the same failure is likely a moment later.
                return self.remember(id, Timestamp::now().plus(wait));
            }
        };
        self.failures.remove(&id);
        match next {
            Next::Done => {}
            Next::Now => self.wake(id),
            Next::At(_) if woken => self.wake(id),
            Next::At(at) => self.remember(id, at),
        }
    }

    fn remember(&mut self, id: AllocationId, at: Timestamp) {
        self.forget_timer(id);
        if at.since(Timestamp::now()) <= REMEMBERED {
            self.timers.insert((at, id));
            self.timer_of.insert(id, at);
        }
    }

    /// Wakes due runs.
    fn ring(&mut self) {
        let now = Timestamp::now();
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            self.timer_of.remove(&id);
            self.wake(id);
        }
    }

    fn hear(&mut self, wakeup: &Wakeup) {
        match wakeup {
            Wakeup::Allocation(id) => self.wake(*id),
            Wakeup::Fleet(node) => {
                // Marked here too: the view's own listener may get the wake-up later than the run.
                self.control.fleet.note(*node);
                self.wake_placing();
            }
            Wakeup::NodeWork(_)
            | Wakeup::NodeAccess(_)
            | Wakeup::Task(_)
            | Wakeup::AllocationAdvanced(_)
            | Wakeup::Outbox
            | Wakeup::Rights
            | Wakeup::Link(_)
            | Wakeup::Progress { .. } => {}
        }
    }

    /// Wakes some of the runs that wait for a place, the oldest first; the others follow as these advance or wait again.
    fn wake_placing(&mut self) {
        for id in self.control.placing.oldest(AT_ONCE * 4) {
            self.wake(id);
        }
    }

    /// Polls the store for due runs: after a start, after lost wake-ups, and periodically.
    async fn look(&mut self) {
        match self.control.store.resource_due(ResourceKind::Allocation, Timestamp::now(), BATCH).await {
            Ok(found) => found.iter().filter_map(|found| found.id.parse().ok()).for_each(|id| self.wake(id)),
            Err(error) => tracing::warn!(%error, "due runs cannot be read; retrying soon"),
        }
    }
}
