//! The listeners of this process: their channels, and a bounded mailbox for each.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Notice;

/// Maximum number of notices that wait for one listener.
pub(super) const MAILBOX_NOTICES: usize = 256;

/// All listeners of this process.
#[derive(Default)]
pub(super) struct Hub {
    book: Mutex<Book>,
    /// Wakes the task that keeps the subscriptions at Redis up to date.
    pub(super) changed: Notify,
}

#[derive(Default)]
struct Book {
    channels: HashMap<Arc<str>, Channel>,
    /// Channels that are not yet subscribed at Redis. Without Redis, all of them.
    joined: HashSet<Arc<str>>,
    /// Channels that are subscribed at Redis and have no listener any more.
    left: HashSet<Arc<str>>,
}

#[derive(Default)]
struct Channel {
    listeners: Vec<Arc<Mailbox>>,
    /// Redis has confirmed it on the current connection.
    live: bool,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("channels", &self.lock().channels.len()).finish_non_exhaustive()
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener that is not open yet.
    pub(super) fn join(&self, channels: &[&str]) -> Arc<Mailbox> {
        let names: HashSet<Arc<str>> = channels.iter().map(|name| Arc::from(*name)).collect();
        let mailbox = Arc::new(Mailbox { channels: names.iter().cloned().collect(), waiting: Mutex::default() });
        let mut book = self.lock();
        let Book { channels, joined, left } = &mut *book;
        for name in names {
            let channel = channels.entry(name.clone()).or_insert_with(|| {
                // Redis was not yet asked to unsubscribe, so it still sends.
                let live = left.remove(&name);
                if !live {
                    joined.insert(name);
                }
                Channel { listeners: vec![], live }
            });
            channel.listeners.push(mailbox.clone());
        }
        drop(book);
        self.changed.notify_one();
        mailbox
    }

    /// Removes a listener, and the channels that have no other listener.
    pub(super) fn leave(&self, mailbox: &Arc<Mailbox>) {
        let mut book = self.lock();
        let Book { channels, joined, left } = &mut *book;
        for name in &mailbox.channels {
            let Some(channel) = channels.get_mut(name) else { continue };
            channel.listeners.retain(|listener| !Arc::ptr_eq(listener, mailbox));
            if channel.listeners.is_empty() {
                if channel.live {
                    left.insert(name.clone());
                }
                joined.remove(name);
                channels.remove(name);
            }
        }
        drop(book);
        self.changed.notify_one();
    }

    /// Returns whether there is any listener.
    pub(super) fn has_listeners(&self) -> bool {
        !self.lock().channels.is_empty()
    }

    /// Sends a notification to all listeners of the channel.
    pub(super) fn deliver(&self, channel: &str, body: &Bytes) {
        let book = self.lock();
        if let Some((name, channel)) = book.channels.get_key_value(channel) {
            for listener in &channel.listeners {
                listener.put(Notice::Message { channel: name.clone(), body: body.clone() });
            }
        }
    }

    /// Returns the channels to subscribe and to unsubscribe at Redis. They are returned once: the caller either applies them or
    /// loses the connection.
    pub(super) fn take_changes(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let mut book = self.lock();
        (book.joined.drain().collect(), book.left.drain().collect())
    }

    /// Records that Redis has confirmed these channels. Listeners that were open before may have missed something and get one
    /// gap.
    pub(super) fn confirmed(&self, names: &[Arc<str>]) {
        let mut book = self.lock();
        let Book { channels, joined, left } = &mut *book;
        let mut listeners: HashMap<*const Mailbox, Arc<Mailbox>> = HashMap::new();
        for name in names {
            joined.remove(name);
            match channels.get_mut(name) {
                Some(channel) => {
                    channel.live = true;
                    listeners.extend(channel.listeners.iter().map(|listener| (Arc::as_ptr(listener), listener.clone())));
                }
                // All listeners have left in the meantime.
                None => drop(left.insert(name.clone())),
            }
        }
        listeners.values().for_each(|listener| listener.missed());
    }

    /// Records that the connection is lost: all channels must be subscribed again.
    pub(super) fn disconnected(&self) {
        let mut book = self.lock();
        let Book { channels, joined, left } = &mut *book;
        left.clear();
        channels.values_mut().for_each(|channel| channel.live = false);
        joined.extend(channels.keys().cloned());
    }

