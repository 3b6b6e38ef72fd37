//! The connection to the Temporal server, and the worker that runs workflows and activities.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use gpuaas_control::workflow::{Driver, Pending, Woken, step_of};
use gpuaas_control::{Control, ControlError};
use gpuaas_domain::allocation::AllocationStep;
use temporalio_client::{
    Client, ClientOptions, ClientTlsOptions, Connection, ConnectionOptions, TlsOptions, WorkflowStartOptions, tonic,
};
use temporalio_common::protos::temporal::api::workflowservice::v1::DescribeNamespaceRequest;
use temporalio_sdk::runtime::RuntimeOptions;
use temporalio_sdk::{Runtime, Worker, WorkerOptions};
use url::Url;

use crate::run::{AllocationRun, Begin};
use crate::steps::Steps;

/// How long to wait before restarting a worker that failed.
const WORKER_AGAIN: Duration = Duration::from_secs(5);
/// Timeout of a workflow task. A workflow whose worker does not answer within it moves to another worker.
const WORKFLOW_TASK: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(10);

/// How to reach a Temporal server, and how to run steps on it.
#[derive(Clone)]
pub struct TemporalConfig {
    /// URL of the Temporal frontend: `http://host:7233`, or `https://…` for TLS.
    pub url: Url,
    /// The Temporal namespace of the runs. It must already exist.
    pub namespace: String,
    /// The task queue, shared by all servers of one cluster.
    pub task_queue: String,
    /// CA certificates (PEM) to trust for TLS instead of the system's.
    pub authorities: Option<Vec<u8>>,
    /// Client certificate and key (PEM), for a Temporal server that requires mutual TLS.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The API key that this server sends, for a Temporal server that requires one.
    pub api_key: Option<String>,
    /// Time limit for one attempt of a step. A step that exceeds it is retried.
    pub step_timeout: Duration,
}

impl TemporalConfig {
    /// Returns a configuration without TLS files or an API key, with the default namespace and task queue.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            namespace: "default".to_owned(),
            task_queue: "gpuaas".to_owned(),
            authorities: None,
            identity: None,
            api_key: None,
            step_timeout: Duration::from_secs(10),
        }
    }
}

/// Shows the configuration without its secrets.
impl std::fmt::Debug for TemporalConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url, namespace, task_queue, step_timeout, authorities: _, identity: _, api_key: _ } = self;
        write!(f, "Temporal at {url}, namespace {namespace}, queue {task_queue}, steps within {step_timeout:?}")
    }
}

/// Why Temporal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemporalError {
    /// The server cannot be reached, or it answers with an error.
    #[error("Temporal at {url} does not answer: {detail}. Start it, or run without it (`--workflow embedded`)")]
    Away {
        /// The configured URL.
        url: Url,
        /// The cause, as reported by the client.
        detail: String,
    },
    /// The namespace does not exist.
    #[error(
        "Temporal at {url} has no namespace `{namespace}`; create it with `temporal operator namespace create --namespace {namespace}`"
    )]
    NoNamespace {
        /// The configured URL.
        url: Url,
        /// The configured namespace.
        namespace: String,
    },
}

/// The workflow driver that keeps runs in a Temporal server.
pub struct Temporal {
    client: Client,
    config: TemporalConfig,
}

impl std::fmt::Debug for Temporal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.config.fmt(f)
    }
}

impl Temporal {
    /// Connects to the server and checks that the namespace exists.
    pub async fn connect(config: TemporalConfig) -> Result<Self, TemporalError> {
        let away = |detail: String| TemporalError::Away { url: config.url.clone(), detail };
        let tls = (config.url.scheme() == "https").then(|| {
            let identity = config
                .identity
                .clone()
                .map(|(certificate, key)| ClientTlsOptions::builder().client_cert(certificate).client_private_key(key).build());
            TlsOptions::builder().maybe_server_root_ca_cert(config.authorities.clone()).maybe_client_tls_options(identity).build()
        });
        let options = ConnectionOptions::new(config.url.clone())
            .identity("gpuaas".to_owned())
            .connect_timeout(CONNECT)
            .maybe_tls_options(tls)
            .maybe_api_key(config.api_key.clone())
            .build();
        let connection = tokio::time::timeout(CONNECT * 2, Connection::connect(options)).await;
        let connection =
            connection.map_err(|_| away("no answer in time".to_owned()))?.map_err(|error| away(error.to_string()))?;
        let options = ClientOptions::new(config.namespace.clone()).build();
        let client = Client::new(connection, options).map_err(|error| away(error.to_string()))?;
        let question = DescribeNamespaceRequest { namespace: config.namespace.clone(), ..DescribeNamespaceRequest::default() };
        let answer = client.connection().workflow_service().describe_namespace(tonic::Request::new(question)).await;
        match answer {
            Ok(_) => Ok(Self { client, config }),
            Err(status) if status.code() == tonic::Code::NotFound => {
                Err(TemporalError::NoNamespace { url: config.url.clone(), namespace: config.namespace })
            }
            Err(status) => Err(away(status.message().to_owned())),
        }
    }

