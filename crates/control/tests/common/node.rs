//! A node simulated by a test, with real keys and the real protocol.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use gpuaas_contract::envelope::{self, Verified};
use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::node_link_client::NodeLinkClient;
use gpuaas_contract::link::{
    self, Ack, Applicant, EnrollWithToken, FromNode, Grant, Hello, SignedReceipt, TaskInHand, TaskPhase, ToNode, Welcome,
    from_node, to_node,
};
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::resume::{ChannelBinding, EXPORTER_LABEL, ResumeClaim, ResumeSecret};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::VerifierSet;
use gpuaas_contract::{Digest, task};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tonic::Streaming;

use super::TestServer;

/// A host with its keys, before or after enrollment.
pub struct Host {
    pub fingerprint: String,
    pub tls_key: rcgen::KeyPair,
    pub receipt_key: SigningKey,
    pub instance: AgentInstanceId,
    pub link: SocketAddr,
    pub ca_pem: String,
    pub grant: Option<Grant>,
    /// The last session of this process and its secret.
    pub held: Mutex<Option<(String, ResumeSecret)>>,
}

impl Host {
    pub fn new(server: &TestServer) -> Self {
        let seed: [u8; 32] = gpuaas_control::pki::random();
        Self {
            fingerprint: format!("test-machine-{}", gpuaas_contract::hex(&seed[..12])),
            tls_key: rcgen::KeyPair::generate().unwrap(),
            receipt_key: SigningKey::from_seed(&seed),
            instance: AgentInstanceId::generate(),
            link: server.server().link_address.unwrap(),
            ca_pem: std::fs::read_to_string(server.ca_pem()).unwrap(),
            grant: None,
            held: Mutex::default(),
        }
    }

    /// Enrolls a host with a join token.
    pub async fn enrolled(server: &TestServer) -> Self {
        let mut host = Self::new(server);
        let token = server.client().join_token_create(&Default::default(), None).await.unwrap().token;
        let response = host.enroll(&token).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        host.grant = Some(response.json().await.unwrap());
        host
    }

