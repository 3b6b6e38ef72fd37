//! Reconciles the host with the leases, at the start of the agent and periodically.
//!
//! Leases, hypervisor and bus are compared. What belongs to a slot that this host has served is repaired: its functions return to
//! `vfio-pci`, and a guest that was running when the host went down is started again. Everything else is only reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpuaas_contract::cleanup::RESTING_DRIVER;
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::task::diag_health_probe::Drift;
use gpuaas_contract::time::Timestamp;
use gpuaas_host::guests::{DomainState, Fence, Lease, Power};
use gpuaas_host::{Host, HostError};
use tokio_util::sync::CancellationToken;

use super::Guests;
use super::cleanup::bind;

/// How often everything is compared. The kernel does not notify about a driver that was changed by hand.
const EVERY: Duration = Duration::from_secs(30);
/// How long a repaired difference is shown.
const SHOWN: Duration = Duration::from_secs(3600);
/// Maximum number of remembered differences.
const MOST: usize = 64;

impl Guests {
    /// Reconciles until `stop`.
    pub(crate) async fn keep_in_line(self, host: Host, boot_id: String, stop: CancellationToken) {
        loop {
            self.reconcile(&host, &boot_id).await;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Compares once, and repairs what it may repair.
    pub(crate) async fn reconcile(&self, host: &Host, boot_id: &str) -> Vec<Drift> {
        let mut found = Vec::new();
        if let Err(error) = self.compare(host, boot_id, &mut found).await {
            found.push(drift(error.code, "host", error.message, false));
        }
        let mut known = self.inner.drift.lock().unwrap_or_else(PoisonError::into_inner);
        for drift in &found {
            let is_new =
                !known.iter().any(|old| old.code == drift.code && old.subject == drift.subject && old.repaired == drift.repaired);
            if is_new {
                tracing::warn!(code = drift.code, subject = drift.subject, repaired = drift.repaired, "{}", drift.message);
            }
        }
        // Existing differences were found again; repaired ones are remembered for a while.
        let now = Timestamp::now();
        known.retain(|old| old.repaired && now.since(old.at) < SHOWN);
        known.extend(found.iter().cloned());
        let surplus = known.len().saturating_sub(MOST);
        known.drain(..surplus);
        found
    }

    /// Returns the differences.
    pub(crate) fn drift(&self) -> Vec<Drift> {
        self.inner.drift.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn compare(&self, host: &Host, boot_id: &str, found: &mut Vec<Drift>) -> Result<(), HostError> {
        if !self.inner.may_have_guests.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (leases, fences) = match (host.leases().await, host.fences().await) {
            (Ok(leases), Ok(fences)) if leases.is_empty() && fences.is_empty() => {
                // Never had a guest, so there may be no hypervisor. The first task on a slot changes that.
                return Ok(());
            }
            (leases, fences) => {
                self.inner.may_have_guests.store(true, Ordering::Release);
                (leases?, fences?)
            }
        };
        if host.machine_lease().await?.is_some() {
            // With the whole machine leased, every device belongs to the tenant: nothing is repaired.
            return Ok(());
        }
        for fence in &fences {
            self.keep_functions(host, fence, found).await;
        }
        let domains: BTreeMap<AllocationId, DomainState> = host.domains().await?.into_iter().collect();
        let mut guests: BTreeMap<AllocationId, Vec<&Lease>> = BTreeMap::new();
        for lease in &leases {
            guests.entry(lease.allocation_id).or_default().push(lease);
        }
        for (allocation_id, leases) in &guests {
            let state = domains.get(allocation_id).copied().unwrap_or(DomainState::Absent);
            self.keep_guest(host, boot_id, (*allocation_id, leases, state), found).await;
        }
        let held: BTreeSet<AllocationId> = guests.keys().copied().collect();
        let strangers = domains.keys().filter(|id| !held.contains(id)).map(|id| (*id, "domain_without_lease", "a guest"));
        let folders = host.instances().await?.into_iter().map(|id| (id, "instance_without_lease", "a guest's folder"));
        let addresses = host.reservations().await?.into_iter().map(|id| (id, "reservation_without_lease", "a reservation"));
        for (id, code, what) in strangers.chain(folders).chain(addresses).filter(|(id, ..)| !held.contains(id)) {
            let message = format!("there is {what} of {id}, which holds no slot here; nothing was done about it");
            found.push(drift(code, &id.to_string(), message, false));
        }
        Ok(())
    }

    /// Keeps the functions of a slot that this host has served on `vfio-pci`, whatever removed them.
    async fn keep_functions(&self, host: &Host, fence: &Fence, found: &mut Vec<Drift>) {
        let Some(_claim) = self.try_claim(&[fence.slot_id]) else { return };
        for address in &fence.functions {
            let state = match host.function_state(address).await {
                Ok(state) => state,
                Err(error) => {
                    found.push(drift(error.code, address.as_str(), error.message, false));
                    continue;
                }
            };
            if state.driver == RESTING_DRIVER {
                continue;
            }
            let before = if state.driver.is_empty() { "no driver".to_owned() } else { state.driver };
            let (repaired, rest) = match bind(host, address).await {
                Ok(()) => (true, "it was bound to vfio-pci again".to_owned()),
                Err(error) => (false, error.message),
            };
            let message = format!("{address} of slot {} was held by {before}; {rest}", fence.slot_id);
            found.push(drift("function_off_vfio", address.as_str(), message, repaired));
        }
    }

    async fn keep_guest(
        &self,
        host: &Host,
        boot_id: &str,
        (allocation_id, leases, state): (AllocationId, &[&Lease], DomainState),
        found: &mut Vec<Drift>,
    ) {
        let slots: Vec<_> = leases.iter().map(|lease| lease.slot_id).collect();
        let Some(_claim) = self.try_claim(&slots) else { return };
        if let Err(error) = host.console_trim(allocation_id).await {
            found.push(drift(error.code, &allocation_id.to_string(), error.message, false));
        }
        let wanted = leases.iter().all(|lease| lease.power == Power::On);
        let other_boot = leases.iter().any(|lease| lease.boot_id != boot_id);
        match (state, wanted) {
            (DomainState::Running, true) | (DomainState::Off, false) => {}
            (DomainState::Off, true) if other_boot => {
                let (repaired, rest) = match start_again(host, boot_id, allocation_id, leases).await {
                    Ok(()) => (true, "it was started again".to_owned()),
                    Err(error) => (false, format!("it could not be started again: {}", error.message)),
                };
                let message = format!("the host was rebooted while the guest of {allocation_id} ran; {rest}");
                found.push(drift("guest_off_after_reboot", &allocation_id.to_string(), message, repaired));
            }
            (DomainState::Off, true) => {
                let message = format!("the guest of {allocation_id} has turned itself off; start it when it is needed");
                found.push(drift("guest_off", &allocation_id.to_string(), message, false));
            }
            (DomainState::Running, false) => {
                let message = format!("the guest of {allocation_id} runs although it was stopped; it was started by hand");
                found.push(drift("guest_on", &allocation_id.to_string(), message, false));
            }
            (DomainState::Absent, _) => {
                let message = format!("the slots of {allocation_id} are held and there is no guest; release them to clean up");
                found.push(drift("guest_missing", &allocation_id.to_string(), message, false));
            }
        }
    }
}

async fn start_again(host: &Host, boot_id: &str, allocation_id: AllocationId, leases: &[&Lease]) -> Result<(), HostError> {
    for function in leases.iter().flat_map(|lease| lease.spec.functions()) {
        bind(host, function).await?;
    }
    for lease in leases {
        host.lease_note(&Lease { boot_id: boot_id.to_owned(), ..(*lease).clone() }).await?;
    }
    host.domain_start(allocation_id).await
}

fn drift(code: &str, subject: &str, message: String, repaired: bool) -> Drift {
    Drift { code: code.to_owned(), subject: subject.to_owned(), message, repaired, at: Timestamp::now() }
}
