//! Events from the outbox to NATS JetStream: a server process with only the relay role, against a publisher that has the same
//! messages in memory and stores nothing.
//!
//! Both write to the same NATS, into streams with the same settings, with the same headers and the same number of unacknowledged
//! messages. The peer sends without waiting, as the library intends. The measured time starts when JetStream stores the first
//! event. It ends when the last event is marked as published in the outbox or, for the peer, when its acknowledgment arrives.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, ContextBuilder};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use gpuaas_contract::event::{Event, EventKind};
use gpuaas_contract::id::{AllocationId, EventId, NodeId, OrgId, ProjectId, TaskId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Decision;
use gpuaas_store::{MAX_WAITING, OutboxRow, Store, StoreConfig};
use sqlx::{Connection as _, PgConnection, SqliteConnection};

use crate::child::{self, Server};
use crate::measure::{Effort, Goal, Round, Row, Side, count, interleave};
use crate::rows::allocations::stores;
use crate::rows::durable::context;
use crate::{Result, Setup};

/// Number of events in a round, per second of its length.
const PER_SECOND: u64 = 5000;
/// The events of one allocation.
const LIFE: [EventKind; 7] = [
    EventKind::AllocationRequested,
    EventKind::AllocationProvisioning,
    EventKind::AllocationActive,
    EventKind::AllocationReleaseRequested,
    EventKind::AllocationReleasing,
    EventKind::AllocationReleaseOrdered,
    EventKind::AllocationReleased,
];
/// Number of concurrent allocations, whose events are interleaved.
const LIVES: usize = 500;
/// Unacknowledged messages on both sides: two lanes of the outbox with a batch each.
const IN_FLIGHT: usize = 512;
/// How long a round may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The stream that a server with default settings publishes to.
const STREAM: &str = "GPUAAS";
const BARE_STREAM: &str = "BARE";

/// Shared by the sides: the peer publishes the events that a relay published last.
type Events = Arc<Mutex<Vec<OutboxRow>>>;

/// A server process that only relays, on one store.
struct Relay {
    name: String,
    program: PathBuf,
    /// The folder for logs.
    logs: PathBuf,
    folder: PathBuf,
    /// The URL of the database.
    store: String,
    nats: String,
    context: jetstream::Context,
    events: Events,
}

impl Relay {
    fn command(&self) -> tokio::process::Command {
        let mut command = child::command(&self.program, &self.folder);
        command.args(["server", "--roles", "outbox", "--nats-url", &self.nats]).arg("--data-dir").arg(self.folder.join("server"));
        command.env("GPUAAS_STORE", &self.store);
        command
    }

    /// Commits the events for the relay.
    async fn fill(&self, events: usize) -> Result<()> {
        let rows = fill_store(&self.store, events).await?;
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = rows;
        Ok(())
    }
}

/// Reads the database of a running server directly, because on SQLite a `Store` would need exclusive access.
enum Look {
    Sqlite(SqliteConnection),
    Pg(PgConnection),
}

impl Look {
    async fn at(store: &str) -> Result<Self> {
        Ok(match store.strip_prefix("sqlite:") {
            Some(_) => Self::Sqlite(SqliteConnection::connect(store).await?),
            None => Self::Pg(PgConnection::connect(store).await?),
        })
    }

    /// Waits until all events are marked as published, and returns when that was.
    async fn marked(&mut self) -> Result<Timestamp> {
        const ONE: &str = "SELECT COUNT(*) FROM (SELECT 1 FROM outbox_waiting LIMIT 1) AS waiting";
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let waiting: i64 = match self {
                Self::Sqlite(connection) => sqlx::query_scalar(ONE).fetch_one(connection).await?,
                Self::Pg(connection) => sqlx::query_scalar(ONE).fetch_one(connection).await?,
            };
            let now = Timestamp::now();
            if waiting == 0 {
                return Ok(now);
            }
            if tokio::time::Instant::now() > deadline {
                return Err("events are not marked after two minutes".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Commits unpublished events, and returns them.
pub(crate) async fn fill_store(store: &str, events: usize) -> Result<Vec<OutboxRow>> {
    let store = Store::open(&StoreConfig::parse(store)?).await?;
    let mut made = 0;
    while made < events {
        let lives: Vec<Life> = (0..LIVES).map(|_| Life::new()).collect();
        for kind in LIFE {
            // Commits in groups of a size that a busy server would have.
            for group in lives.chunks(50) {
                let left = events - made;
                let mut lives = group.iter().take(left);
                let decision = lives.try_fold(Decision::default(), |decision, life| life.happens(decision, kind))?;
                made += group.len().min(left);
                store.commit(decision).await?;
            }
        }
    }
    let end = store.outbox_end().await?;
    let rows = rows_after(&store, end - i64::try_from(events)?).await?;
    let waiting: u64 = store.outbox_lanes_waiting().await?.into_iter().map(|(_, waiting)| waiting).sum();
    // The count of a lane is capped.
    if rows.len() != events || waiting < u64::try_from(events)?.min(MAX_WAITING) {
        return Err("the outbox does not hold what was put into it".into());
    }
    store.close().await;
    Ok(rows)
}

/// An allocation with made-up events.
struct Life {
    allocation: AllocationId,
    data: serde_json::Value,
}

impl Life {
    fn new() -> Self {
        let allocation = AllocationId::generate();
        // The data for all kinds of events; each kind takes the fields that it needs.
        let data = serde_json::json!({
            "allocation_id": allocation,
            "organization_id": OrgId::generate(),
            "project_id": ProjectId::generate(),
            "node_id": NodeId::generate(),
            "task_id": TaskId::generate(),
            "name": "training-run",
            "sku": "h100-8x",
            "price_per_hour": { "amount": "2.50", "currency": "USD" },
            "from": "provisioning",
            "to": "active",
            "step": "await_provision",
            "reason": "",
            "attempt": 1,
            "try": 1,
        });
        Self { allocation, data }
    }

    fn happens(&self, decision: Decision, kind: EventKind) -> Result<Decision> {
        Ok(decision.record(&context(), self.allocation, Event::read(kind, self.data.clone())?))
    }
}

async fn rows_after(store: &Store, position: i64) -> Result<Vec<OutboxRow>> {
    let mut rows: Vec<OutboxRow> = Vec::new();
    loop {
        let page = store.outbox_list(rows.last().map_or(position, |row| row.position), 1000).await?;
        if page.is_empty() {
            return Ok(rows);
        }
        rows.extend(page);
    }
}

/// Waits until the stream has this many events, and returns when it stored the first of them.
async fn first_of(mut stream: Stream, events: usize) -> Result<Timestamp> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let state = stream.info().await?.state.clone();
        let there = usize::try_from(state.messages)?;
        if there >= events {
            return Ok(Timestamp(i64::try_from(state.first_timestamp.unix_timestamp_nanos() / 1000)?));
        }
        if tokio::time::Instant::now() > deadline {
            return Err(format!("{there} of {events} events are in the stream after two minutes").into());
        }
        // Rarely enough to cost little, and often enough to notice the end soon.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the number of events in a round of this length.
fn events_in(time: Duration) -> Result<usize> {
    Ok(usize::try_from(PER_SECOND * u64::try_from(time.as_millis())? / 1000)?.max(1000))
}

impl Side for Relay {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let events = events_in(time)?;
            self.fill(events).await?;
            // Removes the events of an earlier round.
            if let Ok(stream) = self.context.get_stream(STREAM).await {
                stream.purge().await?;
            }
            let mut look = Look::at(&self.store).await?;
            let server = Server::start(&self.name, self.command(), &self.logs, "").await?;
            let first = first_of(made(&self.context, STREAM).await?, events).await?;
            let last = look.marked().await?;
            drop(look);
            server.stop().await?;
            Ok(Round::value(count(events) / last.since(first).as_secs_f64()))
        })
    }
}

/// The peer: a publisher without a store.
struct Bare {
    context: jetstream::Context,
    events: Events,
}

impl Bare {
    /// Creates an empty stream with the settings of the relay's stream.
    async fn stream(&self) -> Result<Stream> {
        let like = self.context.get_stream(STREAM).await?.cached_info().config.clone();
        let config = Config { name: BARE_STREAM.to_owned(), subjects: vec!["bare.>".to_owned()], ..like };
        self.context.create_stream(config).await?;
        let stream = self.context.get_stream(BARE_STREAM).await?;
        stream.purge().await?;
        Ok(stream)
    }

    async fn publish(&self, row: OutboxRow) -> Result<PublishAckFuture> {
        let subject = format!("bare.{}.{}", row.kind, row.subject);
        let message = PublishMessage::build()
            // A new id: JetStream would drop the row's own id as a duplicate from an earlier round.
            .message_id(EventId::generate().to_string())
            .expected_stream(BARE_STREAM)
            .header("Gpuaas-Kind", row.kind)
            .header("Gpuaas-Subject", row.subject)
            .payload(row.body.into());
        Ok(self.context.send_publish(subject, message).await?)
    }
}

impl Side for Bare {
    fn name(&self) -> String {
        "bare JetStream publisher".to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let rows = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if rows.len() != events_in(time)? {
                return Err("there is nothing to publish".into());
            }
            let (stream, events) = (self.stream().await?, rows.len());
            let mut answers = FuturesUnordered::new();
            for row in rows {
                if answers.len() == IN_FLIGHT
                    && let Some(answer) = answers.next().await
                {
                    answer?;
                }
                let answer = self.publish(row).await?.into_future();
                answers.push(answer);
            }
            while let Some(answer) = answers.next().await {
                answer?;
            }
            let answered = Timestamp::now();
            let first = first_of(stream, events).await?;
            Ok(Round::value(count(events) / answered.since(first).as_secs_f64()))
        })
    }
}

