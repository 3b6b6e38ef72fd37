//! Guarantees of both limiters.

use std::time::Duration;

use gpuaas_backends::limits::{Limits, Rule};
use gpuaas_backends::redis::{Redis, RedisConfig};
use gpuaas_testkit::{PATIENCE, eventually_async, redis_url, unique_name};

use crate::support::{HOUR, on_both_engines};

/// Two limiters that share their counts.
struct Pair(Limits, Limits);

fn here() -> Pair {
    let limits = Limits::in_process();
    Pair(limits.clone(), limits)
}

async fn on_redis() -> Option<Pair> {
    let url = redis_url()?;
    let one = || Limits::redis(&Redis::open(&RedisConfig::new(url.as_str())).expect("a URL"));
    Some(Pair(one(), one()))
}

on_both_engines! { super::here(), redis = super::on_redis();
    a_burst_is_allowed_and_what_comes_after_it_is_told_when_to_come_back,
    keys_do_not_get_in_each_others_way,
    costs_add_up_and_a_refusal_costs_nothing,
    what_was_used_up_comes_back,
    many_at_once_get_exactly_the_burst,
}

const RULE: Rule = Rule { per: HOUR, burst: 5 };

async fn a_burst_is_allowed_and_what_comes_after_it_is_told_when_to_come_back(Pair(one, two): Pair) {
    let key = unique_name("key");
    for remaining in (0..5).rev() {
        let decision = (if remaining % 2 == 0 { &one } else { &two }).check(&key, RULE, 1).await;
        assert!(decision.allowed);
        assert_eq!((decision.remaining, decision.retry_after), (remaining, None));
        assert!(decision.reset_after <= HOUR && decision.reset_after > Duration::ZERO);
    }
    let refused = two.check(&key, RULE, 1).await;
    assert!(!refused.allowed);
    assert_eq!(refused.remaining, 0);
    let retry_after = refused.retry_after.expect("a time to come back");
    assert!(retry_after > Duration::ZERO && retry_after <= HOUR / 5, "{retry_after:?}");
    assert!(refused.reset_after > HOUR * 4 / 5 && refused.reset_after <= HOUR);
    assert_eq!(one.fallbacks() + two.fallbacks(), 0, "Redis decided all of it");
}

async fn keys_do_not_get_in_each_others_way(Pair(one, _): Pair) {
    let (greedy, modest, long) = (unique_name("greedy"), unique_name("modest"), unique_name(&"long".repeat(100)));
    assert!(one.check(&greedy, RULE, 5).await.allowed);
    assert!(!one.check(&greedy, RULE, 1).await.allowed);
    assert_eq!(one.check(&modest, RULE, 1).await.remaining, 4);
    assert_eq!(one.check(&long, RULE, 1).await.remaining, 4);
    assert_eq!(one.check(&long, RULE, 1).await.remaining, 3);
}

async fn costs_add_up_and_a_refusal_costs_nothing(Pair(one, _): Pair) {
    let key = unique_name("key");
    assert_eq!(one.check(&key, RULE, 0).await.remaining, 5, "looking is free");
    assert_eq!(one.check(&key, RULE, 3).await.remaining, 2);
    let refused = one.check(&key, RULE, 3).await;
    assert!(!refused.allowed);
    assert_eq!(refused.remaining, 2);
    assert!(one.check(&key, RULE, 2).await.allowed);
    // A cost above the burst counts as the whole burst.
    assert!(one.check(&unique_name("whole"), RULE, 100).await.allowed);
}

async fn what_was_used_up_comes_back(Pair(one, _): Pair) {
    let key = unique_name("key");
    let rule = Rule { per: Duration::from_millis(100), burst: 2 };
    assert!(one.check(&key, rule, 2).await.allowed);
    eventually_async(PATIENCE, "the burst is whole again", || async {
        (one.check(&key, rule, 0).await.remaining == 2).then_some(())
    })
    .await;
    assert!(one.check(&key, rule, 2).await.allowed);
}

async fn many_at_once_get_exactly_the_burst(Pair(one, two): Pair) {
    let key = unique_name("key");
    let asking = (0..64).map(|number| {
        let (limits, key) = ((if number % 2 == 0 { &one } else { &two }).clone(), key.clone());
        tokio::spawn(async move { limits.check(&key, RULE, 1).await.allowed })
    });
    let answers = futures::future::join_all(asking).await;
    assert_eq!(answers.into_iter().filter(|answer| *answer.as_ref().expect("no panic")).count(), 5);
}
