//! The connection to Redis that fan-out, limits and ephemeral values of a process share.
//!
//! Commands of all callers share one connection. When it breaks, the next caller connects again. After a failure there is a short
//! pause without attempts, so that callers get their error at once instead of queueing for an unreachable server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, ServerErrorKind, TlsCertificates};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Longest wait for a connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failed connection attempt: the first one, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Maximum size of a certificate file, in bytes.
const MAX_CA_BYTES: u64 = 1 << 20;

/// The address of Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://` or, with TLS, `rediss://`. May contain a user, a password and a database number.
    pub url: String,
    /// CA certificates for Redis, instead of those that this machine trusts.
    pub ca_file: Option<PathBuf>,
}

impl RedisConfig {
    /// Returns the configuration of a Redis at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ca_file: None }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig").field("url", &without_password(&self.url)).field("ca_file", &self.ca_file).finish()
    }
}

/// An error of Redis.
#[derive(Debug, thiserror::Error)]
pub enum RedisError {
    /// The configuration can never work.
    #[error("the URL of Redis cannot be used: {0}; write it as redis://host:6379 or rediss://host:6379")]
    Url(String),
    /// The certificate file cannot be read.
    #[error("the certificates for Redis in {path} cannot be read; check the path and its permissions")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Redis cannot be reached, or does not answer.
    #[error("Redis cannot be reached ({0}); the server keeps trying")]
    Away(String),
    /// Redis refuses the request.
    #[error("Redis refused: {0}; check the permissions of the user in its URL and its `maxmemory`")]
    Refused(String),
}

impl RedisError {
    /// Returns a stable code for logs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Url(_) => "redis_url_invalid",
            Self::CaFile { .. } => "redis_ca_unreadable",
            Self::Away(_) => "redis_away",
            Self::Refused(_) => "redis_refused",
        }
    }
}

/// Whether a command may be sent again over a new connection if the old one breaks before the answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Running it twice has the same effect as once.
    Once,
    /// It may have run, and must not run again.
    Never,
}

/// A Redis. Clones share its connection.
#[derive(Clone, Debug)]
pub struct Redis(Arc<Shared>);

struct Shared {
    client: Client,
    link: Mutex<Link>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("address", self.client.get_connection_info().addr()).finish_non_exhaustive()
    }
}

/// The state of the connection.
struct Link {
    connection: Option<MultiplexedConnection>,
    /// Counts connections, so that a late error of an old connection does not close the new one.
    number: u64,
    failure: Option<RedisFailure>,
}

struct RedisFailure {
    dial_at: Instant,
    pause: Duration,
    why: String,
}

impl Redis {
    /// Creates a client without connecting: an unreachable Redis is not an error here.
    pub fn open(config: &RedisConfig) -> Result<Self, RedisError> {
        let client = match &config.ca_file {
            None => Client::open(config.url.as_str()),
            Some(path) => {
                let root_cert =
                    Some(read_certificates(path).map_err(|source| RedisError::CaFile { path: path.clone(), source })?);
                Client::build_with_tls(config.url.as_str(), TlsCertificates { client_tls: None, root_cert })
            }
        };
        let client = client.map_err(|error| RedisError::Url(error.to_string()))?;
        let link = Mutex::new(Link { connection: None, number: 0, failure: None });
        Ok(Self(Arc::new(Shared { client, link })))
    }

    /// Returns the client, for a separate connection.
    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Runs one command.
    pub(crate) async fn command<T: FromRedisValue + Send>(
        &self,
        command: &::redis::Cmd,
        repeat: Repeat,
    ) -> Result<T, RedisError> {
        self.run(repeat, |mut connection| async move { command.query_async(&mut connection).await }).await
    }

    /// Runs `work` with a connection.
    pub(crate) async fn run<T, F>(&self, repeat: Repeat, work: impl Fn(MultiplexedConnection) -> F) -> Result<T, RedisError>
    where
        F: Future<Output = ::redis::RedisResult<T>>,
    {
        let mut may_repeat = repeat == Repeat::Once;
        loop {
            let (connection, number) = self.connection().await?;
            let error = match work(connection).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A server that became a replica refuses writes for good, so the connection counts as broken.
            let broken = error.is_io_error()
                || error.is_unrecoverable_error()
                || matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown));
            if !broken {
                return Err(refused(&error));
            }
            self.forget(number).await;
            // After a timeout, the caller has waited long enough.
            if !may_repeat || error.is_timeout() {
                return Err(RedisError::Away(error.to_string()));
            }
            may_repeat = false;
        }
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        let mut link = self.0.link.lock().await;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        if let Some(failure) = link.failure.as_ref().filter(|failure| Instant::now() < failure.dial_at) {
            return Err(RedisError::Away(failure.why.clone()));
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(Some(ANSWER_TIMEOUT));
        // Covers the whole attempt: the handshake after connecting has no limit of its own.
        let dialed =
            tokio::time::timeout(CONNECT_TIMEOUT, self.0.client.get_multiplexed_async_connection_with_config(&config)).await;
        let outcome = dialed.map_err(|_| "no answer".to_owned()).and_then(|dialed| dialed.map_err(|error| error.to_string()));
        match outcome {
            Ok(connection) => {
                link.number += 1;
                link.failure = None;
                link.connection = Some(connection.clone());
                Ok((connection, link.number))
            }
            Err(why) => {
                let pause = link.failure.as_ref().map_or(PAUSE.0, |failure| (failure.pause * 2).min(PAUSE.1));
                link.failure = Some(RedisFailure { dial_at: Instant::now() + pause, pause, why: why.clone() });
                Err(RedisError::Away(why))
            }
        }
    }

    async fn forget(&self, number: u64) {
        let mut link = self.0.link.lock().await;
        if link.number == number {
            link.connection = None;
        }
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the Redis client: every other kind is a refusal")]
fn refused(error: &::redis::RedisError) -> RedisError {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => RedisError::Away("it is reading its data".to_owned()),
        _ => RedisError::Refused(error.to_string()),
    }
}

fn read_certificates(path: &std::path::Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = vec![];
    std::fs::File::open(path)?.take(MAX_CA_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the URL for a log, without the part between the scheme and the host.
pub(crate) fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://…@{}", &url[..scheme], &url[at + 1..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        for (url, wanted) in [
            ("redis://user:secret@host:1/0", "redis://…@host:1/0"),
            ("redis://:p@ss@host", "redis://…@host"),
            ("redis://host:1", "redis://host:1"),
        ] {
            let printed = format!("{:?}", RedisConfig::new(url));
            assert!(printed.contains(wanted) && !printed.contains("secret"), "{printed}");
        }
    }

    #[test]
    fn a_url_that_can_never_work_is_an_error_at_once_and_every_other_is_taken() {
        for url in ["", "host:6379", "http://host", "redis://host:port"] {
            assert_eq!(Redis::open(&RedisConfig::new(url)).expect_err(url).code(), "redis_url_invalid");
        }
        for url in ["redis://host", "redis://user:password@host:1/2", "rediss://host:1"] {
            assert!(Redis::open(&RedisConfig::new(url)).is_ok(), "{url}");
        }
        let config = RedisConfig { ca_file: Some("/nowhere/ca.pem".into()), ..RedisConfig::new("rediss://host") };
        assert_eq!(Redis::open(&config).expect_err("no such file").code(), "redis_ca_unreadable");
    }
}
