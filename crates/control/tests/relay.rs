//! The relay with a real NATS: whatever is killed, everything that was committed is in the stream, once, and in order per
//! subject.
//!
//! The relay that is killed is a separate process: this program, started again with [`FOLDER`] in its environment.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use async_nats::jetstream;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use common::{PATIENCE, TestServer};
use futures::StreamExt as _;
use gpuaas_backends::BackendsConfig;
use gpuaas_backends::bus::NatsConfig;
use gpuaas_contract::event::{BudgetLifted, Event};
use gpuaas_contract::id::CorrelationId;
use gpuaas_control::{ServerConfig, process_roles, start};
use gpuaas_domain::decision::Context;
use gpuaas_domain::{Actor, Decision};
use gpuaas_store::{OutboxRow, Store, StoreConfig};
use gpuaas_testkit::{
    Failpoints, Launch, NatsServer, PgDatabase, Program, TcpProxy, TempDir, eventually_async, nats_url, pg_database, proof_count,
    unique_name,
};

/// The variable that makes this program run as a relay: its folder. The others name the database, the NATS and the stream.
const FOLDER: &str = "GPUAAS_TEST_RELAY_FOLDER";
const DATABASE: &str = "GPUAAS_TEST_RELAY_DATABASE";
const NATS: &str = "GPUAAS_TEST_RELAY_NATS";
const STREAM: &str = "GPUAAS_TEST_RELAY_STREAM";
/// The aggregates of the events.
const SUBJECTS: usize = 24;
/// Events that are created before each kill.
const EACH: usize = 60;
/// The steps at which a relay is stopped, in turn. With `None` it is killed at any point.
const STEPS: [Option<&str>; 4] = [Some("relay.claimed"), Some("relay.published"), Some("relay.marked"), None];

fn stream_config(url: &str, name: &str) -> NatsConfig {
    NatsConfig { stream: name.to_owned(), prefix: name.to_owned(), max_bytes: 64 << 20, ..NatsConfig::new(url) }
}

fn relay_config(dir: &TempDir, pg: &PgDatabase, nats: NatsConfig) -> ServerConfig {
    ServerConfig {
        roles: process_roles::parse("outbox").unwrap(),
        backends: BackendsConfig { nats: Some(nats), redis: None },
        ..TestServer::config(dir, Some(pg))
    }
}

/// Not a test by itself: the relay of the tests below, when they start this program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_runs_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let nowhere = TempDir::new();
    let config = ServerConfig {
        data_dir: folder.into(),
        store: StoreConfig::parse(&variable(DATABASE)).unwrap(),
        roles: process_roles::parse("outbox").unwrap(),
        backends: BackendsConfig { nats: Some(stream_config(&variable(NATS), &variable(STREAM))), redis: None },
        ..TestServer::config(&nowhere, None)
    };
    let _server = start(config).await.unwrap();
    println!("the relay runs");
    std::future::pending::<()>().await;
}

/// One stream and the outbox that is relayed to it.
struct Harness {
    store: Store,
    pg: PgDatabase,
    dir: TempDir,
    stream: jetstream::stream::Stream,
    name: String,
    made: usize,
}

impl Harness {
    /// Creates the harness on this NATS. Returns `None` and prints a line if there is no PostgreSQL. Its keys and its stream
    /// exist when this returns.
    async fn new(nats: &str) -> Option<Self> {
        let pg = tokio::task::spawn_blocking(pg_database).await.unwrap()?;
        let (dir, name) = (TempDir::new(), unique_name("relay"));
        start(relay_config(&dir, &pg, stream_config(nats, &name))).await.unwrap().stop().await;
        let store = Store::open(&StoreConfig::parse(pg.url()).unwrap()).await.unwrap();
        let stream = stream(nats, &name).await;
        Some(Self { store, pg, dir, stream, name, made: 0 })
    }

