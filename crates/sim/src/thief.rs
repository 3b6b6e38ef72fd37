//! A thief among the agents: it has a copy of a node's files, knows the instance id of its agent, and tries to receive the tasks that are
//! offered to the node.
//!
//! It cannot read the memory of the agent's process, so it does not know the secret of the node's link.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::link::node_link_client::NodeLinkClient;
use gpuaas_contract::link::{self, Ack, FromNode, Hello, Pong, SignedReceipt, TaskPhase, from_node, to_node};
use gpuaas_contract::time::Timestamp;
use gpuaas_runtime::net::TcpStream;
use gpuaas_runtime::simulation::Host;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Time limit for connecting, and again for the first answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a thief that does not stay keeps its link.
const STAYS_FOR: Duration = Duration::from_secs(6);
/// Maximum delay before the next attempt, in milliseconds.
const TRIES_AGAIN: u64 = 4_000;

/// The copied data.
#[derive(Clone)]
pub(crate) struct Loot {
    tls: Arc<rustls::ClientConfig>,
    node_epoch: u64,
    /// The agent's instance id, as shown in events and lists.
    instance: String,
}

/// What the control plane gave the thief.
#[derive(Clone, Debug, Default)]
pub(crate) struct Got {
    /// Number of links that were accepted.
    pub(crate) welcomes: usize,
    /// Number of tasks that were offered.
    pub(crate) offers: usize,
}

/// Waits for the copied files, then connects.
#[derive(Default)]
pub(crate) struct Thief {
    loot: Mutex<Option<(Loot, bool)>>,
    got: Mutex<Got>,
    ready: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loot {
    /// Copies the files of an agent. Returns `None` if it is not enrolled yet.
    pub(crate) fn copy(state_dir: &Path, instance: String) -> Option<Self> {
        let file = |name: &str| std::fs::read_to_string(state_dir.join("identity").join(name)).ok();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(file("ca.crt")?.as_bytes()).ok()?).ok()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_details(provider, gpuaas_runtime::certificate_clock())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .ok()?
            .with_root_certificates(roots)
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(file("tls.crt")?.as_bytes()).ok()?],
                PrivateKeyDer::from_pem_slice(file("tls.key")?.as_bytes()).ok()?,
            )
            .ok()?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        let document: serde_json::Value = serde_json::from_str(&file("identity.json")?).ok()?;
        Some(Self { tls: Arc::new(tls), node_epoch: document["node_epoch"].as_u64()?, instance })
    }
}

impl Thief {
    /// Gives the thief the copied files. If `stays` is set, it keeps connecting until the end; otherwise it leaves after its first link.
    pub(crate) fn take(&self, loot: Loot, stays: bool) {
        *lock(&self.loot) = Some((loot, stays));
        self.ready.notify_one();
    }

    /// Returns what the thief has received so far.
    pub(crate) fn got(&self) -> Got {
        lock(&self.got).clone()
    }

    pub(crate) async fn run(self: Arc<Self>, host: Arc<Host>, server: String) -> turmoil::Result {
        let _settled = host.settle();
        let (loot, stays) = loop {
            if let Some(loot) = lock(&self.loot).clone() {
                break loot;
            }
            self.ready.notified().await;
        };
        loop {
            let before = self.got().welcomes;
            let ended = self.link(&loot, &server, stays).await;
            tracing::debug!(?ended, "the thief's link ended");
            if !stays && self.got().welcomes > before {
                return std::future::pending().await;
            }
            let mut random = [0; 8];
            gpuaas_runtime::random(&mut random);
            tokio::time::sleep(Duration::from_millis(500 + u64::from_le_bytes(random) % TRIES_AGAIN)).await;
        }
    }

    async fn link(&self, loot: &Loot, server: &str, stays: bool) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let dial = async {
            let tcp = TcpStream::connect(server).await.map_err(|error| text(&error))?;
            let name = ServerName::try_from(link::SERVER_NAME).map_err(|error| text(&error))?;
            let connector = tokio_rustls::TlsConnector::from(Arc::clone(&loot.tls));
            connector.connect(name, tcp).await.map_err(|error| text(&error))
        };
        let stream = tokio::time::timeout(PATIENCE, dial).await.map_err(|error| text(&error))??;
        let once = Mutex::new(Some(TokioIo::new(stream)));
        let connector = tower::service_fn(move |_: http::Uri| {
            let stream = lock(&once).take();
            std::future::ready(stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)))
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://gpuaas-link.internal");
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| text(&error))?;
        let (say, words) = mpsc::channel::<FromNode>(64);
        let hello = Hello {
            protocol: link::PROTOCOL,
            agent_version: "thief".to_owned(),
            agent_instance_id: loot.instance.clone(),
            boot_id: "thief".to_owned(),
            node_epoch: loot.node_epoch,
            capacity: 8,
            ..Hello::default()
        };
        say.send(from_node::Message::Hello(hello).into()).await.map_err(|error| text(&error))?;
        let mut client = NodeLinkClient::new(channel);
        let opening = tokio::time::timeout(PATIENCE, client.connect(ReceiverStream::new(words))).await;
        let mut answers = opening.map_err(|error| text(&error))?.map_err(|status| text(&status))?.into_inner();
        let hear = async {
            while let Some(message) = answers.message().await.map_err(|status| text(&status))? {
                let words = match message.message {
                    Some(to_node::Message::Welcome(_)) => {
                        lock(&self.got).welcomes += 1;
                        Vec::new()
                    }
                    Some(to_node::Message::Ping(ping)) => vec![from_node::Message::Pong(Pong { nonce: ping.nonce })],
                    Some(to_node::Message::Offer(offer)) => {
                        lock(&self.got).offers += 1;
                        let (task_id, at_us) = (offer.task_id, Timestamp::now().0);
                        let ack = Ack { task_id: task_id.clone(), phase: TaskPhase::Started.into(), at_us };
                        // It has no valid receipt key, so its receipts must be rejected.
                        let receipt = SignedReceipt { task_id, receipt: b"{\"payloadType\":\"application/json\"}".to_vec() };
                        vec![from_node::Message::Ack(ack), from_node::Message::Receipt(receipt)]
                    }
                    Some(to_node::Message::Goodbye(goodbye)) => return Err(goodbye.code),
                    Some(
                        to_node::Message::Cancel(_)
                        | to_node::Message::VerifierSet(_)
                        | to_node::Message::ReceiptAck(_)
                        | to_node::Message::LogAck(_),
                    )
                    | None => Vec::new(),
                };
                for word in words {
                    say.send(word.into()).await.map_err(|error| text(&error))?;
                }
            }
            Ok(())
        };
        if stays { hear.await } else { tokio::time::timeout(STAYS_FOR, hear).await.map_err(|error| text(&error))? }
    }
}
