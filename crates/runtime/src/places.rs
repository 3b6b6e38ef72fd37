//! Places for connections: how many there may be, how many from one origin, and which connection is closed when a new one needs a
//! place.
//!
//! An unauthenticated connection costs its owner nothing, so it must not keep others out. When all places are taken, a new
//! connection takes the place of a connection from the origin (an address, or a process at a local socket) that has the most. If
//! no origin has more than one, it takes the place of the connection with the lowest stage, and among equals of the oldest.
//! Connections of known callers are never closed for another one.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of connections that are still closing before the next one is accepted.
const MAX_LEAVING: usize = 16;
/// Maximum number of connections of known callers that are checked for an idle one.
const MAX_LOOKS: usize = 64;
/// Maximum number of origins that are checked for a connection with a low stage, starting with the largest.
const MAX_ORIGINS: usize = 8;

/// The numbers of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceLimits {
    /// Places in total.
    pub total: usize,
    /// Places for one address (an IPv6 /64 network counts as one), or for one process at a local socket.
    pub per_origin: usize,
}

/// The progress of a connection. Those with less progress are closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has not sent a byte.
    Silent,
    /// It has sent bytes, but no whole request.
    Started,
    /// Its requests are answered and it is idle.
    Idle,
    /// It has an open request of an unknown caller, whose body has not arrived yet.
    Receiving,
    /// It has an open request of an unknown caller that waits for the answer.
    Serving,
    /// Its caller is known.
    Known,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The address or process has all of its places, and known callers use each of them.
    Origin,
    /// All places are in use by known callers.
    Total,
}

/// The origin of a connection, for counting places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(OriginKey);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum OriginKey {
    Address(IpAddr),
    Process(i32),
}

impl Origin {
    /// Returns the origin for a process of this machine.
    pub fn process(id: i32) -> Self {
        Self(OriginKey::Process(id))
    }
}

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        Self(OriginKey::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            v4 @ IpAddr::V4(_) => v4,
        }))
    }
}

/// The places of one listener. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: PlaceLimits,
    inner: Mutex<Inner>,
    /// Notified when a closing connection is gone.
    left: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    entries: HashMap<u64, Taken>,
    order: BTreeSet<(Stage, u64)>,
    origins: HashMap<Origin, BTreeSet<(Stage, u64)>>,
    /// Origins by their number of places.
    counts: BTreeSet<(usize, Origin)>,
    /// Connections that must close and are still open. They are in none of the fields above.
    leaving: usize,
}

#[derive(Clone, Debug)]
struct Taken {
    entry: Arc<Entry>,
    stage: Stage,
    origin: Option<Origin>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    open: AtomicUsize,
    /// Lets connections of known callers skip the lock, because they are the busy ones.
    is_known: AtomicBool,
    told_to_leave: Notify,
}

impl Inner {
    fn insert(&mut self, taken: Taken) {
        let number = taken.entry.number;
        self.order.insert((taken.stage, number));
        if let Some(origin) = taken.origin {
            let of_origin = self.origins.entry(origin).or_default();
            self.counts.remove(&(of_origin.len(), origin));
            of_origin.insert((taken.stage, number));
            self.counts.insert((of_origin.len(), origin));
        }
        self.entries.insert(number, taken);
    }

    fn remove(&mut self, number: u64) -> Option<Taken> {
        let taken = self.entries.remove(&number)?;
        self.order.remove(&(taken.stage, number));
        if let Some(origin) = taken.origin
            && let Some(of_origin) = self.origins.get_mut(&origin)
        {
            self.counts.remove(&(of_origin.len(), origin));
            of_origin.remove(&(taken.stage, number));
            if of_origin.is_empty() {
                self.origins.remove(&origin);
            } else {
                self.counts.insert((of_origin.len(), origin));
            }
        }
        Some(taken)
    }

