//! A copy of a node's identity: what it gets, and how it is detected.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::node::{Host, Link};
use common::{PATIENCE, TestServer};
use gpuaas_contract::link::{self, Messages, Ping, Pong, Renew, Welcome, from_node, route, to_node};
use gpuaas_contract::resume::{REQUEST_KEY_HEADER, ResumeSecret};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::{Server, ServerConfig, start};
use gpuaas_testkit::eventually_async;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// Runs a live agent: answers pings until the goodbye, and returns its reason.
fn alive(mut link: Link) -> tokio::task::JoinHandle<String> {
    tokio::spawn(async move {
        loop {
            match link.answers.message().await.ok().flatten().and_then(|answer| answer.message) {
                Some(to_node::Message::Ping(Ping { nonce })) => {
                    let _ = link.say.send(from_node::Message::Pong(Pong { nonce }).into()).await;
                }
                Some(to_node::Message::Goodbye(goodbye)) => return goodbye.code,
                Some(_) => {}
                None => return "stream ended".to_owned(),
            }
        }
    })
}

/// A long-poll session, as far as a copy of it matters.
struct Poll {
    http: reqwest::Client,
    session: String,
    key: String,
    control: String,
}

impl Poll {
    async fn open(host: &Host) -> Result<Self, String> {
        let http = host.https();
        let answer = http.post(host.own_url(route::HELLO, "")).json(&host.hello(&[])).send().await.unwrap();
        if !answer.status().is_success() {
            return Err(answer.json::<serde_json::Value>().await.unwrap()["code"].as_str().unwrap().to_owned());
        }
        let welcome: Welcome = answer.json().await.unwrap();
        let key = ResumeSecret::from_slice(&welcome.resume_secret).unwrap().request_key();
        Ok(Self { http, session: welcome.session_id, key, control: host.own_url(route::CONTROL, "") })
    }

    fn with(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        request.header(link::SESSION_HEADER, &self.session).header(REQUEST_KEY_HEADER, &self.key)
    }

    /// Answers pings until the session ends.
    fn alive(self) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let answer = self.with(self.http.get(&self.control)).send().await.unwrap();
                if !answer.status().is_success() {
                    return;
                }
                for message in answer.json::<Messages>().await.unwrap().messages {
                    if let Some(to_node::Message::Ping(Ping { nonce })) = message.message {
                        let _ = self.with(self.http.post(&self.control)).json(&Pong { nonce }).send().await.unwrap();
                    }
                }
            }
        })
    }
}

async fn service(server: &TestServer, host: &Host) -> String {
    server.client().node(&host.node_id().to_string()).await.unwrap().service.to_string()
}

#[tokio::test]
async fn a_copy_that_replays_the_instance_id_gets_nothing_and_locks_the_node() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let original = alive(owner.connect(&[]).await);
    let thief = owner.stolen();
    assert_eq!(thief.instance, owner.instance);
    let mut link = thief.try_connect(thief.hello(&[])).await.unwrap();
    assert_eq!(link.goodbye().await, "node_locked");
    let reported = original.await.unwrap();
    assert!(["node_locked", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
    assert_eq!(service(&server, &owner).await, "locked");
    assert!(server.metrics().await.contains("gpuaas_nodes_locked_total 1"));
}

#[tokio::test]
async fn a_copy_over_long_poll_locks_the_node_of_an_owner_over_long_poll() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let original = Poll::open(&owner).await.unwrap().alive();
    assert_eq!(Poll::open(&owner.stolen()).await.map(|_| ()).unwrap_err(), "node_locked");
    original.await.unwrap();
    assert_eq!(service(&server, &owner).await, "locked");
}

#[tokio::test]
async fn a_session_id_from_an_event_and_a_stolen_certificate_do_not_open_a_long_poll() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let poll = Poll::open(&owner).await.unwrap();
    let thief = owner.stolen();
    for key in [None, Some(""), Some("AAAA")] {
        for route in [route::TASKS_WAIT, route::CONTROL] {
            let request = thief.https().get(thief.own_url(route, "")).header(link::SESSION_HEADER, &poll.session);
            let request = if let Some(key) = key { request.header(REQUEST_KEY_HEADER, key) } else { request };
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 401, "{route}");
            assert_eq!(answer.json::<serde_json::Value>().await.unwrap()["code"], "session_key_invalid", "{route}");
        }
    }
    let heartbeat = poll.with(poll.http.post(owner.own_url(route::HEARTBEAT, ""))).json(&link::Heartbeat::default());
    assert_eq!(heartbeat.send().await.unwrap().status(), 200, "the owner's own session goes on");
}

