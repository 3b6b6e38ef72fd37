//! The view of the fleet for placement. It is built from the rows when it is first needed and updated by wake-ups. It authorizes
//! nothing; a caller that finds it outdated has the node read again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuaas_contract::id::NodeId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Wakeup;
use gpuaas_domain::allocation::Terms;
use gpuaas_domain::catalog::Product;
use gpuaas_domain::machine::{Machine, MachineState, machine_id};
use gpuaas_domain::maintenance::Window;
use gpuaas_domain::node::Node;
use gpuaas_domain::placement::{
    Candidate, Fleet, MachineOffer, MachineUse, NoFit, Placement, PlacementRequest, Policy, SlotCount, What,
};
use gpuaas_store::{NodeFilter, ResourceFilter};
use tokio::sync::broadcast::error::RecvError;

use crate::error::ControlError;
use crate::{Control, resources};

/// Nodes of one read when the whole view is built.
const PAGE: u32 = 500;

/// The view, and which parts of it are outdated.
#[derive(Default)]
pub struct FleetView {
    inner: Mutex<View>,
    /// One reader of rows at a time: the others wait for its result.
    reading: tokio::sync::Mutex<()>,
    /// Notified when a place is no longer held.
    given_up: tokio::sync::Notify,
}

/// A part of the view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Nodes,
    All,
}

struct View {
    fleet: Fleet,
    windows: Vec<Window>,
    /// Whether the whole view must be rebuilt.
    all: bool,
    dirty: HashSet<NodeId>,
    /// Set while outdated parts are being read.
    being_read: Option<Extent>,
    /// Chosen placements that are about to be written, in the order in which they were chosen.
    held: BTreeMap<u64, (What, Placement)>,
    /// The number of the next one.
    next_held: u64,
    /// The number of changes that were noted.
    changes: u64,
}

impl Default for View {
    fn default() -> Self {
        let (windows, dirty, held) = Default::default();
        Self { fleet: Fleet::new(), windows, all: true, dirty, being_read: None, held, next_held: 0, changes: 0 }
    }
}

impl View {
    /// Returns whether all of it must be rebuilt.
    fn is_old(&self, now: Timestamp) -> bool {
        // The end of a maintenance window causes no wake-up.
        self.all || self.windows.iter().any(|window| !window.counts(now))
    }

    /// Updates a node from its rows. Its held places stay held.
    fn upsert(&mut self, candidate: Candidate) {
        let node = candidate.node_id();
        self.fleet.upsert(candidate);
        for (what, place) in self.held.values().filter(|(_, place)| place.node_id == node) {
            self.fleet.take(what, place);
        }
    }
}

/// Rows are being read. Other callers wait for them: until then the view may be empty. If the read is cancelled, the parts stay
/// outdated.
struct Reading<'a> {
    view: &'a FleetView,
    all: bool,
    dirty: HashSet<NodeId>,
    done: bool,
}

impl<'a> Reading<'a> {
    /// Takes the outdated parts before the rows are read: a change during the read makes them outdated again.
    fn begin(view: &'a FleetView) -> Self {
        let mut now = view.lock();
        now.being_read = Some(if now.all { Extent::All } else { Extent::Nodes });
        Self { view, all: std::mem::take(&mut now.all), dirty: std::mem::take(&mut now.dirty), done: false }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut view = self.view.lock();
        view.being_read = None;
        if !self.done {
            view.all |= self.all;
            view.dirty.extend(self.dirty.drain());
        }
    }
}

/// A chosen place. Until it is written, or fails, others see it as taken: otherwise all concurrent callers would find the same
/// best place, and all but one in vain.
pub(crate) struct HeldPlace<'a> {
    view: &'a FleetView,
    number: u64,
}

impl Drop for HeldPlace<'_> {
    fn drop(&mut self) {
        let mut view = self.view.lock();
        if let Some((_, place)) = view.held.remove(&self.number) {
            // The rows show the result.
            view.dirty.insert(place.node_id);
        }
        drop(view);
        self.view.given_up.notify_waiters();
    }
}

