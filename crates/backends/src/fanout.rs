//! Notifications to current listeners, such as a browser with an open page.
//!
//! A notification means "read again" or shows progress; it is not stored. A listener that missed some gets a [`Notice::Gap`] and
//! reads the store again. A full queue and a Redis that was unreachable have the same result, and memory stays bounded.

mod hub;
mod on_redis;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;

use crate::redis::{Redis, RedisError};
use hub::{Hub, Mailbox};
use on_redis::OnRedis;

/// Longest name of a channel.
pub const MAX_CHANNEL_BYTES: usize = 256;
/// Maximum number of channels of one listener.
pub const MAX_CHANNELS: usize = 64;
/// Largest notification.
pub const MAX_BODY_BYTES: usize = 64 * 1024;
/// How long a new listener waits for Redis to confirm its channels.
const OPENING_PATIENCE: Duration = Duration::from_secs(2);

/// Why a notification was not sent or a listener not created.
#[derive(Debug, thiserror::Error)]
pub enum FanoutError {
    /// A channel's name is empty or too long.
    #[error("a channel's name of {0} bytes is not between 1 and {MAX_CHANNEL_BYTES}")]
    Channel(usize),
    /// No channels, or too many.
    #[error("{0} channels are not between 1 and {MAX_CHANNELS}; open several listeners")]
    Channels(usize),
    /// The notification is too large.
    #[error("a notification of {0} bytes is larger than {MAX_BODY_BYTES}; send an id and let the listener read the rest")]
    Body(usize),
    /// Redis did not accept it.
    #[error("Redis did not accept the notification")]
    Redis(#[from] RedisError),
}

impl FanoutError {
    /// Returns a stable code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Channel(_) | Self::Channels(_) => "fanout_channel_invalid",
            Self::Body(_) => "fanout_body_too_large",
            Self::Redis(error) => error.code(),
        }
    }
}

/// An item that a listener receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A notification.
    Message {
        /// The channel of the notification.
        channel: Arc<str>,
        /// Its content.
        body: Bytes,
    },
    /// Notifications may be missing: read the store again.
    Gap,
}

/// Sends to all listeners, in all processes that share a Redis. Clones share it.
#[derive(Clone, Debug)]
pub struct Fanout(Backend);

#[derive(Clone, Debug)]
enum Backend {
    InProcess(Arc<Hub>),
    Redis(Arc<OnRedis>),
}

impl Fanout {
    /// Creates a fan-out to listeners of this process alone.
    pub fn in_process() -> Self {
        Self(Backend::InProcess(Arc::new(Hub::default())))
    }

    /// Creates a fan-out to listeners of all processes. Call it inside a runtime, because it starts a task that keeps the
    /// connection.
    ///
    /// All listeners of this process share one connection for receiving. Notifications are sent over the connection of [`Redis`],
    /// because Redis does not accept them on a subscribed connection.
    pub fn redis(redis: &Redis) -> Self {
        Self(Backend::Redis(Arc::new(OnRedis::start(redis.clone()))))
    }

    /// Sends a notification to all current listeners of the channel.
    ///
    /// After an error, some may not get it. They get a [`Notice::Gap`] when Redis is back, so there is nothing to retry.
    pub async fn publish(&self, channel: &str, body: Bytes) -> Result<(), FanoutError> {
        check_channel(channel)?;
        if body.len() > MAX_BODY_BYTES {
            return Err(FanoutError::Body(body.len()));
        }
        match &self.0 {
            Backend::InProcess(hub) => hub.deliver(channel, &body),
            Backend::Redis(redis) => redis.publish(channel, &body).await?,
        }
        Ok(())
    }

    /// Returns whether anyone may be listening. With Redis that is unknown here, and the answer is yes.
    ///
    /// A listener counts from the moment it is subscribed, before its owner can read the store.
    pub fn may_have_listeners(&self) -> bool {
        match &self.0 {
            Backend::InProcess(hub) => hub.has_listeners(),
            Backend::Redis(_) => true,
        }
    }

    /// Subscribes to these channels. After this returns, every notification is received, or a [`Notice::Gap`] in its place.
    ///
    /// An unreachable Redis is not an error: the listener gets a gap once it is back.
    pub async fn subscribe(&self, channels: &[&str]) -> Result<Listener, FanoutError> {
        if !(1..=MAX_CHANNELS).contains(&channels.len()) {
            return Err(FanoutError::Channels(channels.len()));
        }
        channels.iter().try_for_each(|channel| check_channel(channel))?;
        match &self.0 {
            Backend::InProcess(hub) => {
                let mailbox = hub.join(channels);
                mailbox.open();
                Ok(Listener { mailbox, hub: hub.clone(), keep_alive: None })
            }
            Backend::Redis(redis) => {
                // Created before the first await, so that cancelling the call removes the listener again.
                let mailbox = redis.hub().join(channels);
                let listener = Listener { mailbox, hub: redis.hub().clone(), keep_alive: Some(redis.clone()) };
                redis.wait_until_live(channels, OPENING_PATIENCE).await;
                listener.mailbox.open();
                Ok(listener)
            }
        }
    }
}

/// One listener. Leaves its channels when it is dropped. The stream never ends by itself.
#[derive(Debug)]
pub struct Listener {
    mailbox: Arc<Mailbox>,
    hub: Arc<Hub>,
    /// The task that fills the mailbox runs as long as a listener needs it.
    #[allow(dead_code, reason = "held, never read")]
    keep_alive: Option<Arc<OnRedis>>,
}

impl Stream for Listener {
    type Item = Notice;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Notice>> {
        self.mailbox.poll(context).map(Some)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.hub.leave(&self.mailbox);
    }
}

fn check_channel(channel: &str) -> Result<(), FanoutError> {
    if (1..=MAX_CHANNEL_BYTES).contains(&channel.len()) { Ok(()) } else { Err(FanoutError::Channel(channel.len())) }
}
