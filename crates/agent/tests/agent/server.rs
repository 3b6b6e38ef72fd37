//! A link listener for tests: enrollment, the stream and long-poll on one TLS port, with methods to control it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::StreamExt as _;
use gpuaas_contract::dsse;
use gpuaas_contract::envelope::{self, Payload};
use gpuaas_contract::id::{ClusterId, CorrelationId, EnrollmentId, NodeId, SessionId, TaskId};
use gpuaas_contract::key::{SigningKey, VerifyingKey};
use gpuaas_contract::link::node_link_server::{NodeLink, NodeLinkServer};
use gpuaas_contract::link::{
    Applicant, ENROLL_SECRET_HEADER, EnrollPending, EnrollRequest, EnrollStatus, EnrollWithToken, FromNode, Grant, Hello, LogAck,
    LogChunk, LogPosition, Messages, Offer, REJOIN_PAYLOAD_TYPE, ReceiptAck, Rejoin, RejoinChallenge, RejoinChallengeRequest,
    RejoinProof, Renew, Renewed, SERVER_NAME, SESSION_HEADER, SignedReceipt, ToNode, Welcome, from_node, route, to_node,
};
use gpuaas_contract::resume::{ChannelBinding, EXPORTER_LABEL, REQUEST_KEY_HEADER, ResumeClaim, ResumeSecret};
use gpuaas_contract::task::Task;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{Document, Entry, KeyState};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Seeds of the keys of every test cluster.
const ROOT: [u8; 32] = [1; 32];
const SIGNER: [u8; 32] = [2; 32];

/// The behavior of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMode {
    Works,
    /// Accepts the stream and does not answer, like a proxy that buffers.
    NeverWelcomes,
}

/// A message of the node and its transport.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) transport: &'static str,
    pub(crate) message: from_node::Message,
}

struct Node {
    epoch: u64,
    receipt_key: VerifyingKey,
    tls_key: Vec<u8>,
}

struct ServerSession {
    id: String,
    queue: VecDeque<to_node::Message>,
    changed: Arc<Notify>,
}

pub(crate) struct Shared {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: NodeId,
    ca: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
    node: Mutex<Option<Node>>,
    session: Mutex<Option<ServerSession>>,
    heard: Mutex<Vec<Heard>>,
    heard_count: watch::Sender<usize>,
    stream_mode: Mutex<StreamMode>,
    /// Validity of issued certificates.
    pub(crate) certificate_life: Mutex<(Duration, Duration)>,
    pub(crate) confirm_receipts: AtomicBool,
    pub(crate) confirm_logs: AtomicBool,
    pub(crate) approve: AtomicBool,
    pub(crate) certificates_issued: AtomicU32,
    pub(crate) rejoins: AtomicU32,
    /// Number of opened streams, whatever their end.
    pub(crate) streams: AtomicU32,
    verifier_set: Mutex<Vec<u8>>,
    used_tokens: Mutex<HashSet<String>>,
}

/// A running server; dropping it closes every connection.
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn ca() -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::DigitalSignature];
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("key");
    rcgen::CertifiedIssuer::self_signed(params, key).expect("ca")
}

