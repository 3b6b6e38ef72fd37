//! The configuration of NATS and of the stream.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use super::{BusError, subject};
use crate::redis::without_password;

/// How long JetStream remembers the ids of events. An event that is published again in that time is stored once.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(2 * 3600);
/// The largest message: the largest event with its headers.
const MAX_MESSAGE_BYTES: i32 = 512 * 1024;

/// The address of NATS and the settings of the stream of events.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsConfig {
    /// `nats://` or, with TLS, `tls://`. Several are separated by commas. May contain a user and a password.
    pub url: String,
    /// A credentials file, as written by `nsc`.
    pub credentials_file: Option<PathBuf>,
    /// CA certificates for NATS, instead of those that this machine trusts. If set, TLS is required.
    pub ca_file: Option<PathBuf>,
    /// Name of the stream.
    pub stream: String,
    /// First token of all subjects. Clusters that share a NATS account need one each, and a stream each.
    pub prefix: String,
    /// Number of servers that keep a copy. NATS writes to disk every two minutes unless `sync_interval` is set, so with one copy
    /// a power cut may lose acknowledged events: use three copies, or `sync_interval: always`.
    pub replicas: usize,
    /// How long events are kept for absent consumers. At least two hours.
    pub max_age: Duration,
    /// Maximum size of events to keep, in bytes. The oldest are deleted first.
    pub max_bytes: u64,
}

impl NatsConfig {
    /// Returns the configuration of a NATS at this URL, with one copy of a week of events in the stream `GPUAAS`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials_file: None,
            ca_file: None,
            stream: "GPUAAS".to_owned(),
            prefix: "gpuaas".to_owned(),
            replicas: 1,
            max_age: Duration::from_secs(7 * 24 * 3600),
            max_bytes: 1 << 30,
        }
    }

    pub(super) fn check(&self) -> Result<(), BusError> {
        let name = |text: &str| {
            (1..=64).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let wrong = if !name(&self.stream) {
            "the stream's name must be 1 to 64 letters, digits, `-` and `_`"
        } else if !name(&self.prefix) {
            "the prefix must be 1 to 64 letters, digits, `-` and `_`"
        } else if !(1..=5).contains(&self.replicas) {
            "replicas must be between 1 and 5"
        } else if self.max_age < DUPLICATE_WINDOW {
            "max_age must be at least two hours, in which repeated events are recognized"
        } else if self.max_bytes < 1 << 20 || i64::try_from(self.max_bytes).is_err() {
            "max_bytes must be at least 1048576"
        } else {
            return Ok(());
        };
        Err(BusError::Config(wrong.to_owned()))
    }

    /// Returns the required settings of the stream.
    pub(super) fn stream_config(&self) -> Config {
        Config {
            name: self.stream.clone(),
            subjects: vec![subject::all(&self.prefix)],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            discard: DiscardPolicy::Old,
            num_replicas: self.replicas,
            max_age: self.max_age,
            max_bytes: i64::try_from(self.max_bytes).unwrap_or(i64::MAX),
            max_messages: -1,
            max_messages_per_subject: -1,
            max_message_size: MAX_MESSAGE_BYTES,
            duplicate_window: DUPLICATE_WINDOW,
            description: Some("Events of gpuaas".to_owned()),
            ..Config::default()
        }
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, credentials_file, ca_file, stream, prefix, replicas, max_age, max_bytes } = self;
        let urls: Vec<String> = url.split(',').map(without_password).collect();
        f.debug_struct("NatsConfig")
            .field("url", &urls.join(","))
            .field("credentials_file", credentials_file)
            .field("ca_file", ca_file)
            .field("stream", stream)
            .field("prefix", prefix)
            .field("replicas", replicas)
            .field("max_age", max_age)
            .field("max_bytes", max_bytes)
            .finish()
    }
}

/// Lists every setting that our guarantees depend on and that differs.
pub(super) fn differences(is: &Config, should: &Config) -> Vec<String> {
    let mut found = vec![];
    let mut compare = |name: &str, is: &dyn fmt::Debug, should: &dyn fmt::Debug| {
        let (is, should) = (format!("{is:?}"), format!("{should:?}"));
        if is != should {
            found.push(format!("{name} is {is} and should be {should}"));
        }
    };
    compare("subjects", &is.subjects, &should.subjects);
    compare("retention", &is.retention, &should.retention);
    compare("storage", &is.storage, &should.storage);
    compare("discard", &is.discard, &should.discard);
    compare("replicas", &is.num_replicas, &should.num_replicas);
    compare("max_age", &is.max_age, &should.max_age);
    compare("max_bytes", &is.max_bytes, &should.max_bytes);
    compare("max_msgs", &is.max_messages, &should.max_messages);
    compare("max_msgs_per_subject", &is.max_messages_per_subject, &should.max_messages_per_subject);
    compare("max_msg_size", &is.max_message_size, &should.max_message_size);
    compare("duplicate_window", &is.duplicate_window, &should.duplicate_window);
    compare("no_ack", &is.no_ack, &should.no_ack);
    compare("sealed", &is.sealed, &should.sealed);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_named() {
        let good = NatsConfig::new("nats://host");
        assert!(good.check().is_ok());
        let hour = Duration::from_secs(3600);
        for bad in [
            NatsConfig { stream: "A.B".to_owned(), ..good.clone() },
            NatsConfig { prefix: String::new(), ..good.clone() },
            NatsConfig { prefix: "a.>".to_owned(), ..good.clone() },
            NatsConfig { replicas: 0, ..good.clone() },
            NatsConfig { max_age: hour, ..good.clone() },
            NatsConfig { max_bytes: 0, ..good.clone() },
            NatsConfig { max_bytes: u64::MAX, ..good.clone() },
        ] {
            assert_eq!(bad.check().expect_err("bad").code(), "bus_config_invalid", "{bad:?}");
        }
    }

    #[test]
    fn every_setting_that_differs_is_named() {
        let should = NatsConfig::new("nats://host").stream_config();
        assert!(differences(&should, &should).is_empty());
        let is = Config { storage: StorageType::Memory, duplicate_window: Duration::from_secs(120), ..should.clone() };
        assert_eq!(
            differences(&is, &should),
            ["storage is Memory and should be File", "duplicate_window is 120s and should be 7200s"]
        );
    }

    #[test]
    fn passwords_are_never_printed() {
        let printed = format!("{:?}", NatsConfig::new("nats://me:secret@a:1,nats://me:secret@b:2"));
        assert!(!printed.contains("secret") && printed.contains("a:1") && printed.contains("b:2"), "{printed}");
    }
}
