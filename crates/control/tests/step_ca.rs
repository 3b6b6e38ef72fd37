//! A server whose certificates come from a real step-ca: enrollment, the link and outages of step-ca.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::node::Host;
use common::{PATIENCE, TestServer};
use gpuaas_api::dto::{CaState, JoinTokenCreate};
use gpuaas_contract::id::ClusterId;
use gpuaas_contract::link::{Rejoin, RejoinChallenge, RejoinChallengeRequest, RejoinProof, Renew, Renewed, route};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::{dsse, link};
use gpuaas_control::pki::{CaConfig, StepCa, StepCaConfig};
use gpuaas_control::workflow::Embedded;
use gpuaas_control::{ServerConfig, start};
use gpuaas_testkit::{STEP_CA_OTHER_PROVISIONER, STEP_CA_PROVISIONER, StepCaServer, TempDir, eventually_async};

async fn code(response: reqwest::Response) -> String {
    let status = response.status();
    let body: serde_json::Value = response.json().await.unwrap();
    assert!(!status.is_success(), "expected a refusal, got {body}");
    body["code"].as_str().unwrap().to_owned()
}

async fn step_ca(life: &'static str) -> Option<StepCaServer> {
    tokio::task::spawn_blocking(move || StepCaServer::start(life)).await.unwrap()
}

fn config_of(step_ca: &StepCaServer) -> StepCaConfig {
    StepCaConfig {
        url: step_ca.url(),
        root: step_ca.root_file().display().to_string(),
        provisioner: STEP_CA_PROVISIONER.to_owned(),
        certificate: step_ca.enrollment().certificate.clone(),
        key: step_ca.enrollment().key.clone(),
    }
}

async fn serving(step_ca: &StepCaServer) -> TestServer {
    TestServer::with_ca(CaConfig::StepCa(config_of(step_ca))).await
}

async fn renew(host: &Host) -> reqwest::Response {
    let body = Renew { csr_pem: host.csr() };
    host.https().post(host.own_url(route::RENEW, "")).json(&body).send().await.unwrap()
}

async fn rejoin(host: &Host) -> reqwest::Response {
    let ask = RejoinChallengeRequest { node_id: host.node_id() };
    let answer = host.anonymous().post(host.url(route::REJOIN_CHALLENGE)).json(&ask).send().await.unwrap();
    let RejoinChallenge { challenge } = answer.json().await.unwrap();
    let grant = host.grant();
    let proof = RejoinProof {
        cluster_id: grant.cluster_id,
        node_id: grant.node_id,
        node_epoch: grant.node_epoch,
        challenge,
        csr_pem: host.csr(),
    };
    let proof = dsse::seal(link::REJOIN_PAYLOAD_TYPE, serde_json::to_vec(&proof).unwrap(), &host.receipt_key);
    host.anonymous().post(host.url(route::REJOIN)).json(&Rejoin { node_id: grant.node_id, proof }).send().await.unwrap()
}

