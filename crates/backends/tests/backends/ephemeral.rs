//! Guarantees of both stores of ephemeral values.

use std::time::Duration;

use bytes::Bytes;
use gpuaas_backends::ephemeral::Ephemeral;
use gpuaas_backends::redis::{Redis, RedisConfig};
use gpuaas_testkit::{PATIENCE, eventually_async, redis_url, unique_name};

use crate::support::{HOUR, on_both_engines};

async fn on_redis() -> Option<Ephemeral> {
    let url = redis_url()?;
    Some(Ephemeral::redis(&Redis::open(&RedisConfig::new(url)).expect("a URL")))
}

on_both_engines! { gpuaas_backends::ephemeral::Ephemeral::in_process(), redis = super::on_redis();
    a_token_is_taken_once,
    of_many_who_want_a_token_at_the_same_time_one_gets_it,
    looking_leaves_a_value_there_and_putting_replaces_it,
    a_value_is_gone_when_its_time_is_over,
}

const VALUE: Bytes = Bytes::from_static(&[0, 255, b'\r', b'\n']);

async fn a_token_is_taken_once(values: Ephemeral) {
    let key = unique_name("key");
    values.put(&key, VALUE, HOUR).await.expect("put");
    assert_eq!(values.take(&key).await.expect("works"), Some(VALUE));
    assert_eq!(values.take(&key).await.expect("works"), None);
    assert_eq!(values.take(&unique_name("never put")).await.expect("works"), None);
}

async fn of_many_who_want_a_token_at_the_same_time_one_gets_it(values: Ephemeral) {
    for _ in 0..20 {
        let key = unique_name("key");
        values.put(&key, VALUE, HOUR).await.expect("put");
        let takers = (0..32).map(|_| {
            let (values, key) = (values.clone(), key.clone());
            tokio::spawn(async move { values.take(&key).await.expect("works").is_some() })
        });
        let winners = futures::future::join_all(takers).await.into_iter().filter(|won| *won.as_ref().expect("no panic")).count();
        assert_eq!(winners, 1);
    }
}

async fn looking_leaves_a_value_there_and_putting_replaces_it(values: Ephemeral) {
    let key = unique_name("key");
    assert_eq!(values.peek(&key).await.expect("works"), None);
    for value in ["one", "two"] {
        values.put(&key, value.into(), HOUR).await.expect("put");
        assert_eq!(values.peek(&key).await.expect("works"), Some(value.into()));
    }
    assert_eq!(values.take(&key).await.expect("works"), Some("two".into()));
    assert_eq!(values.peek(&key).await.expect("works"), None);
}

async fn a_value_is_gone_when_its_time_is_over(values: Ephemeral) {
    let key = unique_name("key");
    values.put(&key, VALUE, Duration::from_millis(30)).await.expect("put");
    eventually_async(PATIENCE, "the value expires", || async { values.peek(&key).await.expect("works").is_none().then_some(()) })
        .await;
    assert_eq!(values.take(&key).await.expect("works"), None);
}