pub(crate) fn verifier_set(cluster_id: ClusterId, version: u64, state: KeyState) -> Vec<u8> {
    let public_key = SigningKey::from_seed(&SIGNER).verifying_key();
    let keys = vec![Entry { key_id: public_key.id(), public_key, state }];
    Document { cluster_id, version, issued_at: Timestamp(1), keys }.sign(&SigningKey::from_seed(&ROOT))
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        let cluster_id = ClusterId::generate();
        Arc::new(Self {
            cluster_id,
            node_id: NodeId::generate(),
            ca: ca(),
            node: Mutex::new(None),
            session: Mutex::new(None),
            heard: Mutex::new(Vec::new()),
            heard_count: watch::Sender::new(0),
            stream_mode: Mutex::new(StreamMode::Works),
            certificate_life: Mutex::new((Duration::from_secs(60), Duration::from_secs(24 * 3600))),
            confirm_receipts: AtomicBool::new(true),
            confirm_logs: AtomicBool::new(true),
            approve: AtomicBool::new(false),
            certificates_issued: AtomicU32::new(0),
            rejoins: AtomicU32::new(0),
            streams: AtomicU32::new(0),
            verifier_set: Mutex::new(verifier_set(cluster_id, 1, KeyState::Active)),
            used_tokens: Mutex::new(HashSet::new()),
        })
    }

    pub(crate) fn ca_sha256(&self) -> String {
        use sha2::Digest as _;
        gpuaas_contract::hex(&sha2::Sha256::digest(self.ca.der()))
    }

    pub(crate) fn token(&self) -> String {
        format!("gpj_{}.{}", "s".repeat(43), self.ca_sha256())
    }

    pub(crate) fn set_stream_mode(&self, mode: StreamMode) {
        *self.stream_mode.lock().expect("lock") = mode;
    }

    fn issue(&self, csr_pem: &str) -> String {
        let mut request = rcgen::CertificateSigningRequestParams::from_pem(csr_pem).expect("csr");
        let uri = format!("spiffe://{}/node/{}", self.cluster_id, self.node_id);
        request.params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().expect("uri"))];
        request.params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let (before, after) = *self.certificate_life.lock().expect("lock");
        let at = |time: Timestamp| x509_parser::time::ASN1Time::from_timestamp(time.0 / 1_000_000).expect("time").to_datetime();
        request.params.not_before = at(Timestamp::now().minus(before));
        request.params.not_after = at(Timestamp::now().plus(after));
        self.certificates_issued.fetch_add(1, Ordering::SeqCst);
        request.signed_by(&self.ca).expect("signed").pem()
    }

    fn grant(&self, applicant: &Applicant) -> Grant {
        let mut node = self.node.lock().expect("lock");
        let epoch = node.as_ref().map_or(1, |node| node.epoch + 1);
        let request = rcgen::CertificateSigningRequestParams::from_pem(&applicant.csr_pem).expect("csr");
        let tls_key = rcgen::PublicKeyData::der_bytes(&request.public_key).to_vec();
        *node = Some(Node { epoch, receipt_key: applicant.receipt_key.clone(), tls_key });
        Grant {
            cluster_id: self.cluster_id,
            node_id: self.node_id,
            node_epoch: epoch,
            certificate_pem: self.issue(&applicant.csr_pem),
            ca_pem: self.ca.pem(),
            root_key: SigningKey::from_seed(&ROOT).verifying_key(),
            verifier_set: self.verifier_set.lock().expect("lock").clone(),
            server_time: Timestamp::now(),
        }
    }

    pub(crate) fn receipt_key(&self) -> VerifyingKey {
        self.node.lock().expect("lock").as_ref().expect("enrolled").receipt_key.clone()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.node.lock().expect("lock").as_ref().expect("enrolled").epoch
    }

    /// Signs a task for the node. `change` may manipulate the payload.
    pub(crate) fn sign(&self, task: &Task, change: impl FnOnce(&mut Payload)) -> (TaskId, envelope::Signed) {
        let now = Timestamp::now();
        let mut payload = Payload {
            cluster_id: self.cluster_id,
            node_id: self.node_id,
            node_epoch: self.epoch(),
            task_id: TaskId::generate(),
            task_type: task.task_type().to_string(),
            params: task.params_json(),
            allocation_id: None,
            lease_epoch: None,
            issued_at: now,
            start_by: now.plus(Duration::from_secs(300)),
            deadline: now.plus(Duration::from_secs(600)),
            correlation_id: CorrelationId::generate(),
        };
        change(&mut payload);
        (payload.task_id, payload.sign(&SigningKey::from_seed(&SIGNER)))
    }

    /// Sends a message if a session is open; returns whether one was.
    pub(crate) fn tell(&self, message: to_node::Message) -> bool {
        let mut session = self.session.lock().expect("lock");
        let Some(session) = session.as_mut() else { return false };
        session.queue.push_back(message);
        session.changed.notify_waiters();
        true
    }

    pub(crate) fn offer(&self, task_id: TaskId, envelope: &[u8]) -> bool {
        self.tell(to_node::Message::Offer(Offer { task_id: task_id.to_string(), envelope: envelope.to_vec() }))
    }

    /// Returns the messages of the node so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().expect("lock").clone()
    }

    /// Waits until `wanted` finds something in the messages of the node.
    pub(crate) async fn wait_for<T>(&self, what: &str, wanted: impl Fn(&[Heard]) -> Option<T>) -> T {
        let mut count = self.heard_count.subscribe();
        let found = async {
            loop {
                count.borrow_and_update();
                if let Some(found) = wanted(&self.heard.lock().expect("lock")) {
                    return found;
                }
                count.changed().await.expect("server lives");
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), found).await {
            Ok(found) => found,
            Err(_) => panic!("never heard: {what}"),
        }
    }

    /// Returns the first receipt for a task, and its transport.
    pub(crate) async fn receipt(&self, task_id: TaskId) -> (Vec<u8>, &'static str) {
        let text = task_id.to_string();
        self.wait_for(&format!("a receipt for {text}"), |heard| {
            heard.iter().find_map(|heard| match &heard.message {
                from_node::Message::Receipt(receipt) if receipt.task_id == text => {
                    Some((receipt.receipt.clone(), heard.transport))
                }
                _ => None,
            })
        })
        .await
    }

    /// Returns the hello with this number, counted from 1.
    pub(crate) async fn hello(&self, number: usize) -> (Hello, &'static str) {
        self.wait_for(&format!("hello {number}"), |heard| {
            let mut hellos = heard.iter().filter_map(|heard| match &heard.message {
                from_node::Message::Hello(hello) => Some((hello.clone(), heard.transport)),
                _ => None,
            });
            hellos.nth(number - 1)
        })
        .await
    }

    fn record(&self, transport: &'static str, message: from_node::Message) {
        let mut heard = self.heard.lock().expect("lock");
        heard.push(Heard { transport, message });
        let count = heard.len();
        drop(heard);
        self.heard_count.send_replace(count);
    }

    /// Handles a message of an open session and returns the answer.
    fn answer(&self, transport: &'static str, message: from_node::Message) -> Option<to_node::Message> {
        let answer = match &message {
            from_node::Message::Receipt(receipt) if self.confirm_receipts.load(Ordering::SeqCst) => {
                Some(to_node::Message::ReceiptAck(ReceiptAck { task_id: receipt.task_id.clone(), rejected_code: String::new() }))
            }
            from_node::Message::Logs(chunk) if self.confirm_logs.load(Ordering::SeqCst) => {
                Some(to_node::Message::LogAck(log_ack(chunk)))
            }
            _ => None,
        };
        self.record(transport, message);
        answer
    }

    fn open_session(&self) -> (Welcome, Arc<Notify>) {
        let id = SessionId::generate().to_string();
        let changed = Arc::new(Notify::new());
        let old = self.session.lock().expect("lock").replace(ServerSession {
            id: id.clone(),
            queue: VecDeque::new(),
            changed: Arc::clone(&changed),
        });
        if let Some(old) = old {
            old.changed.notify_waiters();
        }
        let welcome = Welcome {
            session_id: id.clone(),
            cluster_id: self.cluster_id.to_string(),
            server_time_us: Timestamp::now().0,
            heartbeat_seconds: 1,
            verifier_set: None,
            poll_seconds: 2,
            resume_secret: secret_of(&id).as_bytes().to_vec(),
            ..Welcome::default()
        };
        (welcome, changed)
    }

    /// Returns the next message for a session, or `Err` if it was replaced.
    fn next(&self, session_id: &str, control: Option<bool>) -> Result<Option<to_node::Message>, ()> {
        let mut session = self.session.lock().expect("lock");
        let session = session.as_mut().filter(|session| session.id == session_id).ok_or(())?;
        let wanted = |message: &to_node::Message| match control {
            None => true,
            Some(control) => control != matches!(message, to_node::Message::Offer(_)),
        };
        let position = session.queue.iter().position(wanted);
        Ok(position.and_then(|position| session.queue.remove(position)))
    }

    /// Ends the session like a lost connection.
    pub(crate) fn drop_session(&self) {
        if let Some(session) = self.session.lock().expect("lock").take() {
            session.changed.notify_waiters();
        }
    }
}

