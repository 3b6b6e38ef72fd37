//! Redis Pub/Sub: one connection on which this process listens, kept in line with what its listeners want.
//!
//! One task owns the connection. It takes no orders: when it is woken it asks the hub what Redis does not know yet and makes up the
//! difference. So a start, a new listener and a reconnect are the same code.

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

/// What the names of our channels start with in Redis.
const PREFIX: &str = "gpuaas:fanout:";
/// Channels of one command.
const CHUNK: usize = 128;
/// How often a silent connection is tried.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// How long to wait before dialing again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

#[derive(Debug)]
pub(super) struct OnRedis {
    redis: Redis,
    hub: Arc<Hub>,
    /// Changes whenever Redis has confirmed channels.
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

    /// Returns when Redis has confirmed all of these channels, or when that takes too long.
    pub(super) async fn wait_until_live(&self, channels: &[&str], patience: Duration) {
        let mut confirmations = self.confirmations.clone();
        // Too long: then the listener gets a gap once it is so.
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
                tracing::warn!(why, "the connection on which notifications come from Redis broke");
                hub.disconnected();
            }
            Ok(Err(error)) => tracing::debug!(%error, "Redis cannot be reached for notifications"),
            Err(_) => tracing::debug!("Redis does not answer the call for notifications"),
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
    /// Runs until the connection breaks, and says why it did.
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

    /// Makes Redis send what is wanted and nothing else. False if the connection is no good any more.
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