#[tokio::test]
async fn the_process_that_holds_the_link_replaces_it_at_once_with_a_proof_and_not_with_an_older_one() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let first = alive(owner.connect(&[]).await);
    let held_first = owner.held.lock().unwrap().clone();
    let second = alive(owner.connect(&[]).await);
    assert_eq!(first.await.unwrap(), "session_replaced");
    assert_eq!(service(&server, &owner).await, "in_service");
    // The secret of a replaced link proves nothing any more.
    *owner.held.lock().unwrap() = held_first;
    let mut link = owner.try_connect(owner.hello(&[])).await.unwrap();
    assert_eq!(link.goodbye().await, "node_locked");
    let reported = second.await.unwrap();
    assert!(["node_locked", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
}

#[tokio::test]
async fn a_proof_that_was_seen_on_one_connection_is_worth_nothing_on_another() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let original = alive(owner.connect(&[]).await);
    let (session, secret) = owner.held.lock().unwrap().clone().unwrap();
    let mut replayed = owner.hello(&[]);
    // Created for another connection than the one it is sent over.
    let claim = gpuaas_contract::resume::ResumeClaim {
        node_id: owner.node_id(),
        node_epoch: 1,
        session_id: &session,
        agent_instance_id: &replayed.agent_instance_id,
    };
    replayed.resume_proof = secret.prove(&[7; 32], &claim);
    replayed.resume_session = session.clone();
    let thief = owner.stolen();
    let mut link = thief.try_connect(replayed).await.unwrap();
    assert_eq!(link.goodbye().await, "node_locked");
    original.await.unwrap();
}

#[tokio::test]
async fn a_thief_that_came_first_is_found_when_the_owner_comes_back() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let last = owner.connect(&[]).await;
    drop(last);
    let id = owner.node_id().to_string();
    eventually_async(PATIENCE, "the owner is offline", || async {
        (!server.client().node(&id).await.unwrap().online).then_some(())
    })
    .await;
    let thief = owner.stolen();
    let stolen = alive(thief.connect(&[]).await);
    // The owner can prove its own last link, which is no longer the node's.
    let mut link = owner.try_connect(owner.hello(&[])).await.unwrap();
    assert_eq!(link.goodbye().await, "node_locked");
    stolen.await.unwrap();
    assert_eq!(service(&server, &owner).await, "locked");
}

/// Starts a second server process of the same cluster.
async fn beside(server: &TestServer) -> Server {
    let config = TestServer::config(&server.dir, server.pg.as_ref());
    start(ServerConfig { roles: gpuaas_control::process_roles::parse("link").unwrap(), ..config }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_copies_on_different_server_processes_lock_the_node() {
    let Some(server) = TestServer::postgres().await else { return };
    let other = beside(&server).await;
    let owner = Host::enrolled(&server).await;
    let original = alive(owner.connect(&[]).await);
    let mut thief = owner.stolen();
    thief.link = other.link_address.unwrap();
    let mut link = thief.try_connect(thief.hello(&[])).await.unwrap();
    assert_eq!(link.goodbye().await, "node_locked");
    let reported = original.await.unwrap();
    assert!(["node_locked", "certificate_revoked"].contains(&reported.as_str()), "{reported}");
    assert_eq!(service(&server, &owner).await, "locked");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_moves_to_another_server_process_at_once_with_a_proof_and_a_restarted_one_once_its_old_link_is_silent() {
    let Some(server) = TestServer::postgres().await else { return };
    let other = beside(&server).await;
    let mut owner = Host::enrolled(&server).await;
    let first = alive(owner.connect(&[]).await);
    let here = owner.link;
    owner.link = other.link_address.unwrap();
    let silent = owner.connect(&[]).await;
    assert_eq!(first.await.unwrap(), "session_replaced");
    // A new process: it cannot prove anything, and nothing answers on its old link, which still looks open.
    *owner.held.lock().unwrap() = None;
    owner.link = here;
    owner.connect(&[]).await;
    assert_eq!(service(&server, &owner).await, "in_service");
    drop(silent);
    other.stop().await;
}

/// Forges a certificate with a stolen CA key: for this node, with a serial number in the store.
fn forge(server: &TestServer, host: &Host, key: &rcgen::KeyPair, not_after: Timestamp) -> String {
    let ca_key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(server.dir.join("keys/ca.key")).unwrap()).unwrap();
    let ca = rcgen::Issuer::from_ca_cert_pem(&std::fs::read_to_string(server.ca_pem()).unwrap(), ca_key).unwrap();
    let live = CertificateDer::from_pem_slice(host.grant().certificate_pem.as_bytes()).unwrap();
    let (_, live) = x509_parser::parse_x509_certificate(&live).unwrap();
    let mut params = rcgen::CertificateParams::default();
    let name = format!("spiffe://{}/node/{}", host.cluster_id(), host.node_id());
    params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().unwrap())];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    params.serial_number = Some(rcgen::SerialNumber::from_slice(live.raw_serial()));
    params.use_authority_key_identifier_extension = true;
    let moment = |at: Timestamp| time::OffsetDateTime::from_unix_timestamp(at.0 / 1_000_000).unwrap();
    params.not_before = moment(Timestamp::now().minus(Duration::from_secs(60)));
    params.not_after = moment(not_after);
    params.signed_by(key, &ca).unwrap().pem()
}