/// Returns the secret of a session, which is derived from the session's id here.
fn secret_of(session_id: &str) -> ResumeSecret {
    use sha2::Digest as _;
    ResumeSecret::new(sha2::Sha256::digest(session_id).into())
}

/// Checks the proof of a hello, if there is one, against the named session and its connection.
fn check_proof(shared: &Shared, hello: &Hello, peer: HasCertificate) {
    if hello.resume_session.is_empty() {
        return assert!(hello.resume_proof.is_empty());
    }
    let claim = ResumeClaim {
        node_id: shared.node_id,
        node_epoch: hello.node_epoch,
        session_id: &hello.resume_session,
        agent_instance_id: &hello.agent_instance_id,
    };
    assert!(secret_of(&hello.resume_session).is_proof(&peer.1, &claim, &hello.resume_proof));
    assert!(!secret_of(&hello.resume_session).is_proof(&[0; 32], &claim, &hello.resume_proof));
}

fn log_ack(chunk: &LogChunk) -> LogAck {
    let mut last: HashMap<&str, u64> = HashMap::new();
    for line in &chunk.lines {
        last.insert(&line.task_id, line.sequence);
    }
    let positions = last.into_iter().map(|(task_id, sequence)| LogPosition { task_id: task_id.to_owned(), sequence });
    LogAck { positions: positions.collect() }
}

