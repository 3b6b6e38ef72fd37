//! Both ways to enroll, the pin, renewal, rejoin, and enrolling again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpuaas_agent::config::TransportChoice;
use gpuaas_agent::{Door, EnrollError, EnrollOptions, EnrollProgress};
use gpuaas_contract::receipt::Outcome;
use tokio_util::sync::CancellationToken;

use crate::harness::{Host, believe, enrolled, eventually, ping};
use crate::server::{Server, Shared};

fn options(host: &Host, door: Door, replace: bool) -> EnrollOptions {
    EnrollOptions { config: host.config.clone(), door, replace, simulated_hostname: None }
}

fn approval(shared: &Shared) -> Door {
    Door::Approval { email: "operator@example.com".to_owned(), ca_sha256: shared.ca_sha256() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_approval_is_waited_for_and_a_second_enroll_goes_on_waiting() {
    let server = Server::start(Shared::new()).await;
    let shared = &server.shared;
    let host = Host::new(&server);
    let stop = CancellationToken::new();
    let stop_when_waiting = |progress: EnrollProgress| {
        assert!(
            matches!(&progress, EnrollProgress::Waiting { resumed: false, receipt_key, .. } if !receipt_key.as_str().is_empty())
        );
        stop.cancel();
    };
    let error = gpuaas_agent::enroll(options(&host, approval(shared), false), stop_when_waiting, stop.clone()).await;
    assert!(matches!(error, Err(EnrollError::Stopped)), "{error:?}");

    shared.approve.store(true, Ordering::SeqCst);
    let resumed = std::sync::Mutex::new(None);
    let note = |progress: EnrollProgress| {
        if let EnrollProgress::Waiting { resumed: again, .. } = progress {
            *resumed.lock().expect("lock") = Some(again);
        }
    };
    let enrolled = gpuaas_agent::enroll(options(&host, approval(shared), false), note, CancellationToken::new()).await;
    assert_eq!(enrolled.expect("enrolled").node_id, shared.node_id);
    assert_eq!(*resumed.lock().expect("lock"), Some(true));
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_another_ca_gets_nothing() {
    let server = Server::start(Shared::new()).await;
    let impostor = Server::start(Shared::new()).await;
    let host = Host::new(&impostor);
    let error = gpuaas_agent::enroll(options(&host, Door::Token(server.shared.token()), false), |_| {}, CancellationToken::new())
        .await
        .expect_err("refused");
    let text = gpuaas_agent::error_chain::chain(&error);
    assert!(text.contains("not from the pinned CA"), "{text}");
    assert!(!gpuaas_agent::is_enrolled(&host.config.state_dir));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_tokens_pins_and_addresses_say_what_is_expected() {
    let server = Server::start(Shared::new()).await;
    let host = Host::new(&server);
    let enroll = |door| gpuaas_agent::enroll(options(&host, door, false), |_| {}, CancellationToken::new());
    assert!(matches!(enroll(Door::Token("gpj_x".to_owned())).await, Err(EnrollError::BadToken)));
    assert!(matches!(enroll(Door::Token(format!("x.{}", "0".repeat(64)))).await, Err(EnrollError::BadToken)));
    let door = |email: &str, pin: &str| Door::Approval { email: email.to_owned(), ca_sha256: pin.to_owned() };
    assert!(matches!(enroll(door("a@b", "12")).await, Err(EnrollError::BadPin)));
    assert!(matches!(enroll(door("nobody", &"0".repeat(64))).await, Err(EnrollError::BadEmail(_))));
    let mut nowhere = Host::new(&server);
    nowhere.config.server.clear();
    let error =
        gpuaas_agent::enroll(options(&nowhere, Door::Token(server.shared.token()), false), |_| {}, CancellationToken::new());
    assert!(matches!(error.await, Err(EnrollError::NoServer)));
    assert!(!format!("{:?}", Door::Token("gpj_secret.00".to_owned())).contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn enrolling_again_needs_a_word_and_starts_a_new_epoch_with_a_new_chain() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let run_one = async |epoch: u64, hello: usize| {
        let agent = host.start(TransportChoice::Auto);
        assert_eq!(shared.hello(hello).await.0.node_epoch, epoch);
        let (task_id, signed) = shared.sign(&ping("x"), |_| {});
        assert!(shared.offer(task_id, &signed.envelope));
        let (bytes, _) = shared.receipt(task_id).await;
        let receipt = believe(shared, task_id, &signed.digest, &bytes);
        assert_eq!((receipt.sequence, receipt.previous_receipt, receipt.node_epoch), (1, None, epoch));
        agent.stop().await;
    };
    run_one(1, 1).await;
    let approve = approval(shared);
    let refused = gpuaas_agent::enroll(options(&host, approve.clone(), false), |_| {}, CancellationToken::new()).await;
    assert!(matches!(refused, Err(EnrollError::AlreadyEnrolled)));
    shared.approve.store(true, Ordering::SeqCst);
    let again = gpuaas_agent::enroll(options(&host, approve, true), |_| {}, CancellationToken::new()).await.expect("enrolled");
    assert_eq!(again.node_epoch, 2);
    run_one(2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_past_its_half_life_is_renewed_while_the_agent_works() {
    let server = Server::start(Shared::new()).await;
    let shared = &server.shared;
    *shared.certificate_life.lock().expect("lock") = (Duration::from_secs(3600), Duration::from_secs(1800));
    let host = Host::new(&server);
    host.enroll(shared).await;
    let before = std::fs::read_to_string(host.state("identity/tls.crt")).expect("certificate");
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    let certificate = || std::fs::read_to_string(host.state("identity/tls.crt")).expect("certificate");
    eventually("a new certificate", || certificate() != before).await;
    agent.stop().await;
    let agent = host.start(TransportChoice::Auto);
    shared.hello(2).await;
    agent.stop().await;
    assert_eq!(shared.certificates_issued.load(Ordering::SeqCst), 2, "a fresh one is left alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_node_rejoins_with_its_keys() {
    let server = Server::start(Shared::new()).await;
    let shared = &server.shared;
    *shared.certificate_life.lock().expect("lock") = (Duration::from_secs(3600), Duration::ZERO);
    let host = Host::new(&server);
    host.enroll(shared).await;
    let agent = host.start(TransportChoice::Auto);
    shared.hello(1).await;
    assert_eq!(shared.rejoins.load(Ordering::SeqCst), 1);
    let (task_id, signed) = shared.sign(&ping("back"), |_| {});
    assert!(shared.offer(task_id, &signed.envelope));
    let (bytes, _) = shared.receipt(task_id).await;
    assert_eq!(believe(shared, task_id, &signed.digest, &bytes).outcome, Outcome::Succeeded);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_cannot_share_a_state_folder() {
    let (server, host) = enrolled().await;
    let first = host.start(TransportChoice::Auto);
    server.shared.hello(1).await;
    let error = host.start(TransportChoice::Auto).fails().await.to_string();
    assert!(error.contains("another agent"), "{error}");
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_enrolled_says_how_to() {
    let server = Server::start(Shared::new()).await;
    let error = Host::new(&server).start(TransportChoice::Auto).fails().await.to_string();
    assert!(error.contains("gpuaas-agent enroll"), "{error}");
}
