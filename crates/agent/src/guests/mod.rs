//! The guests of this host: who works on which slot, what they report, and what is left of them when they go.

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

/// Everything about guests that is not on the disk. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Guests {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// There may be guests, or slots that have had one. Most hosts never have, and need not look every few seconds.
    may_have_guests: AtomicBool,
    /// Slots that a task works on.
    busy: Mutex<HashSet<SlotId>>,
    freed: Notify,
    /// Held by whoever works on the user of the tenant who has the whole machine.
    machine: Arc<tokio::sync::Mutex<()>>,
    /// Where guests send their metrics.
    endpoint: Option<SocketAddr>,
    telemetry: Mutex<telemetry::Registry>,
    /// Where host and leases were found to differ.
    drift: Mutex<Vec<Drift>>,
}

impl Guests {
    /// No guests yet; `endpoint` is where they will send their metrics.
    pub(crate) fn new(endpoint: Option<SocketAddr>) -> Self {
        let (busy, freed) = (Mutex::default(), Notify::new());
        let may_have_guests = AtomicBool::new(true);
        let (machine, telemetry, drift) = (Arc::default(), Mutex::default(), Mutex::default());
        let inner = Inner { may_have_guests, busy, freed, machine, endpoint, telemetry, drift };
        Self { inner: Arc::new(inner) }
    }

    /// Where guests send their metrics, if the host's owner has set it up.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        self.inner.endpoint
    }

    /// Waits until nobody works on the machine as a whole, and keeps others away until the claim is dropped.
    pub(crate) async fn claim_machine(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.inner.machine).lock_owned().await
    }

    /// Waits until nobody works on any of these slots, and keeps others away until the claim is dropped.
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

    /// The same, if nobody works on them now.
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

/// Slots that nobody else works on.
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
        // Whoever looked while the slots were claimed may have looked too early.
        self.inner.may_have_guests.store(true, Ordering::Release);
        self.inner.freed.notify_waiters();
    }
}
