//! `slice.vm_release`: removes the guest, resets its devices, wipes its drive, drops the leases last, and proves all of it.

use std::collections::BTreeMap;

use super::slice_vm_power::default_grace;
use super::{Examples, Parameters, example_slot};
use crate::id::AllocationId;
use crate::slice::{Blocker, Holder, LeasedSlot};

/// What to release.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// Slots to release.
    pub slots: Vec<LeasedSlot>,
    /// How many seconds the guest has to shut down, clamped to 30 to 900.
    #[serde(default = "default_grace")]
    pub graceful_timeout_seconds: u32,
    /// Whether to wipe the drives. Without it, the slots need a wipe before they can be leased again.
    #[serde(default = "yes")]
    pub wipe: bool,
    /// Also cleans up what an earlier allocation, whose lease epoch is lower than this one, left on these slots.
    #[serde(default)]
    pub take_over: bool,
}

fn yes() -> bool {
    true
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        if self.lease_epoch == 0 {
            return Err("lease_epoch counts from 1".to_owned());
        }
        LeasedSlot::check_all(&self.slots)
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }

    fn slots(&self) -> &[LeasedSlot] {
        &self.slots
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[concat!(
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"slots":["#,
        example_slot!(),
        r#"],"wipe":false,"take_over":true}"#
    )],
    refused_params: &[r#"{"lease_epoch":0}"#, r#"{"allocation_id":"somebody","lease_epoch":"1"}"#],
    outputs: &[
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","already_gone":false,"hard_stopped":true,"wiped":true,
                "blockers":[{"code":"c","message":"m"}],"timings":{"cleanup_ms":5}}"#,
    ],
    refused_outputs: &[],
};

/// Result of the release.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Whether there was nothing left to release.
    pub already_gone: bool,
    /// Whether the guest did not shut down in time and was stopped by force.
    pub hard_stopped: bool,
    /// Whether the drives were wiped.
    pub wiped: bool,
    /// What blocks the slots from being used again; at most that their drives have to be wiped.
    pub blockers: Vec<Blocker>,
    /// Duration of each step in milliseconds, as `<step>_ms`.
    pub timings: BTreeMap<String, u64>,
}
