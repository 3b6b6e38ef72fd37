//! The event bus: the outbox relay publishes events to it, and consumers receive them.
//!
//! The outbox in the store is the source of truth, and the bus carries copies. The relay may publish an event again whenever it
//! is not sure, so a consumer may see an event twice and must deduplicate by the event's id. A consumer that writes to the store
//! does that in the transaction of its own effect; [`Deduper`] is enough only for state that ends with the process, such as a
//! cache.
//!
//! Events of one aggregate are stored in the order of the outbox. A consumer sees them in that order until an event is returned
//! or redelivered; from then on it must check the aggregate's version.

mod dedupe;
mod in_process;
mod nats;
mod nats_config;
mod nats_subscription;
mod subject;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpuaas_contract::id::EventId;

pub use dedupe::Deduper;
pub use nats_config::NatsConfig;

use nats::Nats;
use nats_subscription::NatsSubscription;

/// Largest event.
pub const MAX_BODY_BYTES: usize = 256 * 1024;
/// Longest kind and longest subject of an event.
pub const MAX_NAME_BYTES: usize = 200;
/// Longest name of a durable consumer.
pub const MAX_DURABLE_BYTES: usize = 64;
/// Maximum number of kinds that one consumer can choose. A consumer that needs more subscribes to all kinds.
pub const MAX_KINDS: usize = 64;
/// How long a consumer may take for an event. Without an answer in that time, the event is delivered again.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// Delays of the redelivery after [`Event::retry`], by the number of deliveries. The last delay repeats.
const RETRIES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
];

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Its id, which stays the same when the event is published again.
    pub id: EventId,
    /// The aggregate it belongs to, such as an allocation's id.
    pub subject: String,
    /// CloudEvents type, such as `gpuaas.allocation.requested.v1`.
    pub kind: String,
    /// The whole CloudEvents document.
    pub body: Bytes,
}

impl Envelope {
    /// Checks the limits of both backends.
    fn check(&self) -> Result<(), BusError> {
        let name = |name: &str| (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        let why = if !name(&self.kind) {
            "its kind is not printable ASCII of reasonable length"
        } else if !name(&self.subject) {
            "its subject is not printable ASCII of reasonable length"
        } else if self.body.len() > MAX_BODY_BYTES {
            "its body is too large"
        } else {
            return Ok(());
        };
        Err(BusError::Envelope { id: self.id, why })
    }
}

/// The result of publishing a batch.
#[derive(Debug)]
pub struct Published {
    /// The events that are confirmed as stored, in the order of the batch. Events that are missing here may or may not be stored:
    /// publish them again.
    pub stored: Vec<EventId>,
    /// Why some are missing: the first reason, if there are several.
    pub failure: Option<BusError>,
}

/// An error of the bus.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// NATS cannot be reached, or does not answer. Nothing is lost: the outbox keeps the events.
    #[error("NATS cannot be reached ({0}); the server keeps trying")]
    Away(String),
    /// The configuration can never work.
    #[error("the configuration of NATS cannot be used: {0}")]
    Config(String),
    /// The stream exists with other settings and is not changed.
    #[error(
        "the stream {stream} has other settings than configured: {differences}; change the configuration or use `nats stream edit`"
    )]
    StreamDiffers {
        /// The stream.
        stream: String,
        /// Each setting with its actual and its expected value.
        differences: String,
    },
    /// NATS refuses the request.
    #[error("NATS refused: {0}; check the permissions of the credentials and the limits of the account")]
    Refused(String),
    /// An event that no backend can carry. Later events of its aggregate wait behind it.
    #[error("event {id} cannot be published: {why}")]
    Envelope {
        /// The event.
        id: EventId,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name that no backend can use for a consumer.
    #[error("`{0}` is not a valid name of a consumer; use 1 to {MAX_DURABLE_BYTES} letters, digits, `-` and `_`")]
    Durable(String),
    /// Too many kinds.
    #[error("{0} kinds are more than {MAX_KINDS}; subscribe to all kinds and skip the others")]
    Kinds(usize),
    /// The consumer exists and is subscribed to kinds that would be removed from it.
    #[error("the consumer {durable} is subscribed to further kinds ({kinds}); use another name for the new one")]
    DurableDiffers {
        /// The consumer.
        durable: String,
        /// The kinds that would be lost.
        kinds: String,
    },
}

impl BusError {
    /// Returns a stable code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Away(_) => "bus_away",
            Self::Config(_) => "bus_config_invalid",
            Self::StreamDiffers { .. } => "bus_stream_differs",
            Self::Refused(_) => "bus_refused",
            Self::Envelope { .. } => "bus_event_invalid",
            Self::Durable(_) | Self::Kinds(_) => "bus_consumer_invalid",
            Self::DurableDiffers { .. } => "bus_consumer_differs",
        }
    }

    /// Returns whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Away(_) | Self::Refused(_) => true,
            Self::Config(_)
            | Self::StreamDiffers { .. }
            | Self::Envelope { .. }
            | Self::Durable(_)
            | Self::Kinds(_)
            | Self::DurableDiffers { .. } => false,
        }
    }
}

/// The event bus. Clones share it.
#[derive(Clone, Debug)]
pub struct Bus(Backend);

#[derive(Clone, Debug)]
enum Backend {
    InProcess(Arc<in_process::InProcess>),
    Nats(Arc<Nats>),
}

impl Bus {
    /// Creates a bus for consumers of this process. A consumer that is more than `capacity` events behind gets
    /// [`Delivery::Lagged`].
    pub fn in_process(capacity: usize) -> Self {
        Self(Backend::InProcess(Arc::new(in_process::InProcess::new(capacity))))
    }

