//! The bus of one process: a bounded queue per consumer name.
//!
//! A slow consumer uses no more memory than its queue. When the queue is full, its content and all later events are dropped until
//! the consumer has received `Lagged`, so that it never sees a later event of an aggregate without the earlier one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ANSWER_PATIENCE, Answer, BusError, Delivery, Envelope, Event, Kinds};

#[derive(Debug)]
pub(super) struct InProcess {
    capacity: usize,
    groups: Mutex<HashMap<String, Weak<Group>>>,
}

impl InProcess {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), groups: Mutex::default() }
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<String, Weak<Group>>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_consumers(&self) -> bool {
        self.groups().values().any(|group| group.strong_count() > 0)
    }

    /// Returns whether each event of the batch was accepted, and the first reason for a rejection.
    pub(super) fn publish(&self, batch: &[Envelope]) -> (Vec<bool>, Option<BusError>) {
        let mut groups = self.groups();
        groups.retain(|_, group| group.strong_count() > 0);
        let (mut stored, mut failure) = (Vec::with_capacity(batch.len()), None);
        let mut stuck: HashSet<&str> = HashSet::new();
        for envelope in batch {
            if let Err(error) = envelope.check() {
                stuck.insert(&envelope.subject);
                failure = failure.or(Some(error));
            }
            let free = !stuck.contains(envelope.subject.as_str());
            stored.push(free);
            if free {
                let envelope = Arc::new(envelope.clone());
                groups.values().filter_map(Weak::upgrade).for_each(|group| group.offer(&envelope, self.capacity));
            }
        }
        (stored, failure)
    }

    pub(super) fn subscribe(&self, durable: &str, kinds: &Kinds) -> Result<Member, BusError> {
        let mut groups = self.groups();
        if let Some(group) = groups.get(durable).and_then(Weak::upgrade) {
            let mut queue = group.lock();
            if let Some(lost) = lost_kinds(&queue.kinds, kinds) {
                return Err(BusError::DurableDiffers { durable: durable.to_owned(), kinds: lost });
            }
            queue.kinds = kinds.clone();
            drop(queue);
            return Ok(Member { group });
        }
        let queue =
            Queue { kinds: kinds.clone(), ready: VecDeque::new(), later: BTreeMap::new(), open: 0, number: 0, lagged: false };
        let group = Arc::new(Group { queue: Mutex::new(queue), wake: Notify::new() });
        groups.insert(durable.to_owned(), Arc::downgrade(&group));
        Ok(Member { group })
    }
}

/// Returns the kinds that a consumer has and would lose.
pub(super) fn lost_kinds(has: &Kinds, wants: &Kinds) -> Option<String> {
    match (has.0.is_empty(), wants.0.is_empty()) {
        (_, true) => None,
        (true, false) => Some("all kinds".to_owned()),
        (false, false) => {
            let lost: Vec<&str> = has.0.difference(&wants.0).map(String::as_str).collect();
            (!lost.is_empty()).then(|| lost.join(", "))
        }
    }
}

/// All subscriptions with one name.
#[derive(Debug)]
struct Group {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug)]
struct Queue {
    kinds: Kinds,
    ready: VecDeque<Waiting>,
    /// Returned events by the time they are due. The number distinguishes events with the same time.
    later: BTreeMap<(Instant, u64), Waiting>,
    /// Events that are delivered and not answered.
    open: usize,
    number: u64,
    lagged: bool,
}

#[derive(Debug)]
struct Waiting {
    envelope: Arc<Envelope>,
    delivered: u64,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offer(&self, envelope: &Arc<Envelope>, capacity: usize) {
        let mut queue = self.lock();
        if queue.lagged || !queue.kinds.include(&envelope.kind) {
            return;
        }
        if queue.ready.len() + queue.later.len() + queue.open >= capacity {
            queue.lagged = true;
            queue.ready.clear();
            queue.later.clear();
        } else {
            queue.ready.push_back(Waiting { envelope: envelope.clone(), delivered: 0 });
        }
        drop(queue);
        self.wake.notify_one();
    }

