//! A real NATS that is killed, cut off, empty, shared with others or configured differently.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

use async_nats::jetstream::stream::StorageType;
use gpuaas_backends::bus::{ANSWER_PATIENCE, Bus, Delivery, Envelope, NatsConfig};
use gpuaas_contract::id::EventId;
use gpuaas_testkit::{NatsServer, PATIENCE, TcpProxy, eventually_async, nats_url, proof_count};
use tokio::sync::Mutex;

use crate::support::{event, nats_config, next, next_event};

/// Reads the stream with a separate client.
struct Look(async_nats::jetstream::Context, String);

impl Look {
    async fn at(url: &str, config: &NatsConfig) -> Self {
        let client = async_nats::connect(url).await.expect("NATS is there");
        Self(async_nats::jetstream::new(client), config.stream.clone())
    }

    async fn stream(&self) -> async_nats::jetstream::stream::Stream {
        self.0.get_stream(&self.1).await.expect("the stream is there")
    }

    async fn count(&self) -> u64 {
        self.stream().await.cached_info().state.messages
    }

    /// Returns the ids of all stored events of each aggregate, in order.
    async fn stored(&self) -> HashMap<String, Vec<EventId>> {
        let stream = self.stream().await;
        let state = &stream.cached_info().state;
        let mut stored: HashMap<String, Vec<EventId>> = HashMap::new();
        for sequence in state.first_sequence..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.expect("a message");
            let header = |name: &str| message.headers.get(name).expect("a header").to_string();
            stored.entry(header("Gpuaas-Subject")).or_default().push(header("Nats-Msg-Id").parse().expect("an id"));
        }
        stored
    }
}

