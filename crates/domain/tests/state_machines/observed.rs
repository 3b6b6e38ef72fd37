//! Observed transitions, and an exhaustive search over reachable states.

use std::collections::{BTreeSet, VecDeque};

use gpuaas_domain::OutboxEvent;

/// The initial state, as Mermaid writes it.
pub(crate) const BEGINNING: &str = "[*]";
/// More states than any machine has. Stops a search whose keys never repeat.
const MOST_STATES: usize = 10_000;

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Transition {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The decision that causes it.
    pub(crate) by: String,
}

impl std::fmt::Display for Transition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} --> {} : {}", self.from, self.to, self.by)
    }
}

/// What was observed of one state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) transitions: BTreeSet<Transition>,
    /// A state, and the event that reports a transition into it.
    pub(crate) events: BTreeSet<(String, String)>,
}

impl Observed {
    /// Records a decision. A decision that keeps the state is not a transition. `events` are those about the row that changed.
    pub(crate) fn note<'a>(&mut self, from: &str, to: &str, by: &str, events: impl IntoIterator<Item = &'a OutboxEvent>) {
        if from == to {
            return;
        }
        self.transitions.insert(Transition { from: from.to_owned(), to: to.to_owned(), by: by.to_owned() });
        let last = events.into_iter().last().expect("every change of a state has an event");
        self.events.insert((to.to_owned(), last.kind.short().to_owned()));
    }

    /// Adds the observations of another search.
    pub(crate) fn add(&mut self, other: Self) {
        self.transitions.extend(other.transitions);
        self.events.extend(other.events);
    }
}

/// Visits all reachable states. `next` returns the successors of a state; states with the same key count as one.
pub(crate) fn search<S, K: Ord>(start: Vec<S>, key: impl Fn(&S) -> K, mut next: impl FnMut(&S) -> Vec<S>) {
    let mut seen: BTreeSet<K> = start.iter().map(&key).collect();
    let mut open: VecDeque<S> = start.into();
    while let Some(state) = open.pop_front() {
        for reached in next(&state) {
            if seen.insert(key(&reached)) {
                open.push_back(reached);
            }
        }
        assert!(seen.len() < MOST_STATES, "the search does not come to an end");
    }
}