    /// Returns whether Redis has confirmed all of these channels.
    pub(super) fn are_live(&self, names: &[&str]) -> bool {
        let book = self.lock();
        names.iter().all(|name| book.channels.get(*name).is_some_and(|channel| channel.live))
    }
}

/// The notices that wait for one listener.
#[derive(Debug)]
pub(super) struct Mailbox {
    channels: Vec<Arc<str>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    notices: VecDeque<Notice>,
    /// A gap is delivered before the waiting notices.
    gap: bool,
    /// False until the owner has the listener; before that it cannot have missed anything.
    open: bool,
    waker: Option<Waker>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the mailbox as open: from now on its owner expects every notification.
    pub(super) fn open(&self) {
        self.lock().open = true;
    }

    fn put(&self, notice: Notice) {
        let mut waiting = self.lock();
        if waiting.notices.len() < MAILBOX_NOTICES {
            waiting.notices.push_back(notice);
        } else {
            // A listener that reads the store again needs none of these.
            waiting.notices.clear();
            waiting.gap = true;
        }
        wake(waiting);
    }

    fn missed(&self) {
        let mut waiting = self.lock();
        waiting.gap |= waiting.open;
        wake(waiting);
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Notice> {
        let mut waiting = self.lock();
        if std::mem::take(&mut waiting.gap) {
            return Poll::Ready(Notice::Gap);
        }
        match waiting.notices.pop_front() {
            Some(notice) => Poll::Ready(notice),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Wakes the listener after the lock is released.
fn wake(mut waiting: MutexGuard<'_, Waiting>) {
    let waker = waiting.waker.take();
    drop(waiting);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<Arc<str>> {
        list.iter().map(|name| Arc::from(*name)).collect()
    }

    fn changes(hub: &Hub) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let (mut joined, left) = hub.take_changes();
        joined.sort();
        (joined, left)
    }

    #[test]
    fn a_channel_is_given_back_when_its_last_listener_leaves() {
        let hub = Hub::default();
        let one = hub.join(&["a", "b", "a"]);
        let two = hub.join(&["b"]);
        assert_eq!(changes(&hub), (names(&["a", "b"]), vec![]));
        hub.confirmed(&names(&["a", "b"]));
        assert!(hub.are_live(&["a", "b"]));
        hub.leave(&one);
        assert_eq!(changes(&hub), (vec![], names(&["a"])));
        assert!(hub.has_listeners());
        hub.leave(&two);
        assert_eq!(changes(&hub), (vec![], names(&["b"])));
        assert!(!hub.has_listeners());
    }

    #[test]
    fn listeners_that_come_and_go_in_the_middle_of_a_change_lose_nothing() {
        let hub = Hub::default();
        let one = hub.join(&["a"]);
        hub.take_changes();
        hub.leave(&one);
        hub.confirmed(&names(&["a"]));
        assert_eq!(changes(&hub), (vec![], names(&["a"])), "nobody listens, so it is given back");
        // A new listener joins while the channel is being unsubscribed.
        let two = hub.join(&["a"]);
        assert!(!hub.are_live(&["a"]));
        assert_eq!(changes(&hub), (names(&["a"]), vec![]), "so it is asked for again");
        hub.confirmed(&names(&["a"]));
        hub.leave(&two);
        let _three = hub.join(&["a"]);
        assert!(hub.are_live(&["a"]), "Redis was not told in between");
        assert_eq!(changes(&hub), (vec![], vec![]));
    }

    #[test]
    fn after_a_broken_connection_everything_is_asked_for_again_and_open_listeners_get_a_gap() {
        let hub = Hub::default();
        let mailbox = hub.join(&["a"]);
        hub.take_changes();
        hub.confirmed(&names(&["a"]));
        assert!(!mailbox.lock().gap, "it was not open yet");
        mailbox.open();
        hub.disconnected();
        assert!(!hub.are_live(&["a"]));
        assert_eq!(changes(&hub), (names(&["a"]), vec![]));
        hub.confirmed(&names(&["a"]));
        assert!(mailbox.lock().gap);
    }

    #[test]
    fn without_redis_the_book_forgets_channels_that_nobody_listens_on() {
        let hub = Hub::default();
        for _ in 0..10 {
            let mailbox = hub.join(&["a"]);
            hub.leave(&mailbox);
        }
        let book = hub.lock();
        assert!(book.channels.is_empty() && book.joined.is_empty() && book.left.is_empty());
    }
}
