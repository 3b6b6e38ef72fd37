//! `diag.ping`: the smallest task with an effect.

use super::{Examples, Parameters};
use crate::time::Timestamp;

/// Maximum length of the message.
pub const MAX_MESSAGE: usize = 256;
/// Maximum time a ping can be made to take, in milliseconds.
pub const MAX_HOLD_MS: u32 = 600_000;
/// Maximum number of log lines a ping can be made to write.
pub const MAX_LOG_LINES: u32 = 100_000;

/// What the ping does.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Params {
    /// Text to write to the host's ping log and to send back (at most 256 bytes, no control characters).
    #[schemars(length(max = MAX_MESSAGE))]
    pub message: String,
    /// How many milliseconds to wait before the log line is written, to test cancellation and restarts.
    #[schemars(range(max = MAX_HOLD_MS))]
    pub hold_ms: u32,
    /// Number of task log lines to write, to test the transport of logs.
    #[schemars(range(max = MAX_LOG_LINES))]
    pub log_lines: u32,
}

/// Result of the ping.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The message of the request.
    pub message: String,
    /// Time of the host's clock when the line was written to the ping log.
    pub host_time: Timestamp,
    /// Whether the agent was restarted while the task ran. The line was still written to the ping log exactly once.
    pub recovered: bool,
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        if self.message.len() > MAX_MESSAGE {
            return Err(format!("message has {} bytes; at most {MAX_MESSAGE} are allowed", self.message.len()));
        }
        if self.message.chars().any(char::is_control) {
            return Err("message contains a control character; remove it".to_owned());
        }
        if self.hold_ms > MAX_HOLD_MS {
            return Err(format!("hold_ms is {}; at most {MAX_HOLD_MS} is allowed", self.hold_ms));
        }
        if self.log_lines > MAX_LOG_LINES {
            return Err(format!("log_lines is {}; at most {MAX_LOG_LINES} is allowed", self.log_lines));
        }
        Ok(())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &["{}", r#"{"message":"hello","hold_ms":600000,"log_lines":100000}"#, r#"{"message":"gr\u00fc\u00df dich"}"#],
    refused_params: &[
        r#"{"message":"gr\u00fc\u00df dich","hold_ms":600001}"#,
        r#"{"message":"a\nb"}"#,
        r#"{"message":1}"#,
        r#"{"log_lines":-1}"#,
        r#""ping""#,
    ],
    outputs: &[r#"{"message":"hello","host_time":1767225600000000,"recovered":false}"#],
    refused_outputs: &[r#"{"message":"","host_time":-9223372036854775808,"recovered":true,"extra":1}"#],
};