    /// Commits events, several at a time; each has the number of earlier ones.
    async fn make(&mut self, count: usize) {
        let context = Context {
            now: gpuaas_contract::time::Timestamp::now(),
            actor: Actor::System,
            correlation_id: CorrelationId::generate(),
        };
        let numbers: Vec<usize> = (self.made..self.made + count).collect();
        let commits = numbers.chunks(5).map(|numbers| {
            let decision = numbers.iter().fold(Decision::default(), |decision, number| {
                let subject = format!("subject_{}", number % SUBJECTS);
                let event = BudgetLifted { count: 0, reason: number.to_string(), until: context.now };
                decision.record(&context, subject, Event::BudgetLifted(event))
            });
            self.store.commit(decision)
        });
        for committed in futures::future::join_all(commits).await {
            committed.unwrap();
        }
        self.made += count;
    }

    async fn stored(&mut self) -> u64 {
        self.stream.info().await.unwrap().state.messages
    }

    async fn until_published(&self) {
        eventually_async(PATIENCE, "everything is published", || async {
            self.store.outbox_lanes_waiting().await.unwrap().is_empty().then_some(())
        })
        .await;
    }

    async fn outbox(&self) -> Vec<OutboxRow> {
        let mut rows: Vec<OutboxRow> = Vec::new();
        loop {
            let page = self.store.outbox_list(rows.last().map_or(0, |row| row.position), 500).await.unwrap();
            if page.is_empty() {
                return rows;
            }
            rows.extend(page);
        }
    }

    /// Checks that everything that was committed is in the stream, once, and in order per subject.
    async fn check(&mut self) -> usize {
        let rows = self.outbox().await;
        assert!(rows.len() >= self.made && self.store.outbox_lanes_waiting().await.unwrap().is_empty());
        let stored = usize::try_from(self.stored().await).unwrap();
        let messages = self.stream.create_consumer(OrderedConfig::default()).await.unwrap().messages().await.unwrap();
        let messages: Vec<_> =
            tokio::time::timeout(PATIENCE, messages.take(stored).collect()).await.expect("the stream can be read");
        let mut of_subject: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for message in messages {
            let message = message.unwrap();
            let header = |name: &str| message.headers.as_ref().unwrap().get(name).unwrap().to_string();
            let id = header("Nats-Msg-Id");
            let event: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!(
                (event["id"].as_str(), event["subject"].as_str()),
                (Some(id.as_str()), Some(header("Gpuaas-Subject").as_str()))
            );
            assert!(ids.insert(id.clone()), "{id} is in the stream twice");
            of_subject.entry(header("Gpuaas-Subject")).or_default().push(id);
        }
        let mut committed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in &rows {
            committed.entry(row.subject.clone()).or_default().push(row.id.to_string());
        }
        assert_eq!(of_subject, committed, "what is in the stream, and in which order");
        rows.len()
    }

    fn relay(&self, nats: &str, failpoints: &Failpoints) -> Program {
        let name = "a_relay_runs_until_it_is_killed";
        let launch = Launch::at(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).failpoints(failpoints);
        let launch = launch.env(FOLDER, self.dir.path()).env(DATABASE, self.pg.url()).env(NATS, nats).env(STREAM, &self.name);
        // A killed process cannot remove its own folder; in here it is removed with everything else.
        launch.env("TMPDIR", self.dir.path()).start(self.dir.path())
    }
}

