//! `slice.vm_power`: stop, start or reboot a guest. It keeps its identity, its disk and its address.

use super::slice_vm_provision::default_grace;
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
}

impl Params {
    /// Whose it is.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        LeasedSlot::check_all(&self.slots)
    }
}

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
}
