//! A real server process with simulated nodes: real keys, real certificates, the real protocol.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use futures::{StreamExt as _, TryStreamExt as _};
use gpuaas_api::{Client, ClientOptions};
use gpuaas_contract::id::AgentInstanceId;
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::node_link_client::NodeLinkClient;
use gpuaas_contract::link::{self, Applicant, EnrollWithToken, FromNode, Grant, Hello, Offer, ToNode, from_node, to_node};
use gpuaas_contract::resume::{ChannelBinding, EXPORTER_LABEL, ResumeClaim, ResumeSecret};
use gpuaas_contract::telemetry::HostFacts;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tonic::Streaming;

use crate::child::{self, Server};
use crate::links::{Freezable, Freezer};
use crate::report::progress;
use crate::worker::{Answer, Worker};
use crate::{Result, Setup};

/// Number of hosts that enroll concurrently.
const ENROLL_TOGETHER: usize = 16;

/// A server process with its folder.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) client: Client,
    api_port: u16,
    pub(crate) link: SocketAddr,
    /// The data directory: keys, token and, on SQLite, the database.
    pub(crate) data: PathBuf,
    /// The folder for agents.
    pub(crate) folder: PathBuf,
}

impl Cluster {
    /// Starts `gpuaas server` as a user would, on this store or, if `None`, on SQLite.
    pub(crate) async fn start(setup: &Setup, name: &str, store: Option<&str>) -> Result<Self> {
        let ports = (child::free_port()?, child::free_port()?);
        Self::start_on(setup, name, store, ports).await
    }

    /// Restarts the server with the same nodes, so that its memory use does not include leftovers of their enrollment.
    pub(crate) async fn restart(self, setup: &Setup, name: &str, store: Option<&str>) -> Result<Self> {
        let ports = (self.api_port, self.link.port());
        self.server.stop().await?;
        Self::start_on(setup, name, store, ports).await
    }

    async fn start_on(setup: &Setup, name: &str, store: Option<&str>, (api_port, link_port): (u16, u16)) -> Result<Self> {
        let folder = setup.disk.join(name);
        std::fs::create_dir_all(&folder)?;
        let data = folder.join("server");
        let mut command = child::command(setup.programs.join("gpuaas"), &folder);
        // The budget of destructive commands protects against mistakes of people; a benchmark needs no limit.
        command.arg("server").arg("--data-dir").arg(&data).args(["--destructive-budget", "4000000000/h"]);
        command.args(["--api-listen", &format!("127.0.0.1:{api_port}"), "--link-listen", &format!("127.0.0.1:{link_port}")]);
        if let Some(store) = store {
            command.env("GPUAAS_STORE", store);
        }
        let server = Server::start(&format!("server {name}"), command, &setup.folder, "link ready").await?;
        let mut options = ClientOptions::new(format!("http://127.0.0.1:{api_port}"));
        options.token = Some(std::fs::read_to_string(data.join("admin-token"))?);
        let client = Client::new(options)?;
        Ok(Self { server, client, api_port, link: SocketAddr::from(([127, 0, 0, 1], link_port)), data, folder })
    }

    /// Returns the URL of the REST API.
    pub(crate) fn api_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.api_port)
    }

    pub(crate) fn ca_pem(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.data.join("keys/ca.crt"))?)
    }

    /// Enrolls this many hosts with a join token.
    pub(crate) async fn enroll(&self, hosts: usize) -> Result<Vec<Host>> {
        if hosts > 100 {
            progress(format_args!("enrolling {hosts} hosts"));
        }
        let ca_pem = Arc::new(self.ca_pem()?);
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(client_tls(&ca_pem, None)?)
            .resolve(link::SERVER_NAME, self.link)
            .build()?;
        let url = format!("https://{}:{}{}", link::SERVER_NAME, self.link.port(), link::route::ENROLL_WITH_TOKEN);
        let enrolling = (0..hosts).map(|number| {
            let (http, url, ca_pem) = (http.clone(), url.clone(), Arc::clone(&ca_pem));
            async move {
                let token = self.client.join_token_create(&Default::default(), None).await?.token;
                let token = token.split('.').next().unwrap_or_default().to_owned();
                let tls_key = rcgen::KeyPair::generate()?;
                let mut seed = [3; 32];
                seed[..8].copy_from_slice(&u64::try_from(number)?.to_le_bytes());
                let key = SigningKey::from_seed(&seed);
                let applicant = Applicant {
                    fingerprint: format!("bench-machine-{number:08}"),
                    csr_pem: rcgen::CertificateParams::default().serialize_request(&tls_key)?.pem()?,
                    receipt_key: key.verifying_key(),
                    facts: HostFacts { hostname: format!("bench-{number}"), ..HostFacts::default() },
                };
                let answer = http.post(url).json(&EnrollWithToken { token, applicant }).send().await?;
                if !answer.status().is_success() {
                    return Err(format!("enrollment refused: {}", answer.text().await?).into());
                }
                let grant: Grant = answer.json().await?;
                let tls_key = tls_key.serialize_der();
                let tls = client_tls(&ca_pem, Some((&grant.certificate_pem, tls_key.clone())))?;
                let instance = AgentInstanceId::generate();
                let worker = Mutex::new(Worker::new(&grant, key, instance)?);
                Result::<Host>::Ok(Host { grant, instance, tls: Arc::new(tls), tls_key, worker, held: Mutex::default() })
            }
        });
        futures::stream::iter(enrolling).buffer_unordered(ENROLL_TOGETHER).try_collect().await
    }
}

