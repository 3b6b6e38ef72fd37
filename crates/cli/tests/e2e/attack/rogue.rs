//! A node with a malicious agent: it has the node's own files, and sends whatever it likes over the real link.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use gpuaas_contract::id::AgentInstanceId;
use gpuaas_contract::link::node_link_client::NodeLinkClient;
use gpuaas_contract::link::{self, FromNode, Hello, ToNode, from_node, route};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tonic::Streaming;

use super::http::{self, Answer, Request};
use super::target::Target;

/// The identity in a node's files.
pub(super) struct Rogue {
    address: SocketAddr,
    pub(super) node: String,
    cluster: String,
    epoch: u64,
    ca_pem: String,
    certificate_pem: String,
    key_pem: String,
}

/// An open link stream.
pub(super) struct Link {
    pub(super) say: mpsc::Sender<FromNode>,
    pub(super) answers: Streaming<ToNode>,
}

impl Rogue {
    /// Uses the identity in this host's folder.
    pub(super) fn of(target: &Target, host: &Path) -> Self {
        let read = |file: &str| std::fs::read_to_string(host.join("state/identity").join(file)).unwrap();
        let identity: serde_json::Value = serde_json::from_str(&read("identity.json")).unwrap();
        let text = |name: &str| identity[name].as_str().unwrap().to_owned();
        Self {
            address: target.link(),
            node: text("node_id"),
            cluster: text("cluster_id"),
            epoch: identity["node_epoch"].as_u64().unwrap(),
            ca_pem: read("ca.crt"),
            certificate_pem: read("tls.crt"),
            key_pem: read("tls.key"),
        }
    }

    /// The same node with a certificate forged with the CA's own key: it has the serial number of the valid one, but another key.
    pub(super) fn forged(mut self, server_keys: &Path) -> Self {
        let read = |file: &str| std::fs::read_to_string(server_keys.join(file)).unwrap();
        let ca_key = rcgen::KeyPair::from_pem(&read("ca.key")).expect("the CA's key");
        let ca = rcgen::Issuer::from_ca_cert_pem(&read("ca.crt"), ca_key).expect("the CA");
        let live = CertificateDer::from_pem_slice(self.certificate_pem.as_bytes()).expect("a certificate");
        let (_, live) = x509_parser::parse_x509_certificate(&live).expect("a certificate");
        let mut params = rcgen::CertificateParams::default();
        let name = format!("spiffe://{}/node/{}", self.cluster, self.node);
        params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().expect("a name"))];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(rcgen::SerialNumber::from_slice(live.raw_serial()));
        params.use_authority_key_identifier_extension = true;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2099, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        self.certificate_pem = params.signed_by(&key, &ca).expect("signed").pem();
        self.key_pem = key.serialize_pem();
        self
    }

    fn tls(&self, alpn: &[u8]) -> TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).expect("the CA")).expect("a root");
        let chain = CertificateDer::pem_slice_iter(self.certificate_pem.as_bytes()).collect::<Result<_, _>>().expect("a chain");
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .expect("a client");
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    fn hello(&self) -> Hello {
        Hello {
            protocol: link::PROTOCOL,
            agent_version: "rogue".to_owned(),
            agent_instance_id: AgentInstanceId::generate().to_string(),
            boot_id: "boot".to_owned(),
            node_epoch: self.epoch,
            verifier_set_version: 1,
            capacity: 64,
            ..Hello::default()
        }
    }

    /// Opens the stream and sends the hello.
    pub(super) async fn connect(&self) -> Result<Link, tonic::Status> {
        let (connector, address) = (self.tls(b"h2"), self.address);
        let dial = tower::service_fn(move |_: ::http::Uri| {
            let connector = connector.clone();
            async move {
                let stream = tokio::net::TcpStream::connect(address).await?;
                let name = ServerName::try_from(link::SERVER_NAME).expect("a name");
                Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
            }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://gpuaas-link.internal");
        let channel =
            endpoint.connect_with_connector(dial).await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let (say, words) = mpsc::channel(4);
        say.send(from_node::Message::Hello(self.hello()).into()).await.expect("the first word");
        let words = tokio_stream::wrappers::ReceiverStream::new(words);
        let answers = NodeLinkClient::new(channel).connect(words).await?.into_inner();
        Ok(Link { say, answers })
    }

    /// Sends the hello over long-poll.
    pub(super) async fn hello_by_poll(&self) -> Result<Answer, String> {
        let path = route::HELLO.replace("{node}", &self.node);
        let body = serde_json::to_string(&self.hello()).expect("JSON");
        let request = Request { token: None, ..Request::json(&path, "", &body) };
        http::send_tls(Ipv4Addr::LOCALHOST, self.address, &self.tls(b"http/1.1"), &request).await
    }
}
