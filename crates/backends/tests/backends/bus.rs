//! Guarantees of both buses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use gpuaas_backends::bus::{Bus, Deduper, Delivery, Envelope, MAX_BODY_BYTES, MAX_KINDS};
use gpuaas_contract::id::EventId;
use gpuaas_testkit::nats_url;

use crate::support::{event, kind, nats_config, next, next_event, on_both_engines};

async fn on_nats() -> Option<Bus> {
    let url = nats_url()?;
    Some(Bus::nats(&nats_config(&url)).await.expect("NATS works"))
}

on_both_engines! { gpuaas_backends::bus::Bus::in_process(10_000), nats = super::on_nats();
    events_arrive_as_they_were_published_and_in_the_order_of_their_aggregate,
    only_the_chosen_kinds_arrive,
    subscriptions_of_one_name_share_the_work_and_other_names_get_everything,
    an_event_that_is_given_back_comes_again,
    an_event_that_is_acknowledged_does_not_come_again,
    events_that_are_published_again_are_told_by_their_ids,
    an_event_that_cannot_be_carried_holds_up_its_aggregate_and_nobody_else,
    names_that_no_engine_can_use_are_refused,
    a_consumer_may_get_more_kinds_but_not_fewer,
    an_empty_batch_is_nothing_to_do,
}

fn ids(batch: &[Envelope]) -> Vec<EventId> {
    batch.iter().map(|envelope| envelope.id).collect()
}

async fn publish(bus: &Bus, batch: &[Envelope]) {
    let published = bus.publish(batch).await.expect("published");
    assert!(published.failure.is_none(), "{:?}", published.failure);
    assert_eq!(published.stored, ids(batch));
}

async fn events_arrive_as_they_were_published_and_in_the_order_of_their_aggregate(bus: Bus) {
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let subjects: Vec<String> = (0..20).map(|number| format!("alloc_{number}")).collect();
    let batch: Vec<Envelope> = (0..300).map(|index| event(&subjects[index % 17 % 20], "requested")).collect();
    publish(&bus, &batch).await;
    let mut arrived: BTreeMap<String, Vec<Envelope>> = BTreeMap::new();
    for _ in 0..batch.len() {
        let event = next_event(&mut subscription).await;
        assert_eq!(event.delivery, 1);
        arrived.entry(event.envelope.subject.clone()).or_default().push((*event.envelope).clone());
        event.ack().await.expect("acked");
    }
    for (subject, events) in arrived {
        let wanted: Vec<Envelope> = batch.iter().filter(|envelope| envelope.subject == subject).cloned().collect();
        assert_eq!(events, wanted, "{subject}");
    }
}

async fn only_the_chosen_kinds_arrive(bus: Bus) {
    let (ready, failed) = (kind("ready"), kind("failed"));
    let mut subscription = bus.subscribe("worker", &[&ready, &failed]).await.expect("subscribes");
    let batch =
        [event("alloc_1", "requested"), event("alloc_1", "ready"), event("alloc_1", "released"), event("alloc_1", "failed")];
    publish(&bus, &batch).await;
    for wanted in [&batch[1], &batch[3]] {
        let event = next_event(&mut subscription).await;
        assert_eq!(*event.envelope, *wanted);
        event.ack().await.expect("acked");
    }
}

async fn subscriptions_of_one_name_share_the_work_and_other_names_get_everything(bus: Bus) {
    let mut one = bus.subscribe("shared", &[]).await.expect("subscribes");
    let mut two = bus.subscribe("shared", &[]).await.expect("subscribes");
    let mut other = bus.subscribe("other", &[]).await.expect("subscribes");
    let batch: Vec<Envelope> = (0..60).map(|number| event(&format!("alloc_{number}"), "requested")).collect();
    publish(&bus, &batch).await;
    let wanted: BTreeSet<EventId> = ids(&batch).into_iter().collect();
    let mut shared = BTreeSet::new();
    while shared.len() < batch.len() {
        let delivery = tokio::select! {
            delivery = next(&mut one) => delivery,
            delivery = next(&mut two) => delivery,
        };
        let Delivery::Event(event) = delivery else { panic!("lagged") };
        assert!(shared.insert(event.envelope.id), "both got {}", event.envelope.id);
        event.ack().await.expect("acked");
    }
    assert_eq!(shared, wanted);
    let mut all = BTreeSet::new();
    for _ in 0..batch.len() {
        let event = next_event(&mut other).await;
        all.insert(event.envelope.id);
        event.ack().await.expect("acked");
    }
    assert_eq!(all, wanted);
}

async fn an_event_that_is_given_back_comes_again(bus: Bus) {
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let batch = [event("alloc_1", "requested")];
    publish(&bus, &batch).await;
    for (delivery, delay) in [(1, Duration::ZERO), (2, Duration::from_millis(20)), (3, Duration::ZERO)] {
        let event = next_event(&mut subscription).await;
        assert_eq!((event.envelope.id, event.delivery), (batch[0].id, delivery));
        event.nak(delay).await.expect("given back");
    }
    let event = next_event(&mut subscription).await;
    assert_eq!(event.delivery, 4);
    event.ack().await.expect("acked");
}

