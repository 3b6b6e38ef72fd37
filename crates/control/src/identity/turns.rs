//! Schedules password computations. Each takes a core for a while, so there are few at a time; a caller with many requests must
//! not block others.
//!
//! Addresses take turns, whatever their number of waiting requests. Known addresses go before strangers. When the queue is full,
//! a new request replaces one of the address with the most.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// Maximum number of concurrent computations: each takes a core and 19 MiB.
pub(super) const AT_A_TIME: usize = 2;
/// Maximum number of requests of one address, waiting or running.
const PER_ADDRESS: usize = 8;
/// Maximum number of waiting requests of one queue.
const MAX_WAITING: usize = 64;
/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// No turn is available soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy;

/// The queues, and the number of running computations.
#[derive(Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    running: usize,
    next_id: u64,
    /// Known addresses, then strangers.
    lines: [Line; 2],
    /// Requests of each address, waiting or running.
    held: HashMap<Arc<str>, usize>,
}

#[derive(Default)]
struct Line {
    /// Addresses with waiting requests, in the order of their turns.
    order: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<(u64, oneshot::Sender<Turn>)>>,
    length: usize,
}

/// A turn. It ends when dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    /// `None` if it was never used.
    address: Option<Arc<str>>,
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(address) = self.address.take() {
            let mut state = self.turns.lock();
            state.running = state.running.saturating_sub(1);
            state.release(&address);
            state.serve(&self.turns);
        }
    }
}

/// A waiting request. It leaves the queue when dropped.
struct Waiting<'a> {
    turns: &'a Turns,
    line: usize,
    address: Arc<str>,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        if state.lines[self.line].leave(&self.address, self.id) {
            state.release(&self.address);
        }
    }
}

impl Turns {
    /// Waits for a turn.
    pub(crate) async fn turn(self: &Arc<Self>, address: &str, is_known: bool) -> Result<Turn, Busy> {
        let (address, line): (Arc<str>, _) = (address.into(), usize::from(!is_known));
        let (id, turn) = {
            let mut state = self.lock();
            let entered = state.enter(&address, line)?;
            state.serve(self);
            entered
        };
        let _waiting = Waiting { turns: self, line, address, id };
        match tokio::time::timeout(PATIENCE, turn).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(Busy),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self, address: &Arc<str>, line: usize) -> Result<(u64, oneshot::Receiver<Turn>), Busy> {
        if self.held.get(address).is_some_and(|held| *held >= PER_ADDRESS) {
            return Err(Busy);
        }
        if self.lines[line].length >= MAX_WAITING {
            let displaced = self.lines[line].displace(address).ok_or(Busy)?;
            self.release(&displaced);
        }
        let (sender, receiver) = oneshot::channel();
        self.next_id = self.next_id.wrapping_add(1);
        self.lines[line].enter(Arc::clone(address), self.next_id, sender);
        *self.held.entry(Arc::clone(address)).or_default() += 1;
        Ok((self.next_id, receiver))
    }

    fn release(&mut self, address: &Arc<str>) {
        if let Some(held) = self.held.get_mut(address) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(address);
            }
        }
    }

    /// Assigns the free turns.
    fn serve(&mut self, turns: &Arc<Turns>) {
        while self.running < AT_A_TIME {
            let Some((address, sender)) = self.lines.iter_mut().find_map(Line::next) else { return };
            let turn = Turn { turns: Arc::clone(turns), address: Some(Arc::clone(&address)) };
            match sender.send(turn) {
                Ok(()) => self.running = self.running.saturating_add(1),
                // The waiter is gone; the turn must not be dropped here, because its end would lock this mutex again.
                Err(mut turn) => {
                    turn.address = None;
                    self.release(&address);
                }
            }
        }
    }
}

impl Line {
    fn enter(&mut self, address: Arc<str>, id: u64, sender: oneshot::Sender<Turn>) {
        let waiting = self.waiting.entry(Arc::clone(&address)).or_default();
        if waiting.is_empty() {
            self.order.push_back(address);
        }
        waiting.push_back((id, sender));
        self.length = self.length.saturating_add(1);
    }