/// Returns the placement request for these terms.
pub(crate) fn placement_request(terms: &Terms, avoid: &[NodeId], end: Option<Timestamp>) -> PlacementRequest {
    let what = match terms.product {
        Product::Slice { slots } => {
            // A product with an invalid number of slots was refused at its creation.
            let one = SlotCount::new(1).unwrap_or_else(|_| unreachable!("a slice can have one slot"));
            What::Slots {
                count: usize::try_from(slots).ok().and_then(|slots| SlotCount::new(slots).ok()).unwrap_or(one),
                gpu_model: terms.gpu_model.clone(),
                min_vcpus_per_slot: terms.min_vcpus,
                min_memory_mib_per_slot: terms.min_memory_mib,
            }
        }
        Product::BareMetal => What::Machine { gpu_model: terms.gpu_model.clone(), gpus: None },
    };
    PlacementRequest {
        what,
        policy: if terms.spread { Policy::Spread } else { Policy::Pack },
        only_nodes: None,
        avoid_nodes: avoid.iter().copied().collect::<BTreeSet<_>>(),
        must_end_by: end,
    }
}

impl FleetView {
    /// Tracks which parts of the view are outdated.
    pub(crate) fn spawn(control: &Arc<Control>) {
        let mut wakeups = control.store.wakeups();
        let control = Arc::clone(control);
        let tracker = control.background.clone();
        tracker.spawn(async move {
            loop {
                let wakeup =
                    tokio::select! { biased; () = control.shutdown.cancelled() => return, wakeup = wakeups.recv() => wakeup };
                match wakeup {
                    Ok(Wakeup::Fleet(node)) => control.fleet.note(node),
                    Err(RecvError::Lagged(_)) => control.fleet.note(None),
                    Ok(
                        Wakeup::NodeWork(_)
                        | Wakeup::NodeAccess(_)
                        | Wakeup::Task(_)
                        | Wakeup::Allocation(_)
                        | Wakeup::AllocationAdvanced(_)
                        | Wakeup::Outbox
                        | Wakeup::Link(_)
                        | Wakeup::Rights
                        | Wakeup::Progress { .. },
                    ) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// Marks this node as outdated, or every node if none is named.
    pub(crate) fn note(&self, node: Option<NodeId>) {
        let mut view = self.lock();
        view.changes += 1;
        match node {
            Some(node) => drop(view.dirty.insert(node)),
            None => view.all = true,
        }
    }

    /// Returns how many changes were noted.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a request, according to the view.
    pub(crate) async fn place(
        &self,
        control: &Control,
        request: &PlacementRequest,
    ) -> Result<Result<Placement, NoFit>, ControlError> {
        self.refresh(control).await?;
        Ok(self.lock().fleet.place(request, Timestamp::now()))
    }

    /// Returns a place for a request, held for the caller.
    pub(super) async fn hold(
        &self,
        control: &Control,
        request: &PlacementRequest,
    ) -> Result<Result<(Placement, HeldPlace<'_>), NoFit>, ControlError> {
        let mut first_after = None;
        loop {
            let given_up = self.given_up.notified();
            self.refresh(control).await?;
            {
                let mut view = self.lock();
                match view.fleet.place(request, Timestamp::now()) {
                    Ok(place) => {
                        let number = view.next_held;
                        view.next_held += 1;
                        view.fleet.take(&request.what, &place);
                        view.held.insert(number, (request.what.clone(), place.clone()));
                        return Ok(Ok((place, HeldPlace { view: self, number })));
                    }
                    // Places that are held now may be released. Waits only for these, not for later ones, or it could take
                    // forever.
                    Err(no_fit) => {
                        let end = *first_after.get_or_insert(view.next_held);
                        if view.held.range(..end).next().is_none() {
                            return Ok(Err(no_fit));
                        }
                    }
                }
            }
            given_up.await;
        }
    }

    /// Queries the view, after it was updated.
    pub(crate) async fn ask<T>(&self, control: &Control, question: impl FnOnce(&Fleet) -> T) -> Result<T, ControlError> {
        self.refresh(control).await?;
        Ok(question(&self.lock().fleet))
    }

    /// Returns the announced maintenance of a node, soonest first.
    pub(crate) async fn windows_of(&self, control: &Control, node: NodeId) -> Result<Vec<Window>, ControlError> {
        let now = Timestamp::now();
        // They are read with the whole view; updates of single nodes do not concern them.
        let known = {
            let view = self.lock();
            !view.is_old(now) && view.being_read != Some(Extent::All)
        };
        if !known {
            self.refresh(control).await?;
        }
        let view = self.lock();
        Ok(view.windows.iter().filter(|window| window.counts(now) && window.nodes.contains(&node)).cloned().collect())
    }

    async fn refresh(&self, control: &Control) -> Result<(), ControlError> {
        {
            let mut view = self.lock();
            view.all |= view.is_old(Timestamp::now());
            if !view.all && view.dirty.is_empty() && view.being_read.is_none() {
                return Ok(());
            }
        }
        let _one_at_a_time = self.reading.lock().await;
        let mut reading = Reading::begin(self);
        if reading.all {
            self.read_all(control).await?;
        } else {
            self.read_some(control, &reading.dirty).await?;
        }
        reading.done = true;
        Ok(())
    }

    async fn read_all(&self, control: &Control) -> Result<(), ControlError> {
        let announced = ResourceFilter { states: vec!["announced"], ..ResourceFilter::default() };
        let now = Timestamp::now();
        let mut windows: Vec<Window> = resources::all(control, &announced).await?;
        windows.retain(|window| window.counts(now));
        windows.sort_by_key(|window| window.starts_at);
        let mut fleet = Fleet::new();
        let mut after = None;
        loop {
            let nodes = control.store.node_list(&NodeFilter::default(), after, PAGE).await?;
            for node in &nodes {
                fleet.upsert(candidate(control, node, &windows).await?);
            }
            match nodes.last() {
                Some(last) if nodes.len() == PAGE as usize => after = Some(last.id),
                Some(_) | None => break,
            }
        }
        let mut view = self.lock();
        let View { held, .. } = &*view;
        held.values().for_each(|(what, place)| fleet.take(what, place));
        view.fleet = fleet;
        view.windows = windows;
        Ok(())
    }

    async fn read_some(&self, control: &Control, dirty: &HashSet<NodeId>) -> Result<(), ControlError> {
        let windows = self.lock().windows.clone();
        for id in dirty {
            match control.store.node_get(*id).await? {
                Some(node) => {
                    let candidate = candidate(control, &node, &windows).await?;
                    self.lock().upsert(candidate);
                }
                None => self.lock().fleet.remove(*id),
            }
        }
        Ok(())
    }
}

async fn candidate(control: &Control, node: &Node, windows: &[Window]) -> Result<Candidate, ControlError> {
    let slots = control.store.slot_of_node(node.id).await?;
    let machine = match resources::get::<Machine>(control, machine_id(node.id)).await {
        // A row that is not ours is not an offer, and must not hide the others.
        Err(ControlError::Refused(_)) => None,
        read => read?,
    };
    let offer = machine.and_then(|machine| match machine.state {
        MachineState::Available => Some(MachineUse::Free),
        MachineState::Leased | MachineState::Releasing => Some(MachineUse::Leased),
        MachineState::CleanupBlocked => Some(MachineUse::Dirty),
        MachineState::Withdrawn => None,
    });
    let maintenance = windows.iter().find(|window| window.nodes.contains(&node.id)).map(|window| window.starts_at);
    Ok(Candidate::new(node, &slots, offer.map(|state| MachineOffer { state }), maintenance))
}
