//! Redis Pub/Sub: one connection of this process, subscribed to the channels of its listeners.
//!
//! One task owns the connection. It takes no commands: when it is woken it compares the hub with the subscriptions at Redis and
//! applies the difference. So a start, a new listener and a reconnect run the same code.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::{PubSubSink, PubSubStream};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::hub::Hub;
use crate::redis::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, Redis, RedisError, Repeat};

/// The prefix of our channels in Redis.
const PREFIX: &str = "gpuaas:fanout:";
/// Channels in one command.
const CHUNK: usize = 128;
/// How often an idle connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// The delay before a new connection attempt: the first one, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

#[derive(Debug)]
pub(super) struct OnRedis {
    redis: Redis,
    hub: Arc<Hub>,
    /// Changes whenever Redis confirms channels.
    confirmations: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl OnRedis {
    pub(super) fn start(redis: Redis) -> Self {
        let hub = Arc::new(Hub::default());
        let (announce, confirmations) = watch::channel(0);
        let task = tokio::spawn(listen(redis.clone(), hub.clone(), announce));
        Self { redis, hub, confirmations, task }
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(super) async fn publish(&self, channel: &str, body: &Bytes) -> Result<(), RedisError> {
        let mut command = ::redis::cmd("PUBLISH");
        command.arg(format!("{PREFIX}{channel}")).arg(body.as_ref());
        self.redis.command::<i64>(&command, Repeat::Once).await.map(drop)
    }

    /// Waits until Redis has confirmed all of these channels, or until the time is up.
    pub(super) async fn wait_until_live(&self, channels: &[&str], patience: Duration) {
        let mut confirmations = self.confirmations.clone();
        // After a timeout, the listener gets a gap once they are confirmed.
        let _ = timeout(patience, confirmations.wait_for(|_| self.hub.are_live(channels))).await;
    }
}

impl Drop for OnRedis {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(redis: Redis, hub: Arc<Hub>, announce: watch::Sender<u64>) {
    let mut pause = PAUSE.0;
    loop {
        match timeout(CONNECT_TIMEOUT, redis.client().get_async_pubsub()).await {
            Ok(Ok(connection)) => {
                pause = PAUSE.0;
                let (sink, stream) = connection.split();
                let why = Connection { sink, stream, hub: &hub, announce: &announce }.serve().await;
                tracing::warn!(why, "lost the connection that receives notifications from Redis");
                hub.disconnected();
            }
            Ok(Err(error)) => tracing::debug!(%error, "Redis cannot be reached for notifications"),
            Err(_) => tracing::debug!("Redis did not answer in time; notifications are not received yet"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

struct Connection<'a> {
    sink: PubSubSink,
    stream: PubSubStream,
    hub: &'a Hub,
    announce: &'a watch::Sender<u64>,
}

impl Connection<'_> {
    /// Runs until the connection breaks and returns the reason.
    async fn serve(mut self) -> &'static str {
        let mut ping_at = Instant::now() + PING_INTERVAL;
        let mut changed = true;
        loop {
            if changed && !self.reconcile().await {
                return "a subscription was not confirmed";
            }
            changed = false;
            tokio::select! {
                () = self.hub.changed.notified() => changed = true,
                message = self.stream.next() => {
                    let Some(message) = message else { return "it was closed" };
                    if let Some(channel) = message.get_channel_name().strip_prefix(PREFIX) {
                        self.hub.deliver(channel, &Bytes::copy_from_slice(message.get_payload_bytes()));
                    }
                }
                () = tokio::time::sleep_until(ping_at) => {
                    if !matches!(timeout(ANSWER_TIMEOUT, self.sink.ping::<::redis::Value>()).await, Ok(Ok(_))) {
                        return "a ping was not answered";
                    }
                    ping_at = Instant::now() + PING_INTERVAL;
                }
            }
        }
    }

    /// Subscribes to missing channels and unsubscribes the others. Returns false if the connection is broken.
    async fn reconcile(&mut self) -> bool {
        let (joined, left) = self.hub.take_changes();
        for chunk in left.chunks(CHUNK) {
            if !matches!(timeout(ANSWER_TIMEOUT, self.sink.unsubscribe(names(chunk))).await, Ok(Ok(()))) {
                return false;
            }
        }
        for chunk in joined.chunks(CHUNK) {
            if !matches!(timeout(ANSWER_TIMEOUT, self.sink.subscribe(names(chunk))).await, Ok(Ok(()))) {
                return false;
            }
            self.hub.confirmed(chunk);
            self.announce.send_modify(|count| *count += 1);
        }
        true
    }
}

fn names(channels: &[Arc<str>]) -> Vec<String> {
    channels.iter().map(|name| format!("{PREFIX}{name}")).collect()
}
