//! Remembers which events were seen.

use std::collections::{HashMap, VecDeque};

use gpuaas_contract::id::EventId;

/// Remembers the ids of the latest events, in bounded memory.
///
/// For state that ends with the process. A consumer whose effect outlives the process must store the id in the transaction of
/// that effect; otherwise a crash forgets it.
#[derive(Debug)]
pub struct Deduper {
    capacity: usize,
    clock: u64,
    /// The latest occurrence of each id.
    seen: HashMap<EventId, u64>,
    /// All occurrences in order. Those that are not the latest of their id are stale.
    order: VecDeque<(u64, EventId)>,
}

impl Deduper {
    /// Remembers up to `capacity` ids, but at least one.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), clock: 0, seen: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns true if the id is not among the remembered ones, and remembers it as the latest.
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

    /// Forgets the id, because its event was not processed after all.
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
