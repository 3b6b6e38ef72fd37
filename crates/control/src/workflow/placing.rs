//! The runs that this process knows to be waiting for a place.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use gpuaas_contract::id::AllocationId;
use gpuaas_domain::allocation::{AllocationStep, Next};

use super::Advanced;

/// Who waits for a place: whatever becomes free may be theirs. What is forgotten here when a process dies looks again by itself, later.
#[derive(Debug, Default)]
pub(crate) struct Placing(Mutex<BTreeSet<AllocationId>>);

impl Placing {
    /// Notes what came of a run's last step.
    pub(super) fn note(&self, id: AllocationId, advanced: Option<Advanced>) {
        let waits = matches!(advanced, Some(Advanced { step: AllocationStep::Place, next: Next::At(_) }));
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waits {
            waiting.insert(id);
        } else {
            waiting.remove(&id);
        }
    }

    /// Those who wait longest.
    pub(super) fn oldest(&self, most: usize) -> Vec<AllocationId> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().take(most).copied().collect()
    }
}