/// Publishes like the relay, until everything is confirmed as stored. Returns how many attempts stored nothing.
async fn relay(bus: &Bus, batch: &[Envelope]) -> u32 {
    let (left, failures) = (Mutex::new(batch.to_vec()), AtomicU32::new(0));
    eventually_async(PATIENCE, "everything is stored", || async {
        let mine = left.lock().await.clone();
        match bus.publish(&mine).await {
            Ok(published) => left.lock().await.retain(|envelope| !published.stored.contains(&envelope.id)),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        left.lock().await.is_empty().then_some(())
    })
    .await;
    failures.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nats_is_away_publishing_fails_and_afterwards_everything_is_stored_once() {
    let Some(mut server) = NatsServer::start() else { return };
    let config = nats_config(&server.url());
    let bus = Bus::nats(&config).await.expect("NATS works");
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let batch: Vec<Envelope> = (0..100).map(|number| event(&format!("alloc_{}", number % 7), "requested")).collect();
    let (before, after) = batch.split_at(50);
    assert_eq!(bus.publish(before).await.expect("published").stored.len(), 50);

    server.kill();
    let error = bus.publish(after).await.expect_err("NATS is dead");
    assert_eq!(error.code(), "bus_away");
    server.restart();
    relay(&bus, after).await;
    relay(&bus, &batch).await;
    assert_eq!(Look::at(&server.url(), &config).await.count().await, 100, "one of each");

    // The consumer continues by itself.
    let mut arrived = HashSet::new();
    while arrived.len() < 100 {
        let event = next_event(&mut subscription).await;
        arrived.insert(event.envelope.id);
        let _ = event.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_whose_acknowledgment_was_lost_are_stored_once_when_they_are_published_again() {
    let Some(server) = NatsServer::start() else { return };
    let proxy = TcpProxy::start(server.port());
    let config = nats_config(&format!("nats://{}", proxy.address()));
    let bus = Bus::nats(&config).await.expect("NATS works");
    let look = Look::at(&server.url(), &config).await;
    // One event each, so that all of them are in flight when the answers stop.
    let batch: Vec<Envelope> = (0..40).map(|number| event(&format!("alloc_{number}"), "requested")).collect();

    proxy.lose_answers();
    let error = bus.publish(&batch).await.expect_err("nobody said that anything is stored");
    assert_eq!(error.code(), "bus_away");
    assert!(proxy.lost_bytes() > 0, "no answer was lost");
    assert_eq!(look.count().await, 40, "the events did arrive");

    proxy.reset();
    relay(&bus, &batch).await;
    assert_eq!(look.count().await, 40, "one of each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_nats_is_killed_each_aggregate_keeps_its_order_and_each_event_is_stored_once() {
    let Some(mut server) = NatsServer::start() else { return };
    let config = nats_config(&server.url());
    let bus = Bus::nats(&config).await.expect("NATS works");
    let kills = proof_count(3, 50);
    let mut batch = vec![];
    let mut failures = 0;
    for _ in 0..kills {
        let fresh: Vec<Envelope> = (0..200).map(|number| event(&format!("alloc_{}", number % 9), "requested")).collect();
        batch.extend(fresh.iter().cloned());
        let relaying = tokio::spawn({
            let bus = bus.clone();
            async move { relay(&bus, &fresh).await }
        });
        // In the middle: as soon as an event of this round may be stored.
        server.kill();
        eventually_async(PATIENCE, "the bus notices", || async {
            bus.publish(&[event("probe", "requested")]).await.is_err().then_some(())
        })
        .await;
        server.restart();
        failures += relaying.await.expect("the relay");
    }
    assert!(failures > 0, "no publish ever failed");
    let mut stored = Look::at(&server.url(), &config).await.stored().await;
    stored.remove("probe");
    let mut wanted: HashMap<String, Vec<EventId>> = HashMap::new();
    for envelope in &batch {
        wanted.entry(envelope.subject.clone()).or_default().push(envelope.id);
    }
    assert_eq!(stored, wanted);
}

#[tokio::test]
async fn a_stream_with_other_settings_is_named_and_left_alone() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let look = {
        let client = async_nats::connect(&url).await.expect("NATS is there");
        let context = async_nats::jetstream::new(client);
        let theirs = async_nats::jetstream::stream::Config {
            name: config.stream.clone(),
            subjects: vec![format!("{}.>", config.prefix)],
            storage: StorageType::Memory,
            ..Default::default()
        };
        context.create_stream(theirs).await.expect("made");
        Look(context, config.stream.clone())
    };
    let before = look.stream().await.cached_info().config.clone();
    let error = Bus::nats(&config).await.expect_err("other settings");
    assert_eq!(error.code(), "bus_stream_differs");
    for setting in ["storage is Memory and should be File", "duplicate_window", "max_age"] {
        assert!(error.to_string().contains(setting), "{error}");
    }
    assert_eq!(look.stream().await.cached_info().config, before);
}

#[tokio::test]
async fn two_processes_that_start_together_agree_on_the_stream() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let (one, two) = tokio::join!(Bus::nats(&config), Bus::nats(&config));
    let (one, two) = (one.expect("the first"), two.expect("the second"));
    let shared = event("alloc_1", "requested");
    for bus in [&one, &two] {
        assert_eq!(bus.publish(std::slice::from_ref(&shared)).await.expect("published").stored, [shared.id]);
    }
    assert_eq!(Look::at(&url, &config).await.count().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_starts_without_nats_and_works_once_it_is_there() {
    let Some(mut server) = NatsServer::start() else { return };
    server.kill();
    let bus = Bus::nats(&nats_config(&server.url())).await.expect("starts without it");
    let mut subscription = bus.subscribe("worker", &[]).await.expect("waits for it");
    let first = event("alloc_1", "requested");
    assert_eq!(bus.publish(std::slice::from_ref(&first)).await.expect_err("it is away").code(), "bus_away");
    server.restart();
    relay(&bus, std::slice::from_ref(&first)).await;
    assert_eq!(next_event(&mut subscription).await.envelope.id, first.id);
}

#[tokio::test]
async fn a_nats_without_jetstream_is_named() {
    let Some(server) = NatsServer::start_without_jetstream() else { return };
    let bus = Bus::nats(&nats_config(&server.url())).await.expect("it may be turned on later");
    let error = bus.publish(&[event("alloc_1", "requested")]).await.expect_err("no JetStream");
    assert_eq!(error.code(), "bus_away");
    assert!(error.to_string().contains("nats-server -js"), "{error}");
}

#[tokio::test]
async fn a_stream_that_somebody_deleted_is_made_again() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let bus = Bus::nats(&config).await.expect("NATS works");
    let look = Look::at(&url, &config).await;
    let batch = [event("alloc_1", "requested")];
    bus.publish(&batch).await.expect("published");
    look.0.delete_stream(&config.stream).await.expect("deleted");
    relay(&bus, &batch).await;
    assert_eq!(look.count().await, 1);
}

#[tokio::test]
async fn a_consumer_whose_events_were_thrown_away_is_told_to_read_the_outbox() {
    let Some(url) = nats_url() else { return };
    let config = NatsConfig { max_bytes: 1 << 20, ..nats_config(&url) };
    let bus = Bus::nats(&config).await.expect("NATS works");
    let mut subscription = bus.subscribe("old", &[]).await.expect("subscribes");
    bus.publish(&[event("alloc_1", "requested")]).await.expect("published");
    next_event(&mut subscription).await.ack().await.expect("acked");
    drop(subscription);
    let large = || Envelope { body: vec![b' '; 200 << 10].into(), ..event("alloc_1", "requested") };
    bus.publish(&[large(), large(), large(), large(), large(), large(), large(), large()]).await.expect("published");
    let look = Look::at(&url, &config).await;
    assert!(look.stream().await.cached_info().state.first_sequence > 2, "nothing was thrown away");
    for consumer in ["old", "new"] {
        let mut subscription = bus.subscribe(consumer, &[]).await.expect("subscribes");
        assert!(matches!(next(&mut subscription).await, Delivery::Lagged), "{consumer}");
        assert!(matches!(next(&mut subscription).await, Delivery::Event(_)), "{consumer} goes on with what is there");
    }
}

#[tokio::test]
async fn a_consumer_that_somebody_deleted_is_made_again_and_told_to_read_the_outbox() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let bus = Bus::nats(&config).await.expect("NATS works");
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    bus.publish(&[event("alloc_1", "requested")]).await.expect("published");
    next_event(&mut subscription).await.ack().await.expect("acked");
    Look::at(&url, &config).await.stream().await.delete_consumer("worker").await.expect("deleted");
    assert!(matches!(next(&mut subscription).await, Delivery::Lagged));
}

#[tokio::test]
async fn a_consumer_that_comes_back_gets_what_happened_meanwhile() {
    let Some(url) = nats_url() else { return };
    let bus = Bus::nats(&nats_config(&url)).await.expect("NATS works");
    drop(bus.subscribe("worker", &[]).await.expect("subscribes"));
    let batch = [event("alloc_1", "requested"), event("alloc_1", "ready")];
    bus.publish(&batch).await.expect("published");
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes again");
    for wanted in &batch {
        let event = next_event(&mut subscription).await;
        assert_eq!(event.envelope.id, wanted.id);
        event.ack().await.expect("acked");
    }
}

#[tokio::test]
async fn a_message_that_is_not_ours_is_skipped() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let bus = Bus::nats(&config).await.expect("NATS works");
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let look = Look::at(&url, &config).await;
    let strange = look.0.publish(format!("{}.by.hand", config.prefix), "?".into()).await.expect("sent");
    strange.await.expect("stored");
    let ours = event("alloc_1", "requested");
    bus.publish(std::slice::from_ref(&ours)).await.expect("published");
    assert_eq!(next_event(&mut subscription).await.envelope.id, ours.id);
}

#[tokio::test]
async fn a_consumer_on_nats_is_durable_bounded_and_never_gives_up() {
    let Some(url) = nats_url() else { return };
    let config = nats_config(&url);
    let bus = Bus::nats(&config).await.expect("NATS works");
    let _subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let info = Look::at(&url, &config).await.stream().await.consumer_info("worker").await.expect("the consumer is there");
    assert_eq!(info.config.durable_name.as_deref(), Some("worker"));
    assert_eq!(info.config.max_ack_pending, 256);
    assert_eq!(info.config.ack_wait, ANSWER_PATIENCE);
    assert_eq!(info.config.max_deliver, -1);
}
