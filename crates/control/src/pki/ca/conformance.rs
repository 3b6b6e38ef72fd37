//! Requirements for every certificate authority, tested with both: the built-in one, and a real step-ca.

#![allow(clippy::unwrap_used, reason = "tests")]

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::link::SERVER_NAME;
use gpuaas_contract::time::Timestamp;
use gpuaas_testkit::{STEP_CA_PROVISIONER, StepCaServer, TempDir};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{Ca, CaConfig, CaError, Issued, NODE_LIFE, SERVER_LIFE, StepCaConfig, check};
use crate::pki::{BadPeer, NodeCertificate};

/// A certificate authority and its resources.
struct Subject {
    ca: Ca,
    cluster: ClusterId,
    _dir: TempDir,
    _step_ca: Option<StepCaServer>,
}

impl Subject {
    async fn open(config: CaConfig, step_ca: Option<StepCaServer>) -> Self {
        let (dir, cluster) = (TempDir::new(), ClusterId::generate());
        let ca = Ca::open(&config, dir.path(), cluster, Timestamp::now(), Default::default()).await.unwrap();
        Self { ca, cluster, _dir: dir, _step_ca: step_ca }
    }

    async fn built_in() -> Self {
        Self::open(CaConfig::BuiltIn, None).await
    }

    /// Starts a step-ca. Returns `None` and prints a line if it is not available.
    async fn step_ca() -> Option<Self> {
        let server = tokio::task::spawn_blocking(|| StepCaServer::start("24h")).await.unwrap()?;
        Some(Self::open(CaConfig::StepCa(config_of(&server)), Some(server)).await)
    }

    async fn issue(&self, key: &KeyPair, node: NodeId) -> Issued {
        self.ca.issue_node(&request(key), node, 1, Timestamp::now()).await.unwrap()
    }
}

pub(super) fn config_of(server: &StepCaServer) -> StepCaConfig {
    StepCaConfig {
        url: server.url(),
        root: server.root_file().display().to_string(),
        provisioner: STEP_CA_PROVISIONER.to_owned(),
        certificate: server.enrollment().certificate.clone(),
        key: server.enrollment().key.clone(),
    }
}

/// Returns a request as agents create it: a key and no name.
pub(super) fn request(key: &KeyPair) -> String {
    request_for(key, &[])
}

pub(super) fn request_for(key: &KeyPair, names: &[rcgen::SanType]) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = names.to_vec();
    params.serialize_request(key).unwrap().pem().unwrap()
}

pub(super) fn chain_of(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap()
}

macro_rules! on_both {
    ($(async fn $name:ident($subject:ident: Subject) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn promise($subject: Subject) $body

            #[tokio::test]
            async fn built_in() {
                promise(Subject::built_in().await).await;
            }

            #[tokio::test]
            async fn step_ca() {
                if let Some(subject) = Subject::step_ca().await {
                    promise(subject).await;
                }
            }
        }
    )*};
}

