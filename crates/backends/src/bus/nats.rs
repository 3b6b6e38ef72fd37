//! NATS JetStream: the connection, the stream and publishing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{
    CreateStreamErrorKind, GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind, RequestErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::Info;
use async_nats::jetstream::{self, Context, ContextBuilder, ErrorCode};
use async_nats::{Client, ConnectOptions, Event};
use futures::StreamExt as _;
use tokio::sync::watch;

use super::nats_config::{NatsConfig, differences};
use super::{BusError, Envelope, by_aggregate, subject};

/// Headers for values that the subject cannot carry unchanged.
pub(super) const KIND_HEADER: &str = "Gpuaas-Kind";
pub(super) const SUBJECT_HEADER: &str = "Gpuaas-Subject";
/// Longest wait for an answer of a connected NATS.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the start waits for the connection.
const START_PATIENCE: Duration = Duration::from_secs(3);
/// How often an idle connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time between two attempts to connect.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);
/// Aggregates whose events are published at the same time.
const IN_FLIGHT: usize = 256;

pub(super) struct Nats {
    config: NatsConfig,
    client: Client,
    context: Context,
    events: Arc<Events>,
    /// The stream was found with the right settings.
    checked: AtomicBool,
    checking: tokio::sync::Mutex<()>,
}

/// What the client reports about its connection.
#[derive(Default)]
struct Events {
    connects: watch::Sender<u64>,
    disconnects: watch::Sender<u64>,
    last_problem: Mutex<Option<String>>,
}