    /// Returns the next request of the next address; that address then goes to the end.
    fn next(&mut self) -> Option<(Arc<str>, oneshot::Sender<Turn>)> {
        let address = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&address)?;
        let (_, sender) = waiting.pop_front()?;
        self.length = self.length.saturating_sub(1);
        if waiting.is_empty() {
            self.waiting.remove(&address);
        } else {
            self.order.push_back(Arc::clone(&address));
        }
        Some((address, sender))
    }

    /// Makes room for a request of `address`: removes the last request of the address with the most, if that has more than
    /// `address` itself.
    fn displace(&mut self, address: &Arc<str>) -> Option<Arc<str>> {
        let own = self.waiting.get(address).map_or(0, VecDeque::len);
        let (most, waiting) = self.waiting.iter_mut().max_by_key(|(_, waiting)| waiting.len())?;
        if waiting.len() <= own.saturating_add(1) {
            return None;
        }
        let most = Arc::clone(most);
        waiting.pop_back();
        self.length = self.length.saturating_sub(1);
        Some(most)
    }

    /// Removes a request that no longer waits. Returns `false` if it is already gone.
    fn leave(&mut self, address: &Arc<str>, id: u64) -> bool {
        let Some(waiting) = self.waiting.get_mut(address) else { return false };
        let before = waiting.len();
        waiting.retain(|(other, _)| *other != id);
        if waiting.len() == before {
            return false;
        }
        if waiting.is_empty() {
            self.waiting.remove(address);
            self.order.retain(|other| other != address);
        }
        self.length = self.length.saturating_sub(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Asking<'a> = Pin<Box<dyn Future<Output = Result<Turn, Busy>> + 'a>>;

    fn poll(asking: &mut Asking<'_>) -> Poll<Result<Turn, Busy>> {
        asking.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn asks<'a>(turns: &'a Arc<Turns>, address: &'a str, is_known: bool) -> Asking<'a> {
        let mut asking: Asking<'a> = Box::pin(turns.turn(address, is_known));
        assert!(poll(&mut asking).is_pending(), "{address} waits");
        asking
    }

    async fn held(turns: &Arc<Turns>) -> Vec<Turn> {
        let mut held = Vec::new();
        for _ in 0..AT_A_TIME {
            held.push(turns.turn("first", false).await.expect("a turn"));
        }
        held
    }

    #[tokio::test]
    async fn whoever_asks_once_is_served_before_the_second_of_whoever_asks_often() {
        let turns = Arc::new(Turns::default());
        let mut served = held(&turns).await;
        let mut greedy: Vec<_> = (0..PER_ADDRESS).map(|_| asks(&turns, "greedy", false)).collect();
        let mut modest = asks(&turns, "modest", false);
        served.pop();
        let Poll::Ready(Ok(first)) = poll(&mut greedy[0]) else { panic!("the one who came first has a turn") };
        assert!(poll(&mut modest).is_pending());
        drop(first);
        assert!(matches!(poll(&mut modest), Poll::Ready(Ok(_))), "before the second of the other");
    }

    #[tokio::test]
    async fn those_who_are_known_go_before_strangers_and_one_address_cannot_fill_the_line() {
        let turns = Arc::new(Turns::default());
        let mut served = held(&turns).await;
        let addresses: Vec<String> = (0..MAX_WAITING).map(|number| format!("bot {number}")).collect();
        let mut bots: Vec<_> = addresses.iter().map(|address| asks(&turns, address, false)).collect();
        assert_eq!(turns.turn("another", false).await.err(), Some(Busy), "the line is full of those who wait once");
        let mut known = asks(&turns, "office", true);
        served.pop();
        assert!(matches!(poll(&mut known), Poll::Ready(Ok(_))));
        assert!(matches!(poll(&mut bots[0]), Poll::Ready(Ok(_))), "its turn was over at once");
        for _ in 0..PER_ADDRESS {
            bots.pop();
        }
        let _many: Vec<_> = (0..PER_ADDRESS).map(|_| asks(&turns, "many", false)).collect();
        assert_eq!(turns.turn("many", false).await.err(), Some(Busy));
    }

    #[tokio::test]
    async fn a_full_line_makes_room_at_the_cost_of_whoever_has_most_places() {
        let turns = Arc::new(Turns::default());
        let _served = held(&turns).await;
        let addresses: Vec<String> = (0..MAX_WAITING / PER_ADDRESS).map(|number| format!("bot {number}")).collect();
        let mut bots: Vec<_> = addresses
            .iter()
            .flat_map(|address| (0..PER_ADDRESS).map(|_| asks(&turns, address, false)).collect::<Vec<_>>())
            .collect();
        let _newcomer = asks(&turns, "newcomer", false);
        let mut told = 0;
        for bot in &mut bots {
            told += usize::from(matches!(poll(bot), Poll::Ready(Err(Busy))));
        }
        assert_eq!(told, 1, "one of them lost its place");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let served = held(&turns).await;
        drop((0..PER_ADDRESS).map(|_| asks(&turns, "gone", false)).collect::<Vec<_>>());
        drop(served);
        let state = turns.lock();
        assert_eq!((state.running, state.lines[1].length, state.held.len()), (0, 0, 0));
        assert!(state.lines[1].order.is_empty() && state.lines[1].waiting.is_empty());
    }
}
