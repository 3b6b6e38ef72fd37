//! A durable pull consumer of NATS JetStream.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{AckKind, Message};
use async_nats::{HeaderMap, Subject, header};
use bytes::Bytes;
use futures::StreamExt as _;

use super::in_process::lost_kinds;
use super::nats::{KIND_HEADER, Missing, Nats, SUBJECT_HEADER};
use super::{ANSWER_PATIENCE, Answer, BusError, Delivery, Envelope, Event, Kinds, subject};

/// Maximum number of events of one consumer that are delivered and not answered, over all its subscriptions.
const MAX_ACK_PENDING: i64 = 256;
/// Events that are fetched ahead into this process.
const BATCH: usize = 32;
/// How often a server without events sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The delay before a retry: the first one, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Redelivery delay of an event whose kind this subscription does not know: a newer subscription with the same name does.
const FOR_SOMEBODY_NEWER: Duration = Duration::from_secs(5);

pub(super) struct NatsSubscription {
    nats: Arc<Nats>,
    durable: String,
    kinds: Kinds,
    messages: Option<pull::Stream>,
    lagged: bool,
    was_connected: bool,
    pause: Duration,
}

impl std::fmt::Debug for NatsSubscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsSubscription").field("durable", &self.durable).field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

impl NatsSubscription {
    pub(super) async fn open(nats: Arc<Nats>, durable: &str, kinds: Kinds) -> Result<Self, BusError> {
        let mut subscription = Self {
            nats,
            durable: durable.to_owned(),
            kinds,
            messages: None,
            lagged: false,
            was_connected: false,
            pause: PAUSE.0,
        };
        match subscription.connect().await {
            Ok(()) => Ok(subscription),
            // `next` keeps trying.
            Err(error) if error.is_transient() => Ok(subscription),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn next(&mut self) -> Result<Delivery, BusError> {
        loop {
            if self.messages.is_none() {
                match self.connect().await {
                    Ok(()) => {}
                    Err(error) if error.is_transient() => {
                        tracing::debug!(durable = self.durable, %error, "the consumer waits for NATS");
                        self.wait().await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if std::mem::take(&mut self.lagged) {
                return Ok(Delivery::Lagged);
            }
            let Some(messages) = &mut self.messages else { continue };
            match messages.next().await {
                Some(Ok(message)) => {
                    self.pause = PAUSE.0;
                    if let Some(event) = self.event(message).await {
                        return Ok(Delivery::Event(event));
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(durable = self.durable, %error, "the consumer reconnects");
                    self.start_anew().await;
                }
                None => self.start_anew().await,
            }
        }
    }

    /// Resets the subscription. Events that were fetched but not taken are redelivered after a while.
    async fn start_anew(&mut self) {
        self.messages = None;
        self.nats.stream_is_gone();
        self.wait().await;
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    /// Finds or creates the consumer and starts to receive from it.
    async fn connect(&mut self) -> Result<(), BusError> {
        self.nats.check_stream().await?;
        let stream = self.nats.stream_handle().await.map_err(|missing| match missing {
            Missing::Stream => self.nats.away("the stream is gone"),
            Missing::Answer(error) => error,
        })?;
        let existed = self.check_kinds(&stream).await?;
        let made = stream.create_consumer(self.consumer_config()).await;
        let consumer: PullConsumer = made.map_err(|error| self.nats.away(&format!("consumer {}: {error}", self.durable)))?;
        let first = stream.cached_info().state.first_sequence;
        self.lagged |= if existed {
            // The stream has deleted undelivered events. All of them may have been of other kinds; reading the outbox shows that.
            first > consumer.cached_info().delivered.stream_sequence + 1
        } else {
            // A new consumer misses what is already deleted. If its consumer was deleted on the server, it also misses what was
            // pending there.
            first > 1 || self.was_connected
        };
        self.was_connected = true;
        let messages = consumer.stream().max_messages_per_batch(BATCH).heartbeat(HEARTBEAT).messages().await;
        self.messages = Some(messages.map_err(|error| self.nats.away(&error.to_string()))?);
        Ok(())
    }

    /// Returns whether the consumer exists. An existing one may get more kinds, never fewer: skipped events would be lost for
    /// subscriptions that still need them.
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the NATS client: every other kind is no answer")]
    async fn check_kinds(&self, stream: &Stream) -> Result<bool, BusError> {
        let has = match stream.consumer_info(&self.durable).await {
            Ok(info) => info.config,
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => return Ok(false),
                _ => return Err(self.nats.away(&format!("consumer {}: {error}", self.durable))),
            },
        };
        let everything = subject::all(&self.nats.config().prefix);
        let filters = has.filter_subjects.into_iter().chain([has.filter_subject]);
        let filters = Kinds(filters.filter(|filter| !filter.is_empty() && *filter != everything).collect());
        match lost_kinds(&filters, &Kinds(self.filters().into_iter().filter(|filter| *filter != everything).collect())) {
            None => Ok(true),
            Some(kinds) => Err(BusError::DurableDiffers { durable: self.durable.clone(), kinds }),
        }
    }

    fn filters(&self) -> Vec<String> {
        let prefix = &self.nats.config().prefix;
        if self.kinds.0.is_empty() {
            return vec![subject::all(prefix)];
        }
        let mut filters: Vec<String> = self.kinds.0.iter().map(|kind| subject::filter(prefix, kind)).collect();
        filters.sort();
        filters.dedup();
        filters
    }

    fn consumer_config(&self) -> pull::Config {
        pull::Config {
            durable_name: Some(self.durable.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            // No server-side backoff: it would add the difference between two steps to every delay that we request.
            ack_wait: ANSWER_PATIENCE,
            max_deliver: -1,
            max_ack_pending: MAX_ACK_PENDING,
            filter_subjects: self.filters(),
            ..pull::Config::default()
        }
    }

    /// Returns the event in a message, if it is one for this subscription.
    async fn event(&self, message: Message) -> Option<Event> {
        let delivery = message.info().map_or(1, |info| u64::try_from(info.delivered).unwrap_or(1));
        let async_nats::Message { subject, reply, payload, headers, .. } = message.into();
        // Without a reply subject the message did not come from the consumer.
        let ticket = Ticket { nats: self.nats.clone(), reply: reply? };
        let Some(envelope) = headers.and_then(|headers| envelope(&headers, payload)) else {
            tracing::warn!(subject = subject.as_str(), "skipped a message in the stream of events that is not ours");
            let _ = ticket.answer(AckKind::Term).await;
            return None;
        };
        if !self.kinds.include(&envelope.kind) {
            let _ = ticket.nak(FOR_SOMEBODY_NEWER).await;
            return None;
        }
        Some(Event { envelope: Arc::new(envelope), delivery, answer: Answer::Nats(ticket) })
    }
}

fn envelope(headers: &HeaderMap, body: Bytes) -> Option<Envelope> {
    let text = |name: &str| headers.get(name).map(ToString::to_string);
    let id = text(header::NATS_MESSAGE_ID.as_ref())?.parse().ok()?;
    Some(Envelope { id, subject: text(SUBJECT_HEADER)?, kind: text(KIND_HEADER)?, body })
}

/// The right to answer one event.
#[derive(Debug)]
pub(super) struct Ticket {
    nats: Arc<Nats>,
    reply: Subject,
}

impl Ticket {
    pub(super) async fn ack(self) -> Result<(), BusError> {
        self.answer(AckKind::Ack).await
    }

    pub(super) async fn nak(self, delay: Duration) -> Result<(), BusError> {
        self.answer(AckKind::Nak((!delay.is_zero()).then_some(delay))).await
    }

    /// Sends the answer and waits until the server has it.
    async fn answer(self, kind: AckKind) -> Result<(), BusError> {
        if !self.nats.is_connected() {
            return Err(self.nats.away("no connection"));
        }
        let answer: Bytes = kind.into();
        self.nats.client().request(self.reply, answer).await.map(drop).map_err(|error| self.nats.away(&error.to_string()))
    }
}