impl Events {
    fn handle(&self, event: Event) {
        let mut problem = self.last_problem.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Connected => {
                *problem = None;
                self.connects.send_modify(|count| *count += 1);
                tracing::info!("connected to NATS");
            }
            Event::Disconnected => {
                self.disconnects.send_modify(|count| *count += 1);
                tracing::warn!("the connection to NATS was lost; events stay in the outbox until it is restored");
            }
            Event::ServerError(error) => *problem = Some(error.to_string()),
            Event::ClientError(error) => *problem = Some(error.to_string()),
            Event::LameDuckMode | Event::Draining | Event::Closed | Event::SlowConsumer(_) => {}
        }
    }
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Nats {
    pub(super) async fn connect(config: &NatsConfig) -> Result<Self, BusError> {
        config.check()?;
        let events = Arc::new(Events::default());
        let heard = events.clone();
        let mut options = ConnectOptions::new()
            .name("gpuaas")
            .retry_on_initial_connect()
            .connection_timeout(ANSWER_TIMEOUT)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .reconnect_delay_callback(|attempts| {
                let doubled = Duration::from_millis(50).saturating_mul(1 << attempts.min(10));
                doubled.min(MAX_RECONNECT_DELAY)
            })
            .event_callback(move |event| {
                let heard = heard.clone();
                async move { heard.handle(event) }
            });
        if let Some(path) = &config.credentials_file {
            let unreadable = |error| BusError::Config(format!("the credentials file {} cannot be used: {error}", path.display()));
            options = options.credentials_file(path).await.map_err(unreadable)?;
        }
        if let Some(path) = &config.ca_file {
            if let Err(error) = std::fs::File::open(path) {
                return Err(BusError::Config(format!("the CA file {} cannot be read: {error}", path.display())));
            }
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        let servers: Vec<&str> = config.url.split(',').map(str::trim).collect();
        let mut connects = events.connects.subscribe();
        let client = options.connect(servers).await.map_err(|error| BusError::Config(error.to_string()))?;
        let context = ContextBuilder::new().timeout(ANSWER_TIMEOUT).build(client.clone());
        let (checked, checking) = (AtomicBool::new(false), tokio::sync::Mutex::new(()));
        let nats = Self { config: config.clone(), client, context, events, checked, checking };
        let _ = tokio::time::timeout(START_PATIENCE, connects.wait_for(|count| *count > 0)).await;
        match nats.check_stream().await {
            Ok(()) => {}
            Err(error) if error.is_transient() => tracing::warn!(code = error.code(), %error, "starting without NATS"),
            Err(error) => return Err(error),
        }
        Ok(nats)
    }

    pub(super) fn config(&self) -> &NatsConfig {
        &self.config
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the error for a NATS that cannot be reached, with the known cause.
    pub(super) fn away(&self, what: &str) -> BusError {
        let problem = self.events.last_problem.lock().unwrap_or_else(PoisonError::into_inner);
        match &*problem {
            Some(problem) if !self.is_connected() => BusError::Away(format!("{what}: {problem}")),
            Some(_) | None => BusError::Away(what.to_owned()),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Creates the stream or checks its settings. Fails at once without a connection.
    pub(super) async fn check_stream(&self) -> Result<(), BusError> {
        if self.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = self.checking.lock().await;
        if self.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        let info = self.stream().await?;
        let found = differences(&info.config, &self.config.stream_config());
        if !found.is_empty() {
            return Err(BusError::StreamDiffers { stream: self.config.stream.clone(), differences: found.join(", ") });
        }
        self.checked.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the stream's current state. Creates the stream if it does not exist.
    #[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the NATS client: every other kind is a refusal")]
    async fn stream(&self) -> Result<Info, BusError> {
        match self.stream_handle().await {
            Ok(stream) => Ok(stream.cached_info().clone()),
            Err(Missing::Stream) => {
                let made = self.context.create_stream(self.config.stream_config()).await;
                made.map(|stream| stream.cached_info().clone()).map_err(|error| match error.kind() {
                    CreateStreamErrorKind::TimedOut | CreateStreamErrorKind::JetStreamUnavailable => {
                        self.away(&error.to_string())
                    }
                    _ => BusError::Refused(format!("the stream {} cannot be created: {error}", self.config.stream)),
                })
            }
            Err(Missing::Answer(error)) => Err(error),
        }
    }

    /// Returns the stream with its state on the server.
    pub(super) async fn stream_handle(&self) -> Result<jetstream::stream::Stream, Missing> {
        if !self.is_connected() {
            return Err(Missing::Answer(self.away("no connection")));
        }
        self.context.get_stream(&self.config.stream).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(refusal) if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND => Missing::Stream,
            GetStreamErrorKind::JetStream(refusal) => Missing::Answer(BusError::Refused(refusal.to_string())),
            GetStreamErrorKind::Request => Missing::Answer(self.no_answer(&error)),
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                Missing::Answer(BusError::Config(error.to_string()))
            }
        })
    }

    fn no_answer(&self, error: &GetStreamError) -> BusError {
        let source =
            std::error::Error::source(error).and_then(|source| source.downcast_ref::<jetstream::context::RequestError>());
        match source.map(jetstream::context::RequestError::kind) {
            Some(RequestErrorKind::NoResponders) => self.away("JetStream does not answer; is it on? (`nats-server -js`)"),
            _ => self.away(&error.to_string()),
        }
    }

    /// Marks the stream for a new check before its next use.
    pub(super) fn stream_is_gone(&self) {
        self.checked.store(false, Ordering::Release);
    }

    /// Returns whether each event of the batch is confirmed as stored, and the first reason why one is not.
    pub(super) async fn publish(&self, batch: &[Envelope]) -> Result<(Vec<bool>, Option<BusError>), BusError> {
        // Subscribed before the state is read, so that a later disconnect is noticed.
        let mut disconnects = self.events.disconnects.subscribe();
        disconnects.mark_unchanged();
        self.check_stream().await?;
        if !self.is_connected() {
            return Err(self.away("no connection"));
        }
        let stored: Vec<AtomicBool> = batch.iter().map(|_| AtomicBool::new(false)).collect();
        let chains = by_aggregate(batch).into_iter().map(|chain| self.publish_chain(batch, chain, &stored));
        let mut outcomes = futures::stream::iter(chains).buffer_unordered(IN_FLIGHT);
        let mut failure = None;
        loop {
            tokio::select! {
                biased;
                outcome = outcomes.next() => match outcome {
                    Some(Ok(())) => {}
                    Some(Err(error)) => failure = failure.or(Some(error)),
                    None => break,
                },
                // The answers are lost with the connection. Waiting for the timeout would only delay the relay.
                _ = disconnects.changed() => {
                    failure = failure.or_else(|| Some(self.away("the connection broke")));
                    break;
                }
            }
        }
        drop(outcomes);
        Ok((stored.into_iter().map(AtomicBool::into_inner).collect(), failure))
    }

    /// Publishes the events of one aggregate one after the other, until one fails, and marks those that are stored.
    async fn publish_chain(&self, batch: &[Envelope], chain: Vec<usize>, stored: &[AtomicBool]) -> Result<(), BusError> {
        for index in chain {
            self.publish_one(&batch[index]).await?;
            stored[index].store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn publish_one(&self, envelope: &Envelope) -> Result<(), BusError> {
        envelope.check()?;
        let Envelope { id, subject: aggregate, kind, body } = envelope;
        let message = PublishMessage::build()
            .message_id(id.to_string())
            // Another stream that took our subjects must not swallow events.
            .expected_stream(&self.config.stream)
            .header(KIND_HEADER, kind.as_str())
            .header(SUBJECT_HEADER, aggregate.as_str())
            .payload(body.clone());
        let answer = self.context.send_publish(subject::of_event(&self.config.prefix, kind, aggregate), message).await;
        let answer = match answer {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        answer.map(drop).map_err(|error| self.publish_error(envelope, &error))
    }

    fn publish_error(&self, envelope: &Envelope, error: &PublishError) -> BusError {
        match error.kind() {
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                self.away(&error.to_string())
            }
            PublishErrorKind::StreamNotFound => {
                self.stream_is_gone();
                self.away("the stream does not answer")
            }
            PublishErrorKind::MaxPayloadExceeded => {
                BusError::Envelope { id: envelope.id, why: "the server's max_payload is too small for it; raise it" }
            }
            PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence | PublishErrorKind::Other => {
                BusError::Refused(error.to_string())
            }
        }
    }
}

/// Why the stream cannot be used.
pub(super) enum Missing {
    /// It was never created, or was deleted.
    Stream,
    /// There was no usable answer.
    Answer(BusError),
}