/// Returns how many certificates were requested from step-ca, according to the metrics.
async fn asked(server: &TestServer, result: &str) -> u64 {
    let text = server.metrics().await;
    let line = format!("gpuaas_ca_requests_total{{result=\"{result}\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_enroll_connect_and_renew_and_no_ca_key_is_here() {
    let Some(step_ca) = step_ca("24h").await else { return };
    let server = serving(&step_ca).await;
    let info = server.client().cluster().await.unwrap();
    assert_eq!((info.ca.kind.as_str(), info.ca_sha256.as_str()), ("step-ca", server.server().ca_pin.as_str()));
    assert!(info.ca.credential_expires_at.is_some());
    let mut host = Host::enrolled(&server).await;
    assert_eq!(host.grant().ca_pem.trim(), step_ca.root_pem().replace("\r\n", "\n").trim(), "agents pin step-ca's root");
    host.connect(&[]).await;
    let renewed: Renewed = renew(&host).await.json().await.unwrap();
    assert_ne!(renewed.certificate_pem, host.grant().certificate_pem);
    host.grant.as_mut().unwrap().certificate_pem = renewed.certificate_pem;
    host.connect(&[]).await;
    // The listener, the enrollment and the renewal: one certificate each, however often a decision was repeated.
    assert_eq!(asked(&server, "issued").await, 3);
    let names: Vec<_> = std::fs::read_dir(server.dir.join("keys")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name == "ca.key" || name == "ca.crt"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_for_another_key_is_refused_and_step_ca_is_not_even_asked() {
    let Some(step_ca) = step_ca("24h").await else { return };
    let server = serving(&step_ca).await;
    let host = Host::enrolled(&server).await;
    let before = asked(&server, "issued").await;
    let body = Renew { csr_pem: Host::new(&server).csr() };
    let answer = host.https().post(host.own_url(route::RENEW, "")).json(&body).send().await.unwrap();
    assert_eq!(code(answer).await, "tls_key_changed");
    assert_eq!(asked(&server, "issued").await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_step_ca_that_the_store_does_not_know_open_nothing() {
    let Some(step_ca) = step_ca("24h").await else { return };
    let server = serving(&step_ca).await;
    let mut host = Host::enrolled(&server).await;
    // From another provisioner of the same step-ca: the right name, the right key, the right root.
    let other = step_ca.other_enrollment().clone();
    let config = StepCaConfig {
        provisioner: STEP_CA_OTHER_PROVISIONER.to_owned(),
        certificate: other.certificate,
        key: other.key,
        ..config_of(&step_ca)
    };
    let theirs = StepCa::open(&config, TempDir::new().path(), host.cluster_id()).await.unwrap();
    let forged = theirs.issue_node(&host.csr(), host.node_id(), 1, Timestamp::now()).await.unwrap();
    // Renewed at step-ca itself, with the node's own certificate, without the control plane.
    let mut tls = host.tls(true);
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let http = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
    let answer = http.post(format!("{}/1.0/renew", step_ca.url())).send().await.unwrap();
    assert_eq!(answer.status(), 201, "step-ca renews for whoever has a certificate of its own");
    let answer: serde_json::Value = answer.json().await.unwrap();
    let past_us: String = answer["certChain"].as_array().unwrap().iter().map(|pem| pem.as_str().unwrap()).collect();
    let ours = host.grant().certificate_pem.clone();
    for unknown in [forged.pem, past_us] {
        host.grant.as_mut().unwrap().certificate_pem = unknown;
        assert_eq!(code(renew(&host).await).await, "certificate_revoked");
        let reported = host.try_connect(host.hello(&[])).await.map(|_| ()).expect_err("no link");
        assert!(reported.message().starts_with("certificate_revoked"), "{reported:?}");
    }
    // Of another cluster that shares the step-ca.
    let neighbor = StepCa::open(&config, TempDir::new().path(), ClusterId::generate()).await.unwrap();
    let foreign = neighbor.issue_node(&host.csr(), host.node_id(), 1, Timestamp::now()).await.unwrap();
    host.grant.as_mut().unwrap().certificate_pem = foreign.pem;
    assert_eq!(code(renew(&host).await).await, "certificate_not_a_node");
    host.grant.as_mut().unwrap().certificate_pem = ours;
    host.connect(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_step_ca_is_away_nothing_is_used_up_and_links_go_on() {
    let Some(mut step_ca) = step_ca("24h").await else { return };
    let mut server = serving(&step_ca).await;
    let host = Host::enrolled(&server).await;
    let _link = host.connect(&[]).await;
    step_ca.kill();
    let fresh = Host::new(&server);
    let token = server.client().join_token_create(&JoinTokenCreate::default(), None).await.unwrap().token;
    assert_eq!(code(fresh.enroll(&token).await).await, "ca_unavailable");
    assert_eq!(code(renew(&host).await).await, "ca_unavailable");
    assert_eq!(code(rejoin(&host).await).await, "ca_unavailable");
    assert_eq!(asked(&server, "ca_unavailable").await, 3);
    assert!(server.client().node(&host.node_id().to_string()).await.unwrap().online, "the link is not touched");
    assert_eq!(server.client().cluster().await.unwrap().ca.state, CaState::Unavailable);
    // A server that starts in the meantime uses its previous certificate, and nodes with a valid one connect.
    server.restart().await;
    host.connect(&[]).await;
    eventually_async(PATIENCE, "the outage is recorded", || async {
        let audit = server.client().audit(&Default::default()).await.unwrap();
        audit.items.iter().any(|row| row.action == "ca.unavailable").then_some(())
    })
    .await;
    let mut step_ca = tokio::task::spawn_blocking(move || {
        step_ca.restart();
        step_ca
    })
    .await
    .unwrap();
    let grant: link::Grant = fresh.enroll(&token).await.json().await.unwrap();
    assert_eq!(grant.node_epoch, 1, "the token was not used up");
    assert!(renew(&host).await.status().is_success());
    assert!(rejoin(&host).await.status().is_success());
    eventually_async(PATIENCE, "its return is recorded", || async {
        let audit = server.client().audit(&Default::default()).await.unwrap();
        audit.items.iter().any(|row| row.action == "ca.available").then_some(())
    })
    .await;
    step_ca.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_start_without_step_ca_and_one_with_a_foreign_root_say_why() {
    let (Some(mut ours), Some(theirs)) = (step_ca("24h").await, step_ca("24h").await) else { return };
    let why = async |config: StepCaConfig| {
        let dir = TempDir::new();
        let config = ServerConfig { ca: CaConfig::StepCa(config), driver: Arc::new(Embedded), ..TestServer::config(&dir, None) };
        let error = start(config).await.map(|_| ()).expect_err("does not start");
        gpuaas_control::link::chain(&error)
    };
    let foreign = StepCaConfig { root: theirs.root_file().display().to_string(), ..config_of(&ours) };
    let reported = why(foreign).await;
    assert!(reported.contains("certificate authority") && reported.contains("does not answer"), "{reported}");
    ours.kill();
    let reported = why(config_of(&ours)).await;
    assert!(reported.contains(&ours.url()) && reported.contains("does not answer"), "{reported}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_node_rejoins_with_a_certificate_of_step_ca() {
    let Some(step_ca) = step_ca("6s").await else { return };
    let server = serving(&step_ca).await;
    let mut host = Host::enrolled(&server).await;
    let mut link = host.connect(&[]).await;
    // The open link ends by itself, and the certificate cannot open another one.
    assert_eq!(link.goodbye().await, "certificate_expired");
    eventually_async(PATIENCE, "the certificate expires", || async {
        host.https().get(host.url("/")).send().await.is_err().then_some(())
    })
    .await;
    let renewed: Renewed = rejoin(&host).await.json().await.unwrap();
    host.grant.as_mut().unwrap().certificate_pem = renewed.certificate_pem;
    host.connect(&[]).await;
    let audit = server.client().audit(&Default::default()).await.unwrap();
    assert_eq!(audit.items.iter().filter(|row| row.action == "node.rejoin").count(), 1);
}