    pub fn csr(&self) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.serialize_request(&self.tls_key).unwrap().pem().unwrap()
    }

    pub fn applicant(&self) -> Applicant {
        Applicant {
            fingerprint: self.fingerprint.clone(),
            csr_pem: self.csr(),
            receipt_key: self.receipt_key.verifying_key(),
            facts: HostFacts { hostname: "test-host".to_owned(), ..HostFacts::default() },
        }
    }

    /// Sends an enrollment request with a join token.
    pub async fn enroll(&self, token: &str) -> reqwest::Response {
        let secret = token.split('.').next().unwrap().to_owned();
        let body = EnrollWithToken { token: secret, applicant: self.applicant() };
        self.anonymous().post(self.url(link::route::ENROLL_WITH_TOKEN)).json(&body).send().await.unwrap()
    }

    pub fn grant(&self) -> &Grant {
        self.grant.as_ref().expect("enrolled")
    }

    pub fn node_id(&self) -> NodeId {
        self.grant().node_id
    }

    pub fn cluster_id(&self) -> ClusterId {
        self.grant().cluster_id
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}:{}{path}", link::SERVER_NAME, self.link.port())
    }

    /// Returns the URL of a route of this node.
    pub fn own_url(&self, route: &str, task: &str) -> String {
        self.url(&route.replace("{node}", &self.node_id().to_string()).replace("{task}", task))
    }

    pub fn tls(&self, with_certificate: bool) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).unwrap()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        if !with_certificate {
            return builder.with_no_client_auth();
        }
        let chain = CertificateDer::pem_slice_iter(self.grant().certificate_pem.as_bytes()).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::try_from(self.tls_key.serialize_der()).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    }

    fn http(&self, with_certificate: bool) -> reqwest::Client {
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls(with_certificate))
            .resolve(link::SERVER_NAME, self.link)
            .build()
            .unwrap()
    }

    /// Returns an HTTP client without a client certificate, from this address. All of 127.0.0.0/8 is this machine.
    pub fn anonymous_from(&self, address: [u8; 4]) -> reqwest::Client {
        let builder = reqwest::Client::builder().tls_backend_preconfigured(self.tls(false)).resolve(link::SERVER_NAME, self.link);
        builder.local_address(std::net::IpAddr::from(address)).build().unwrap()
    }

    /// Returns an HTTP client without a client certificate.
    pub fn anonymous(&self) -> reqwest::Client {
        self.http(false)
    }

    /// Returns an HTTP client with the node's certificate.
    pub fn https(&self) -> reqwest::Client {
        self.http(true)
    }

    pub async fn grpc(&self, with_certificate: bool) -> NodeLinkClient<tonic::transport::Channel> {
        self.bound_grpc(with_certificate).await.0
    }

    /// Connects, and returns the channel binding too.
    async fn bound_grpc(&self, with_certificate: bool) -> (NodeLinkClient<tonic::transport::Channel>, ChannelBinding) {
        let binding = Arc::new(Mutex::new([0; 32]));
        let exported = Arc::clone(&binding);
        let mut tls = self.tls(with_certificate);
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let (connector, address) = (TlsConnector::from(Arc::new(tls)), self.link);
        let dial = tower::service_fn(move |_: http::Uri| {
            let (connector, exported) = (connector.clone(), Arc::clone(&exported));
            async move {
                let tcp = tokio::net::TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                let name = ServerName::try_from(link::SERVER_NAME).unwrap();
                let stream = connector.connect(name, tcp).await?;
                *exported.lock().unwrap() = stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None).unwrap();
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let channel =
            tonic::transport::Endpoint::from_static("http://gpuaas-link.internal").connect_with_connector(dial).await.unwrap();
        let binding = *binding.lock().unwrap();
        (NodeLinkClient::new(channel), binding)
    }

    pub fn hello(&self, tasks: &[(TaskId, TaskPhase)]) -> Hello {
        Hello {
            protocol: link::PROTOCOL,
            agent_version: "test".to_owned(),
            agent_instance_id: self.instance.to_string(),
            boot_id: "boot".to_owned(),
            node_epoch: self.grant().node_epoch,
            verifier_set_version: 1,
            tasks: tasks.iter().map(|(id, phase)| TaskInHand { task_id: id.to_string(), phase: (*phase).into() }).collect(),
            facts_json: String::new(),
            capacity: 4,
            notices: Vec::new(),
            journal_fence_us: 0,
            resume_session: String::new(),
            resume_proof: Vec::new(),
            oldest_protocol: 0,
        }
    }

    /// Copies everything in this host's files, and in events and lists, but not its memory.
    pub fn stolen(&self) -> Self {
        Self {
            fingerprint: self.fingerprint.clone(),
            tls_key: rcgen::KeyPair::try_from(self.tls_key.serialize_der()).unwrap(),
            receipt_key: SigningKey::from_seed(&self.receipt_key.seed()),
            instance: self.instance,
            link: self.link,
            ca_pem: self.ca_pem.clone(),
            grant: self.grant.clone(),
            held: Mutex::default(),
        }
    }

    /// Opens the stream and receives the welcome.
    pub async fn connect(&self, tasks: &[(TaskId, TaskPhase)]) -> Link {
        let mut link = self.try_connect(self.hello(tasks)).await.expect("connects");
        match link.next().await {
            Some(to_node::Message::Welcome(welcome)) => {
                self.hold(&welcome);
                link.welcome = welcome;
            }
            other => panic!("no welcome but {other:?}"),
        }
        link
    }

    /// Remembers the proof for the next hello.
    pub fn hold(&self, welcome: &Welcome) {
        let secret = ResumeSecret::from_slice(&welcome.resume_secret).expect("a secret");
        *self.held.lock().unwrap() = Some((welcome.session_id.clone(), secret));
    }

    fn prove(&self, hello: &mut Hello, binding: &ChannelBinding) {
        let Some((session_id, secret)) = self.held.lock().unwrap().clone() else { return };
        let claim = ResumeClaim {
            node_id: self.node_id(),
            node_epoch: hello.node_epoch,
            session_id: &session_id,
            agent_instance_id: &hello.agent_instance_id,
        };
        hello.resume_proof = secret.prove(binding, &claim);
        hello.resume_session = session_id;
    }

    /// Sends a hello, with a proof if this process has one and the hello does not.
    pub async fn try_connect(&self, hello: Hello) -> Result<Link, tonic::Status> {
        let (mut client, binding) = self.bound_grpc(true).await;
        let mut hello = hello;
        if hello.resume_proof.is_empty() {
            self.prove(&mut hello, &binding);
        }
        let (say, words) = mpsc::channel(1024);
        say.send(from_node::Message::Hello(hello).into()).await.unwrap();
        let words = tokio_stream::wrappers::ReceiverStream::new(words);
        let answers = client.connect(words).await?.into_inner();
        Ok(Link { say, answers, welcome: Welcome::default() })
    }

    /// Verifies an envelope like an agent.
    pub fn verify(&self, envelope: &[u8]) -> Verified {
        let grant = self.grant();
        let keys = VerifierSet::open(&grant.verifier_set, &grant.root_key, grant.cluster_id).unwrap();
        let expect = envelope::Expectation {
            keys: &keys,
            cluster_id: grant.cluster_id,
            node_id: grant.node_id,
            node_epoch: grant.node_epoch,
            now: Timestamp::now(),
            highest_seen: Timestamp(0),
        };
        envelope::verify(envelope, &expect).unwrap()
    }

    /// Returns the receipt of a successful ping.
    pub fn receipt_payload(&self, verified: &Verified, sequence: u64, previous: Option<Digest>) -> receipt::Payload {
        let output = task::diag_ping::Output { message: "hi".to_owned(), host_time: Timestamp::now(), recovered: false };
        receipt::Payload {
            cluster_id: self.cluster_id(),
            node_id: self.node_id(),
            node_epoch: self.grant().node_epoch,
            task_id: verified.payload().task_id,
            task_type: verified.payload().task_type.clone(),
            task_digest: verified.digest().clone(),
            agent_instance_id: self.instance,
            boot_id: "boot".to_owned(),
            attempt: 1,
            started_at: Some(Timestamp::now()),
            finished_at: Timestamp::now(),
            outcome: Outcome::Succeeded,
            code: "ok".to_owned(),
            message: String::new(),
            output: Some(serde_json::value::to_raw_value(&output).unwrap()),
            phases: Vec::new(),
            cleanup_proof: None,
            sequence,
            previous_receipt: previous,
        }
    }
}

/// An open stream.
pub struct Link {
    pub say: mpsc::Sender<FromNode>,
    pub answers: Streaming<ToNode>,
    pub welcome: Welcome,
}

impl Link {
    /// Returns the next message of the server, or `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<to_node::Message> {
        let answer = tokio::time::timeout(super::PATIENCE, self.answers.message()).await.expect("the server says something");
        answer.ok().flatten().and_then(|answer| answer.message)
    }

    /// Returns the next offer, and skips other messages.
    pub async fn offer(&mut self) -> link::Offer {
        loop {
            match self.next().await.expect("an offer before the end of the stream") {
                to_node::Message::Offer(offer) => return offer,
                to_node::Message::Goodbye(goodbye) => panic!("goodbye instead of an offer: {goodbye:?}"),
                _ => {}
            }
        }
    }

    pub async fn ack(&self, id: TaskId, phase: TaskPhase) {
        let ack = Ack { task_id: id.to_string(), phase: phase.into(), at_us: Timestamp::now().0 };
        self.say.send(from_node::Message::Ack(ack).into()).await.unwrap();
    }

    /// Sends a receipt and returns the code of the answer; empty if it was accepted.
    pub async fn receipt(&mut self, id: TaskId, receipt: Vec<u8>) -> String {
        self.say.send(from_node::Message::Receipt(SignedReceipt { task_id: id.to_string(), receipt }).into()).await.unwrap();
        loop {
            match self.next().await.expect("an answer to the receipt") {
                to_node::Message::ReceiptAck(ack) if ack.task_id == id.to_string() => return ack.rejected_code,
                _ => {}
            }
        }
    }

    /// Reads until the goodbye (or the end) and returns its code.
    pub async fn goodbye(&mut self) -> String {
        loop {
            match self.next().await {
                Some(to_node::Message::Goodbye(goodbye)) => return goodbye.code,
                Some(_) => {}
                None => return "stream ended".to_owned(),
            }
        }
    }
}