async fn stream(nats: &str, name: &str) -> jetstream::stream::Stream {
    let client = async_nats::connect(nats).await.unwrap();
    jetstream::new(client).get_stream(name).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    let Some(nats) = nats_url() else { return };
    let Some(mut harness) = Harness::new(&nats).await else { return };
    let kills = proof_count(40, 200);
    let failpoints = Failpoints::new(harness.dir.join("failpoints"));
    let started = Instant::now();
    let mut at_step: BTreeMap<&str, usize> = BTreeMap::new();
    for kill in 0..kills {
        // Failpoints exist only in test builds; in others it is killed at any point.
        let step = STEPS[kill % STEPS.len()].filter(|_| cfg!(feature = "failpoints"));
        let before = harness.stored().await;
        harness.make(EACH).await;
        if let Some(step) = step {
            failpoints.arm(step);
        }
        let mut relay = harness.relay(&nats, &failpoints);
        match step {
            Some(step) => {
                let failpoints = failpoints.clone();
                tokio::task::spawn_blocking(move || failpoints.wait_hit(step)).await.unwrap();
            }
            // In the middle of its work, a little later every time.
            None => {
                let enough = before + 1 + u64::try_from(kill * 7 % EACH).unwrap();
                until_stored(&harness.stream, enough).await;
            }
        }
        relay.sigkill();
        *at_step.entry(step.unwrap_or("wherever it was")).or_default() += 1;
    }
    harness.make(EACH).await;
    let mut last = harness.relay(&nats, &failpoints);
    harness.until_published().await;
    let events = harness.check().await;
    last.sigkill();
    eprintln!("{kills} kills ({at_step:?}), {events} events, each once and in order, in {:?}", started.elapsed());
}

/// Waits until the stream has this many events.
async fn until_stored(stream: &jetstream::stream::Stream, enough: u64) {
    eventually_async(PATIENCE, "events are stored", || {
        let mut stream = stream.clone();
        async move { (stream.info().await.unwrap().state.messages >= enough).then_some(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_relays_share_the_work_and_keep_the_order() {
    let Some(nats) = nats_url() else { return };
    let Some(mut harness) = Harness::new(&nats).await else { return };
    let failpoints = Failpoints::new(harness.dir.join("failpoints"));
    let mut relays: Vec<Program> = (0..3).map(|_| harness.relay(&nats, &failpoints)).collect();
    for _ in 0..10 {
        harness.make(100).await;
    }
    harness.until_published().await;
    assert!(harness.check().await >= 1000);
    relays.iter_mut().for_each(Program::sigkill);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_wait_for_a_bus_that_is_away_and_then_all_arrive() {
    let Some(mut nats) = tokio::task::spawn_blocking(NatsServer::start).await.unwrap() else { return };
    let Some(mut harness) = Harness::new(&nats.url()).await else { return };
    let server = start(relay_config(&harness.dir, &harness.pg, stream_config(&nats.url(), &harness.name))).await.unwrap();
    harness.make(50).await;
    harness.until_published().await;
    nats.kill();
    // Commits are not affected.
    harness.make(200).await;
    let waiting: u64 = harness.store.outbox_lanes_waiting().await.unwrap().iter().map(|(_, waiting)| waiting).sum();
    assert_eq!(waiting, 200, "they wait");
    assert!(harness.store.outbox_lag().await.unwrap().is_some(), "and how long they wait can be seen");
    let nats = tokio::task::spawn_blocking(move || {
        nats.restart();
        nats
    })
    .await
    .unwrap();
    harness.until_published().await;
    harness.stream = stream(&nats.url(), &harness.name).await;
    assert!(harness.check().await >= 250);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_whose_answers_are_lost_are_published_again_and_stored_once() {
    let Some(nats) = tokio::task::spawn_blocking(NatsServer::start).await.unwrap() else { return };
    let Some(mut harness) = Harness::new(&nats.url()).await else { return };
    let proxy = TcpProxy::start(nats.port());
    let through = format!("nats://{}", proxy.address());
    let server = start(relay_config(&harness.dir, &harness.pg, stream_config(&through, &harness.name))).await.unwrap();
    harness.make(50).await;
    harness.until_published().await;
    for _ in 0..3 {
        let before = harness.stored().await;
        proxy.lose_answers();
        harness.make(100).await;
        // Some are stored, and the relay does not know it.
        until_stored(&harness.stream, before + 1).await;
        assert!(proxy.lost_bytes() > 0);
        assert!(!harness.store.outbox_lanes_waiting().await.unwrap().is_empty(), "what is not known to be stored is not marked");
        proxy.reset();
        harness.until_published().await;
    }
    assert!(harness.check().await >= 350);
    server.stop().await;
}