impl Server {
    pub(crate) async fn start(shared: Arc<Shared>) -> Self {
        Self::start_at(shared, "127.0.0.1:0".parse().expect("address")).await
    }

    pub(crate) async fn start_at(shared: Arc<Shared>, address: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind(address).await.expect("bind");
        let address = listener.local_addr().expect("address");
        let stop = CancellationToken::new();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls_config(&shared)));
        let router = router(Arc::clone(&shared));
        let stopped = stop.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => accepted.expect("accept"),
                };
                let (acceptor, router, stopped) = (acceptor.clone(), router.clone(), stopped.clone());
                tokio::spawn(async move {
                    stream.set_nodelay(true).expect("nodelay");
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let tls = stream.get_ref().1;
                    let binding = tls.export_keying_material([0; 32], EXPORTER_LABEL, None).expect("exporter");
                    let peer = HasCertificate(tls.peer_certificates().is_some(), binding);
                    let service = hyper_util::service::TowerToHyperService::new(router.layer(Extension(peer)));
                    let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let connection = builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                    tokio::select! {
                        () = stopped.cancelled() => {}
                        _ = connection => {}
                    }
                });
            }
        });
        Self { shared, address, stop }
    }
}

#[derive(Clone, Copy)]
struct HasCertificate(bool, ChannelBinding);

