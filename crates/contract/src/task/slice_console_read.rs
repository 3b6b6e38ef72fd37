//! `slice.console_read`: reads the serial console of a guest. The lines go into the task's log, live while the task runs.

use std::time::Duration;

use super::{Examples, Parameters};
use crate::id::AllocationId;
use crate::slice::Holder;

/// Maximum number of bytes of past output in an answer.
pub const MAX_BYTES: u32 = 1024 * 1024;
/// Maximum number of seconds to follow the console.
pub const MAX_FOLLOW_SECONDS: u32 = 3600;

/// Which part of the console to read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// Number of bytes of past output to read.
    #[serde(default = "default_bytes")]
    #[schemars(range(max = MAX_BYTES))]
    pub tail_bytes: u32,
    /// How many seconds to follow new output.
    #[serde(default)]
    #[schemars(range(max = MAX_FOLLOW_SECONDS))]
    pub follow_seconds: u32,
}

fn default_bytes() -> u32 {
    64 * 1024
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        if self.tail_bytes > MAX_BYTES {
            return Err(format!("tail_bytes is {}; at most {MAX_BYTES} is allowed", self.tail_bytes));
        }
        if self.follow_seconds > MAX_FOLLOW_SECONDS {
            return Err(format!("follow_seconds is {}; at most {MAX_FOLLOW_SECONDS} is allowed", self.follow_seconds));
        }
        Ok(())
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }

    fn waits(&self) -> Duration {
        Duration::from_secs(self.follow_seconds.into())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"tail_bytes":1,"follow_seconds":3600}"#,
    ],
    refused_params: &[
        r#"{"tail_bytes":99999999}"#,
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"follow_seconds":3601}"#,
    ],
    outputs: &[r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lines":7,"truncated":true}"#],
    refused_outputs: &[],
};

/// How much of the console was read.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Number of lines that were written to the task's log.
    pub lines: u64,
    /// Whether the host no longer has the earlier output.
    pub truncated: bool,
}