    /// Returns the connection to close first, of one origin or of all.
    fn first_to_leave(&self, origin: Option<Origin>, at_most: Stage) -> Option<u64> {
        let order = match origin {
            Some(origin) => self.origins.get(&origin)?,
            None => &self.order,
        };
        let (stage, number) = *order.first()?;
        match stage {
            stage if stage > at_most => None,
            Stage::Silent | Stage::Started | Stage::Idle | Stage::Receiving | Stage::Serving => Some(number),
            Stage::Known => {
                let mut known = order.iter().take(MAX_LOOKS).map(|(_, number)| *number);
                known.find(|number| self.entries.get(number).is_some_and(|taken| taken.entry.open.load(Ordering::Acquire) == 0))
            }
        }
    }

    /// Returns the connection to close when all places are taken. A client that reopens connections as fast as they are closed
    /// must not displace one that has only one or two.
    fn first_of_all_to_leave(&self) -> Option<u64> {
        let most = self.counts.iter().rev().take(MAX_ORIGINS).take_while(|(count, _)| *count > 1);
        let mut of_most = most.filter_map(|(_, origin)| self.first_to_leave(Some(*origin), Stage::Receiving));
        of_most.next().or_else(|| self.first_to_leave(None, Stage::Known))
    }

    fn send_away(&mut self, number: u64) {
        if let Some(taken) = self.remove(number) {
            self.leaving += 1;
            taken.entry.told_to_leave.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Places {
    /// Creates the places, all free.
    pub fn new(limits: PlaceLimits) -> Self {
        Self { shared: Arc::new(Shared { limits, inner: Mutex::default(), left: Notify::new() }) }
    }

    /// Returns a place for a new connection, if necessary by closing another one. Without an origin, only the total counts.
    pub fn admit(&self, origin: Option<Origin>) -> Result<Place, NoPlace> {
        let mut inner = lock(&self.shared.inner);
        let of_origin = origin.and_then(|origin| inner.origins.get(&origin)).map_or(0, BTreeSet::len);
        if of_origin >= self.shared.limits.per_origin {
            let first = inner.first_to_leave(origin, Stage::Known).ok_or(NoPlace::Origin)?;
            inner.send_away(first);
        }
        if inner.entries.len() >= self.shared.limits.total {
            let first = inner.first_of_all_to_leave().ok_or(NoPlace::Total)?;
            inner.send_away(first);
        }
        let number = inner.next;
        inner.next += 1;
        let entry =
            Arc::new(Entry { number, open: AtomicUsize::new(0), is_known: AtomicBool::new(false), told_to_leave: Notify::new() });
        inner.insert(Taken { entry: Arc::clone(&entry), stage: Stage::Silent, origin });
        drop(inner);
        Ok(Place { handle: PlaceHandle { shared: Arc::clone(&self.shared), entry } })
    }

    /// Closes the connection with the least progress, if its caller is unknown. Returns whether there was one.
    pub fn shed(&self) -> bool {
        let mut inner = lock(&self.shared.inner);
        let first = inner.first_to_leave(None, Stage::Serving);
        first.inspect(|first| inner.send_away(*first)).is_some()
    }

    /// Waits until almost all closing connections are gone, because each of them still holds a descriptor.
    pub async fn settled(&self) {
        while lock(&self.shared.inner).leaving > MAX_LEAVING {
            self.shared.left.notified().await;
        }
    }

    /// Returns the number of taken places.
    pub fn taken(&self) -> usize {
        lock(&self.shared.inner).entries.len()
    }

    /// Returns the number of places that this origin has taken.
    pub fn taken_by(&self, origin: Origin) -> usize {
        lock(&self.shared.inner).origins.get(&origin).map_or(0, BTreeSet::len)
    }
}

/// A taken place. It is free again when dropped. Keep it beside the socket.
#[derive(Debug)]
pub struct Place {
    handle: PlaceHandle,
}

impl Place {
    /// Returns a handle for the code that serves the connection.
    pub fn handle(&self) -> PlaceHandle {
        self.handle.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let PlaceHandle { shared, entry } = &self.handle;
        let mut inner = lock(&shared.inner);
        if inner.remove(entry.number).is_none() {
            inner.leaving = inner.leaving.saturating_sub(1);
            drop(inner);
            shared.left.notify_one();
        }
    }
}

/// Reports the progress of a connection, and tells when it must close.
#[derive(Clone, Debug)]
pub struct PlaceHandle {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
}

impl PlaceHandle {
    /// Records a new stage. A known caller stays known.
    pub fn reached(&self, stage: Stage) {
        if !self.entry.is_known.load(Ordering::Acquire) {
            if stage == Stage::Known {
                self.entry.is_known.store(true, Ordering::Release);
            }
            self.change(|taken| {
                if taken.stage != Stage::Known {
                    taken.stage = stage;
                }
            });
        }
    }

    /// Stops counting the connection for its origin, because its caller is authenticated. It still counts for the total.
    pub fn leave_origin(&self) {
        self.change(|taken| taken.origin = None);
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        let mut inner = lock(&self.shared.inner);
        // A closing connection is not counted any more.
        if let Some(mut taken) = inner.remove(self.entry.number) {
            change(&mut taken);
            inner.insert(taken);
        }
    }

    /// Records the start of a request.
    pub fn opened(&self) {
        self.entry.open.fetch_add(1, Ordering::AcqRel);
    }

    /// Records the end of a request.
    pub fn closed(&self) {
        self.entry.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Resolves when the connection must close.
    pub async fn told_to_leave(&self) {
        self.entry.told_to_leave.notified().await;
    }

    /// Closes the oldest connection that is still sending a request, if it is older than this one. Returns whether there was one.
    pub fn shed_older(&self) -> bool {
        let mut inner = lock(&self.shared.inner);
        let oldest = inner.order.range((Stage::Receiving, 0)..(Stage::Receiving, self.entry.number)).next();
        oldest.map(|(_, number)| *number).inspect(|oldest| inner.send_away(*oldest)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    fn places(total: usize, per_origin: usize) -> Places {
        Places::new(PlaceLimits { total, per_origin })
    }

    /// Returns whether the connection must close.
    fn must_leave(place: &Place) -> bool {
        let handle = place.handle();
        let future = std::pin::pin!(handle.told_to_leave());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        future.poll(&mut context).is_ready()
    }

    #[test]
    fn a_newcomer_gets_the_place_of_the_oldest_that_has_shown_the_least() {
        let places = places(3, 3);
        let [busy, silent, newer] = [(); 3].map(|()| places.admit(Some(ONE.into())).expect("a place"));
        busy.handle().reached(Stage::Serving);
        let newcomer = places.admit(Some(ONE.into())).expect("a place");
        assert!(must_leave(&silent) && !must_leave(&busy) && !must_leave(&newer) && !must_leave(&newcomer));
        assert_eq!(places.taken(), 3, "the one that leaves is not counted any more");
    }

    #[test]
    fn one_address_takes_places_from_itself_and_not_from_others() {
        let places = places(10, 2);
        let other = places.admit(Some(OTHER.into())).expect("a place");
        let mut own: Vec<Place> = (0..2).map(|_| places.admit(Some(ONE.into())).expect("a place")).collect();
        for _ in 0..100 {
            own.push(places.admit(Some(ONE.into())).expect("a place"));
        }
        assert_eq!((places.taken(), places.taken_by(ONE.into()), places.taken_by(OTHER.into())), (3, 2, 1));
        assert!(!must_leave(&other));
        assert_eq!(own.iter().filter(|place| !must_leave(place)).count(), 2);
    }

    #[test]
    fn a_flood_from_some_addresses_takes_no_place_from_somebody_with_one() {
        let places = places(8, 4);
        let quiet = places.admit(Some(OTHER.into())).expect("a place");
        let flood = (0..200_u8).map(|number| IpAddr::V4(Ipv4Addr::new(198, 51, 100, number % 3)));
        let held: Vec<Place> = flood.map(|address| places.admit(Some(address.into())).expect("a place")).collect();
        assert!(!must_leave(&quiet), "older and as silent as all others, but the only one of its address");
        assert_eq!(held.iter().filter(|place| !must_leave(place)).count(), 7);
    }

    #[test]
    fn a_request_that_is_served_outlives_silent_ones_of_a_smaller_address() {
        let places = places(4, 4);
        let busy: Vec<Place> = (0..3).map(|_| places.admit(Some(ONE.into())).expect("a place")).collect();
        busy.iter().for_each(|place| place.handle().reached(Stage::Serving));
        let silent = places.admit(Some(OTHER.into())).expect("a place");
        let _newcomer = places.admit(Some(OTHER.into())).expect("a place");
        assert!(must_leave(&silent) && !busy.iter().any(must_leave));
    }

    #[test]
    fn a_flood_of_one_process_takes_no_place_from_another_process() {
        let places = places(8, 8);
        let other = places.admit(Some(Origin::process(7))).expect("a place");
        let flood: Vec<Place> = (0..200).map(|_| places.admit(Some(Origin::process(8))).expect("a place")).collect();
        assert!(!must_leave(&other));
        assert_eq!(flood.iter().filter(|place| !must_leave(place)).count(), 7);
    }

    #[test]
    fn addresses_of_one_ipv6_network_share_their_places() {
        let places = places(10, 2);
        let of = |text: &str| places.admit(Some(text.parse::<IpAddr>().expect("an address").into())).expect("a place");
        let _held = [of("2001:db8::1"), of("2001:db8::2"), of("2001:db8::ffff:3"), of("2001:db8:0:1::1")];
        assert_eq!(places.taken_by("2001:db8::9".parse::<IpAddr>().expect("an address").into()), 2);
        assert_eq!(places.taken(), 3);
        let mapped = of("::ffff:192.0.2.1");
        assert_eq!(places.taken_by(ONE.into()), 1);
        drop(mapped);
        assert_eq!(places.taken_by(ONE.into()), 0);
    }

    #[test]
    fn an_open_request_of_a_known_caller_is_never_ended_for_somebody_else() {
        let places = places(2, 2);
        let held: Vec<Place> = (0..2).map(|_| places.admit(Some(ONE.into())).expect("a place")).collect();
        for place in &held {
            place.handle().opened();
            place.handle().reached(Stage::Known);
        }
        assert_eq!(places.admit(Some(ONE.into())).expect_err("full"), NoPlace::Origin);
        assert_eq!(places.admit(Some(OTHER.into())).expect_err("full"), NoPlace::Total);
        assert!(!places.shed());
        held[1].handle().closed();
        places.admit(Some(OTHER.into())).expect("the place of the one that does nothing");
        assert!(must_leave(&held[1]) && !must_leave(&held[0]));
    }

    #[test]
    fn whoever_has_proved_who_they_are_does_not_count_for_the_address() {
        let places = places(10, 1);
        let agents: Vec<Place> = (0..5)
            .map(|_| {
                let place = places.admit(Some(ONE.into())).expect("a place");
                place.handle().opened();
                place.handle().reached(Stage::Known);
                place.handle().leave_origin();
                place
            })
            .collect();
        assert!(agents.iter().all(|agent| !must_leave(agent)));
        assert_eq!((places.taken(), places.taken_by(ONE.into())), (5, 0));
    }

    #[test]
    fn the_oldest_unfinished_request_of_a_stranger_makes_room_for_a_newer_one() {
        let places = places(10, 10);
        let [known, whole, first, second, third] = [(); 5].map(|()| places.admit(Some(ONE.into())).expect("a place"));
        known.handle().reached(Stage::Known);
        whole.handle().reached(Stage::Serving);
        for unfinished in [&first, &second, &third] {
            unfinished.handle().reached(Stage::Receiving);
        }
        assert!(second.handle().shed_older());
        assert!(must_leave(&first));
        assert!(!second.handle().shed_older(), "only newer ones are left");
        assert!([known, whole, second, third].iter().all(|place| !must_leave(place)));
    }

    #[tokio::test]
    async fn accepting_waits_for_those_who_have_to_leave() {
        let places = places(1, 1);
        let mut held: Vec<Place> = (0..=MAX_LEAVING + 1).map(|_| places.admit(Some(ONE.into())).expect("a place")).collect();
        let settled = places.settled();
        tokio::pin!(settled);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(settled.as_mut().poll(&mut context).is_pending());
        held.remove(0);
        settled.await;
    }
}
