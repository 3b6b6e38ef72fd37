//! The runs of this process that wait for a place.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use gpuaas_contract::id::AllocationId;
use gpuaas_domain::allocation::{AllocationStep, Next};

use super::Advanced;

/// The waiting runs: any place that becomes free may be for them. If a process dies, its waiting runs retry later by themselves.
#[derive(Debug, Default)]
pub(crate) struct Placing(Mutex<BTreeSet<AllocationId>>);

impl Placing {
    /// Records the result of a run's last step. Returns whether it waits from now on.
    pub(super) fn note(&self, id: AllocationId, advanced: Option<Advanced>) -> bool {
        let waits = matches!(advanced, Some(Advanced { step: AllocationStep::Place, next: Next::At(_) }));
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waits {
            waiting.insert(id)
        } else {
            waiting.remove(&id);
            false
        }
    }

    /// Returns the runs that wait longest.
    pub(super) fn oldest(&self, most: usize) -> Vec<AllocationId> {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().take(most).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuaas_contract::time::Timestamp;

    #[test]
    fn a_run_begins_to_wait_once() {
        let placing = Placing::default();
        let id = AllocationId::generate();
        let waits = Some(Advanced { step: AllocationStep::Place, next: Next::At(Timestamp(1)) });
        assert!(placing.note(id, waits));
        assert!(!placing.note(id, waits), "it waits already");
        assert_eq!(placing.oldest(9), [id]);
        assert!(!placing.note(id, Some(Advanced { step: AllocationStep::AwaitProvision, next: Next::At(Timestamp(1)) })));
        assert!(placing.oldest(9).is_empty());
        assert!(!placing.note(id, None));
    }
}
