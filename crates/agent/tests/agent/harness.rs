//! An agent under test: its folders, its enrollment, its runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_agent::config::{Config, TransportChoice};
use gpuaas_agent::{Door, EnrollOptions, Enrolled, LinkTimings, RunError, RunEvent, RunOptions};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::receipt;
use gpuaas_contract::task::{Task, TaskType, diag_ping};
use gpuaas_host::Profile;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::server::{Server, Shared};

/// Time limit after which a test fails with a reason.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Host {
    _folder: tempfile::TempDir,
    pub(crate) config: Config,
}

impl Host {
    pub(crate) fn new(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let policy_file = folder.path().join("policy.toml");
        gpuaas_host::private_file::write_with_mode(&policy_file, gpuaas_agent::policy::example().as_bytes(), 0o644)
            .expect("policy");
        let config = Config {
            server: vec![server.address.to_string()],
            state_dir: folder.path().join("state"),
            policy_file,
            journal_bytes: 16 << 20,
            simulate: Some(Profile::H100),
            request_timeout: Duration::from_secs(5),
            shutdown_timeout: Duration::from_millis(500),
            log_drain_timeout: Duration::from_secs(2),
            ..Config::default()
        };
        Self { _folder: folder, config }
    }

    pub(crate) async fn enroll(&self, shared: &Shared) -> Enrolled {
        let options = EnrollOptions {
            config: self.config.clone(),
            door: Door::Token(shared.token()),
            replace: false,
            simulated_hostname: Some("sim-a".to_owned()),
        };
        gpuaas_agent::enroll(options, |_| {}, CancellationToken::new()).await.expect("enrolled")
    }

    /// Writes the configuration file, for the agent as a separate program.
    pub(crate) fn write_config(&self) -> PathBuf {
        let path = self.config.state_dir.with_file_name("config.toml");
        let mut text = String::new();
        for key in gpuaas_agent::config::Key::ALL {
            let value = self.config.get(key);
            let is_number = value.parse::<u64>().is_ok();
            text.push_str(&if is_number {
                format!("{} = {value}\n", key.name())
            } else {
                format!("{} = {value:?}\n", key.name())
            });
        }
        gpuaas_host::private_file::write_with_mode(&path, text.as_bytes(), 0o644).expect("config");
        path
    }

    pub(crate) fn start(&self, transport: TransportChoice) -> Agent {
        Agent::start(Config { transport, ..self.config.clone() })
    }

    /// Returns the number of lines of a task in the ping log: the effect, counted from outside.
    pub(crate) fn effects(&self, task_id: TaskId) -> usize {
        let lines = |name: &str| std::fs::read_to_string(self.config.state_dir.join("host").join(name)).unwrap_or_default();
        let start = format!("{task_id} ");
        [lines("ping.log.1"), lines("ping.log")]
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| line.starts_with(&start))
            .count()
    }

    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.config.state_dir.join(name)
    }
}

/// A running agent.
pub(crate) struct Agent {
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), RunError>>,
    transport: watch::Receiver<String>,
}

impl Agent {
    pub(crate) fn start(config: Config) -> Self {
        let shutdown = CancellationToken::new();
        let (sender, transport) = watch::channel(String::new());
        let mut options = RunOptions::new(config);
        options.link = LinkTimings {
            backoff_base: Duration::from_millis(20),
            backoff_cap: Duration::from_millis(200),
            welcome_within: Duration::from_millis(500),
            stream_retry: Duration::from_millis(300),
            refused_wait: Duration::from_millis(300),
            certificate_check: Duration::from_millis(200),
            ..LinkTimings::default()
        };
        options.on_event = Box::new(move |event| {
            if let RunEvent::Link(link) = event {
                sender.send_replace(if link.connected { link.transport } else { String::new() });
            }
        });
        let task = tokio::spawn(gpuaas_agent::run(options, shutdown.clone()));
        Self { shutdown, task, transport }
    }

    /// Waits until the link is up with this transport.
    pub(crate) async fn connected_by(&self, transport: &str) {
        let mut watched = self.transport.clone();
        let reached = watched.wait_for(|now| now == transport);
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("never connected by {transport}")).expect("runs");
    }

    /// Stops it cleanly.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("ends").expect("no panic").expect("no error");
    }

    /// Waits for its end with an error.
    pub(crate) async fn fails(self) -> RunError {
        tokio::time::timeout(PATIENCE, self.task).await.expect("ends").expect("no panic").expect_err("an error")
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_true() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns a server and an enrolled host, with no agent running.
pub(crate) async fn enrolled() -> (Server, Host) {
    let server = Server::start(Shared::new()).await;
    let host = Host::new(&server);
    host.enroll(&server.shared).await;
    (server, host)
}

pub(crate) fn ping(message: &str) -> Task {
    Task::DiagPing(diag_ping::Params { message: message.to_owned(), ..diag_ping::Params::default() })
}

/// Checks a receipt like the control plane and returns its content.
pub(crate) fn believe(shared: &Arc<Shared>, task_id: TaskId, digest: &gpuaas_contract::Digest, bytes: &[u8]) -> receipt::Payload {
    let expectation = receipt::Expectation {
        key: &shared.receipt_key(),
        cluster_id: shared.cluster_id,
        node_id: shared.node_id,
        node_epoch: shared.epoch(),
        task_id,
        task_type: TaskType::DiagPing,
        envelope_digests: std::slice::from_ref(digest),
    };
    receipt::verify(bytes, &expectation).expect("believed").payload().clone()
}
