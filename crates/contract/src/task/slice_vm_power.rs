//! `slice.vm_power`: stops, starts or reboots a guest. The guest keeps its identity, its disk and its address.

use std::time::Duration;

use super::{Examples, Parameters, example_slot};
use crate::guest::DEFAULT_SHUTDOWN_SECONDS;
use crate::id::AllocationId;
use crate::names::named;
use crate::slice::{Holder, LeasedSlot};

named! {
    /// What to do with a guest's power.
    pub enum PowerAction {
        /// Shut it down; stop it if it does not.
        Stop = "stop",
        /// Start it.
        Start = "start",
        /// Both.
        Reboot = "reboot",
    }
}

/// Seconds a started guest has to respond unless the parameters set a time.
pub const DEFAULT_ANSWER_SECONDS: u32 = 600;
/// Maximum number of seconds to wait for a response.
pub const MAX_ANSWER_SECONDS: u32 = 3600;

/// Which guest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Its fencing number; the same as in the envelope.
    pub lease_epoch: u64,
    /// Its slots.
    pub slots: Vec<LeasedSlot>,
    /// What to do.
    pub action: PowerAction,
    /// How long the guest may take to shut down, brought into 30 to 900 s.
    #[serde(default = "default_grace")]
    pub graceful_timeout_seconds: u32,
    /// How long to wait until a guest that was started answers.
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// It runs now.
    pub running: bool,
    /// It was so already.
    pub unchanged: bool,
    /// It did not shut down in time and was stopped.
    pub hard_stopped: bool,
    /// Whether the guest lets us in by SSH again; absent if this task started nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
}
