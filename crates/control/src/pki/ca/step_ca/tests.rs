//! What step-ca, or an impostor, can make the control plane accept; and what others get from step-ca with our credentials.

#![allow(clippy::unwrap_used, reason = "tests")]

use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_testkit::{STEP_CA_OTHER_PROVISIONER, StepCaServer, TempDir};
use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData as _, SanType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::credential::Credential;
use super::{MAX_ANSWER, StepCa, StepCaConfig, bounded};
use crate::pki::ca::conformance::{chain_of, config_of, request, request_for};
use crate::pki::ca::{BuiltInCa, Ca, CaConfig, CaError, Issued, check};
use crate::pki::write_private;

/// A step-ca and a client of it.
struct Setup {
    ca: StepCa,
    cluster: ClusterId,
    dir: TempDir,
    server: StepCaServer,
}

async fn server(life: &'static str) -> Option<StepCaServer> {
    tokio::task::spawn_blocking(move || StepCaServer::start(life)).await.unwrap()
}

async fn open(config: &StepCaConfig, dir: &TempDir) -> Result<StepCa, CaError> {
    std::fs::create_dir_all(dir.path()).unwrap();
    StepCa::open(config, dir.path(), ClusterId::generate()).await
}

impl Setup {
    async fn new(life: &'static str) -> Option<Self> {
        let server = server(life).await?;
        let (dir, cluster) = (TempDir::new(), ClusterId::generate());
        let ca = StepCa::open(&config_of(&server), dir.path(), cluster).await.unwrap();
        Some(Self { ca, cluster, dir, server })
    }

    fn name(&self, node: NodeId) -> String {
        format!("spiffe://{}/node/{node}", self.cluster)
    }
}

fn key() -> KeyPair {
    KeyPair::generate().unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T, CaError>, code: &str, words: &str) {
    let error = result.map(|_| ()).expect_err("refused");
    assert!(error.code() == code && error.to_string().contains(words), "{code}, {words}: {error:?}");
}

#[tokio::test]
async fn a_token_is_good_once() {
    let Some(setup) = Setup::new("24h").await else { return };
    let (node, csr) = (NodeId::generate(), request(&key()));
    let token = setup.ca.token(&csr, node.to_string(), vec![setup.name(node)], Timestamp::now()).await.unwrap();
    setup.ca.sign(&csr, &token).await.unwrap();
    refused(setup.ca.sign(&csr, &token).await, "ca_refused", "401");
}

#[tokio::test]
async fn a_token_for_one_name_gets_no_other_name() {
    let Some(setup) = Setup::new("24h").await else { return };
    let (node, other) = (NodeId::generate(), NodeId::generate());
    let csr = request_for(&key(), &[SanType::URI(setup.name(other).try_into().unwrap())]);
    let token = setup.ca.token(&csr, node.to_string(), vec![setup.name(node)], Timestamp::now()).await.unwrap();
    refused(setup.ca.sign(&csr, &token).await, "ca_refused", "403");
}

#[tokio::test]
async fn an_expired_token_and_one_for_another_ca_are_refused() {
    let Some(setup) = Setup::new("24h").await else { return };
    let (node, csr) = (NodeId::generate(), request(&key()));
    let long_ago = Timestamp::now().minus(std::time::Duration::from_secs(3600));
    let token = setup.ca.token(&csr, node.to_string(), vec![setup.name(node)], long_ago).await.unwrap();
    refused(setup.ca.sign(&csr, &token).await, "ca_refused", "401");
    let mut elsewhere = config_of(&setup.server);
    elsewhere.url = "https://elsewhere.example:9000".to_owned();
    let elsewhere = open(&elsewhere, &TempDir::new()).await.unwrap();
    let token = elsewhere.token(&csr, node.to_string(), vec![setup.name(node)], Timestamp::now()).await.unwrap();
    refused(setup.ca.sign(&csr, &token).await, "ca_refused", "401");
}