    fn give_back(&self, waiting: Waiting, delay: Duration) {
        let mut queue = self.lock();
        queue.open = queue.open.saturating_sub(1);
        queue.number += 1;
        let place = (Instant::now() + delay, queue.number);
        // A consumer that lagged reads the outbox from where it stopped, which is before this event.
        if !queue.lagged {
            queue.later.insert(place, waiting);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Returns the next delivery, or when to check again.
    fn take(self: &Arc<Self>) -> Result<Delivery, Option<Instant>> {
        let mut queue = self.lock();
        if std::mem::take(&mut queue.lagged) {
            return Ok(Delivery::Lagged);
        }
        let due = queue.later.first_entry().filter(|entry| entry.key().0 <= Instant::now()).map(|entry| entry.remove());
        let Some(Waiting { envelope, delivered }) = due.or_else(|| queue.ready.pop_front()) else {
            return Err(queue.later.first_key_value().map(|((at, _), _)| *at));
        };
        queue.open += 1;
        let more = !queue.ready.is_empty() || !queue.later.is_empty();
        drop(queue);
        if more {
            // One wake-up may stand for several events, and the group may have other members.
            self.wake.notify_one();
        }
        let delivery = delivered + 1;
        let ticket = Ticket { group: self.clone(), waiting: Some(Waiting { envelope: envelope.clone(), delivered: delivery }) };
        Ok(Delivery::Event(Event { envelope, delivery, answer: Answer::InProcess(ticket) }))
    }
}

/// One subscription. The group exists as long as one of its members or events.
#[derive(Debug)]
pub(super) struct Member {
    group: Arc<Group>,
}

impl Member {
    pub(super) async fn next(&mut self) -> Delivery {
        loop {
            let due = match self.group.take() {
                Ok(delivery) => return delivery,
                Err(due) => due,
            };
            match due {
                None => self.group.wake.notified().await,
                Some(at) => tokio::select! {
                    () = self.group.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // This member may have been woken for an event that another one must take now.
        self.group.wake.notify_one();
    }
}

/// The right to answer one event.
#[derive(Debug)]
pub(super) struct Ticket {
    group: Arc<Group>,
    waiting: Option<Waiting>,
}

impl Ticket {
    pub(super) fn ack(mut self) {
        self.waiting = None;
        let mut queue = self.group.lock();
        queue.open = queue.open.saturating_sub(1);
    }

    pub(super) fn nak(mut self, delay: Duration) {
        if let Some(waiting) = self.waiting.take() {
            self.group.give_back(waiting, delay);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.group.give_back(waiting, ANSWER_PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use gpuaas_contract::id::EventId;

    use super::*;
    use crate::bus::Bus;

    fn event() -> Envelope {
        let body = Bytes::from_static(b"{}");
        Envelope {
            id: EventId::generate(),
            subject: "alloc_1".to_owned(),
            kind: "gpuaas.allocation.requested.v1".to_owned(),
            body,
        }
    }

    /// Returns how many seconds passed before each of the first redeliveries, if every delivery is answered like this.
    async fn seconds_between_deliveries(answer: impl AsyncFn(Event)) -> Vec<u64> {
        let bus = Bus::in_process(10);
        let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
        bus.publish(&[event()]).await.expect("published");
        let mut waits = vec![];
        for wanted in 1..=7 {
            let before = Instant::now();
            let Ok(Delivery::Event(event)) = subscription.next().await else { panic!("an event") };
            assert_eq!(event.delivery, wanted);
            waits.push(before.elapsed().as_secs());
            answer(event).await;
        }
        waits.split_off(1)
    }

    #[tokio::test]
    async fn the_bus_knows_whether_anybody_waits() {
        let bus = Bus::in_process(10);
        assert!(!bus.has_consumers());
        let subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
        assert!(bus.has_consumers());
        drop(subscription);
        assert!(!bus.has_consumers());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_nobody_answers_for_comes_back() {
        assert_eq!(seconds_between_deliveries(async |event| drop(event)).await, [30; 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_retried_comes_back_later_and_later() {
        let waits = seconds_between_deliveries(async |event| event.retry().await.expect("given back")).await;
        assert_eq!(waits, [1, 5, 30, 120, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_events_count_towards_the_bound() {
        let bus = Bus::in_process(2);
        let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
        bus.publish(&[event(), event()]).await.expect("published");
        let Ok(Delivery::Event(one)) = subscription.next().await else { panic!("an event") };
        let Ok(Delivery::Event(two)) = subscription.next().await else { panic!("an event") };
        bus.publish(&[event()]).await.expect("published");
        assert!(matches!(subscription.next().await, Ok(Delivery::Lagged)));
        one.ack().await.expect("acked");
        two.nak(Duration::ZERO).await.expect("given back");
        assert!(matches!(subscription.next().await, Ok(Delivery::Event(event)) if event.delivery == 2));
    }

    #[tokio::test]
    async fn a_name_that_nobody_holds_any_more_is_forgotten() {
        let bus = InProcess::new(10);
        let member = bus.subscribe("worker", &Kinds(["a".to_owned()].into())).expect("subscribes");
        drop(member);
        bus.publish(&[event()]);
        assert!(bus.groups().is_empty());
        bus.subscribe("worker", &Kinds(["b".to_owned()].into())).expect("a new consumer with other kinds");
    }
}
