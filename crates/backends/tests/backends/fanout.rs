//! Guarantees of both fan-outs.

use bytes::Bytes;
use gpuaas_backends::fanout::{Fanout, Listener, MAX_BODY_BYTES, MAX_CHANNELS, Notice};
use gpuaas_backends::redis::{Redis, RedisConfig};
use gpuaas_testkit::{redis_url, unique_name};

use crate::support::{item, on_both_engines};

/// Two ends that reach the same listeners: two processes on Redis, or the same process twice.
struct Ends(Fanout, Fanout);

fn here() -> Ends {
    let fanout = Fanout::in_process();
    Ends(fanout.clone(), fanout)
}

async fn on_redis() -> Option<Ends> {
    let url = redis_url()?;
    let end = || Fanout::redis(&Redis::open(&RedisConfig::new(url.as_str())).expect("a URL"));
    Some(Ends(end(), end()))
}

on_both_engines! { super::here(), redis = super::on_redis();
    whoever_listens_on_a_channel_hears_it_and_nobody_else,
    a_listener_on_several_channels_hears_all_of_them,
    what_is_published_after_subscribing_is_heard,
    a_slow_listener_gets_a_gap_instead_of_memory,
    a_channel_works_again_after_everybody_left_it,
    what_is_out_of_bounds_is_refused,
}

fn message(channel: &str, body: &str) -> Notice {
    Notice::Message { channel: channel.into(), body: Bytes::copy_from_slice(body.as_bytes()) }
}

async fn say(fanout: &Fanout, channel: &str, body: &str) {
    fanout.publish(channel, Bytes::copy_from_slice(body.as_bytes())).await.expect("published");
}

async fn listen(fanout: &Fanout, channels: &[&str]) -> Listener {
    fanout.subscribe(channels).await.expect("subscribed")
}

async fn whoever_listens_on_a_channel_hears_it_and_nobody_else(Ends(one, two): Ends) {
    let (project, other) = (unique_name("project"), unique_name("other"));
    let mut here = listen(&one, &[&project]).await;
    let mut here_too = listen(&one, &[&project]).await;
    let mut there = listen(&two, &[&project]).await;
    let mut elsewhere = listen(&two, &[&other]).await;
    say(&one, &project, "hello").await;
    for listener in [&mut here, &mut here_too, &mut there] {
        assert_eq!(item(listener).await, message(&project, "hello"));
    }
    say(&one, &other, "for others").await;
    assert_eq!(item(&mut elsewhere).await, message(&other, "for others"), "and nothing before it");
}

async fn a_listener_on_several_channels_hears_all_of_them(Ends(one, two): Ends) {
    let (a, b) = (unique_name("a"), unique_name("b"));
    let mut both = listen(&one, &[&a, &b, &a]).await;
    for (channel, body) in [(&a, "1"), (&b, "2"), (&a, "3")] {
        say(&two, channel, body).await;
        assert_eq!(item(&mut both).await, message(channel, body), "once, though it was named twice");
    }
}

async fn what_is_published_after_subscribing_is_heard(Ends(one, two): Ends) {
    for round in 0..50 {
        let channel = unique_name("channel");
        let mut listener = listen(&one, &[&channel]).await;
        say(&two, &channel, &round.to_string()).await;
        assert_eq!(item(&mut listener).await, message(&channel, &round.to_string()));
    }
}

async fn a_slow_listener_gets_a_gap_instead_of_memory(Ends(one, two): Ends) {
    let channel = unique_name("channel");
    let mut slow = listen(&one, &[&channel]).await;
    let mut quick = listen(&one, &[&channel]).await;
    for number in 0..300 {
        say(&two, &channel, &number.to_string()).await;
        // Once the fast listener has it, it is in the mailbox of the slow one.
        assert_eq!(item(&mut quick).await, message(&channel, &number.to_string()));
    }
    assert_eq!(item(&mut slow).await, Notice::Gap);
    let mut heard = vec![];
    while heard.last() != Some(&299) {
        match item(&mut slow).await {
            Notice::Message { body, .. } => {
                heard.push(std::str::from_utf8(&body).expect("text").parse::<u32>().expect("a number"));
            }
            Notice::Gap => panic!("a second gap"),
        }
    }
    assert!(heard.len() < 300 && heard.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{heard:?}");
}

async fn a_channel_works_again_after_everybody_left_it(Ends(one, two): Ends) {
    let channel = unique_name("channel");
    for round in 0..20 {
        let mut listener = listen(&one, &[&channel]).await;
        say(&two, &channel, &round.to_string()).await;
        // A listener that joined while the channel was being unsubscribed may get a gap first.
        loop {
            match item(&mut listener).await {
                Notice::Gap => say(&two, &channel, &round.to_string()).await,
                heard @ Notice::Message { .. } => {
                    assert_eq!(heard, message(&channel, &round.to_string()));
                    break;
                }
            }
        }
    }
}

async fn what_is_out_of_bounds_is_refused(Ends(one, _): Ends) {
    let code = |outcome: Result<(), gpuaas_backends::fanout::FanoutError>| outcome.expect_err("out of bounds").code();
    assert_eq!(code(one.publish("", Bytes::new()).await), "fanout_channel_invalid");
    assert_eq!(code(one.publish(&"c".repeat(257), Bytes::new()).await), "fanout_channel_invalid");
    assert_eq!(code(one.publish("c", Bytes::from(vec![0; MAX_BODY_BYTES + 1])).await), "fanout_body_too_large");
    assert_eq!(code(one.subscribe(&[]).await.map(drop)), "fanout_channel_invalid");
    assert_eq!(code(one.subscribe(&[""]).await.map(drop)), "fanout_channel_invalid");
    assert_eq!(code(one.subscribe(&["c"; MAX_CHANNELS + 1]).await.map(drop)), "fanout_channel_invalid");
}
