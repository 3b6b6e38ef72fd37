//! A real Redis that is killed, frozen or cut off.

use std::time::Duration;

use bytes::Bytes;
use gpuaas_backends::ephemeral::Ephemeral;
use gpuaas_backends::fanout::{Fanout, Listener, Notice};
use gpuaas_backends::limits::{Limits, Rule};
use gpuaas_backends::redis::{Redis, RedisConfig};
use gpuaas_testkit::{PATIENCE, RedisServer, TcpProxy, eventually_async};

use crate::support::{HOUR, item};

fn redis(url: &str) -> Redis {
    Redis::open(&RedisConfig::new(url)).expect("a URL")
}

/// Sends a command to Redis directly.
async fn ask<T: redis::FromRedisValue>(server: &RedisServer, command: &[&str]) -> T {
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis is there");
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await.expect("an answer")
}

/// Returns the next message and skips gaps, because there may be more gaps than necessary.
async fn heard(listener: &mut Listener) -> Notice {
    loop {
        match item(listener).await {
            Notice::Gap => {}
            message @ Notice::Message { .. } => return message,
        }
    }
}

const RULE: Rule = Rule { per: HOUR, burst: 3 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_redis_was_away_listeners_get_a_gap_and_hear_again() {
    let Some(mut server) = RedisServer::start() else { return };
    let fanout = Fanout::redis(&redis(&server.url()));
    let mut listeners = vec![];
    for number in 0..10 {
        listeners.push(fanout.subscribe(&["everybody", &format!("channel {number}")]).await.expect("subscribed"));
    }
    server.kill();
    assert_eq!(fanout.publish("everybody", Bytes::new()).await.expect_err("Redis is dead").code(), "redis_away");
    server.restart();
    for listener in &mut listeners {
        assert_eq!(item(listener).await, Notice::Gap);
    }
    eventually_async(PATIENCE, "Redis takes notifications again", || async {
        fanout.publish("channel 7", "hello".into()).await.ok()
    })
    .await;
    assert_eq!(heard(&mut listeners[7]).await, Notice::Message { channel: "channel 7".into(), body: "hello".into() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_came_while_redis_was_away_gets_a_gap_once_it_is_there() {
    let Some(mut server) = RedisServer::start() else { return };
    server.kill();
    let fanout = Fanout::redis(&redis(&server.url()));
    let mut listener = fanout.subscribe(&["channel"]).await.expect("it waits for Redis");
    server.restart();
    assert_eq!(item(&mut listener).await, Notice::Gap);
    fanout.publish("channel", "hello".into()).await.expect("published");
    assert_eq!(heard(&mut listener).await, Notice::Message { channel: "channel".into(), body: "hello".into() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_listeners_of_a_process_share_one_connection_and_leave_nothing_behind() {
    let Some(server) = RedisServer::start() else { return };
    let fanout = Fanout::redis(&redis(&server.url()));
    let mut listeners = vec![];
    for number in 0..200 {
        listeners.push(fanout.subscribe(&["everybody", &format!("channel {number}")]).await.expect("subscribed"));
    }
    let clients: String = ask(&server, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    assert_eq!(clients.trim().lines().count(), 1, "{clients}");
    let channels: Vec<String> = ask(&server, &["PUBSUB", "CHANNELS"]).await;
    assert_eq!(channels.len(), 201);
    drop(listeners);
    eventually_async(PATIENCE, "Redis sends nothing any more", || async {
        ask::<Vec<String>>(&server, &["PUBSUB", "CHANNELS"]).await.is_empty().then_some(())
    })
    .await;
    drop(fanout);
    eventually_async(PATIENCE, "the connection is closed", || async {
        ask::<String>(&server, &["CLIENT", "LIST", "TYPE", "pubsub"]).await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_each_process_limits_alone_and_afterwards_together_again() {
    let Some(mut server) = RedisServer::start() else { return };
    let (one, two) = (Limits::redis(&redis(&server.url())), Limits::redis(&redis(&server.url())));
    assert!(one.check("key", RULE, 3).await.allowed);
    assert!(!two.check("key", RULE, 1).await.allowed, "they share the count");
    assert_eq!(one.fallbacks() + two.fallbacks(), 0);

    server.kill();
    for limits in [&one, &two] {
        assert!(limits.check("key", RULE, 3).await.allowed, "nobody is locked out");
        assert!(!limits.check("key", RULE, 1).await.allowed, "and nobody is without a limit");
        assert_eq!(limits.fallbacks(), 2);
    }
    server.restart();
    eventually_async(PATIENCE, "Redis decides again", || async {
        let before = one.fallbacks() + two.fallbacks();
        one.check("other key", RULE, 0).await;
        two.check("other key", RULE, 0).await;
        (one.fallbacks() + two.fallbacks() == before).then_some(())
    })
    .await;
    assert!(one.check("new key", RULE, 3).await.allowed);
    assert!(!two.check("new key", RULE, 1).await.allowed, "they share the count again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_is_as_good_as_away() {
    let Some(mut server) = RedisServer::start() else { return };
    let shared = redis(&server.url());
    let (limits, values, fanout) = (Limits::redis(&shared), Ephemeral::redis(&shared), Fanout::redis(&shared));
    assert!(limits.check("key", RULE, 3).await.allowed);
    server.pause();
    assert!(limits.check("key", RULE, 3).await.allowed, "decided alone");
    assert!(limits.fallbacks() > 0);
    assert_eq!(values.put("key", Bytes::new(), HOUR).await.expect_err("no answer").code(), "redis_away");
    assert_eq!(values.take("key").await.expect_err("no answer").code(), "redis_away");
    assert_eq!(fanout.publish("channel", Bytes::new()).await.expect_err("no answer").code(), "redis_away");
    server.resume();
    eventually_async(PATIENCE, "Redis answers again", || async { values.put("key", Bytes::new(), HOUR).await.ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_no_token_is_put_and_none_is_good() {
    let Some(mut server) = RedisServer::start() else { return };
    let values = Ephemeral::redis(&redis(&server.url()));
    values.put("token", "value".into(), HOUR).await.expect("put");
    server.kill();
    assert_eq!(values.take("token").await.expect_err("Redis is dead").code(), "redis_away");
    assert_eq!(values.peek("token").await.expect_err("Redis is dead").code(), "redis_away");
    assert_eq!(values.put("token", "value".into(), HOUR).await.expect_err("Redis is dead").code(), "redis_away");
    server.restart();
    let taken = eventually_async(PATIENCE, "Redis answers again", || async { values.take("token").await.ok() }).await;
    assert_eq!(taken, None, "this Redis kept nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_whose_answer_was_lost_is_spent() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = TcpProxy::start(server.port());
    let values = Ephemeral::redis(&redis(&format!("redis://{}", proxy.address())));
    values.put("token", "value".into(), HOUR).await.expect("put");
    proxy.lose_answers();
    assert_eq!(values.take("token").await.expect_err("no answer").code(), "redis_away");
    assert!(proxy.lost_bytes() > 0, "no answer was lost");
    proxy.reset();
    let taken = eventually_async(PATIENCE, "Redis answers again", || async { values.take("token").await.ok() }).await;
    assert_eq!(taken, None, "nobody else gets it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_broke_while_nobody_looked_costs_no_call() {
    let Some(server) = RedisServer::start() else { return };
    let proxy = TcpProxy::start(server.port());
    let values = Ephemeral::redis(&redis(&format!("redis://{}", proxy.address())));
    for _ in 0..10 {
        values.put("key", "value".into(), Duration::from_secs(60)).await.expect("put");
        proxy.reset();
        assert_eq!(values.peek("key").await.expect("over a new connection"), Some("value".into()));
    }
}
