//! Remembering which events were seen.

use std::collections::{HashMap, VecDeque};

use gpuaas_contract::id::EventId;

/// Remembers the ids of the last events it was shown, in bounded memory.
///
/// For helpers of one process whose state ends with it. A consumer whose effect outlives the process must remember the id in the
/// transaction of that effect, or it forgets at the worst moment.
#[derive(Debug)]
pub struct Deduper {
    capacity: usize,
    clock: u64,
    /// When each id was seen last.
    seen: HashMap<EventId, u64>,
    /// Every sight in order; those that are not the last of their id are stale.
    order: VecDeque<(u64, EventId)>,
}

impl Deduper {
    /// Remembers up to `capacity` ids, and at least one.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), clock: 0, seen: HashMap::new(), order: VecDeque::new() }
    }

    /// True if the id was not seen among the last ones. It counts as seen from now on, and as seen most recently.
    pub fn is_new(&mut self, id: EventId) -> bool {
        self.clock += 1;
        self.order.push_back((self.clock, id));
        let new = self.seen.insert(id, self.clock).is_none();
        while self.seen.len() > self.capacity {
            let Some((at, oldest)) = self.order.pop_front() else { break };
            if self.seen.get(&oldest) == Some(&at) {
                self.seen.remove(&oldest);
            }
        }
        if self.order.len() > self.capacity.saturating_mul(2) {
            let seen = &self.seen;
            self.order.retain(|(at, id)| seen.get(id) == Some(at));
        }
        new
    }

    /// Forgets the id: what it stood for was not done after all.
    pub fn forget(&mut self, id: EventId) {
        self.seen.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> EventId {
        EventId::from_bytes([number; 16])
    }

    #[test]
    fn an_event_is_new_once() {
        let mut deduper = Deduper::new(10);
        assert!(deduper.is_new(id(1)));
        assert!(!deduper.is_new(id(1)));
        deduper.forget(id(1));
        assert!(deduper.is_new(id(1)));
    }

    #[test]
    fn the_one_not_seen_for_longest_is_forgotten_first() {
        let mut deduper = Deduper::new(2);
        for (number, new) in [(1, true), (2, true), (1, false), (3, true), (1, false), (2, true)] {
            assert_eq!(deduper.is_new(id(number)), new, "{number}");
        }
    }

    #[test]
    fn memory_stays_bounded_whatever_it_is_shown() {
        let mut deduper = Deduper::new(8);
        for round in 0..10_000_u32 {
            deduper.is_new(id(u8::try_from(round % 11).expect("small")));
            deduper.is_new(id(0));
            assert!(deduper.seen.len() <= 8 && deduper.order.len() <= 16);
        }
    }
}
