//! Notifications to whoever is looking right now: a browser with an open page.
//!
//! A notification says "look again" or shows progress; it is not kept for anybody. Whoever missed some gets a [`Notice::Gap`] instead and
//! reads the store again. So a queue that is full and a Redis that was away end in the same way, and no memory grows.

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
/// Most channels of one listener.
pub const MAX_CHANNELS: usize = 64;
/// Largest notification.
pub const MAX_BODY_BYTES: usize = 64 * 1024;
/// How long a new listener waits for Redis to confirm its channels.
const OPENING_PATIENCE: Duration = Duration::from_secs(2);

/// Why a notification was not sent or a listener not made.
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
    /// Redis did not take it.
    #[error("Redis did not take the notification")]
    Redis(#[from] RedisError),
}

impl FanoutError {
    /// A stable code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Channel(_) | Self::Channels(_) => "fanout_channel_invalid",
            Self::Body(_) => "fanout_body_too_large",
            Self::Redis(error) => error.code(),
        }
    }
}

/// What a listener hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A notification.
    Message {
        /// The channel it came over.
        channel: Arc<str>,
        /// What was sent.
        body: Bytes,
    },
    /// Something may have been missed: read the store again.
    Gap,
}

/// The way to all listeners, in all processes that share a Redis. Clones share it.
#[derive(Clone, Debug)]
pub struct Fanout(Backend);

#[derive(Clone, Debug)]
enum Backend {
    InProcess(Arc<Hub>),
    Redis(Arc<OnRedis>),
}

impl Fanout {
    /// Listeners of this process alone.
    pub fn in_process() -> Self {
        Self(Backend::InProcess(Arc::new(Hub::default())))
    }

    /// Listeners of all processes. Must be called inside of a runtime, because a task keeps the connection.
    ///
    /// All listeners of this process share one connection for listening, whatever their number; notifications go out over the one that
    /// [`Redis`] shares, because Redis does not take them on the other.
    pub fn redis(redis: &Redis) -> Self {
        Self(Backend::Redis(Arc::new(OnRedis::start(redis.clone()))))
    }

    /// Sends a notification to everybody who listens on the channel now.
    ///
    /// An error means that some may not get it; they get a [`Notice::Gap`] when Redis is back, so there is nothing to repeat.
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

    /// Listens on these channels. What is published after this has returned is heard, or a [`Notice::Gap`] in its place.
    ///
    /// A Redis that is away is no error: the listener gets a gap once it is back.
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
                // Made before anything is awaited, so that giving up in the middle leaves again.
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
    /// The task that fills the mailbox runs as long as somebody needs it.
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
