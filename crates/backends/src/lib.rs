//! Optional services for larger sites, and their in-process defaults.
//!
//! | seam | by default | at scale |
//! |---|---|---|
//! | [`bus`]: events of the outbox to their consumers | in-process | NATS JetStream |
//! | [`fanout`]: notifications to open browsers | in-process | Redis Pub/Sub |
//! | [`limits`]: rate limits | in-process | Redis |
//! | [`ephemeral`]: single-use tokens and presence | in-process | Redis |
//!
//! Both implementations of a seam pass the same tests. The source of truth is the store: a consumer that missed something reads
//! it there.
//!
//! [`webhook`] has the rules for outgoing deliveries: signatures, retry times and forbidden destinations. It does no I/O.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod bus;
pub mod ephemeral;
pub mod fanout;
pub mod limits;
pub mod redis;
pub mod webhook;

use crate::bus::{Bus, BusError, NatsConfig};
use crate::ephemeral::Ephemeral;
use crate::fanout::Fanout;
use crate::limits::Limits;
use crate::redis::{Redis, RedisConfig, RedisError};

/// How many events an in-process consumer may be behind before it has to read the outbox instead.
const IN_PROCESS_BUS_CAPACITY: usize = 4096;

/// Which backends to use. The default is a single process without any.
#[derive(Clone, Debug, Default)]
pub struct BackendsConfig {
    /// NATS for the bus.
    pub nats: Option<NatsConfig>,
    /// Redis for fan-out, limits and ephemeral values.
    pub redis: Option<RedisConfig>,
}

/// Why the backends cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BackendsError {
    /// The bus cannot be used as it is configured.
    #[error("the event bus cannot be used")]
    Bus(#[from] BusError),
    /// Redis cannot be used as it is configured.
    #[error("Redis cannot be used")]
    Redis(#[from] RedisError),
}

impl BackendsError {
    /// Returns a stable code for logs and problem documents.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Bus(error) => error.code(),
            Self::Redis(error) => error.code(),
        }
    }
}

/// All backends of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Backends {
    /// Events of the outbox.
    pub bus: Bus,
    /// Notifications to browsers.
    pub fanout: Fanout,
    /// Rate limits.
    pub limits: Limits,
    /// Single-use tokens and presence.
    pub ephemeral: Ephemeral,
}

impl Backends {
    /// Creates backends that run in this process.
    pub fn in_process() -> Self {
        Self {
            bus: Bus::in_process(IN_PROCESS_BUS_CAPACITY),
            fanout: Fanout::in_process(),
            limits: Limits::in_process(),
            ephemeral: Ephemeral::in_process(),
        }
    }

    /// Creates the backends of a configuration.
    ///
    /// An unreachable NATS or Redis is not an error: the control plane must be able to start without them, and it keeps trying to
    /// connect. A configuration that can never work is an error.
    pub async fn from_config(config: &BackendsConfig) -> Result<Self, BackendsError> {
        let mut backends = Self::in_process();
        if let Some(nats) = &config.nats {
            backends.bus = Bus::nats(nats).await?;
        }
        if let Some(config) = &config.redis {
            let redis = Redis::open(config)?;
            backends.fanout = Fanout::redis(&redis);
            backends.limits = Limits::redis(&redis);
            backends.ephemeral = Ephemeral::redis(&redis);
        }
        Ok(backends)
    }
}