/// Returns the TLS configuration of an agent: TLS 1.3, only our CA and ALPN `h2`, with a client certificate if there is one.
fn client_tls(ca_pem: &str, identity: Option<(&str, Vec<u8>)>) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
    let mut config = builder.with_client_auth_cert(vec![certificate], PrivateKeyDer::try_from(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Every connection is a full handshake, as after a restart of the server.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Like [`client_tls`], from PEM texts that [`write_pem`] wrote.
pub(crate) fn client_tls_from_pem(ca: &str, certificate: &str, key: &str) -> Result<rustls::ClientConfig> {
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    client_tls(ca, Some((certificate, key.secret_der().to_vec())))
}

/// An enrolled host.
pub(crate) struct Host {
    pub(crate) grant: Grant,
    instance: AgentInstanceId,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    /// The private TLS key, in PKCS #8.
    pub(crate) tls_key: Vec<u8>,
    worker: Mutex<Worker>,
    /// The id and secret of the last link session.
    held: Mutex<Option<(String, ResumeSecret)>>,
}

/// An open stream.
pub(crate) struct Link {
    pub(crate) say: mpsc::Sender<FromNode>,
    pub(crate) answers: Streaming<ToNode>,
    pub(crate) heartbeat_seconds: u32,
    pub(crate) freezer: Freezer,
}

impl Host {
    /// Answers an offer as if the task had run.
    pub(crate) fn answer(&self, offer: &Offer) -> Result<Answer> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).answer(&self.grant, offer)
    }

    /// Opens a stream to the server at this address, and waits for the welcome.
    pub(crate) async fn connect(&self, address: SocketAddr) -> Result<Link> {
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let freezer = Freezer::default();
        let of_stream = freezer.clone();
        let binding = Arc::new(Mutex::new(None));
        let exported = Arc::clone(&binding);
        let dial = tower::service_fn(move |_: http::Uri| {
            let (connector, freezer, exported) = (connector.clone(), of_stream.clone(), Arc::clone(&exported));
            async move {
                let tcp = tokio::net::TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                let name = ServerName::try_from(link::SERVER_NAME).map_err(std::io::Error::other)?;
                let stream = connector.connect(name, Freezable::new(tcp, freezer)).await?;
                *exported.lock().unwrap_or_else(PoisonError::into_inner) =
                    stream.get_ref().1.export_keying_material([0; 32], EXPORTER_LABEL, None).ok();
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://gpuaas-link.internal");
        let channel = endpoint.connect_with_connector(dial).await?;
        let (say, words) = mpsc::channel(64);
        let binding = *binding.lock().unwrap_or_else(PoisonError::into_inner);
        say.send(from_node::Message::Hello(self.proved(binding)).into()).await?;
        let words = tokio_stream::wrappers::ReceiverStream::new(words);
        let mut answers = NodeLinkClient::new(channel).connect(words).await?.into_inner();
        match answers.message().await?.and_then(|answer| answer.message) {
            Some(to_node::Message::Welcome(welcome)) => {
                let held = ResumeSecret::from_slice(&welcome.resume_secret).map(|secret| (welcome.session_id, secret));
                *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
                Ok(Link { say, answers, heartbeat_seconds: welcome.heartbeat_seconds.max(1), freezer })
            }
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    /// Returns a hello that proves, as an agent does, that this process held the last link.
    fn proved(&self, binding: Option<ChannelBinding>) -> Hello {
        let mut hello = self.hello();
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some((session_id, secret)), Some(binding)) = (held, binding) {
            let claim = ResumeClaim {
                node_id: self.grant.node_id,
                node_epoch: hello.node_epoch,
                session_id: &session_id,
                agent_instance_id: &hello.agent_instance_id,
            };
            hello.resume_proof = secret.prove(&binding, &claim);
            hello.resume_session = session_id;
        }
        hello
    }

    pub(crate) fn hello(&self) -> Hello {
        Hello {
            protocol: link::PROTOCOL,
            agent_version: "bench".to_owned(),
            agent_instance_id: self.instance.to_string(),
            boot_id: "bench".to_owned(),
            node_epoch: self.grant.node_epoch,
            verifier_set_version: 1,
            tasks: Vec::new(),
            facts_json: String::new(),
            capacity: 4,
            notices: Vec::new(),
            journal_fence_us: 0,
            resume_session: String::new(),
            resume_proof: Vec::new(),
            oldest_protocol: 0,
        }
    }
}

/// Returns the proportional set size of a process, in bytes.
pub(crate) fn proportional_memory(process: u32) -> Result<f64> {
    memory_field(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// Returns the resident memory of a process, in bytes.
pub(crate) fn resident_memory(process: u32) -> Result<f64> {
    memory_field(&format!("/proc/{process}/status"), "VmRSS:")
}

fn memory_field(file: &str, name: &str) -> Result<f64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("{file} has no {name}"))?;
    Ok(line.split_whitespace().next().ok_or("an empty field")?.parse::<f64>()? * 1024.0)
}

/// Returns the processor time of a process, in seconds.
pub(crate) fn processor_time(process: u32) -> Result<f64> {
    // `schedstat` has nanoseconds per thread, which is much finer than the ticks in `stat`.
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let spent = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += spent.split_whitespace().next().unwrap_or("0").parse::<f64>()?;
    }
    Ok(nanoseconds / 1e9)
}

/// Writes a certificate chain and its key as PEM files, for peers that need files.
pub(crate) fn write_pem(folder: &Path, name: &str, chain: &[CertificateDer<'static>], key: &[u8]) -> Result<(PathBuf, PathBuf)> {
    let block = |label: &str, bytes: &[u8]| {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    let (certificate, private) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    std::fs::write(&certificate, chain.iter().map(|der| block("CERTIFICATE", der)).collect::<String>())?;
    std::fs::write(&private, block("PRIVATE KEY", key))?;
    Ok((certificate, private))
}