#[tokio::test]
async fn an_answer_for_another_node_key_cluster_or_root_is_not_taken() {
    let Some(setup) = Setup::new("24h").await else { return };
    let (node, now, node_key) = (NodeId::generate(), Timestamp::now(), key());
    let Issued { pem, .. } = setup.ca.issue_node(&request(&node_key), node, 1, now).await.unwrap();
    let chain = chain_of(&pem);
    let spki = node_key.subject_public_key_info();
    let expected = check::Expected { root: setup.ca.root(), key: &spki, now };
    check::node(&chain, (setup.cluster, node, 1), &expected).unwrap();
    let rejected = "ca_answer_rejected";
    refused(check::node(&chain, (setup.cluster, NodeId::generate(), 1), &expected), rejected, "names");
    refused(check::node(&chain, (ClusterId::generate(), node, 1), &expected), rejected, "not a node of this cluster");
    let other = key().subject_public_key_info();
    let changed = check::Expected { root: setup.ca.root(), key: &other, now };
    refused(check::node(&chain, (setup.cluster, node, 1), &changed), rejected, "another key");
    let foreign = BuiltInCa::open(TempDir::new().path(), setup.cluster, now).unwrap();
    let under = check::Expected { root: foreign.der(), key: &spki, now };
    refused(check::node(&chain, (setup.cluster, node, 1), &under), rejected, "configured root");
    // Without the intermediate certificate it cannot be verified.
    refused(check::node(&chain[..1], (setup.cluster, node, 1), &expected), rejected, "configured root");
    let tomorrow = check::Expected { root: setup.ca.root(), key: &spki, now: now.plus(std::time::Duration::from_secs(90_000)) };
    refused(check::node(&chain, (setup.cluster, node, 1), &tomorrow), rejected, "check both clocks");
}

#[tokio::test]
async fn a_certificate_for_longer_than_a_day_is_not_taken() {
    let Some(setup) = Setup::new("48h").await else { return };
    let issued = setup.ca.issue_node(&request(&key()), NodeId::generate(), 1, Timestamp::now()).await;
    refused(issued, "ca_answer_rejected", "defaultTLSCertDuration");
}

#[tokio::test]
async fn a_step_ca_under_a_foreign_root_is_not_talked_to() {
    let (Some(ours), Some(theirs)) = (server("24h").await, server("24h").await) else { return };
    let config = StepCaConfig { root: theirs.root_file().display().to_string(), ..config_of(&ours) };
    let ca = open(&config, &TempDir::new()).await.unwrap();
    let issued = ca.issue_node(&request(&key()), NodeId::generate(), 1, Timestamp::now()).await;
    refused(issued, "ca_unavailable", "certificate");
}

#[tokio::test]
async fn an_enrollment_certificate_of_another_authority_gets_nothing_from_our_provisioner() {
    let Some(server) = server("24h").await else { return };
    let other = server.other_enrollment().clone();
    let config = StepCaConfig { certificate: other.certificate, key: other.key, ..config_of(&server) };
    let ca = open(&config, &TempDir::new()).await.unwrap();
    let issued = ca.issue_node(&request(&key()), NodeId::generate(), 1, Timestamp::now()).await;
    refused(issued, "ca_refused", "401");
    // The other provisioner accepts it: its certificates are not in the store.
    let config = StepCaConfig { provisioner: STEP_CA_OTHER_PROVISIONER.to_owned(), ..config };
    let ca = open(&config, &TempDir::new()).await.unwrap();
    ca.issue_node(&request(&key()), NodeId::generate(), 1, Timestamp::now()).await.unwrap();
}

#[tokio::test]
async fn enrollment_files_that_cannot_work_are_refused_before_anybody_is_asked() {
    let Some(setup) = Setup::new("24h").await else { return };
    let dir = TempDir::new();
    let unusable = |config: StepCaConfig, words: &'static str| async move {
        refused(open(&config, &TempDir::new()).await, "ca_credential_unusable", words);
    };
    let good = config_of(&setup.server);
    unusable(
        StepCaConfig { certificate: setup.server.other_enrollment().certificate.clone(), ..good.clone() },
        "another certificate",
    )
    .await;
    unusable(StepCaConfig { certificate: dir.join("nothing.crt"), ..good.clone() }, "nothing.crt").await;
    // The files of a CA, which the control plane must not have.
    let built_in = BuiltInCa::open(dir.path(), setup.cluster, Timestamp::now()).unwrap();
    assert!(built_in.pem().contains("CERTIFICATE"));
    unusable(
        StepCaConfig { certificate: dir.join("ca.crt"), key: dir.join("ca.key"), ..good.clone() },
        "must not hold a CA's key",
    )
    .await;
    // A certificate of a node: if the provisioner trusted step-ca's own root, every node could get any name.
    let node_key = key();
    let issued = setup.ca.issue_node(&request(&node_key), NodeId::generate(), 1, Timestamp::now()).await.unwrap();
    write_private(&dir.join("node.crt"), issued.pem.as_bytes()).unwrap();
    write_private(&dir.join("node.key"), node_key.serialize_pem().as_bytes()).unwrap();
    unusable(StepCaConfig { certificate: dir.join("node.crt"), key: dir.join("node.key"), ..good.clone() }, "step-ca's own root")
        .await;
    // An expired one.
    let files = setup.server.enrollment();
    let late = Timestamp::now().plus(std::time::Duration::from_secs(5_000 * 366 * 24 * 3600));
    refused(
        Credential::read(&files.certificate, &files.key, setup.ca.root(), late).map(|_| ()),
        "ca_credential_unusable",
        "replace",
    );
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&good.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(open(&good, &TempDir::new()).await, "ca_internal", "files");
}