#[tokio::test]
async fn a_certificate_made_with_the_leaked_ca_key_for_another_key_opens_nothing() {
    let server = TestServer::sqlite().await;
    let owner = Host::enrolled(&server).await;
    let poll = Poll::open(&owner).await.unwrap();
    let mut thief = owner.stolen();
    thief.tls_key = rcgen::KeyPair::generate().unwrap();
    let forged = forge(&server, &owner, &thief.tls_key, Timestamp::now().plus(Duration::from_secs(3600)));
    thief.grant.as_mut().unwrap().certificate_pem = forged;
    let refused = thief.try_connect(thief.hello(&[])).await.map(|_| ()).unwrap_err();
    assert!(refused.message().starts_with("certificate_key_mismatch"), "{refused}");
    assert_eq!(Poll::open(&thief).await.map(|_| ()).unwrap_err(), "certificate_key_mismatch");
    let renewal = Renew { csr_pem: thief.csr() };
    let renewed = thief.https().post(thief.own_url(route::RENEW, "")).json(&renewal).send().await.unwrap();
    assert_eq!(renewed.json::<serde_json::Value>().await.unwrap()["code"], "certificate_key_mismatch");
    // Not even with the key of an open session.
    let heartbeat = poll.with(thief.https().post(thief.own_url(route::HEARTBEAT, ""))).json(&link::Heartbeat::default());
    assert_eq!(heartbeat.send().await.unwrap().json::<serde_json::Value>().await.unwrap()["code"], "session_key_invalid");
    assert_eq!(service(&server, &owner).await, "in_service");
}

#[tokio::test]
async fn a_link_whose_certificate_has_expired_gets_no_offer_and_ends() {
    let server = TestServer::sqlite().await;
    let mut host = Host::enrolled(&server).await;
    // Its own key, its own serial number, and a validity of two seconds. Certificates count in whole seconds.
    let until = Timestamp((Timestamp::now().plus(Duration::from_secs(3)).0 / 1_000_000) * 1_000_000);
    let short = forge(&server, &host, &host.tls_key, until);
    host.grant.as_mut().unwrap().certificate_pem = short;
    let mut link = host.connect(&[]).await;
    eventually_async(PATIENCE, "the certificate expires", || async { (Timestamp::now() > until).then_some(()) }).await;
    let task = gpuaas_api::dto::TaskCreate {
        node: host.node_id().to_string(),
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({}),
        queue_seconds: None,
        timeout_seconds: None,
    };
    let task = server.client().task_create(&task, None).await.unwrap();
    loop {
        match link.next().await {
            Some(to_node::Message::Offer(_)) => panic!("an offer on an expired link"),
            Some(to_node::Message::Goodbye(goodbye)) => break assert_eq!(goodbye.code, "certificate_expired"),
            Some(_) => {}
            None => panic!("no goodbye"),
        }
    }
    assert_eq!(
        server.client().task(&task.id.to_string()).await.unwrap().state.as_str(),
        "queued",
        "it was not claimed for that link"
    );
}
