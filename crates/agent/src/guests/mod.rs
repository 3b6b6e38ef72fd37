//! The guests of this host: which task works on which slot, their reports, and their cleanup.

pub(crate) mod cleanup;
mod reconcile;
mod telemetry;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpuaas_contract::id::SlotId;
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::diag_health_probe::Drift;
use tokio::sync::Notify;

pub(crate) use telemetry::new_token;

/// The state about guests that is not on disk. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guests {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Whether there may be guests, or slots that have had one. Most hosts have none, and need not check every few seconds.
    may_have_guests: AtomicBool,
    /// Slots that a task works on.
    busy: Mutex<HashSet<SlotId>>,
    freed: Notify,
    /// Locked by the task that works on the user of the whole machine's tenant.
    machine: Arc<tokio::sync::Mutex<()>>,
    /// The address for the metrics of guests.
    endpoint: Option<SocketAddr>,
    telemetry: Mutex<telemetry::Registry>,
    /// The differences between host and leases.
    drift: Mutex<Vec<Drift>>,
}

impl Guests {
    /// Creates the state without guests; `endpoint` is the address for their metrics.
    pub(crate) fn new(endpoint: Option<SocketAddr>) -> Self {
        let (busy, freed) = (Mutex::default(), Notify::new());
        let may_have_guests = AtomicBool::new(true);
        let (machine, telemetry, drift) = (Arc::default(), Mutex::default(), Mutex::default());
        let inner = Inner { may_have_guests, busy, freed, machine, endpoint, telemetry, drift };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the address for the metrics of guests, if the host's owner configured it.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        self.inner.endpoint
    }

    /// Waits until no task works on the machine as a whole, and keeps others away until the claim is dropped.
    pub(crate) async fn claim_machine(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.inner.machine).lock_owned().await
    }

    /// Waits until no task works on any of these slots, and keeps others away until the claim is dropped.
    pub(crate) async fn claim(&self, slots: &[LeasedSlot]) -> Claim {
        let wanted: Vec<SlotId> = slots.iter().map(|slot| slot.slot_id).collect();
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(claim) = self.try_claim(&wanted) {
                return claim;
            }
            freed.await;
        }
    }

    /// Claims these slots if no task works on them now.
    pub(crate) fn try_claim(&self, slots: &[SlotId]) -> Option<Claim> {
        let mut busy = self.inner.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.iter().any(|slot| busy.contains(slot)) {
            return None;
        }
        busy.extend(slots);
        self.inner.may_have_guests.store(true, Ordering::Release);
        Some(Claim { inner: Arc::clone(&self.inner), slots: slots.to_vec() })
    }
}

/// Slots that no other task works on.
#[derive(Debug)]
pub(crate) struct Claim {
    inner: Arc<Inner>,
    slots: Vec<SlotId>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut busy = self.inner.busy.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in &self.slots {
            busy.remove(slot);
        }
        drop(busy);
        // A check that ran while the slots were claimed may have been too early.
        self.inner.may_have_guests.store(true, Ordering::Release);
        self.inner.freed.notify_waiters();
    }
}
