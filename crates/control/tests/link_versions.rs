//! Agents of neighboring versions: what the server agrees on with them, and what it answers those that it cannot work with.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::TestServer;
use common::node::Host;
use gpuaas_contract::link::{Hello, OLDEST_PROTOCOL, PROTOCOL, to_node};

/// What the server says first to this hello.
async fn answer(host: &Host, change: impl FnOnce(&mut Hello)) -> to_node::Message {
    let mut hello = host.hello(&[]);
    change(&mut hello);
    let mut link = host.try_connect(hello).await.expect("connects");
    let first = link.next().await.expect("an answer");
    if let to_node::Message::Welcome(welcome) = &first {
        host.hold(welcome);
    }
    first
}

#[tokio::test]
async fn agents_of_both_neighbors_are_welcome_and_the_link_says_its_version() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    // One that speaks a single version, this one, and the next one, which still speaks ours.
    for (oldest, newest) in [(0, PROTOCOL), (OLDEST_PROTOCOL, PROTOCOL), (PROTOCOL, PROTOCOL + 1)] {
        let first = answer(&host, |hello| (hello.oldest_protocol, hello.protocol) = (oldest, newest)).await;
        let to_node::Message::Welcome(welcome) = first else { panic!("{oldest} to {newest}: {first:?}") };
        assert_eq!((welcome.protocol, welcome.server_version.as_str()), (PROTOCOL, env!("CARGO_PKG_VERSION")));
    }
}

#[tokio::test]
async fn an_agent_that_is_too_old_or_too_new_is_told_what_to_upgrade() {
    let server = TestServer::sqlite().await;
    let host = Host::enrolled(&server).await;
    for (oldest, newest, upgrade) in [(0, OLDEST_PROTOCOL - 1, "agent"), (PROTOCOL + 1, PROTOCOL + 2, "server")] {
        let first = answer(&host, |hello| {
            (hello.oldest_protocol, hello.protocol) = (oldest, newest);
            hello.agent_version = "9.8.7\u{1b}[2J".to_owned();
        })
        .await;
        let to_node::Message::Goodbye(goodbye) = first else { panic!("{oldest} to {newest}: {first:?}") };
        assert_eq!(goodbye.code, "protocol_unsupported");
        assert!(goodbye.message.ends_with(&format!("upgrade the {upgrade}")), "{}", goodbye.message);
        assert!(goodbye.message.contains("version 9.8.7[2J"), "{}", goodbye.message);
    }
}
