//! Options of `gpuaas server` for NATS, Redis and Temporal. Without them, everything runs in this process.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use gpuaas_backends::BackendsConfig;
use gpuaas_backends::bus::NatsConfig;
use gpuaas_backends::redis::RedisConfig;
use gpuaas_control::workflow::{Driver, Embedded};

use crate::error::CliError;

/// NATS, Redis and Temporal.
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    /// NATS JetStream for events, such as `nats://host:4222` [default: in this process and its database].
    #[arg(long, env = "GPUAAS_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats_url: Option<String>,
    /// Credentials file for NATS, as `nsc` writes them.
    #[arg(long, value_name = "FILE", requires = "nats_url")]
    nats_credentials: Option<PathBuf>,
    /// PEM file with the certificate authorities for NATS [default: the system's].
    #[arg(long, value_name = "FILE", requires = "nats_url")]
    nats_ca: Option<PathBuf>,
    /// Stream for events. Clusters that share a NATS need one each; subjects start with its name in lower case.
    #[arg(long, env = "GPUAAS_NATS_STREAM", value_name = "NAME", default_value = "GPUAAS")]
    nats_stream: String,
    /// Number of NATS servers that keep a copy of the events.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    nats_replicas: u8,
    /// Redis for notifications, rate limits and single-use tokens, such as `redis://host:6379` [default: in this process].
    #[arg(long, env = "GPUAAS_REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// PEM file with the certificate authorities for Redis [default: the system's].
    #[arg(long, value_name = "FILE", requires = "redis_url")]
    redis_ca: Option<PathBuf>,
    /// Where the workflows of allocations run.
    #[arg(long, env = "GPUAAS_WORKFLOW", value_enum, default_value_t)]
    workflow: Workflow,
    /// URL of Temporal's frontend; `https://` for TLS.
    #[arg(long, env = "GPUAAS_TEMPORAL_URL", value_name = "URL", default_value = "http://127.0.0.1:7233")]
    temporal_url: String,
    /// Namespace of Temporal. It must exist.
    #[arg(long, env = "GPUAAS_TEMPORAL_NAMESPACE", value_name = "NAME", default_value = "default")]
    temporal_namespace: String,
    /// Task queue of Temporal for the servers of this cluster. Clusters that share a namespace need one each.
    #[arg(long, env = "GPUAAS_TEMPORAL_QUEUE", value_name = "NAME", default_value = "gpuaas")]
    temporal_queue: String,
    /// PEM file with the certificate authorities for Temporal [default: the system's].
    #[arg(long, value_name = "FILE")]
    temporal_ca: Option<PathBuf>,
    /// PEM client certificate for Temporal.
    #[arg(long, value_name = "FILE", requires = "temporal_key")]
    temporal_cert: Option<PathBuf>,
    /// PEM key for --temporal-cert.
    #[arg(long, value_name = "FILE", requires = "temporal_cert")]
    temporal_key: Option<PathBuf>,
    /// File with an API key for Temporal.
    #[arg(long, value_name = "FILE")]
    temporal_api_key_file: Option<PathBuf>,
    /// Timeout in seconds of one attempt of a step before Temporal retries it.
    #[arg(long, env = "GPUAAS_TEMPORAL_STEP_TIMEOUT", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    temporal_step_timeout: u64,
}

/// Where the workflows of allocations run.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Workflow {
    /// In this server and its database.
    #[default]
    Embedded,
    /// In a Temporal server.
    Temporal,
}

impl BackendArgs {
    /// Returns the configuration of NATS and Redis.
    pub(crate) fn backends(&self) -> BackendsConfig {
        let nats = self.nats_url.clone().map(|url| NatsConfig {
            credentials_file: self.nats_credentials.clone(),
            ca_file: self.nats_ca.clone(),
            stream: self.nats_stream.clone(),
            prefix: self.nats_stream.to_ascii_lowercase(),
            replicas: usize::from(self.nats_replicas),
            ..NatsConfig::new(url)
        });
        let redis = self.redis_url.clone().map(|url| RedisConfig { ca_file: self.redis_ca.clone(), ..RedisConfig::new(url) });
        BackendsConfig { nats, redis }
    }

    /// Connects to the workflow driver that was chosen.
    pub(crate) async fn driver(&self) -> Result<Arc<dyn Driver>, CliError> {
        match self.workflow {
            Workflow::Embedded => Ok(Arc::new(Embedded)),
            Workflow::Temporal => self.temporal().await,
        }
    }

    #[cfg(feature = "temporal")]
    async fn temporal(&self) -> Result<Arc<dyn Driver>, CliError> {
        use crate::exit::Exit;
        let url = self
            .temporal_url
            .parse()
            .ok()
            .filter(|url: &gpuaas_temporal::Url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.ok_or_else(|| {
            let message = format!("`{}` is no address of Temporal; write it as http://host:7233", self.temporal_url);
            CliError::usage("temporal_url_invalid", message)
        })?;
        let identity = match (&self.temporal_cert, &self.temporal_key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        let api_key = self.temporal_api_key_file.as_deref().map(read).transpose()?;
        let api_key = api_key.map(|key| String::from_utf8_lossy(&key).trim().to_owned());
        let config = gpuaas_temporal::TemporalConfig {
            namespace: self.temporal_namespace.clone(),
            task_queue: self.temporal_queue.clone(),
            authorities: self.temporal_ca.as_deref().map(read).transpose()?,
            identity,
            api_key,
            step_timeout: std::time::Duration::from_secs(self.temporal_step_timeout),
            ..gpuaas_temporal::TemporalConfig::new(url)
        };
        match gpuaas_temporal::Temporal::connect(config).await {
            Ok(temporal) => Ok(Arc::new(temporal)),
            Err(error) => Err(CliError::new(Exit::Unreachable, "temporal", error.to_string())),
        }
    }

    #[cfg(not(feature = "temporal"))]
    #[allow(clippy::unused_async, reason = "the one with Temporal connects")]
    async fn temporal(&self) -> Result<Arc<dyn Driver>, CliError> {
        let message = "this program was built without Temporal";
        Err(CliError::usage("temporal_missing", message)
            .hint("build it with `--features temporal`, or use `--workflow embedded`"))
    }
}

#[cfg(feature = "temporal")]
fn read(path: &std::path::Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).map_err(|error| CliError::usage("file_unreadable", format!("cannot read {}: {error}", path.display())))
}