    /// Returns the id of the workflow that runs an allocation.
    pub fn workflow_id(id: AllocationId) -> String {
        format!("allocation/{id}")
    }

    /// Wakes the run of an allocation, or starts it if there is none.
    async fn signal(&self, id: AllocationId, step: AllocationStep) -> Result<(), ControlError> {
        let step_timeout_ms = u64::try_from(self.config.step_timeout.as_millis()).unwrap_or(u64::MAX);
        let begin = Begin { allocation: id.to_string(), step: step.as_str().to_owned(), step_timeout_ms };
        // Signals the running workflow with this id, or starts a new one if there is none or it has finished.
        let options = WorkflowStartOptions::new(self.config.task_queue.clone(), Self::workflow_id(id))
            .task_timeout(WORKFLOW_TASK)
            .static_summary(format!("run of {id}"))
            .build();
        let sent = self.client.signal_with_start_workflow(AllocationRun::run, begin, AllocationRun::wake, (), options).await;
        sent.map(drop).map_err(|error| ControlError::Unavailable {
            code: "temporal_away",
            message: format!("Temporal at {} does not accept the wake-up: {error}", self.config.url),
        })
    }

    /// Runs the worker until the control plane shuts down or the worker fails.
    async fn serve(client: Client, config: TemporalConfig, control: Arc<Control>, steps: Steps) -> Result<(), String> {
        let options = RuntimeOptions::builder().heartbeat_interval(None).build()?;
        let runtime = Runtime::from_current_tokio(options).map_err(|error| error.to_string())?;
        let options = WorkerOptions::new(config.task_queue)
            .register_activities(steps)
            .register_workflow::<AllocationRun>()
            .map_err(|error| error.to_string())?
            .sticky_queue_schedule_to_start_timeout(WORKFLOW_TASK)
            .build();
        let mut worker = Worker::new(&runtime, client, options).map_err(|error| error.to_string())?;
        let stop = worker.shutdown_handle();
        let mut serving = std::pin::pin!(worker.run());
        tokio::select! {
            ended = &mut serving => ended.map_err(|error| error.to_string()),
            () = control.stopping().cancelled() => {
                stop();
                serving.await.map_err(|error| error.to_string())
            }
        }
    }
}

impl Driver for Temporal {
    fn start(&self, control: &Arc<Control>) {
        let (client, config, owned) = (self.client.clone(), self.config.clone(), Arc::clone(control));
        control.background().spawn(async move {
            let runtime = tokio::runtime::Handle::current();
            while !owned.stopping().is_cancelled() {
                let steps = Steps::new(&owned);
                let (client, config, control, here) = (client.clone(), config.clone(), Arc::clone(&owned), runtime.clone());
                let (end, ended) = tokio::sync::oneshot::channel();
                // Workflows never move between threads, so the worker runs on a thread of its own.
                let worker = move || drop(end.send(here.block_on(Self::serve(client, config, control, steps))));
                let started = std::thread::Builder::new().name("temporal".to_owned()).spawn(worker);
                let reason = match (started, ended.await) {
                    (Err(error), _) => error.to_string(),
                    (Ok(_), Ok(Ok(()))) => continue,
                    (Ok(_), Ok(Err(reason))) => reason,
                    (Ok(_), Err(_)) => "its thread panicked".to_owned(),
                };
                tracing::error!(reason, again_in = ?WORKER_AGAIN, "the Temporal worker failed; runs wait until it is restarted");
                tokio::select! { () = owned.stopping().cancelled() => {}, () = tokio::time::sleep(WORKER_AGAIN) => {} }
            }
        });
    }

    fn wake<'a>(&'a self, control: &'a Arc<Control>, id: AllocationId) -> Pending<'a, Result<Woken, ControlError>> {
        Box::pin(async move {
            match step_of(control, id).await? {
                None | Some(AllocationStep::Done) => {}
                Some(step) => self.signal(id, step).await?,
            }
            Ok(Woken::HandedOver)
        })
    }
}