on_both! {
    async fn a_node_gets_a_certificate_for_its_key_its_name_and_a_day(subject: Subject) {
        let (key, node) = (KeyPair::generate().unwrap(), NodeId::generate());
        let Issued { pem, certificate } = subject.issue(&key, node).await;
        let now = Timestamp::now();
        let chain = chain_of(&pem);
        let peer = NodeCertificate::read(&chain[0], subject.cluster).unwrap();
        assert_eq!((peer.node_id, &peer.serial), (node, &certificate.serial), "the store knows what the link will see");
        assert_eq!((certificate.node_id, certificate.node_epoch), (node, 1));
        assert_eq!(check::public_key(&chain[0]).unwrap(), key.subject_public_key_info());
        assert!(certificate.not_after.since(now) <= NODE_LIFE, "{certificate:?}");
        assert!(certificate.not_after.since(certificate.not_before) + std::time::Duration::from_secs(5) >= NODE_LIFE, "{certificate:?}");
        check::client_chain_leads_to(subject.ca.der(), &chain[0], &chain[1..], now).unwrap();
    }

    async fn names_in_a_request_never_become_names_of_the_certificate(subject: Subject) {
        let (key, node) = (KeyPair::generate().unwrap(), NodeId::generate());
        let other = format!("spiffe://{}/node/{}", subject.cluster, NodeId::generate());
        for name in [rcgen::SanType::DnsName("evil.example".try_into().unwrap()), rcgen::SanType::URI(other.try_into().unwrap())] {
            match subject.ca.issue_node(&request_for(&key, &[name]), node, 1, Timestamp::now()).await {
                Ok(issued) => assert_eq!(NodeCertificate::read(&chain_of(&issued.pem)[0], subject.cluster).unwrap().node_id, node),
                Err(CaError::Refused { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    async fn a_request_that_its_key_did_not_sign_is_refused(subject: Subject) {
        let honest = request(&KeyPair::generate().unwrap());
        let middle = honest.len() / 2;
        let forged: String =
            honest.char_indices().map(|(at, c)| if at == middle { if c == 'A' { 'B' } else { 'A' } } else { c }).collect();
        let error = subject.ca.issue_node(&forged, NodeId::generate(), 1, Timestamp::now()).await.unwrap_err();
        assert_eq!(error.code(), "csr_invalid", "{error:?}");
    }

    async fn no_two_certificates_have_the_same_serial_number(subject: Subject) {
        let (key, node) = (KeyPair::generate().unwrap(), NodeId::generate());
        let mut serials = std::collections::BTreeSet::new();
        for _ in 0..8 {
            assert!(serials.insert(subject.issue(&key, node).await.certificate.serial));
        }
    }

    async fn the_clock_of_the_ca_may_be_ahead_of_ours(subject: Subject) {
        let (key, node) = (KeyPair::generate().unwrap(), NodeId::generate());
        let Issued { pem, certificate } = subject.issue(&key, node).await;
        let chain = chain_of(&pem);
        let (names, spki) = ((subject.cluster, node, 1), key.subject_public_key_info());
        let at = |now| check::node(&chain, names, &check::Expected { root: subject.ca.der(), key: &spki, now });
        let earlier = |minutes: u64| certificate.not_before.minus(std::time::Duration::from_secs(60 * minutes));
        assert_eq!(at(earlier(9)).unwrap().serial, certificate.serial);
        assert!(at(earlier(11)).unwrap_err().to_string().contains("check both clocks"));
    }

    async fn a_listener_gets_a_certificate_for_its_names_that_ends_with_the_root(subject: Subject) {
        let now = Timestamp::now();
        let names = ["api.example.com".to_owned(), "127.0.0.1".to_owned()];
        let certificate = subject.ca.issue_server(&names, now).await.unwrap();
        assert_eq!(certificate.chain.last().unwrap(), subject.ca.der());
        let leaf = &certificate.chain[0];
        assert_eq!(NodeCertificate::read(leaf, subject.cluster), Err(BadPeer::NotOneUri), "a listener is no node");
        let all = [SERVER_NAME.to_owned(), names[0].clone(), names[1].clone()];
        let key = check::public_key(leaf).unwrap();
        let expected = check::Expected { root: subject.ca.der(), key: &key, now };
        let between = &certificate.chain[..certificate.chain.len() - 1];
        assert_eq!(check::server(between, &all, &expected).unwrap(), (certificate.from, certificate.until));
        assert!(certificate.until.since(now) <= SERVER_LIFE);
    }

    async fn the_pin_is_the_digest_of_the_root(subject: Subject) {
        let root = chain_of(subject.ca.pem());
        assert_eq!(root, [subject.ca.der().clone()]);
        assert_eq!(format!("sha256:{}", subject.ca.pin()), Digest::of(&root[0]).as_str());
    }
}
