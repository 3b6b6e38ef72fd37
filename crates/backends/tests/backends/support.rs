//! Shared helpers of the tests.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use gpuaas_backends::bus::{Delivery, Envelope, Event, NatsConfig, Subscription};
use gpuaas_contract::id::EventId;
use gpuaas_testkit::{PATIENCE, unique_name};

/// Creates one test per backend from every async function in the list. `$real` is `None` if there is no server to test on.
macro_rules! on_both_engines {
    ($in_process:expr, $name:ident = $real:expr; $($test:ident),* $(,)?) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($in_process).await;
            })*
        }
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                if let Some(engine) = $real.await {
                    super::$test(engine).await;
                }
            })*
        }
    };
}
pub(crate) use on_both_engines;

/// Returns a new event about `subject`.
pub(crate) fn event(subject: &str, what: &str) -> Envelope {
    let id = EventId::generate();
    let body = Bytes::from(format!("{{\"id\":\"{id}\"}}"));
    Envelope { id, subject: subject.to_owned(), kind: kind(what), body }
}

/// Returns a kind of event.
pub(crate) fn kind(what: &str) -> String {
    format!("gpuaas.allocation.{what}.v1")
}

/// Returns a configuration with a separate stream on a shared NATS.
pub(crate) fn nats_config(url: &str) -> NatsConfig {
    let name = unique_name("test");
    NatsConfig { stream: name.clone(), prefix: name, max_bytes: 8 << 20, ..NatsConfig::new(url) }
}

/// Returns the next delivery, which must be an event.
pub(crate) async fn next_event(subscription: &mut Subscription) -> Event {
    match next(subscription).await {
        Delivery::Event(event) => event,
        Delivery::Lagged => panic!("the subscription lagged"),
    }
}

/// Returns the next delivery.
pub(crate) async fn next(subscription: &mut Subscription) -> Delivery {
    let next = tokio::time::timeout(PATIENCE, subscription.next()).await.expect("a delivery in time");
    next.expect("the subscription works")
}

/// Returns the next item of a stream.
pub(crate) async fn item<S: Stream + Unpin>(stream: &mut S) -> S::Item {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("an item in time").expect("the stream goes on")
}

/// An hour: longer than anything in a test takes.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