#[tokio::test]
async fn a_name_that_a_host_chose_does_not_become_the_common_name() {
    let Some(setup) = Setup::new("24h").await else { return };
    let with_name = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serialize_request(&key()).unwrap().pem().unwrap()
    };
    let issue = async |name: &str| setup.ca.issue_node(&with_name(name), NodeId::generate(), 1, Timestamp::now()).await;
    refused(issue("postgres").await, "csr_invalid", "common name");
    issue("gpuaas node").await.unwrap();
}

#[tokio::test]
async fn the_root_is_fetched_by_its_fingerprint_and_kept() {
    let Some(mut setup) = Setup::new("24h").await else { return };
    let pin = super::pin_of(setup.ca.root());
    let config = StepCaConfig { root: pin.clone(), ..config_of(&setup.server) };
    let dir = TempDir::new();
    assert_eq!(open(&config, &dir).await.unwrap().root(), setup.ca.root());
    let wrong = StepCaConfig { root: "00".repeat(32), ..config.clone() };
    refused(open(&wrong, &TempDir::new()).await, "ca_internal", "fingerprint");
    // If the cluster was created with another root, no other one is accepted, whatever the options say.
    refused(open(&wrong, &dir).await, "ca_internal", "another root");
    setup.server.kill();
    assert_eq!(open(&config, &dir).await.unwrap().root(), setup.ca.root());
    refused(open(&config, &TempDir::new()).await, "ca_unavailable", "does not answer");
}

#[tokio::test]
async fn a_cluster_keeps_the_ca_it_began_with() {
    let Some(setup) = Setup::new("24h").await else { return };
    let now = Timestamp::now();
    let step_ca = CaConfig::StepCa(config_of(&setup.server));
    let open =
        async |config: &CaConfig, dir: &TempDir| Ca::open(config, dir.path(), setup.cluster, now, Default::default()).await;
    refused(open(&CaConfig::BuiltIn, &setup.dir).await, "ca_internal", "--ca step-ca");
    assert!(!setup.dir.join("ca.key").exists(), "no CA key was made");
    let before = TempDir::new();
    open(&CaConfig::BuiltIn, &before).await.unwrap();
    refused(open(&step_ca, &before).await, "ca_internal", "enroll every host again");
    let Some(other) = server("24h").await else { return };
    let other = CaConfig::StepCa(config_of(&other));
    refused(open(&other, &setup.dir).await, "ca_internal", "another root");
}

#[tokio::test]
async fn what_is_wrong_with_the_options_is_said() {
    let Some(server) = server("24h").await else { return };
    let good = config_of(&server);
    for url in ["http://localhost:1", "localhost", "https://localhost/1.0"] {
        refused(open(&StepCaConfig { url: url.to_owned(), ..good.clone() }, &TempDir::new()).await, "ca_internal", url);
    }
    let nameless = StepCaConfig { provisioner: "a b".to_owned(), ..good.clone() };
    refused(open(&nameless, &TempDir::new()).await, "ca_internal", "provisioner");
    let rootless = StepCaConfig { root: "nowhere.crt".to_owned(), ..good };
    refused(open(&rootless, &TempDir::new()).await, "ca_internal", "nowhere.crt");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        while stream.write_all(b"400\r\n").await.is_ok()
            && stream.write_all(&[b'x'; 1024]).await.is_ok()
            && stream.write_all(b"\r\n").await.is_ok()
        {}
    });
    let tls = rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let http = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
    let answer = http.get(format!("http://{address}/")).send().await.unwrap();
    assert_eq!(bounded(answer).await.unwrap_err(), format!("the answer is longer than {MAX_ANSWER} bytes"));
}
