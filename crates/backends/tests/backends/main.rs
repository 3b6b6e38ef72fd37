//! Both backends of every seam give the same guarantees, even while the real servers are killed, frozen and cut off.

mod bus;
mod ephemeral;
mod fanout;
mod limits;
mod nats_faults;
mod redis_faults;
mod support;

use std::time::Duration;

use gpuaas_backends::bus::NatsConfig;
use gpuaas_backends::redis::RedisConfig;
use gpuaas_backends::{Backends, BackendsConfig};

#[tokio::test]
async fn without_a_configuration_everything_is_in_this_process() {
    let backends = Backends::from_config(&BackendsConfig::default()).await.expect("nothing can be wrong");
    let published = backends.bus.publish(&[support::event("alloc_1", "requested")]).await.expect("nobody is away");
    assert_eq!(published.stored.len(), 1);
    backends.ephemeral.put("key", "value".into(), Duration::from_secs(60)).await.expect("nobody is away");
}

#[tokio::test]
async fn a_configuration_that_can_never_work_is_an_error_at_the_start() {
    let redis = Some(RedisConfig::new("http://127.0.0.1"));
    let error = Backends::from_config(&BackendsConfig { redis, nats: None }).await.expect_err("not a Redis");
    assert_eq!(error.code(), "redis_url_invalid");
    let nats = Some(NatsConfig { replicas: 9, ..NatsConfig::new("nats://127.0.0.1:1") });
    let error = Backends::from_config(&BackendsConfig { nats, redis: None }).await.expect_err("nine replicas");
    assert_eq!(error.code(), "bus_config_invalid");
    let nats = Some(NatsConfig { credentials_file: Some("/nowhere/x.creds".into()), ..NatsConfig::new("nats://127.0.0.1:1") });
    let error = Backends::from_config(&BackendsConfig { nats, redis: None }).await.expect_err("no such file");
    assert_eq!(error.code(), "bus_config_invalid");
}
