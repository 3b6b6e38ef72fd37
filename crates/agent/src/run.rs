//! The running agent: starts the parts and stops them in order.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::{AgentInstanceId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::SetError;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::guests::Guests;
use crate::identity::{self, Identity, IdentityError};
use crate::journal::{Journal, JournalError};
use crate::link::{Core, LinkTimings, Resume, Supervisor};
use crate::pipeline::{Limits, Parts, Pipeline};
use crate::policy::{DestroysError, Policy, PolicyError};
use crate::renewal::{Credentials, RenewalError};
use crate::spool::{Spool, SpoolError};
use crate::state::{StateError, StateLock};
use crate::status::{self, AgentStatus, LinkStatus};
use crate::telemetry::Telemetry;
use crate::trust::Trust;

/// Maximum number of messages of the pipeline that wait for the link.
const VOLATILE: usize = 4096;
/// How long the link may stay up after the last task, to report its receipt.
const REPORT_WITHIN: Duration = Duration::from_secs(5);

/// How to run.
pub struct RunOptions {
    /// The configuration.
    pub config: Config,
    /// Timings of the link; only tests need other than the defaults.
    pub link: LinkTimings,
    /// Receives events: the program notifies systemd, tests and `dev` wait for them. Called from async code, so it must not
    /// block.
    pub on_event: Box<dyn Fn(RunEvent) + Send + Sync>,
}

impl RunOptions {
    /// Returns options with default timings and no event handler.
    pub fn new(config: Config) -> Self {
        Self { config, link: LinkTimings::default(), on_event: Box::new(|_| {}) }
    }
}

/// An event of a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// Journal, policy and identity are valid; unfinished tasks continue, and the link is being opened.
    Ready {
        /// The node.
        node_id: NodeId,
    },
    /// The link went up or down or changed its transport.
    Link(LinkStatus),
    /// The agent is stopping.
    Stopping,
}