async fn an_event_that_is_acknowledged_does_not_come_again(bus: Bus) {
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let (first, second) = (event("alloc_1", "requested"), event("alloc_1", "ready"));
    publish(&bus, std::slice::from_ref(&first)).await;
    next_event(&mut subscription).await.ack().await.expect("acked");
    drop(subscription);
    // In-process, a name ends with its last subscription, so the next one is opened before the event.
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes again");
    publish(&bus, std::slice::from_ref(&second)).await;
    assert_eq!(next_event(&mut subscription).await.envelope.id, second.id);
}

async fn events_that_are_published_again_are_told_by_their_ids(bus: Bus) {
    let mut subscription = bus.subscribe("worker", &[]).await.expect("subscribes");
    let batch: Vec<Envelope> = (0..10).map(|_| event("alloc_1", "requested")).collect();
    let last = event("alloc_1", "released");
    publish(&bus, &batch).await;
    publish(&bus, &batch).await;
    publish(&bus, std::slice::from_ref(&last)).await;
    let mut deduper = Deduper::new(100);
    let mut new = vec![];
    loop {
        let event = next_event(&mut subscription).await;
        let id = event.envelope.id;
        event.ack().await.expect("acked");
        if id == last.id {
            break;
        }
        if deduper.is_new(id) {
            new.push(id);
        }
    }
    assert_eq!(new, ids(&batch));
}

async fn an_event_that_cannot_be_carried_holds_up_its_aggregate_and_nobody_else(bus: Bus) {
    let good =
        [event("alloc_1", "requested"), event("alloc_2", "requested"), event("alloc_1", "ready"), event("alloc_2", "ready")];
    let large = Envelope { body: Bytes::from(vec![b' '; MAX_BODY_BYTES + 1]), ..event("alloc_1", "requested") };
    let batch = [good[0].clone(), good[1].clone(), large.clone(), good[2].clone(), good[3].clone()];
    let published = bus.publish(&batch).await.expect("some are stored");
    assert_eq!(published.stored, [good[0].id, good[1].id, good[3].id], "nothing of alloc_1 after the large one");
    let failure = published.failure.expect("a reason");
    assert_eq!(failure.code(), "bus_event_invalid");
    assert!(failure.to_string().contains(&large.id.to_string()), "{failure}");
    for bad in [
        Envelope { kind: String::new(), ..event("alloc_1", "x") },
        Envelope { kind: "a\r\nb".to_owned(), ..event("alloc_1", "x") },
        Envelope { subject: "s".repeat(201), ..event("alloc_1", "x") },
    ] {
        assert_eq!(bus.publish(&[bad]).await.expect_err("nothing is stored").code(), "bus_event_invalid");
    }
}

async fn names_that_no_engine_can_use_are_refused(bus: Bus) {
    for name in ["", "with space", "a.b", "a>b", "*", "ä", &"x".repeat(65)] {
        assert_eq!(bus.subscribe(name, &[]).await.expect_err(name).code(), "bus_consumer_invalid");
    }
    let kinds: Vec<String> = (0..=MAX_KINDS).map(|number| kind(&number.to_string())).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(bus.subscribe("worker", &kinds).await.expect_err("too many").code(), "bus_consumer_invalid");
    bus.subscribe("worker", &kinds[1..]).await.expect("as many as there may be");
}

async fn a_consumer_may_get_more_kinds_but_not_fewer(bus: Bus) {
    let (ready, failed) = (kind("ready"), kind("failed"));
    let _one = bus.subscribe("worker", &[&ready]).await.expect("subscribes");
    let error = bus.subscribe("worker", &[&failed]).await.expect_err("ready would be lost");
    assert_eq!(error.code(), "bus_consumer_differs");
    assert!(error.to_string().contains("ready"), "{error}");
    let _two = bus.subscribe("worker", &[&ready, &failed]).await.expect("one more");
    let _all = bus.subscribe("worker", &[]).await.expect("all of them");
    assert_eq!(bus.subscribe("worker", &[&ready]).await.expect_err("fewer than all").code(), "bus_consumer_differs");
}

async fn an_empty_batch_is_nothing_to_do(bus: Bus) {
    let published = bus.publish(&[]).await.expect("nothing can fail");
    assert!(published.stored.is_empty() && published.failure.is_none());
}

#[tokio::test]
async fn a_slow_consumer_in_this_process_is_told_that_it_lagged_before_it_sees_anything_later() {
    let bus = Bus::in_process(5);
    let mut slow = bus.subscribe("slow", &[]).await.expect("subscribes");
    let missed: Vec<Envelope> = (0..20).map(|_| event("alloc_1", "requested")).collect();
    publish(&bus, &missed).await;
    assert!(matches!(next(&mut slow).await, Delivery::Lagged));
    let later = event("alloc_1", "ready");
    publish(&bus, std::slice::from_ref(&later)).await;
    assert_eq!(next_event(&mut slow).await.envelope.id, later.id, "after the gap it goes on");
}