/// Waits until a stream exists, and returns it.
async fn made(context: &jetstream::Context, name: &str) -> Result<Stream> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match context.get_stream(name).await {
            Ok(stream) => return Ok(stream),
            Err(error) if tokio::time::Instant::now() > deadline => {
                return Err(format!("there is no stream {name}: {error}").into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let (nats_server, nats) = crate::nats::start_jetstream(setup).await?;
    let context = ContextBuilder::new().max_ack_inflight(IN_FLIGHT).build(async_nats::connect(&nats).await?);
    let events = Events::default();
    let (mut sides, mut paths): (Vec<Box<dyn Side>>, Vec<String>) = Default::default();
    for (name, store) in stores(setup, "relay").await? {
        let folder = setup.disk.join(format!("relay-{name}").to_lowercase());
        std::fs::create_dir_all(&folder)?;
        paths.push(format!("events from the outbox, {name}"));
        sides.push(Box::new(Relay {
            name: format!("relay on {name}"),
            program: setup.programs.join("gpuaas"),
            logs: setup.folder.clone(),
            store: store.unwrap_or_else(|| format!("sqlite:{}", folder.join("relay.db").display())),
            folder,
            nats: nats.clone(),
            context: context.clone(),
            events: Arc::clone(&events),
        }));
    }
    // The peer comes last in the first round: by then a relay has created its stream and left its events.
    let bare = sides.len();
    sides.push(Box::new(Bare { context, events }));
    let measured = interleave(&mut sides, effort).await;
    let row = |(side, path): (usize, &String)| measured.row(path, "1/s", side, bare, 0, Goal::AtLeast(0.5));
    let rows = paths.iter().enumerate().map(row).collect();
    drop(sides);
    nats_server.stop().await?;
    Ok(rows)
}