/// Why the agent did not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The policy cannot be trusted.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The record of recent destructive tasks cannot be read.
    #[error(transparent)]
    Destroys(#[from] DestroysError),
    /// There is no identity, or a damaged one.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The stored verifier set is not valid.
    #[error("the stored verifier set is not trusted; enroll again with: gpuaas-agent enroll --replace")]
    VerifierSet(#[from] SetError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Credentials(#[from] RenewalError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal failed while running; nothing was claimed that is not recorded.
    #[error("the journal failed ({0}); check the disk, then start the agent again")]
    JournalFailed(String),
    /// The log buffer cannot be opened.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The simulated host cannot be used.
    #[error(transparent)]
    Simulation(#[from] gpuaas_host::SimError),
    /// A thread failed.
    #[error("a thread of the agent ended")]
    Thread(#[from] tokio::task::JoinError),
}

/// Everything that is opened from disk, on a blocking thread.
struct OpenedState {
    _lock: StateLock,
    policy: Policy,
    identity: Identity,
    journal: Journal,
    opened: crate::journal::Opened,
    spool: Spool,
    host: gpuaas_host::Host,
}

fn open_state(config: &Config) -> Result<OpenedState, RunError> {
    let lock = StateLock::take(&config.state_dir)?;
    let policy = Policy::load(&config.policy_file)?.counting_in(&config.state_dir)?;
    let identity = Identity::load(&config.state_dir)?;
    let host = crate::open_host(config, None)?;
    let (journal, opened) =
        Journal::open_of(&identity::folder(&config.state_dir), &config.state_dir, config.journal_bytes, Timestamp::now())?;
    let spool = Spool::open(&config.state_dir.join("logs"), config.log_buffer_bytes)?;
    Ok(OpenedState { _lock: lock, policy, identity, journal, opened, spool, host })
}

/// Accepts a journal that is missing, of another identity or older than before, as one that lost records: tasks created before
/// now are not run. The agent must not be running. Returns messages about what was done.
pub fn accept_journal_loss(config: &Config) -> Result<Vec<String>, RunError> {
    let _lock = StateLock::take(&config.state_dir)?;
    let identity = Identity::load(&config.state_dir)?;
    let folder = identity::folder(&config.state_dir);
    let mut lines = Journal::accept_loss(&folder, &config.state_dir, config.journal_bytes, Timestamp::now())?;
    lines.push(format!("node {} continues with this journal; tasks created before now are not run", identity.document.node_id));
    Ok(lines)
}

/// Runs the agent until `shutdown`. Then running tasks get `shutdown_timeout`, and receipts are reported if possible.
///
/// The future is boxed so that its code is compiled here, once, and not again in every program that waits for it.
pub fn run(
    options: RunOptions,
    shutdown: CancellationToken,
) -> std::pin::Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>> {
    Box::pin(run_until(options, shutdown))
}

async fn run_until(options: RunOptions, shutdown: CancellationToken) -> Result<(), RunError> {
    let RunOptions { config, link: timings, on_event } = options;
    let on_event: Arc<dyn Fn(RunEvent) + Send + Sync> = Arc::from(on_event);
    let for_opening = config.clone();
    let state = gpuaas_runtime::blocking(move || open_state(&for_opening)).await??;
    let OpenedState { _lock, policy, identity, journal, opened, spool, host } = state;
    let policy = Arc::new(policy);
    for notice in &opened.notices {
        tracing::warn!(notice, "local state was repaired");
    }
    let document = identity.document.clone();
    let receipt_key = gpuaas_contract::key::SigningKey::from_seed(&identity.keys.receipt.seed());
    let trust = Arc::new(Trust::new(
        &identity::verifier_set_path(&config.state_dir),
        &identity.verifier_set,
        document.root_key.clone(),
        document.cluster_id,
    )?);
    let servers = if config.server.is_empty() { document.server.clone() } else { config.server.clone() };
    let credentials = Credentials::new(identity, servers, config.request_timeout)?;

    // Parts end in order: telemetry and renewal with `background`, the link after the pipeline.
    let background = CancellationToken::new();
    let _background_guard = background.clone().drop_guard();
    let guests = Guests::new(config.guest_telemetry_listen);
    guests.register_all(&host).await;
    tokio::spawn(guests.clone().serve(background.clone()));
    let telemetry = Telemetry::start(host.clone(), guests.clone(), Arc::clone(&policy), background.clone()).await;
    let instance_id = AgentInstanceId::generate();
    let boot_id = host.boot_id();
    let (outbound, volatile) = mpsc::channel(VOLATILE);
    let notices = opened.notices.clone();
    let simulated = host.is_simulated();
    let parts = Parts {
        cluster_id: document.cluster_id,
        node_id: document.node_id,
        node_epoch: document.node_epoch,
        receipt_key,
        instance_id,
        boot_id: boot_id.clone(),
        trust: Arc::clone(&trust),
        journal,
        policy,
        host,
        guests: guests.clone(),
        spool: spool.clone(),
        outbound,
        limits: Limits {
            max_tasks: config.max_tasks,
            journal_bytes: config.journal_bytes,
            task_timeout: config.task_timeout,
            log_drain_timeout: config.log_drain_timeout,
        },
    };
    let for_guests = parts.host.clone();
    let pipeline = Pipeline::start(parts, opened).await.map_err(|error| RunError::JournalFailed(error.to_string()))?;

    // After the recovered tasks have claimed their slots.
    tokio::spawn(guests.keep_in_line(for_guests, boot_id.clone(), background.clone()));

    let link_status = watch::Sender::new(LinkStatus { since: Timestamp::now(), ..LinkStatus::default() });
    let initial = AgentStatus {
        version: crate::VERSION.to_owned(),
        pid: std::process::id(),
        instance_id,
        node_id: document.node_id,
        cluster_id: document.cluster_id,
        node_epoch: document.node_epoch,
        started_at: Timestamp::now(),
        link: LinkStatus::default(),
        running: 0,
        unreported: 0,
        certificate_until: *credentials.until().borrow(),
        simulated,
        notices: notices.clone(),
    };
    let status_writer =
        spawn_status(&config, initial, &pipeline, link_status.subscribe(), credentials.until(), background.clone());
    let link_state = link_status.subscribe();
    spawn_link_events(Arc::clone(&on_event), link_status.subscribe(), background.clone());

    let link_stop = CancellationToken::new();
    let _link_guard = link_stop.clone().drop_guard();
    let supervisor = Supervisor {
        core: Core {
            cluster_id: document.cluster_id,
            node_id: document.node_id,
            node_epoch: document.node_epoch,
            instance_id,
            boot_id,
            capacity: config.max_tasks,
            notices,
            pipeline: pipeline.clone(),
            spool: spool.clone(),
            trust,
            telemetry,
            heartbeat_interval: config.heartbeat_interval,
            metrics_interval: config.metrics_interval,
            resume: Resume::new(document.node_id),
        },
        dialer: credentials.dialer(),
        credentials: Arc::clone(&credentials),
        choice: config.transport,
        timings,
        request_timeout: config.request_timeout,
        volatile,
        status: link_status,
    };
    // An expired certificate must be replaced before the link can work.
    if let Err(error) = credentials.look(Timestamp::now()).await {
        tracing::warn!(error = crate::error_chain::chain(&error), "certificate was not replaced at start; it will be retried");
    }
    let renewal = tokio::spawn(Arc::clone(&credentials).keep_alive(background.clone(), timings.certificate_check));
    let link = tokio::spawn(supervisor.run(link_stop.clone()));
    tracing::info!(node_id = %document.node_id, epoch = document.node_epoch, simulated, "agent is ready");
    on_event(RunEvent::Ready { node_id: document.node_id });

    let mut failure = pipeline.failure();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        _ = failure.wait_for(Option::is_some) => {}
    }
    on_event(RunEvent::Stopping);
    pipeline.close(config.shutdown_timeout).await;
    let failed = failure.borrow().clone();
    if failed.is_none() && link_state.borrow().connected {
        report_what_is_left(&pipeline).await;
    }
    link_stop.cancel();
    link.await?;
    background.cancel();
    renewal.await?;
    status_writer.await?;
    spool.flush().await;
    match failed {
        Some(reason) => Err(RunError::JournalFailed(reason)),
        None => Ok(()),
    }
}

/// Gives the link a moment to report the last receipts; the rest is reported after the next start.
async fn report_what_is_left(pipeline: &Pipeline) {
    let mut changes = pipeline.receipt_changes();
    let all_reported = async {
        while pipeline.unreported() > 0 {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    if tokio::time::timeout(REPORT_WITHIN, all_reported).await.is_err() {
        tracing::info!(receipts = pipeline.unreported(), "receipts will be reported after the next start");
    }
}

fn spawn_link_events(
    on_event: Arc<dyn Fn(RunEvent) + Send + Sync>,
    mut link: watch::Receiver<LinkStatus>,
    stop: CancellationToken,
) {
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = link.changed() => if changed.is_err() { return },
            }
            let status = link.borrow_and_update().clone();
            on_event(RunEvent::Link(status));
        }
    });
}

/// Collects changes into the status file.
fn spawn_status(
    config: &Config,
    initial: AgentStatus,
    pipeline: &Pipeline,
    mut link: watch::Receiver<LinkStatus>,
    mut until: watch::Receiver<Timestamp>,
    stop: CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let (sender, receiver) = watch::channel(initial);
    let (mut running, mut receipts) = (pipeline.running(), pipeline.receipt_changes());
    let pipeline = pipeline.clone();
    let collecting = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = collecting.cancelled() => return,
                Ok(()) = link.changed() => {}
                Ok(()) = until.changed() => {}
                Ok(()) = running.changed() => {}
                Ok(()) = receipts.changed() => {}
                else => return,
            }
            sender.send_if_modified(|status| {
                let before = status.clone();
                status.link = link.borrow_and_update().clone();
                status.certificate_until = *until.borrow_and_update();
                status.running = *running.borrow_and_update();
                status.unreported = pipeline.unreported();
                before != *status
            });
            // A busy agent writes the file a few times per second and not a thousand times; changes of the link are written
            // sooner.
            tokio::select! {
                biased;
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
                Ok(()) = link.changed() => link.mark_changed(),
            }
        }
    });
    status::spawn_writer(&config.state_dir, receiver, stop)
}
