//! A malicious control plane: it has the real keys and uses the real link, but delivers envelopes as often and in any order that
//! it likes. Only for agents under test.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::Stream;
use gpuaas_contract::envelope::Payload;
use gpuaas_contract::id::{AllocationId, ClusterId, CorrelationId, NodeId, SessionId, TaskId};
use gpuaas_contract::link::node_link_server::{NodeLink, NodeLinkServer};
use gpuaas_contract::link::{
    EnrollWithToken, FromNode, Grant, Hello, LogAck, LogChunk, LogPosition, Messages, Offer, ReceiptAck, ToNode, Welcome,
    from_node, route, to_node,
};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::listener;
use gpuaas_control::pki::{BuiltInCa, KeyRing};
use gpuaas_testkit::TempDir;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Number of offers that may be in flight to one agent.
const WINDOW: usize = 64;
/// After this long without an answer, offers in flight are no longer waited for.
const UNANSWERED: Duration = Duration::from_millis(200);

/// A running test double.
pub(crate) struct LinkDouble {
    pub(crate) address: SocketAddr,
    pub(crate) pin: String,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
    _runtime: tokio::runtime::Runtime,
    _dir: TempDir,
}

struct Shared {
    cluster_id: ClusterId,
    ca: BuiltInCa,
    keys: KeyRing,
    nodes: Mutex<HashMap<NodeId, Node>>,
    changed: Notify,
    /// Receipts are recorded but never confirmed.
    deaf: AtomicBool,
}

#[derive(Default)]
struct Node {
    pending: VecDeque<(TaskId, Vec<u8>)>,
    /// Every receipt that arrived, per task, with the number of times that it did.
    receipts: HashMap<TaskId, HashMap<Vec<u8>, usize>>,
    rejections: Vec<String>,
    under_way: usize,
    deliveries: usize,
    sessions: usize,
}