    /// Creates a bus on a stream of NATS JetStream. Creates the stream if it does not exist.
    ///
    /// If NATS cannot be reached within a few seconds, this returns anyway; the stream is then checked before the first event.
    pub async fn nats(config: &NatsConfig) -> Result<Self, BusError> {
        Ok(Self(Backend::Nats(Arc::new(Nats::connect(config).await?))))
    }

    /// Returns whether anybody may be waiting for events. NATS is always assumed to have consumers; the bus of one process knows.
    pub fn has_consumers(&self) -> bool {
        match &self.0 {
            Backend::InProcess(bus) => bus.has_consumers(),
            Backend::Nats(_) => true,
        }
    }

    /// Publishes events, those of one aggregate strictly one after the other: each is stored before the next one is sent, and
    /// when one fails the later ones of its aggregate are not sent. Events of different aggregates are sent concurrently.
    ///
    /// Publishing an event again is safe. NATS stores it once if that happens within two hours; consumers deduplicate in any
    /// case.
    ///
    /// An error means that no event of the batch is confirmed as stored.
    pub async fn publish(&self, batch: &[Envelope]) -> Result<Published, BusError> {
        let (stored, failure) = match &self.0 {
            Backend::InProcess(bus) => bus.publish(batch),
            Backend::Nats(bus) => bus.publish(batch).await?,
        };
        let stored: Vec<EventId> =
            batch.iter().zip(stored).filter(|(_, stored)| *stored).map(|(envelope, _)| envelope.id).collect();
        match failure {
            Some(failure) if stored.is_empty() => Err(failure),
            failure => Ok(Published { stored, failure }),
        }
    }

    /// Subscribes to these kinds, or to all kinds if none is given. Subscriptions with the same name share the work, across all
    /// processes.
    ///
    /// On NATS the name persists: a consumer that returns gets the events it missed, and a new one gets everything that is still
    /// in the stream. In-process, the name exists as long as one of its subscriptions, so a consumer subscribes first and then
    /// reads the outbox from where it stopped. Kinds can be added to a name, but not removed.
    pub async fn subscribe(&self, durable: &str, kinds: &[&str]) -> Result<Subscription, BusError> {
        let usable = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=MAX_DURABLE_BYTES).contains(&durable.len()) || !durable.bytes().all(usable) {
            return Err(BusError::Durable(durable.chars().take(MAX_DURABLE_BYTES).collect()));
        }
        if kinds.len() > MAX_KINDS {
            return Err(BusError::Kinds(kinds.len()));
        }
        let kinds = Kinds(kinds.iter().map(|kind| (*kind).to_owned()).collect());
        Ok(match &self.0 {
            Backend::InProcess(bus) => Subscription(Source::InProcess(bus.subscribe(durable, &kinds)?)),
            Backend::Nats(bus) => {
                Subscription(Source::Nats(Box::new(NatsSubscription::open(bus.clone(), durable, kinds).await?)))
            }
        })
    }
}

/// An item of a subscription.
#[derive(Debug)]
pub enum Delivery {
    /// An event, which must be answered.
    Event(Event),
    /// Some events were dropped: read the outbox from where you stopped, then continue.
    Lagged,
}

/// A consumer's subscription.
#[derive(Debug)]
pub struct Subscription(Source);

#[derive(Debug)]
enum Source {
    InProcess(in_process::Member),
    Nats(Box<NatsSubscription>),
}

impl Subscription {
    /// Waits for the next delivery, also while NATS cannot be reached. An error means that waiting does not help.
    ///
    /// Cancelling the call loses nothing.
    pub async fn next(&mut self) -> Result<Delivery, BusError> {
        match &mut self.0 {
            Source::InProcess(member) => Ok(member.next().await),
            Source::Nats(subscription) => subscription.next().await,
        }
    }
}

/// A delivered event. Without an answer it is delivered again after [`ANSWER_PATIENCE`], also if its consumer died.
#[derive(Debug)]
pub struct Event {
    /// The event.
    pub envelope: Arc<Envelope>,
    /// How often it was delivered, including this time.
    pub delivery: u64,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    InProcess(in_process::Ticket),
    Nats(nats_subscription::Ticket),
}

impl Event {
    /// Confirms that the event is processed. After an error it may be delivered again.
    pub async fn ack(self) -> Result<(), BusError> {
        match self.answer {
            Answer::InProcess(ticket) => ticket.ack(),
            Answer::Nats(ticket) => ticket.ack().await?,
        }
        Ok(())
    }

    /// Returns the event because it cannot be processed now. It is redelivered with increasing delays.
    pub async fn retry(self) -> Result<(), BusError> {
        let delay = retry_after(self.delivery);
        self.nak(delay).await
    }

    /// Returns the event, to be redelivered after `delay`.
    pub async fn nak(self, delay: Duration) -> Result<(), BusError> {
        match self.answer {
            Answer::InProcess(ticket) => ticket.nak(delay),
            Answer::Nats(ticket) => ticket.nak(delay).await?,
        }
        Ok(())
    }
}

/// The kinds that a consumer receives; empty for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kinds(BTreeSet<String>);

impl Kinds {
    fn include(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.contains(kind)
    }
}

/// Returns the positions of each aggregate's events in the batch, in order.
fn by_aggregate(batch: &[Envelope]) -> Vec<Vec<usize>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut chains: Vec<Vec<usize>> = vec![];
    for (index, envelope) in batch.iter().enumerate() {
        let chain = *places.entry(&envelope.subject).or_insert_with(|| {
            chains.push(vec![]);
            chains.len() - 1
        });
        chains[chain].push(index);
    }
    chains
}

/// Returns the delay until a returned event is delivered again.
fn retry_after(delivery: u64) -> Duration {
    let index = usize::try_from(delivery.saturating_sub(1)).unwrap_or(usize::MAX).min(RETRIES.len() - 1);
    RETRIES[index]
}
