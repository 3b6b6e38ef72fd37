//! `<state_dir>/status.json`: the state of the running agent, for `status` and `doctor`.

use std::path::{Path, PathBuf};

use gpuaas_contract::id::{AgentInstanceId, ClusterId, NodeId};
use gpuaas_contract::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The state of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// Whether a session is open.
    pub connected: bool,
    /// `stream`, `poll` or empty.
    pub transport: String,
    /// The session.
    pub session_id: String,
    /// Version of the server, as its last welcome says; empty if it does not say.
    #[serde(default)]
    pub server_version: String,
    /// The time of the last change of `connected`.
    pub since: Timestamp,
    /// Why it is not connected.
    pub last_error: String,
    /// The control plane's clock minus this host's, in microseconds, at the last welcome.
    pub clock_offset_us: i64,
    /// Sessions opened since the agent started.
    pub sessions: u64,
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AgentStatus {
    /// Version of the agent.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The id of this start.
    pub instance_id: AgentInstanceId,
    /// The node.
    pub node_id: NodeId,
    /// Its cluster.
    pub cluster_id: ClusterId,
    /// The number of its enrollment.
    pub node_epoch: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// The link.
    pub link: LinkStatus,
    /// Running tasks.
    pub running: u32,
    /// Unconfirmed receipts.
    pub unreported: usize,
    /// The end of the certificate.
    pub certificate_until: Timestamp,
    /// Whether the host is simulated.
    pub simulated: bool,
    /// Messages about repairs at start.
    pub notices: Vec<String>,
}

/// Returns the path of the file.
pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("status.json")
}

/// Returns the content of the file, if it exists and is valid.
pub fn read(state_dir: &Path) -> Option<AgentStatus> {
    serde_json::from_slice(&std::fs::read(path(state_dir)).ok()?).ok()
}

/// Writes the file whenever something changes, until `stop`; removes it at the end.
pub(crate) fn spawn_writer(
    state_dir: &Path,
    mut status: watch::Receiver<AgentStatus>,
    stop: CancellationToken,
) -> tokio::task::JoinHandle<()> {
    let path = path(state_dir);
    tokio::spawn(async move {
        loop {
            let current = status.borrow_and_update().clone();
            let target = path.clone();
            let written = gpuaas_runtime::blocking(move || write(&target, &current)).await;
            if let Ok(Err(error)) = written {
                tracing::debug!(%error, "status file could not be written");
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = status.changed() => if changed.is_err() { break },
            }
        }
        let _ = gpuaas_runtime::blocking(move || std::fs::remove_file(path)).await;
    })
}

/// Writes the file without fsync: after a crash a stale or missing status is harmless.
fn write(path: &Path, status: &AgentStatus) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let temporary = path.with_extension("json.tmp");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(status).unwrap_or_default())?;
    std::fs::rename(&temporary, path)
}
