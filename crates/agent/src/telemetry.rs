//! Telemetry of the host: facts when they change, metrics at their own interval.

use std::time::Duration;

use gpuaas_contract::telemetry::MAX_BYTES;
use gpuaas_host::Host;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::guests::Guests;

/// How often facts are read; they change with hardware, cables or packages.
const FACTS_EVERY: Duration = Duration::from_secs(60);

/// The latest facts, updated by a background task. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    host: Host,
    guests: Guests,
    facts: watch::Receiver<String>,
}

impl Telemetry {
    /// Reads the facts once and updates them until `stop`.
    pub(crate) async fn start(host: Host, guests: Guests, stop: CancellationToken) -> Self {
        let first = facts_json(&host).await.unwrap_or_default();
        let (sender, facts) = watch::channel(first);
        let for_task = host.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(FACTS_EVERY) => {}
                }
                if let Some(facts) = facts_json(&for_task).await {
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

async fn facts_json(host: &Host) -> Option<String> {
    let host = host.clone();
    let mut facts = gpuaas_runtime::blocking(move || host.facts()).await.ok()?;
    facts.agent_version = crate::VERSION.to_owned();
    let json = serde_json::to_string(&facts).ok()?;
    if json.len() <= MAX_BYTES {
        return Some(json);
    }
    // For a host with very many devices: what identifies it still fits.
    facts.disks.truncate(32);
    facts.networks.truncate(32);
    facts.gpus.truncate(32);
    serde_json::to_string(&facts).ok().filter(|json| json.len() <= MAX_BYTES)
}