fn tls_config(shared: &Shared) -> rustls::ServerConfig {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("key");
    let mut params = rcgen::CertificateParams::new(vec![SERVER_NAME.to_owned()]).expect("params");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = params.signed_by(&key, &shared.ca).expect("leaf");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(shared.ca.der().clone()).expect("root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .expect("verifier");
    let key = rustls_pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![leaf.der().clone(), shared.ca.der().clone()], key)
        .expect("certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

type App = State<Arc<Shared>>;

fn router(shared: Arc<Shared>) -> Router {
    let grpc = tonic::service::Routes::new(NodeLinkServer::new(Grpc(Arc::clone(&shared)))).prepare().into_axum_router();
    Router::new()
        .route(route::ENROLL_WITH_TOKEN, post(enroll_with_token))
        .route(route::ENROLL_REQUEST, post(enroll_request))
        .route(route::ENROLL_POLL, get(enroll_poll))
        .route(route::REJOIN_CHALLENGE, post(rejoin_challenge))
        .route(route::REJOIN, post(rejoin))
        .route(route::RENEW, post(renew))
        .route(route::HELLO, post(hello))
        .route(route::TASKS_WAIT, get(tasks_wait))
        .route(route::CONTROL, get(control).post(pong))
        .route(route::HEARTBEAT, post(heartbeat))
        .route(route::METRICS, post(metrics))
        .route(route::TASK_ACK, post(task_ack))
        .route(route::TASK_LOGS, post(task_logs))
        .route(route::TASK_RESULT, post(task_result))
        .route(route::BYE, post(bye))
        .with_state(shared)
        .merge(grpc)
}

fn problem(status: StatusCode, code: &str, detail: &str) -> Response {
    let body =
        serde_json::json!({ "type": "about:blank", "title": code, "status": status.as_u16(), "code": code, "detail": detail });
    (status, Json(body)).into_response()
}

async fn enroll_with_token(State(shared): App, Json(request): Json<EnrollWithToken>) -> Response {
    if !shared.used_tokens.lock().expect("lock").insert(request.token.clone()) {
        return problem(StatusCode::FORBIDDEN, "token_used", "the join token was used before; make a new one");
    }
    Json(shared.grant(&request.applicant)).into_response()
}

async fn enroll_request(State(shared): App, Json(request): Json<EnrollRequest>) -> Json<EnrollPending> {
    *PENDING.lock().expect("lock").entry(shared.cluster_id).or_default() = Some(request.applicant);
    Json(EnrollPending {
        enrollment_id: EnrollmentId::from_bytes(*shared.cluster_id.as_bytes()),
        poll_secret: "poll-secret".to_owned(),
        expires_at: Timestamp::now().plus(Duration::from_secs(600)),
    })
}

/// Pending applicants, per cluster.
static PENDING: std::sync::LazyLock<Mutex<HashMap<ClusterId, Option<Applicant>>>> = std::sync::LazyLock::new(Mutex::default);

async fn enroll_poll(State(shared): App, headers: HeaderMap) -> Response {
    if headers.get(ENROLL_SECRET_HEADER).is_none_or(|secret| secret != "poll-secret") {
        return problem(StatusCode::FORBIDDEN, "enrollment_secret_wrong", "wrong secret");
    }
    if !shared.approve.load(Ordering::SeqCst) {
        return Json(EnrollStatus::Pending).into_response();
    }
    let applicant = PENDING.lock().expect("lock").get(&shared.cluster_id).cloned().flatten().expect("asked before");
    Json(EnrollStatus::Approved { grant: Box::new(shared.grant(&applicant)) }).into_response()
}

async fn rejoin_challenge(State(_): App, Json(_): Json<RejoinChallengeRequest>) -> Json<RejoinChallenge> {
    Json(RejoinChallenge { challenge: "answer me".to_owned() })
}

async fn rejoin(State(shared): App, Json(request): Json<Rejoin>) -> Response {
    let Ok(payload) = dsse::open(&request.proof, 64 * 1024, REJOIN_PAYLOAD_TYPE, &shared.receipt_key()) else {
        return problem(StatusCode::FORBIDDEN, "rejoin_proof_invalid", "not signed with the receipt key");
    };
    let proof: RejoinProof = serde_json::from_slice(&payload).expect("proof");
    let csr = rcgen::CertificateSigningRequestParams::from_pem(&proof.csr_pem).expect("csr");
    let same_key =
        rcgen::PublicKeyData::der_bytes(&csr.public_key) == shared.node.lock().expect("lock").as_ref().expect("node").tls_key;
    if proof.challenge != "answer me" || !same_key || proof.node_epoch != shared.epoch() {
        return problem(StatusCode::FORBIDDEN, "rejoin_proof_invalid", "wrong challenge, key or epoch");
    }
    shared.rejoins.fetch_add(1, Ordering::SeqCst);
    *shared.certificate_life.lock().expect("lock") = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
    Json(Renewed { certificate_pem: shared.issue(&proof.csr_pem) }).into_response()
}

async fn renew(State(shared): App, Extension(peer): Extension<HasCertificate>, Json(request): Json<Renew>) -> Response {
    if !peer.0 {
        return problem(StatusCode::UNAUTHORIZED, "certificate_required", "show a certificate");
    }
    *shared.certificate_life.lock().expect("lock") = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
    Json(Renewed { certificate_pem: shared.issue(&request.csr_pem) }).into_response()
}

async fn hello(State(shared): App, Extension(peer): Extension<HasCertificate>, Json(hello): Json<Hello>) -> Response {
    if !peer.0 {
        return problem(StatusCode::UNAUTHORIZED, "certificate_required", "show a certificate");
    }
    check_proof(&shared, &hello, peer);
    let (welcome, _) = shared.open_session();
    shared.record("poll", from_node::Message::Hello(hello));
    Json(welcome).into_response()
}

async fn wait(shared: &Shared, headers: &HeaderMap, control: bool) -> Response {
    let session = headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let key = headers.get(REQUEST_KEY_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(secret_of(session).is_request_key(key), "a request proves that it is of the session's own process");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(2);
    loop {
        let changed = {
            let current = shared.session.lock().expect("lock");
            current.as_ref().filter(|current| current.id == session).map(|current| Arc::clone(&current.changed))
        };
        let Some(changed) = changed else {
            return problem(StatusCode::GONE, "session_fenced", "say hello again");
        };
        let notified = changed.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        match shared.next(session, Some(control)) {
            Ok(Some(message)) => return Json(Messages { messages: vec![message.into()] }).into_response(),
            Ok(None) => {}
            Err(()) => continue,
        }
        if tokio::time::timeout_at(deadline, notified).await.is_err() {
            return Json(Messages::default()).into_response();
        }
    }
}

async fn tasks_wait(State(shared): App, headers: HeaderMap) -> Response {
    wait(&shared, &headers, false).await
}

async fn control(State(shared): App, headers: HeaderMap) -> Response {
    wait(&shared, &headers, true).await
}

async fn pong(State(shared): App, Json(pong): Json<gpuaas_contract::link::Pong>) {
    shared.answer("poll", from_node::Message::Pong(pong));
}

async fn heartbeat(State(shared): App, Json(heartbeat): Json<gpuaas_contract::link::Heartbeat>) {
    shared.answer("poll", from_node::Message::Heartbeat(heartbeat));
}

async fn metrics(State(shared): App, Json(metrics): Json<gpuaas_contract::link::Metrics>) {
    shared.answer("poll", from_node::Message::Metrics(metrics));
}

async fn task_ack(State(shared): App, Json(message): Json<FromNode>) {
    shared.answer("poll", message.message.expect("a message"));
}

async fn task_logs(State(shared): App, Path((_, task)): Path<(String, String)>, Json(chunk): Json<LogChunk>) -> Json<LogAck> {
    assert!(chunk.lines.iter().all(|line| line.task_id == task), "a chunk speaks of its task only");
    let answer = shared.answer("poll", from_node::Message::Logs(chunk));
    match answer {
        Some(to_node::Message::LogAck(ack)) => Json(ack),
        _ => Json(LogAck::default()),
    }
}

async fn task_result(State(shared): App, Path((_, task)): Path<(String, String)>, body: bytes::Bytes) -> Response {
    let receipt = SignedReceipt { task_id: task, receipt: body.to_vec() };
    match shared.answer("poll", from_node::Message::Receipt(receipt)) {
        Some(to_node::Message::ReceiptAck(ack)) => Json(ack).into_response(),
        _ => problem(StatusCode::SERVICE_UNAVAILABLE, "store_busy", "not stored"),
    }
}

async fn bye(State(shared): App, headers: HeaderMap) {
    let session = headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut current = shared.session.lock().expect("lock");
    if current.as_ref().is_some_and(|current| current.id == session) {
        *current = None;
    }
}

struct Grpc(Arc<Shared>);

#[tonic::async_trait]
impl NodeLink for Grpc {
    type ConnectStream = Pin<Box<dyn futures::Stream<Item = Result<ToNode, tonic::Status>> + Send>>;

    async fn connect(
        &self,
        request: tonic::Request<tonic::Streaming<FromNode>>,
    ) -> Result<tonic::Response<Self::ConnectStream>, tonic::Status> {
        let shared = Arc::clone(&self.0);
        if !request.extensions().get::<HasCertificate>().is_some_and(|peer| peer.0) {
            return Err(tonic::Status::unauthenticated("certificate_required: show a certificate"));
        }
        let peer = request.extensions().get::<HasCertificate>().copied().expect("a peer");
        let mut incoming = request.into_inner();
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let Some(Ok(FromNode { message: Some(from_node::Message::Hello(hello)) })) = incoming.next().await else { return };
            shared.streams.fetch_add(1, Ordering::SeqCst);
            if *shared.stream_mode.lock().expect("lock") == StreamMode::NeverWelcomes {
                while incoming.next().await.is_some() {}
                return;
            }
            check_proof(&shared, &hello, peer);
            let (welcome, changed) = shared.open_session();
            let session = welcome.session_id.clone();
            if sender.send(Ok(ToNode::from(to_node::Message::Welcome(welcome)))).await.is_err() {
                return;
            }
            shared.record("stream", from_node::Message::Hello(hello));
            loop {
                let notified = changed.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                loop {
                    match shared.next(&session, None) {
                        Ok(Some(message)) => {
                            if sender.send(Ok(message.into())).await.is_err() {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(()) => return,
                    }
                }
                tokio::select! {
                    () = notified => {}
                    message = incoming.next() => {
                        let Some(Ok(FromNode { message: Some(message) })) = message else { return };
                        if let Some(answer) = shared.answer("stream", message)
                            && sender.send(Ok(answer.into())).await.is_err()
                        {
                            return;
                        }
                    }
                }
            }
        });
        Ok(tonic::Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }
}
