//! The event bus: what the relay of the outbox hands on, and what consumers take from it.
//!
//! The outbox in the store is the truth, and the bus carries copies. So the relay may publish an event again whenever it is not sure,
//! and a consumer may see an event twice: it dedupes by the event's id. A consumer that writes to the store does so in the
//! transaction of its own effect; [`Deduper`] is enough only for helpers whose memory ends with the process, such as a cache.
//!
//! Events of one aggregate are stored in the order of the outbox. A consumer sees them in that order until one is given back or
//! delivered again; then it must look at the aggregate's version.

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
/// Most kinds that one consumer can choose; one that wants more takes all of them.
pub const MAX_KINDS: usize = 64;
/// How long a consumer may take for an event. One that nobody answered for by then is delivered again.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// When an event comes again after [`Event::retry`], by how often it was delivered. The last one repeats.
const RETRIES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
];

/// One event on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Its id; the same however often it is published.
    pub id: EventId,
    /// The aggregate it belongs to, such as an allocation's id.
    pub subject: String,
    /// CloudEvents type, such as `gpuaas.allocation.requested.v1`.
    pub kind: String,
    /// The whole CloudEvents document.
    pub body: Bytes,
}

impl Envelope {
    /// What both backends can carry.
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

/// What became of a batch.
#[derive(Debug)]
pub struct Published {
    /// The events that are surely stored, in the order of the batch. Whatever is missing here may be stored or not: publish it again.
    pub stored: Vec<EventId>,
    /// Why some are missing. The first reason, if there are several.
    pub failure: Option<BusError>,
}

/// Why the bus did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// NATS is not there, or does not answer. Nothing is lost: the outbox keeps the events.
    #[error("NATS is away ({0}); it is looked for again by itself")]
    Away(String),
    /// The configuration can never work.
    #[error("the configuration of NATS cannot be used: {0}")]
    Config(String),
    /// The stream is there with other settings, and is left as it is.
    #[error(
        "the stream {stream} has other settings than configured: {differences}; change the configuration or use `nats stream edit`"
    )]
    StreamDiffers {
        /// The stream.
        stream: String,
        /// Each setting, what it is and what it should be.
        differences: String,
    },
    /// NATS is there and says no.
    #[error("NATS refused: {0}; check the rights of the credentials and the limits of the account")]
    Refused(String),
    /// An event that no engine can carry. Later events of its aggregate wait behind it.
    #[error("event {id} cannot be published: {why}")]
    Envelope {
        /// The event.
        id: EventId,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name that no engine can use for a consumer.
    #[error("`{0}` is no name of a consumer: use 1 to {MAX_DURABLE_BYTES} letters, digits, `-` and `_`")]
    Durable(String),
    /// Too many kinds.
    #[error("{0} kinds are more than {MAX_KINDS}; take all kinds and skip those that are not wanted")]
    Kinds(usize),
    /// The consumer exists and listens to kinds that would be taken away from it.
    #[error("the consumer {durable} listens to kinds that are not wanted any more ({kinds}); use another name for the new one")]
    DurableDiffers {
        /// The consumer.
        durable: String,
        /// The kinds that would be lost.
        kinds: String,
    },
}

impl BusError {
    /// A stable code for logs.
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

    /// Whether waiting may help.
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
    /// A bus for consumers of this process, each of which may be `capacity` events behind before it is told to read the outbox instead.
    pub fn in_process(capacity: usize) -> Self {
        Self(Backend::InProcess(Arc::new(in_process::InProcess::new(capacity))))
    }

    /// A bus on a stream of NATS JetStream, which is made if it is not there.
    ///
    /// Returns without having reached NATS if that takes more than a few seconds; the stream is then looked at before the first event.
    pub async fn nats(config: &NatsConfig) -> Result<Self, BusError> {
        Ok(Self(Backend::Nats(Arc::new(Nats::connect(config).await?))))
    }

    /// Publishes events, those of one aggregate strictly one after the other: each is stored before the next one is sent, and when one
    /// fails the later ones of its aggregate are not sent at all. Events of different aggregates are on their way side by side.
    ///
    /// Publishing an event again is safe. On NATS it is stored once if that happens within two hours; consumers dedupe in any case.
    ///
    /// An error means that nothing of the batch is surely stored.
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

    /// Takes events of these kinds, or of all kinds if none is given. Subscriptions with the same name share the work, in all processes.
    ///
    /// On NATS the name lives on: a consumer that comes back gets what happened meanwhile, and a new one everything that the stream
    /// still has. In-process it lives as long as a subscription does, so a consumer subscribes first and then reads the outbox from
    /// where it stopped. Kinds may be added to a name, but not taken away.
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

/// What comes out of a subscription.
#[derive(Debug)]
pub enum Delivery {
    /// An event, to be answered for.
    Event(Event),
    /// Some events will not come: read the outbox from where you stopped, then go on.
    Lagged,
}

/// A consumer's end of the bus.
#[derive(Debug)]
pub struct Subscription(Source);

#[derive(Debug)]
enum Source {
    InProcess(in_process::Member),
    Nats(Box<NatsSubscription>),
}

impl Subscription {
    /// Waits for the next delivery. While NATS is away this waits too; an error means that waiting will not help.
    ///
    /// Giving up in the middle loses nothing.
    pub async fn next(&mut self) -> Result<Delivery, BusError> {
        match &mut self.0 {
            Source::InProcess(member) => Ok(member.next().await),
            Source::Nats(subscription) => subscription.next().await,
        }
    }
}

/// A delivered event. Without an answer it is delivered again after [`ANSWER_PATIENCE`], also when its consumer died.
#[derive(Debug)]
pub struct Event {
    /// The event.
    pub envelope: Arc<Envelope>,
    /// How often it was delivered, this time included.
    pub delivery: u64,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    InProcess(in_process::Ticket),
    Nats(nats_subscription::Ticket),
}

impl Event {
    /// Says that the event is dealt with. After an error it may be delivered again.
    pub async fn ack(self) -> Result<(), BusError> {
        match self.answer {
            Answer::InProcess(ticket) => ticket.ack(),
            Answer::Nats(ticket) => ticket.ack().await?,
        }
        Ok(())
    }

    /// Gives the event back because it could not be dealt with now. It comes again, later and later.
    pub async fn retry(self) -> Result<(), BusError> {
        let delay = retry_after(self.delivery);
        self.nak(delay).await
    }

    /// Gives the event back, to be delivered again after `delay`.
    pub async fn nak(self, delay: Duration) -> Result<(), BusError> {
        match self.answer {
            Answer::InProcess(ticket) => ticket.nak(delay),
            Answer::Nats(ticket) => ticket.nak(delay).await?,
        }
        Ok(())
    }
}

/// The kinds that a consumer takes; none stands for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kinds(BTreeSet<String>);

impl Kinds {
    fn include(&self, kind: &str) -> bool {
        self.0.is_empty() || self.0.contains(kind)
    }
}

/// The places of each aggregate's events in the batch, in order.
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

/// How long after this delivery an event that was given back comes again.
fn retry_after(delivery: u64) -> Duration {
    let index = usize::try_from(delivery.saturating_sub(1)).unwrap_or(usize::MAX).min(RETRIES.len() - 1);
    RETRIES[index]
}
