//! Telemetry of the host: facts when they change, metrics at their own interval.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::telemetry::{HostFacts, MAX_BYTES};
use gpuaas_host::Host;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::guests::Guests;
use crate::policy::Policy;

/// How often facts are read; they change with hardware, cables or packages.
const FACTS_EVERY: Duration = Duration::from_secs(60);
/// What the host's policy allows is looked at this often: the control plane should not place what would be refused.
const POLICY_EVERY: Duration = Duration::from_secs(5);

/// The latest facts, updated by a background task. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    host: Host,
    guests: Guests,
    facts: watch::Receiver<String>,
}

impl Telemetry {
    /// Reads the facts once and updates them until `stop`.
    pub(crate) async fn start(host: Host, guests: Guests, policy: Arc<Policy>, stop: CancellationToken) -> Self {
        let mut known = facts_of(&host).await.unwrap_or_default();
        let (sender, facts) = watch::channel(with_policy(&mut known, &policy).await.unwrap_or_default());
        let for_task = host.clone();
        tokio::spawn(async move {
            let mut age = Duration::ZERO;
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(POLICY_EVERY) => age += POLICY_EVERY,
                }
                if age >= FACTS_EVERY {
                    age = Duration::ZERO;
                    if let Some(facts) = facts_of(&for_task).await {
                        known = facts;
                    }
                }
                if let Some(facts) = with_policy(&mut known, &policy).await {
                    sender.send_if_modified(|current| {
                        let changed = *current != facts;
                        *current = facts;
                        changed
                    });
                }
            }
        });
        Self { host, guests, facts }
    }

    /// Returns a watch of the facts as JSON.
    pub(crate) fn facts(&self) -> watch::Receiver<String> {
        self.facts.clone()
    }

    /// Returns one sample of metrics as JSON, or `None` if the host could not be read.
    pub(crate) async fn sample(&self) -> Option<String> {
        let host = self.host.clone();
        let mut metrics = gpuaas_runtime::blocking(move || host.metrics()).await.ok()?;
        metrics.guests = self.guests.metrics(&self.host).await;
        serde_json::to_string(&metrics).ok().filter(|json| json.len() <= MAX_BYTES)
    }
}

async fn facts_of(host: &Host) -> Option<HostFacts> {
    let host = host.clone();
    let mut facts = gpuaas_runtime::blocking(move || host.facts()).await.ok()?;
    facts.agent_version = crate::VERSION.to_owned();
    Some(facts)
}

/// The facts as JSON, with what the host's policy allows now.
async fn with_policy(facts: &mut HostFacts, policy: &Arc<Policy>) -> Option<String> {
    let policy = Arc::clone(policy);
    let allowed = gpuaas_runtime::blocking(move || policy.allowed()).await.ok()?;
    facts.allowed_tasks = Some(allowed.into_iter().map(|kind| kind.as_str().to_owned()).collect());
    let json = serde_json::to_string(facts).ok()?;
    if json.len() <= MAX_BYTES {
        return Some(json);
    }
    // For a host with very many devices: what identifies it still fits.
    facts.disks.truncate(32);
    facts.networks.truncate(32);
    facts.gpus.truncate(32);
    serde_json::to_string(facts).ok().filter(|json| json.len() <= MAX_BYTES)
}
