//! Wakes runs: hears of changes by wakeups, keeps the time of runs in memory, and has a slow look at the store behind both. What it
//! forgets when the process dies is in the rows: `due_at` of each allocation says when its run wants to be looked at. What comes of a
//! wake-up is the [`Driver`]'s business.

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

/// Runs that are advanced at the same time.
const AT_ONCE: usize = 16;
/// How often the store is asked what is due.
const SLOW_LOOK: Duration = Duration::from_secs(30);
/// Runs read with one look.
const BATCH: u32 = 500;
/// What is due later than this is left to the slow look.
const REMEMBERED: Duration = Duration::from_secs(600);
/// After something failed, the run is tried again this much later, twice as long every time.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// At most.
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Starts to wake runs.
pub(super) fn spawn(control: &Arc<Control>, driver: Arc<dyn Driver>) {
    let waker = Waker::new(Arc::clone(control), driver);
    control.background.spawn(waker.keep_going());
}

struct Waker {
    control: Arc<Control>,
    driver: Arc<dyn Driver>,
    /// Runs to be woken now.
    ready: VecDeque<AllocationId>,
    /// The same, to find them.
    waiting: std::collections::HashSet<AllocationId>,
    /// Runs that are being woken, and whether there was a reason to wake them again meanwhile.
    running: HashMap<AllocationId, bool>,
    /// When runs want to be looked at.
    timers: BTreeSet<(Timestamp, AllocationId)>,
    timer_of: HashMap<AllocationId, Timestamp>,
    /// How often a run failed in a row.
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
        // Heard before the first look, so that nothing falls between the two.
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
                        // A step that panicked: its run is found again by the slow look.
                        tracing::error!(%error, "a step of a run ended badly");
                        self.running.clear();
                    }
                },
                wakeup = wakeups.recv() => match wakeup {
                    Ok(wakeup) => self.hear(&wakeup),
                    Err(RecvError::Lagged(_)) => self.look().await,
                    Err(RecvError::Closed) => break,
                },
                () = tokio::time::sleep(next.unwrap_or(SLOW_LOOK)), if next.is_some() => self.ring(),
                _ = slow.tick() => self.look().await,
            }
        }
        // Steps under way end by themselves: they are decided and committed as a whole, or not at all.
        while self.tasks.join_next().await.is_some() {}
    }

    /// Starts what is ready, as far as there is room.
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
                tracing::warn!(allocation = %id, error = %crate::link::chain(&error), ?wait, "a step failed and is tried again");
                // Not at once, even if it was woken: what failed now fails again in a moment.
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

    /// Wakes what is due.
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
                // Noted here as well: the picture's own listener may hear of it later than the run that is woken.
                self.control.fleet.note(*node);
                self.wake_placing();
            }
            Wakeup::NodeWork(_)
            | Wakeup::NodeAccess(_)
            | Wakeup::Task(_)
            | Wakeup::Outbox
            | Wakeup::Rights
            | Wakeup::Link(_)
            | Wakeup::Progress { .. } => {}
        }
    }

    /// Wakes some of those who wait for a place, the oldest first; the others follow as these go on or wait again.
    fn wake_placing(&mut self) {
        for id in self.control.placing.oldest(AT_ONCE * 4) {
            self.wake(id);
        }
    }

    /// Asks the store what is due: after a start, after wakeups were lost, and every now and then.
    async fn look(&mut self) {
        match self.control.store.resource_due(ResourceKind::Allocation, Timestamp::now(), BATCH).await {
            Ok(found) => found.iter().filter_map(|found| found.id.parse().ok()).for_each(|id| self.wake(id)),
            Err(error) => tracing::warn!(%error, "cannot look what is due; trying again soon"),
        }
    }
}