impl LinkDouble {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new();
        let now = Timestamp::now();
        let cluster_id = ClusterId::generate();
        let ca = BuiltInCa::open(dir.path(), cluster_id, now).unwrap();
        let keys = KeyRing::open(dir.path(), cluster_id, now).unwrap();
        let pin = ca.pin();
        let tls = tls(&ca);
        let shared = Arc::new(Shared {
            cluster_id,
            ca,
            keys,
            nodes: Mutex::default(),
            changed: Notify::new(),
            deaf: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener =
            runtime.block_on(gpuaas_runtime::net::TcpListener::bind(std::net::SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let options = listener::ListenerOptions::new(listener::ListenerKind::Link, listener::ListenerLimits::link(1000));
        runtime.spawn(listener::serve(listener, Some(tls), router(&shared), options, shutdown.clone()));
        Self { address, pin, shared, shutdown, _runtime: runtime, _dir: dir }
    }

    /// Returns a correctly signed ping for this node.
    pub(crate) fn sign_ping(&self, node_id: NodeId) -> (TaskId, Vec<u8>) {
        self.sign_ping_with(node_id, &serde_json::json!({ "message": "once" }))
    }

    /// The same with these parameters.
    pub(crate) fn sign_ping_with(&self, node_id: NodeId, params: &serde_json::Value) -> (TaskId, Vec<u8>) {
        self.sign(node_id, "diag.ping", params, None)
    }

    /// Signs any task correctly. With an allocation, the task is for its first lease.
    pub(crate) fn sign(
        &self,
        node_id: NodeId,
        task_type: &str,
        params: &serde_json::Value,
        allocation_id: Option<AllocationId>,
    ) -> (TaskId, Vec<u8>) {
        let now = Timestamp::now();
        let task_id = TaskId::generate();
        let payload = Payload {
            cluster_id: self.shared.cluster_id,
            node_id,
            node_epoch: 1,
            task_id,
            task_type: task_type.to_owned(),
            params: serde_json::value::to_raw_value(params).unwrap(),
            allocation_id,
            lease_epoch: allocation_id.map(|_| 1),
            issued_at: now,
            start_by: now.plus(Duration::from_secs(14 * 60)),
            deadline: now.plus(Duration::from_secs(20 * 60)),
            correlation_id: CorrelationId::generate(),
        };
        (task_id, self.shared.keys.sign(&payload).0.envelope)
    }

    /// Delivers these envelopes in this order.
    pub(crate) fn deliver(&self, node: NodeId, offers: impl IntoIterator<Item = (TaskId, Vec<u8>)>) {
        self.shared.node(node, |node| node.pending.extend(offers));
        self.shared.changed.notify_waiters();
    }

    /// Returns how many envelopes were sent, and how many are waiting.
    pub(crate) fn deliveries(&self, node: NodeId) -> (usize, usize) {
        self.shared.node(node, |node| (node.deliveries, node.pending.len()))
    }

    /// Returns how often the node has connected so far.
    pub(crate) fn sessions(&self, node: NodeId) -> usize {
        self.shared.node(node, |node| node.sessions)
    }

    /// Returns the number of distinct receipts per task.
    pub(crate) fn receipts(&self, node: NodeId) -> HashMap<TaskId, usize> {
        self.shared.node(node, |node| node.receipts.iter().map(|(id, receipts)| (*id, receipts.len())).collect())
    }

    /// Returns every distinct receipt, per task.
    pub(crate) fn receipt_bytes(&self, node: NodeId) -> HashMap<TaskId, Vec<Vec<u8>>> {
        let bytes = |receipts: &HashMap<Vec<u8>, usize>| receipts.keys().cloned().collect();
        self.shared.node(node, |node| node.receipts.iter().map(|(id, receipts)| (*id, bytes(receipts))).collect())
    }

    /// Forgets what the node has sent, and what is in flight to it.
    pub(crate) fn forget(&self, node: NodeId) {
        self.shared.node(node, |node| {
            node.receipts.clear();
            node.pending.clear();
            node.under_way = 0;
        });
    }

    /// Stops confirming receipts, or starts again. They are recorded in both cases.
    pub(crate) fn set_deaf(&self, deaf: bool) {
        self.shared.deaf.store(deaf, Ordering::SeqCst);
    }

    pub(crate) fn rejections(&self, node: NodeId) -> Vec<String> {
        self.shared.node(node, |node| node.rejections.clone())
    }
}

impl Drop for LinkDouble {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn tls(ca: &BuiltInCa) -> tokio_rustls::TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let (chain, key) = ca.issue_server(&[], Timestamp::now()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config).into()
}

fn router(shared: &Arc<Shared>) -> Router {
    let polls = Router::new()
        .route(route::ENROLL_WITH_TOKEN, post(enroll))
        .route(route::HELLO, post(hello))
        .route(route::TASKS_WAIT, get(tasks_wait))
        .route(route::CONTROL, get(control_wait).post(async || ()))
        .route(route::HEARTBEAT, post(async || ()))
        .route(route::METRICS, post(async || ()))
        .route(route::TASK_ACK, post(ack))
        .route(route::TASK_LOGS, post(logs))
        .route(route::TASK_RESULT, post(result))
        .route(route::BYE, post(async || ()))
        .with_state(Arc::clone(shared));
    let stream = NodeLinkServer::new(Service(Arc::clone(shared)));
    tonic::service::Routes::new(stream).prepare().into_axum_router().merge(polls)
}

impl Shared {
    fn node<T>(&self, id: NodeId, work: impl FnOnce(&mut Node) -> T) -> T {
        work(self.nodes.lock().unwrap().entry(id).or_default())
    }

    /// Opens a new link session. What was in flight on the previous one may be lost.
    fn open(&self, id: NodeId) -> Welcome {
        self.node(id, |node| {
            node.sessions += 1;
            node.under_way = 0;
        });
        Welcome {
            session_id: SessionId::generate().to_string(),
            cluster_id: self.cluster_id.to_string(),
            server_time_us: Timestamp::now().0,
            heartbeat_seconds: 10,
            verifier_set: None,
            poll_seconds: 5,
            resume_secret: vec![0; 32],
            ..Welcome::default()
        }
    }

    /// Returns the next offers for this link session; none for an earlier one, whose agent is dead.
    async fn next(&self, id: NodeId, session: usize) -> Vec<ToNode> {
        loop {
            let changed = self.changed.notified();
            let offers = self.node(id, |node| {
                if node.sessions != session {
                    return Vec::new();
                }
                let room = WINDOW.saturating_sub(node.under_way).min(node.pending.len());
                node.under_way += room;
                node.deliveries += room;
                node.pending.drain(..room).collect::<Vec<_>>()
            });
            if !offers.is_empty() {
                let message =
                    |(id, envelope): (TaskId, _)| to_node::Message::Offer(Offer { task_id: id.to_string(), envelope }).into();
                return offers.into_iter().map(message).collect();
            }
            // A duplicate of a task whose receipt was confirmed and forgotten gets no answer, and must not block the others.
            if tokio::time::timeout(UNANSWERED, changed).await.is_err() {
                self.node(id, |node| node.under_way = 0);
            }
        }
    }

    fn receipt(&self, id: NodeId, task: &str, receipt: Vec<u8>) -> ReceiptAck {
        self.node(id, |node| {
            *node.receipts.entry(task.parse().unwrap()).or_default().entry(receipt).or_default() += 1;
            node.under_way = node.under_way.saturating_sub(1);
        });
        self.changed.notify_waiters();
        ReceiptAck { task_id: task.to_owned(), rejected_code: String::new() }
    }

    fn rejected(&self, id: NodeId, code: &str) {
        self.node(id, |node| node.rejections.push(code.to_owned()));
    }
}

fn log_ack(chunk: &LogChunk) -> LogAck {
    let mut positions: HashMap<&str, u64> = HashMap::new();
    for line in &chunk.lines {
        let position = positions.entry(&line.task_id).or_default();
        *position = line.sequence.max(*position);
    }
    LogAck { positions: positions.into_iter().map(|(id, sequence)| LogPosition { task_id: id.to_owned(), sequence }).collect() }
}

async fn enroll(State(shared): State<Arc<Shared>>, Json(request): Json<EnrollWithToken>) -> Json<Grant> {
    let node_id = NodeId::generate();
    let issued = shared.ca.issue_node(&request.applicant.csr_pem, node_id, 1, Timestamp::now()).unwrap();
    Json(Grant {
        cluster_id: shared.cluster_id,
        node_id,
        node_epoch: 1,
        certificate_pem: issued.pem,
        ca_pem: shared.ca.pem().to_owned(),
        root_key: shared.keys.root_key(),
        verifier_set: shared.keys.set_document().1,
        server_time: Timestamp::now(),
    })
}

async fn hello(State(shared): State<Arc<Shared>>, Path(node): Path<NodeId>, Json(_): Json<Hello>) -> Json<Welcome> {
    Json(shared.open(node))
}

async fn tasks_wait(State(shared): State<Arc<Shared>>, Path(node): Path<NodeId>) -> Json<Messages> {
    let session = shared.node(node, |node| node.sessions);
    let messages = tokio::time::timeout(Duration::from_secs(5), shared.next(node, session)).await.unwrap_or_default();
    Json(Messages { messages })
}

async fn control_wait() -> Json<Messages> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    Json(Messages::default())
}

async fn ack(State(shared): State<Arc<Shared>>, Path((node, _)): Path<(NodeId, String)>, Json(message): Json<FromNode>) {
    if let Some(from_node::Message::Rejection(rejection)) = message.message {
        shared.rejected(node, &rejection.code);
    }
}

async fn logs(Json(chunk): Json<LogChunk>) -> Json<LogAck> {
    Json(log_ack(&chunk))
}

async fn result(
    State(shared): State<Arc<Shared>>,
    Path((node, task)): Path<(NodeId, String)>,
    body: axum::body::Bytes,
) -> Json<ReceiptAck> {
    Json(shared.receipt(node, &task, body.to_vec()))
}

struct Service(Arc<Shared>);

type Answers = Pin<Box<dyn Stream<Item = Result<ToNode, Status>> + Send>>;

#[tonic::async_trait]
impl NodeLink for Service {
    type ConnectStream = Answers;

    async fn connect(&self, request: Request<Streaming<FromNode>>) -> Result<Response<Answers>, Status> {
        let shared = Arc::clone(&self.0);
        let certificate = request.extensions().get::<listener::ClientCertificate>().and_then(|c| c.0.clone());
        let certificate = certificate.ok_or_else(|| Status::unauthenticated("certificate_required"))?;
        let id = gpuaas_control::pki::peer_of(&certificate, shared.cluster_id)
            .map_err(|e| Status::unauthenticated(e.to_string()))?
            .node_id;
        let mut incoming = request.into_inner();
        incoming.message().await?;
        let welcome = shared.open(id);
        let session = shared.node(id, |node| node.sessions);
        let (answer, answers) = tokio::sync::mpsc::channel::<Result<ToNode, Status>>(256);
        let _ = answer.send(Ok(to_node::Message::Welcome(welcome).into())).await;
        let (reader, hears) = (Arc::clone(&shared), answer.clone());
        let gone = CancellationToken::new();
        let (stop, stopped) = (gone.clone(), gone);
        tokio::spawn(async move {
            let _stop = stop.drop_guard();
            while let Ok(Some(message)) = incoming.message().await {
                let reply = match message.message {
                    Some(from_node::Message::Receipt(signed)) => {
                        let ack = reader.receipt(id, &signed.task_id, signed.receipt);
                        (!reader.deaf.load(Ordering::SeqCst)).then_some(to_node::Message::ReceiptAck(ack))
                    }
                    Some(from_node::Message::Logs(chunk)) => Some(to_node::Message::LogAck(log_ack(&chunk))),
                    Some(from_node::Message::Rejection(rejection)) => {
                        reader.rejected(id, &rejection.code);
                        None
                    }
                    _ => None,
                };
                if let Some(reply) = reply
                    && hears.send(Ok(reply.into())).await.is_err()
                {
                    return;
                }
            }
        });
        tokio::spawn(async move {
            loop {
                let messages =
                    tokio::select! { messages = shared.next(id, session) => messages, () = stopped.cancelled() => return };
                for message in messages {
                    if answer.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(answers))))
    }
}
