//! `slice.vm_power`: stops, starts or reboots a guest. The guest keeps its identity, its disk and its address.

use std::time::Duration;

use super::{Examples, Parameters, example_slot};
use crate::guest::DEFAULT_SHUTDOWN_SECONDS;
use crate::id::AllocationId;
use crate::names::named;
use crate::slice::{Holder, LeasedSlot};

named! {
    /// A power action on a guest.
    pub enum PowerAction {
        /// Shuts the guest down, by force if it does not shut down in time.
        Stop = "stop",
        /// Starts the guest.
        Start = "start",
        /// Stops the guest and starts it again.
        Reboot = "reboot",
    }
}

/// Seconds a started guest has to respond unless the parameters set a time.
pub const DEFAULT_ANSWER_SECONDS: u32 = 600;
/// Maximum number of seconds to wait for a response.
pub const MAX_ANSWER_SECONDS: u32 = 3600;

/// The guest and the power action.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// Slots of the guest.
    pub slots: Vec<LeasedSlot>,
    /// The power action.
    pub action: PowerAction,
    /// How many seconds the guest has to shut down, clamped to 30 to 900.
    #[serde(default = "default_grace")]
    pub graceful_timeout_seconds: u32,
    /// How many seconds to wait for a started guest to answer.
    #[serde(default = "default_answer_timeout", skip_serializing_if = "is_default_answer_timeout")]
    #[schemars(range(max = MAX_ANSWER_SECONDS))]
    pub answer_timeout_seconds: u32,
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        LeasedSlot::check_all(&self.slots)?;
        if self.answer_timeout_seconds > MAX_ANSWER_SECONDS {
            let given = self.answer_timeout_seconds;
            return Err(format!("answer_timeout_seconds is {given}; at most {MAX_ANSWER_SECONDS} is allowed"));
        }
        Ok(())
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }

    fn slots(&self) -> &[LeasedSlot] {
        &self.slots
    }

    fn waits(&self) -> Duration {
        match self.action {
            PowerAction::Stop => Duration::ZERO,
            PowerAction::Start | PowerAction::Reboot => Duration::from_secs(self.answer_timeout_seconds.into()),
        }
    }
}

pub(super) fn default_grace() -> u32 {
    DEFAULT_SHUTDOWN_SECONDS
}

fn default_answer_timeout() -> u32 {
    DEFAULT_ANSWER_SECONDS
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_answer_timeout(seconds: &u32) -> bool {
    *seconds == DEFAULT_ANSWER_SECONDS
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[concat!(
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"slots":["#,
        example_slot!(),
        r#"],"action":"reboot","answer_timeout_seconds":60}"#
    )],
    refused_params: &[r#"{"allocation_id":"somebody","lease_epoch":1,"slots":"*"}"#, "{}"],
    outputs: &[
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","running":true,"unchanged":false,"hard_stopped":false}"#,
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","running":true,"unchanged":false,"hard_stopped":false,"answers":true}"#,
    ],
    refused_outputs: &[],
};

/// Result of the power action.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Whether the guest is running now.
    pub running: bool,
    /// Whether the guest was already in this state.
    pub unchanged: bool,
    /// Whether the guest did not shut down in time and was stopped by force.
    pub hard_stopped: bool,
    /// Whether the guest accepts an SSH sign-in again; absent if this task did not start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
}
